#include "offload/ssd_wipe.h"

#include <assert.h>
#include <stdlib.h>

enum { LISTED = 1, HEADER = 2, WHOLE = 4, RUNNING = 8 };

int ssd_wipe_open(struct ssd_wipe *w, uint32_t capacity, struct err *err)
{
    *w = (struct ssd_wipe){
        .state = calloc(capacity, sizeof *w->state),
        .ring = malloc(capacity * sizeof *w->ring),
        .capacity = capacity,
    };
    if (w->state && w->ring) return 0;
    ssd_wipe_close(w);
    return err_set(err, -ENOMEM, "no memory for a list of %u slots", capacity);
}

void ssd_wipe_close(struct ssd_wipe *w)
{
    free(w->state);
    free(w->ring);
    *w = (struct ssd_wipe){0};
}

void ssd_wipe_add(struct ssd_wipe *w, uint32_t slot, bool whole)
{
    assert(slot < w->capacity && !(w->state[slot] & RUNNING));
    w->erasing += whole && !(w->state[slot] & WHOLE);
    w->state[slot] |= whole ? WHOLE : HEADER;
    if (w->state[slot] & LISTED) return;
    w->state[slot] |= LISTED;
    w->ring[(w->first + w->n++) % w->capacity] = slot;
}

bool ssd_wipe_cancel(struct ssd_wipe *w, uint32_t slot)
{
    if (w->state[slot] & (RUNNING | WHOLE)) return false;
    w->state[slot] &= LISTED;
    return true;
}

bool ssd_wipe_next(struct ssd_wipe *w, uint32_t *slot, bool *whole)
{
    while (w->n > 0) {
        uint32_t i = w->ring[w->first];
        w->first = (w->first + 1) % w->capacity;
        w->n--;
        uint8_t state = w->state[i] & (HEADER | WHOLE);
        w->state[i] = state ? RUNNING | (state & WHOLE) : 0;
        if (!state) continue;
        *slot = i;
        *whole = state & WHOLE;
        return true;
    }
    return false;
}

void ssd_wipe_done(struct ssd_wipe *w, uint32_t slot)
{
    assert(w->state[slot] & RUNNING);
    w->erasing -= (w->state[slot] & WHOLE) != 0;
    w->state[slot] = 0;
}
