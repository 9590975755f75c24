/* plan_mooncake.c - Mooncake's jsonl: requests by time, with an id for each 512 tokens.
 *
 * It names no sessions.  A request's parent is the last one that used the deepest of its
 * ids seen before; it continues that one if they agree on all of the parent's full blocks,
 * on two at least, and the prompt grew.  Of several that continue the same one, the first
 * does; the others begin sessions that share its blocks.
 *
 * A reply's blocks are in no request but the next: where that is long enough to hold the
 * reply they have its ids, else nobody's.
 */
#include "kernels/json.h"
#include "server/plan_build.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH    4
#define MOST_IDS (PLAN_MAX_TOKENS / PLAN_BLOCK_TOKENS)
#define MOST_MS  (UINT64_MAX / (4 * PLAN_MS))
#define MOST_ID  (UINT64_MAX / 4)

/* The last turn that used an id: open addressing, at most half full. */
struct users {
    struct user {
        uint64_t id;  // + 1; 0: free
        uint32_t turn;
    } * at;
    size_t cap, n;
};

static struct user *users_find(const struct users *u, uint64_t id)
{
    size_t i = (size_t)plan_mix(id) & (u->cap - 1);
    while (u->at[i].id && u->at[i].id != id + 1) i = (i + 1) & (u->cap - 1);
    return &u->at[i];
}

static int users_grow(struct users *u, size_t more, struct err *err)
{
    struct users grown = {.cap = u->cap ? u->cap : 1024, .n = u->n};
    while (grown.cap / 2 < u->n + more) grown.cap *= 2;
    if (grown.cap == u->cap) return 0;
    grown.at = calloc(grown.cap, sizeof *grown.at);
    if (!grown.at) return err_set(err, -ENOMEM, "there is no memory for the trace");
    for (size_t i = 0; i < u->cap; i++)
        if (u->at[i].id) *users_find(&grown, u->at[i].id - 1) = u->at[i];
    free(u->at);
    *u = grown;
    return 0;
}

struct reading {
    struct plan_trace *trace;
    const char *name;
    uint64_t line;
    struct users users;
    uint64_t time;  // ms, of the line above
    uint64_t *ids;  // (MOST_IDS) of this line
    struct err *err;
};

static int wrong(const struct reading *r, const char *field, const char *is)
{
    return err_set(r->err, -EINVAL, "%s line %llu: %s %s", r->name,
                   (unsigned long long)r->line, field, is);
}

static int read_number(const struct reading *r, struct json_value object,
                       const char *field, uint64_t max, uint64_t *out)
{
    if (json_u64(json_get(object, field), out) && *out <= max) return 0;
    return err_set(r->err, -EINVAL,
                   "%s line %llu: %s must be a whole number from 0 to %llu", r->name,
                   (unsigned long long)r->line, field, (unsigned long long)max);
}

