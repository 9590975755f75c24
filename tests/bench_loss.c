/* bench_loss.c [DIR [TEXT]] - what rounded inputs and int8 and int4 weights lose, on a text
 * of our own.
 *
 * One model as its files have it, one on the path that rounds the inputs of products with
 * bf16 weights (where this CPU has it), one in q8 and one in q4 read the same text
 * (tests/golden/prose.txt, or the file TEXT), the first 2,048 tokens of it.  Of each token's
 * logits are printed: the perplexity of the next token, the root mean square and the largest
 * difference from the model as its files have it, the mean Kullback-Leibler divergence from
 * it in nats, and how often the likeliest token is the same.
 */
#include "kernels/file.h"
#include "tests/bench_args.h"
#include "tests/model/fixture.h"
#include "tokenizer/tokenizer.h"

#include <math.h>

#define ROWS      64
#define MOST      2048
#define N_BLOCKS  (MOST / KV_BLOCK_TOKENS + 1)
#define MOST_TEXT ((size_t)64 << 20)  // bytes

static const struct {
    const char *path;  // the best, where this CPU has not that
    enum weight_format format;
} variants[] = {{"avx512", WEIGHT_OWN},
                {"avx512bf16", WEIGHT_OWN},
                {"avx512", WEIGHT_Q8},
                {"avx512", WEIGHT_Q4}};
#define N ARRAY_LEN(variants)

struct loss {
    double nats, square, largest, divergence;
    uint32_t tokens, same;
};

struct reader {
    struct fixture f;
    struct kv_table table;
    struct loss loss;
};

static double log_sum_exp(const float *logits, uint32_t n)
{
    double top = logits[argmax(logits, n)], sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += exp(logits[i] - top);
    return top + log(sum);
}

/* One token: `own` are the logits of the first model. */
static void compare(struct loss *l, const float *own, const float *logits, uint32_t n,
                    int32_t next)
{
    double z = log_sum_exp(logits, n), z_own = log_sum_exp(own, n), square = 0;
    for (uint32_t i = 0; i < n; i++) {
        double off = (double)logits[i] - own[i], p = exp(own[i] - z_own);
        square += off * off;
        l->largest = fmax(l->largest, fabs(off));
        l->divergence += p * ((own[i] - z_own) - (logits[i] - z));
    }
    l->square += square / n;
    l->nats += z - logits[next];
    l->same += argmax(own, n) == argmax(logits, n);
    l->tokens++;
}

static void open_variant(struct reader *r, const char *dir, size_t i)
{
    struct fixture_options o = {dir,      variants[i].path,  0, DTYPE_F16, ROWS,
                                N_BLOCKS, variants[i].format};
    if (!fixture_open(&r->f, &o)) {
        o.cpu_path = NULL;
        fixture_require(fixture_open(&r->f, &o), dir, "no backend");
    }
    r->table = table_open(N_BLOCKS);
}

static int32_t *ids_of(const char *dir, const char *path, uint32_t *n)
{
    struct err err;
    struct tokenizer *t;
    struct token_list list = {0};
    size_t bytes;
    char *text;
    fixture_require(file_load(path, MOST_TEXT, &text, &bytes, &err) == 0, "bench_loss",
                    err.msg);
    fixture_require(tokenizer_open_dir(&t, dir, &err) == 0, dir, err.msg);
    fixture_require(tokenizer_encode(t, text, bytes, NULL, 0, 0, &list, &err) == 0,
                    path, err.msg);
    tokenizer_close(t);
    free(text);
    *n = list.n < MOST ? (uint32_t)list.n : MOST;
    fixture_require(*n > 1, path, "is too short");
    return list.ids;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    bench_args(
        argc, argv, 2,
        "bench_loss [DIR [TEXT]]\nWhat rounded inputs and int8 and int4 weights of the "
        "model in DIR lose on the file TEXT.");
    const char *dir = bench_model_dir("bench_loss", argc > 1 ? argv[1] : NULL);
    const char *text = argc > 2 ? argv[2] : "tests/golden/prose.txt";
    if (!dir) return 0;
    uint32_t n;
    int32_t *ids = ids_of(dir, text, &n);
    static struct reader r[N];
    for (size_t i = 0; i < N; i++) open_variant(&r[i], dir, i);
    uint32_t vocab = r[0].f.model.config.vocab;
    for (uint32_t at = 0; at + 1 < n; at += ROWS) {
        uint32_t to = at + ROWS < n - 1 ? at + ROWS : n - 1;
        const float *logits[N];
        for (size_t i = 0; i < N; i++) {
            step_add(&r[i].f, &r[i].table, ids, at, to, at);
            logits[i] = step_run(&r[i].f);
        }
        for (uint32_t k = at; k < to; k++) {
            size_t row = (size_t)(k - at) * vocab;
            for (size_t i = 0; i < N; i++)
                compare(&r[i].loss, logits[0] + row, logits[i] + row, vocab,
                        ids[k + 1]);
        }
    }

    printf("bench_loss: %s, %u tokens of %s\n", dir, n, text);
    for (size_t i = 0; i < N; i++) {
        const struct loss *l = &r[i].loss;
        printf("  %-4s on %-27s %6.1f MB  perplexity %.3f (%+.2f %%)  logits off by "
               "%.4f rms, %.3f "
               "at most  divergence %.5f  same choice %.1f %%\n",
               weight_format_name(variants[i].format), backend_describe(r[i].f.backend),
               (double)r[i].f.model.weights.bytes * 1e-6, exp(l->nats / l->tokens),
               100 * (exp((l->nats - r[0].loss.nats) / l->tokens) - 1),
               sqrt(l->square / l->tokens), l->largest, l->divergence / l->tokens,
               100.0 * l->same / l->tokens);
        free(r[i].table.blocks);
        fixture_close(&r[i].f);
    }
    free(ids);
    return 0;
}
