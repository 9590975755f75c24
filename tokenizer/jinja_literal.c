#include "tokenizer/jinja_literal.h"

#include "kernels/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDE_MAX ((wide)(~(uwide)0 >> 1))

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'z') return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
    return 99;
}

/* Digits of a base with single underscores between them; how many bytes they are. */
static size_t scan_digits(const char *p, const char *end, int base)
{
    const char *at = p;
    while (at < end &&
           (digit_of(*at) < base || (*at == '_' && at > p && at[-1] != '_' &&
                                     at + 1 < end && digit_of(at[1]) < base)))
        at++;
    return (size_t)(at - p);
}

bool literal_int(const char *p, size_t n, unsigned base, wide *out)
{
    bool negative = n > 0 && *p == '-';
    if (n > 0 && (*p == '-' || *p == '+')) p++, n--;
    if (n == 0 || scan_digits(p, p + n, (int)base) != n) return false;
    wide v = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '_') continue;
        int d = digit_of(p[i]);
        if (v > (WIDE_MAX - d) / (wide)base) return false;
        v = v * (wide)base + d;
    }
    *out = negative ? -v : v;
    return true;
}

/* A fraction, an exponent or both behind `whole` digits; 0: neither. */
static size_t scan_float(const char *p, const char *end, size_t whole)
{
    size_t n = whole;
    if (p + n < end && p[n] == '.') {
        size_t fraction = scan_digits(p + n + 1, end, 10);
        if (fraction) n += 1 + fraction;
    }
    if (p + n < end && (p[n] == 'e' || p[n] == 'E')) {
        size_t sign = p + n + 1 < end && (p[n + 1] == '+' || p[n + 1] == '-');
        size_t exponent = scan_digits(p + n + 1 + sign, end, 10);
        if (exponent) n += 1 + sign + exponent;
    }
    return n > whole ? n : 0;
}

static size_t read_float(const char *p, size_t n, struct token *t)
{
    char digits[128];
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '_') continue;
        if (m + 1 == sizeof digits) return 0;
        digits[m++] = p[i];
    }
    digits[m] = 0;
    t->kind = T_FLOAT;
    t->f = strtod(digits, NULL);
    return n;
}

size_t literal_number(const char *p, const char *end, bool after_dot, struct token *t)
{
    unsigned base = 10;
    if (end - p > 2 && p[0] == '0') {
        char c = (char)(p[1] | 0x20);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    }
    t->kind = T_INT;
    if (base != 10) {
        size_t n = scan_digits(p + 2, end, (int)base);
        return n && literal_int(p + 2, n, base, &t->i) ? n + 2 : 0;
    }
    size_t n = scan_digits(p, end, 10);
    size_t with_fraction = after_dot ? 0 : scan_float(p, end, n);
    if (with_fraction) return read_float(p, with_fraction, t);
    return literal_int(p, n, 10, &t->i) ? n : 0;
}

/* ---- strings ------------------------------------------------------------------ */

/* Exactly `want` hexadecimal digits at p. */
static bool read_hex(const char *p, const char *end, int want, uint32_t *out)
{
    uint32_t cp = 0;
    if (end - p < want) return false;
    for (int i = 0; i < want; i++) {
        if (digit_of(p[i]) > 15) return false;
        cp = cp << 4 | (uint32_t)digit_of(p[i]);
    }
    *out = cp;
    return cp < 0xd800 || (cp > 0xdfff && cp < 0x110000);
}

/* The escape behind a backslash at *p.  The character is in *cp; -1: none at all (an
 * escaped newline), -2: the backslash stays. */
static bool read_escape(const char **p, const char *end, int32_t *cp)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = **p;
    const char *simple = c ? strchr(from, c) : NULL;
    uint32_t code = 0;
    if (simple) {
        *cp = to[simple - from];
        *p += 1;
    } else if (c == '\n') {
        *cp = -1;
        *p += 1;
    } else if (c >= '0' && c <= '7') {
        for (int i = 0; i < 3 && *p < end && **p >= '0' && **p <= '7'; i++)
            code = code * 8 + (uint32_t)(*(*p)++ - '0');
        *cp = (int32_t)code;
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!read_hex(*p + 1, end, digits, &code)) return false;
        *cp = (int32_t)code;
        *p += 1 + digits;
    } else if (c == 'N') {
        return false;
    } else {
        *cp = -2;
    }
    return true;
}

bool literal_string(const char *p, const char *end, char *out, size_t *out_n)
{
    char *at = out;
    while (p < end) {
        if (*p != '\\' || p + 1 >= end) {
            *at++ = *p++;
            continue;
        }
        int32_t cp;
        p++;
        if (!read_escape(&p, end, &cp)) return false;
        if (cp == -2)
            *at++ = '\\';
        else if (cp >= 0)
            at += utf8_encode(cp, at);
    }
    *out_n = (size_t)(at - out);
    return true;
}
