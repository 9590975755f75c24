/* api_internal.h - what the files of the API share; outside them only its tests look in.
 *
 *     api_body.c      the table of a body's fields, one row each
 *     api_fields.c    the readers those rows name
 *     api_value.c     one JSON value to one C value, or the sentence that says why not
 *     api_chat.c      messages -> template -> token ids
 *     api_completion.c  the four shapes of "prompt" -> token ids
 *     api.c           api_open, api_prepare, the models
 *     api_call.c      a call in progress: submit, read, cancel, free
 *     api_choice.c    the events of one choice become pieces of its answer
 *     api_summary.c   what a call came to: usage, outcome, its line in the log
 *     api_conversation.c  conversations by their names
 *     api_logprobs.c  logprobs in the two shapes that OpenAI has for them
 *     api_write.c     the objects of an answer, and their SSE frames
 *     api_json.c      cJSON with one sticky error: struct bytes
 *     api_error.c     errors, and their JSON
 *
 * Bodies are read by kernels/json.h and answers written by cJSON.  cJSON would read every
 * number as a double (a 64-bit seed needs more), end strings at a NUL and take forty times
 * the size of a body; so it is not asked to.
 */
#ifndef SERVER_API_INTERNAL_H
#define SERVER_API_INTERNAL_H

#include "kernels/json.h"
#include "server/api.h"
#include "tokenizer/detok.h"

#include <cjson/cJSON.h>

#define API_MAX_DEPTH 64          // of a body
#define API_UNSET     UINT32_MAX  // a count that the body did not name
#define API_SHOWN     64          // bytes of a wrong value that a message repeats

struct api {
    struct api_options o;
    uint32_t capacity;  // tokens, prompt and reply of one sequence: engine_capacity()
    size_t event_text;  // engine_event_text_max()
};

/* ---- one value (api_value.c): 0, or -EINVAL with *e naming `param` and the value ---- */

int api_wrong(struct api_error *e, const char *param, struct json_value v,
              const char *want);
NODISCARD int api_read_bool(struct json_value v, const char *param, bool *out,
                            struct api_error *e);
/* An integer as RFC 8259 writes it without fraction and exponent: 256, not 256.0. */
NODISCARD int api_read_count(struct json_value v, const char *param, uint32_t lo,
                             uint32_t hi, uint32_t *out, struct api_error *e);
NODISCARD int api_read_real(struct json_value v, const char *param, double lo,
                            double hi, float *out, struct api_error *e);
/* A string without NUL; its text as JSON wrote it, escapes and all, but no quotes. */
NODISCARD int api_read_raw_text(struct json_value v, const char *param,
                                const char **raw, size_t *n, struct api_error *e);
/* A string without NUL, unescaped; the caller frees it. */
NODISCARD int api_read_text(struct json_value v, const char *param, char **out,
                            size_t *out_n, struct api_error *e);
/* A token id of this model: in its vocabulary, and with a token. */
bool api_is_token(const struct api *a, uint64_t id);

/* ---- a body (api_body.c) ---- */

struct api_body {
    struct json *doc;
    struct json_value messages, prompt;  // of doc
    struct json_value template_variables;
    bool stream, include_usage, has_stream_options;
    bool echo, ignore_eos, add_special_tokens, add_generation_prompt;
    uint32_t n, best_of;
    uint32_t max_tokens, max_completion_tokens;
    struct sampling sampling;  // .bias: owned
    bool has_seed;
    char stop[REQUEST_MAX_STOPS][REQUEST_MAX_STOP + 1];
    uint16_t stop_n[REQUEST_MAX_STOPS];
    uint32_t n_stops;
    char conversation[KVSTORE_CONVERSATION];  // "": not named
};

/* Read and check all but messages and prompt.  `text` stays the caller's and must live
 * as long as *out; api_body_free() also after an error. */
NODISCARD int api_body_read(const struct api *a, enum api_kind kind, const char *text,
                            size_t n, struct api_body *out, struct api_error *e);
void api_body_free(struct api_body *b);

