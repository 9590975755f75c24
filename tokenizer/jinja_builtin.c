#include "tokenizer/jinja_builtin.h"

#include <string.h>

#include "tokenizer/jinja_run.h"

static const struct builtin *find(const struct builtin *table, const char *name,
                                  size_t n)
{
    for (; table->name; table++) {
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0) return table;
    }
    return NULL;
}

const struct builtin *filter_find(const char *name, size_t n)
{
    const struct builtin *f = find(filters_of_text, name, n);
    if (!f) f = find(filters_of_values, name, n);
    return f ? f : find(filters_of_lists, name, n);
}

const struct builtin *test_find(const char *name, size_t n)
{
    return find(tests, name, n);
}

const struct builtin *method_find(enum kind kind, const char *name, size_t n)
{
    const struct builtin *table =
        kind == V_STRING ? methods_of_text : methods_of_values;
    for (; table->name; table++) {
        if (table->kind == kind && strlen(table->name) == n &&
            memcmp(table->name, name, n) == 0)
            return table;
    }
    return NULL;
}

bool method_mutates(enum kind kind, const char *name, size_t n)
{
    static const struct {
        enum kind kind;
        const char *name;
    } names[] = {{V_LIST, "append"},  {V_LIST, "clear"},   {V_LIST, "extend"},
                 {V_LIST, "insert"},  {V_LIST, "pop"},     {V_LIST, "remove"},
                 {V_LIST, "reverse"}, {V_LIST, "sort"},    {V_DICT, "clear"},
                 {V_DICT, "pop"},     {V_DICT, "popitem"}, {V_DICT, "setdefault"},
                 {V_DICT, "update"}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (names[i].kind == kind && strlen(names[i].name) == n &&
            memcmp(names[i].name, name, n) == 0)
            return true;
    }
    return false;
}

bool arg_given(struct value v)
{
    return v.kind != V_ABSENT && v.kind != V_NONE;
}

wide arg_int(struct run *r, struct value v, wide otherwise)
{
    if (!arg_given(v)) return otherwise;
    if (value_is_integral(v)) return value_as_int(v);
    run_fail_type(r, "'%s' object cannot be interpreted as an integer",
                  value_type_name(v));
    return otherwise;
}

bool arg_truth(struct value v, bool otherwise)
{
    return v.kind == V_ABSENT ? otherwise : value_truth(v);
}
