/* bench_model.c [DIR] - prefill and decode of a model beside the machine's limits.
 *
 * A step must read every weight and all the KV of its batch once, and multiply every
 * weight with every row: both are printed over the step's time, against the read bandwidth
 * and the peak of multiply-adds measured just before.  One row is bound by the first, a
 * prompt by the second, a batch in between by whichever share is larger.  Times are
 * medians.
 */
#include "tests/machine.h"
#include "tests/model/fixture.h"

#include <unistd.h>

#define MAX_ROWS 512
#define N_BLOCKS 576  // 8 sequences of 1,024 tokens, or one of 8,192, and some more
#define REPEATS  24
#define MAX_SEQS 8

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_size);
    return x[n / 2];
}

/* Of the layers' matrices and of the one that makes the logits. */
struct work {
    double layer_weights, layer_bytes, head_weights, head_bytes;
};

static void add_matrix(const struct matrix *m, double *weights, double *bytes)
{
    *weights += (double)m->rows * m->cols;
    *bytes += (double)m->bytes;
}

static struct work work_of(const struct weights *w)
{
    struct work k = {0};
    for (uint32_t i = 0; i < w->layers; i++) {
        const struct layer_weights *l = &w->layer[i];
        add_matrix(&l->qkv, &k.layer_weights, &k.layer_bytes);
        add_matrix(&l->o, &k.layer_weights, &k.layer_bytes);
        add_matrix(&l->gate_up, &k.layer_weights, &k.layer_bytes);
        add_matrix(&l->down, &k.layer_weights, &k.layer_bytes);
    }
    add_matrix(w->head.data ? &w->head : &w->embed, &k.head_weights, &k.head_bytes);
    return k;
}

struct bench {
    struct fixture f;
    struct work work;
    struct machine machine;
    struct kv_table table[MAX_SEQS];
    int32_t ids[MAX_SEQS][MAX_ROWS];
};

static void release_all(struct bench *b)
{
    for (uint32_t i = 0; i < MAX_SEQS; i++) kv_table_release(&b->f.kv, &b->table[i]);
}

/* Multiply-adds count as two: every weight with its rows, and q k and p v of attention,
 * where a row sees `context` tokens on average. */
static double flops_of(const struct bench *b, double rows, double logit_rows,
                       double context)
{
    const struct model_config *c = &b->f.model.config;
    double attention = 2.0 * c->layers * c->q_heads * c->head_dim * context;
    return 2 * (rows * (b->work.layer_weights + attention) +
                logit_rows * b->work.head_weights);
}

static void print_shares(const struct bench *b, double tokens, double seconds,
                         double bytes, double flops)
{
    printf(
        "%8.1f tokens/s  %5.1f GB/s %3.0f %% of bandwidth  %6.1f Gflop/s %3.0f %% of "
        "peak\n",
        tokens / seconds, bytes / seconds * 1e-9,
        100 * bytes / seconds / b->machine.bytes, flops / seconds * 1e-9,
        100 * flops / seconds / b->machine.flops);
}

static void prefill(struct bench *b, uint32_t seqs, uint32_t tokens)
{
    double times[5];
    for (uint32_t n = 0; n < ARRAY_LEN(times); n++) {
        for (uint32_t i = 0; i < seqs; i++)
            step_add(&b->f, &b->table[i], b->ids[i], 0, tokens, tokens - 1);
        double from = machine_now();
        step_run(&b->f);
        times[n] = machine_now() - from;
        release_all(b);
    }
    printf("  prefill %u x %-4u            ", seqs, tokens);
    print_shares(b, (double)seqs * tokens, median(times, ARRAY_LEN(times)),
                 b->work.layer_bytes + b->work.head_bytes,
                 flops_of(b, (double)seqs * tokens, seqs, tokens / 2.0));
}

/* Blocks of the context are taken but not computed: what is in them changes no time, as
 * long as it lies in memory of its own. */
static void decode(struct bench *b, uint32_t seqs, uint32_t context)
{
    double times[REPEATS];
    int32_t *ids = calloc(context + REPEATS, sizeof *ids);
    for (uint32_t i = 0; i < seqs; i++)
        fixture_require(kv_table_extend(&b->f.kv, &b->table[i], 0, context) == 0,
                        "a context", "the pool is too small");
    for (uint32_t n = 0; n < REPEATS; n++) {
        uint32_t pos = context + n;
        for (uint32_t i = 0; i < seqs; i++)
            step_add(&b->f, &b->table[i], ids, pos, pos + 1, pos);
        double from = machine_now();
        step_run(&b->f);
        times[n] = machine_now() - from;
    }
    release_all(b);
    free(ids);

    double seen = context + REPEATS / 2.0;
    double kv = (double)kv_token_bytes(&b->f.kv.mem.shape) * seqs * seen;
    printf("  decode  batch %u, context %-4u", seqs, context);
    print_shares(b, seqs, median(times, REPEATS),
                 b->work.layer_bytes + b->work.head_bytes + kv,
                 flops_of(b, seqs, seqs, seen));
}

static void run(const char *dir, uint32_t threads, enum weight_format format)
{
    static struct bench b;
    struct fixture_options o = {dir,      NULL,     threads, DTYPE_F16,
                                MAX_ROWS, N_BLOCKS, format};
    fixture_require(fixture_open(&b.f, &o), dir, "no backend");
    b.machine = machine_measure(threads);
    b.work = work_of(&b.f.model.weights);
    memset(b.f.kv.mem.base, 0x11, kv_block_bytes(&b.f.kv.mem.shape) * N_BLOCKS);
    for (uint32_t i = 0; i < MAX_SEQS; i++) {
        b.table[i] = table_open(N_BLOCKS);
        for (int32_t k = 0; k < MAX_ROWS; k++)
            b.ids[i][k] = (k * 31 + (int32_t)i * 7) % (int32_t)b.f.model.config.vocab;
    }
    printf("%s: %s weights, %s KV, read %.1f GB/s, peak %.1f Gflop/s\n",
           backend_describe(b.f.backend), weight_format_name(format),
           dtype_name(DTYPE_F16), b.machine.bytes * 1e-9, b.machine.flops * 1e-9);
    prefill(&b, 1, 512);
    prefill(&b, 8, 64);
    decode(&b, 1, 0);
    decode(&b, 8, 0);
    decode(&b, 1, 1024);
    decode(&b, 8, 1024);
    decode(&b, 1, 4096);
    for (uint32_t i = 0; i < MAX_SEQS; i++) free(b.table[i].blocks);
    fixture_close(&b.f);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);  // each line as it is known, through a pipe too
    const char *dir = argc > 1 ? argv[1] : "models/smollm2-135m-instruct";
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (access(path, R_OK) != 0) {
        printf("bench_model: skipped, %s is not there (make model)\n", dir);
        return 0;
    }
    printf("bench_model: %s\n", dir);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        run(dir, threads, WEIGHT_OWN);
        run(dir, threads, WEIGHT_Q8);
        run(dir, threads, WEIGHT_Q4);
    }
    return 0;
}
