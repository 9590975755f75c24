#include "server/tiers.h"

#include "kernels/thread.h"
#include "server/clock.h"
#include "server/kv_pages.h"

#include <stdio.h>
#include <string.h>

/* Before anything was measured: a memory bus, and a slow NVMe drive. */
#define RAM_LATENCY   20e3
#define RAM_BANDWIDTH 4e9
#define SSD_LATENCY   200e3
#define SSD_BANDWIDTH 8e8
#define SAMPLE        8  // blocks moved to calibrate a tier
#define TRIES         4

static bool has_ssd(const struct tiers_options *o)
{
    return o->ssd_dir && o->ssd_dir[0];
}

static uint32_t ram_blocks(const struct tiers_options *o, uint64_t block_bytes)
{
    uint64_t n = o->ram_bytes / block_bytes;
    return n < SLOT_NONE ? (uint32_t)n : SLOT_NONE - 1;
}

/* Of staging, for what goes from RAM to the SSD. */
static uint32_t buffers(const struct tiers_options *o)
{
    return o->ram_bytes > 0 && has_ssd(o) ? o->policy.max_stores : 0;
}

/* Of the SSD: transfers at one time. */
static uint32_t depth(const struct tiers_options *o)
{
    uint32_t most = o->policy.max_loads + o->policy.max_stores;
    return most < TIER_SSD_DEPTH ? most : TIER_SSD_DEPTH;
}

static struct kvstore_options store_options(const struct tiers *t,
                                            const struct tiers_options *o)
{
    return (struct kvstore_options){
        .ram = t->ram,
        .ssd = t->ssd,
        .cost = t->cost,
        .policy = o->policy,
        .block_tokens = KV_BLOCK_TOKENS,
        .max_wakes = o->max_wakes,
        .max_conversations = o->max_conversations,
        .several_tenants = o->several_tenants,
        .staging = t->staging,
    };
}

uint64_t tiers_bytes(const struct tiers_options *o, uint32_t blocks,
                     uint64_t block_bytes)
{
    struct tiers none = {0};
    struct kvstore_options k = store_options(&none, o);
    k.pages.capacity = blocks;
    uint32_t ram = ram_blocks(o, block_bytes);
    uint64_t ssd = has_ssd(o) ? o->ssd_bytes / (block_bytes + TIER_ALIGN) : 0;
    if (ssd >= SLOT_NONE) ssd = SLOT_NONE - 1;
    uint64_t sum = kvstore_bytes(&k);
    if (ram > 0) sum += ram * block_bytes + slots_bytes(ram) + kvstore_note_bytes(ram);
    if (ssd > 0)
        sum += slots_bytes((uint32_t)ssd) + kvstore_note_bytes((uint32_t)ssd) +
               (uint64_t)TIER_SSD_NAME_BYTES * o->max_conversations;
    sum += (uint64_t)buffers(o) * block_bytes;
    if (ssd > 0 && o->device) sum += (uint64_t)depth(o) * block_bytes;
    return sum;
}

static int ram_options(struct tier_ram_options *out, const struct tiers *t,
                       const struct tiers_options *o, uint64_t block, struct err *err)
{
    *out = (struct tier_ram_options){
        .block_bytes = block,
        .capacity = ram_blocks(o, block),
        .copies = t->copies,
        .slices = o->layers,
    };
    if (out->capacity > 0) return 0;
    return err_set(err, -EINVAL,
                   "ram of %llu bytes holds no KV block of %llu bytes; 0 turns it off",
                   (unsigned long long)o->ram_bytes, (unsigned long long)block);
}

static void *open_beside(void *arg)
{
    struct tiers *t = arg;
    struct tiers_opening *p = &t->opening;
    p->rc = tier_ram_open(&t->ram, &p->options, &p->err);
    return NULL;
}

static void wait_for_opening(struct tiers *t)
{
    if (t->opening.running) pthread_join(t->opening.thread, NULL);
    t->opening.running = false;
}

int tiers_begin(struct tiers *t, struct backend *b, const struct tiers_options *o,
                uint64_t block_bytes, struct err *err)
{
    if (o->ram_bytes == 0) return 0;
    int rc = backend_copyq_open(b, &t->copies, err);
    if (rc == 0) rc = ram_options(&t->opening.options, t, o, block_bytes, err);
    if (rc < 0) return rc;
    rc = thread_start(&t->opening.thread, open_beside, t);
    t->opening.running = rc == 0;
    if (rc == 0) return 0;
    return err_set(err, rc,
                   "the thread that takes the RAM tier's memory cannot be "
                   "started: %s",
                   strerror(-rc));
}

