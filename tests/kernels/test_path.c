/* test_path.c - the inner kernels of each instruction set, one by one. */
#include "kernels/cpu/path.h"
#include "tests/kernels/fixture.h"

static const struct cpu_path *path_named(const char *name)
{
    const struct cpu_path *path = NULL;
    return cpu_path_choose(&path, name, NULL) == 0 ? path : NULL;
}

#define FOR_EACH_PATH(path)                                                            \
    for (size_t p_ = 0; p_ < ARRAY_LEN(paths); p_++)                                   \
        for (const struct cpu_path *path = path_named(paths[p_]); path; path = NULL)

static void an_unknown_path_is_refused_by_name(void **state)
{
    (void)state;
    const struct cpu_path *path = NULL;
    struct err err;
    assert_int_equal(cpu_path_choose(&path, "avx3", &err), -ENODEV);
    assert_non_null(strstr(err.msg, "avx3"));
    assert_null(path);
    assert_int_equal(cpu_path_choose(&path, NULL, &err), 0);
    assert_non_null(path);
}

/* The other tests pass over a path that this CPU has not, and take the same code emulated;
 * here it is said. */
static void every_path_is_tested_on_its_own_instructions(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        const struct cpu_path *path;
        struct err err;
        if (cpu_path_choose(&path, paths[i], &err) == 0) continue;
        print_message("skipped: %s\n", err.msg);
        skip();
    }
}

static void widening_is_exact_for_every_value(void **state)
{
    (void)state;
    uint16_t all[65536 + 5];
    static float got[65536 + 5], want[65536 + 5];
    for (uint32_t i = 0; i < ARRAY_LEN(all); i++) all[i] = (uint16_t)i;
    FOR_EACH_PATH(path)
    {
        for (size_t t = 1; t < ARRAY_LEN(dtypes); t++) {
            path->widen(got, all, dtypes[t], ARRAY_LEN(all));
            dtype_to_f32(want, all, dtypes[t], ARRAY_LEN(all));
            assert_memory_equal(got, want, sizeof got);
        }
    }
}

/* Every f16 and bf16, half-way points between them, and numbers beyond f16. */
static void narrowing_rounds_as_dtype_does_and_f16_saturates(void **state)
{
    (void)state;
    enum { N = 0x7c00 };
    static float v[2 * N + 3];
    static uint16_t got[2 * N + 3], want[2 * N + 3];
    FOR_EACH_PATH(path)
    {
        for (size_t t = 1; t < ARRAY_LEN(dtypes); t++) {
            for (uint32_t i = 0; i + 1 < N; i++) {
                uint16_t pair[2] = {(uint16_t)i, (uint16_t)(i + 1)};
                float low, high;
                dtype_to_f32(&low, &pair[0], dtypes[t], 1);
                dtype_to_f32(&high, &pair[1], dtypes[t], 1);
                v[2 * i] = i % 2 ? low : -low;
                v[2 * i + 1] = isinf(high) ? low : low / 2 + high / 2;
            }
            size_t n = 2 * (N - 1);
            path->narrow(got, v, dtypes[t], n);
            dtype_from_f32(want, v, dtypes[t], n);
            assert_memory_equal(got, want, n * sizeof *got);
        }
        float far[9] = {65504,  65519.99f, 65520, -65520, 1e30f,
                        -1e30f, INFINITY,  -3,    0};
        const uint16_t near[9] = {0x7bff, 0x7bff, 0x7bff, 0xfbff, 0x7bff,
                                  0xfbff, 0x7bff, 0xc200, 0};
        path->narrow(got, far, DTYPE_F16, 9);
        assert_memory_equal(got, near, sizeof near);
        far[1] = far[8] = NAN;
        for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
            float back[9];
            path->narrow(got, far, dtypes[t], 9);
            dtype_to_f32(back, got, dtypes[t], 9);
            assert_true(isnan(back[1]) && isnan(back[8]) && back[7] == -3);
        }
    }
}

