/* bench_model.c [DIR [THREADS FORMAT CASE...]] - prefill and decode of a model beside the
 * machine's limits.  A case is decode:SEQUENCES:CONTEXT or prefill:SEQUENCES:TOKENS; with some,
 * these alone are measured and printed as "CASE tokens/s percent percent", for a script: of the
 * read bandwidth and of the peak.
 *
 * A step must read every weight and all the KV of its batch once, and multiply every
 * weight with every row: both are printed over the step's time, against the read bandwidth
 * and the peak of multiply-adds measured just before: of f32, or where the inputs of
 * products with bf16 weights are rounded, of bf16 pairs.  One row is bound by the first, a
 * prompt by the second, a batch in between by whichever share is larger.  Times are
 * medians.
 */
#include "tests/bench_args.h"
#include "tests/machine.h"
#include "tests/model/fixture.h"

#define MAX_ROWS   512
#define N_BLOCKS   576  // 8 sequences of 1,024 tokens, or one of 8,192, and some more
#define REPEATS    24
#define MAX_SEQS   8
#define MAX_TOKENS 8448

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

/* One measurement: sequences and their context, or the tokens of each of their prompts. */
struct measured {
    double rate, bytes, flops;  // tokens, bytes and flops in a second
};

struct bench {
    struct fixture f;
    struct work work;
    struct machine machine;
    double
        peak;  // flops in a second of the multiply-adds that its products are made of
    struct kv_table table[MAX_SEQS];
    int32_t ids[MAX_SEQS][MAX_TOKENS];
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

static void print_shares(const struct bench *b, struct measured m)
{
    printf(
        "%8.1f tokens/s  %5.1f GB/s %3.0f %% of bandwidth  %6.1f Gflop/s %3.0f %% of "
        "peak\n",
        m.rate, m.bytes * 1e-9, 100 * m.bytes / b->machine.bytes, m.flops * 1e-9,
        100 * m.flops / b->peak);
}

/* A prompt of more than a step's rows takes several steps, as in the server. */
static struct measured prefill(struct bench *b, uint32_t seqs, uint32_t tokens)
{
    double times[5];
    uint32_t repeats = tokens > 2048 ? 1 : ARRAY_LEN(times), chunk = MAX_ROWS / seqs;
    for (uint32_t n = 0; n < repeats; n++) {
        double from = machine_now();
        for (uint32_t at = 0; at < tokens; at += chunk) {
            uint32_t to = at + chunk < tokens ? at + chunk : tokens;
            for (uint32_t i = 0; i < seqs; i++)
                step_add(&b->f, &b->table[i], b->ids[i], at, to,
                         to == tokens ? to - 1 : to);
            step_run(&b->f);
        }
        times[n] = machine_now() - from;
        release_all(b);
    }
    double s = machine_median(times, repeats);
    uint32_t steps = (tokens + chunk - 1) / chunk;
    return (struct measured){(double)seqs * tokens / s,
                             steps * (b->work.layer_bytes + b->work.head_bytes) / s,
                             flops_of(b, (double)seqs * tokens, seqs, tokens / 2.0) /
                                 s};
}

/* Blocks of the context are taken but not computed: what is in them changes no time, as
 * long as it lies in memory of its own. */
static struct measured decode(struct bench *b, uint32_t seqs, uint32_t context)
{
    double times[REPEATS];
    for (uint32_t i = 0; i < seqs; i++)
        fixture_require(kv_table_extend(&b->f.kv, &b->table[i], 0, context) == 0,
                        "a context", "the pool is too small");
    for (uint32_t n = 0; n < REPEATS; n++) {
        uint32_t pos = context + n;
        for (uint32_t i = 0; i < seqs; i++)
            step_add(&b->f, &b->table[i], b->ids[i], pos, pos + 1, pos);
        double from = machine_now();
        step_run(&b->f);
        times[n] = machine_now() - from;
    }
    release_all(b);

