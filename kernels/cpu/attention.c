/* attention.c - causal attention over paged KV, for decode and prefill alike.
 *
 * Exactness: positions are cut into segments of 256 at fixed places.  Within a segment a
 * query goes over chunks of 64, at fixed places too, in order with an online softmax that
 * starts empty; the segments are then joined in order.  So what a query computes depends
 * on its position and window only.  Around that, work is grouped freely:
 *
 *   a sequence with one row      an item is (segment, KV head), so that one long
 *   (decode)                     conversation keeps all threads busy; the parts wait in
 *                                `partials` and are joined by a second job
 *   a sequence with many rows    an item is (some neighbouring rows, KV head) and goes
 *   (prefill)                    over all segments itself
 *
 * An item reads each K and V once for all of its rows and all query heads of the group.
 * Blocks that no row of the item can see are not read.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BLOCKS   4
#define CHUNK          (CHUNK_BLOCKS * KV_BLOCK_TOKENS)
#define SEGMENT_BLOCKS 16
#define SEGMENT        (SEGMENT_BLOCKS * KV_BLOCK_TOKENS)
#define TILE_QUERIES   64  // query vectors of an item, where a group has no more

_Static_assert(KV_BLOCK_TOKENS == PANEL, "scores of one block are one panel wide");
_Static_assert(SEGMENT_BLOCKS % CHUNK_BLOCKS == 0, "a chunk lies in one segment");

struct attention_job {
    const struct cpu *cpu;
    float *out;
    const struct buffer *qkv;
    const struct kv_pool_mem *kv;
    uint32_t layer;
    const struct attention_shape *shape;
    uint32_t group;    // query heads of a KV head
    uint32_t dim;      // head_dim
    uint32_t padded;   // head_dim in whole panels
    uint32_t n_items;  // without the factor of kv_heads
};

/* What an item reads: blocks first <= block < end of a sequence, for one KV head. */
struct reach {
    const uint32_t *table;  // the sequence's blocks
    uint32_t kv_head, first, end;
};

/* An item at work.  Query vector r * group + g is head g of the group in row r. */
struct tile {
    const struct attention_job *job;
    const struct attention_item *item;
    const uint32_t *pos;       // (n_rows)
    struct reach reach, next;  // of this item, and of that which this thread has next

    float *q;            // (queries, dim), scaled
    float *sum, *total;  // (queries, padded) of the segment, and of those before it
    float *m, *l;        // (queries) likewise: running maximum and sum of softmax
    float *total_m, *total_l;
    float *scores;  // (queries, CHUNK)
    float *values;  // V of one chunk, as [CHUNK][padded]
};

static uint32_t most_queries(const struct backend_limits *l)
{
    return l->max_q_heads > TILE_QUERIES ? l->max_q_heads : TILE_QUERIES;
}

static size_t padded_dim(uint32_t dim)
{
    return ALIGN_UP((size_t)dim, PANEL);
}

size_t cpu_attention_scratch(const struct backend_limits *l)
{
    size_t dim = padded_dim(l->max_head_dim);
    return most_queries(l) * (3 * dim + 4 + CHUNK) + CHUNK * dim;
}

static size_t partial_floats(size_t padded)
{
    return padded + 16;  // m, l, and whole cache lines
}

int cpu_attention_open(struct cpu *c)
{
    const struct backend_limits *l = &c->base.limits;
    c->max_partials = l->max_blocks / SEGMENT_BLOCKS + l->max_seqs;
    c->max_items = l->max_rows + c->max_partials;
    c->items = cpu_scratch_alloc(c, c->max_items * sizeof *c->items);
    c->partials = cpu_scratch_alloc(c, (size_t)c->max_partials * l->max_q_heads *
                                           partial_floats(padded_dim(l->max_head_dim)) *
                                           sizeof *c->partials);
    return c->items && c->partials ? 0 : -ENOMEM;
}

void cpu_attention_close(struct cpu *c)
{
    free(c->items);
    free(c->partials);
}

/* The first key that the query at `pos` sees. */
static uint32_t first_key(const struct attention_job *j, uint32_t pos)
{
    uint32_t w = j->shape->window;
    return w && pos >= w ? pos - w + 1 : 0;
}

/* ---- one chunk ---- */

/* The keys of a chunk that a query sees: from <= i < to, none where from >= to. */
struct span {
    uint32_t from, to;
};