static int read_ids(const struct reading *r, struct json_value object, uint64_t prompt)
{
    struct json_value ids = json_get(object, "hash_ids");
    if (!json_is(ids, JSON_ARRAY)) return wrong(r, "hash_ids", "must be an array");
    uint64_t n = (prompt + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS;
    if (json_count(ids) != n)
        return err_set(r->err, -EINVAL,
                       "%s line %llu: hash_ids has %u ids, but input_length %llu takes "
                       "%llu of %d tokens",
                       r->name, (unsigned long long)r->line, json_count(ids),
                       (unsigned long long)prompt, (unsigned long long)n,
                       PLAN_BLOCK_TOKENS);
    uint32_t i = 0;
    for (struct json_iter it = json_iter(ids); json_next(&it); i++)
        if (!json_u64(it.value, &r->ids[i]) || r->ids[i] > MOST_ID)
            return wrong(r, "hash_ids", "must hold whole numbers below 2^62");
    return 0;
}

/* Whom this line continues; PLAN_NONE: nobody. */
static uint32_t find_parent(const struct reading *r, uint32_t n_ids, uint64_t prompt)
{
    uint32_t depth = 0, parent = PLAN_NONE;
    for (; depth < n_ids; depth++) {
        const struct user *u = users_find(&r->users, r->ids[depth]);
        if (!u->id) break;
        parent = u->turn;
    }
    if (parent == PLAN_NONE) return PLAN_NONE;
    const struct plan_turn *p = &r->trace->turns[parent];
    bool continues = depth >= 2 && depth >= p->prompt / PLAN_BLOCK_TOKENS &&
                     prompt > p->prompt && p->next == PLAN_NONE;
    return continues ? parent : PLAN_NONE;
}

static int add_request(struct reading *r, struct json_value object)
{
    uint64_t ms, prompt, reply;
    int rc = read_number(r, object, "timestamp", MOST_MS, &ms);
    if (rc == 0) rc = read_number(r, object, "input_length", PLAN_MAX_TOKENS, &prompt);
    if (rc == 0) rc = read_number(r, object, "output_length", PLAN_MAX_TOKENS, &reply);
    if (rc) return rc;
    if (prompt == 0) return wrong(r, "input_length", "is 0; a prompt has a token");
    if (prompt + reply > PLAN_MAX_TOKENS)
        return wrong(r, "input_length",
                     "and output_length are more than a turn may be");
    if (ms < r->time) return wrong(r, "timestamp", "is before that of the line above");
    r->time = ms;
    rc = read_ids(r, object, prompt);
    if (rc) return rc;

    uint32_t n_ids = (uint32_t)((prompt + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS);
    rc = users_grow(&r->users, n_ids, r->err);
    if (rc) return rc;
    struct plan_turn turn = {
        .at = ms * PLAN_MS, .prompt = (uint32_t)prompt, .reply = (uint32_t)reply};
    turn.n_blocks = plan_full_blocks(turn.prompt, turn.reply);
    uint32_t i;
    rc = plan_add_turn(r->trace, &turn, find_parent(r, n_ids, prompt), &i, r->err);
    if (rc) return rc;
    memcpy(r->trace->ids + r->trace->turns[i].first_block, r->ids,
           turn.prompt / PLAN_BLOCK_TOKENS * sizeof *r->ids);
    for (uint32_t k = 0; k < n_ids; k++) {
        struct user *u = users_find(&r->users, r->ids[k]);
        r->users.n += u->id == 0;
        *u = (struct user){r->ids[k] + 1, i};
    }
    return 0;
}

static int read_line(struct reading *r, const struct plan_line *l)
{
    struct json *json;
    struct err why;
    r->line = l->number;
    int rc = json_open(&json, l->text, l->n, DEPTH, &why);
    if (rc)
        return err_set(r->err, rc, "%s line %llu: %s", r->name,
                       (unsigned long long)r->line, why.msg);
    rc = json_is(json_root(json), JSON_OBJECT)
             ? add_request(r, json_root(json))
             : wrong(r, "the line", "must be an object");
    json_close(json);
    return rc;
}

/* Where the reply was kept, its blocks are the next prompt's. */
static void name_replies(struct plan_trace *t, uint32_t from)
{
    for (uint32_t i = from; i < t->n_turns; i++) {
        const struct plan_turn *x = &t->turns[i];
        const struct plan_turn *next = x->next == PLAN_NONE ? NULL : &t->turns[x->next];
        if (next && next->prompt < x->prompt + x->reply) next = NULL;
        for (uint32_t k = x->prompt / PLAN_BLOCK_TOKENS; k < x->n_blocks; k++)
            t->ids[x->first_block + k] =
                next ? t->ids[next->first_block + k] : MOST_ID + 1 + t->fresh++;
    }
}

/* An id stands for what is before it too, whatever the file says. */
static void chain_ids(struct plan_trace *t, uint32_t from)
{
    for (uint32_t i = from; i < t->n_turns; i++) {
        uint64_t *ids = t->ids + t->turns[i].first_block, before = 0;
        for (uint32_t k = 0; k < t->turns[i].n_blocks; k++)
            before = ids[k] = plan_chain(before, ids[k]);
    }
}

int plan_read_mooncake(struct plan_trace *t, const char *name, const char *text,
                       size_t n, struct err *err)
{
    struct reading r = {.trace = t, .name = name, .err = err};
    uint32_t from = t->n_turns;
    r.ids = malloc(MOST_IDS * sizeof *r.ids);
    int rc = r.ids ? users_grow(&r.users, 1, err)
                   : err_set(err, -ENOMEM, "there is no memory for the trace");
    struct plan_line l = {.name = name};
    const char *at = text, *end = text + n;
    while (rc == 0 && plan_line_next(&l, &at, end)) rc = read_line(&r, &l);
    if (rc == 0) {
        name_replies(t, from);
        chain_ids(t, from);
    }
    free(r.users.at);
    free(r.ids);
    return rc;
}
