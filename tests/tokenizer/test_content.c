/* test_content.c - content hashes of tokenizer.json and of chat templates. */
#include "tests/files.h"
#include "tests/hex.h"
#include "tokenizer/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY_RAND "tests/golden/models/tiny-rand"

static void a_tokenizer_has_the_hash_of_its_file(void **state)
{
    (void)state;
    struct tokenizer *t;
    assert_int_equal(tokenizer_open_dir(&t, TINY_RAND, NULL), 0);
    assert_hex(tokenizer_content_hash(t)->bytes,
               "b439b3bef1693b29228d0ea0bcd2aadb6acbfd537fa6b9d819a96e7385181c56");
    tokenizer_close(t);

    size_t n;
    char *text = files_read(TINY_RAND "/tokenizer.json", &n);
    text[n] = '\n';  // means the same, but its bytes are others
    assert_int_equal(tokenizer_open(&t, text, n + 1, "T", NULL), 0);
    assert_string_not_equal(
        hex_of(tokenizer_content_hash(t)->bytes).text,
        "b439b3bef1693b29228d0ea0bcd2aadb6acbfd537fa6b9d819a96e7385181c56");
    tokenizer_close(t);
    free(text);
}

static struct hex chat_hash(struct chat_template *t)
{
    struct crypto_hash h;
    chat_content_hash(t, &h);
    chat_close(t);
    return hex_of(h.bytes);
}

static struct hex hash_of(const char *source, const char *bos, const char *eos)
{
    struct chat_template *t;
    struct err err;
    if (chat_open(&t, source, strlen(source), bos, eos, &err)) fail_msg("%s", err.msg);
    return chat_hash(t);
}

/* Of a directory that holds this tokenizer_config.json, and a template file where given. */
static struct hex hash_of_dir(const char *config, const char *file)
{
    struct chat_template *t;
    struct err err;
    char *dir = files_temp_dir();
    files_write(dir, "tokenizer_config.json", config, strlen(config));
    if (file) files_write(dir, "chat_template.jinja", file, strlen(file));
    if (chat_open_dir(&t, dir, &err)) fail_msg("%s", err.msg);
    files_remove_dir(dir);
    return chat_hash(t);
}

/* Computed apart, from the construction in the header. */
static void a_templates_hash_is_the_one_that_stands_on_disks(void **state)
{
    (void)state;
    assert_string_equal(
        hash_of("{{ messages }}", "<s>", NULL).text,
        "6a55d277d3a20a6f9ce135ab51daa5ad7f824a82862f5f18432c4e9d9f1dee22");
    assert_string_equal(
        hash_of_dir("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"chat_template\":["
                    "{\"name\":\"tool_use\",\"template\":\"{{ tools }}\"},"
                    "{\"name\":\"rag\",\"template\":\"never used\"},"
                    "{\"name\":\"default\",\"template\":\"{{ messages }}\"}]}",
                    NULL)
            .text,
        "a9546bfefae27cc329cc9e4d84c1d789edcb07483796a2563da1521eb25251b4");
}

static void where_a_template_was_read_from_does_not_matter(void **state)
{
    (void)state;
    struct hex memory = hash_of("{{ messages }}", "<s>", NULL);
    static const char *const config =
        "{\"bos_token\":\"<s>\",\"chat_template\":\"{{ messages }}\"}";
    assert_string_equal(hash_of_dir(config, NULL).text, memory.text);
    assert_string_equal(
        hash_of_dir("{\"bos_token\":{\"content\":\"<s>\"}}", "{{ messages }}").text,
        memory.text);
}

static void template_bos_and_eos_each_matter(void **state)
{
    (void)state;
    const struct hex seen[] = {
        hash_of("{{ messages }}", "<s>", "</s>"),
        hash_of("{{ messages}}", "<s>", "</s>"),
        hash_of("{{ messages }}", "<S>", "</s>"),
        hash_of("{{ messages }}", "<s>", "</S>"),
        hash_of("{{ messages }}", NULL, "</s>"),
        hash_of("{{ messages }}", "<s>", NULL),
        hash_of("{{ messages }}", "", "</s>"),
        hash_of("{{ messages }}", "</s>", "<s>"),
    };
    for (size_t i = 0; i < ARRAY_LEN(seen); i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(seen[i].text, seen[k].text) == 0)
                fail_msg("template %zu is not told from %zu", i, k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tokenizer_has_the_hash_of_its_file),
        cmocka_unit_test(a_templates_hash_is_the_one_that_stands_on_disks),
        cmocka_unit_test(where_a_template_was_read_from_does_not_matter),
        cmocka_unit_test(template_bos_and_eos_each_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
