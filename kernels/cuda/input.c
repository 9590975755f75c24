/* input.c - what a batch is to the kernels, in pinned memory and its copy on the device.
 *
 * A row has its token, its position and the slot that its K and V go to.  Attention has
 * items: neighbouring rows of a sequence as many as one thread block takes, or, of a long
 * conversation that decodes, one segment of its positions; what the segments come to is
 * joined.  Rows of padding, which fill a recorded step, have no slot and no item.
 */
#include "kernels/cuda/cuda.h"

#include <string.h>

/* One walk over the arrays: with base NULL only to count. */
static size_t lay_out(struct cuda_input *in, const struct cuda *c, char *base)
{
    const struct backend_limits *l = &c->base.limits;
    size_t at = 0;
    *in = (struct cuda_input){.memory = base};
#define PUT(field, n)                                                                  \
    do {                                                                               \
        if (base) in->field = (void *)(base + at);                                     \
        at += ALIGN_UP((n) * sizeof *in->field, (size_t)64);                           \
    } while (0)
    PUT(counts, 1);
    PUT(inv_freq, (size_t)l->max_head_dim / 2 + 1);
    PUT(ids, (size_t)l->max_rows);
    PUT(pos, (size_t)l->max_rows);
    PUT(slots, (size_t)l->max_rows);
    PUT(logit_rows, (size_t)l->max_rows);
    PUT(n_best, (size_t)l->max_rows);
    PUT(joins, (size_t)l->max_seqs);
    in->head_bytes = at;
    PUT(items, (size_t)c->max_items);
    PUT(tables, (size_t)l->max_blocks);
#undef PUT
    return at;
}

int cuda_input_open(struct cuda *c)
{
    const struct backend_limits *l = &c->base.limits;
    c->max_partials = l->max_blocks / (CUDA_SEGMENT / KV_BLOCK_TOKENS) + l->max_seqs;
    c->max_items = l->max_rows + c->max_partials;
    size_t bytes = lay_out(&c->host, c, NULL);
    size_t half = (size_t)l->max_rows * (l->max_head_dim / 2 + 1) * sizeof(float);
    uint32_t ld = cuda_ld(l->max_cols, DTYPE_F16);  // and of bf16
    size_t partial =
        (size_t)l->max_q_heads * (l->max_head_dim + CUDA_PARTIAL_EXTRA) * sizeof(float);

    void *host = NULL;
    if (cudaHostAlloc(&host, bytes, cudaHostAllocDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        return -ENOMEM;
    }
    memset(host, 0, bytes);
    lay_out(&c->host, c, host);
    char *dev = cuda_device_alloc(c, bytes);
    if (!dev) return -ENOMEM;
    lay_out(&c->dev, c, dev);
    c->cos = cuda_device_alloc(c, half);
    c->sin = cuda_device_alloc(c, half);
    c->partials = cuda_device_alloc(c, c->max_partials * partial);
    c->image = cuda_device_alloc(c, (size_t)l->max_rows * ld * sizeof *c->image);
    return c->cos && c->sin && c->partials && c->image ? 0 : -ENOMEM;
}

void cuda_input_close(struct cuda *c)
{
    if (c->host.memory) (void)cudaFreeHost(c->host.memory);
    cuda_device_free(c, c->dev.memory);
    cuda_device_free(c, c->cos);
    cuda_device_free(c, c->sin);
    cuda_device_free(c, c->partials);
    cuda_device_free(c, c->image);
}

void cuda_input_rows(struct cuda *c, const float *inv_freq)
{
    const struct batch *t = c->base.batch;
    struct cuda_input *in = &c->host;
    memcpy(in->inv_freq, inv_freq, c->base.rope_dim / 2 * sizeof *inv_freq);
    memcpy(in->pos, t->pos, t->n_rows * sizeof *in->pos);
    if (t->ids) memcpy(in->ids, t->ids, t->n_rows * sizeof *in->ids);
    if (t->n_logits)
        memcpy(in->logit_rows, t->logit_rows, t->n_logits * sizeof *in->logit_rows);
    if (t->n_best) memcpy(in->n_best, t->n_best, t->n_logits * sizeof *in->n_best);
    c->n_tables = t->block_start[t->n_seqs];
    memcpy(in->tables, t->blocks, c->n_tables * sizeof *in->tables);
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        const uint32_t *table = t->blocks + t->block_start[s];
        for (uint32_t r = t->row_start[s]; r < t->row_start[s + 1]; r++)
            in->slots[r] = table[t->pos[r] / KV_BLOCK_TOKENS] * KV_BLOCK_TOKENS +
                           t->pos[r] % KV_BLOCK_TOKENS;
    }
}

