/* kvstore_world.h - a store over a few pages of host memory, RAM by the CPU's copy queue, and
 * an SSD of its own (fake_ssd.h).
 *
 * What a page must hold follows from all the tokens up to its end, not from its name, so
 * that a name given to the wrong bytes is seen.
 */
#ifndef TESTS_OFFLOAD_KVSTORE_WORLD_H
#define TESTS_OFFLOAD_KVSTORE_WORLD_H

#include "offload/kvstore.h"
#include "tests/offload/fake_ssd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define B          KV_BLOCK_TOKENS
#define MAX_PAGES  160
#define MAX_BLOCKS 140
#define MAX_STORES 32  // a policy may ask for so many
#define SEC        UINT64_C(1000000000)

// ---- pages -----------------------------------------------------------------------------

struct fake_pages {
    uint32_t n, refs[MAX_PAGES];
    unsigned char *bytes;
};

static inline uint32_t fake_take(void *arg)
{
    struct fake_pages *p = arg;
    for (uint32_t i = 0; i < p->n; i++) {
        if (p->refs[i]) continue;
        p->refs[i] = 1;
        memset(p->bytes + i * TIER_ALIGN, 0xee,
               TIER_ALIGN);  // nothing is there by chance
        return i;
    }
    return UINT32_MAX;
}

static inline void fake_ref(void *arg, uint32_t page)
{
    struct fake_pages *p = arg;
    assert_true(page < p->n && p->refs[page] > 0);
    p->refs[page]++;
}

static inline void fake_unref(void *arg, uint32_t page)
{
    struct fake_pages *p = arg;
    assert_true(page < p->n && p->refs[page] > 0);
    p->refs[page]--;
}

static inline uint32_t fake_refs(void *arg, uint32_t page)
{
    return ((struct fake_pages *)arg)->refs[page];
}

static inline uint32_t fake_count(const struct fake_pages *p, uint32_t from,
                                  uint32_t to)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) n += p->refs[i] >= from && p->refs[i] <= to;
    return n;
}

static inline uint32_t fake_free(void *arg)
{
    return fake_count(arg, 0, 0);
}

static inline uint32_t fake_shared(void *arg)
{
    return fake_count(arg, 2, UINT32_MAX);
}

static inline void *fake_address(void *arg, uint32_t page)
{
    return ((struct fake_pages *)arg)->bytes + page * TIER_ALIGN;
}

// ---- the world ---------------------------------------------------------------------------

struct world {
    struct fake_pages pages;
    struct copyq *copies;
    struct fake_ssd *ssd;
    struct kvstore_options o;
    struct kvstore *kv;
    struct block_key keys[2];  // of two tenants
    uint64_t now;
    bool weak;  // names of 8 bits, which collide
};

struct sizes {
    uint32_t pages, ram, ssd;  // blocks; 0: no such tier
};

static inline void world_start(struct world *w)
{
    struct err err;
    if (kvstore_open(&w->kv, &w->o, &err) < 0) fail_msg("%s", err.msg);
}

static inline void world_open(struct world *w, struct sizes s)
{
    struct err err;
    *w = (struct world){.pages = {.n = s.pages}, .now = 1000 * SEC};
    assert_int_equal(crypto_open(&err), 0);
    for (int t = 0; t < 2; t++) {
        struct crypto_hash fingerprint = {{7}};
        block_key_derive(&w->keys[t], &fingerprint, &t, sizeof t);
    }
    w->pages.bytes = aligned_alloc(TIER_ALIGN, MAX_PAGES * TIER_ALIGN);
    w->o = (struct kvstore_options){
        .pages = {&w->pages, s.pages, fake_take, fake_ref, fake_unref, fake_refs,
                  fake_free, fake_shared, fake_address},
        .block_tokens = B,
        .max_wakes = 8,
        .max_conversations = FAKE_NAMES,
    };
    policy_defaults(&w->o.policy);
    w->o.policy.residency = w->o.policy.keep_for = 0;
    assert_int_equal(cost_open(&w->o.cost, &err), 0);
    cost_set_prefill(w->o.cost, 1e9, 1e6);  // loading always pays
    assert_int_equal(copyq_cpu_open(&w->copies, &err), 0);
    if (s.ram) {
        struct tier_ram_options ram = {PAGE, s.ram, w->copies, 0};
        assert_int_equal(tier_ram_open(&w->o.ram, &ram, &err), 0);
    }
    if (s.ssd) {
        w->ssd = fake_ssd_open(s.ssd);
        w->o.ssd = &w->ssd->base;
    }
    w->o.staging = aligned_alloc(TIER_ALIGN, MAX_STORES * TIER_ALIGN);
    world_start(w);
}

