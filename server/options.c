#include "server/options.h"

#include "server/log.h"
#include "server/options_table.h"
#include "server/version.h"

#include <stdio.h>
#include <string.h>

#define PREFIX "DORMOUSE_"

void options_defaults(struct options *to)
{
    memset(to, 0, sizeof *to);
    option_set_defaults(&serve_options, to);
}

/* ---- environment ---- */

/* DORMOUSE_KV_MEMORY for kv_memory, with "=" behind it. */
static void env_name(char *buf, size_t cap, const char *key)
{
    size_t n = (size_t)snprintf(buf, cap, PREFIX "%s=", key);
    for (size_t i = sizeof PREFIX - 1; i < n; i++)
        if (buf[i] >= 'a' && buf[i] <= 'z') buf[i] = (char)(buf[i] - 'a' + 'A');
}

static const char *env_find(char **env, const char *key)
{
    char name[64];
    env_name(name, sizeof name, key);
    for (size_t n = strlen(name); env && *env; env++)
        if (strncmp(*env, name, n) == 0) return *env + n;
    return NULL;
}

/* A variable with our prefix that is no option's.  What is nearly one is a misspelling and
 * refused, as in a file; others may be meant for something else, and are named in the log
 * (Kubernetes sets DORMOUSE_SERVICE_HOST beside a service of this name; its DORMOUSE_PORT, an
 * address, it has to be told to leave out: README.md). */
static int check_stranger(const char *variable, struct err *err)
{
    char key[64];
    size_t n = strcspn(variable, "=") - (sizeof PREFIX - 1), i = 0;
    for (const char *p = variable + sizeof PREFIX - 1; i < n && i + 1 < sizeof key; i++)
        key[i] = (char)(p[i] >= 'A' && p[i] <= 'Z' ? p[i] - 'A' + 'a' : p[i]);
    key[i] = 0;
    const struct option *near = option_find(&serve_options, key);
    if (!near) near = option_nearest(&serve_options, key);
    int shown = (int)strcspn(variable, "=");
    if (shown > 80) shown = 80;
    if (!near && strcmp(key, "config"))
        log_line(LOG_WARN, "environment variable %.*s is no option and is not used",
                 shown, variable);
    if (!near) return 0;
    char name[64];
    env_name(name, sizeof name, near->key);
    if (strncmp(variable, name, strlen(name)) == 0) return 0;
    return err_set(err, -EINVAL,
                   "environment variable %.*s is unknown; did you mean %.*s?", shown,
                   variable, (int)strcspn(name, "="), name);
}

static int read_env(struct options *to, char **env, struct err *err)
{
    for (char **e = env; e && *e; e++) {
        if (strncmp(*e, PREFIX, sizeof PREFIX - 1)) continue;
        int rc = check_stranger(*e, err);
        if (rc) return rc;
    }
    for (uint32_t i = 0; i < serve_options.n; i++) {
        const char *value = env_find(env, serve_options.option[i].key);
        if (!value) continue;
        char name[64], where[96];
        env_name(name, sizeof name, serve_options.option[i].key);
        name[strlen(name) - 1] = 0;
        snprintf(where, sizeof where, "environment variable %s", name);
        int rc = option_set(&serve_options.option[i], to, value, where, err);
        if (rc) return rc;
    }
    return 0;
}

/* ---- flags ---- */

/* The configuration file that flags or environment name; NULL: none. */
static int find_config(int argc, char **argv, char **env, const char **path,
                       struct err *err)
{
    *path = env_find(env, "config");
    struct option_args in = {.argv = argv, .n = argc};
    while (in.at < in.n) {
        struct option_arg a;
        int rc = option_next_arg(&serve_options, &in, &a, err);
        if (rc) return rc;
        if (!a.option && !a.positional) *path = a.value;
    }
    if (*path && !**path) *path = NULL;
    return 0;
}

static int read_flags(struct options *to, int argc, char **argv, struct err *err)
{
    const struct option *model = option_find(&serve_options, "model");
    const char *path = NULL;
    struct option_args in = {.argv = argv, .n = argc};
    while (in.at < in.n) {
        struct option_arg a;
        int rc = option_next_arg(&serve_options, &in, &a, err);
        if (rc) return rc;
        if (a.positional) {
            if (path)
                return err_set(
                    err, -EINVAL,
                    "one model directory is served, but both %.100s and %.100s "
                    "are given",
                    path, a.value);
            path = a.value;
            rc = option_once(&serve_options, &in, model, "the model directory", err);
            if (rc == 0) rc = option_set(model, to, path, "the model directory", err);
        } else if (a.option) {
            rc = option_set(a.option, to, a.value, a.where, err);
        }
        if (rc) return rc;
    }
    return 0;
}

int options_read(struct options *to, int argc, char **argv, char **env, struct err *err)
{
    options_defaults(to);
    if (option_asked(argc, argv, "--help", "-h")) {
        options_help();
        return 1;
    }
    if (option_asked(argc, argv, "--version", "-V")) {
        puts("dormouse " DORMOUSE_VERSION);
        return 1;
    }
    const char *config;
    int rc = find_config(argc, argv, env, &config, err);
    if (rc == 0 && config) rc = option_read_file(to, config, err);
    if (rc == 0) rc = read_env(to, env, err);
    if (rc == 0) rc = read_flags(to, argc, argv, err);
    return rc;
}

/* ---- help ---- */

void options_help(void)
{
    puts("Usage: dormouse serve [PATH] [--flag value]...\n\n"
         "Serves the model in directory PATH over an OpenAI-style HTTP API.\n\n"
         "Every flag is also a key of the configuration file (--kv-memory is "
         "kv_memory)\n"
         "and an environment variable (DORMOUSE_KV_MEMORY). Flags win over the\n"
         "environment, and the environment over the file. TIME is 250ms or 30s, SIZE\n"
         "is 512M or 2G. A flag that is true or false is given as --flag or\n"
         "--no-flag. Each is given once. `dormouse options` prints a configuration "
         "file of all defaults.\n\n"
         "  --config FILE\n"
         "        The configuration file. DORMOUSE_CONFIG says the same.\n"
         "  --help, -h\n"
         "        This text.\n"
         "  --version, -V\n"
         "        The version.");
    option_print_list(&serve_options);
}

void options_print_reference(void)
{
    puts("# dormouse.ini - every option with its default, as `dormouse options` prints "
         "it.\n"
         "#\n"
         "# dormouse serve --config FILE reads such a file.  Remove the # before a key "
         "to\n"
         "# set it.  A flag or an environment variable wins over the file.  The "
         "[sections]\n"
         "# only order it.  A comment has a line of its own.");
    const char *group = "";
    for (uint32_t i = 0; i < serve_options.n; i++) {
        const struct option *o = &serve_options.option[i];
        if (strcmp(group, o->group)) printf("\n[%s]\n", o->group);
        group = o->group;
        char expected[128];
        option_expects(o, expected, sizeof expected);
        putchar('\n');
        option_wrap("# ", o->help);
        printf("# Value: %s.\n", expected);
        printf("#%s =%s%s\n", o->key, o->value[0] ? " " : "", o->value);
    }
}