static int open_ram(struct tiers *t, const struct tiers_options *o, size_t block,
                    struct err *err)
{
    struct tiers_opening *p = &t->opening;
    if (p->running) {
        wait_for_opening(t);
        return p->rc < 0 ? err_set(err, p->rc, "%s", p->err.msg) : 0;
    }
    int rc = ram_options(&p->options, t, o, block, err);
    return rc ? rc : tier_ram_open(&t->ram, &p->options, err);
}

static struct tier_ssd_options ssd_options(const struct tiers_options *o, size_t block)
{
    return (struct tier_ssd_options){
        .dir = o->ssd_dir,
        .block_bytes = block,
        .bytes = o->ssd_bytes,
        .max_names = o->max_conversations,
        .fingerprint = o->fingerprint,
        .depth = depth(o),
        .no_uring = o->ssd_threads,
        .register_from = TIER_SSD_REGISTER_FROM,
    };
}

/* What is kept on the SSD may be lost at any time: where it cannot be had, the server
 * serves without, and the note says why.  What the operator has to mend is an error. */
static int unless_tier_only(struct tier_ssd_found *found, int rc, const struct err *why,
                            struct err *err)
{
    if (rc == 0) return 0;
    if (!found->tier_only) return err_set(err, rc, "%s", why->msg);
    snprintf(found->note, sizeof found->note, "%s", why->msg);
    return 0;
}

static int open_ssd(struct tiers *t, const struct tiers_options *o, size_t block,
                    struct err *err)
{
    const struct tier_ssd_options s = ssd_options(o, block);
    struct err why = {""};
    int rc = tier_ssd_open(&t->ssd, &t->found, &s, &why);
    if (rc < 0) return unless_tier_only(&t->found, rc, &why, err);
    return o->device ? tier_bounce(t->ssd, t->copies, depth(o), err) : 0;
}

static int check_count(const char *setting, uint64_t bytes, uint64_t a_block,
                       struct err *err)
{
    if (bytes / a_block <= SLOTS_MOST) return 0;
    return err_set(
        err, -EINVAL,
        "%s of %llu bytes is %llu KV blocks of %llu bytes; at most %u can be "
        "kept, so lower it to %llu bytes",
        setting, (unsigned long long)bytes, (unsigned long long)(bytes / a_block),
        (unsigned long long)a_block, SLOTS_MOST,
        (unsigned long long)(SLOTS_MOST * a_block));
}

static int check_blocks(const struct tiers_options *o, size_t block, struct err *err)
{
    if (block % TIER_ALIGN != 0)
        return err_set(
            err, -EINVAL,
            "KV blocks of %zu bytes cannot be kept below the KV pool: they must "
            "be a multiple of %d bytes; set ram to 0 and ssd to nothing",
            block, TIER_ALIGN);
    int rc = check_count("ram", o->ram_bytes, block, err);
    if (rc < 0 || !has_ssd(o)) return rc;
    return check_count("ssd_size", o->ssd_bytes, block + TIER_ALIGN, err);
}

int tiers_check(const struct tiers_options *o, size_t block,
                struct tier_ssd_found *found, struct err *err)
{
    const struct tier_ssd_options s = ssd_options(o, block);
    struct tier_ram_options ram;
    *found = (struct tier_ssd_found){0};
    if (o->ram_bytes == 0 && !has_ssd(o)) return 0;
    int rc = check_blocks(o, block, err);
    if (rc == 0 && o->ram_bytes > 0)
        rc = ram_options(&ram, &(struct tiers){0}, o, block, err);
    if (rc < 0 || !has_ssd(o)) return rc;
    struct err why = {""};
    rc = tier_ssd_check(found, &s, &why);
    return unless_tier_only(found, rc, &why, err);
}

static int open_tiers(struct tiers *t, const struct tiers_options *o, struct err *err)
{
    size_t block = kv_block_bytes(&o->kv->mem.shape);
    if (o->ram_bytes == 0 && !has_ssd(o)) return 0;
    int rc = check_blocks(o, block, err);
    if (rc == 0 && !t->copies) rc = backend_copyq_open(o->kv->backend, &t->copies, err);
    if (rc == 0 && o->ram_bytes > 0) rc = open_ram(t, o, block, err);
    if (rc == 0 && has_ssd(o)) rc = open_ssd(t, o, block, err);
    if (rc < 0 || !t->ram || !t->ssd) return rc;
    t->staging = copyq_host_alloc(t->copies, buffers(o) * block);
    if (!t->staging)
        return err_set(err, -ENOMEM, "no memory for %u staging buffers of %zu bytes",
                       buffers(o), block);
    // The KV pool is not registered: it would be pinned whole before anybody needs it, and
    // neighbours are loaded into it quicker by one vectored transfer.
    t->registered =
        t->ssd ? tier_register(t->ssd, t->staging, buffers(o) * block) : -EOPNOTSUPP;
    return 0;
}

