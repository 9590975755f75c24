/* test_emulated.c - the emulated paths (tests/emulated/) against the instructions themselves,
 * where this CPU has them: the same bits, or the other tests of them would prove nothing. */
#include "kernels/cpu/path.h"
#include "tests/kernels/fixture.h"

#define N 512

static const struct cpu_path *emulated_path, *native_path;

/* Floats of every kind: some of size 1, some of any exponent, some that are special. */
static void fill(float *v, size_t n, uint64_t seed)
{
    static const float special[] = {0,     -0.0f,  1e-40f, -1e-45f,  65519.99f,
                                    3e38f, 1e-30f, NAN,    INFINITY, -INFINITY};
    for (size_t i = 0; i < n; i++) {
        v[i] = random_unit(&seed);
        if (seed >> 40 & 1) v[i] = ldexpf(v[i], (int)(seed >> 48 & 255) - 127);
        if ((seed >> 56) % 31 == 0) v[i] = special[(seed >> 33) % ARRAY_LEN(special)];
    }
}

static void fill_finite(float *v, size_t n, uint64_t seed)
{
    fill(v, n, seed);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i])) v[i] = 0.5f;
}

/* A NaN is one whatever its sign and payload are. */
static void same(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        if (memcmp(got + i, want + i, sizeof *got) != 0)
            fail_msg("%s, element %zu: %a is not %a", native_path->name, i, got[i],
                     want[i]);
    }
}

static void tiles_and_strips(uint64_t seed)
{
    enum { K = 29, LDY = 64 };
    float x[TILE_ROWS * K], w[4 * K * PANEL];
    float tile[2][TILE_ROWS * LDY], strip[2][TILE_ROWS * LDY];
    uint16_t narrow[4 * K * PANEL];
    fill_finite(x, ARRAY_LEN(x), seed);
    fill_finite(w, ARRAY_LEN(w), seed + 1);
    for (size_t t = 0; t < ARRAY_LEN(dtypes); t++) {
        const void *from = t ? (const void *)narrow : w;
        if (t) dtype_from_f32(narrow, w, dtypes[t], ARRAY_LEN(w));
        const void *each[STRIP_PANELS];
        for (size_t p = 0; p < STRIP_PANELS; p++)
            each[p] = (const char *)from + p * K * PANEL * dtype_bytes(dtypes[t]);
        for (uint32_t rows = 1; rows <= native_path->tile_rows; rows++) {
            const uint32_t panels = strip_panels(native_path, rows);
            for (int p = 0; p < 2; p++) {
                const struct cpu_path *path = p ? native_path : emulated_path;
                fill_finite(tile[p], ARRAY_LEN(tile[p]), seed + 2);
                fill_finite(strip[p], ARRAY_LEN(strip[p]), seed + 3);
                path->tile[dtypes[t]](rows, K, x, K, from, PANEL, tile[p], LDY,
                                      (enum tile_sums)(rows % 3));
                path->strip[dtypes[t]](rows, panels, 1, K, x, K, each, PANEL, strip[p],
                                       LDY, rows % 2 ? SUMS_FROM : SUMS_SET,
                                       &(struct ahead){0});
            }
            same(tile[0], tile[1], ARRAY_LEN(tile[0]));
            same(strip[0], strip[1], ARRAY_LEN(strip[0]));
        }
    }
}

static void pairs(uint64_t seed)
{
    enum { PAIRS = 29, LDY = (2 + ROUNDED_PANELS) * PANEL };
    float v[ROUNDED_PANELS * 2 * PAIRS * PANEL], y[2][TILE_ROWS * LDY];
    uint16_t x[TILE_ROWS * 2 * PAIRS], w[ROUNDED_PANELS * 2 * PAIRS * PANEL];
    fill(v, ARRAY_LEN(v), seed);
    dtype_from_f32(w, v, DTYPE_BF16, ARRAY_LEN(w));
    fill(v, ARRAY_LEN(x), seed + 1);
    dtype_from_f32(x, v, DTYPE_BF16, ARRAY_LEN(x));
    for (uint32_t rows = 1; rows <= native_path->tile_rows; rows++) {
        for (int p = 0; p < 2; p++) {
            const struct cpu_path *path = p ? native_path : emulated_path;
            fill_finite(y[p], ARRAY_LEN(y[p]), seed + 2);
            path->tile[TILE_PAIRS](rows, 2 * PAIRS - rows % 2, v, PAIRS, w, 0, y[p],
                                   LDY, (enum tile_sums)(rows % 3));
            if (!path->tile_rounded) continue;
            path->tile_rounded(rows, 1, PAIRS, x, (size_t)2 * PAIRS, w, 0, y[p] + PANEL,
                               LDY, true);
            path->tile_rounded(rows, rows <= ROUNDED_ROWS ? ROUNDED_PANELS : 1, PAIRS,
                               x, (size_t)2 * PAIRS, w, sizeof w / ROUNDED_PANELS,
                               y[p] + 2 * PANEL, LDY, rows % 2);
        }
        same(y[0], y[1], ARRAY_LEN(y[0]));
    }
}

