#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PATTERN      ((size_t)1 << 16)
#define HEAP_KIB         (64u * 1024)  // of the interpreter, where the JIT cannot be used
#define MAX_NESTING      64u
#define MAX_COUNT_DIGITS 3  // of a repeat count

struct regex {
    pcre2_code *code;
};

struct regex_run {
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint64_t left;  // of the budget
    size_t last;    // where the latest item of the pattern was tried
};

/* ---- compiling ---- */

/* An escape at p[0], of up to n characters; *size is what it takes. */
static const char *escape_differs(const char *p, size_t n, bool in_class, size_t *size)
{
    char c = n > 1 ? p[1] : 0;
    *size = 2;
    if (c == 'h' || c == 'H') return "\\h, the class of hexadecimal digits";
    if (c == 'w' || c == 'W') return "\\w";
    if ((c == 'b' || c == 'B') && !in_class) return "\\b";
    if (c && strchr("123456789gk", c)) return "a back reference";
    if (c && strchr("pPx", c) && n > 2 && p[2] == '{') {
        while (*size < n && p[*size] != '}') ++*size;
        ++*size;
    }
    return NULL;
}

/* A quantifier {...} at p[0]. */
static const char *count_differs(const char *p, size_t n)
{
    size_t digits = 0, i = 1;
    for (; i < n && p[i] != '}'; i++) {
        digits = p[i] >= '0' && p[i] <= '9' ? digits + 1 : 0;
        if (digits > MAX_COUNT_DIGITS) return "a repeat count above 999";
    }
    return i + 1 < n && p[i + 1] == '+' ? "a repeat count with +" : NULL;
}

/* A group that begins with (? or (* at p[0]. */
static const char *group_differs(const char *p, size_t n)
{
    if (p[1] == '*') return "a verb (*...)";
    if (n > 2 && strchr("RP&0123456789+(|C", p[2])) {
        return "a recursion, condition or callout";
    }
    for (size_t i = 2; i < n && (p[i] == '-' || (p[i] >= 'a' && p[i] <= 'z')); i++) {
        if (p[i] != 'i' && p[i] != '-') return "an inline option other than i";
    }
    return NULL;
}

/* What Oniguruma and PCRE2 both accept but understand differently; NULL: nothing. */
static const char *differs(const char *p, size_t n)
{
    const char *odd = NULL;
    bool in_class = false;
    for (size_t i = 0, size; i < n && !odd; i += size) {
        char next = i + 1 < n ? p[i + 1] : 0;
        size = 1;
        if (p[i] == '\\') {
            odd = escape_differs(p + i, n - i, in_class, &size);
        } else if (in_class) {
            if (p[i] == '[') odd = "a class within a class";
            if (p[i] == '&' && next == '&') odd = "an intersection of classes";
            in_class = p[i] != ']';
        } else if (p[i] == '[') {
            in_class = true;
            if (next == '^') size = 2;
            if (i + size < n && p[i + size] == ']') odd = "a class that begins with ]";
        } else if (p[i] == '{') {
            odd = count_differs(p + i, n - i);
        } else if (p[i] == '(' && (next == '?' || next == '*')) {
            odd = group_differs(p + i, n - i);
        }
    }
    return odd;
}

int regex_open(struct regex **out, const char *pattern, size_t n, bool literal,
               struct err *err)
{
    const char *odd = literal ? NULL : differs(pattern, n);
    if (odd) return err_set(err, -EINVAL, "the pattern has %s, not supported", odd);
    if (n == 0 || n > MAX_PATTERN) {
        return err_set(err, -EINVAL, "the pattern has %zu bytes, not 1 to %zu", n,
                       MAX_PATTERN);
    }
    struct regex *r = calloc(1, sizeof *r);
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    int rc = -ENOMEM, code = 0;
    size_t at = 0;
    if (!r || !c) goto done;

    /* Auto-callouts are where the budget is counted; an optimized start would walk over
     * text without them. */
    uint32_t options = PCRE2_UTF | PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE;
    options |= literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE;
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(c, MAX_NESTING);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &code, &at, c);
    if (!r->code) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        rc = err_set(err, -EINVAL, "the pattern is wrong at byte %zu: %s", at, why);
        goto done;
    }
    /* Where there is no JIT the interpreter does the same, slower. */
    (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    *out = r;
    r = NULL;
    rc = 0;

done:
    if (rc == -ENOMEM) err_set(err, rc, "no memory for a pattern");
    pcre2_compile_context_free(c);
    regex_close(r);
    return rc;
}

void regex_close(struct regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    free(r);
}

/* ---- matching ---- */

static int count_work(pcre2_callout_block *b, void *data)
{
    struct regex_run *run = data;
    size_t now = b->current_position;
    uint64_t cost = 1 + (now > run->last ? now - run->last : run->last - now);
    run->last = now;
    if (cost > run->left) return PCRE2_ERROR_MATCHLIMIT;
    run->left -= cost;
    return 0;
}

int regex_run_open(struct regex_run **out, uint64_t budget)
{
    struct regex_run *run = calloc(1, sizeof *run);
    if (!run) return -ENOMEM;
    run->left = budget;
    run->data = pcre2_match_data_create(1, NULL);
    run->context = pcre2_match_context_create(NULL);
    if (!run->data || !run->context) {
        regex_run_close(run);
        return -ENOMEM;
    }
    pcre2_set_callout(run->context, count_work, run);
    pcre2_set_match_limit(run->context, UINT32_MAX);  // the budget is the limit
    pcre2_set_heap_limit(run->context, HEAP_KIB);
    *out = run;
    return 0;
}

void regex_run_close(struct regex_run *run)
{
    if (!run) return;
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->context);
    free(run);
}

int regex_find(const struct regex *r, struct regex_run *run, const char *s, size_t n,
               size_t from, size_t *match_from, size_t *match_to, struct err *err)
{
    uint32_t options = PCRE2_NO_UTF_CHECK;
    run->last = from;
    int rc =
        pcre2_match(r->code, (PCRE2_SPTR)s, n, from, options, run->data, run->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        run->last = from;
        options |= PCRE2_NO_JIT;
        rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, options, run->data,
                         run->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc == PCRE2_ERROR_NOMEMORY) return err_set(err, -ENOMEM, "no memory to match");
    if (rc < 0) {
        return err_set(err, -E2BIG,
                       "the tokenizer's pattern takes too much work on this text");
    }
    const PCRE2_SIZE *where = pcre2_get_ovector_pointer(run->data);
    *match_from = where[0];
    *match_to = where[1];
    return 1;
}
