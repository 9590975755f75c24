/* gate.h - generated ids to text that may be shown: decoded, and cut at a stop string.
 *
 * Owns     what it holds back: text that may yet become a stop string, and tokens whose
 *          fate that text decides.
 * Rule     the first stop string that is complete wins, of those that end together the
 *          longest; the text ends where it begins.  Text is given out as soon as it can
 *          no longer belong to one, and all of it at the end: what comes out, joined, is
 *          what a search through the whole text would leave.
 * Tokens   without `hold` every id comes out at once, with the text that has become
 *          certain.  With it (logprobs), an id waits until its text has begun to be given
 *          out, and never comes where all of its text lies in what was cut off. At most
 *          GATE_TOKENS wait; then the oldest comes regardless.
 * Caller   after each push takes all that gate_next() has before the next push.
 * Memory   fixed: gate_bytes() of text are the caller's.
 * Threads  one; the engine's.
 */
#ifndef SERVER_GATE_H
#define SERVER_GATE_H

#include "server/request.h"
#include "tokenizer/detok.h"

#define GATE_TOKENS (REQUEST_MAX_STOP + 16)

struct gate_token {
    struct sample sample;
    uint64_t start;  // of its text
};

struct gate {
    const struct tokenizer *tokenizer;  // borrowed
    const struct request *request;      // borrowed: stop strings
    struct detok detok;
    bool hold;
    bool ended, stopped;
    /* Positions count bytes of the whole text: given <= certain <= end. */
    uint64_t given, certain, end;
    char *text;  // borrowed; [given, end)
    size_t text_cap;
    size_t text_from;                       // where `given` lies in text
    struct gate_token tokens[GATE_TOKENS];  // a ring
    uint32_t first, n;
};

/* Bytes of text that a gate needs, which are also the most that one event may carry. */
size_t gate_bytes(const struct tokenizer *t);

/* text: of gate_bytes(), which outlives the gate's use.  r: the request it serves. */
void gate_init(struct gate *g, const struct tokenizer *t, const struct request *r,
               char *text);
void gate_push(struct gate *g, const struct sample *token);
void gate_end(struct gate *g);  // nothing more will be pushed; all is certain

/* A stop string was found: the reply is over, call gate_end(). */
bool gate_stopped(const struct gate *g);
/* The next EVENT_TOKEN: fills in sample, text and text_n, valid until the next push.
 * False: none for now. */
bool gate_next(struct gate *g, struct event *e);
/* After gate_end(), and when gate_next() has no more: the last piece of text. */
size_t gate_tail(struct gate *g, const char **text);

#endif