/* ---- items ---- */

static void add_item(struct cuda *c, uint32_t seq, uint32_t row, uint32_t n_rows,
                     uint32_t segment, uint32_t partial)
{
    const struct batch *t = c->base.batch;
    c->host.items[c->n_items++] = (struct cuda_item){
        .row = row,
        .n_rows = n_rows,
        .pos = t->pos[row],
        .table = t->block_start[seq],
        .segment = segment,
        .partial = partial,
    };
}

/* A row that decodes: one item, or one for each segment that it sees. */
static void add_decode(struct cuda *c, uint32_t seq, uint32_t *partials)
{
    const struct batch *t = c->base.batch;
    uint32_t row = t->row_start[seq], pos = t->pos[row], window = c->shape.window;
    uint32_t first = cuda_first_key(pos, window) / CUDA_SEGMENT;
    uint32_t n = pos / CUDA_SEGMENT - first + 1;
    if (n == 1) {
        add_item(c, seq, row, 1, 0, CUDA_NO_PARTIAL);
        return;
    }
    c->host.joins[c->host.counts->joins++] = (struct cuda_join){row, *partials, n};
    for (uint32_t i = 0; i < n; i++) add_item(c, seq, row, 1, first + i, (*partials)++);
}

/* Rows of a prompt in tiles of `most`; the last ones see the most keys, so they go first. */
static void add_prompt(struct cuda *c, uint32_t seq, uint32_t most)
{
    const struct batch *t = c->base.batch;
    uint32_t first = t->row_start[seq], end = t->row_start[seq + 1];
    for (uint32_t tile = (end - first + most - 1) / most; tile-- > 0;) {
        uint32_t row = first + tile * most;
        add_item(c, seq, row, cuda_min(most, end - row), 0, CUDA_NO_PARTIAL);
    }
}

/* All wide items come before the narrow ones. */
static void plan(struct cuda *c)
{
    const struct batch *t = c->base.batch;
    struct cuda_counts *n = c->host.counts;
    uint32_t group = c->shape.q_heads / c->shape.kv_heads, partials = 0;
    bool tensor = cuda_attention_tensor(c->kv_type, c->shape.head_dim, group);
    c->n_items = 0;
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        uint32_t rows = t->row_start[s + 1] - t->row_start[s];
        if (!tensor || rows * group > CUDA_NARROW)
            add_prompt(c, s, tensor ? CUDA_WIDE / group : 1);
    }
    n->wide = c->n_items;
    for (uint32_t s = 0; s < t->n_seqs && tensor; s++) {
        uint32_t rows = t->row_start[s + 1] - t->row_start[s];
        if (rows * group > CUDA_NARROW) continue;
        if (rows == 1)
            add_decode(c, s, &partials);
        else
            add_prompt(c, s, rows);
    }
    n->narrow = c->n_items - n->wide;
}

static void send(struct cuda *c, void *to, const void *from, size_t bytes)
{
    if (bytes > 0)
        cuda_ok(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->compute),
                "copying a batch");
}

void cuda_input_send(struct cuda *c, uint32_t padded)
{
    struct cuda_input *in = &c->host;
    *in->counts = (struct cuda_counts){
        .rows = c->base.batch->n_rows,
        .usable = c->base.batch->n_usable,
    };
    c->n_items = 0;
    if (c->shape.q_heads) plan(c);
    for (uint32_t r = c->base.batch->n_rows; r < padded; r++) {
        in->ids[r] = 0;
        in->pos[r] = 0;
        in->slots[r] = CUDA_NO_SLOT;
        in->logit_rows[r] = r;
        in->n_best[r] = 0;
    }
    send(c, c->dev.memory, in->memory, in->head_bytes);
    send(c, c->dev.items, in->items, c->n_items * sizeof *in->items);
    send(c, c->dev.tables, in->tables, c->n_tables * sizeof *in->tables);
}
