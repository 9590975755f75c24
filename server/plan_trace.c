/* plan_trace.c - the arrays of a trace, and what is done to a whole one. */
#include "kernels/file.h"
#include "server/plan_build.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_STEP (1u << 20)

void plan_trace_free(struct plan_trace *t)
{
    free(t->turns);
    free(t->ids);
    free(t->firsts);
    *t = (struct plan_trace){0};
}

/* Make room for `n` elements of `size` bytes; the array grows by doubling. */
static int grow(void *array, size_t *cap, uint64_t n, size_t size, struct err *err)
{
    if (n <= *cap) return 0;
    size_t want = *cap ? *cap : 1024, bytes;
    while (want < n && want <= SIZE_MAX / 2) want *= 2;
    void *old, *grown = NULL;
    memcpy(&old, array, sizeof old);
    if (want >= n && !__builtin_mul_overflow(want, size, &bytes))
        grown = realloc(old, bytes);
    if (!grown) return err_set(err, -ENOMEM, "there is no memory for the trace");
    memcpy(array, &grown, sizeof grown);
    *cap = want;
    return 0;
}

int plan_add_turn(struct plan_trace *t, const struct plan_turn *turn, uint32_t before,
                  uint32_t *out, struct err *err)
{
    if (t->n_turns == PLAN_NONE - 1)
        return err_set(err, -E2BIG, "a trace has at most %u turns", PLAN_NONE - 1);
    uint64_t ids = t->n_ids + turn->n_blocks;
    int rc =
        grow(&t->turns, &t->turns_cap, (uint64_t)t->n_turns + 1, sizeof *t->turns, err);
    if (rc == 0) rc = grow(&t->ids, &t->ids_cap, ids + 1, sizeof *t->ids, err);
    if (rc == 0 && before == PLAN_NONE)
        rc = grow(&t->firsts, &t->firsts_cap, (uint64_t)t->n_sessions + 1,
                  sizeof *t->firsts, err);
    if (rc) return rc;

    uint32_t i = t->n_turns++;
    t->turns[i] = *turn;
    t->turns[i].first_block = t->n_ids;
    t->turns[i].next = PLAN_NONE;
    t->turns[i].first = before == PLAN_NONE;
    t->n_ids = ids;
    if (before == PLAN_NONE) {
        t->turns[i].session = t->n_sessions;
        t->firsts[t->n_sessions++] = i;
    } else {
        t->turns[i].session = t->turns[before].session;
        t->turns[before].next = i;
    }
    *out = i;
    return 0;
}

void plan_name_blocks(struct plan_trace *t, uint32_t turn, uint32_t before,
                      uint32_t kept)
{
    const struct plan_turn *x = &t->turns[turn];
    uint64_t *ids = t->ids + x->first_block;
    uint32_t n = 0;
    if (before != PLAN_NONE) {
        const struct plan_turn *b = &t->turns[before];
        n = kept / PLAN_BLOCK_TOKENS;
        if (n > b->n_blocks) n = b->n_blocks;
        if (n > x->n_blocks) n = x->n_blocks;
        memcpy(ids, t->ids + b->first_block, n * sizeof *ids);
    }
    for (; n < x->n_blocks; n++) ids[n] = plan_chain(n ? ids[n - 1] : 0, t->fresh++);
}

/* ---- reading ---- */

bool plan_line_next(struct plan_line *l, const char **at, const char *end)
{
    if (*at == end) return false;
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    l->text = *at;
    l->n = (size_t)((newline ? newline : end) - *at);
    l->number++;
    *at = newline ? newline + 1 : end;
    if (l->n && l->text[l->n - 1] == '\r') l->n--;
    return true;
}

int plan_trace_read(struct plan_trace *t, const char *name, const char *text, size_t n,
                    struct err *err)
{
    if (n == 0) return err_set(err, -EINVAL, "%s is empty", name);
    int rc = *text == '{' ? plan_read_mooncake(t, name, text, n, err)
                          : plan_read_sessions(t, name, text, n, err);
    if (rc == 0 && t->n_turns == 0)
        rc = err_set(err, -EINVAL, "%s has no request in it", name);
    return rc;
}

static int read_all(int fd, const char *name, char **out, size_t *out_n,
                    struct err *err)
{
    char *text = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        int rc = grow(&text, &cap, (uint64_t)n + READ_STEP, 1, err);
        ssize_t got = rc ? -1 : read(fd, text + n, READ_STEP);
        if (got < 0 && rc == 0 && errno == EINTR) continue;
        if (got < 0) {
            if (rc == 0)
                rc = err_set(err, -errno, "%s cannot be read: %s", name,
                             strerror(errno));
            free(text);
            return rc;
        }
        if (got == 0) break;
        n += (size_t)got;
    }
    *out = text;
    *out_n = n;
    return 0;
}

int plan_trace_load(struct plan_trace *t, const char *path, struct err *err)
{
    bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    int fd = STDIN_FILENO;
    int rc = standard ? 0 : file_open(&fd, path, err);
    if (rc) return rc;
    char *text = NULL;
    size_t n = 0;
    rc = read_all(fd, name, &text, &n, err);
    if (!standard) close(fd);
    if (rc) return rc;
    rc = plan_trace_read(t, name, text, n, err);
    free(text);
    return rc;
}

/* ---- a whole trace ---- */

void plan_trace_thin(struct plan_trace *t, uint32_t percent, uint64_t seed)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->n_sessions; i++)
        if (plan_mix(plan_mix(seed) ^ i) % 100 < percent)
            t->firsts[kept++] = t->firsts[i];
    t->n_sessions = kept;
}

void plan_trace_spread(struct plan_trace *t, uint64_t step, uint64_t seed)
{
    for (uint32_t i = 0; step && i < t->n_turns; i++)
        t->turns[i].at += plan_mix(plan_mix(~seed) ^ i) % step;
}

uint32_t plan_trace_most_blocks(const struct plan_trace *t)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->n_turns; i++) {
        const struct plan_turn *x = &t->turns[i];
        uint32_t n = (x->prompt + x->reply + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS;
        if (n > most) most = n;
    }
    return most;
}
