/* rows.c - operations that go row by row: norms, activation, gathering, the best of logits. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct norm_job {
    const struct cpu_path *path;
    struct buffer *y;
    const struct buffer *x;
    const struct buffer *d;  // NULL: nothing to add
    const float *w;
    float eps;
};

static void norm_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct norm_job *j = arg;
    float *x = cpu_row(j->x, r);
    if (j->d) j->path->add(x, cpu_row(j->d, r), j->x->cols);
    j->path->rmsnorm(cpu_row(j->y, r), x, j->w, j->x->cols, j->eps);
}

void cpu_rmsnorm(struct backend *b, struct buffer *y, const struct buffer *x,
                 const float *w, float eps)
{
    struct cpu *c = cpu_of(b);
    struct norm_job j = {c->path, y, x, NULL, w, eps};
    cpu_run_rows(c, b->batch->n_rows, x->cols, norm_row, &j);
}

void cpu_add_rmsnorm(struct backend *b, struct buffer *y, struct buffer *x,
                     const struct buffer *d, const float *w, float eps)
{
    struct cpu *c = cpu_of(b);
    struct norm_job j = {c->path, y, x, d, w, eps};
    cpu_run_rows(c, b->batch->n_rows, x->cols, norm_row, &j);
}

struct silu_job {
    const struct cpu_path *path;
    struct buffer *y;
    const struct buffer *gu;
};

static void silu_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct silu_job *j = arg;
    const float *gate = cpu_row(j->gu, r), *up = gate + j->y->cols;
    j->path->silu_mul(cpu_row(j->y, r), gate, up, j->y->cols);
}

void cpu_silu_mul(struct backend *b, struct buffer *y, const struct buffer *gu)
{
    struct cpu *c = cpu_of(b);
    struct silu_job j = {c->path, y, gu};
    cpu_run_rows(c, b->batch->n_rows, gu->cols, silu_row, &j);
}

void cpu_gather_logit_rows(struct backend *b, struct buffer *y, const struct buffer *x)
{
    const struct batch *t = b->batch;
    for (uint32_t i = 0; i < t->n_logits; i++) {
        memcpy(cpu_row(y, i), cpu_row(x, t->logit_rows[i]), x->cols * sizeof(float));
    }
}

struct best_job {
    const struct batch *t;
    struct best *best;
    const float *logits;
    uint32_t cols;
};

static void best_row(void *arg, uint32_t r, uint32_t thread)
{
    (void)thread;
    const struct best_job *j = arg;
    if (j->t->n_best[r] > 0)
        best_of_row(j->best + (size_t)r * BEST_MOST, j->t->n_best[r],
                    j->logits + (size_t)r * j->cols, j->t->n_usable);
}

void cpu_best(struct backend *b, struct best *best, const float *logits, uint32_t cols)
{
    struct best_job j = {b->batch, best, logits, cols};
    cpu_run_rows(cpu_of(b), b->batch->n_logits, cols, best_row, &j);
}
