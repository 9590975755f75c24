#include "offload/ssd_wipe.h"

#include <assert.h>
#include <stdlib.h>

enum { LISTED = 1, HEADER = 2, WHOLE = 4, RUNNING = 8, OWED = 16 };

int ssd_wipe_open(struct ssd_wipe *w, uint32_t capacity, uint32_t *owed,
                  struct err *err)
{
    *w = (struct ssd_wipe){
        .state = calloc(capacity, sizeof *w->state),
        .ring = malloc(capacity * sizeof *w->ring),
        .group = malloc(capacity),
        .capacity = capacity,
        .owed = owed,
    };
    if (w->state && w->ring && w->group) return 0;
    ssd_wipe_close(w);
    return err_set(err, -ENOMEM, "no memory for a list of %u slots", capacity);
}

void ssd_wipe_close(struct ssd_wipe *w)
{
    free(w->state);
    free(w->ring);
    free(w->group);
    *w = (struct ssd_wipe){0};
}

static void list(struct ssd_wipe *w, uint32_t slot)
{
    if (w->state[slot] & LISTED) return;
    w->state[slot] |= LISTED;
    w->ring[(w->first + w->n++) % w->capacity] = slot;
}

static void skip_cancelled(struct ssd_wipe *w)
{
    for (; w->n > 0; w->n--) {
        uint8_t *state = &w->state[w->ring[w->first]];
        if (*state & (HEADER | WHOLE)) return;
        *state &= (uint8_t)~LISTED;
        w->first = (w->first + 1) % w->capacity;
    }
}

void ssd_wipe_add(struct ssd_wipe *w, uint32_t slot, uint32_t group)
{
    assert(slot < w->capacity);
    bool whole = group < NAME_GROUPS;
    uint8_t *state = &w->state[slot];
    if (*state & RUNNING) return;  // a store that had to wait for it, and was given up
    if (whole && !(*state & (WHOLE | OWED))) {
        w->group[slot] = (uint8_t)group;
        w->owed[group]++;
        w->erasing++;
    }
    *state |= whole || (*state & OWED) ? WHOLE : HEADER;
    *state &= (uint8_t)~OWED;
    list(w, slot);
}

bool ssd_wipe_cancel(struct ssd_wipe *w, uint32_t slot)
{
    uint8_t *state = &w->state[slot];
    if (*state & RUNNING) return false;
    if (*state & WHOLE) *state |= OWED;
    *state &= LISTED | OWED;
    skip_cancelled(w);
    return true;
}

static void paid(struct ssd_wipe *w, uint32_t slot)
{
    w->owed[w->group[slot]]--;
    w->erasing--;
}

void ssd_wipe_overwritten(struct ssd_wipe *w, uint32_t slot)
{
    if (w->state[slot] & OWED) paid(w, slot);
    w->state[slot] &= (uint8_t)~OWED;
}

bool ssd_wipe_next(struct ssd_wipe *w, uint32_t *slot, bool *whole)
{
    if (w->n == 0) return false;
    uint32_t i = w->ring[w->first];
    w->first = (w->first + 1) % w->capacity;
    w->n--;
    w->state[i] &= (uint8_t)~LISTED;
    w->state[i] |= RUNNING;
    *slot = i;
    *whole = w->state[i] & WHOLE;
    skip_cancelled(w);
    return true;
}

void ssd_wipe_done(struct ssd_wipe *w, uint32_t slot)
{
    assert(w->state[slot] & RUNNING);
    if (w->state[slot] & WHOLE) paid(w, slot);
    w->state[slot] = 0;
}

void ssd_wipe_again(struct ssd_wipe *w, uint32_t slot)
{
    assert(w->state[slot] & RUNNING);
    w->state[slot] &= HEADER | WHOLE;
    list(w, slot);
}