static struct span span_of(const struct tile *t, uint32_t row, uint32_t chunk)
{
    uint32_t base = chunk * CHUNK, pos = t->pos[row];
    uint32_t first = first_key(t->job, pos);
    if (pos < base || first >= base + CHUNK) return (struct span){0, 0};
    return (struct span){cpu_max(first, base) - base, cpu_min(pos - base + 1, CHUNK)};
}

static const char *plane_in(const struct attention_job *j, const struct reach *r,
                            uint32_t block, int v)
{
    const struct kv_pool_mem *kv = j->kv;
    return (const char *)kv->base + r->table[block] * kv_block_bytes(&kv->shape) +
           kv_plane_offset(&kv->shape, j->layer, v, r->kv_head);
}

static const char *plane_of(const struct tile *t, uint32_t block, int v)
{
    return plane_in(t->job, &t->reach, block, v);
}

/* Blocks of a sequence lie far apart, so the hardware cannot guess the next one.  What is
 * asked for is the same block of the next chunk, or at the end one of the next item: a CPU
 * can wait for so many cache lines at a time only. */
static void prefetch_later(const struct tile *t, uint32_t block, int v)
{
    const struct attention_job *j = t->job;
    const struct reach *r = &t->reach;
    uint32_t later = block + CHUNK_BLOCKS;
    if (later >= r->end) {
        later = later - r->end + t->next.first;
        r = &t->next;
        if (later >= r->end) return;
    }
    size_t bytes = (size_t)KV_BLOCK_TOKENS * j->dim * dtype_bytes(j->kv->shape.dtype);
    const char *p = plane_in(j, r, later, v);
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* Blocks first <= block < end of one chunk. */
struct blocks {
    uint32_t first, end;
};

/* V of few queries is widened in registers; for many, once for all of them. */
static bool few_queries(const struct tile *t, uint32_t queries)
{
    return strip_panels(t->job->cpu->path, queries) > 1 &&
           t->job->padded == t->job->dim;
}

static void load_values(const struct tile *t, struct blocks b)
{
    const struct attention_job *j = t->job;
    const struct cpu_path *path = j->cpu->path;
    enum dtype type = j->kv->shape.dtype;
    for (uint32_t block = b.first; block < b.end; block++) {
        prefetch_later(t, block, 1);
        const char *v = plane_of(t, block, 1);
        float *to =
            t->values + (size_t)(block % CHUNK_BLOCKS) * KV_BLOCK_TOKENS * j->padded;
        if (j->padded == j->dim) {
            path->widen(to, v, type, (size_t)KV_BLOCK_TOKENS * j->dim);
            continue;
        }
        for (uint32_t i = 0; i < KV_BLOCK_TOKENS; i++, to += j->padded) {
            path->widen(to, v + (size_t)i * j->dim * dtype_bytes(type), type, j->dim);
            memset(to + j->dim, 0, (j->padded - j->dim) * sizeof *to);
        }
    }
}

/* scores = q K^T of rows begin <= row < end.  K of a block is one panel as it lies. */
static void score_rows(const struct tile *t, uint32_t begin, uint32_t end,
                       struct blocks b)
{
    const struct attention_job *j = t->job;
    const struct cpu_path *path = j->cpu->path;
    enum dtype type = j->kv->shape.dtype;
    size_t first = (size_t)begin * j->group;
    uint32_t in_chunk = b.first % CHUNK_BLOCKS, queries = (end - begin) * j->group;
    const float *q = t->q + first * j->dim;
    float *scores = t->scores + first * CHUNK + (size_t)in_chunk * PANEL;
    uint32_t n = cpu_min(2, strip_panels(path, queries));
    for (uint32_t i = b.first; i < b.end; i += n, scores += (size_t)n * PANEL) {
        const char *k = plane_of(t, i, 0);
        prefetch_later(t, i, 0);
        if (n == 2 && i + 1 < b.end) {
            prefetch_later(t, i + 1, 0);
            path->strip[type](queries, 2, j->dim, q, j->dim, k, PANEL,
                              plane_of(t, i + 1, 0) - k, scores, CHUNK, SUMS_SET);
        } else {
            cpu_tiles(path, type, queries, j->dim, q, j->dim, k, PANEL, scores, CHUNK,
                      SUMS_SET);
        }
    }
}

/* Scores of one row's queries to weights; sums so far shrink to the new maximum. */
static void softmax_row(const struct tile *t, uint32_t row, struct span s)
{
    const struct attention_job *j = t->job;
    for (uint32_t i = row * j->group; i < (row + 1) * j->group; i++) {
        float scale = j->cpu->path->softmax(t->scores + (size_t)i * CHUNK, CHUNK,
                                            s.from, s.to, &t->m[i], &t->l[i]);
        if (scale == 1.0f) continue;
        float *sum = t->sum + (size_t)i * j->padded;
        for (uint32_t d = 0; d < j->padded; d++) sum[d] *= scale;
    }
}

/* sum += weights V of tokens s.from <= i < s.to, the first of which is at v. */
static void add_tokens(const struct tile *t, uint32_t row, uint32_t rows, struct span s,
                       const char *v, enum dtype type)
{
    const struct attention_job *j = t->job;
    const struct cpu_path *path = j->cpu->path;
    size_t first = (size_t)row * j->group, panel = PANEL * dtype_bytes(type);
    uint32_t queries = rows * j->group, k = s.to - s.from;
    const float *weight = t->scores + first * CHUNK + s.from;
    float *sum = t->sum + first * j->padded;
    uint32_t p = 0, panels = j->padded / PANEL, n = strip_panels(path, queries);
    for (; n > 1 && p + n <= panels; p += n) {
        path->strip[type](queries, n, k, weight, CHUNK, v + p * panel, j->padded,
                          (ptrdiff_t)panel, sum + p * PANEL, j->padded, SUMS_FROM);
    }
    for (; p < panels; p++) {
        cpu_tiles(path, type, queries, k, weight, CHUNK, v + p * panel, j->padded,
                  sum + p * PANEL, j->padded, SUMS_FROM);
    }
}

/* Only tokens that the rows see are touched: what lies in the others may be anything. */
static void add_values(const struct tile *t, uint32_t row, uint32_t rows, struct span s,
                       struct blocks b, bool widened)
{
    const struct attention_job *j = t->job;
    if (widened) {
        const float *v = t->values + (size_t)s.from * j->padded;
        add_tokens(t, row, rows, s, (const char *)v, DTYPE_F32);
        return;
    }
    enum dtype type = j->kv->shape.dtype;
    for (uint32_t block = b.first; block < b.end; block++) {
        prefetch_later(t, block, 1);
        uint32_t base = block % CHUNK_BLOCKS * KV_BLOCK_TOKENS;
        struct span in = {cpu_max(s.from, base), cpu_min(s.to, base + KV_BLOCK_TOKENS)};
        if (in.from >= in.to) continue;
        size_t skip = (size_t)(in.from - base) * j->dim * dtype_bytes(type);
        add_tokens(t, row, rows, in, plane_of(t, block, 1) + skip, type);
    }
}

/* The rows that see any of the chunk are neighbours. */
static void attend_chunk(const struct tile *t, uint32_t chunk, struct blocks b)
{
    uint32_t begin = 0, end = t->item->n_rows;
    while (begin < end && span_of(t, begin, chunk).to == 0) begin++;
    while (end > begin && span_of(t, end - 1, chunk).to == 0) end--;
    if (begin == end) return;

    score_rows(t, begin, end, b);
    bool widened = !few_queries(t, (end - begin) * t->job->group);
    if (widened) load_values(t, b);
    for (uint32_t row = begin, next; row < end; row = next) {
        struct span s = span_of(t, row, chunk), other = s;
        for (next = row; next < end && other.from == s.from && other.to == s.to;) {
            softmax_row(t, next++, s);
            if (next < end) other = span_of(t, next, chunk);
        }
        add_values(t, row, next - row, s, b, widened);
    }
}

/* ---- segments ---- */

/* Join (m, l, sum) of a segment to what the segments before it came to. */
static void join(float *total_m, float *total_l, float *total, float m, float l,
                 const float *sum, uint32_t n)
{
    float top = *total_m > m ? *total_m : m;
    float before = expf(*total_m - top), now = expf(m - top);
    for (uint32_t d = 0; d < n; d++) total[d] = total[d] * before + sum[d] * now;
    *total_l = *total_l * before + l * now;
    *total_m = top;
}

static void attend_segment(const struct tile *t, uint32_t segment)
{
    const struct attention_job *j = t->job;
    uint32_t queries = t->item->n_rows * j->group;
    for (uint32_t i = 0; i < queries; i++) t->m[i] = -INFINITY;
    memset(t->l, 0, queries * sizeof *t->l);
    memset(t->sum, 0, (size_t)queries * j->padded * sizeof *t->sum);

    uint32_t block = cpu_max(t->reach.first, segment * SEGMENT_BLOCKS);
    uint32_t end = cpu_min(t->reach.end, (segment + 1) * SEGMENT_BLOCKS);
    for (uint32_t next; block < end; block = next) {
        uint32_t chunk = block / CHUNK_BLOCKS;
        next = cpu_min(end, (chunk + 1) * CHUNK_BLOCKS);
        attend_chunk(t, chunk, (struct blocks){block, next});
    }
}

static void join_segment(const struct tile *t, uint32_t segment)
{
    const struct attention_job *j = t->job;
    for (uint32_t i = 0; i < t->item->n_rows * j->group; i++) {
        uint32_t pos = t->pos[i / j->group], first = first_key(j, pos) / SEGMENT;
        float *total = t->total + (size_t)i * j->padded;
        const float *sum = t->sum + (size_t)i * j->padded;
        if (segment < first || segment > pos / SEGMENT) continue;
        if (segment > first) {
            join(&t->total_m[i], &t->total_l[i], total, t->m[i], t->l[i], sum,
                 j->padded);
            continue;
        }
        memcpy(total, sum, j->padded * sizeof *total);
        t->total_m[i] = t->m[i];
        t->total_l[i] = t->l[i];
    }
}

/* ---- items ---- */

static float *partial_of(const struct attention_job *j, uint32_t partial, uint32_t head)
{
    return j->cpu->partials +
           ((size_t)partial * j->shape->q_heads + head) * partial_floats(j->padded);
}

static float *out_of(const struct attention_job *j, uint32_t row, uint32_t head)
{
    return j->out + ((size_t)row * j->shape->q_heads + head) * j->dim;
}

static void write_out(float *out, const float *sum, float l, uint32_t n)
{
    float inverse = 1.0f / l;
    for (uint32_t d = 0; d < n; d++) out[d] = sum[d] * inverse;
}

static void set_up(struct tile *t, float *scratch)
{
    const struct attention_job *j = t->job;
    uint32_t queries = t->item->n_rows * j->group;
    size_t wide = (size_t)queries * j->padded;
    t->values = scratch;
    t->scores = t->values + (size_t)CHUNK * j->padded;
    t->q = t->scores + (size_t)queries * CHUNK;
    t->sum = t->q + wide;
    t->total = t->sum + wide;
    t->m = t->total + wide;
    t->l = t->m + queries;
    t->total_m = t->l + queries;
    t->total_l = t->total_m + queries;

    for (uint32_t i = 0; i < queries; i++) {
        const float *q = cpu_row(j->qkv, t->item->row + i / j->group) +
                         ((size_t)t->reach.kv_head * j->group + i % j->group) * j->dim;
        float *to = t->q + (size_t)i * j->dim;
        for (uint32_t d = 0; d < j->dim; d++) to[d] = q[d] * j->shape->scale;
    }
}

/* The last rows of a prompt see the most, so they go first and no thread is left with them
 * at the end. */
static const struct attention_item *item_of(const struct attention_job *j, uint32_t i)
{
    return &j->cpu->items[j->n_items - 1 - i / j->shape->kv_heads];
}

/* Nothing where there is no such item. */
static struct reach reach_of(const struct attention_job *j, uint32_t i)
{
    uint32_t kv_heads = j->shape->kv_heads;
    if (i >= j->n_items * kv_heads) return (struct reach){0};
    const struct batch *b = j->cpu->base.batch;
    const struct attention_item *item = item_of(j, i);
    const uint32_t *pos = b->pos + item->row;
    struct reach r = {.table = b->blocks + b->block_start[item->seq],
                      .kv_head = i % kv_heads,
                      .first = first_key(j, pos[0]) / KV_BLOCK_TOKENS,
                      .end = pos[item->n_rows - 1] / KV_BLOCK_TOKENS + 1};
    if (item->partial != NO_PARTIAL) {
        r.first = cpu_max(r.first, item->segment * SEGMENT_BLOCKS);
        r.end = cpu_min(r.end, (item->segment + 1) * SEGMENT_BLOCKS);
    }
    return r;
}

static void attend_item(void *arg, uint32_t i, uint32_t thread)
{
    const struct attention_job *j = arg;
    const struct attention_item *item = item_of(j, i);
    struct tile t = {.job = j, .item = item};
    t.pos = j->cpu->base.batch->pos + item->row;
    t.reach = reach_of(j, i);
    t.next = reach_of(j, i + j->cpu->base.threads);
    set_up(&t, cpu_scratch(j->cpu, thread));

    uint32_t head = t.reach.kv_head * j->group;
    if (item->partial != NO_PARTIAL) {
        attend_segment(&t, item->segment);
        for (uint32_t g = 0; g < j->group; g++) {
            float *p = partial_of(j, item->partial, head + g);
            memcpy(p, t.sum + (size_t)g * j->padded, j->padded * sizeof *p);
            p[j->padded] = t.m[g];
            p[j->padded + 1] = t.l[g];
        }
        return;
    }
    uint32_t last = (t.reach.end - 1) / SEGMENT_BLOCKS;
    for (uint32_t s = t.reach.first / SEGMENT_BLOCKS; s <= last; s++) {
        attend_segment(&t, s);
        join_segment(&t, s);
    }
    for (uint32_t q = 0; q < item->n_rows * j->group; q++) {
        float *out = out_of(j, item->row + q / j->group, head + q % j->group);
        write_out(out, t.total + (size_t)q * j->padded, t.total_l[q], j->dim);
    }
}

/* The partials of a row follow each other; its first item joins them all. */
static void join_item(void *arg, uint32_t i, uint32_t thread)
{
    (void)thread;
    const struct attention_job *j = arg;
    const struct attention_item *items = j->cpu->items, *item = &items[i];
    if (item->partial == NO_PARTIAL || (i > 0 && items[i - 1].seq == item->seq)) return;
    uint32_t n = 1;
    while (i + n < j->n_items && items[i + n].seq == item->seq) n++;
    for (uint32_t h = 0; h < j->shape->q_heads; h++) {
        float *total = partial_of(j, item->partial, h);
        for (uint32_t s = 1; s < n; s++) {
            const float *p = partial_of(j, item->partial + s, h);
            join(&total[j->padded], &total[j->padded + 1], total, p[j->padded],
                 p[j->padded + 1], p, j->padded);
        }
        write_out(out_of(j, item->row, h), total, total[j->padded + 1], j->dim);
    }
}

/* Fill cpu->items; answers whether any leaves a partial. */
static bool plan(struct cpu *c, struct attention_job *j)
{
    const struct batch *b = c->base.batch;
    uint32_t tile_rows = cpu_max(1, TILE_QUERIES / j->group), partials = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        uint32_t row = b->row_start[s], end = b->row_start[s + 1];
        uint32_t first = first_key(j, b->pos[row]) / SEGMENT;
        uint32_t last = b->pos[end - 1] / SEGMENT;
        if (end - row == 1 && last > first) {
            for (uint32_t seg = first; seg <= last; seg++) {
                c->items[j->n_items++] =
                    (struct attention_item){s, row, 1, seg, partials++};
            }
            continue;
        }
        for (; row < end; row += tile_rows) {
            c->items[j->n_items++] = (struct attention_item){
                s, row, cpu_min(tile_rows, end - row), 0, NO_PARTIAL};
        }
    }
    return partials > 0;
}

void cpu_attention(struct backend *b, struct buffer *out, const struct buffer *qkv,
                   const struct kv_pool_mem *kv, uint32_t layer,
                   const struct attention_shape *s)
{
    struct cpu *c = cpu_of(b);
    struct attention_job j = {
        .cpu = c, .out = out->data, .qkv = qkv, .kv = kv, .layer = layer, .shape = s};
    j.group = s->q_heads / s->kv_heads;
    j.dim = s->head_dim;
    j.padded = (uint32_t)padded_dim(s->head_dim);
    bool partial = plan(c, &j);
    pool_run(c->pool, j.n_items * s->kv_heads, attend_item, &j);
    if (partial) pool_run(c->pool, j.n_items, join_item, &j);
}
