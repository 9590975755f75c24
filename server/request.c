#include "server/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* `text_end` counts bytes of text since the request was made, this event's included. */
struct entry {
    struct event event;
    uint64_t text_end;
};

#define SLOTS 256  // events that fit: tokens of one step and the last ones, twice over

/* The outbox: a ring of events beside a ring of their text.
 *
 * Invariants
 *   1. n_free slots >= n_choices - n_finished before every push: the last event of each
 *      choice always finds a slot, and needs no text of its own when the ring is full;
 *   2. the text of an event is contiguous; what is left at the ring's end is skipped.
 *
 * `lock` guards everything but the callback.  `wake_lock` is held while the callback
 * runs, and taken by request_set_wake(), so that after it no old callback is running. */
struct outbox {
    pthread_mutex_t lock, wake_lock;
    struct entry slots[SLOTS];
    uint32_t head, n;             // the oldest event, and how many there are
    uint64_t text_from, text_to;  // the bytes in use; byte i is at i % text_cap
    size_t text_cap, largest_text;
    uint64_t release_to;  // where text_from goes with the next pop
    uint32_t n_finished;
    bool waits, waits_patiently;
    void (*wake)(void *arg);  // guarded by wake_lock
    void *wake_arg;
    char text[];
};

int request_new(struct request **out, size_t largest_text, struct err *err)
{
    size_t text_cap, bytes;
    if (__builtin_mul_overflow(largest_text, 2 * REQUEST_MAX_CHOICES, &text_cap) ||
        __builtin_add_overflow(text_cap, sizeof(struct outbox), &bytes))
        return err_set(err, -E2BIG, "an event's text of %zu bytes is too large",
                       largest_text);

    struct request *r = calloc(1, sizeof *r);
    struct outbox *o = calloc(1, bytes);
    if (!r || !o) {
        free(r);
        free(o);
        return err_set(err, -ENOMEM, "no memory for a request");
    }
    o->text_cap = text_cap;
    o->largest_text = largest_text;
    pthread_mutex_init(&o->lock, NULL);
    pthread_mutex_init(&o->wake_lock, NULL);
    r->outbox = o;
    atomic_init(&r->cancelled, false);
    atomic_init(&r->refs, 1);
    *out = r;
    return 0;
}

void request_ref(struct request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}

void request_unref(struct request *r)
{
    if (!r || atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&r->outbox->lock);
    pthread_mutex_destroy(&r->outbox->wake_lock);
    free(r->outbox);
    free((void *)r->sampling.bias);
    free(r->ids);
    free(r->blocks);
    free(r->text);
    free(r->plain);
    free(r);
}

/* ---- where its prompt came from ---- */

void request_prompt_sources(const struct request *r, struct prompt_sources *out)
{
    const struct kv_wake_report *w = &r->wake;
    uint64_t known = 0;
    *out = (struct prompt_sources){0};
    for (int i = 0; i < KV_SOURCES; i++) {
        out->cached[i] = (uint64_t)w->loaded[i] * KV_BLOCK_TOKENS;
        known += out->cached[i];
    }
    for (int i = KV_WHY_NEW + 1; i < KV_WHYS; i++) {
        out->computed[i] = (uint64_t)w->computed[i] * KV_BLOCK_TOKENS;
        known += out->computed[i];
    }
    out->computed[KV_WHY_NEW] = r->n_ids - known;
}

enum kv_source request_wake_source(const struct kv_wake_report *w)
{
    enum kv_source from = KV_SOURCES;
    for (int i = 0; i < KV_SOURCES; i++)
        if (w->loaded[i] > 0) from = (enum kv_source)i;
    return from;
}

/* ---- room; the caller holds the lock ---- */

