/* attention.c - causal attention over paged KV, for decode and prefill alike: how it is shared
 * out, and how the parts are joined.
 *
 * Work is grouped freely around the segments (attention.h says why that changes no bit):
 *
 *   a sequence with one row      an item is (segment, KV head), so that one long
 *   (decode)                     conversation keeps all threads busy; the parts wait in
 *                                `partials` and are joined by a second job
 *   a sequence with many rows    an item is (some neighbouring rows, KV head) and goes
 *   (prefill)                    over all segments itself
 *
 * Blocks that no row of the item can see are not read.
 */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    c->partials = cpu_scratch_alloc(
        c, (size_t)c->max_partials * l->max_q_heads *
               partial_floats(attention_padded(l->max_head_dim)) * sizeof *c->partials);
    return c->items && c->partials ? 0 : -ENOMEM;
}

void cpu_attention_close(struct cpu *c)
{
    free(c->items);
    free(c->partials);
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

static void join_segment(const struct tile *t, uint32_t segment)
{
    const struct attention_job *j = t->job;
    for (uint32_t i = 0; i < t->item->n_rows * j->group; i++) {
        uint32_t pos = t->pos[i / j->group],
                 first = attention_first_key(j, pos) / SEGMENT;
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
                      .first = attention_first_key(j, pos[0]) / KV_BLOCK_TOKENS,
                      .end = pos[item->n_rows - 1] / KV_BLOCK_TOKENS + 1};
    for (int v = 0; v < 2; v++)
        r.plane[v] = (const char *)j->kv->base +
                     kv_plane_offset(&j->kv->shape, j->layer, v, i % kv_heads);
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
    struct tile t = {.job = j, .item = item, .kv_head = i % j->shape->kv_heads};
    t.pos = j->cpu->base.batch->pos + item->row;
    t.reach = reach_of(j, i);
    t.next = reach_of(j, i + j->cpu->base.threads);
    attention_tile_set_up(&t, cpu_scratch(j->cpu, thread));

    uint32_t head = t.kv_head * j->group;
    if (item->partial != NO_PARTIAL) {
        attention_tile_segment(&t, item->segment);
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
        attention_tile_segment(&t, s);
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
        uint32_t first = attention_first_key(j, b->pos[row]) / SEGMENT;
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
    j.padded = (uint32_t)attention_padded(s->head_dim);
    j.type = kv->shape.dtype;
    j.token_bytes = j.dim * dtype_bytes(j.type);
    j.block_bytes = kv_block_bytes(&kv->shape);
    bool partial = plan(c, &j);
    pool_run(c->pool, j.n_items * s->kv_heads, attend_item, &j);
    if (partial) pool_run(c->pool, j.n_items, join_item, &j);
}
