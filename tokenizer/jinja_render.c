/* A render from beginning to end: the context becomes values, the tree is walked, and
 * the text is copied out of the arena. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/jinja.h"
#include "tokenizer/jinja_eval.h"
#include "tokenizer/jinja_literal.h"
#include "tokenizer/unicode.h"

/* Limits of a render, and what each byte of the context adds to them. */
#define STEPS         2000000u
#define STEPS_A_BYTE  4
#define TEXT          ((size_t)8 << 20)
#define TEXT_A_BYTE   4
#define MEMORY        ((size_t)64 << 20)
#define MEMORY_A_BYTE 16

/* ---- context ------------------------------------------------------------------ */

static const struct str *json_text(struct run *r, struct json_value j, bool user)
{
    size_t n = json_string_size(j);
    struct str *s = run_alloc(r, sizeof *s);
    char *bytes = run_alloc(r, 2 * n + 1);
    if (!s || !bytes || !run_charge(r, n)) return &str_empty;
    if (json_string(j, bytes, n + 1, &n) != 0) {
        run_fail(r, "ValueError", "a string of the context cannot be read");
        return &str_empty;
    }
    uint8_t *marks = NULL;
    if (user) {
        marks = (uint8_t *)bytes + n;  // over the final NUL
        memset(marks, 1, n);
    }
    *s = (struct str){bytes, marks, n, unicode_count(bytes, n), NULL};
    return s;
}

/* False: it is too large. */
static bool read_number(struct json_value j, struct value *v)
{
    int64_t i;
    size_t n;
    const char *raw = json_raw(j, &n);
    *v = (struct value){.kind = V_INT, .user = true};
    if (json_i64(j, &i)) {
        v->i = i;
        return true;
    }
    if (!memchr(raw, '.', n) && !memchr(raw, 'e', n) && !memchr(raw, 'E', n))
        return literal_int(raw, n, 10, &v->i);
    v->kind = V_FLOAT;
    return json_double(j, &v->f);
}

bool jinja_holds_number(struct json_value number)
{
    struct value v;
    return read_number(number, &v);
}

static struct value json_number(struct run *r, struct json_value j)
{
    struct value v;
    if (read_number(j, &v)) return v;
    return run_fail(r, "OverflowError", "a number of the context is too large");
}

static struct value from_json(struct run *r, struct json_value j);

static struct value json_list(struct run *r, struct json_value j)
{
    struct list *l = list_new(r, json_count(j));
    for (struct json_iter i = json_iter(j); l && !r->rc && json_next(&i);)
        l->items[l->n++] = from_json(r, i.value);
    return l ? value_list(l) : value_undefined();
}

static struct value json_object(struct run *r, struct json_value j)
{
    struct dict *d = dict_new(r, json_count(j));
    for (struct json_iter i = json_iter(j); d && !r->rc && json_next(&i);) {
        struct value key = value_str(json_text(r, i.key, true));
        dict_append(r, d, key, from_json(r, i.value));
    }
    return d ? (struct value){.kind = V_DICT, .dict = d} : value_undefined();
}

static struct value from_json(struct run *r, struct json_value j)
{
    bool b = false;
    struct value v = value_undefined();
    if (!run_charge(r, 0)) return v;
    switch (json_type(j)) {
    case JSON_NULL: return value_none();
    case JSON_BOOL: return json_bool(j, &b) ? value_bool(b) : v;
    case JSON_NUMBER: return json_number(r, j);
    case JSON_STRING: return value_str(json_text(r, j, true));
    case JSON_ARRAY:
    case JSON_OBJECT:
        if (!run_enter(r)) return v;
        v = json_type(j) == JSON_ARRAY ? json_list(r, j) : json_object(r, j);
        run_leave(r);
        return v;
    }
    return v;
}

/* A role is a choice among a few words, not a text of the user's, and some templates
 * build control tokens around it ('<|' + role + '|>'). */
