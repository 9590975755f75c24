/* options_help.c - a table of options as text for a person. */
#include "server/options_table.h"

#include <stdio.h>
#include <string.h>

#define WIDTH 78

void option_wrap(const char *indent, const char *text)
{
    size_t column = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (column && column + 1 + n > WIDTH) {
            putchar('\n');
            column = 0;
        }
        printf("%s%.*s", column ? " " : indent, (int)n, p);
        column = (column ? column + 1 : strlen(indent)) + n;
        p += n + (p[n] == ' ');
    }
    putchar('\n');
}

static void print_option(const struct option *o)
{
    printf("  --");
    for (const char *p = o->key; *p; p++) putchar(*p == '_' ? '-' : *p);
    if (o->type == OPTION_BOOL)
        puts("");
    else
        printf(" %s\n", option_placeholder(o));
    option_wrap("        ", o->help);
    printf("        Default: %s.\n", o->value[0] ? o->value : "empty");
}

void option_print_list(const struct option_list *l)
{
    const char *group = "";
    for (uint32_t i = 0; i < l->n; i++) {
        const struct option *o = &l->option[i];
        if (strcmp(group, o->group)) printf("\n%s\n", o->group);
        group = o->group;
        print_option(o);
    }
}
