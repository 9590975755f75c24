/* API keys: who may, who may not, and nothing of a key in any message. */
#include "server/keys.h"
#include "tests/files.h"

// cmocka needs these before it
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define ALICE "sk-alice-0123456789"
#define BOB   "sk-bob-9876543210-x"

static struct keys *parsed(const char *text)
{
    struct keys *k = NULL;
    struct err err;
    assert_int_equal(keys_parse(&k, text, strlen(text), "keys", &err), 0);
    return k;
}

static bool match(const struct keys *k, const char *key, uint32_t *tenant)
{
    return keys_match(k, key, strlen(key), tenant);
}

static void a_key_leads_to_its_tenant_and_a_tenant_may_have_several(void **state)
{
    (void)state;
    struct keys *k = parsed("# ours\n\nalice " ALICE "\r\n\tbob\t" BOB "  \n"
                            "alice sk-alice-second-key-1");
    assert_int_equal(keys_count(k), 3);
    assert_int_equal(keys_tenants(k), 2);
    uint32_t tenant = 77;
    assert_true(match(k, ALICE, &tenant));
    assert_string_equal(keys_tenant_name(k, tenant), "alice");
    assert_true(match(k, "sk-alice-second-key-1", &tenant));
    assert_string_equal(keys_tenant_name(k, tenant), "alice");
    assert_true(match(k, BOB, &tenant));
    assert_string_equal(keys_tenant_name(k, tenant), "bob");
    keys_close(k);
}

static void a_wrong_key_is_nobody(void **state)
{
    (void)state;
    struct keys *k = parsed("alice " ALICE "\nbob " BOB "\n");
    static const char *const wrong[] = {"",
                                        "Sk-alice-0123456789",
                                        "sk-alice-0123456780",
                                        "sk-alice-012345678",
                                        ALICE "0",
                                        "alice",
                                        ALICE " ",
                                        "sk-alice-9876543210"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        uint32_t tenant = 77;
        assert_false(match(k, wrong[i], &tenant));
        assert_int_equal(tenant, 77);
    }
    uint32_t tenant;
    assert_false(keys_match(k, ALICE "\0x", sizeof ALICE + 1, &tenant));
    keys_close(k);
}

static void a_wrong_file_is_refused_by_line_and_never_by_key(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "keys holds no key; expected lines of `tenant key`"},
        {"# only\n", "keys holds no key; expected lines of `tenant key`"},
        {"a " ALICE "\nlonely-secret-0123456\n", "keys line 2: expected `tenant key`"},
        {"a " ALICE " more\n", "keys line 1: expected `tenant key` and nothing more"},
        {"a sk-short\n",
         "keys line 1: the key has 8 characters; it must have 16 to 256"},
        {"a/b " ALICE "\n", "keys line 1: the tenant's name must be 1 to 64 letters"},
        {"a sk-alice-\x01"
         "12345678\n",
         "keys line 1: the key holds a character that is not visible ASCII"},
        {"a " ALICE "\nb " ALICE "\n",
         "keys line 2: this key has been given to tenant a already"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct keys *k = NULL;
        struct err err = {{0}};
        assert_int_equal(keys_parse(&k, bad[i].text, strlen(bad[i].text), "keys", &err),
                         -EINVAL);
        assert_memory_equal(err.msg, bad[i].message, strlen(bad[i].message));
        assert_null(strstr(err.msg, "sk-"));
        assert_null(strstr(err.msg, "secret"));
        assert_null(k);
    }
}

static void a_file_that_others_may_read_is_noticed(void **state)
{
    (void)state;
    char path[] = "/tmp/dormouse-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "a " ALICE "\n", sizeof ALICE + 2), sizeof ALICE + 2);
    close(fd);
    struct keys *k;
    struct err err;
    assert_int_equal(keys_open(&k, path, &err), 0);
    assert_false(keys_exposed(k));
    keys_close(k);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(keys_open(&k, path, &err), 0);
    assert_true(keys_exposed(k));
    keys_close(k);
    unlink(path);
    assert_int_equal(keys_open(&k, path, &err), -ENOENT);
}

static void a_pipe_is_refused_and_not_waited_for(void **state)
{
    (void)state;
    char path[256], *dir = files_temp_dir();
    snprintf(path, sizeof path, "%s/keys", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    struct keys *k = NULL;
    struct err err = {{0}};
    assert_int_equal(keys_open(&k, path, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "not a regular file"));
    files_remove_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_leads_to_its_tenant_and_a_tenant_may_have_several),
        cmocka_unit_test(a_wrong_key_is_nobody),
        cmocka_unit_test(a_wrong_file_is_refused_by_line_and_never_by_key),
        cmocka_unit_test(a_file_that_others_may_read_is_noticed),
        cmocka_unit_test(a_pipe_is_refused_and_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