static void trust_roles(struct run *r, struct value messages)
{
    static const char *const roles[] = {"system", "developer", "user",   "assistant",
                                        "tool",   "function",  "ipython"};
    for (size_t i = 0; messages.kind == V_LIST && i < messages.list->n && !r->rc; i++) {
        struct value m = messages.list->items[i];
        for (size_t k = 0; m.kind == V_DICT && k < m.dict->n; k++) {
            struct pair *p = &m.dict->pairs[k];
            if (!str_is(p->key.s, "role") || p->value.kind != V_STRING) continue;
            for (size_t n = 0; n < ARRAY_LEN(roles); n++) {
                if (str_is(p->value.s, roles[n]))
                    p->value.s = str_of(r, roles[n], strlen(roles[n]));
            }
        }
    }
}

static void bind_context(struct run *r, struct json_value context)
{
    for (struct json_iter i = json_iter(context); !r->rc && json_next(&i);) {
        const struct str *key = json_text(r, i.key, true);
        const struct str *name = ast_find_name(r->t, key->bytes, key->n);
        if (!name) continue;  // the template never asks for it
        struct value v = from_json(r, i.value);
        if (str_is(name, "messages")) trust_roles(r, v);
        run_bind(r, name, v);
    }
}

static void bind_token(struct run *r, const char *name, const char *text)
{
    const struct str *interned = ast_find_name(r->t, name, strlen(name));
    if (text && interned)
        run_bind(r, interned, value_str(str_of(r, text, strlen(text))));
}

static void bind_functions(struct run *r)
{
    for (const struct builtin *f = functions; f->name; f++) {
        const struct str *name = ast_find_name(r->t, f->name, strlen(f->name));
        if (name) run_bind(r, name, (struct value){.kind = V_FUNCTION, .function = f});
    }
}

/* ---- render ------------------------------------------------------------------- */

static int copy_out(const struct builder *b, struct jinja_output *out)
{
    out->n = b->n;
    out->text = malloc(b->n + 1);
    out->marks = malloc(b->n + 1);
    if (!out->text || !out->marks) {
        jinja_output_free(out);
        return -ENOMEM;
    }
    if (b->n) memcpy(out->text, b->bytes, b->n);
    if (b->n) memcpy(out->marks, b->marks, b->n);
    out->text[b->n] = 0;
    return 0;
}

static size_t scaled(size_t base, size_t context, size_t a_byte)
{
    return context > (SIZE_MAX / 2 - base) / a_byte ? SIZE_MAX / 2
                                                    : base + context * a_byte;
}

int jinja_render(const struct jinja *t, const struct jinja_input *in,
                 struct jinja_output *out, struct jinja_fault *fault)
{
    struct run r = {.t = t,
                    .now = in->now,
                    .steps = scaled(STEPS, in->context_size, STEPS_A_BYTE),
                    .max_text = scaled(TEXT, in->context_size, TEXT_A_BYTE),
                    .line = 1};
    struct builder text;
    *out = (struct jinja_output){0};
    arena_init(&r.arena, scaled(MEMORY, in->context_size, MEMORY_A_BYTE));
    builder_init(&text, &r);
    r.out = &text;
    r.scope = run_push_scope(&r, NULL);
    if (!r.rc) {
        bind_functions(&r);
        bind_context(&r, in->context);
        bind_token(&r, "bos_token", in->bos);
        bind_token(&r, "eos_token", in->eos);
        exec_block(&r, &t->body);
    }
    if (!r.rc && copy_out(&text, out) != 0) {
        r.rc = -ENOMEM;
        r.kind = "MemoryError";
    }
    if (r.rc) {
        *fault = (struct jinja_fault){.kind = r.kind, .line = r.line};
        memcpy(fault->message, r.message, sizeof fault->message);
    }
    arena_free(&r.arena);
    return r.rc;
}

void jinja_output_free(struct jinja_output *o)
{
    free(o->text);
    free(o->marks);
    *o = (struct jinja_output){0};
}
