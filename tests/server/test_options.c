/* Options: one table, three sources, and errors that name where and what. */
#include "server/options.h"
#include "server/options_table.h"
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

#define READ(o, env, err, ...)                                                         \
    options_read(o, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)),           \
                 (char *[]){__VA_ARGS__}, env, err)

static char *no_env[] = {NULL};

static void write_file(char path[], const char *text)
{
    strcpy(path, "/tmp/dormouse-options-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

/* What `print` writes to standard output. */
static char *printed(void (*print)(void))
{
    char path[] = "/tmp/dormouse-print-XXXXXX";
    int fd = mkstemp(path), saved = dup(STDOUT_FILENO);
    assert_true(fd >= 0 && saved >= 0);
    fflush(stdout);
    dup2(fd, STDOUT_FILENO);
    print();
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    off_t n = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)n + 1);
    assert_int_equal(pread(fd, text, (size_t)n, 0), n);
    close(fd);
    unlink(path);
    return text;
}

static void every_default_is_a_value_its_own_option_accepts(void **state)
{
    (void)state;
    struct options o;
    for (uint32_t i = 0; i < serve_options.n; i++) {
        struct err err;
        assert_int_equal(option_set(&serve_options.option[i], &o,
                                    serve_options.option[i].value, "default", &err),
                         0);
    }
    options_defaults(&o);
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.port, 8080);
    assert_int_equal(o.margin, 512 << 20);
    assert_int_equal(o.stall_ms, 30000);
    assert_int_equal(o.kv_type, DTYPE_F16);
}

static void a_flag_wins_over_the_environment_and_that_over_the_file(void **state)
{
    (void)state;
    char path[64];
    write_file(path, "[http]\nport = 1\nworkers = 3\nhttp_threads = 3\n");
    char config[80];
    snprintf(config, sizeof config, "--config=%s", path);
    char *env[] = {"DORMOUSE_PORT=2", "DORMOUSE_WORKERS=4", "OTHER=1", NULL};
    struct options o;
    struct err err;
    assert_int_equal(READ(&o, env, &err, config, "--port", "5"), 0);
    assert_int_equal(o.port, 5);
    assert_int_equal(o.workers, 4);
    assert_int_equal(o.http_threads, 3);
    unlink(path);
}

static void sizes_times_and_booleans_are_read_as_people_write_them(void **state)
{
    (void)state;
    struct options o;
    struct err err;
    assert_int_equal(READ(&o, no_env, &err, "models/x", "--kv-memory=2G", "--margin",
                          "64 MiB", "--stall=1m", "--step-time", "20ms", "--allow-open",
                          "--no-completions-special", "--kv-type=f32"),
                     0);
    assert_string_equal(o.model, "models/x");
    assert_true(o.kv_bytes == 2ull << 30);
    assert_int_equal(o.margin, 64 << 20);
    assert_int_equal(o.stall_ms, 60000);
    assert_int_equal(o.step_ms, 20);
    assert_true(o.allow_open);
    assert_false(o.completions_special);
    assert_int_equal(o.kv_type, DTYPE_F32);
}