/* With a maximum of 0 before and no score above it, softmax leaves exp(score). */
static void exp_is_within_two_units_in_the_last_place(void **state)
{
    (void)state;
    FOR_EACH_PATH(path)
    {
        double worst = 0;
        for (float x = 0; x > -87.29f; x -= 0.0123f) {
            float s[16], m = 0, l = 0;
            for (uint32_t i = 0; i < 16; i++) s[i] = x - (float)i * 0.0007f;
            float in[16];
            memcpy(in, s, sizeof in);
            assert_true(path->softmax(s, 16, 0, 16, &m, &l) == 1.0f);
            for (uint32_t i = 0; i < 16 && in[i] > -87.3f; i++) {
                double want = exp(in[i]);
                double ulp = nextafterf((float)want, INFINITY) - (float)want;
                worst = fmax(worst, fabs(s[i] - want) / ulp);
            }
        }
        if (worst > 2) fail_msg("%s: off by %.2f units", path->name, worst);
        float s[16] = {-88, -200, -1e30f, -INFINITY, 0}, m = 0, l = 0;
        path->softmax(s, 16, 0, 16, &m, &l);
        assert_true(s[0] == 0 && s[1] == 0 && s[2] == 0 && s[3] == 0 && s[4] == 1);
    }
}

static void softmax_counts_its_span_and_rescales_what_was(void **state)
{
    (void)state;
    FOR_EACH_PATH(path)
    {
        for (uint32_t n = 16; n <= 64; n += 48) {
            for (uint32_t from = 0; from < n; from++) {
                for (uint32_t to = from + 1; to <= n; to++) {
                    float s[64], in[64], m = 0.5f, l = 3;
                    uint64_t seed = from * 67 + to;
                    double top = 0.5, sum = 0;
                    for (uint32_t i = 0; i < n; i++) in[i] = 4 * random_unit(&seed);
                    memcpy(s, in, sizeof s);
                    for (uint32_t i = 0; i < n; i++) {
                        if (i < from || i >= to) s[i] = NAN;  // must not matter
                        if (i >= from && i < to) top = fmax(top, in[i]);
                    }
                    float scale = path->softmax(s, n, from, to, &m, &l);
                    assert_true(m == (float)top);
                    assert_float_equal(scale, (float)exp(0.5 - top), 1e-6);
                    for (uint32_t i = 0; i < n; i++) {
                        double want = i >= from && i < to ? exp(in[i] - top) : 0;
                        assert_float_equal(s[i], (float)want, 1e-6);
                        sum += want;
                    }
                    assert_float_equal(l, (float)(3 * exp(0.5 - top) + sum), 1e-5 * n);
                }
            }
        }
        float s[16] = {7}, m = -INFINITY, l = 0;  // an empty start
        assert_true(path->softmax(s, 16, 0, 1, &m, &l) == 0);
        assert_true(m == 7 && l == 1 && s[0] == 1 && s[1] == 0);
    }
}

/* Panels that lie anywhere, side by side in y, in one piece and in three. */
enum { STRIP_K = 39, STRIP_NEXT = STRIP_K * PANEL + 32 };

static void check_strip(const struct cpu_path *path, enum dtype t, uint32_t rows,
                        uint32_t panels, enum tile_sums sums, const float *x,
                        const char *w)
{
    const size_t element = dtype_bytes(t);
    for (uint32_t pieces = 1; pieces <= 3; pieces += 2) {
        const void *each[3 * STRIP_PANELS];
        struct ahead nowhere[3];
        float got[TILE_ROWS * 64], want[TILE_ROWS * 64];
        uint32_t k = STRIP_K / pieces;
        for (size_t i = 0; i < ARRAY_LEN(got); i++) got[i] = want[i] = (float)i;
        for (uint32_t p = 0; p < panels; p++) {
            const char *panel = w + p * STRIP_NEXT * element;
            path->tile[t](rows, STRIP_K, x, STRIP_K, panel, PANEL,
                          want + (size_t)p * PANEL, 64, sums);
            for (uint32_t n = 0; n < pieces; n++) {
                each[n * panels + p] = panel + (size_t)n * k * PANEL * element;
                nowhere[n] = (struct ahead){{w, NULL, (const char *)x, panel}, 640};
            }
        }
        path->strip[t](rows, panels, pieces, k, x, STRIP_K, each, PANEL, got, 64, sums,
                       nowhere);
        assert_memory_equal(got, want, sizeof got);
    }
}

