/* test_fingerprint.c - each part changed alone gives another fingerprint; nothing else does. */
#include "offload/fingerprint.h"
#include "tests/hex.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define HALF 4  // of the head

static const float inv_freq[HALF + 1] = {1.0f, 0.5f, 0.25f, 0.125f, 0.0625f};

/* `rest` fills what belongs to no field. */
static void base(struct fingerprint_parts *p, uint8_t rest)
{
    memset(p, rest, sizeof *p);
    memset(&p->weights, 1, sizeof p->weights);
    memset(&p->tokenizer, 2, sizeof p->tokenizer);
    memset(&p->chat, 3, sizeof p->chat);
    p->kv.layers = 30;
    p->kv.kv_heads = 3;
    p->kv.head_dim = 2 * HALF;
    p->kv.dtype = DTYPE_BF16;
    p->block_tokens = 16;
    p->q_heads = 9;
    p->window = 0;
    p->scale = 0.125f;
    p->norm_eps = 1e-5f;
    p->attention_bias = p->mlp_bias = p->qk_norm = false;
    p->inv_freq = inv_freq;
    strcpy(p->arithmetic, "cpu avx2");
    p->parallel_ranks = 1;
    p->parallel_rank = 0;
}

static struct hex made(const struct fingerprint_parts *p)
{
    struct crypto_hash h;
    fingerprint_make(&h, p);
    return hex_of(h.bytes);
}

/* Computed apart, from the construction in the header.  A change here makes every block
 * on every disk unreachable: raise FINGERPRINT_LAYOUT with it. */
static void the_construction_is_the_one_that_stands_on_disks(void **state)
{
    (void)state;
    struct fingerprint_parts p;
    base(&p, 0);
    assert_string_equal(
        made(&p).text,
        "83d3dade1cc0382213eddf178178f3459ff19137d1e6e870861c7c125dfb90cf");
}

static const float other_freq[HALF] = {1.0f, 0.5f, 0.25f, 0.12500001f};
static const float negative_zero_freq[HALF] = {1.0f, 0.5f, 0.25f, -0.0f};
static const float zero_freq[HALF] = {1.0f, 0.5f, 0.25f, 0.0f};
static const float swapped_freq[HALF] = {0.5f, 1.0f, 0.25f, 0.125f};

/* Change i of the base; false: there are no more. */
static bool change(struct fingerprint_parts *p, unsigned i)
{
    switch (i) {
    case 0: p->weights.bytes[0] ^= 1; return true;
    case 1: p->weights.bytes[31] ^= 0x80; return true;
    case 2: p->tokenizer.bytes[0] ^= 1; return true;
    case 3: p->tokenizer.bytes[31] ^= 0x80; return true;
    case 4: p->chat.bytes[0] ^= 1; return true;
    case 5: p->chat.bytes[31] ^= 0x80; return true;
    case 6: memset(&p->chat, 0, sizeof p->chat); return true;
    case 7: p->kv.layers++; return true;
    case 8: p->kv.kv_heads++; return true;
    case 9: p->kv.head_dim += 2; return true;
    case 10: p->kv.head_dim++; return true;         // the same number of frequencies
    case 11: p->kv.dtype = DTYPE_F16; return true;  // as many bytes, other values
    case 12: p->kv.dtype = DTYPE_F32; return true;
    case 13: p->block_tokens = 32; return true;
    case 14: p->q_heads++; return true;
    case 15: p->window = 4096; return true;
    case 16: p->scale = nextafterf(p->scale, 1); return true;
    case 17: p->scale = 0.0f; return true;
    case 18: p->scale = -0.0f; return true;
    case 19: p->scale = NAN; return true;
    case 20: p->norm_eps = 1e-6f; return true;
    case 21: p->norm_eps = nextafterf(p->norm_eps, 1); return true;
    case 22: p->inv_freq = other_freq; return true;
    case 23: p->inv_freq = zero_freq; return true;
    case 24: p->inv_freq = negative_zero_freq; return true;
    case 25: p->inv_freq = swapped_freq; return true;
    case 26: strcpy(p->arithmetic, "cpu avx"); return true;
    case 27: strcpy(p->arithmetic, ""); return true;
    case 28: memset(p->arithmetic, 'x', sizeof p->arithmetic); return true;  // no NUL
    case 29: p->parallel_ranks = 2; return true;
    case 30: p->parallel_rank = 1; return true;
    case 31:  // values that have changed places
        p->kv.layers = 3;
        p->kv.kv_heads = 30;
        return true;
    case 32:
        memset(&p->weights, 2, sizeof p->weights);
        memset(&p->tokenizer, 1, sizeof p->tokenizer);
        return true;
    case 33:
        p->parallel_ranks = 0;
        p->parallel_rank = 1;
        return true;
    case 34: p->attention_bias = true; return true;
    case 35: p->mlp_bias = true; return true;
    case 36: p->qk_norm = true; return true;
    default: return false;
    }
}

static void each_part_changed_alone_gives_another_one(void **state)
{
    (void)state;
    struct hex seen[64];
    struct fingerprint_parts p;
    base(&p, 0);
    seen[0] = made(&p);
    unsigned n = 1;
    for (;; n++) {
        base(&p, 0);
        if (!change(&p, n - 1)) break;
        seen[n] = made(&p);
        for (unsigned before = 0; before < n; before++)
            if (strcmp(seen[n].text, seen[before].text) == 0)
                fail_msg("change %u is not told from change %d", n - 1,
                         (int)before - 1);
    }
    assert_int_equal(n, 38);
}

static void padding_and_what_follows_a_text_never_count(void **state)
{
    (void)state;
    struct fingerprint_parts p, q;
    base(&p, 0);
    base(&q, 0xff);
    assert_memory_not_equal(&p, &q, sizeof p);
    assert_string_equal(made(&p).text, made(&q).text);
}

static void a_nan_equals_itself_by_its_bits(void **state)
{
    (void)state;
    struct fingerprint_parts p, q;
    base(&p, 0);
    base(&q, 0);
    p.scale = q.scale = NAN;
    assert_string_equal(made(&p).text, made(&q).text);
    uint32_t bits;
    memcpy(&bits, &q.scale, sizeof bits);
    bits ^= 1;
    memcpy(&q.scale, &bits, sizeof bits);
    assert_true(isnan(q.scale));
    assert_string_not_equal(made(&p).text, made(&q).text);
}

static void frequencies_count_by_value_and_not_by_place(void **state)
{
    (void)state;
    float copy[HALF];
    memcpy(copy, inv_freq, sizeof copy);
    struct fingerprint_parts p, q;
    base(&p, 0);
    base(&q, 0);
    q.inv_freq = copy;
    assert_string_equal(made(&p).text, made(&q).text);
}

static int open_crypto(void **state)
{
    (void)state;
    return crypto_open(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_construction_is_the_one_that_stands_on_disks),
        cmocka_unit_test(each_part_changed_alone_gives_another_one),
        cmocka_unit_test(padding_and_what_follows_a_text_never_count),
        cmocka_unit_test(a_nan_equals_itself_by_its_bits),
        cmocka_unit_test(frequencies_count_by_value_and_not_by_place),
    };
    return cmocka_run_group_tests(tests, open_crypto, NULL);
}
