#include "server/stack_warm.h"

#include "server/clock.h"
#include "server/log.h"

#include <stdlib.h>

#define HOST_CHUNK   32   // tokens of each of three chunks of prefill that are measured
#define DEVICE_CHUNK 512  // a GPU is not busy with fewer
#define LOOK         8    // tokens that tell first how many can be measured
#define STEP_TIMES   4    // a step is measured so often
#define STEP_DRAFTS  8    // of so many rows beside one, and of one
#define MOST_ROWS    1024.0  // that a step may seem to cost beside its rows

/* What the chunks together may hold up a start, by the look. */
#define MEASURE_NS (CLOCK_S / 2)

/* Rows that mean nothing: the same token again and again. */
struct rows {
    int32_t *ids;
    uint32_t *pos, *starts, *logits, *n_best, *blocks;
};

static void free_rows(struct rows *r)
{
    free(r->ids);
    free(r->pos);
    free(r->starts);
    free(r->logits);
    free(r->n_best);
    free(r->blocks);
}

static int take_rows(struct rows *r, uint32_t n, struct err *err)
{
    size_t blocks = n + 3 * (size_t)DEVICE_CHUNK / KV_BLOCK_TOKENS;
    *r = (struct rows){
        .ids = calloc(n, sizeof *r->ids),
        .pos = calloc(n, sizeof *r->pos),
        .starts = calloc((size_t)n + 1, sizeof *r->starts),
        .logits = calloc(n, sizeof *r->logits),
        .n_best = calloc(n, sizeof *r->n_best),
        .blocks = calloc(blocks, sizeof *r->blocks),
    };
    if (r->ids && r->pos && r->starts && r->logits && r->n_best && r->blocks) return 0;
    free_rows(r);
    return err_set(err, -ENOMEM, "no memory for a first step of %u rows", n);
}

/* n sequences that begin. */
static int decode(struct stack *s, struct rows *r, uint32_t n, struct err *err)
{
    for (uint32_t i = 0; i <= n; i++) r->starts[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        r->pos[i] = 0;
        r->logits[i] = i;
        r->n_best[i] = 1;
        r->blocks[i] = kv_pool_take(&s->kv);
    }
    const struct batch b = {
        .n_rows = n,
        .n_seqs = n,
        .n_logits = n,
        .ids = r->ids,
        .pos = r->pos,
        .row_start = r->starts,
        .block_start = r->starts,
        .blocks = r->blocks,
        .logit_rows = r->logits,
        .n_best = r->n_best,
        .n_usable = s->model.config.vocab,
    };
    const float *logits;
    int rc = model_forward(&s->model, &s->kv, &b, &logits, err);
    for (uint32_t i = 0; i < n; i++) kv_pool_unref(&s->kv, r->blocks[i]);
    return rc;
}

/* n tokens of one sequence, from position `from` on; of the last n_logits, logits. */
static int extend(struct stack *s, struct rows *r, const struct kv_table *t,
                  uint32_t from, uint32_t n, uint32_t n_logits, struct err *err)
{
    for (uint32_t i = 0; i < n; i++) r->pos[i] = from + i;
    for (uint32_t i = 0; i < n_logits; i++) r->logits[i] = n - n_logits + i;
    const uint32_t rows[] = {0, n}, blocks[] = {0, kv_blocks_for(from + n)};
    const struct batch b = {
        .n_rows = n,
        .n_seqs = 1,
        .n_logits = n_logits,
        .ids = r->ids,
        .pos = r->pos,
        .row_start = rows,
        .block_start = blocks,
        .blocks = t->blocks,
        .logit_rows = r->logits,
    };
    const float *logits;
    return model_forward(&s->model, &s->kv, &b, &logits, err);
}

static int warm_prefill(struct stack *s, struct rows *r, uint32_t n, struct err *err)
{
    struct kv_table t = {.blocks = r->blocks, .cap = kv_blocks_for(n)};
    if (n > s->context || kv_table_extend(&s->kv, &t, 0, n) < 0) return 0;
    int rc = extend(s, r, &t, 0, n, 0, err);
    kv_table_release(&s->kv, &t);
    return rc;
}

static void log_recorded(const struct stack *s)
{
    const struct backend_recorded r = backend_recorded(s->backend);
    char taken[24], reserve[24];
    if (r.reserve == 0) return;
    log_line(
        r.full ? LOG_WARN : LOG_INFO,
        "%u steps of decode are recorded as CUDA graphs, in %s of the %s set aside%s",
        r.steps, budget_size(r.taken, taken), budget_size(r.reserve, reserve),
        r.full ? ", where more had no room: steps of other sizes are slower, with the "
                 "same bits"
               : "");
}