static void a_strip_has_the_bits_of_its_tiles(void **state)
{
    (void)state;
    FOR_EACH_PATH(path)
    {
        for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
            float exact[STRIP_PANELS * STRIP_NEXT], x[TILE_ROWS * STRIP_K];
            void *w = random_typed(t, STRIP_PANELS * STRIP_NEXT, dtypes[t], exact);
            uint64_t seed = 11;
            for (size_t i = 0; i < ARRAY_LEN(x); i++) x[i] = random_unit(&seed);
            for (uint32_t rows = 1; rows <= path->tile_rows; rows++) {
                for (uint32_t panels = strip_panels(path, rows); panels; panels /= 2) {
                    check_strip(path, dtypes[t], rows, panels, SUMS_SET, x, w);
                    check_strip(path, dtypes[t], rows, panels, SUMS_FROM, x, w);
                }
            }
            free(w);
        }
    }
}

/* Sums that start from y are those of one longer tile. */
static void a_tile_in_two_parts_has_the_bits_of_one(void **state)
{
    (void)state;
    enum { K = 45, LDY = 19 };
    float exact[K * PANEL], *x = random_floats(1, TILE_ROWS * K);
    FOR_EACH_PATH(path)
    {
        for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
            char *w = random_typed(t, K * PANEL, dtypes[t], exact);
            for (uint32_t cut = 1; cut < K; cut += 11) {
                float whole[TILE_ROWS * LDY] = {0}, parts[TILE_ROWS * LDY] = {0};
                uint32_t rows = path->tile_rows;
                tile_fn *tile = path->tile[dtypes[t]];
                tile(rows, K, x, K, w, PANEL, whole, LDY, SUMS_SET);
                tile(rows, cut, x, K, w, PANEL, parts, LDY, SUMS_SET);
                tile(rows, K - cut, x + cut, K,
                     w + (size_t)cut * PANEL * dtype_bytes(dtypes[t]), PANEL, parts,
                     LDY, SUMS_FROM);
                assert_memory_equal(whole, parts, sizeof whole);
            }
            free(w);
        }
    }
    free(x);
}

/* A tile of any height at any stride is the same rows as one at a time. */
static void a_tile_has_the_bits_of_its_rows(void **state)
{
    (void)state;
    enum { K = 45, LDW = 24, LDX = 50, LDY = 19 };
    float exact[K * LDW];
    float *x = random_floats(1, TILE_ROWS * LDX),
          *y0 = random_floats(2, TILE_ROWS * LDY);
    FOR_EACH_PATH(path)
    {
        for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
            void *w = random_typed(t, K * LDW, dtypes[t], exact);
            for (uint32_t rows = 1; rows <= path->tile_rows; rows++) {
                for (enum tile_sums s = SUMS_SET; s <= SUMS_FROM; s++) {
                    float together[TILE_ROWS * LDY], alone[TILE_ROWS * LDY];
                    float from_f32[TILE_ROWS * LDY];
                    memcpy(together, y0, sizeof together);
                    memcpy(alone, y0, sizeof alone);
                    memcpy(from_f32, y0, sizeof from_f32);
                    path->tile[dtypes[t]](rows, K, x, LDX, w, LDW, together, LDY, s);
                    path->tile[DTYPE_F32](rows, K, x, LDX, exact, LDW, from_f32, LDY,
                                          s);
                    for (uint32_t r = 0; r < rows; r++) {
                        path->tile[dtypes[t]](1, K, x + r * LDX, LDX, w, LDW,
                                              alone + r * LDY, LDY, s);
                    }
                    assert_memory_equal(together, alone, sizeof alone);
                    assert_memory_equal(together, from_f32, sizeof alone);
                }
            }
            free(w);
        }
    }
    free(x);
    free(y0);
}

