/* api_shared.h - one fixture of api_fixture.h that all tests of a program share.
 *
 * Owns     f, between open_all() and close_all(), which a program gives to cmocka.
 */
#ifndef TESTS_SERVER_API_SHARED_H
#define TESTS_SERVER_API_SHARED_H

#include "tests/server/api_fixture.h"

static struct fixture f;

static inline int open_all(void **state)
{
    (void)state;
    fixture_open(&f);
    return 0;
}

static inline int close_all(void **state)
{
    (void)state;
    fixture_close(&f);
    return 0;
}

static inline int32_t id_of(const char *text)
{
    int32_t id = tokenizer_find(f.tokenizer, text, strlen(text));
    assert_true(id >= 0);
    return id;
}

#endif
