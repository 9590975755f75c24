/* attention_tile.c - one item of attention over one segment: scores, softmax and weighted sums,
 * a chunk after the other.
 *
 * Each K and V is read once for all rows of the item and all query heads of the group.
 */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

/* ---- memory ---- */

static uint32_t most_queries(const struct backend_limits *l)
{
    return l->max_q_heads > TILE_QUERIES ? l->max_q_heads : TILE_QUERIES;
}

size_t cpu_attention_scratch(const struct backend_limits *l)
{
    size_t dim = attention_padded(l->max_head_dim);
    return most_queries(l) * (3 * dim + 4 + CHUNK) + CHUNK * dim;
}

void attention_tile_set_up(struct tile *t, float *scratch)
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
                         ((size_t)t->kv_head * j->group + i % j->group) * j->dim;
        float *to = t->q + (size_t)i * j->dim;
        for (uint32_t d = 0; d < j->dim; d++) to[d] = q[d] * j->shape->scale;
    }
}

/* ---- one chunk ---- */

/* The keys of a chunk that a query sees: from <= i < to, none where from >= to. */
struct span {
    uint32_t from, to;
};

static struct span span_of(const struct tile *t, uint32_t row, uint32_t chunk)
{
    uint32_t base = chunk * CHUNK, pos = t->pos[row];
    uint32_t first = attention_first_key(t->job, pos);
    if (pos < base || first >= base + CHUNK) return (struct span){0, 0};
    return (struct span){cpu_max(first, base) - base, cpu_min(pos - base + 1, CHUNK)};
}

static const char *plane_in(const struct attention_job *j, const struct reach *r,
                            uint32_t block, int v)
{
    return r->plane[v] + r->table[block] * j->block_bytes;
}

static const char *plane_of(const struct tile *t, uint32_t block, int v)
{
    return plane_in(t->job, &t->reach, block, v);
}

/* Blocks of a sequence lie far apart, so the hardware cannot guess the next one.  What is
 * asked for is the same block of the next chunk, or at the end one of the next item; this
 * block itself where there is none. */
static const char *later_plane(const struct tile *t, uint32_t block, int v)
{
    const struct reach *r = &t->reach;
    uint32_t later = block + CHUNK_BLOCKS;
    if (later < r->end) return plane_of(t, later, v);
    later = later - r->end + t->next.first;
    if (later < t->next.end) return plane_in(t->job, &t->next, later, v);
    return plane_of(t, block, v);
}