/* Weights (K, 16) as pairs; the last pair of an odd K has its second weights. */
static void pack_pairs(uint16_t *pairs, const uint16_t *w, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++) {
        for (uint32_t c = 0; c < PANEL; c++)
            pairs[(i / 2 * PANEL + c) * 2 + i % 2] = w[i * PANEL + c];
    }
}

/* What follows an x of odd length is NaN, and must not matter. */
static void pairs_have_the_bits_of_one_input_after_the_other(void **state)
{
    (void)state;
    enum { K = 61, LDX = 67, LDY = 19 };
    float exact[K * PANEL], *x = random_floats(3, TILE_ROWS * LDX);
    uint16_t *w = random_typed(4, K * PANEL, DTYPE_BF16, exact);
    uint16_t pairs[(K + 1) * PANEL];
    pack_pairs(pairs, w, K);
    for (uint32_t c = 0; c < PANEL; c++) pairs[(K / 2 * PANEL + c) * 2 + 1] = 0;
    for (uint32_t r = 0; r < TILE_ROWS; r++) x[r * LDX + K] = NAN;
    FOR_EACH_PATH(path)
    {
        for (uint32_t rows = 1; rows <= path->tile_rows; rows++) {
            for (uint32_t k = 1; k <= K; k += k < 4 ? 1 : 19) {
                float got[TILE_ROWS * LDY], want[TILE_ROWS * LDY];
                for (uint32_t i = 0; i < TILE_ROWS * LDY; i++)
                    got[i] = want[i] = (float)i;
                path->tile[TILE_PAIRS](rows, k, x, LDX, pairs, PANEL, got, LDY,
                                       k > 3 ? SUMS_ADD : SUMS_SET);
                path->tile[DTYPE_F32](rows, k, x, LDX, exact, PANEL, want, LDY,
                                      k > 3 ? SUMS_ADD : SUMS_SET);
                assert_memory_equal(got, want, sizeof got);
            }
        }
    }
    free(x);
    free(w);
}

/* a b + c in one rounding, of and to what has no denormals. */
static float flushed(float v)
{
    return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}

static float multiply_add(uint16_t a, uint16_t b, float c)
{
    return flushed(
        fmaf(flushed(dtype_bf16_to_f32(a)), flushed(dtype_bf16_to_f32(b)), flushed(c)));
}

/* All bits of bf16 but infinity and NaN; small sizes now and then. */
static uint16_t random_bf16(uint64_t *seed)
{
    float v = random_unit(seed);
    uint16_t h = dtype_f32_to_bf16(v);
    return fabsf(v) < 0.05f ? (uint16_t)(h & 0x80ff) : h;
}

/* A pair's second product goes first; denormals count as zero. */
static void check_rounded(const struct cpu_path *path, uint32_t rows, uint32_t panels,
                          uint32_t pairs, bool add)
{
    enum { PAIRS = 33, LDX = 2 * PAIRS + 6, LDY = 83, NEXT = PAIRS * PANEL * 2 + 32 };
    uint16_t x[TILE_ROWS * LDX], w[ROUNDED_PANELS * NEXT];
    float got[TILE_ROWS * LDY], want[TILE_ROWS * LDY];
    uint64_t seed = 5;
    assert_true(pairs <= PAIRS);
    for (size_t i = 0; i < ARRAY_LEN(x); i++) x[i] = random_bf16(&seed);
    for (size_t i = 0; i < ARRAY_LEN(w); i++) w[i] = random_bf16(&seed);
    for (size_t i = 0; i < ARRAY_LEN(got); i++) got[i] = want[i] = (float)i;

    for (uint32_t i = 0; i < rows * panels * PANEL; i++) {
        uint32_t row = i / (panels * PANEL), out = i % (panels * PANEL);
        const uint16_t *from = x + (size_t)row * LDX,
                       *by = w + (size_t)out / PANEL * NEXT + (size_t)out % PANEL * 2;
        float sum = 0, *to = want + (size_t)row * LDY + out;
        for (uint32_t p = 0; p < pairs; p++, from += 2, by += 2 * PANEL) {
            sum = multiply_add(from[1], by[1], sum);
            sum = multiply_add(from[0], by[0], sum);
        }
        *to = add ? *to + sum : sum;
    }
    path->tile_rounded(rows, panels, pairs, x, LDX, w, NEXT * sizeof *w, got, LDY, add);
    assert_memory_equal(got, want, sizeof got);
}

