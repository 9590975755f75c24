/* bench_tiers.c [FOLDER] - the tiers beside what moves the same bytes without them.
 *
 * RAM: stores and loads against memcpy between the same buffers.  SSD: against a bare
 * loop over a file in the same folder, same block size, same depth, direct I/O through
 * the same queue, without headers, checksums or bookkeeping; once with the tier's buffers
 * registered with io_uring.  Loads come in the order of the stores, as a conversation's do,
 * and in disorder.  Figures are the best of several rounds; tier and loop take turns.
 */
#include "offload/ssd_queue.h"
#include "offload/ssd_run.h"
#include "offload/tier.h"
#include "tests/bench_args.h"
#include "tests/machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TOTAL  ((size_t)384 << 20)
#define DEPTH  32
#define ROUNDS 5

enum way { RING, REGISTERED, THREADS };
static const char *const ways[] = {"ssd, io_uring", "ssd, registered", "ssd, threads"};

enum what { STORE, LOAD, LOAD_RANDOM, WHATS };
static const char *const names[] = {"store", "load", "load in disorder"};

struct bench {
    size_t block;
    uint32_t n;
    unsigned char *buf;                // TOTAL bytes
    uint32_t *order;                   // (n) a permutation
    double tier[WHATS], plain[WHATS];  // best seconds
};

static void need(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "bench_tiers: %s\n", what);
    exit(1);
}

static void keep_best(double *best, double began)
{
    double seconds = machine_now() - began;
    if (*best == 0 || seconds < *best) *best = seconds;
}

static struct block_id id_of(uint32_t i)
{
    struct block_id id;
    for (size_t k = 0; k < sizeof id.bytes; k += 4) {
        uint32_t bits = (i + 1) * 2654435761u + (uint32_t)k;
        memcpy(id.bytes + k, &bits, sizeof bits);
    }
    return id;
}

static struct block_meta meta_of(uint32_t i)
{
    struct block_meta m = {.id = id_of(i), .depth = i};
    if (i > 0) m.parent = id_of(i - 1);
    return m;
}

static uint32_t block_of(const struct bench *b, enum what what, uint32_t i)
{
    return what == LOAD_RANDOM ? b->order[i] : i;
}

/* All blocks through a tier, as many at a time as it takes. */
static void through_tier(struct bench *b, struct tier *t, enum what what)
{
    static struct tier_io io[1 << 16];
    double began = machine_now();
    for (uint32_t sent = 0, done = 0; done < b->n;) {
        for (; sent < b->n; sent++) {
            uint32_t i = block_of(b, what, sent);
            io[sent] = (struct tier_io){.meta = meta_of(i),
                                        .dir = what == STORE ? TIER_STORE : TIER_LOAD,
                                        .buf = b->buf + i * b->block};
            int rc = tier_submit(t, &io[sent], 1);
            if (rc == -EAGAIN) break;
            need(rc == 0, "a transfer was refused");
        }
        tier_flush(t);
        struct tier_io *ended[DEPTH];
        size_t n = tier_reap(t, ended, DEPTH, 1);
        for (size_t k = 0; k < n; k++) need(ended[k]->res == 0, "a transfer failed");
        done += (uint32_t)n;
    }
    keep_best(&b->tier[what], began);
}

static void drop_all(struct bench *b, struct tier *t)
{
    struct tier_io *none;
    for (uint32_t i = 0; i < b->n; i++) {
        struct block_id id = id_of(i);
        need(tier_drop(t, &id) == 0, "a block could not be dropped");
    }
    for (int i = 0; i < 1000; i++)
        need(!tier_reap(t, &none, 1, 1), "nothing in flight");
}

static void plain_copy(struct bench *b, unsigned char *arena, enum what what)
{
    double began = machine_now();
    for (uint32_t i = 0; i < b->n; i++) {
        size_t at = block_of(b, what, i) * b->block;
        if (what == STORE)
            memcpy(arena + at, b->buf + at, b->block);
        else
            memcpy(b->buf + at, arena + at, b->block);
    }
    keep_best(&b->plain[what], began);
}

static void plain_file(struct bench *b, struct ssd_queue *q, int fd, enum what what)
{
    static struct ssd_run runs[DEPTH];
    struct ssd_run *free_runs[DEPTH];
    uint32_t n_free = 0, sent = 0, done = 0;
    for (; n_free < DEPTH; n_free++) free_runs[n_free] = &runs[n_free];
    double began = machine_now();
    while (done < b->n) {
        while (n_free > 0 && sent < b->n) {
            uint32_t i = block_of(b, what, sent++);
            struct ssd_run *r = free_runs[--n_free];
            *r = (struct ssd_run){.segment = {{b->buf + i * b->block, b->block}},
                                  .n_segments = 1,
                                  .at = i * b->block,
                                  .total = b->block};
            r->op.fd = fd;
            r->op.write = what == STORE;
            ssd_run_aim(r);
            ssd_push(q, &r->op);
        }
        ssd_kick(q);
        for (struct ssd_op *op = ssd_pop(q, true); op; op = ssd_pop(q, false)) {
            need(op->res == (ssize_t)b->block, "a plain transfer fell short");
            free_runs[n_free++] = ssd_run_of(op);
            done++;
        }
    }
    keep_best(&b->plain[what], began);
}

