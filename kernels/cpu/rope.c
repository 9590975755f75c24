/* rope.c - QK norm, rotary position embedding, and storing K and V of a step in their
 * blocks.
 *
 * The angles of a step's rows are computed once, in begin, for all layers: no table
 * whose size a context length would bound.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int cpu_rope_open(struct cpu *c)
{
    const struct backend_limits *l = &c->base.limits;
    size_t angles = (size_t)l->max_rows * (l->max_head_dim / 2);
    c->rope_cos = cpu_scratch_alloc(c, (angles + 1) * sizeof *c->rope_cos);
    c->rope_sin = cpu_scratch_alloc(c, (angles + 1) * sizeof *c->rope_sin);
    c->row_seq = cpu_scratch_alloc(c, l->max_rows * sizeof *c->row_seq);
    return c->rope_cos && c->rope_sin && c->row_seq ? 0 : -ENOMEM;
}

void cpu_rope_close(struct cpu *c)
{
    free(c->rope_cos);
    free(c->rope_sin);
    free(c->row_seq);
}

static void angles_of_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    struct cpu *c = arg;
    uint32_t half = c->base.rope_dim / 2;
    float *cos = c->rope_cos + (size_t)r * half, *sin = c->rope_sin + (size_t)r * half;
    for (uint32_t i = 0; i < half; i++) {
        float angle = (float)c->base.batch->pos[r] * c->inv_freq[i];
        cos[i] = cosf(angle);
        sin[i] = sinf(angle);
    }
}

void cpu_rope_begin(struct backend *b, const float *inv_freq, uint32_t head_dim)
{
    struct cpu *c = cpu_of(b);
    const struct batch *t = b->batch;
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        for (uint32_t r = t->row_start[s]; r < t->row_start[s + 1]; r++) {
            c->row_seq[r] = s;
        }
    }
    c->inv_freq = inv_freq;
    cpu_run_rows(c, t->n_rows, 8 * head_dim, angles_of_row,
                 c);  // an angle costs many adds
    c->inv_freq = NULL;
}

struct store_job {
    const struct cpu *cpu;
    struct buffer *qkv;
    struct kv_pool_mem *kv;
    uint32_t layer;
    const struct attention_shape *shape;
    const struct qk_norm *norm;  // NULL: none
};

/* Down column `token` of the plane [dim][16]. */
static void store_key(const struct cpu_path *path, char *plane,
                      const struct kv_shape *kv, const float *k, uint32_t token)
{
    size_t bytes = dtype_bytes(kv->dtype);
    char narrow[32 * sizeof(float)];
    for (uint32_t d = 0; d < kv->head_dim; d += 32) {
        uint32_t n = cpu_min(32, kv->head_dim - d);
        path->narrow(narrow, k + d, kv->dtype, n);
        for (uint32_t i = 0; i < n; i++) {
            char *to = plane + ((size_t)(d + i) * KV_BLOCK_TOKENS + token) * bytes;
            memcpy(to, narrow + i * bytes, bytes);
        }
    }
}

static void store_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct store_job *j = arg;
    const struct cpu_path *path = j->cpu->path;
    const struct batch *t = j->cpu->base.batch;
    const struct kv_shape *kv = &j->kv->shape;
    uint32_t dim = kv->head_dim, half = dim / 2, q_heads = j->shape->q_heads;
    const float *cos = j->cpu->rope_cos + (size_t)r * half;
    const float *sin = j->cpu->rope_sin + (size_t)r * half;

    const struct qk_norm *norm = j->norm;
    float *q = cpu_row(j->qkv, r), *k = q + (size_t)q_heads * dim;
    const float *v = k + (size_t)kv->kv_heads * dim;
    for (uint32_t h = 0; h < q_heads + kv->kv_heads; h++) {
        float *x = q + (size_t)h * dim;
        if (norm) path->rmsnorm(x, x, h < q_heads ? norm->q : norm->k, dim, norm->eps);
        path->rope(x, cos, sin, half);
    }

    const uint32_t *table = t->blocks + t->block_start[j->cpu->row_seq[r]];
    uint32_t block = table[t->pos[r] / KV_BLOCK_TOKENS];
    uint32_t token = t->pos[r] % KV_BLOCK_TOKENS;
    char *base = (char *)j->kv->base + block * kv_block_bytes(kv);
    for (uint32_t h = 0; h < kv->kv_heads; h++) {
        store_key(path, base + kv_plane_offset(kv, j->layer, 0, h), kv,
                  k + (size_t)h * dim, token);
        path->narrow(base + kv_plane_offset(kv, j->layer, 1, h) +
                         (size_t)token * dim * dtype_bytes(kv->dtype),
                     v + (size_t)h * dim, kv->dtype, dim);
    }
}

void cpu_rope_store(struct backend *b, struct buffer *qkv, struct kv_pool_mem *kv,
                    uint32_t layer, const struct attention_shape *s,
                    const struct qk_norm *norm)
{
    struct store_job j = {cpu_of(b), qkv, kv, layer, s, norm};
    cpu_run_rows(cpu_of(b), b->batch->n_rows, qkv->cols, store_row, &j);
}