static void a_wrong_flag_is_named_with_what_would_be_right(void **state)
{
    (void)state;
    static const struct {
        const char *arg, *message;
    } bad[] = {
        {"--prot=1", "flag --prot is unknown; did you mean --port?"},
        {"--kv-memry=1", "flag --kv-memry is unknown; did you mean --kv-memory?"},
        {"--nothing-like-it=1",
         "flag --nothing-like-it is unknown; `dormouse serve --help` lists all"},
        {"--port=65536", "flag --port: `65536` is not a whole number from 0 to 65535"},
        {"--port=-1", "flag --port: `-1` is not a whole number from 0 to 65535"},
        {"--port=1.5", "flag --port: `1.5` is not a whole number from 0 to 65535"},
        {"--port=", "flag --port: `` is not a whole number from 0 to 65535"},
        {"--port=99999999999999999999",
         "flag --port: `99999999999999999999` is not a whole number from 0 to 65535"},
        {"--port", "flag --port needs a value"},
        {"--kv-memory=9999999T", "flag --kv-memory: `9999999T` is not a size from 0 to "
                                 "1125899906842624 bytes, such as 512M or 2G"},
        {"--stall=30",
         "flag --stall: `30` is not a time from 100ms to 3600000ms, such as "
         "250ms or 30s"},
        {"--allow-open=maybe", "flag --allow-open: `maybe` is not true or false"},
        {"--no-allow-open=true", "flag --no-allow-open takes no value"},
        {"--log-level=loud", "flag --log-level: `loud` is not one of "
                             "error|warn|info|debug"},
        {"--kv-type=int3", "flag --kv-type: `int3` is not one of f32|f16|bf16"},
        {"--host=", "flag --host: `` is not 1 to 255 bytes of text without control "
                    "characters"},
        {"-p", "flag -p is unknown; `dormouse serve --help` lists all"},
        {"--max_body=1", "flag --max_body is unknown; did you mean --max-body?"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct options o;
        struct err err = {{0}};
        assert_int_equal(READ(&o, no_env, &err, (char *)bad[i].arg), -EINVAL);
        assert_string_equal(err.msg, bad[i].message);
    }
    struct options o;
    struct err err;
    assert_int_equal(READ(&o, no_env, &err, "one", "two"), -EINVAL);
    assert_non_null(strstr(err.msg, "both one and two"));
}

static void a_value_apart_from_a_flag_that_is_true_or_false_is_refused(void **state)
{
    (void)state;
    static char *const flags[] = {"--exact", "--no-exact"};
    struct options o;
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        struct err err = {{0}};
        assert_int_equal(READ(&o, no_env, &err, "model", flags[i], "false"), -EINVAL);
        char right[256];
        snprintf(right, sizeof right,
                 "flag %s takes a value only behind `=`, but `false` follows it; write "
                 "--exact=false, or ./false where a model of that name is meant",
                 flags[i]);
        assert_string_equal(err.msg, right);
    }
    assert_int_equal(READ(&o, no_env, NULL, "--exact", "./false"), 0);
    assert_string_equal(o.model, "./false");
    assert_true(o.exact);
    assert_int_equal(READ(&o, no_env, NULL, "--name", "on", "--exact", "model"), 0);
    assert_string_equal(o.name, "on");
}

static void what_is_given_twice_is_refused(void **state)
{
    (void)state;
    static char *const twice[][3] = {
        {"--port=1", "--port=1", "flag --port"},
        {"--port=1", "--port=2", "flag --port"},
        {"--exact", "--no-exact", "flag --no-exact"},
        {"--ssd=", "--ssd=x", "flag --ssd"},
        {"--config=", "--config=x", "flag --config"},
        {"--model=a", "b", "the model directory"},
        {"a", "--model=b", "flag --model"},
    };
    for (size_t i = 0; i < ARRAY_LEN(twice); i++) {
        struct options o;
        struct err err = {{0}};
        char text[128];
        snprintf(text, sizeof text, "%s is given twice; expected once", twice[i][2]);
        assert_int_equal(
            READ(&o, no_env, &err, twice[i][0], "--ram", "1G", twice[i][1]), -EINVAL);
        assert_string_equal(err.msg, text);
    }
}

static void a_context_holds_a_token_of_each_prompt_and_reply(void **state)
{
    (void)state;
    static const char right[] = ": `1` is not 0 or a whole number from 2 to 1073741824";
    char *env[] = {"DORMOUSE_CONTEXT=1", NULL};
    char path[64], config[80];
    write_file(path, "context = 1\n");
    snprintf(config, sizeof config, "--config=%s", path);
    struct options o;
    struct err err = {{0}};
    assert_int_equal(READ(&o, no_env, &err, "--context=1"), -EINVAL);
    assert_non_null(strstr(err.msg, "flag --context"));
    assert_non_null(strstr(err.msg, right));
    assert_int_equal(READ(&o, env, &err, "--port=1"), -EINVAL);
    assert_non_null(strstr(err.msg, "environment variable DORMOUSE_CONTEXT"));
    assert_non_null(strstr(err.msg, right));
    assert_int_equal(READ(&o, no_env, &err, config), -EINVAL);
    assert_non_null(strstr(err.msg, "line 1, key context"));
    assert_non_null(strstr(err.msg, right));
    unlink(path);
    for (uint32_t n = 0; n < 4; n += n ? 1 : 2) {
        char flag[32];
        snprintf(flag, sizeof flag, "--context=%u", n);
        assert_int_equal(READ(&o, no_env, &err, flag), 0);
        assert_int_equal(o.context, n);
    }
}