static void prefetch_later(const struct tile *t, uint32_t block, int v)
{
    size_t bytes = KV_BLOCK_TOKENS * t->job->token_bytes;
    const char *p = later_plane(t, block, v);
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/* Blocks first <= block < end of one chunk. */
struct blocks {
    uint32_t first, end;
};

/* Panels of one strip for so many queries, of `left` that there are; 0 where the queries are
 * those of more than one tile. */
static uint32_t panels_of(const struct tile *t, uint32_t queries, uint32_t left)
{
    const struct cpu_path *path = t->job->cpu->path;
    if (queries > path->tile_rows) return 0;
    uint32_t n = strip_panels(path, queries);
    while (n > left) n /= 2;
    return n;
}

/* V of few queries is widened in registers; for many, once for all of them. */
static bool few_queries(const struct tile *t, uint32_t queries)
{
    return queries <= t->job->cpu->path->tile_rows && t->job->padded == t->job->dim;
}

static void load_values(const struct tile *t, struct blocks b)
{
    const struct attention_job *j = t->job;
    const struct cpu_path *path = j->cpu->path;
    for (uint32_t block = b.first; block < b.end; block++) {
        prefetch_later(t, block, 1);
        const char *v = plane_of(t, block, 1);
        float *to =
            t->values + (size_t)(block % CHUNK_BLOCKS) * KV_BLOCK_TOKENS * j->padded;
        if (j->padded == j->dim) {
            path->widen(to, v, j->type, (size_t)KV_BLOCK_TOKENS * j->dim);
            continue;
        }
        for (uint32_t i = 0; i < KV_BLOCK_TOKENS; i++, to += j->padded) {
            path->widen(to, v + i * j->token_bytes, j->type, j->dim);
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
    size_t first = (size_t)begin * j->group;
    uint32_t in_chunk = b.first % CHUNK_BLOCKS, queries = (end - begin) * j->group;
    const float *q = t->q + first * j->dim;
    float *scores = t->scores + first * CHUNK + (size_t)in_chunk * PANEL;
    for (uint32_t i = b.first, n; i < b.end; i += n, scores += (size_t)n * PANEL) {
        n = panels_of(t, queries, b.end - i);
        if (n == 0) {
            prefetch_later(t, i, 0);
            cpu_tiles(path, j->type, queries, j->dim, q, j->dim, plane_of(t, i, 0),
                      PANEL, scores, CHUNK, SUMS_SET);
            n = 1;
            continue;
        }
        const void *k[STRIP_PANELS];
        struct ahead ahead = {.step = 2 * PANEL * dtype_bytes(j->type)};
        for (uint32_t p = 0; p < STRIP_PANELS; p++) {
            k[p] = plane_of(t, i + p % n, 0);
            ahead.line[p] = later_plane(t, i + p % n, 0);
        }
        path->strip[j->type](queries, n, 1, j->dim, q, j->dim, k, PANEL, scores, CHUNK,
                             SUMS_SET, &ahead);
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

/* V of neighbouring tokens in pieces of k each, and what will be wanted after each. */
struct tokens {
    uint32_t pieces, k;
    const char *v[CHUNK_BLOCKS], *later[CHUNK_BLOCKS];
};

/* sum += weights V of tokens, the first of which is `from` in the chunk, for few queries. */
static void add_strips(const struct tile *t, uint32_t row, uint32_t queries,
                       uint32_t from, const struct tokens *v)
{
    const struct attention_job *j = t->job;
    size_t first = (size_t)row * j->group, panel = PANEL * dtype_bytes(j->type),
           token = j->token_bytes;
    const float *weight = t->scores + first * CHUNK + from;
    float *sum = t->sum + first * j->dim;
    for (uint32_t p = 0, n, panels = j->dim / PANEL; p < panels; p += n) {
        const void *w[CHUNK_BLOCKS * STRIP_PANELS];
        struct ahead ahead[CHUNK_BLOCKS];
        n = panels_of(t, queries, panels - p);
        for (uint32_t i = 0; i < v->pieces; i++) {
            const char *one = v->later[i] + p * panel, *two = one + 2 * panel;
            ahead[i] = (struct ahead){{one, one + token, two, two + token}, 2 * token};
            for (uint32_t k = 0; k < n; k++) w[i * n + k] = v->v[i] + (p + k) * panel;
        }
        j->cpu->path->strip[j->type](queries, n, v->pieces, v->k, weight, CHUNK, w,
                                     j->dim, sum + p * PANEL, j->dim, SUMS_FROM, ahead);
    }
}

/* The same for many queries, whose V is widened. */
static void add_tiles(const struct tile *t, uint32_t row, uint32_t queries,
                      struct span s)
{
    const struct attention_job *j = t->job;
    size_t first = (size_t)row * j->group;
    const float *v = t->values + (size_t)s.from * j->padded;
    for (uint32_t d = 0; d < j->padded; d += PANEL)
        cpu_tiles(j->cpu->path, DTYPE_F32, queries, s.to - s.from,
                  t->scores + first * CHUNK + s.from, CHUNK, v + d, j->padded,
                  t->sum + first * j->padded + d, j->padded, SUMS_FROM);
}

/* Only tokens that the rows see are touched: what lies in the others may be anything.  Blocks
 * that are seen whole make one strip. */
static void add_values(const struct tile *t, uint32_t row, uint32_t queries,
                       struct span s, struct blocks b)
{
    const struct attention_job *j = t->job;
    struct tokens v = {0};
    uint32_t from = s.from;
    for (uint32_t block = b.first; block < b.end; block++) {
        uint32_t base = block % CHUNK_BLOCKS * KV_BLOCK_TOKENS;
        struct span in = {cpu_max(s.from, base), cpu_min(s.to, base + KV_BLOCK_TOKENS)};
        if (in.from >= in.to) continue;
        if (v.pieces > 0 && v.k != in.to - in.from) {
            add_strips(t, row, queries, from, &v);
            v.pieces = 0;
        }
        if (v.pieces == 0) from = in.from;
        size_t skip = (in.from - base) * j->token_bytes;
        v.k = in.to - in.from;
        v.v[v.pieces] = plane_of(t, block, 1) + skip;
        v.later[v.pieces++] = later_plane(t, block, 1) + skip;
    }
    if (v.pieces > 0) add_strips(t, row, queries, from, &v);
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
        uint32_t queries = (next - row) * t->job->group;
        if (widened)
            add_tiles(t, row, queries, s);
        else
            add_values(t, row, queries, s, b);
    }
}

/* ---- a segment ---- */

void attention_tile_segment(const struct tile *t, uint32_t segment)
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