static void quantised(uint64_t seed)
{
    enum { GROUPS = 3, LDY = 3 * PANEL };
    static const enum weight_format formats[] = {WEIGHT_Q8, WEIGHT_Q4};
    struct rounded_block x[2][TILE_ROWS];
    float v[TILE_ROWS][QUANT_BLOCK], y[2][TILE_ROWS * LDY];
    fill(v[0], (size_t)TILE_ROWS * QUANT_BLOCK, seed);
    for (int f = 0; f < 2; f++) {
        char packed[GROUPS * sizeof(struct quant_q8)];
        struct quant_wide wide[2][GROUPS];
        for (int g = 0; g < GROUPS; g++) {
            float w[QUANT_PANEL][QUANT_GROUP];
            fill_finite(w[0], (size_t)QUANT_PANEL * QUANT_GROUP,
                        seed + 3 + (uint64_t)g);
            quant_pack(packed + (size_t)g * quant_group_bytes(formats[f]), formats[f],
                       w);
        }
        for (uint32_t rows = 1; rows <= native_path->quant_rows; rows++) {
            for (int p = 0; p < 2; p++) {
                const struct cpu_path *path = p ? native_path : emulated_path;
                memset(x[p], 0, sizeof x[p]);
                memset(wide[p], 0, sizeof wide[p]);
                for (uint32_t r = 0; r < rows; r++)
                    path->quant_inputs(&x[p][r], v[r], GROUPS * QUANT_GROUP - r);
                path->quant_widen(wide[p], packed, formats[f], GROUPS);
                fill_finite(y[p], ARRAY_LEN(y[p]), seed + 2);
                path->quant_tile[f ? QUANT_Q4 : QUANT_Q8](rows, GROUPS, x[p], 1, packed,
                                                          y[p], LDY, rows % 2);
                path->quant_tile[f ? QUANT_WIDE_Q4 : QUANT_WIDE_Q8](
                    rows, GROUPS, x[p], 1, wide[p], y[p], LDY, true);
                if (!path->quant_pair[f] || rows > QUANT_PAIR_ROWS) continue;
                struct quant_wide pair[2][QUANT_GROUPS] = {{{.low = {0}}}};
                for (uint32_t g = 0; g < GROUPS; g++)
                    pair[0][g] = pair[1][GROUPS - 1 - g] = wide[p][g];
                path->quant_pair[f](rows, GROUPS, x[p], 1, pair, y[p] + PANEL, LDY,
                                    rows % 2);
            }
            assert_memory_equal(wide[0], wide[1], sizeof wide[0]);
            for (uint32_t r = 0; r < rows; r++) {
                const size_t used = (GROUPS - 1) * QUANT_GROUP;
                assert_memory_equal(x[0][r].q, x[1][r].q, used * sizeof x[0][r].q[0]);
                same(x[0][r].scale, x[1][r].scale, GROUPS);
                same(x[0][r].sum, x[1][r].sum, GROUPS);
            }
            same(y[0], y[1], ARRAY_LEN(y[0]));
        }
    }
}

static void conversions(uint64_t seed)
{
    float v[N], wide[2][N];
    uint16_t narrow[2][N];
    fill(v, N, seed);
    for (size_t t = 1; t < ARRAY_LEN(dtypes); t++) {
        const uint32_t n = 1 + (uint32_t)(seed % N);
        memset(narrow, 0, sizeof narrow);
        memset(wide, 0, sizeof wide);
        emulated_path->narrow(narrow[0], v, dtypes[t], n);
        native_path->narrow(narrow[1], v, dtypes[t], n);
        emulated_path->widen(wide[0], narrow[0], dtypes[t], n);
        native_path->widen(wide[1], narrow[1], dtypes[t], n);
        same(wide[0], wide[1], N);
    }
}

static void rows(uint64_t seed)
{
    const uint32_t n = 1 + (uint32_t)(seed * 37 % (N / 2));
    float a[N], b[N], c[N], y[2][N], m[2] = {0.25f, 0.25f}, l[2] = {2, 2};
    float by[2] = {0};
    fill(a, N, seed);
    fill(b, N, seed + 1);
    fill(c, N, seed + 2);
    for (int i = 0; i < 6; i++) {
        for (int p = 0; p < 2; p++) {
            const struct cpu_path *path = p ? native_path : emulated_path;
            memcpy(y[p], a, sizeof a);
            switch (i) {
            case 0: path->rmsnorm(y[p], a, b, n, 1e-5f); break;
            case 1: path->add(y[p], b, n); break;
            case 2: path->silu_mul(y[p], a, b, n); break;
            case 3: path->rope(y[p], b, c, n); break;
            default:
                fill_finite(y[p], N, seed + 3);
                for (uint32_t k = 0; k < 64; k++) y[p][k] = fmodf(y[p][k], 90);
                by[p] = path->softmax(y[p], i == 4 ? 64 : 16, n % 16,
                                      n % 16 + (i == 4 ? 40 : 1), &m[p], &l[p]);
            }
        }
        same(y[0], y[1], N);
        same(m, m + 1, 1);
        same(l, l + 1, 1);
        same(by, by + 1, 1);
    }
}

static void compare(const char *name, const char *emulated)
{
    struct err err;
    if (cpu_path_choose(&native_path, name, &err) != 0) {
        print_message("skipped: %s\n", err.msg);
        skip();
    }
    assert_int_equal(cpu_path_choose(&emulated_path, emulated, &err), 0);
    assert_ptr_not_equal(emulated_path, native_path);
    for (uint64_t seed = 1; seed <= 60; seed++) {
        tiles_and_strips(seed);
        pairs(seed);
        quantised(seed);
        conversions(seed);
        rows(seed);
    }
}

static void emulated_avx2_has_the_bits_of_avx2(void **state)
{
    (void)state;
    compare("avx2", "emulated avx2");
}

static void emulated_avx512_has_the_bits_of_avx512(void **state)
{
    (void)state;
    compare("avx512", "emulated avx512");
}

static void emulated_avx512bf16_has_the_bits_of_avx512bf16(void **state)
{
    (void)state;
    compare("avx512bf16", "emulated avx512bf16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulated_avx2_has_the_bits_of_avx2),
        cmocka_unit_test(emulated_avx512_has_the_bits_of_avx512),
        cmocka_unit_test(emulated_avx512bf16_has_the_bits_of_avx512bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
