/* request.h - one prompt on its way through the engine, and what comes back.
 *
 * Owns     its prompt, its settings and its outbox: a bounded ring of events from the
 *          engine thread (producer) to one consumer (the connection's thread).
 * Caller   fills the fields of the first group, submits, then only reads events.
 * Life     reference-counted: the maker holds one, the engine another from
 *          engine_submit() to the last event.  The last one out frees it.
 * Bounds   a full outbox pauses its choices (nothing is generated for a client that does
 *          not read); after `stall_ms` of that the engine ends the request.
 * Memory   all taken by request_new(); pushing an event allocates nothing.
 * Threads  request_push() is the engine's; pop, wait and cancel are the consumer's, and
 *          cancel may be called from any thread.
 *
 *     made -> engine_submit -> waiting -> prefill -> decode -> last event -> freed
 *                  |              '---------'----------'-- cancel, error, stall
 *                  '-- refused: still the caller's
 */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include "model/sampler.h"
#include "offload/kvstore.h"
#include "tokenizer/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

#define REQUEST_MAX_STOPS   4
#define REQUEST_MAX_STOP    256  // bytes of one stop string
#define REQUEST_MAX_CHOICES 64

enum finish_reason {
    FINISH_STOP,      // an end-of-sequence token, or a stop string
    FINISH_LENGTH,    // max_tokens, or the context is full
    FINISH_ERROR,     // see event.status and event.text
    FINISH_CANCELLED  // the consumer left, or with status 408: it did not read
};

enum event_kind {
    EVENT_PROMPT_TOKEN,  // echo with logprobs: one of the prompt, in order
    EVENT_TOKEN,         // one generated token and the text that became certain with it
    EVENT_FINISH         // the choice is over; perhaps with a last piece of text
};

struct event {
    enum event_kind kind;
    uint16_t choice;
    /* EVENT_TOKEN and EVENT_PROMPT_TOKEN: id, and with logprobs the rest of sample.  The
     * first prompt token has no logprob: has_logprob is false.  With an EVENT_FINISH that
     * has one, sample is the end-of-sequence token, which has no event of its own. */
    bool has_logprob;
    struct sample sample;
    /* text_n bytes of whole UTF-8 characters; may be none. Valid until the next pop. */
    const char *text;
    size_t text_n;
    /* EVENT_FINISH */
    enum finish_reason reason;
    uint32_t
        completion_tokens;   // of this choice; end-of-sequence and stop tokens count
    uint32_t cached_tokens;  // of the prompt, that were there when it started
    int status;  // FINISH_ERROR: what HTTP would say (500, 503); FINISH_CANCELLED: 0, 408
};

struct request_stats {  // nanoseconds on the engine's clock; 0: has not happened
    uint64_t submitted, started, first_token, finished;
};

struct request {
    /* Set by the maker before engine_submit(), constant afterwards; but where there is a
     * text, the engine may change ids, n_ids and max_tokens, so that others read these
     * only after the last event. */
    int32_t *ids;  // the prompt; owned, malloc
    uint32_t n_ids;
    uint32_t max_tokens;  // for each choice, bounded by the context; 0: only the prompt
    uint32_t n_choices;   // 1..REQUEST_MAX_CHOICES
    struct sampling sampling;  // sampling.bias: owned, malloc
    char stop[REQUEST_MAX_STOPS][REQUEST_MAX_STOP + 1];
    uint16_t stop_n[REQUEST_MAX_STOPS];
    uint32_t n_stops;
    bool ignore_eos;
    bool show_special;  // text of special tokens is given (completions may ask)
    bool
        prompt_logprobs;  // score the prompt: an EVENT_PROMPT_TOKEN for each of its ids
    uint32_t tenant;
    /* What its KV is kept under, for the operations on conversations; "": named after its
     * first blocks. */
    char conversation[KVSTORE_CONVERSATION];
    /* The text that ids spell, with what of it is no control token, or NULL: with it the
     * engine may put other ids of the same text in their place (engine_recall.c). */
    char *text;  // owned, malloc
    size_t n_text;
    struct text_span *plain;  // owned, malloc
    size_t n_plain;

    /* the engine's and the outbox's own */
    struct block_meta *blocks;  // (n_blocks) names of the prompt's full blocks; owned
    uint32_t n_blocks;
    /* Read these after the last event. */
    struct request_stats stats;
    struct kv_wake_report wake;  // of the first choice's start
    uint32_t cached_tokens;      // of the prompt, that it did not compute
    atomic_bool cancelled;
    atomic_uint refs;
    struct outbox *outbox;
};

/* Everything zero but what is needed; the caller fills the first group.  largest_text:
 * the most bytes of one event's text (the engine says: engine_event_text_max). */
NODISCARD int request_new(struct request **out, size_t largest_text, struct err *err);
void request_ref(struct request *r);
void request_unref(struct request *r);  // NULL is fine

/* The consumer's side. `wake` is called from the engine's thread, at most once for each
 * request_wait() that answered false, and never while the consumer holds anything. */
/* When request_set_wake() returns, the callback before it is not running and will not be
 * called again: with NULL, `arg` may be freed.  Not from within wake, nor with a lock held
 * that wake takes. */
void request_set_wake(struct request *r, void (*wake)(void *arg), void *arg);
bool request_pop(struct request *r, struct event *out);
/* Is there something to pop?  If not, wake will be called when there is: at once, or with
 * `patient` only when all choices have finished or the outbox is half full. */
bool request_wait(struct request *r, bool patient);
void request_cancel(struct request *r);

/* Where the tokens of an answered prompt came from; together they are n_ids. */
struct prompt_sources {
    uint64_t cached[KV_SOURCES], computed[KV_WHYS];
};
void request_prompt_sources(const struct request *r, struct prompt_sources *out);
/* The slowest that a block came from; KV_SOURCES: there was none. */
enum kv_source request_wake_source(const struct kv_wake_report *w);

/* The engine's side. */
/* For one event of the largest size for each choice that is not over. */
bool request_has_room(struct request *r);
uint32_t request_room(struct request *r);  // events of the largest size that fit
/* There must be room, but for an EVENT_FINISH without text or of FINISH_ERROR, which
 * always fits.  The text is copied, but for that of FINISH_ERROR, which must be static. */
void request_push(struct request *r, const struct event *e);

#endif
