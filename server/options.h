/* options.h - what a person may set: defaults, file, environment, flags, in that order.
 *
 * One table names every option once; the key of the configuration file, the flag
 * (--key-with-dashes) and the environment variable (DORMOUSE_KEY) follow from it, and so
 * do --help and the reference.  A later source wins.  Errors name the source, the line of
 * a file, the key, the value and what would be right.
 *
 * Owns     nothing: struct options is a plain value.
 * Threads  one, at start.
 */
#ifndef SERVER_OPTIONS_H
#define SERVER_OPTIONS_H

#include "kernels/dtype.h"
#include "server/policy_options.h"

#define OPTION_TEXT 1024

struct options {
    /* model */
    char model[OPTION_TEXT];  // directory
    char name[OPTION_TEXT];   // what the API calls it; "": the directory's base name
    uint32_t context;         // tokens of one sequence; 0: what the model holds
    /* machine */
    char device[64];    // "cpu", "cuda", "cuda:1"
    bool exact;         // on a GPU: own kernels only
    char cpu_path[32];  // "": the best
    uint32_t threads;   // 0: all
    enum weight_format weights;
    bool packed_cache;
    enum dtype kv_type;
    uint64_t kv_bytes;   // of the KV pool; 0: see the reference
    uint32_t kv_blocks;  // overrides kv_bytes when not 0
    uint64_t margin;     // bytes of memory that must stay free
    /* conversations */
    uint64_t ram;           // bytes of the RAM tier; 0: none
    char ssd[OPTION_TEXT];  // folder of the SSD tier; "": none
    uint64_t ssd_size;      // bytes of its file
    char ssd_io[16];        // "auto", "threads"
    struct policy_settings policy;
    uint64_t ram_quota, ssd_quota;  // bytes of each tenant; 0: no limit
    uint32_t max_loads_per_tenant;
    uint64_t max_load_bytes;
    uint32_t copy_down_ms;
    uint32_t max_conversations;
    char share[OPTION_TEXT];  // "a,b;c,d": tenants that share blocks
    /* scheduling */
    uint32_t max_running, max_waiting, max_wait_ms, step_tokens, step_ms, stall_ms;
    uint32_t drain_ms;
    uint32_t prompt_lookup;  // most drafts of a reply in a step; 0: none
    /* http */
    char host[256];
    uint32_t port;  // 0: any free one
    uint32_t http_threads, workers;
    uint32_t max_connections, max_connections_per_ip;
    uint64_t max_body;
    uint32_t header_timeout_ms, body_timeout_ms, idle_timeout_ms;
    /* API */
    char keys[OPTION_TEXT];   // file of API keys; "": none
    bool allow_open;          // listen beyond loopback without keys
    uint32_t max_per_tenant;  // POSTs of one tenant in progress, then 429; 0: no limit
    uint32_t max_choices, default_max_tokens;
    bool completions_special;
    /* other */
    char log_level[16];
    bool check_config;  // read everything, say what would run, and stop
};

void options_defaults(struct options *o);
/* argv without the program and the command's name.  0; 1: --help or --version was printed;
 * -EINVAL. */
NODISCARD int options_read(struct options *o, int argc, char **argv, char **env,
                           struct err *err);
/* The --help text, in groups, to standard output. */
void options_help(void);
/* A configuration file of every key, its default and its meaning, to standard output. */
void options_print_reference(void);

#endif