static void print(const struct bench *b, const char *tier, const char *plain)
{
    double bytes = (double)b->n * (double)b->block * 1e-9;
    for (int w = 0; w < WHATS; w++)
        printf("%-18s %5zu KiB  %-16s %6.2f GB/s, %s %6.2f GB/s: %3.0f %%\n", tier,
               b->block >> 10, names[w], bytes / b->tier[w], plain, bytes / b->plain[w],
               100 * b->plain[w] / b->tier[w]);
}

static void begin(struct bench *b, size_t block, unsigned char *buf, uint32_t *order)
{
    *b = (struct bench){.block = block, .n = (uint32_t)(TOTAL / block), .buf = buf};
    b->order = order;
    for (uint32_t i = 0; i < b->n; i++) order[i] = i;
    for (uint32_t i = b->n; i > 1; i--) {
        uint32_t k = (i * 2654435761u >> 8) % i, swap = order[i - 1];
        order[i - 1] = order[k];
        order[k] = swap;
    }
}

static void bench_ram(struct bench *b)
{
    struct err err;
    struct copyq *q;
    struct tier *t;
    need(copyq_thread_open(&q, &err) == 0, err.msg);
    struct tier_ram_options o = {b->block, b->n, q, 0};
    need(tier_ram_open(&t, &o, &err) == 0, err.msg);
    unsigned char *arena = copyq_host_alloc(q, TOTAL);
    need(arena != NULL, "no memory");
    for (int round = 0; round < ROUNDS; round++) {
        for (int w = 0; w < WHATS; w++) {
            through_tier(b, t, (enum what)w);
            plain_copy(b, arena, (enum what)w);
        }
        drop_all(b, t);
        if (round == 0) memset(b->tier, 0, sizeof b->tier);  // pages are there now
        if (round == 0) memset(b->plain, 0, sizeof b->plain);
    }
    print(b, "ram", "memcpy");
    copyq_host_free(q, arena);
    tier_close(t);
    copyq_close(q);
}

static void bench_ssd(struct bench *b, const char *folder, enum way way)
{
    struct err err;
    struct tier *t;
    struct tier_ssd_found found;
    struct ssd_queue *q;
    char dir[256], path[300];
    snprintf(dir, sizeof dir, "%s/dormouse-bench-XXXXXX", folder);
    need(mkdtemp(dir) != NULL, "no folder can be made there");
    struct tier_ssd_options o = {.dir = dir,
                                 .block_bytes = b->block,
                                 .bytes = TOTAL + (b->n + 1) * (uint64_t)TIER_ALIGN,
                                 .depth = DEPTH,
                                 .no_uring = way == THREADS};
    need(tier_ssd_open(&t, &found, &o, &err) == 0, err.msg);
    if (found.note[0]) printf("%s\n", found.note);
    int rc = way == REGISTERED ? tier_register(t, b->buf, TOTAL) : 0;
    if (rc < 0) printf("buffers are not registered: %s\n", strerror(-rc));
    snprintf(path, sizeof path, "%s/plain", dir);
    int fd =
        open(path, O_RDWR | O_CREAT | O_CLOEXEC | (found.direct ? O_DIRECT : 0), 0600);
    need(fd >= 0 && posix_fallocate(fd, 0, (off_t)TOTAL) == 0, "no plain file");
    rc = found.uring ? ssd_uring_open(&q, DEPTH, &ssd_sys_real)
                     : ssd_threads_open(&q, DEPTH, &ssd_sys_real, &err);
    need(rc == 0, "no queue");
    for (int round = 0; round < ROUNDS; round++) {
        for (int w = 0; w < WHATS; w++) {
            through_tier(b, t, (enum what)w);
            plain_file(b, q, fd, (enum what)w);
        }
        drop_all(b, t);
    }
    print(b, found.uring || way == THREADS ? ways[way] : "ssd, threads", "plain");
    ssd_close(q);
    close(fd);
    tier_close(t);
    static const char *const files[] = {"plain", "blocks", "lock"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(int argc, char **argv)
{
    bench_args(argc, argv, 1,
               "bench_tiers [FOLDER]\nThe tiers beside what moves the same bytes "
               "without them; "
               "FOLDER is on the SSD to be measured.");
    const char *folder = argc > 1 ? argv[1] : "build";
    printf("bench_tiers\n");
    unsigned char *buf = aligned_alloc((size_t)2 << 20, TOTAL);
    uint32_t *order = calloc(TOTAL / TIER_ALIGN, sizeof *order);
    need(buf && order, "no memory");
    for (size_t i = 0; i < TOTAL; i += 8)
        memcpy(buf + i, &(uint64_t){i * 2654435761u}, 8);

    static const size_t blocks[] = {360 << 10, 2 << 20, 64 << 10};
    struct bench b;
    for (size_t i = 0; i < ARRAY_LEN(blocks); i++) {
        begin(&b, blocks[i], buf, order);
        bench_ram(&b);
        begin(&b, blocks[i], buf, order);
        bench_ssd(&b, folder, RING);
        begin(&b, blocks[i], buf, order);
        bench_ssd(&b, folder, REGISTERED);
    }
    begin(&b, blocks[0], buf, order);
    bench_ssd(&b, folder, THREADS);
    free(order);
    free(buf);
    return 0;
}
