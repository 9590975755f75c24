/* jinja.h - the template language of chat templates: compile once, render anywhere.
 *
 * Owns     a compiled template (struct jinja) and everything in it.
 * Language Jinja 3.1 as chat templates are rendered: trim_blocks, lstrip_blocks, loop
 *          controls, {% generation %}, the immutable sandbox, tojson as json.dumps, and
 *          the functions raise_exception and strftime_now.  Values, operators, methods
 *          and printing are Python's.
 * Refused  at compile time, by name and line: inheritance, includes and imports, and
 *          every filter, test or tag that does not exist here.
 * Threads  a compiled template is immutable; any thread may render it.
 */
#ifndef TOKENIZER_JINJA_H
#define TOKENIZER_JINJA_H

#include "kernels/json.h"

struct jinja;

NODISCARD int jinja_compile(struct jinja **out, const char *source, size_t n,
                            struct err *err);
void jinja_free(struct jinja *t);  // NULL is fine

/* What a render is given.  Strings of the context count as user data, except a
 * message's role that is one of the known ones; bos and eos are the template's own. */
struct jinja_input {
    struct json_value context;  // an object: the template's variables
    size_t context_size;        // bytes of the document; limits grow with it
    const char *bos, *eos;      // NULL: undefined
    int64_t now;
};

/* Can a variable have that number?  Integers of 38 digits and what a double holds can. */
bool jinja_holds_number(struct json_value number);
/* Is that the name of a function that every template has, so none of a variable? */
bool jinja_has_function(struct json_value name);

struct jinja_output {
    char *text;      // n bytes and a final NUL
    uint8_t *marks;  // n bytes: 1 where the text came from the context
    size_t n;
};
void jinja_output_free(struct jinja_output *o);

/* Why a render failed. */
struct jinja_fault {
    const char *kind;  // "raise_exception", Python's name ("TypeError"), or "limit"
    unsigned line;
    char message[400];
};

/* -EINVAL, -E2BIG, -ENOMEM; `fault` tells why. */
NODISCARD int jinja_render(const struct jinja *t, const struct jinja_input *in,
                           struct jinja_output *out, struct jinja_fault *fault);

#endif
