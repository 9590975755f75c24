/* options_table.c - every option once: key, type, default, range, group and help. */
#include "server/options_table.h"

#define FIELD(name) offsetof(struct options, name), sizeof(((struct options *)0)->name)
#define TEXT(name)  OPTION_STRING, FIELD(name)
#define SECOND      1000u
#define HOUR        (3600u * SECOND)
#define KIB         1024ull
#define MIB         (KIB * 1024)
#define TIB         (MIB * 1024 * 1024)

/* clang-format off */
static const struct option table[] = {
    {"model", TEXT(model), "", 0, OPTION_TEXT - 1, NULL, "model",
     "Directory of the model: config.json, tokenizer.json and model.safetensors or its "
     "shards; to chat also a template, in tokenizer_config.json or chat_template.jinja. "
     "The first argument without dashes says the same."},
    {"name", TEXT(name), "", 0, 255, NULL, "model",
     "What the API calls the model. Empty: the directory's own name."},
    {"context", OPTION_COUNT, FIELD(context), "0", 2, 1u << 30, "0", "model",
     "Most tokens of one conversation, prompt and reply together, and so at least one of "
     "each. 0: what the model was made for."},

    {"device", TEXT(device), "cpu", 1, 63, NULL, "machine",
     "Where the model runs: cpu; cuda, the first GPU; or cuda:N, the one with number N from "
     "0. A GPU needs a build with CUDA (make CUDA=1)."},
    {"exact", OPTION_BOOL, FIELD(exact), "false", 0, 0, NULL, "machine",
     "On a GPU: multiply by own kernels whatever a step's size, so that a reply has the same "
     "bits whoever else is served and however its prompt was cut. Prompts take longer than "
     "by cuBLAS. On a CPU it is always so."},
    {"cpu_path", OPTION_CHOICE, FIELD(cpu_path), "", 0, 0, "|portable|avx2|avx512|avx512bf16",
     "machine",
     "Instruction set of the CPU backend. Empty: the last of these that this CPU has. "
     "avx512bf16 rounds what is multiplied with bf16 weights to bf16 too, as GPUs do, and "
     "computes prompts 1.4 times as fast as avx512, which rounds nothing."},
    {"threads", OPTION_COUNT, FIELD(threads), "0", 0, 1024, NULL, "machine",
     "Threads of the CPU backend. 0: as many as this process may run on."},
    {"weights", OPTION_WEIGHTS, FIELD(weights), "auto", 0, 0, "auto|bf16|q8|q4", "machine",
     "How weights are kept in memory. auto: in the type their files have; bf16: rounded to "
     "it; q8 and q4: to 8 and 4 bits with a scale for each 32, which takes less memory and "
     "decodes faster. README.md says what is lost."},
    {"packed_cache", OPTION_BOOL, FIELD(packed_cache), "true", 0, 0, NULL, "machine",
     "Keep the weights as they lie in memory in a file in the model's directory, "
     "dormouse-FORMAT.packed, so that the next start is quick. Where that cannot be "
     "written, or is not what this start would write, all is the same but slower."},
    {"kv_type", OPTION_DTYPE, FIELD(kv_type), "f16", 0, 0, "f32|f16|bf16", "machine",
     "Element type of the KV cache. f16 rounds eight times finer than bf16, which holds "
     "larger values; f32 is exact and takes twice the memory."},
    {"kv_memory", OPTION_SIZE, FIELD(kv_bytes), "0", 0, 1024 * TIB, NULL, "machine",
     "Memory of the KV pool. 0: a quarter of what is left beside the weights, at most "
     "2G, at least one conversation of full context where that fits; on a GPU, all of its "
     "memory that is left but the margin."},
    {"kv_blocks", OPTION_COUNT, FIELD(kv_blocks), "0", 0, UINT32_MAX - 1, NULL, "machine",
     "The size of the KV pool as a number of blocks of 16 tokens instead. 0: kv_memory "
     "decides."},
    {"margin", OPTION_SIZE, FIELD(margin), "512M", 0, 1024 * TIB, NULL, "machine",
     "Memory that must stay free after all has been taken, on a GPU also of its own; the "
     "server does not start without it."},

    {"max_running", OPTION_COUNT, FIELD(max_running), "32", 1, 4096, NULL, "scheduling",
     "Most sequences computed in one step; each choice of a request is one."},
    {"max_waiting", OPTION_COUNT, FIELD(max_waiting), "256", 1, 65536, NULL, "scheduling",
     "Most requests that wait for their turn; one more is answered 503."},
    {"max_wait", OPTION_DURATION, FIELD(max_wait_ms), "60s", 1, 24 * HOUR, NULL,
     "scheduling",
     "Longest wait of a request for its turn; then it is answered 503."},
    {"step_tokens", OPTION_COUNT, FIELD(step_tokens), "512", 1, 65536, NULL, "scheduling",
     "Most tokens computed in one step. A longer prompt takes several."},
    {"step_time", OPTION_DURATION, FIELD(step_ms), "50ms", 1, 60 * SECOND, NULL, "scheduling",
     "How long a step with a prompt in it may hold up replies that are running; a prompt "
     "is cut to fit."},
    {"prompt_lookup", OPTION_COUNT, FIELD(prompt_lookup), "0", 0, 32, NULL, "scheduling",
     "Speculative decoding: where a reply repeats what its prompt or it itself said, up to "
     "so many tokens are drafted from there and computed with the next one, as many as pay. "
     "The answers are the same. 0: none."},
    {"stall", OPTION_DURATION, FIELD(stall_ms), "30s", 100, HOUR, NULL, "scheduling",
     "A client that has not read its answer for this long is dropped: its request ends, "
     "and its connection is closed at the latest after twice the time."},
    {"drain", OPTION_DURATION, FIELD(drain_ms), "25s", 0, HOUR, NULL, "scheduling",
     "After SIGTERM or SIGINT, running replies may go on for this long; then each ends "
     "with an error event. A second signal ends them at once."},

    {"ram", OPTION_SIZE, FIELD(ram), "0", 0, 1024 * TIB, NULL, "conversations",
     "Host memory in which conversations sleep. 0: none."},
    {"ssd", TEXT(ssd), "", 0, OPTION_TEXT - 1, NULL, "conversations",
     "Folder on an SSD in which conversations sleep, and from which they wake after a "
     "restart. One server at a time may have it. A folder that cannot be made or opened, or "
     "that others may write, or that holds only what is not the server's, is an error. Of "
     "the files `blocks` and `names` in it, what is damaged, or of another model or size, is "
     "made anew; where that cannot be, the server says so and runs without it. Empty: none."},
    {"ssd_size", OPTION_SIZE, FIELD(ssd_size), "16G", MIB, 1024 * TIB, NULL,
     "conversations", "Bytes of the file `blocks` in that folder."},
    {"ssd_io", OPTION_CHOICE, FIELD(ssd_io), "auto", 0, 0, "auto|threads", "conversations",
     "How the file is read and written: auto is by io_uring, and by threads where the system "
     "has none."},
    POLICY_OPTIONS(options, "conversations"),
    {"max_load_bytes", OPTION_SIZE, FIELD(max_load_bytes), "256M", 1, TIB, NULL,
     "conversations", "Most bytes on their way up."},
    {"max_loads_per_tenant", OPTION_COUNT, FIELD(max_loads_per_tenant), "0", 0, 4096, NULL,
     "conversations", "Most blocks on their way up for one tenant. 0: no limit."},
    {"ram_quota", OPTION_SIZE, FIELD(ram_quota), "0", 0, 1024 * TIB, NULL, "conversations",
     "Most host memory for the blocks of one tenant. 0: no limit."},
    {"ssd_quota", OPTION_SIZE, FIELD(ssd_quota), "0", 0, 1024 * TIB, NULL, "conversations",
     "Most of the SSD for the blocks of one tenant. 0: no limit."},
    {"copy_down", OPTION_DURATION, FIELD(copy_down_ms), "10s", 0, HOUR, NULL,
     "conversations",
     "At the end, when all replies are over, blocks are copied down for at most this long."},
    {"max_conversations", OPTION_COUNT, FIELD(max_conversations), "16384", 1, 1u << 24,
     NULL, "conversations",
     "Most conversations that are listed; beyond, the one used longest ago is forgotten. "
     "Each takes 256 bytes of a file `names` in the SSD's folder."},
    {"share", TEXT(share), "", 0, OPTION_TEXT - 1, NULL, "conversations",
     "Tenants that share blocks, and see each other's conversations: names with commas, "
     "groups apart by semicolons. Others share nothing."},

    {"host", TEXT(host), "127.0.0.1", 1, 255, NULL, "http",
     "Address or name to listen on. Beyond loopback, keys are needed (or allow_open)."},
    {"port", OPTION_COUNT, FIELD(port), "8080", 0, 65535, NULL, "http",
     "TCP port. 0: any free one; the log tells which."},
    {"http_threads", OPTION_COUNT, FIELD(http_threads), "2", 1, 64, NULL, "http",
     "Threads that serve all connections. None of them ever waits for one client."},
    {"workers", OPTION_COUNT, FIELD(workers), "2", 1, 64, NULL, "http",
     "Threads that read requests, render templates and tokenize."},
    {"max_connections", OPTION_COUNT, FIELD(max_connections), "1024", 8, 65536, NULL, "http",
     "Most open connections. At the limit, the one that has been idle or has been "
     "sending its request for the longest makes room for a new one."},
    {"max_connections_per_ip", OPTION_COUNT, FIELD(max_connections_per_ip), "0", 0, 65536,
     NULL, "http",
     "Most open connections from one address. 0: no limit."},
    {"max_body", OPTION_SIZE, FIELD(max_body), "16M", KIB, 1024 * MIB, NULL, "http",
     "Largest body of a request; a larger one is answered 413. All bodies in memory at "
     "one time take at most sixteen times this."},
    {"header_timeout", OPTION_DURATION, FIELD(header_timeout_ms), "10s", 100, HOUR, NULL,
     "http",
     "A client must send the head of its request within this time; else 408."},
    {"body_timeout", OPTION_DURATION, FIELD(body_timeout_ms), "60s", 100, HOUR, NULL,
     "http",
     "A client must send the body of its request within this time; else 408."},
    {"idle_timeout", OPTION_DURATION, FIELD(idle_timeout_ms), "75s", 100, 24 * HOUR,
     NULL, "http",
     "An open connection without a request is closed after this time."},

    {"keys", TEXT(keys), "", 0, OPTION_TEXT - 1, NULL, "api",
     "File of API keys: lines of `tenant key`, each key 16 to 256 characters; a line that "
     "begins with # is a comment. With keys, all paths but /health ask for one. Empty: "
     "no keys are asked for."},
    {"allow_open", OPTION_BOOL, FIELD(allow_open), "false", 0, 0, NULL, "api",
     "Listen beyond loopback although there are no keys."},
    {"max_per_tenant", OPTION_COUNT, FIELD(max_per_tenant), "0", 0, 65536, NULL, "api",
     "Most requests of one tenant in progress that compute or ask about conversations; one "
     "more is answered 429. 0: no limit."},
    {"max_choices", OPTION_COUNT, FIELD(max_choices), "16", 1, 64, NULL, "api",
     "Most choices of one request: n times its prompts."},
    {"default_max_tokens", OPTION_COUNT, FIELD(default_max_tokens), "0", 0, 1u << 30, NULL,
     "api",
     "Most tokens of a chat's reply where the request names no limit. 0: what the context "
     "still holds, so that one reply may fill it."},
    {"completions_special", OPTION_BOOL, FIELD(completions_special), "false", 0, 0, NULL,
     "api",
     "Control tokens written in the text of /v1/completions count as such. Chat messages "
     "never can."},

    {"log_level", OPTION_CHOICE, FIELD(log_level), "info", 0, 0, "error|warn|info|debug",
     "other", "The least important lines that are still logged."},
    {"check_config", OPTION_BOOL, FIELD(check_config), "false", 0, 0, NULL, "other",
     "Read options, keys and the model's configuration, try the address and the SSD's folder, "
     "say what would run, and stop. What would refuse a start is refused in the same words, "
     "so also an address or a folder that another process has. Nothing stays written."},
};
/* clang-format on */

const struct option_list serve_options = {table, ARRAY_LEN(table), "serve", "config"};
