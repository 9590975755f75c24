/* ssd_folder.h - the SSD tier's folder and its lock, without trust in what lies there.
 *
 *     DIR/lock     held with flock: one process at a time
 *
 * Owns     two descriptors.
 * Caller   lends the system from the open to the close, and the path for a look.
 * Threads  one; everything blocks.
 *
 * Nothing is followed or waited for: a link, a pipe, a socket or a folder in place of a
 * file is refused by its name.
 */
#ifndef OFFLOAD_SSD_FOLDER_H
#define OFFLOAD_SSD_FOLDER_H

#include "offload/ssd_sys.h"
#include "offload/tier.h"

#define SSD_FOLDER_FILES 2        // beside the lock
#define SSD_FOLDER_NAMES "names"  // ours too where the blocks have been deleted

struct ssd_folder {
    const char *path;           // borrowed
    const struct ssd_sys *sys;  // borrowed
    bool look;                  // what was made is taken away again by the close
    int dir, lock;
    struct {
        bool dir, lock;
        const char *file[SSD_FOLDER_FILES];  // the names of others, or NULL
    } made;
};

/* Add a sentence to what was found. */
void ssd_note(struct tier_ssd_found *found, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Made where it is not there, and locked; -EBUSY: another process has it; -ENOTEMPTY: it
 * holds other things, and no `blocks` of ours.  With an error found->tier_only is
 * set, and the close is still the caller's. */
NODISCARD int ssd_folder_open(struct ssd_folder *f, struct tier_ssd_found *found,
                              const char *path, const char *blocks,
                              const struct ssd_sys *sys, bool look, struct err *err);
/* A regular file of ours in the folder, made where it is missing.  With an error *out may
 * be open none the less, and ssd_folder_refuse() says why. */
NODISCARD int ssd_folder_file(struct ssd_folder *f, const char *name, int flags,
                              int *out);
NODISCARD int ssd_folder_refuse(const struct ssd_folder *f, const char *name, int rc,
                                struct err *err);
void ssd_folder_close(struct ssd_folder *f);

#endif
