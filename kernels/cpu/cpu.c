/* cpu.c - opening the CPU backend, its memory, and its table of operations. */
#include "kernels/cpu/cpu.h"

#include "kernels/copyq.h"
#include "kernels/host.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *cpu_alloc(size_t bytes)
{
    return host_alloc(bytes, 64);
}

void *cpu_scratch_alloc(struct cpu *c, size_t bytes)
{
    void *p = cpu_alloc(bytes);
    if (p) c->base.scratch_bytes += bytes;
    return p;
}

static void *alloc(struct backend *b, size_t bytes)
{
    (void)b;
    return cpu_alloc(bytes);
}

static void release(struct backend *b, void *p)
{
    (void)b;
    free(p);
}

static int vector_load(struct backend *b, float **out, const void *src, enum dtype type,
                       uint32_t n)
{
    (void)b;
    float *v = cpu_alloc((size_t)n * sizeof *v);
    if (!v) return -ENOMEM;
    dtype_to_f32(v, src, type, n);
    *out = v;
    return 0;
}

static void copy_block(struct backend *b, struct kv_pool_mem *kv, uint32_t dst,
                       uint32_t src)
{
    (void)b;
    size_t bytes = kv_block_bytes(&kv->shape);
    if (dst != src) {
        memcpy((char *)kv->base + dst * bytes, (char *)kv->base + src * bytes, bytes);
    }
}

static int finish(struct backend *b, struct err *err)
{
    (void)b;
    (void)err;
    return 0;  // every operation is done when it returns
}

static int copyq_open(struct backend *b, struct copyq **out, struct err *err)
{
    (void)b;
    return copyq_thread_open(out, err);
}

struct row_job {
    pool_fn *fn;
    void *arg;
    uint32_t rows, group;
};

static void run_row_group(void *arg, uint32_t i, uint32_t thread)
{
    const struct row_job *j = arg;
    uint32_t end = (i + 1) * j->group < j->rows ? (i + 1) * j->group : j->rows;
    for (uint32_t r = i * j->group; r < end; r++) j->fn(j->arg, r, thread);
}

void cpu_run_rows(struct cpu *c, uint32_t rows, uint32_t cols, pool_fn *fn, void *arg)
{
    // About four groups a thread, none so small that handing it out costs more.
    uint32_t even = (rows + 4 * c->base.threads - 1) / (4 * c->base.threads);
    uint32_t least = CPU_ALONE / cols + 1;
    struct row_job j = {fn, arg, rows, even > least ? even : least};
    pool_run(c->pool, (rows + j.group - 1) / j.group, run_row_group, &j);
}

static void cpu_close(struct backend *b)
{
    struct cpu *c = cpu_of(b);
    pool_close(c->pool);
    cpu_attention_close(c);
    cpu_rope_close(c);
    free(c->scratch);
    free(c->inputs);
    free(c);
}

static const struct backend_ops cpu_ops = {
    .close = cpu_close,
    .matrix_load = cpu_matrix_load,
    .matrix_layout = CPU_MATRIX_LAYOUT,
    .matrix_reserve = cpu_matrix_reserve,
    .matrix_free = cpu_matrix_free,
    .matrix_bytes = cpu_matrix_bytes,
    .vector_load = vector_load,
    .alloc = alloc,
    .free = release,
    .host_alloc = alloc,
    .host_free = release,
    .begin = cpu_rope_begin,
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .matmul = cpu_matmul,
    .rope_store = cpu_rope_store,
    .attention = cpu_attention,
    .silu_mul = cpu_silu_mul,
    .gather_logit_rows = cpu_gather_logit_rows,
    .logits = cpu_logits,
    .best = cpu_best,
    .copy_block = copy_block,
    .finish = finish,
    .copyq_open = copyq_open,
};

static uint32_t cpus_of_this_process(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? (uint32_t)n : 1;
}

static int open_scratch(struct cpu *c)
{
    size_t matmul = cpu_matmul_scratch();
    size_t attention = cpu_attention_scratch(&c->base.limits);
    c->scratch_each = ALIGN_UP(matmul > attention ? matmul : attention, 16);
    c->scratch =
        cpu_scratch_alloc(c, c->base.threads * c->scratch_each * sizeof *c->scratch);
    return c->scratch ? 0 : -ENOMEM;
}

int cpu_open(struct backend **out, const struct backend_options *o, struct err *err)
{
    struct cpu *c = calloc(1, sizeof *c);
    if (!c) return err_set(err, -ENOMEM, "no memory for the CPU backend");
    c->base.ops = &cpu_ops;
    c->base.limits = o->limits;
    c->base.threads = o->threads ? o->threads : cpus_of_this_process();
    c->base.activation_bytes = sizeof(float);

    int rc = cpu_path_choose(&c->path, o->cpu_path, err);
    if (rc) goto fail;
    c->base.rounds[DTYPE_BF16] = c->path->tile_rounded != NULL;
    if (c->base.threads > CPU_MAX_THREADS) {
        rc = err_set(err, -EINVAL, "%u threads were asked for; the most is %u",
                     c->base.threads, CPU_MAX_THREADS);
        goto fail;
    }
    snprintf(c->base.describe, sizeof c->base.describe, "cpu (%s, %u thread%s)",
             c->path->describe, c->base.threads, c->base.threads == 1 ? "" : "s");

    if (open_scratch(c) || cpu_rope_open(c) || cpu_attention_open(c) ||
        cpu_inputs_open(c)) {
        rc = err_set(
            err, -ENOMEM,
            "no memory for the scratch of %u threads, %u rows, %u columns and %u "
            "KV blocks",
            c->base.threads, o->limits.max_rows, o->limits.max_cols,
            o->limits.max_blocks);
        goto fail;
    }
    rc = pool_open(&c->pool, c->base.threads, err);
    if (rc) goto fail;
    *out = &c->base;
    return 0;
fail:
    cpu_close(&c->base);
    return rc;
}
