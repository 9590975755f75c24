/* fuzz_template.c - any bytes as a chat template, rendered on conversations of all kinds.
 *
 * It may fail with a sentence; it may not crash, leak, hang, or mark what is not there.
 */
#include "tokenizer/chat.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const contexts[] = {
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi <|x|> \\u00e9\\u0000\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":"
    "\"f\","
    "\"arguments\":{\"a\":[1,2.5,-3,true,null]}}}]}],\"tools\":null,"
    "\"add_generation_prompt\":true,\"s\":\"a "
    "b\",\"n\":7,\"l\":[1,\"x\",[]],\"d\":{\"k\":1}}",
    "{}",
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_template *t;
    struct err err = {{0}};
    if (chat_open(&t, (const char *)data, size, "<s>", NULL, &err) != 0) {
        if (!err.msg[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(contexts); i++) {
        struct chat_text out = {0};
        err.msg[0] = 0;
        int rc =
            chat_render(t, contexts[i], strlen(contexts[i]), 1721984703, &out, &err);
        if (rc != 0 && !err.msg[0]) abort();
        for (size_t k = 0; k < out.n_plain; k++) {
            if (out.plain[k].from >= out.plain[k].to || out.plain[k].to > out.n)
                abort();
        }
        chat_text_free(&out);
    }
    chat_close(t);
    return 0;
}