    double seen = context + REPEATS / 2.0, s = machine_median(times, REPEATS);
    double kv = (double)kv_token_bytes(&b->f.kv.mem.shape) * seqs * seen;
    return (struct measured){seqs / s,
                             (b->work.layer_bytes + b->work.head_bytes + kv) / s,
                             flops_of(b, seqs, seqs, seen) / s};
}

static void open_bench(struct bench *b, const char *dir, uint32_t threads,
                       enum weight_format format)
{
    struct fixture_options o = {dir,      NULL,     threads, DTYPE_F16,
                                MAX_ROWS, N_BLOCKS, format};
    fixture_require(fixture_open(&b->f, &o), dir, "no backend");
    b->work = work_of(&b->f.model.weights);
    memset(b->f.kv.mem.base, 0x11, kv_block_bytes(&b->f.kv.mem.shape) * N_BLOCKS);
    for (uint32_t i = 0; i < MAX_SEQS; i++) {
        b->table[i] = table_open(N_BLOCKS);
        for (int32_t k = 0; k < MAX_TOKENS; k++)
            b->ids[i][k] = (k * 31 + (int32_t)i * 7) % (int32_t)b->f.model.config.vocab;
    }
}

/* Answers whether products are made of bf16 pairs. */
static bool measure_machine(struct bench *b, uint32_t threads)
{
    b->machine = machine_measure(threads);
    bool pairs = b->machine.pairs > 0 && backend_rounds(b->f.backend, DTYPE_BF16) &&
                 b->f.model.weights.layer[0].qkv.format == WEIGHT_OWN &&
                 b->f.model.weights.layer[0].qkv.type == DTYPE_BF16;
    b->peak = pairs ? b->machine.pairs : b->machine.flops;
    return pairs;
}

static void close_bench(struct bench *b)
{
    for (uint32_t i = 0; i < MAX_SEQS; i++) free(b->table[i].blocks);
    fixture_close(&b->f);
}

/* "decode:8:1024"; false where it is no case. */
static bool run_case(struct bench *b, const char *text)
{
    char what[16];
    unsigned seqs, tokens;
    if (sscanf(text, "%15[a-z]:%u:%u", what, &seqs, &tokens) != 3) return false;
    bool decodes = strcmp(what, "decode") == 0;
    if ((!decodes && strcmp(what, "prefill") != 0) || seqs == 0 || seqs > MAX_SEQS ||
        (uint64_t)seqs * (tokens + REPEATS + KV_BLOCK_TOKENS) > MAX_TOKENS + 512 ||
        (!decodes && tokens == 0))
        return false;
    struct measured m = decodes ? decode(b, seqs, tokens) : prefill(b, seqs, tokens);
    printf("%s %.2f %.0f %.0f\n", text, m.rate, 100 * m.bytes / b->machine.bytes,
           100 * m.flops / b->peak);
    return true;
}

static void run(const char *dir, uint32_t threads, enum weight_format format)
{
    static struct bench b;
    static const struct {
        bool decodes;
        uint32_t seqs, tokens;
    } cases[] = {{false, 1, 512}, {false, 8, 64},  {true, 1, 0},   {true, 8, 0},
                 {true, 1, 1024}, {true, 8, 1024}, {true, 1, 4096}};
    open_bench(&b, dir, threads, format);
    bool pairs = measure_machine(&b, threads);
    printf("%s: %s weights, %s KV, read %.1f GB/s, peak of %s %.1f Gflop/s\n",
           backend_describe(b.f.backend), weight_format_name(format),
           dtype_name(DTYPE_F16), b.machine.bytes * 1e-9, pairs ? "bf16 pairs" : "f32",
           b.peak * 1e-9);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t seqs = cases[i].seqs, tokens = cases[i].tokens;
        printf(cases[i].decodes ? "  decode  batch %u, context %-4u"
                                : "  prefill %u x %-4u            ",
               seqs, tokens);
        print_shares(&b, cases[i].decodes ? decode(&b, seqs, tokens)
                                          : prefill(&b, seqs, tokens));
    }
    close_bench(&b);
}

static int run_cases(int argc, char **argv)
{
    static struct bench b;
    enum weight_format format;
    long threads = strtol(argv[2], NULL, 10);
    if (threads < 1 || threads > 64 || !weight_format_parse(argv[3], &format)) {
        fprintf(stderr, "bench_model: %s and %s are no threads and format\n", argv[2],
                argv[3]);
        return 2;
    }
    open_bench(&b, argv[1], (uint32_t)threads, format);
    measure_machine(&b, (uint32_t)threads);
    for (int i = 4; i < argc; i++) {
        if (run_case(&b, argv[i])) continue;
        fprintf(stderr, "bench_model: %s is no case\n", argv[i]);
        return 2;
    }
    close_bench(&b);
    return 0;
}

static const char usage[] =
    "bench_model [DIR [THREADS FORMAT CASE...]]\n"
    "Prefill and decode of the model in DIR beside the machine's limits. FORMAT is "
    "auto, "
    "bf16, q8 or q4,\nCASE is decode:SEQUENCES:CONTEXT or prefill:SEQUENCES:TOKENS.";

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);  // each line as it is known, through a pipe too
    bench_args(argc, argv, argc > 4 ? argc : 1, usage);
    const char *dir = bench_model_dir("bench_model", argc > 1 ? argv[1] : NULL);
    if (!dir) return 0;
    if (argc > 4) return run_cases(argc, argv);
    printf("bench_model: %s\n", dir);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        run(dir, threads, WEIGHT_OWN);
        run(dir, threads, WEIGHT_Q8);
        run(dir, threads, WEIGHT_Q4);
    }
    return 0;
}