/* Each entry is a conversation's, and its block is there. */
static inline bool fake_names_hold(const struct world *w)
{
    struct kv_conversation c;
    for (uint32_t i = 0; w->ssd && i < FAKE_NAMES; i++) {
        const struct kept_name *n = &w->ssd->names[i];
        if (!n->name[0]) continue;
        uint32_t slot = slots_find(w->o.ssd->slots, &n->last);
        if (slot == SLOT_NONE ||
            slots_at(w->o.ssd->slots, slot)->meta.depth != n->depth)
            return false;
        if (!kvstore_conversation_find(w->kv, n->tenant, n->name, &c)) return false;
    }
    return true;
}

static inline void world_step(struct world *w)
{
    kvstore_step(w->kv, w->now);
    assert_true(kvstore_check(w->kv));
    assert_true(fake_names_hold(w));
}

/* So many steps that whatever is due is done. */
static inline void world_settle(struct world *w)
{
    for (int i = 0; i < 200 || kvstore_in_flight(w->kv); i++) world_step(w);
}

static inline void world_pass(struct world *w, uint64_t ns)
{
    w->now += ns;
    world_settle(w);
}

static inline void world_close(struct world *w)
{
    world_settle(w);
    kvstore_close(w->kv);
    assert_int_equal(fake_free(&w->pages), w->pages.n);
    tier_close(w->o.ram);
    tier_close(w->o.ssd);
    copyq_close(w->copies);
    cost_close(w->o.cost);
    free(w->o.staging);
    free(w->pages.bytes);
}

// ---- texts ---------------------------------------------------------------------------------

struct text {
    int32_t tokens[MAX_BLOCKS * B];
    uint32_t n;
    uint64_t tenant;  // 0 or 1
    char name[KVSTORE_CONVERSATION];
    struct block_meta meta[MAX_BLOCKS];
};

static inline void text_add(struct text *t, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n && t->n < ARRAY_LEN(t->tokens); i++)
        t->tokens[t->n++] = (int32_t)(mix64(&seed) % 1000);
}

/* The chain of the text's first `blocks` blocks. */
static inline struct kv_prompt text_chain(const struct world *w, struct text *t,
                                          uint32_t blocks)
{
    for (uint32_t i = 0; i < blocks; i++) {
        block_meta_next(&t->meta[i], i ? &t->meta[i - 1] : NULL, &w->keys[t->tenant],
                        t->tokens + i * B, t->tenant);
        if (!w->weak) continue;
        uint8_t bits = t->meta[i].id.bytes[0];
        memset(&t->meta[i].id, 0, sizeof t->meta[i].id);
        t->meta[i].id.bytes[0] = bits;
    }
    struct kv_prompt p = {
        .meta = t->meta,
        .n_meta = blocks,
        .n_tokens = t->n,
        .tenant = t->tenant,
        .compute_price = 1,
    };
    memcpy(p.conversation, t->name, sizeof p.conversation);
    return p;
}

static inline struct kv_prompt text_prompt(const struct world *w, struct text *t)
{
    return text_chain(w, t, t->n ? (t->n - 1) / B : 0);
}

static inline void text_bytes(const struct text *t, uint32_t block, unsigned char *out)
{
    uint64_t seed = t->tenant;
    for (uint32_t i = 0; i < (block + 1) * B; i++) {
        seed ^= (uint64_t)(uint32_t)t->tokens[i];
        seed = mix64(&seed);
    }
    for (uint32_t i = 0; i < PAGE; i++) out[i] = (unsigned char)mix64(&seed);
}

static inline void page_fill(struct world *w, uint32_t page, const struct text *t,
                             uint32_t block)
{
    text_bytes(t, block, fake_address(&w->pages, page));
}

static inline bool page_right(struct world *w, uint32_t page, const struct text *t,
                              uint32_t block)
{
    unsigned char want[PAGE];
    text_bytes(t, block, want);
    return memcmp(fake_address(&w->pages, page), want, PAGE) == 0;
}

// ---- a request, played through ---------------------------------------------------------------

struct request {
    struct text *text;
    struct kv_prompt prompt;
    uint32_t blocks[MAX_BLOCKS], n, wake;
    struct kv_wake_report report;
};

