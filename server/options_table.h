/* options_table.h - tables of options: what they hold, and how they are read and shown.
 *
 * `dormouse serve` has one (options_table.c), `dormouse plan` another (plan_table.c).
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
    const char *choices;  // "a|b|c"; an empty choice is the empty string.  "0" with a
                          // number: that is right too, and has a meaning of its own
    const char *group;
    const char *help;  // whole sentences
};

/* The options of one command. */
struct option_list {
    const struct option *option;
    uint32_t n;
    const char *command;    // whose --help lists them
    const char *file_flag;  // takes a value and is no option: "config"; NULL: none does
};

extern const struct option_list serve_options;

/* NULL where there is none.  '-' counts as '_'. */
const struct option *option_find(const struct option_list *l, const char *key);
/* The key most like this one; NULL where none is near. */
const struct option *option_nearest(const struct option_list *l, const char *key);

/* "a whole number from 0 to 65535": what a value of this option must be. */
void option_expects(const struct option *o, char *buf, size_t cap);
/* Words to standard output, each line behind `indent` and less than 80 wide. */
void option_wrap(const char *indent, const char *text);
void option_print_list(const struct option_list *l);     // their --help, in groups
const char *option_placeholder(const struct option *o);  // "N", "SIZE", "TEXT" ...

/* Parse value into the field of `to`, the struct that the option's table is about: struct
 * options, or that of another command.  `where` opens the message: "FILE line 3, key port". */
NODISCARD int option_set(const struct option *o, void *to, const char *value,
                         const char *where, struct err *err);
bool option_is_bool(const char *text);  // a value of an option that is true or false
/* All of them to their defaults; `to` holds zeros. */
void option_set_defaults(const struct option_list *l, void *to);
/* -EINVAL with "WHERE is unknown" and the nearest key as it would be written there. */
int option_unknown(const struct option_list *l, const char *key, const char *where,
                   bool flag, struct err *err);

/* ---- a command line (options_args.c) ---- */

#define OPTION_MOST 64  // no table has more

struct option_args {
    char **argv;
    int n, at;
    bool seen[OPTION_MOST + 1];  // each option, and last the file flag
};

/* One flag with its value, or a positional argument. */
struct option_arg {
    char key[64];
    char where[96];  // "flag --port"
    const char *value;
    const struct option *option;  // NULL: the file flag, or positional
    bool positional;
};

/* Take the next one of args, of which there is one.  "--x" alone makes an option that is
 * true or false true, "--no-x" false.  What was given before is refused: which of two values
 * is meant is not for us to say. */
NODISCARD int option_next_arg(const struct option_list *l, struct option_args *args,
                              struct option_arg *a, struct err *err);
/* Mark `o` as given; a positional argument that says the same as a flag comes here itself. */
NODISCARD int option_once(const struct option_list *l, struct option_args *args,
                          const struct option *o, const char *where, struct err *err);
/* Is one of the two words in argv? */
bool option_asked(int argc, char **argv, const char *long_flag, const char *short_flag);

/* Read a configuration file into `to`. */
NODISCARD int option_read_file(struct options *to, const char *path, struct err *err);

#endif
