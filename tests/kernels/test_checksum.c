/* test_checksum.c - XXH3 by the sanity vectors that xxHash itself is held to. */
#include "kernels/checksum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONGEST 2367

/* The buffer of xxHash's sanity check (its fillTestBuffer). */
static void fill(uint8_t *out, size_t n)
{
    uint64_t x = 2654435761u;
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(x >> 56);
        x *= 11400714785074694797u;
    }
}

static void xxh3_gives_its_known_values(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint64_t sum;
    } known[] = {
        {0, 0x2D06800538D394C2},       {1, 0xC44BDFF4074EECDB},
        {6, 0x27B56A84CD2D7325},       {12, 0xA713DAF0DFBB77E7},
        {24, 0xA3FE70BF9D3510EB},      {48, 0x397DA259ECBA1F11},
        {80, 0xBCDEFBBB2C47C90A},      {195, 0xCD94217EE362EC3A},
        {403, 0xCDEB804D65C6DEA4},     {512, 0x617E49599013CB6B},
        {2048, 0xDD59E2C3A5F038E0},    {2240, 0x6E73A90539CF2948},
        {LONGEST, 0xCB37AEB9E5D361ED},
    };
    uint8_t bytes[LONGEST];
    fill(bytes, sizeof bytes);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        assert_true(checksum_xxh3(bytes, known[i].n) == known[i].sum);
}

static void a_flipped_bit_anywhere_in_a_page_changes_it(void **state)
{
    (void)state;
    uint8_t page[4096];
    fill(page, sizeof page);
    uint64_t sum = checksum_xxh3(page, sizeof page);
    for (size_t bit = 0; bit < 8 * sizeof page; bit++) {
        page[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_true(checksum_xxh3(page, sizeof page) != sum);
        page[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(checksum_xxh3(page, sizeof page) == sum);
}

static void alignment_does_not_matter(void **state)
{
    (void)state;
    uint8_t bytes[LONGEST], shifted[LONGEST + 64];
    fill(bytes, sizeof bytes);
    for (size_t by = 0; by < 64; by++) {
        memcpy(shifted + by, bytes, sizeof bytes);
        assert_true(checksum_xxh3(shifted + by, sizeof bytes) ==
                    checksum_xxh3(bytes, sizeof bytes));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xxh3_gives_its_known_values),
        cmocka_unit_test(a_flipped_bit_anywhere_in_a_page_changes_it),
        cmocka_unit_test(alignment_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
