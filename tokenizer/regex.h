/* regex.h - the regular expressions of tokenizer.json files (the only user of PCRE2).
 *
 * Owns     compiled patterns, and the working memory of one encoding (regex_run).
 * Syntax   that of Oniguruma, for which the files are written, as far as PCRE2 gives it
 *          the same meaning; the rest is refused at open, by name.  Line ends are "\n",
 *          ^ and $ match at each line.
 * Bounds   all searches of one regex_run share a budget of work: bytes walked over, back
 *          and forth, and items of the pattern tried.  When it is used up a search fails,
 *          so that no pattern and no text can hang, and none is split wrongly.
 * Threads  a regex is immutable; a regex_run is one thread's.
 */
#ifndef TOKENIZER_REGEX_H
#define TOKENIZER_REGEX_H

#include "kernels/base.h"

struct regex;
struct regex_run;

/* literal: the pattern is that very text.  -EINVAL with what is wrong with it. */
NODISCARD int regex_open(struct regex **out, const char *pattern, size_t n,
                         bool literal, struct err *err);
void regex_close(struct regex *r);  // NULL is fine

NODISCARD int regex_run_open(struct regex_run **out, uint64_t budget);  // -ENOMEM
void regex_run_close(struct regex_run *run);                            // NULL is fine

/* The first match in s[0..n) that begins at `from` or later: 1 and where it is, or 0.
 * s is well-formed UTF-8 with its stand-ins (regex_classes.h).  What lies before `from`
 * is seen by look-behinds.  -E2BIG: the budget is used up.  -ENOMEM. */
NODISCARD int regex_find(const struct regex *r, struct regex_run *run, const char *s,
                         size_t n, size_t from, size_t *match_from, size_t *match_to,
                         struct err *err);

#endif
