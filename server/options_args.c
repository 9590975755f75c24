/* options_args.c - flags and positional arguments, by a table of options. */
#include "server/options_table.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

bool option_asked(int argc, char **argv, const char *long_flag, const char *short_flag)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], long_flag) == 0 || strcmp(argv[i], short_flag) == 0)
            return true;
    return false;
}

/* The option of a flag, where "--no-x" means x = false and "--x" x = true. */
static const char *bool_value(const struct option_list *l, struct option_arg *a)
{
    const struct option *o = option_find(l, a->key);
    if (o && o->type == OPTION_BOOL) {
        a->option = o;
        return "true";
    }
    if (strncmp(a->key, "no-", 3) || !(o = option_find(l, a->key + 3))) return NULL;
    if (o->type != OPTION_BOOL) return NULL;
    a->option = o;
    return "false";
}

int option_once(const struct option_list *l, struct option_args *args,
                const struct option *o, const char *where, struct err *err)
{
    assert(l->n <= OPTION_MOST);
    bool *seen = &args->seen[o ? o - l->option : OPTION_MOST];
    if (*seen) return err_set(err, -EINVAL, "%s is given twice; expected once", where);
    *seen = true;
    return 0;
}

int option_next_arg(const struct option_list *l, struct option_args *in,
                    struct option_arg *a, struct err *err)
{
    *a = (struct option_arg){0};
    const char *text = in->argv[in->at++];
    if (text[0] != '-' || text[1] == 0) {
        a->positional = true;
        a->value = text;
        return 0;
    }
    size_t n = strcspn(text, "=");
    snprintf(a->where, sizeof a->where, "flag %s", text);
    a->where[strcspn(a->where, "=")] = 0;
    if (strncmp(text, "--", 2) || n < 3 || n - 2 >= sizeof a->key)
        return err_set(err, -EINVAL, "%s is unknown; `dormouse %s --help` lists all",
                       a->where, l->command);
    memcpy(a->key, text + 2, n - 2);
    bool file = l->file_flag && strcmp(a->key, l->file_flag) == 0;
    if (strchr(a->key, '_')) return option_unknown(l, a->key, a->where, true, err);

    const char *implied = bool_value(l, a);
    if (!implied && !file) a->option = option_find(l, a->key);
    if (!a->option && !file) return option_unknown(l, a->key, a->where, true, err);
    int rc = option_once(l, in, a->option, a->where, err);
    if (rc < 0) return rc;
    if (text[n] == '=') {
        a->value = text + n + 1;
        if (implied && strcmp(implied, "false") == 0)
            return err_set(err, -EINVAL, "%s takes no value", a->where);
    } else if (implied) {
        a->value = implied;
        const char *next = in->at < in->n ? in->argv[in->at] : "";
        if (option_is_bool(next))
            return err_set(
                err, -EINVAL,
                "%s takes a value only behind `=`, but `%s` follows it; write "
                "--%s=%s, or ./%s where a model of that name is meant",
                a->where, next, a->key + (*implied == 'f' ? 3 : 0), next, next);
    } else if (in->at < in->n) {
        a->value = in->argv[in->at++];
    } else {
        return err_set(err, -EINVAL, "%s needs a value", a->where);
    }
    return 0;
}