/* The readers of api_fields.c.  A row says what it reads and where it goes. */
struct api_field;
typedef int api_reader(const struct api *a, const struct api_field *f,
                       struct json_value v, struct api_body *b, struct api_error *e);
struct api_field {
    const char *name;
    unsigned kinds;       // 1 << API_CHAT, 1 << API_COMPLETION
    api_reader *read;     // never sees null, which means the default everywhere
    size_t offset;        // into struct api_body
    double lo, hi;        // the range of a number
    const char *neutral;  // of an unsupported field: what changes nothing, by blanks
};
api_reader api_field_bool, api_field_count, api_field_real, api_field_text,
    api_field_keep, api_field_unsupported, api_field_model, api_field_n,
    api_field_top_p, api_field_top_k, api_field_seed, api_field_stop,
    api_field_stream_options, api_field_completion_logprobs, api_field_logit_bias,
    api_field_response_format, api_field_modalities, api_field_conversation;

/* ---- prompts ---- */

struct api_prompt {
    int32_t *ids;  // owned
    size_t n_ids;
    char *echo;  // owned; what echo shows, NULL where nothing
    size_t echo_n;
    struct chat_text text;  // owned; of a chat, what ids spell
};
struct api_prompts {
    struct api_prompt *list;  // owned
    uint32_t n;
};
void api_prompts_free(struct api_prompts *p);
NODISCARD int api_prompts_make(struct api_prompts *p, uint32_t n, struct api_error *e);

/* Why a text came to no token ids: 400 where it, or the template, is to blame; else 500. */
NODISCARD int api_prompt_failed(const struct api *a, struct api_error *e,
                                const char *param, int rc, const struct err *why);
/* A prompt is tokenized so far, that what is a little too long can be told how long. */
size_t api_most_ids(const struct api *a);
/* A text takes memory while it is tokenized, so one that is far too long is not: at least so
 * many bytes with tokens of their own does a string have (of what \u escapes none), and more
 * than so many are more than capacity tokens, as none is longer than the longest.  Only an
 * added token that takes white space along may be longer; so much of that is refused, too. */
size_t api_least_bytes(const struct tokenizer *t, struct json_value v);
size_t api_most_bytes(const struct api *a);
/* context_length_exceeded; more_than is "" where n is known, else "more than ". */
NODISCARD int api_too_long(const struct api *a, struct api_error *e, const char *param,
                           const char *more_than, size_t n);

/* The context of a chat template as JSON text: the messages, each with its role first
 * and its content as one string, and the template's own variables. */
NODISCARD int api_chat_context(const struct api_body *b, struct bytes *out,
                               struct api_error *e);
NODISCARD int api_chat_prompts(const struct api *a, const struct api_body *b,
                               struct api_prompts *out, struct api_error *e);
NODISCARD int api_completion_prompts(const struct api *a, const struct api_body *b,
                                     struct api_prompts *out, struct api_error *e);

/* ---- JSON out (api_json.c): a failed step sets out->failed ---- */

/* A JSON string, quotes included; ill-formed bytes become U+FFFD. */
void api_json_text(struct bytes *out, const char *text, size_t n);
/* Fixed-point with nine digits, whatever the locale. */
void api_json_real(struct bytes *out, float x);
/* Give `item` to `to` under `name`, or at its end where name is NULL.  Returns item, or
 * NULL where either was NULL or memory is out. */
cJSON *api_put(struct bytes *out, cJSON *to, const char *name, cJSON *item);
void api_put_text(struct bytes *out, cJSON *to, const char *name, const char *text,
                  size_t n);
/* Append it as text, and delete it. */
void api_json_print(struct bytes *out, cJSON *item);

/* ---- logprobs (api_logprobs.c) ---- */

/* The entries of some tokens, as JSON without the brackets around them. */
struct api_logprobs {
    uint32_t n;
    struct bytes entry;              // chat: "content"
    struct bytes token, value, top;  // completions: three arrays side by side,
    struct bytes offset;             // and a fourth
};
void api_logprobs_free(struct api_logprobs *l);
void api_logprobs_clear(struct api_logprobs *l);
/* `scored`: s has a logprob (the first token of a prompt has none).  offset: where, in
 * characters of the choice's text, that of this token begins. */