static void
a_short_flag_is_likened_to_what_begins_so_or_differs_in_one_letter(void **state)
{
    (void)state;
    static const struct {
        char *arg;
        const char *near;
    } cases[] = {
        {"--rom=1", "did you mean --ram?"},
        {"--sdd=x", "did you mean --ssd?"},
        {"--prt=1", "did you mean --port?"},
        {"--top=1", "lists all"},
        {"--tls=1", "lists all"},
        {"--log=1", "did you mean --log-level?"},
        {"--ip=1", "lists all"},
        {"--x=1", "lists all"},
        {"--hots=1", "did you mean --host?"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct options o;
        struct err err = {{0}};
        assert_int_equal(READ(&o, no_env, &err, cases[i].arg), -EINVAL);
        if (!strstr(err.msg, cases[i].near)) fail_msg("%s", err.msg);
    }
}

static void a_wrong_line_of_the_file_is_named_with_its_number(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"# ok\n\nporth = 1\n", " line 3, key porth is unknown; did you mean port?"},
        {"port = x\n", " line 1, key port: `x` is not a whole number from 0 to 65535"},
        {"port = 1\n\n  port = 2\n", " line 3, key port was set in line 1 already"},
        {"kv-memory = 1\n",
         " line 1, key kv-memory is unknown; did you mean kv_memory?"},
        {"port = 1\nnonsense\n",
         " line 2 is neither `key = value`, a [section] nor a comment"},
        {"config = x\n", " line 1, key config is unknown"},
        {"# mine ; # yours\nport = 9000 # mine\n",
         " line 2 has # or ; behind a blank; a comment has a line of its own"},
        {"share = a,b ; c,d\n",
         " line 1 has # or ; behind a blank; a comment has a line of its own"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char path[64], config[80];
        write_file(path, bad[i].text);
        snprintf(config, sizeof config, "--config=%s", path);
        struct options o;
        struct err err = {{0}};
        assert_int_equal(READ(&o, no_env, &err, config), -EINVAL);
        assert_memory_equal(err.msg, path, strlen(path));
        assert_memory_equal(err.msg + strlen(path), bad[i].message,
                            strlen(bad[i].message));
        unlink(path);
    }
}

static void a_line_that_is_too_long_is_refused_and_not_cut(void **state)
{
    (void)state;
    char text[4096] = "port = 1\nname = ", path[64];
    size_t n = strlen(text);
    memset(text + n, 'a', 3000);
    write_file(path, text);
    struct options o;
    struct err err;
    options_defaults(&o);
    assert_int_equal(option_read_file(&o, path, &err), -EINVAL);
    assert_non_null(strstr(err.msg, " line 2 is longer than "));
    unlink(path);

    assert_int_equal(option_read_file(&o, "/nonexistent/x.ini", &err), -ENOENT);
    assert_non_null(strstr(err.msg, "/nonexistent/x.ini"));
}