static inline void request_begin(struct world *w, struct request *r, struct text *t)
{
    *r = (struct request){.text = t, .prompt = text_prompt(w, t)};
    r->n = kvstore_wake(w->kv, &r->prompt, w->now, r->blocks, MAX_BLOCKS, &r->wake,
                        &r->report);
    memcpy(r->prompt.conversation, r->report.conversation,
           sizeof r->prompt.conversation);
    assert_true(kvstore_check(w->kv));
}

static inline bool request_ready(struct world *w, struct request *r)
{
    if (r->wake != UINT32_MAX) {
        if (!kvstore_wake_poll(w->kv, r->wake, w->now, &r->n, &r->report)) return false;
        r->wake = UINT32_MAX;
    }
    for (uint32_t i = 0; i < r->n; i++)
        if (!page_right(w, r->blocks[i], r->text, i))
            fail_msg("block %u of a wake does not hold what it should", i);
    return true;
}

static inline void request_wait(struct world *w, struct request *r)
{
    for (int i = 0; !request_ready(w, r); i++) {
        assert_true(i < 10000);
        world_step(w);
    }
}

/* Compute what is missing up to the last full block of the text; false: no room. */
static inline bool request_compute(struct world *w, struct request *r)
{
    uint32_t full = r->text->n / B;
    while (r->n < full) {
        uint32_t page = fake_take(&w->pages);
        if (page == UINT32_MAX) {
            if (kvstore_make_room(w->kv, 1, w->now) == 0) return false;
            page = fake_take(&w->pages);
        }
        page_fill(w, page, r->text, r->n);
        r->blocks[r->n] = page;
        kvstore_seal(w->kv, page, &r->text->meta[r->n], w->now);
        r->n++;
    }
    return true;
}

static inline void request_release(struct world *w, struct request *r)
{
    for (uint32_t i = 0; i < r->n; i++) fake_unref(&w->pages, r->blocks[i]);
    r->n = 0;
    assert_true(kvstore_check(w->kv));
}

/* The text may have grown by a reply. */
static inline void request_end(struct world *w, struct request *r)
{
    struct kv_prompt p = text_chain(w, r->text, r->n);
    memcpy(p.conversation, r->prompt.conversation, sizeof p.conversation);
    p.begun = r->report.conversation[0] != 0;
    kvstore_idle(w->kv, &p, w->now);
    request_release(w, r);
}

static inline void request_cancel(struct world *w, struct request *r)
{
    if (r->wake != UINT32_MAX) {
        kvstore_wake_cancel(w->kv, r->wake);
        request_release(w, r);
    } else {
        request_end(w, r);
    }
}

/* A whole turn: wake, compute, a reply of `reply` tokens, idle. */
static inline struct kv_wake_report turn(struct world *w, struct text *t,
                                         uint32_t reply, uint64_t seed)
{
    struct request r;
    request_begin(w, &r, t);
    request_wait(w, &r);
    text_add(t, reply, seed);
    text_chain(w, t, t->n / B);
    assert_true(request_compute(w, &r));
    request_end(w, &r);
    memcpy(t->name, r.report.conversation, sizeof t->name);
    return r.report;
}

static inline struct kv_found found(struct world *w, struct text *t)
{
    struct kv_prompt p = text_chain(w, t, t->n / B);
    struct kv_found f;
    kvstore_match(w->kv, &p, &f);
    return f;
}

static inline struct kvstore_counters counted(const struct world *w)
{
    struct kvstore_counters c;
    kvstore_count(w->kv, &c);
    return c;
}

static inline struct text chat(uint64_t tenant, uint32_t blocks, uint64_t seed)
{
    struct text t = {.tenant = tenant};
    text_add(&t, blocks * B, seed);
    return t;
}

static inline void restart_with(struct world *w, const struct policy *p)
{
    kvstore_close(w->kv);
    w->o.policy = *p;
    world_start(w);
}

static inline void where(struct world *w, struct text *t, uint32_t g1, uint32_t ram,
                         uint32_t ssd)
{
    struct kv_conversation c;
    assert_true(kvstore_conversation_find(w->kv, t->tenant, t->name, &c));
    assert_int_equal(c.blocks[KV_DEVICE], g1);
    assert_int_equal(c.blocks[KV_RAM], ram);
    assert_int_equal(c.blocks[KV_SSD], ssd);
}

static inline void sleep_now(struct world *w, struct text *t)
{
    assert_int_equal(kvstore_sleep(w->kv, t->tenant, t->name, w->now), 0);
    world_settle(w);
}

#endif
