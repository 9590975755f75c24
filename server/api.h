/* api.h - the OpenAI API without HTTP: JSON bodies to requests, events to JSON.
 *
 * Owns     struct api: what every call needs, immutable after open.
 *          struct api_call: one POST in progress and its requests.
 * Caller   is server/http*.c, which knows sockets and no JSON; here it is the reverse.
 * Threads  api_prepare() runs on a worker thread, api_call_read() on the
 *          connection's thread, one at a time for each call.
 *
 *     body -> api_prepare -> api_submit -> api_call_read ... API_DONE -> api_call_free
 *                  '-- 400 ...    '-- 503 ...     '--- api_call_cancel at any time
 */
#ifndef SERVER_API_H
#define SERVER_API_H

#include "server/bytes.h"
#include "server/engine.h"
#include "tokenizer/chat.h"

struct api_error {
    int status;        // 400, 401, 404, 405, 408, 413, 415, 429, 431, 500, 503
    const char *type;  // "invalid_request_error", "server_error" ...; static
    const char *code;  // "context_length_exceeded" ...; static, NULL: null
    char param[64];    // the field; "": null
    char message[512];
    char why[160];  // for the log: nothing in it was written by the client; "": unsaid
    uint32_t retry_after;  // seconds, for 503 and 429; 0: none
};

/* status picks the type; fmt must not repeat a whole prompt or a key.  A message that is put
 * together from numbers alone goes to the log too, as `why`; of one with text in it the
 * caller says what may.  Returns -EINVAL. */
int api_fail(struct api_error *e, int status, const char *code, const char *param,
             const char *fmt, ...) PRINTF_LIKE(5, 6);
/* {"error":{"message":...,"type":...,"param":...,"code":...}} appended to out. */
void api_error_json(const struct api_error *e, struct bytes *out);

struct api_options {
    const char *model_name;  // what /v1/models tells and "model" must name
    int64_t created;         // seconds, of /v1/models
    const struct tokenizer *tokenizer;
    const struct chat_template *chat;  // NULL: the model has none, chat is refused
    const struct model_config *config;
    struct engine *engine;
    struct metrics *metrics;
    uint32_t max_choices;         // n times prompts of one call
    uint32_t default_max_tokens;  // where a body names none; 0: what the context holds
    bool completions_special;     // control tokens in the text of /v1/completions count
};

struct api;
NODISCARD int api_open(struct api **out, const struct api_options *o, struct err *err);
void api_close(struct api *a);
/* Has the backend failed, so that every call would be answered 500? */
bool api_failed(const struct api *a);

enum api_kind { API_CHAT, API_COMPLETION };
struct api_call;

/* Parse and check the body, render the template, encode.  0, or -EINVAL with *e. */
NODISCARD int api_prepare(struct api *a, enum api_kind kind, const char *body, size_t n,
                          uint32_t tenant, struct api_call **out, struct api_error *e);
/* A conversation's name is 1 to 63 letters, digits and -_.:@, the first of them a letter or a
 * digit: the body's "prompt_cache_key", or what api_call_name() gives after api_prepare() and
 * before api_submit(), which goes first.  Without either the store derives one, and the
 * answer's `dormouse.conversation` tells it.  A call of many prompts names its first. */
NODISCARD int api_check_conversation(const char *name, size_t n, const char *param,
                                     struct api_error *e);
void api_call_name(struct api_call *c, const char *name);

/* Hand its requests to the engine.  `wake` is called from the engine's thread when
 * api_call_read() has something after it answered API_WAIT. 0, or -EINVAL with *e. */
NODISCARD int api_submit(struct api_call *c, void (*wake)(void *arg), void *arg,
                         struct api_error *e);

bool api_call_streams(const struct api_call *c);

enum api_state {
    API_WAIT,   // nothing now; wake will be called
    API_MORE,   // bytes were added; call again
    API_DONE,   // the answer is complete (or the stream has ended)
    API_FAILED  // no byte had been given out: answer with *e and its status instead
};
/* Append what there is to out, up to about `limit` bytes.  A stream gives SSE frames as
 * they come and ends by "data: [DONE]"; an error in mid-stream becomes one error frame,
 * then the end.  Otherwise the whole JSON comes at once, with API_DONE.
 *
 * In every "usage", also that of a stream that asked for it by include_usage, stands
 *     "dormouse": {"conversation", "woken_from", "tokens": {"device", "ram", "ssd"},
 *                  "computed": {"new", "cheaper", "failed", "late", "busy"},
 *                  "promoted_bytes", "queue_ms", "wake_ms", "predicted_ms", "without_ms"}
 * woken_from: the slowest tier that something came from, or null.  tokens and computed:
 * the prompt's, by where they were and by why they were not loaded; together they are
 * prompt_tokens.  The times are those of the first prompt: its wait for its start, for its
 * blocks, what was predicted for these and the rest, and for computing everything. */
enum api_state api_call_read(struct api_call *c, struct bytes *out, size_t limit,
                             struct api_error *e);

void api_call_cancel(struct api_call *c);  // from any thread, until api_call_free()
/* Counts the outcome, and cancels what still runs.  NULL is fine. */
void api_call_free(struct api_call *c);

/* "id=... prompt=812 cached=800 completion=64 from_ssd=800 computed_new=12 ttft_ms=120 ..."
 * for the log; no text, no key, no name.
 * After the last api_call_read(). */
void api_call_summary(struct api_call *c, char *buf, size_t cap);

/* ---- conversations ---- */

#define API_LIST_LIMIT 1000               // of one page
#define API_HOLD_MOST  (30 * 24 * 3600u)  // seconds

struct api_question {
    enum { API_LIST, API_TELL, API_FORGET, API_SLEEP, API_WAKE, API_HOLD } about;
    uint32_t tenant;
    char name[KVSTORE_CONVERSATION];   // all but LIST; checked
    char after[KVSTORE_CONVERSATION];  // LIST: what came last on the page before; or ""
    uint32_t limit;                    // LIST: 1..API_LIST_LIMIT
    uint64_t ttl_s;                    // HOLD: at most API_HOLD_MOST; 0 ends it
};
/* {"id", "object", "state", "tokens", "bytes": {"device", "ram", "ssd"}, "last_used",
 * "held_until"}: times in seconds since 1970, null where it has not been used since the
 * server started, or is not held.  A list has them by last use, the latest first; one that
 * is used between two pages may be on both.  Blocks for up to a few seconds, so: on a
 * worker thread.  404 also where it is another tenant's; 409 while it is active; 503 where
 * nothing is kept. */
NODISCARD int api_answer_question(struct api *a, const struct api_question *q,
                                  struct bytes *out, struct api_error *e);

/* GET /v1/models and /v1/models/{id}; -ENOENT with a 404 where id is another. */
void api_models_json(const struct api *a, struct bytes *out);
NODISCARD int api_model_json(const struct api *a, const char *id, struct bytes *out,
                             struct api_error *e);

#endif
