/* Bodies of both POSTs, from their bytes to requests for the engine. */
#include "server/api_internal.h"

#include <stdlib.h>

static struct tokenizer *tokenizer;
static struct chat_template *chat;
static struct model_config config;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    static const char dir[] = "tests/golden/models/tiny-rand";
    if (tokenizer_open_dir(&tokenizer, dir, NULL) < 0 ||
        chat_open_dir(&chat, dir, NULL) < 0 ||
        model_config_load(&config, dir, NULL) < 0) {
        abort();  // not in the repository's root
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct api api = {
        .o = {.model_name = "tiny-rand",
              .tokenizer = tokenizer,
              .chat = chat,
              .config = &config,
              .max_choices = 4},
        .capacity = 512,
        .event_text = 1,
    };
    for (int kind = API_CHAT; kind <= API_COMPLETION; kind++) {
        struct api_call *call;
        struct api_error e;
        if (api_prepare(&api, kind, (const char *)data, size, 0, &call, &e) == 0) {
            api_call_free(call);
            continue;
        }
        /* What is said about a bad body is itself good JSON, and short. */
        struct bytes out = {0};
        api_error_json(&e, &out);
        if (e.status != 400 && e.status != 404) abort();
        if (out.failed || out.n > 4096 || json_check(out.data, out.n, 4, NULL) < 0)
            abort();
        bytes_free(&out);
    }
    return 0;
}
