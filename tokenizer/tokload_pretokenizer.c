/* tokload_pretokenizer.c - "pre_tokenizer" of tokenizer.json. */
#include "tokenizer/tokload.h"

#include <stdlib.h>

/* The pattern of GPT-2, which ByteLevel with use_regex stands for. */
#define GPT2                                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|"   \
    "\\s+"

/* Digits asks for general category N of Unicode 17, the patterns' \p{N} is one of
 * Unicode 16: these were added. */
#define DIGITS "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]"

static int add_step(struct loader *l, const char *path, struct json_value v,
                    const struct pretokenize_step *step)
{
    struct pretokenizer *p = &l->t->pretokenizer;
    if (p->n_steps == PRETOKENIZE_MAX_STEPS) {
        regex_close(step->pattern);
        return tokload_refuse(l, path, json_get(v, "type"),
                              "there are more than 16 steps");
    }
    p->step[p->n_steps++] = *step;
    return 0;
}

static int add_pattern(struct loader *l, const char *path, struct json_value v,
                       const char *pattern, size_t n, bool literal,
                       struct pretokenize_step step)
{
    struct err why;
    int rc = regex_open(&step.pattern, pattern, n, literal, &why);
    if (rc == -EINVAL) return tokload_refuse(l, path, v, why.msg);
    return rc < 0 ? rc : add_step(l, path, v, &step);
}

static int load_split(struct loader *l, struct json_value v, const char *path)
{
    static const struct {
        const char *name;
        enum split_behavior behavior;
    } behaviors[] = {{"Isolated", SPLIT_ISOLATED},
                     {"Removed", SPLIT_REMOVED},
                     {"Contiguous", SPLIT_CONTIGUOUS},
                     {"MergedWithPrevious", SPLIT_MERGED_PREV},
                     {"MergedWithNext", SPLIT_MERGED_NEXT}};
    struct json_value behavior = json_get(v, "behavior");
    struct json_value pattern = json_get(v, "pattern");
    struct json_value literal = json_get(pattern, "String");
    struct pretokenize_step step = {0};

    size_t k = 0, n = 0;
    while (k < ARRAY_LEN(behaviors) && !json_equals(behavior, behaviors[k].name)) k++;
    if (k == ARRAY_LEN(behaviors)) {
        return tokload_refuse(l, path, behavior, "this is no behavior of Split");
    }
    step.behavior = behaviors[k].behavior;
    int rc = tokload_bool(l, path, v, "invert", false, &step.invert);
    if (rc < 0) return rc;

    struct json_value text =
        json_exists(literal) ? literal : json_get(pattern, "Regex");
    if (!json_is(text, JSON_STRING)) {
        return tokload_refuse(l, path, pattern,
                              "the pattern has to be a Regex or a String");
    }
    char *s = json_string_dup(text, &n);
    if (!s) return -ENOMEM;
    rc = add_pattern(l, path, text, s, n, json_exists(literal), step);
    free(s);
    return rc;
}

static int load_digits(struct loader *l, struct json_value v, const char *path)
{
    bool individual;
    int rc = tokload_bool(l, path, v, "individual_digits", false, &individual);
    struct pretokenize_step step = {.behavior =
                                        individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    return rc < 0 ? rc
                  : add_pattern(l, path, v, DIGITS, sizeof DIGITS - 1, false, step);
}

static int load_byte_level(struct loader *l, struct json_value v, const char *path)
{
    bool space, pattern;
    int rc = tokload_bool(l, path, v, "add_prefix_space", true, &space);
    if (rc == 0) rc = tokload_bool(l, path, v, "use_regex", true, &pattern);
    if (rc == 0 && space) {
        rc = add_step(l, path, v, &(struct pretokenize_step){.add_space = true});
    }
    if (rc == 0 && pattern) {
        rc = add_pattern(l, path, v, GPT2, sizeof GPT2 - 1, false,
                         (struct pretokenize_step){.behavior = SPLIT_ISOLATED});
    }
    return rc;
}

/* *state, a bool: a ByteLevel was met, behind which nothing else may stand: it would see
 * the bytes written as other characters. */
static int load_step(struct loader *l, struct json_value v, const char *path,
                     unsigned depth, void *state)
{
    bool *closed = state;
    struct json_value type = json_get(v, "type");
    if (*closed) {
        return tokload_refuse(l, path, json_exists(type) ? type : v,
                              "nothing is supported behind ByteLevel");
    }
    if (json_equals(type, "Split")) return load_split(l, v, path);
    if (json_equals(type, "Digits")) return load_digits(l, v, path);
    if (json_equals(type, "ByteLevel")) {
        *closed = true;
        return load_byte_level(l, v, path);
    }
    if (!json_equals(type, "Sequence") || depth == TOKLOAD_MAX_DEPTH) {
        return tokload_refuse(
            l, path, json_exists(type) ? type : v,
            "only Sequence, Split, Digits and ByteLevel are supported");
    }
    return tokload_each(l, v, "pretokenizers", path, depth, load_step, closed);
}

int tokload_pre_tokenizer(struct loader *l)
{
    struct json_value v = json_get(l->root, "pre_tokenizer");
    bool closed = false;
    int rc = 0;
    if (json_is(v, JSON_OBJECT)) rc = load_step(l, v, "pre_tokenizer", 0, &closed);
    if (rc == 0 && !closed) {
        rc = tokload_refuse(
            l, "pre_tokenizer", v,
            "without ByteLevel this is no byte-level BPE, and only that is "
            "supported");
    }
    return rc;
}
