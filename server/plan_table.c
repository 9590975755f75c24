/* plan_table.c - every option of `dormouse plan` once.
 *
 * The defaults are an 8B Llama in 16 bits on an H100 with a PCIe 5 host and one NVMe drive. */
#include "server/plan_options.h"

#define FIELD(name)                                                                    \
    offsetof(struct plan_options, name), sizeof(((struct plan_options *)0)->name)
#define HOURS (3600u * 1000)
#define MOST  (1000ull << 40)

/* clang-format off */
static const struct option table[] = {
    {"trace", OPTION_STRING, FIELD(trace), "", 0, OPTION_TEXT - 1, NULL, "trace",
     "The trace: Mooncake's jsonl, or a CSV of sessions with the columns session_id, "
     "arrival_ms (of the session), round_idx (from 0), prefix_len (tokens kept of the "
     "rounds before), input_len (new tokens), output_len and wait_after_ms (until the next "
     "round, -1 after the last), a session's rounds in a row; - is standard input. The "
     "first argument without dashes says the same."},
    {"synthetic", OPTION_COUNT, FIELD(synthetic), "0", 0, 100000000, NULL, "trace",
     "Make up so many conversations instead."},
    {"duration", OPTION_DURATION, FIELD(duration_ms), "24h", 1, 24 * HOURS, NULL, "trace",
     "They begin evenly over this long."},
    {"first_tokens", OPTION_COUNT, FIELD(first_tokens), "600", 1, 65536, NULL, "trace",
     "Median of the tokens in the first prompt of a made-up conversation."},
    {"turn_tokens", OPTION_COUNT, FIELD(turn_tokens), "60", 1, 65536, NULL, "trace",
     "Median of the tokens that each later prompt adds."},
    {"reply_tokens", OPTION_COUNT, FIELD(reply_tokens), "150", 1, 65536, NULL, "trace",
     "Median of the tokens of a reply."},
    {"sample", OPTION_COUNT, FIELD(sample), "100", 1, 100, NULL, "trace",
     "Replay so many percent of the conversations, whole ones: a trace of a cluster is too "
     "much for one machine."},
    {"spread", OPTION_DURATION, FIELD(spread_ms), "0s", 0, HOURS, NULL, "trace",
     "Move each arrival to a random place within this time after it. Mooncake's "
     "conversation trace has its times in steps of 3s."},
    {"seed", OPTION_COUNT, FIELD(seed), "1", 0, UINT32_MAX, NULL, "trace",
     "Of all that is random."},

    {"layers", OPTION_COUNT, FIELD(layers), "32", 1, 1024, NULL, "model", "Layers."},
    {"kv_heads", OPTION_COUNT, FIELD(kv_heads), "8", 1, 1024, NULL, "model",
     "KV heads of a layer."},
    {"head_dim", OPTION_COUNT, FIELD(head_dim), "128", 1, 4096, NULL, "model",
     "Elements of a head."},
    {"kv_type", OPTION_DTYPE, FIELD(kv_type), "f16", 0, 0, "f32|f16|bf16", "model",
     "Element type of the KV cache."},
    {"weights", OPTION_SIZE, FIELD(weights), "14G", 0, MOST, NULL, "model",
     "Bytes of weights that a step reads."},
    {"context", OPTION_COUNT, FIELD(context), "131072", 2, 1u << 30, NULL, "model",
     "Longest conversation, prompt and reply together. A longer one is refused."},

    {"prefill_rate", OPTION_COUNT, FIELD(prefill_rate), "46000", 1, 1000000000, NULL,
     "machine", "Prefill, in tokens a second, at the beginning of a prompt."},
    {"prefill_rate_32k", OPTION_COUNT, FIELD(prefill_rate_32k), "20600", 1, 1000000000,
     NULL, "machine", "Prefill, in tokens a second, of tokens that follow 32768 others."},
    {"memory_bandwidth", OPTION_SIZE, FIELD(memory_bandwidth), "2650G", 1, MOST, NULL,
     "machine", "Of the device, in bytes a second: a step reads the weights and the KV of "
     "all running replies."},
    {"step_overhead_us", OPTION_COUNT, FIELD(step_overhead_us), "500", 0, 1000000, NULL,
     "machine", "What each step takes besides, in microseconds."},
    {"step_tokens", OPTION_COUNT, FIELD(step_tokens), "2048", 1, 1u << 20, NULL,
     "machine", "Most prompt tokens computed in one step."},
    {"max_running", OPTION_COUNT, FIELD(max_running), "256", 1, 65536, NULL, "machine",
     "Most requests in progress."},

    {"kv_memory", OPTION_SIZE, FIELD(kv_memory), "56G", 1, MOST, NULL, "tiers",
     "Device memory for KV: G1."},
    {"ram", OPTION_SIZE, FIELD(ram), "256G", 0, MOST, NULL, "tiers",
     "Host memory for sleeping conversations. 0: none."},
    {"ram_read", OPTION_SIZE, FIELD(ram_read), "46G", 1, MOST, NULL, "tiers",
     "From there to the device, in bytes a second."},
    {"ram_write", OPTION_SIZE, FIELD(ram_write), "46G", 1, MOST, NULL, "tiers",
     "From the device, in bytes a second."},
    {"ram_latency_us", OPTION_COUNT, FIELD(ram_latency_us), "100", 0, 1000000, NULL,
     "tiers", "Of one transfer besides, in microseconds."},
    {"ssd", OPTION_SIZE, FIELD(ssd), "2T", 0, MOST, NULL, "tiers",
     "SSD space for sleeping conversations. 0: none."},
    {"ssd_read", OPTION_SIZE, FIELD(ssd_read), "6500M", 1, MOST, NULL, "tiers",
     "From there, in bytes a second."},
    {"ssd_write", OPTION_SIZE, FIELD(ssd_write), "3800M", 1, MOST, NULL, "tiers",
     "To it, in bytes a second."},
    {"ssd_latency_us", OPTION_COUNT, FIELD(ssd_latency_us), "1200", 0, 1000000, NULL,
     "tiers", "Of one transfer besides, in microseconds."},

    POLICY_OPTIONS(plan_options, "policy"),
    {"max_wakes", OPTION_COUNT, FIELD(max_wakes), "64", 1, 65536, NULL, "policy",
     "Most requests that wait for loads."},
    {"max_conversations", OPTION_COUNT, FIELD(max_conversations), "65536", 1, 1u << 24,
     NULL, "policy", "Most conversations on record."},

    {"json", OPTION_BOOL, FIELD(json), "false", 0, 0, NULL, "report",
     "One JSON object instead of a table."},
};
/* clang-format on */

const struct option_list plan_options_list = {table, ARRAY_LEN(table), "plan", NULL};