static void a_pipe_is_refused_and_not_waited_for(void **state)
{
    (void)state;
    char path[256], *dir = files_temp_dir();
    snprintf(path, sizeof path, "%s/dormouse.ini", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    struct options o;
    struct err err = {{0}};
    options_defaults(&o);
    assert_int_equal(option_read_file(&o, path, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "not a regular file"));
    files_remove_dir(dir);
}

static void a_wrong_environment_variable_is_named(void **state)
{
    (void)state;
    char *env[] = {"DORMOUSE_PORT=tcp://10.0.0.1:80", NULL};
    struct options o;
    struct err err;
    assert_int_equal(options_read(&o, 0, NULL, env, &err), -EINVAL);
    assert_string_equal(err.msg,
                        "environment variable DORMOUSE_PORT: `tcp://10.0.0.1:80` "
                        "is not a whole number from 0 to 65535");
}

static void
a_misspelt_environment_variable_is_refused_and_a_strange_one_is_not(void **state)
{
    (void)state;
    char *misspelt[] = {"DORMOUSE_KV_MEMROY=1G", NULL};
    char *strange[] = {
        "DORMOUSE_SERVICE_HOST=10.0.0.1",       "DORMOUSE_",   "DORMOUSE_CONFIG=",
        "DORMOUSE_PORT_8080_TCP_ADDR=10.0.0.1", "DORMOUSES=3", NULL};
    struct options o;
    struct err err;
    assert_int_equal(options_read(&o, 0, NULL, misspelt, &err), -EINVAL);
    assert_string_equal(err.msg, "environment variable DORMOUSE_KV_MEMROY is unknown; "
                                 "did you mean DORMOUSE_KV_MEMORY?");
    assert_int_equal(options_read(&o, 0, NULL, strange, &err), 0);
    char *small[] = {"DORMOUSE_port=1", NULL};
    assert_int_equal(options_read(&o, 0, NULL, small, &err), -EINVAL);
    assert_non_null(strstr(err.msg, "did you mean DORMOUSE_PORT?"));
}

static void help_mentions_every_option(void **state)
{
    (void)state;
    char *text = printed(options_help);
    for (uint32_t i = 0; i < serve_options.n; i++) {
        char flag[64] = "\n  --", *p = flag + strlen(flag);
        for (const char *k = serve_options.option[i].key; *k; k++)
            *p++ = *k == '_' ? '-' : *k;
        *p = 0;
        assert_non_null(strstr(text, flag));
    }
    free(text);
}

static void the_reference_file_is_what_the_table_says(void **state)
{
    (void)state;
    char *text = printed(options_print_reference);
    FILE *f = fopen("models.example/dormouse.ini", "r");
    assert_non_null(f);
    char *file = calloc(1, 1 << 16);
    assert_true(fread(file, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    assert_string_equal(text, file);

    /* And with every # removed from before a key, it is a file that is accepted. */
    char path[64];
    for (char *p = file; (p = strstr(p, "\n#")); p++)
        if (p[2] != ' ' && p[2] != '\n') p[1] = ' ';
    write_file(path, file);
    struct options o, defaults;
    struct err err;
    memset(&o, 0, sizeof o);
    options_defaults(&defaults);
    assert_int_equal(option_read_file(&o, path, &err), 0);
    assert_memory_equal(&o, &defaults, sizeof o);
    unlink(path);
    free(file);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_default_is_a_value_its_own_option_accepts),
        cmocka_unit_test(a_flag_wins_over_the_environment_and_that_over_the_file),
        cmocka_unit_test(sizes_times_and_booleans_are_read_as_people_write_them),
        cmocka_unit_test(a_wrong_flag_is_named_with_what_would_be_right),
        cmocka_unit_test(a_value_apart_from_a_flag_that_is_true_or_false_is_refused),
        cmocka_unit_test(what_is_given_twice_is_refused),
        cmocka_unit_test(a_context_holds_a_token_of_each_prompt_and_reply),
        cmocka_unit_test(
            a_short_flag_is_likened_to_what_begins_so_or_differs_in_one_letter),
        cmocka_unit_test(a_wrong_line_of_the_file_is_named_with_its_number),
        cmocka_unit_test(a_line_that_is_too_long_is_refused_and_not_cut),
        cmocka_unit_test(a_pipe_is_refused_and_not_waited_for),
        cmocka_unit_test(a_wrong_environment_variable_is_named),
        cmocka_unit_test(
            a_misspelt_environment_variable_is_refused_and_a_strange_one_is_not),
        cmocka_unit_test(help_mentions_every_option),
        cmocka_unit_test(the_reference_file_is_what_the_table_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
