/* engine_log.c - what the engine tells the log about its tiers: that one has failed and takes
 * blocks again, and what the end of the server left behind. */
#include "server/engine_state.h"
#include "server/log.h"

#include <stdio.h>
#include <string.h>

/* Each pause is told once; they double up to a minute, so that a tier that stays broken is
 * told of a few times and not for ever. */
static void tell(const struct tier *t, uint64_t *told)
{
    if (!t || t->health.pause == *told) return;
    if (t->health.pause == 0)
        log_line(LOG_INFO, "the %s tier takes blocks again", t->medium->name);
    else
        log_line(LOG_WARN,
                 "the %s tier takes no blocks for %.0f s: %s; conversations stay where "
                 "they are, or are computed again",
                 t->medium->name, (double)t->health.pause / 1e9,
                 strerror(-t->health.last_error));
    *told = t->health.pause;
}

static void tell_of_wipes(const struct tier *t, int *told)
{
    if (t->wipes.error == *told) return;
    if (t->wipes.error)
        log_line(LOG_WARN,
                 "the %s tier cannot overwrite blocks that were deleted or pushed out: "
                 "%s; it is tried again each second, and until then a restart may find "
                 "them",
                 t->medium->name, strerror(-t->wipes.error));
    else
        log_line(LOG_INFO, "the %s tier has overwritten them all", t->medium->name);
    *told = t->wipes.error;
}

static void tell_of_names(const struct tier *t, int *told)
{
    if (t->naming.error == *told) return;
    if (t->naming.error)
        log_line(LOG_WARN,
                 "the %s tier cannot write the names of conversations: %s; it is tried "
                 "again each second, and until then a restart finds what was there",
                 t->medium->name, strerror(-t->naming.error));
    else
        log_line(LOG_INFO, "the %s tier has written the names", t->medium->name);
    *told = t->naming.error;
}

void engine_tell_tiers(struct engine *e)
{
    tell(e->o.ram, &e->told_pause[0]);
    tell(e->o.ssd, &e->told_pause[1]);
    if (!e->o.ssd) return;
    tell_of_wipes(e->o.ssd, &e->told_wipe);
    tell_of_names(e->o.ssd, &e->told_naming);
}

void engine_tell_end(const struct engine *e, const struct kvstore_counters *before,
                     uint64_t ns)
{
    struct kvstore_counters c;
    if (!e->o.ssd) return;
    kvstore_count(e->o.store, &c);
    uint64_t block = engine_block_bytes(e);
    uint64_t bytes = c.demoted_bytes[KV_SSD] - before->demoted_bytes[KV_SSD];
    uint32_t left = kvstore_unsaved(e->o.store);
    char rest[128] = "";
    if (left && !e->o.ssd->health.writable)
        snprintf(rest, sizeof rest, "; %u more could not be: %s", left,
                 strerror(-e->o.ssd->health.last_error));
    else if (left)
        snprintf(rest, sizeof rest, "; %u more could not be copied in time", left);
    log_line(left ? LOG_WARN : LOG_INFO,
             "before the end %llu blocks (%.1f MiB) were copied to the SSD in %.1f s%s",
             (unsigned long long)(bytes / block), (double)bytes / (1 << 20),
             (double)ns / 1e9, rest);
}