/* Events of the largest size that fit beside the last events still to come. */
static uint32_t room(const struct request *r)
{
    const struct outbox *o = r->outbox;
    uint32_t slots = SLOTS - o->n, finishes = r->n_choices - o->n_finished;
    slots = slots > finishes ? slots - finishes : 0;
    if (o->largest_text == 0) return slots;

    /* One event's worth is set aside for what is skipped at the ring's end. */
    size_t texts =
        (o->text_cap - (size_t)(o->text_to - o->text_from)) / o->largest_text;
    texts = texts > 0 ? texts - 1 : 0;
    return texts < slots ? (uint32_t)texts : slots;
}

static bool has_room(const struct request *r)
{
    return room(r) >= r->n_choices - r->outbox->n_finished;
}

/* A patient consumer is also called when nothing more fits: otherwise both would wait. */
static bool worth_reading(const struct request *r, bool patient)
{
    const struct outbox *o = r->outbox;
    if (o->n == 0) return false;
    return !patient || o->n >= SLOTS / 2 || o->n_finished == r->n_choices ||
           o->text_to - o->text_from >= o->text_cap / 2 || !has_room(r);
}

/* ---- the consumer's side ---- */

void request_set_wake(struct request *r, void (*wake)(void *arg), void *arg)
{
    struct outbox *o = r->outbox;
    pthread_mutex_lock(&o->wake_lock);
    o->wake = wake;
    o->wake_arg = arg;
    pthread_mutex_unlock(&o->wake_lock);
}

bool request_pop(struct request *r, struct event *out)
{
    struct outbox *o = r->outbox;
    pthread_mutex_lock(&o->lock);
    o->text_from = o->release_to;
    bool any = o->n > 0;
    if (any) {
        const struct entry *s = &o->slots[o->head];
        *out = s->event;
        o->head = (o->head + 1) % SLOTS;
        o->n--;
        o->release_to = s->text_end;
    }
    pthread_mutex_unlock(&o->lock);
    return any;
}

bool request_wait(struct request *r, bool patient)
{
    struct outbox *o = r->outbox;
    pthread_mutex_lock(&o->lock);
    bool ready = worth_reading(r, patient);
    o->waits = !ready;
    o->waits_patiently = patient;
    pthread_mutex_unlock(&o->lock);
    return ready;
}

void request_cancel(struct request *r)
{
    atomic_store_explicit(&r->cancelled, true, memory_order_release);
}

/* ---- the engine's side ---- */

bool request_has_room(struct request *r)
{
    pthread_mutex_lock(&r->outbox->lock);
    bool yes = has_room(r);
    pthread_mutex_unlock(&r->outbox->lock);
    return yes;
}

uint32_t request_room(struct request *r)
{
    pthread_mutex_lock(&r->outbox->lock);
    uint32_t n = room(r);
    pthread_mutex_unlock(&r->outbox->lock);
    return n;
}

/* Copy the event's text into the ring, in one piece. */
static void store_text(struct outbox *o, struct event *e)
{
    size_t n = e->text_n, place = (size_t)(o->text_to % o->text_cap);
    if (place + n > o->text_cap) {
        o->text_to += o->text_cap - place;
        place = 0;
    }
    assert(o->text_to + n - o->text_from <= o->text_cap);
    memcpy(o->text + place, e->text, n);
    e->text = o->text + place;
    o->text_to += n;
}

void request_push(struct request *r, const struct event *e)
{
    struct outbox *o = r->outbox;
    bool last = e->kind == EVENT_FINISH;
    bool fixed_text = last && e->reason == FINISH_ERROR;

    pthread_mutex_lock(&o->lock);
    assert(o->n < SLOTS && e->choice < r->n_choices);
    struct entry *s = &o->slots[(o->head + o->n) % SLOTS];
    s->event = *e;
    if (!fixed_text && e->text_n > 0) store_text(o, &s->event);
    s->text_end = o->text_to;
    o->n++;
    o->n_finished += last;
    bool call = o->waits && worth_reading(r, o->waits_patiently);
    if (call) o->waits = false;
    pthread_mutex_unlock(&o->lock);

    if (!call) return;
    pthread_mutex_lock(&o->wake_lock);
    if (o->wake) o->wake(o->wake_arg);
    pthread_mutex_unlock(&o->wake_lock);
}
