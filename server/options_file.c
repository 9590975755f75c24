/* options_file.c - the configuration file (the only user of inih).
 *
 * Lines of `key = value`; # and ; begin a comment, which has a line of its own; [sections]
 * may order the file and mean nothing.  A key that stands twice is an error, not a choice.
 */
#include "kernels/file.h"
#include "server/options_table.h"

#include <assert.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX (1u << 20)
#define LINE_CAP 2048  // of inih's buffer: a value of OPTION_TEXT and its key fit

/* inih asks for lines and hands out keys, but tells no line number to its handler (that
 * is fixed when the library is built), so the lines are counted where they are given. */
struct reading {
    struct options *to;
    const char *path;
    const char *next, *end;
    unsigned line;
    unsigned seen[OPTION_MOST];  // line that set option i; 0: none yet
    struct err *err;
    int rc;
};

/* The library would cut a value there before one of the two signs and keep the other, so
 * neither is taken: no value changes without a word. */
static bool has_trailing_comment(const char *line)
{
    if (strchr("#;[", line[0])) return false;  // the end of the line too
    for (const char *p = line + 1; *p; p++)
        if (strchr("#;", *p) && strchr(" \t", p[-1])) return true;
    return false;
}

static char *next_line(char *buf, int cap, void *stream)
{
    struct reading *r = stream;
    if (r->rc || r->next == r->end) return NULL;
    const char *newline = memchr(r->next, '\n', (size_t)(r->end - r->next));
    size_t n = (size_t)((newline ? newline + 1 : r->end) - r->next);
    r->line++;
    if (n >= (size_t)cap - 2) {
        r->rc = err_set(r->err, -EINVAL, "%s line %u is longer than %d bytes", r->path,
                        r->line, cap - 3);
        return NULL;
    }
    memcpy(buf, r->next, n);
    buf[n] = 0;
    r->next += n;
    /* An indented line would continue the value above it; here it is a line like any. */
    size_t blanks = strspn(buf, " \t");
    memmove(buf, buf + blanks, n + 1 - blanks);
    if (has_trailing_comment(buf)) {
        r->rc = err_set(r->err, -EINVAL,
                        "%s line %u has # or ; behind a blank; a comment has a line of "
                        "its own",
                        r->path, r->line);
        return NULL;
    }
    return buf;
}

static int handle(void *user, const char *section, const char *key, const char *value)
{
    struct reading *r = user;
    (void)section;
    if (r->rc) return 0;

    char where[OPTION_TEXT + 128];
    snprintf(where, sizeof where, "%s line %u, key %.64s", r->path, r->line, key);
    const struct option *o = option_find(&serve_options, key);
    if (!o || strchr(key, '-')) {
        r->rc = option_unknown(&serve_options, key, where, false, r->err);
        return 0;
    }
    assert(serve_options.n <= OPTION_MOST);
    unsigned *seen = &r->seen[o - serve_options.option];
    if (*seen) {
        r->rc = err_set(r->err, -EINVAL, "%s was set in line %u already", where, *seen);
        return 0;
    }
    *seen = r->line;
    r->rc = option_set(o, r->to, value, where, r->err);
    return r->rc == 0;
}

int option_read_file(struct options *to, const char *path, struct err *err)
{
    struct err why = {{0}};
    char *text;
    size_t n;
    int rc = file_load(path, FILE_MAX, &text, &n, &why);
    if (rc) return err_set(err, rc, "configuration %s", why.msg);
    if (memchr(text, 0, n)) {
        free(text);
        return err_set(err, -EINVAL, "configuration %s holds a NUL byte", path);
    }

    /* The library's own settings; nothing else in this process uses it. */
    ini_use_stack = false;
    ini_max_line = LINE_CAP;
    ini_initial_alloc = LINE_CAP;
    ini_stop_on_first_error = true;
    struct reading r = {
        .to = to, .path = path, .next = text, .end = text + n, .err = err};
    int line = ini_parse_stream(next_line, &r, handle, &r);
    free(text);
    if (r.rc) return r.rc;
    if (line < 0) return err_set(err, -ENOMEM, "no memory to read %s", path);
    if (line > 0)
        return err_set(err, -EINVAL,
                       "%s line %d is neither `key = value`, a [section] nor a comment",
                       path, line);
    return 0;
}