static void rounded_tiles_are_multiply_adds_in_order(void **state)
{
    (void)state;
    FOR_EACH_PATH(path)
    {
        if (!path->tile_rounded) continue;
        for (uint32_t pairs = 1; pairs <= 33; pairs += 8) {
            for (uint32_t rows = 1; rows <= path->tile_rows; rows++)
                check_rounded(path, rows, 1, pairs, pairs > 8);
            for (uint32_t rows = 1; rows <= ROUNDED_ROWS; rows++)
                check_rounded(path, rows, ROUNDED_PANELS, pairs, pairs > 8);
        }
    }
}

static void rounded_tiles_hand_on_infinity_and_nan(void **state)
{
    (void)state;
    enum { INF = 0x7f80, QUIET_NAN = 0x7fc0, ONE = 0x3f80 };
    FOR_EACH_PATH(path)
    {
        if (!path->tile_rounded) continue;
        uint16_t x[2] = {ONE, ONE},
                 w[2 * PANEL] = {ONE, INF, INF, INF | 0x8000, QUIET_NAN};
        float y[PANEL];
        path->tile_rounded(1, 1, 1, x, 2, w, 0, y, PANEL, false);
        assert_true(isinf(y[0]) && isnan(y[1]) && isnan(y[2]) && y[3] == 0);
    }
}

/* The same element at every place of a vector and in its tail. */
static void an_element_has_the_same_bits_wherever_it_stands(void **state)
{
    (void)state;
    FOR_EACH_PATH(path)
    {
        float g[40], u[40], y[40], first = 0;
        for (uint32_t n = 1; n <= 40; n++) {
            for (uint32_t i = 0; i < 40; i++) g[i] = -1.37f, u[i] = 0.77f, y[i] = 5;
            path->silu_mul(y, g, u, n);
            if (n == 1) first = y[0];
            for (uint32_t i = 0; i < 40; i++) assert_true(y[i] == (i < n ? first : 5));
        }
        for (uint32_t half = 1; half <= 20; half++) {
            float x[41], cos[20], sin[20];
            for (uint32_t i = 0; i < 41; i++) x[i] = i < half ? 0.3f : 0.9f;
            for (uint32_t i = 0; i < 20; i++) cos[i] = 0.6f, sin[i] = 0.8f;
            path->rope(x, cos, sin, half);
            for (uint32_t i = 0; i < 41; i++) {
                float want = i < half       ? 0.3f * 0.6f - 0.9f * 0.8f
                             : i < 2 * half ? 0.9f * 0.6f + 0.3f * 0.8f
                                            : 0.9f;
                assert_true(x[i] == want);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_path_is_refused_by_name),
        cmocka_unit_test(every_path_is_tested_on_its_own_instructions),
        cmocka_unit_test(widening_is_exact_for_every_value),
        cmocka_unit_test(narrowing_rounds_as_dtype_does_and_f16_saturates),
        cmocka_unit_test(exp_is_within_two_units_in_the_last_place),
        cmocka_unit_test(softmax_counts_its_span_and_rescales_what_was),
        cmocka_unit_test(a_strip_has_the_bits_of_its_tiles),
        cmocka_unit_test(a_tile_has_the_bits_of_its_rows),
        cmocka_unit_test(a_tile_in_two_parts_has_the_bits_of_one),
        cmocka_unit_test(pairs_have_the_bits_of_one_input_after_the_other),
        cmocka_unit_test(rounded_tiles_are_multiply_adds_in_order),
        cmocka_unit_test(rounded_tiles_hand_on_infinity_and_nan),
        cmocka_unit_test(an_element_has_the_same_bits_wherever_it_stands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
