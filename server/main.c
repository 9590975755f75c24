/* main.c - the command line: builds the rooms, waits for a signal, takes them down. */
#include "server/http.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/plan.h"
#include "server/stack.h"
#include "server/version.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLUSH_MS 2000  // for last frames that are written but not read yet
#define LOOK_S   5     // how often the tier's file is looked for

static const char usage[] =
    "dormouse " DORMOUSE_VERSION " - an LLM inference server\n\n"
    "Usage: dormouse serve [PATH] [--flag value]...\n"
    "       dormouse options              print a configuration file of all defaults\n"
    "       dormouse plan [TRACE] ...     what tiers would do for a trace of requests\n"
    "       dormouse help                 this text\n"
    "       dormouse --version\n\n"
    "`dormouse serve --help` and `dormouse plan --help` list every option.\n";

/* ---- signals ---- */

/* One thread takes SIGTERM and SIGINT; all others have them blocked.  The first one, once
 * the server runs, asks for the end; a second ends the drain; before that and after that
 * there is nothing to lose, and the process ends where it stands. */
struct signals {
    pthread_mutex_t lock;   // guards engine
    struct engine *engine;  // NULL: the model is not there yet
    sem_t asked;
    sigset_t set;
};

static void *take_signals(void *arg)
{
    struct signals *s = arg;
    for (int count = 0;;) {
        int signal;
        if (sigwait(&s->set, &signal)) continue;
        pthread_mutex_lock(&s->lock);
        if (!s->engine || ++count > 2) _exit(count > 2 ? 1 : 0);
        if (count == 2) engine_drain_now(s->engine);
        pthread_mutex_unlock(&s->lock);
        log_line(LOG_INFO, "signal %d: %s", signal,
                 count == 1 ? "no new requests; running replies may finish"
                            : "running replies end now");
        if (count == 1) sem_post(&s->asked);
    }
    return NULL;
}

/* Before any other thread, so that all inherit the mask. */
static int start_signals(struct signals *s, struct err *err)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write()
    pthread_mutex_init(&s->lock, NULL);
    sem_init(&s->asked, 0, 0);
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGTERM);
    sigaddset(&s->set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &s->set, NULL);
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, take_signals, s);
    if (rc) return err_set(err, -rc, "signals cannot be taken: %s", strerror(rc));
    pthread_detach(thread);
    return 0;
}

/* False: some time has passed. */
static bool asked_to_end(struct signals *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOOK_S;
    while (sem_timedwait(&s->asked, &until))
        if (errno == ETIMEDOUT) return false;
    return true;
}

/* The files that are open go on working, so that nothing else would tell. */
static void wait_for_signal(struct signals *s, struct engine *engine,
                            const struct tier *ssd)
{
    pthread_mutex_lock(&s->lock);
    s->engine = engine;
    pthread_mutex_unlock(&s->lock);
    while (!asked_to_end(s)) {
        if (!ssd || tier_lasts(ssd)) continue;
        log_line(LOG_WARN,
                 "the %s tier's file has been deleted: conversations that sleep in it "
                 "can be woken until the server ends, and are lost then",
                 ssd->medium->name);
        ssd = NULL;  // told once
    }
}

/* ---- serve ---- */

struct server {
    struct options options;
    char name[OPTION_TEXT];
    struct keys *keys;
    struct metrics *metrics;
    struct http *http;
    struct stack stack;
    struct signals signals;
};

/* The directory's own name: "smollm2" of "models/smollm2/". */
static void name_model(struct server *s)
{
    const char *text = s->options.name[0] ? s->options.name : s->options.model;
    snprintf(s->name, sizeof s->name, "%s", text);
    if (s->options.name[0]) return;
    char resolved[4096];
    if (realpath(text, resolved)) text = resolved;
    const char *slash = strrchr(text, '/');
    snprintf(s->name, sizeof s->name, "%.*s", OPTION_TEXT - 1,
             slash ? slash + 1 : text);
}

static int open_keys(struct server *s, struct err *err)
{
    const char *path = s->options.keys;
    if (!path[0]) return 0;
    int rc = keys_open(&s->keys, path, err);
    if (rc) return rc;
    log_line(LOG_INFO, "keys: %u, tenants: %u", keys_count(s->keys),
             keys_tenants(s->keys));
    if (keys_exposed(s->keys))
        log_line(LOG_WARN,
                 "keys: others than the owner may read %s; chmod 600 is better", path);
    return 0;
}

