/* templates.h - what the tests of chat templates share: render a template that is given
 * as text, and say what went wrong.
 */
#ifndef TESTS_TOKENIZER_TEMPLATES_H
#define TESTS_TOKENIZER_TEMPLATES_H

#include "kernels/json.h"
#include "tokenizer/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEMPLATES_NOW 1721984703  // 2024-07-26 09:05:03 UTC, as in the golden data

/* 0, or what chat_open() or chat_render() answered. */
static inline int templates_try(const char *source, const char *context,
                                struct chat_text *out, struct err *err)
{
    struct chat_template *t = NULL;
    int rc = chat_open(&t, source, strlen(source), "<s>", "</s>", err);
    if (rc == 0) rc = chat_render(t, context, strlen(context), TEMPLATES_NOW, out, err);
    chat_close(t);
    return rc;
}

static inline struct chat_text templates_render(const char *source, const char *context)
{
    struct chat_text out = {0};
    struct err err = {{0}};
    if (templates_try(source, context, &out, &err) != 0)
        fail_msg("%s\n%s", source, err.msg);
    return out;
}

static inline void templates_expect(const char *source, const char *context,
                                    const char *want)
{
    struct chat_text out = templates_render(source, context);
    if (out.n != strlen(want) || memcmp(out.text, want, out.n) != 0)
        fail_msg("%s\n got: %s\nwant: %s", source, out.text, want);
    chat_text_free(&out);
}

/* The render or the compilation fails with `rc`, and the message says `why`. */
static inline void templates_refuse(const char *source, const char *context, int rc,
                                    const char *why)
{
    struct chat_text out = {0};
    struct err err = {{0}};
    int got = templates_try(source, context, &out, &err);
    chat_text_free(&out);
    if (got != rc || !strstr(err.msg, why))
        fail_msg("%.200s\n got: %d %s\nwant: %d %s", source, got, err.msg, rc, why);
}

#endif