int tiers_open(struct tiers *t, const struct tiers_options *o, struct err *err)
{
    int rc = policy_check(&o->policy, err);
    if (rc == 0) rc = open_tiers(t, o, err);
    if (rc == 0) rc = cost_open(&t->cost, err);
    if (rc < 0) return rc;
    cost_set_tier(t->cost, COST_RAM, RAM_LATENCY, RAM_BANDWIDTH);
    cost_set_tier(t->cost, COST_SSD, SSD_LATENCY, SSD_BANDWIDTH);
    struct kvstore_options k = store_options(t, o);
    k.pages = kv_pages_of(o->kv);
    return kvstore_open(&t->store, &k, err);
}

uint32_t tiers_close(struct tiers *t)
{
    wait_for_opening(t);
    kvstore_close(t->store);
    cost_close(t->cost);
    uint32_t left = tier_close(t->ssd);
    tier_close(t->ram);
    if (t->staging) copyq_host_free(t->copies, t->staging);
    copyq_close(t->copies);
    *t = (struct tiers){0};
    return left;
}

/* ---- calibration ---- */

/* Move the blocks; how many went well.  Returns when all have landed. */
static uint32_t move(struct tier *t, struct tier_io *io, uint32_t n, enum tier_dir dir)
{
    uint32_t begun = 0, good = 0;
    for (; begun < n; begun++) {
        io[begun].dir = dir;
        if (tier_submit(t, &io[begun], clock_ns()) < 0) break;
    }
    tier_flush(t);
    for (uint32_t left = begun; left > 0;) {
        struct tier_io *done[SAMPLE];
        uint32_t got = (uint32_t)tier_reap(t, done, SAMPLE, clock_ns());
        for (uint32_t i = 0; i < got; i++) good += done[i]->res == 0;
        left -= got;
    }
    return good;
}

/* Blocks of the pool itself, so that a transfer takes the way that it will take. */
static uint32_t take_pages(struct kv_pool *kv, uint32_t *pages)
{
    uint32_t n = 0;
    while (n < SAMPLE && (pages[n] = kv_pool_take(kv)) != KV_NO_BLOCK) n++;
    return n;
}

/* How long the first of n blocks takes and then all others; false where one fails. */
static bool time_loads(struct tier *tier, struct tier_io *io, uint32_t n,
                       uint64_t *first, uint64_t *rest)
{
    uint64_t began = clock_ns();
    if (move(tier, io, 1, TIER_LOAD) != 1) return false;
    uint64_t between = clock_ns();
    if (move(tier, io + 1, n - 1, TIER_LOAD) != n - 1) return false;
    *first = between - began;
    *rest = clock_ns() - between;
    return true;
}

/* The least of a few tries: by accident a load is slow, never quick. */
static void calibrate(struct tiers *t, struct kv_pool *kv, struct tier *tier,
                      enum cost_tier which)
{
    struct tier_io io[SAMPLE] = {0};
    struct block_key key;
    size_t bytes = tier_buffer_bytes(tier);
    uint32_t pages[SAMPLE], n = take_pages(kv, pages);
    crypto_random(&key, sizeof key);  // names that nobody can meet
    for (uint32_t i = 0; i < n; i++) {
        const int32_t tokens[KV_BLOCK_TOKENS] = {(int32_t)i};
        block_meta_next(&io[i].meta, NULL, &key, tokens, 0);
        io[i].buf = kv_pool_address(kv, pages[i]);
    }
    uint64_t first = UINT64_MAX, rest = UINT64_MAX, a, b;
    bool good = n > 1 && move(tier, io, n, TIER_STORE) == n;
    for (int tries = 0; good && tries < TRIES; tries++) {
        good = time_loads(tier, io, n, &a, &b);
        if (good && a < first) first = a;
        if (good && b < rest) rest = b;
    }
    if (good) {
        double each = (double)rest / (n - 1);
        double wait = (double)first > each ? (double)first - each : 0;
        cost_set_tier(t->cost, which, wait, (double)bytes / each * 1e9);
        t->measured.tier[which] = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        (void)!tier_drop(tier, &io[i].meta.id);
        kv_pool_unref(kv, pages[i]);
    }
}

void tiers_calibrate(struct tiers *t, struct kv_pool *kv)
{
    if (t->ram) calibrate(t, kv, t->ram, COST_RAM);
    if (t->ssd) calibrate(t, kv, t->ssd, COST_SSD);
}
