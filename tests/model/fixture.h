/* fixture.h - a loaded model with a KV pool, and sequences to run through it.
 *
 * Owns     all it opens; fixture_close() returns it.
 * Errors   end the program with a sentence: nothing here may fail in a test or a bench.
 * Threads  one.
 */
#ifndef TESTS_MODEL_FIXTURE_H
#define TESTS_MODEL_FIXTURE_H

#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIXTURE_MAX_SEQS 16

struct fixture_options {
    const char *dir;
    const char
        *cpu_path;  // as in struct backend_options; "cuda": that backend instead;
                    // "cuda-exact": with own kernels only
    uint32_t threads;
    enum dtype kv;
    uint32_t max_rows, n_blocks;
    enum weight_format format;
};

/* One batch under construction; its arrays have room for every limit of the fixture. */
struct step {
    struct batch batch;
    int32_t *ids;
    uint32_t *pos, *row_start, *block_start, *blocks, *logit_rows;
};

struct fixture {
    struct backend *backend;
    struct tensor_set *set;
    struct model model;
    struct kv_pool kv;
    struct step step;
};

static inline void step_clear(struct step *s)
{
    s->batch = (struct batch){.ids = s->ids,
                              .pos = s->pos,
                              .row_start = s->row_start,
                              .block_start = s->block_start,
                              .blocks = s->blocks,
                              .logit_rows = s->logit_rows};
}

static inline void fixture_require(bool holds, const char *what, const char *why)
{
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* False, with nothing opened, where this machine lacks the instruction set or device. */
static inline bool fixture_open(struct fixture *f, const struct fixture_options *o)
{
    *f = (struct fixture){0};
    struct err err = {{0}};
    struct model_config c;
    fixture_require(model_config_load(&c, o->dir, &err) == 0, o->dir, err.msg);
    bool cuda = o->cpu_path && strncmp(o->cpu_path, "cuda", 4) == 0;
    struct backend_options b = {
        .threads = o->threads,
        .cpu_path = cuda ? NULL : o->cpu_path,
        .exact = cuda && strcmp(o->cpu_path, "cuda-exact") == 0,
        .limits = {o->max_rows, FIXTURE_MAX_SEQS, o->n_blocks * FIXTURE_MAX_SEQS,
                   c.head_dim, c.q_heads, model_widest_input(&c)},
        .layers = c.layers,
    };
    int rc = backend_open(&f->backend, cuda ? "cuda" : "cpu", &b, &err);
    if (rc == -ENODEV) return false;
    if (rc == 0) rc = safetensors_open_dir(&f->set, o->dir, &err);
    if (rc == 0) {
        struct model_options m = {o->max_rows, o->max_rows, {.format = o->format}};
        rc = model_open(&f->model, f->backend, &c, f->set, &m, &err);
    }
    if (rc == 0) {
        struct kv_shape shape = model_kv_shape(&c, o->kv);
        rc = kv_pool_open(&f->kv, f->backend, &shape, o->n_blocks, &err);
    }
    fixture_require(rc == 0, o->dir, err.msg);

    struct step *s = &f->step;
    s->ids = calloc(o->max_rows, sizeof *s->ids);
    s->pos = calloc(o->max_rows, sizeof *s->pos);
    s->logit_rows = calloc(o->max_rows, sizeof *s->logit_rows);
    s->row_start = calloc(FIXTURE_MAX_SEQS + 1, sizeof *s->row_start);
    s->block_start = calloc(FIXTURE_MAX_SEQS + 1, sizeof *s->block_start);
    s->blocks = calloc((size_t)o->n_blocks * FIXTURE_MAX_SEQS, sizeof *s->blocks);
    step_clear(s);
    return true;
}

static inline void fixture_close(struct fixture *f)
{
    free(f->step.ids);
    free(f->step.pos);
    free(f->step.logit_rows);
    free(f->step.row_start);
    free(f->step.block_start);
    free(f->step.blocks);
    kv_pool_close(&f->kv);
    model_close(&f->model);
    safetensors_close(f->set);
    backend_close(f->backend);
}

static inline struct kv_table table_open(uint32_t cap)
{
    return (struct kv_table){.blocks = calloc(cap, sizeof(uint32_t)), .cap = cap};
}

/* Add tokens [from, to) of ids as one sequence, its table grown to hold them, and ask for
 * the logits of those from `logits_from` on. */
static inline void step_add(struct fixture *f, struct kv_table *t, const int32_t *ids,
                            uint32_t from, uint32_t to, uint32_t logits_from)
{
    struct step *s = &f->step;
    struct batch *b = &s->batch;
    fixture_require(kv_table_extend(&f->kv, t, from, to) == 0, "a step",
                    "the pool or the block table is too small");
    for (uint32_t i = from; i < to; i++) {
        s->ids[b->n_rows] = ids[i];
        s->pos[b->n_rows] = i;
        if (i >= logits_from) s->logit_rows[b->n_logits++] = b->n_rows;
        b->n_rows++;
    }
    uint32_t n = s->block_start[b->n_seqs];
    memcpy(s->blocks + n, t->blocks, t->n_blocks * sizeof *s->blocks);
    b->n_seqs++;
    s->block_start[b->n_seqs] = n + t->n_blocks;
    s->row_start[b->n_seqs] = b->n_rows;
}

/* Run it; row i of the answer belongs to the i-th token whose logits were wanted. */
static inline const float *step_run(struct fixture *f)
{
    struct err err = {{0}};
    const float *logits = NULL;
    int rc = model_forward(&f->model, &f->kv, &f->step.batch, &logits, &err);
    fixture_require(rc == 0, "a step", err.msg);
    step_clear(&f->step);
    return logits;
}

static inline int32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

#endif