int stack_warm(struct stack *s, struct err *err)
{
    uint32_t rows = s->model.options.max_rows, most = s->budget.max_sequences;
    if (most > rows) most = rows;
    if (most > s->kv.n_free) most = s->kv.n_free;
    if (backend_decode_rows(s->backend, 1) == 0) return 0;
    struct rows r;
    int rc = take_rows(&r, rows, err);
    if (rc < 0) return rc;
    rc = warm_prefill(s, &r, rows, err);
    for (uint32_t n = 1; rc == 0 && n <= most;) {
        n = backend_decode_rows(s->backend, n);
        if (n > most) break;
        rc = decode(s, &r, n, err);
        n++;
    }
    free_rows(&r);
    if (rc == 0) log_recorded(s);
    return rc;
}

/* Tokens of a chunk: as many as `chunk`, or fewer where three of these would hold up the start;
 * 0 where that is too few, and *ns of one token is already known. */
static int choose_chunk(struct stack *s, struct rows *r, const struct kv_table *t,
                        uint32_t *chunk, double *ns, struct err *err)
{
    uint64_t began = clock_ns();
    int rc = extend(s, r, t, 0, LOOK, 0, err);
    if (rc < 0) return rc;
    *ns = (double)(clock_ns() - began) / LOOK;
    double most = MEASURE_NS / (3 * *ns);
    if (most < *chunk) *chunk = most < LOOK ? 0 : (uint32_t)most;
    return 0;
}

/* Three chunks, one behind the other; the first one only warms up.  What a token costs for
 * the place it has is too little to be seen here: it is learned from long prompts. */
static int measure(struct stack *s, struct rows *r, const struct kv_table *t,
                   uint32_t chunk, struct err *err)
{
    uint64_t sum = 0;
    double ns = 0;
    // A step of few tokens tells nothing of a GPU, and there is none that slow.
    int rc = s->device ? 0 : choose_chunk(s, r, t, &chunk, &ns, err);
    for (uint32_t from = 0; rc == 0 && from < 3 * chunk; from += chunk) {
        uint64_t began = clock_ns();
        rc = extend(s, r, t, from, chunk, 0, err);
        if (from > 0) sum += clock_ns() - began;
    }
    if (rc < 0) return rc;
    if (chunk > 0) ns = (double)sum / (2.0 * chunk);
    cost_set_prefill(s->tiers.cost, ns, 0);
    s->tiers.measured.prefill = true;
    return 0;
}

int stack_calibrate(struct stack *s, struct err *err)
{
    uint32_t chunk = s->device ? DEVICE_CHUNK : HOST_CHUNK;
    uint32_t rows = s->model.options.max_rows;
    if (chunk > rows) chunk = rows;
    if (chunk > s->context / 3) chunk = s->context / 3;
    if (chunk < 16) return 0;
    struct rows r;
    int rc = take_rows(&r, chunk, err);
    if (rc < 0) return rc;
    struct kv_table t = {.blocks = r.blocks, .cap = kv_blocks_for(3 * chunk)};
    if (kv_table_extend(&s->kv, &t, 0, 3 * chunk) == 0) {
        rc = measure(s, &r, &t, chunk, err);
        kv_table_release(&s->kv, &t);
    }
    free_rows(&r);
    return rc;
}

/* ---- what a row more costs ---- */

/* A step of n rows takes as long as one of no rows and n times a row's time. */
static double step_rows_of(double one, double all)
{
    double row = (all - one) / STEP_DRAFTS;
    return row * MOST_ROWS < one ? MOST_ROWS : row < one ? one / row - 1 : 0;
}

/* The quickest of some: what disturbs makes only slower.  Where each takes long, of fewer. */
static int time_rows(struct stack *s, struct rows *r, const struct kv_table *t,
                     uint32_t n, double *ns, struct err *err)
{
    uint64_t end = clock_ns() + MEASURE_NS / 2;
    for (int i = 0; i < STEP_TIMES; i++) {
        uint64_t began = clock_ns();
        if (i > 0 && began > end) break;
        int rc = extend(s, r, t, 0, n, n, err);
        if (rc < 0) return rc;
        double took = (double)(clock_ns() - began);
        if (i == 0 || took < *ns) *ns = took;
    }
    return 0;
}

int stack_measure_step(struct stack *s, double *step_rows, struct err *err)
{
    *step_rows = 0;
    uint32_t n = 1 + STEP_DRAFTS;
    const struct model_options *most = &s->model.options;
    if (n > most->max_rows || n > most->max_logits || n > s->context) return 0;
    struct rows r;
    int rc = take_rows(&r, n, err);
    if (rc < 0) return rc;
    struct kv_table t = {.blocks = r.blocks, .cap = kv_blocks_for(n)};
    double one, all;
    if (kv_table_extend(&s->kv, &t, 0, n) == 0) {
        rc = time_rows(s, &r, &t, 1, &one, err);
        if (rc == 0) rc = time_rows(s, &r, &t, n, &all, err);
        if (rc == 0) *step_rows = step_rows_of(one, all);
        kv_table_release(&s->kv, &t);
    }
    free_rows(&r);
    return rc;
}
