/* options_table.h - the one table behind options.h; private to options*.c and its tests.
 *
 * Owns     nothing; the table is constant.
 * Threads  pure functions.
 */
#ifndef SERVER_OPTIONS_TABLE_H
#define SERVER_OPTIONS_TABLE_H

#include "server/options.h"

enum option_type {
    OPTION_STRING,
    OPTION_CHOICE,    // a string out of `choices`
    OPTION_COUNT,     // uint32_t
    OPTION_SIZE,      // uint64_t bytes: 512M, 2G; K, M and G are binary
    OPTION_DURATION,  // uint32_t milliseconds, written with a unit: 30s, 250ms
    OPTION_BOOL,
    OPTION_DTYPE,
    OPTION_WEIGHTS  // enum weight_format
};

struct option {
    const char *key;  // of the file; the flag has '-' for '_'
    enum option_type type;
    size_t offset, size;  // within struct options
    const char *value;    // the default, as a person would write it
    uint64_t min, max;    // of numbers; of strings: the shortest and longest length
    const char *choices;  // "a|b|c"; an empty choice is the empty string
    const char *group;
    const char *help;  // whole sentences
};

extern const struct option option_table[];
extern const uint32_t option_count;

/* NULL where there is none.  '-' counts as '_'. */
const struct option *option_find(const char *key);
/* The key most like this one; NULL where none is near. */
const struct option *option_nearest(const char *key);

/* "a whole number from 0 to 65535": what a value of this option must be. */
void option_expects(const struct option *o, char *buf, size_t cap);
void option_print(const struct option *o);  // its part of a --help, to standard output
const char *option_placeholder(const struct option *o);  // "N", "SIZE", "TEXT" ...

/* Parse value into the field of `to`, the struct that the option's table is about: struct
 * options, or that of another command.  `where` opens the message: "FILE line 3, key port". */
NODISCARD int option_set(const struct option *o, void *to, const char *value,
                         const char *where, struct err *err);
/* -EINVAL with "WHERE is unknown" and the nearest key as it would be written there. */
int option_unknown(const char *key, const char *where, bool flag, struct err *err);

/* Read a configuration file into `to`. */
NODISCARD int option_read_file(struct options *to, const char *path, struct err *err);

#endif