void api_logprobs_add(struct api_logprobs *l, enum api_kind kind,
                      const struct tokenizer *t, const struct sample *s, bool scored,
                      uint64_t offset);
void api_logprobs_json(const struct api_logprobs *l, enum api_kind kind,
                       struct bytes *out);
bool api_logprobs_failed(const struct api_logprobs *l);

/* ---- a call (api_call.c, api_choice.c) ---- */

struct api_choice {
    struct bytes text;             // the answer so far, where the call does not stream,
    struct api_logprobs logprobs;  // and what goes with it
    uint64_t characters;           // of the text given
    bool begun;                    // its first piece has been given
    bool finished;
    enum finish_reason reason;
    uint32_t completion_tokens;
};

struct api_part {  // one prompt of the call
    struct request *request;
    uint32_t n_ids;  // as encoded; while unfinished, the request's own are the engine's
    uint32_t cached_tokens;
    char *echo;  // owned; NULL where its tokens come one by one, or not at all
    size_t echo_n;
    struct detok detok;   // of the prompt's own tokens
    uint32_t unfinished;  // choices
};

struct api_call {
    const struct api *a;
    enum api_kind kind;
    char id[48];
    int64_t created;
    bool stream, include_usage, logprobs;
    uint32_t n;  // choices of each prompt
    struct api_part *part;
    uint32_t n_parts;
    struct api_choice *choice;  // n_parts * n, those of one prompt side by side
    uint32_t n_choices, unfinished;

    struct api_logprobs fresh;  // of the piece that a stream gives next
    char *scratch;              // of detok_max_bound(): a prompt token's text
    uint32_t submitted;         // parts that the engine has had
    uint32_t turn;              // whose events come next
    bool given;                 // some bytes of the answer are out
    bool ended;
    struct api_error error;  // status 0: none
    bool cancelled, stalled;

    void (*wake)(void *arg);
    void *wake_arg;
    atomic_int parking;  // enum parking of api_call.c
};

/* Takes the ids and echoes out of p. */
NODISCARD int api_call_make(const struct api *a, enum api_kind kind,
                            const struct api_body *b, struct api_prompts *p,
                            uint32_t tenant, struct api_call **out,
                            struct api_error *e);
/* Whom to wake, from the engine's thread. */
void api_call_listen(struct api_call *c, void (*wake)(void *arg), void *arg);
/* Apply one event of part `part`; what a stream shows of it goes to out. */
void api_take_event(struct api_call *c, uint32_t part, const struct event *ev,
                    struct bytes *out);

/* ---- the shapes (api_write.c) ---- */

/* What one frame of a stream shows of a choice. */
struct api_piece {
    uint32_t choice;
    bool first;  // chat: the delta with the role
    const char *text;
    size_t n;
    const struct api_logprobs *logprobs;  // NULL or empty: null
    const char *finish;                   // NULL: null
};
void api_write_piece(const struct api_call *c, const struct api_piece *p,
                     struct bytes *out);
void api_write_usage_frame(const struct api_call *c, struct bytes *out);
void api_write_error_frame(const struct api_error *e, struct bytes *out);
void api_write_done(struct bytes *out);
/* The whole answer; gives the choices' texts back as it goes. */
void api_write_answer(struct api_call *c, struct bytes *out);
const char *api_finish_name(enum finish_reason r);

const char *api_source_name(enum kv_source s);
const char *api_why_name(enum kv_why y);

/* ---- what it came to (api_summary.c) ---- */

struct api_usage {
    uint64_t prompt, completion, cached;
    /* valid when all is finished */
    struct prompt_sources sources;
    enum kv_source woken_from;  // KV_SOURCES: nothing was there
    uint64_t promoted;          // bytes
};
struct api_usage api_call_usage(const struct api_call *c);
/* As things stand.  Reads what is left of its events, in case its client had stopped. */
enum outcome api_call_outcome(struct api_call *c);

#endif
