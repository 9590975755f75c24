/* plan_sessions.c - the session CSV: one line a round, a session's rounds in a row. */
#include "server/plan_build.h"

#include <string.h>

enum column { SESSION, ARRIVAL, ROUND, PREFIX, INPUT, OUTPUT, WAIT, COLUMNS };

static const char *const names[COLUMNS] = {"session_id",   "arrival_ms", "round_idx",
                                           "prefix_len",   "input_len",  "output_len",
                                           "wait_after_ms"};
static const char header[] =
    "session_id,arrival_ms,round_idx,prefix_len,input_len,output_len,wait_after_ms";

static const uint64_t most[COLUMNS] = {UINT64_MAX / 16,
                                       UINT64_MAX / (4 * PLAN_MS),
                                       UINT32_MAX - 1,
                                       PLAN_MAX_TOKENS,
                                       PLAN_MAX_TOKENS,
                                       PLAN_MAX_TOKENS,
                                       UINT64_MAX / (4 * PLAN_MS)};

#define LAST UINT64_MAX  // wait_after_ms -1

static bool parse(const char *text, size_t n, enum column c, uint64_t *out)
{
    if (c == WAIT && n == 2 && memcmp(text, "-1", 2) == 0) {
        *out = LAST;
        return true;
    }
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] < '0' || text[i] > '9' || __builtin_mul_overflow(x, 10u, &x) ||
            __builtin_add_overflow(x, (uint64_t)(text[i] - '0'), &x))
            return false;
    *out = x;
    return n && x <= most[c];
}

static int read_row(const struct plan_line *l, uint64_t row[COLUMNS], struct err *err)
{
    const char *at = l->text, *end = l->text + l->n;
    for (enum column c = 0; c < COLUMNS; c++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        if (!comma != (c == COLUMNS - 1))
            return err_set(err, -EINVAL, "%s line %llu has %s than %d fields", l->name,
                           (unsigned long long)l->number, comma ? "more" : "fewer",
                           COLUMNS);
        size_t n = (size_t)((comma ? comma : end) - at);
        if (!parse(at, n, c, &row[c]))
            return err_set(err, -EINVAL,
                           "%s line %llu: %s `%.*s` is not a whole number from 0 to "
                           "%llu%s",
                           l->name, (unsigned long long)l->number, names[c],
                           (int)(n < 40 ? n : 40), at, (unsigned long long)most[c],
                           c == WAIT ? ", nor -1" : "");
        if (comma) at = comma + 1;
    }
    return 0;
}

struct reading {
    struct plan_trace *trace;
    uint64_t before[COLUMNS];  // the row above
    uint32_t turn;             // its turn; PLAN_NONE: a new session must begin
};

/* What is wrong with this row after the one above; NULL: nothing. */
static const char *misfit(const struct reading *r, const uint64_t row[COLUMNS])
{
    const uint64_t *b = r->before;
    if (row[PREFIX] + row[INPUT] + row[OUTPUT] > PLAN_MAX_TOKENS)
        return "has more tokens than a turn may have";
    if (row[INPUT] == 0) return "has no new token in its prompt: input_len is 0";
    if (r->turn == PLAN_NONE) {
        if (row[ROUND]) return "begins a session with a round_idx that is not 0";
        if (row[PREFIX]) return "begins a session with a prefix_len that is not 0";
        return NULL;
    }
    if (row[SESSION] != b[SESSION])
        return "begins another session, though wait_after_ms of the line above says "
               "that a round follows";
    if (row[ROUND] != b[ROUND] + 1) return "has a round_idx that does not follow";
    if (row[ARRIVAL] != b[ARRIVAL])
        return "has another arrival_ms than its session began with";
    if (row[PREFIX] > b[PREFIX] + b[INPUT] + b[OUTPUT])
        return "keeps more tokens than there were: its prefix_len is too large";
    return NULL;
}

static int add_row(struct reading *r, const struct plan_line *l,
                   const uint64_t row[COLUMNS], struct err *err)
{
    const char *wrong = misfit(r, row);
    if (wrong)
        return err_set(err, -EINVAL, "%s line %llu %s", l->name,
                       (unsigned long long)l->number, wrong);
    struct plan_turn turn = {.prompt = (uint32_t)(row[PREFIX] + row[INPUT]),
                             .reply = (uint32_t)row[OUTPUT]};
    turn.n_blocks = plan_full_blocks(turn.prompt, turn.reply);
    if (r->turn == PLAN_NONE)
        turn.at = row[ARRIVAL] * PLAN_MS;
    else
        turn.wait = r->before[WAIT] * PLAN_MS;
    uint32_t i;
    int rc = plan_add_turn(r->trace, &turn, r->turn, &i, err);
    if (rc) return rc;
    plan_name_blocks(r->trace, i, r->turn, (uint32_t)row[PREFIX]);
    memcpy(r->before, row, sizeof r->before);
    r->turn = row[WAIT] == LAST ? PLAN_NONE : i;
    return 0;
}

int plan_read_sessions(struct plan_trace *t, const char *name, const char *text,
                       size_t n, struct err *err)
{
    struct plan_line l = {.name = name};
    const char *at = text, *end = text + n;
    if (!plan_line_next(&l, &at, end) || l.n != sizeof header - 1 ||
        memcmp(l.text, header, l.n))
        return err_set(err, -EINVAL,
                       "%s line 1 is neither an object of Mooncake's jsonl nor the "
                       "header %s",
                       name, header);
    struct reading r = {.trace = t, .turn = PLAN_NONE};
    while (plan_line_next(&l, &at, end)) {
        uint64_t row[COLUMNS];
        int rc = read_row(&l, row, err);
        if (rc == 0) rc = add_row(&r, &l, row, err);
        if (rc) return rc;
    }
    if (r.turn != PLAN_NONE)
        return err_set(err, -EINVAL,
                       "%s ends after line %llu, though its wait_after_ms says that a "
                       "round follows",
                       name, (unsigned long long)l.number);
    return 0;
}
