/* packed.h - the packed form of a model's matrices in a file, so that the next start reads
 * what this one has computed; private to model/.
 *
 *     DIR/dormouse-FORMAT.packed:
 *     "dormouse packed 1" and zeros to 32 bytes || key || u64 n || n times (u64 bytes,
 *     u64 XXH3 of them) || u64 XXH3 of all before || zeros to a whole page || the matrices
 *     as the backend has them in memory, behind each zeros to a whole page; and no more
 *
 * Numbers are little-endian.  The key is a hash of all that decides these bytes: the
 * backend's layout, the format, the number of matrices (the configuration may leave the
 * head out), every tensor's name, type and shape, and of each file the size and the times
 * of its last change of content and of state, which no change of a file leaves alone.
 * So a file of another model, of another version or of weights that have changed since is
 * not taken; nor is a byte that was not written here.
 *
 * Owns     the open file; packed_close() closes it.
 * Rule     it is a copy of what can be computed again: what is wrong with it is a sentence
 *          for the log and never an error.  A file appears whole, by rename, or not at all;
 *          what a killed process has left of one goes with the next start.
 * Threads  one; the engine's.
 */
#ifndef MODEL_PACKED_H
#define MODEL_PACKED_H

#include "kernels/kernels.h"
#include "model/safetensors.h"

struct packed;

/* dir is that of the tensors' files.  *out is NULL where there is no memory, or the backend
 * has no packed form that another process can read. */
void packed_open(struct packed **out, const struct backend *b, const char *dir,
                 enum weight_format format, const struct tensor_set *set,
                 uint32_t n_matrices);
void packed_close(struct packed *p);  // NULL is fine

/* Whether there is a file to read from, and none of it was wrong so far. */
bool packed_readable(const struct packed *p);

/* Fill m->data with the i-th matrix of the file.  False where that is not there or not
 * whole; from then on nothing is. */
bool packed_read(struct packed *p, uint32_t i, const struct matrix *m);

/* Write all matrices, unless each of them was read. */
void packed_write(struct packed *p, const struct matrix *const *m, uint32_t n);

/* What came of it: one sentence without its full stop. */
const char *packed_result(const struct packed *p);

#endif
