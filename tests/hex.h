/* hex.h - 32 bytes as text, to be compared with known vectors. */
#ifndef TESTS_HEX_H
#define TESTS_HEX_H

#include <stdint.h>

struct hex {
    char text[65];
};

static inline struct hex hex_of(const uint8_t bytes[32])
{
    struct hex h = {{0}};
    for (unsigned i = 0; i < 32; i++) {
        h.text[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        h.text[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    return h;
}

#define assert_hex(bytes, expected) assert_string_equal(hex_of(bytes).text, expected)

#endif