static void say_ready(const struct server *s)
{
    const char *at = http_address(s->http);
    bool chat = s->stack.chat;
    log_line(LOG_INFO, "listening on %s", at);
    log_line(LOG_INFO,
             "try: curl %s/v1/%s%s -H 'Content-Type: application/json' -d '%s'", at,
             chat ? "chat/completions" : "completions",
             s->keys ? " -H \"Authorization: Bearer $KEY\"" : "",
             chat ? "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}"
                  : "{\"prompt\":\"Hello\",\"max_tokens\":20}");
}

/* Where it listens was looked at by listening there, and is free again at once. */
static int check_rest(struct server *s, const struct stack_options *stack,
                      struct err *err)
{
    http_close(s->http);
    s->http = NULL;
    int rc = stack_check(&s->stack, stack, err);
    if (rc == 0) log_line(LOG_INFO, "the configuration is good");
    return rc;
}

static int serve(struct server *s, struct err *err)
{
    name_model(s);
    int rc = start_signals(&s->signals, err);
    if (rc == 0) rc = open_keys(s, err);
    if (rc == 0) rc = metrics_open(&s->metrics, s->name, err);
    if (rc) return rc;

    struct stack_options stack = {.options = &s->options,
                                  .name = s->name,
                                  .metrics = s->metrics,
                                  .keys = s->keys,
                                  .tick = http_tick};
    const struct http_options http = {
        .options = &s->options, .keys = s->keys, .metrics = s->metrics};
    rc = http_open(&s->http, &http, err);
    if (rc) return rc;
    if (s->options.check_config) return check_rest(s, &stack, err);
    stack.tick_arg = s->http;
    rc = stack_check(&s->stack, &stack, err);
    if (rc == 0) rc = stack_start(&s->stack, &stack, err);
    if (rc) return rc;
    http_serve(s->http, s->stack.api);
    say_ready(s);

    wait_for_signal(&s->signals, s->stack.engine, s->stack.tiers.ssd);
    http_drain(s->http);
    engine_drain(s->stack.engine, s->options.drain_ms);
    return 0;
}

static void close_all(struct server *s)
{
    /* The connections first: they hold calls, and these requests of the engine. */
    if (s->http) http_stop(s->http, FLUSH_MS);
    pthread_mutex_lock(&s->signals.lock);
    s->signals.engine = NULL;
    pthread_mutex_unlock(&s->signals.lock);
    stack_close(&s->stack);
    http_close(s->http);
    metrics_close(s->metrics);
    keys_close(s->keys);
}

static int command_serve(int argc, char **argv, char **env)
{
    struct err err = {{0}};
    struct server *s = calloc(1, sizeof *s);
    if (!s) return 1;
    int rc = options_read(&s->options, argc, argv, env, &err);
    if (rc) {
        if (rc < 0) log_line(LOG_ERROR, "%s", err.msg);
        free(s);
        return rc < 0;
    }
    log_open(s->options.log_level);
    rc = serve(s, &err);
    close_all(s);
    if (rc)
        log_line(LOG_ERROR, "%s", err.msg);
    else
        log_line(LOG_INFO, "ended");
    /* s stays: the thread of the signals has it, and ends with the process. */
    return rc != 0;
}

/* Where the three standard files are not open, a socket would get their numbers, and the
 * log would be written into it. */
static void take_standard_files(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv, char **env)
{
    take_standard_files();
    const char *command = argc > 1 ? argv[1] : "help";
    if (strcmp(command, "serve") == 0) return command_serve(argc - 2, argv + 2, env);
    if (strcmp(command, "plan") == 0) return plan_command(argc - 2, argv + 2);
    bool version = strcmp(command, "--version") == 0 || strcmp(command, "-V") == 0;
    bool reference = strcmp(command, "options") == 0;
    bool help = strcmp(command, "help") == 0 || strcmp(command, "--help") == 0 ||
                strcmp(command, "-h") == 0;
    bool known = version || reference || help;
    if (!known || argc > 2) {
        fputs(usage, stderr);
        if (known)
            fprintf(stderr, "\n`dormouse %s` takes no argument.\n", command);
        else
            fprintf(stderr, "\n%s is no command.\n", command);
        return 2;
    }
    if (version) puts("dormouse " DORMOUSE_VERSION);
    if (reference) options_print_reference();
    if (help) fputs(usage, stdout);
    return 0;
}
