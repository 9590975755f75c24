#include "server/gate.h"
#include "tests/allocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEXT_MAX 65536
#define IDS_MAX  400

static struct tokenizer *tokenizer;
static struct gate gate;  // large
static char *gate_text;
static struct request request;

/* What came out. */
static char out[TEXT_MAX];
static size_t out_n;
static int32_t ids_out[IDS_MAX];
static uint32_t ids_out_n;

static int open_tokenizer(void **state)
{
    (void)state;
    struct err err;
    if (tokenizer_open_dir(&tokenizer, "tests/golden/models/tiny-rand", &err) < 0)
        return -1;
    gate_text = malloc(gate_bytes(tokenizer));
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    free(gate_text);
    tokenizer_close(tokenizer);
    return 0;
}

static void begin(bool logprobs, const char *const *stops)
{
    memset(&request, 0, sizeof request);
    request.sampling.logprobs = logprobs;
    for (; stops && stops[request.n_stops]; request.n_stops++) {
        strcpy(request.stop[request.n_stops], stops[request.n_stops]);
        request.stop_n[request.n_stops] = (uint16_t)strlen(stops[request.n_stops]);
    }
    gate_init(&gate, tokenizer, &request, gate_text);
    out_n = ids_out_n = 0;
}

static void drain(void)
{
    struct event e = {0};
    while (gate_next(&gate, &e)) {
        assert_true(e.text_n <= gate_bytes(tokenizer));
        memcpy(out + out_n, e.text, e.text_n);
        out_n += e.text_n;
        ids_out[ids_out_n++] = e.sample.id;
    }
}

static void push(int32_t id)
{
    struct sample s = {.id = id};
    gate_push(&gate, &s);
    drain();
}

static void end(void)
{
    const char *tail;
    gate_end(&gate);
    drain();
    size_t n = gate_tail(&gate, &tail);
    memcpy(out + out_n, tail, n);
    out_n += n;
}

static int32_t id_of(const char *content)
{
    int32_t id = tokenizer_find(tokenizer, content, strlen(content));
    assert_true(id >= 0);
    return id;
}

static void push_text(const char *text)  // letter by letter; ASCII
{
    for (; *text && !gate_stopped(&gate); text++) push(*text - '!');
}

#define assert_out(text)                                                               \
    do {                                                                               \
        assert_int_equal(out_n, strlen(text));                                         \
        assert_memory_equal(out, text, out_n);                                         \
    } while (0)

static void text_comes_at_once_where_no_stop_string_is_near(void **state)
{
    (void)state;
    begin(false, (const char *const[]){"xyz", NULL});
    push_text("abc");
    assert_out("abc");
    push_text("x");
    assert_out("abc");
    push_text("y");
    assert_out("abc");
    push_text("a");
    assert_out("abcxya");
    assert_int_equal(ids_out_n, 6);
    end();
    assert_out("abcxya");
}

static void a_stop_string_is_cut_off_though_it_came_in_pieces(void **state)
{
    (void)state;
    begin(false, (const char *const[]){"hehet", "zz", NULL});
    push_text("a");
    push(id_of("he"));
    push(id_of("he"));
    push(id_of("he"));
    assert_false(gate_stopped(&gate));
    assert_out("ahe");
    push_text("tail");
    assert_true(gate_stopped(&gate));
    end();
    assert_out("ahe");
}

static void what_is_held_back_comes_at_the_end(void **state)
{
    (void)state;
    begin(false, (const char *const[]){"stop", NULL});
    push_text("the-sto");
    assert_out("the-");
    end();
    assert_out("the-sto");
}

static void the_stop_string_that_is_complete_first_wins(void **state)
{
    (void)state;
    begin(false, (const char *const[]){"abcd", "bc", NULL});
    push_text("xabcd");
    end();
    assert_out("xa");
    begin(false, (const char *const[]){"c", "abc", "bc", NULL});
    push_text("xabcd");
    end();
    assert_out("x");
}

static void tokens_of_a_stop_string_are_not_given_with_logprobs(void **state)
{
    (void)state;
    begin(true, (const char *const[]){"END", NULL});
    push_text("abEN");
    assert_int_equal(ids_out_n, 2);
    push_text("x");
    assert_int_equal(ids_out_n, 5);
    assert_out("abENx");
    push_text("yEND");
    assert_true(gate_stopped(&gate));
    end();
    assert_out("abENxy");
    assert_int_equal(ids_out_n, 6);
}

/* The four bytes of U+1F600 as tokens of their own. */
static void push_emoji(uint32_t n_bytes)
{
    static const char *const bytes[] = {"\xF0", "\x9F", "\x98", "\x80"};
    for (uint32_t i = 0; i < n_bytes; i++) {
        int32_t id = 0;
        size_t n;
        const char *b;
        while (!(b = tokenizer_bytes(tokenizer, id, &n)) || n != 1 || *b != *bytes[i])
            id++;
        push(id);
    }
}

static void a_character_is_never_split_and_its_rest_is_told(void **state)
{
    (void)state;
    begin(false, NULL);
    push_emoji(4);
    assert_out("\xF0\x9F\x98\x80");
    push_emoji(3);
    assert_out("\xF0\x9F\x98\x80");
    assert_int_equal(ids_out_n, 7);
    end();
    assert_out("\xF0\x9F\x98\x80\xEF\xBF\xBD");
}

static void a_stop_string_of_one_character_takes_its_bytes_tokens_along(void **state)
{
    (void)state;
    begin(true, (const char *const[]){"\xF0\x9F\x98\x80", NULL});
    push_text("a");
    push_emoji(4);
    assert_true(gate_stopped(&gate));
    end();
    assert_out("a");
    assert_int_equal(ids_out_n, 1);
}

static void ids_without_text_are_harmless(void **state)
{
    (void)state;
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        begin(logprobs, (const char *const[]){"stop", NULL});
        push_text("s");
        for (int i = 0; i < 350; i++) push(i % 3 ? 100000 + i : i % 2 ? -1 : 512);
        push_text("top");
        end();
        assert_true(gate_stopped(&gate));
        assert_out("");
    }
}

/* ---- against a search through the whole text ---- */

struct naive {
    char text[TEXT_MAX];
    size_t n, cut;
    size_t start[IDS_MAX];  // of the text of each id
    bool stopped;
};

static size_t naive_match(const char *text, size_t end)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < request.n_stops; i++) {
        size_t n = request.stop_n[i];
        if (n <= end && n > longest && !memcmp(text + end - n, request.stop[i], n))
            longest = n;
    }
    return longest;
}

static void naive_run(struct naive *o, const int32_t *ids, uint32_t n)
{
    struct detok d;
    detok_init(&d, true);
    o->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        o->start[i] = o->n;
        o->n += detok_push(&d, tokenizer, ids[i], o->text + o->n);
    }
    o->n += detok_flush(&d, o->text + o->n);
    o->stopped = false;
    o->cut = o->n;
    for (size_t end = 1; end <= o->n && !o->stopped; end++) {
        size_t stop = naive_match(o->text, end);
        o->stopped = stop > 0;
        if (stop) o->cut = end - stop;
    }
}

/* The text that can be in no stop string when ids[0..n) have come. */
static size_t naive_certain(const struct naive *o, size_t n)
{
    for (size_t from = 0; from < n; from++)
        for (uint32_t i = 0; i < request.n_stops; i++)
            if (request.stop_n[i] > n - from &&
                !memcmp(o->text + from, request.stop[i], n - from))
                return from;
    return n;
}

static void random_stops(const struct naive *o)
{
    request.n_stops = (uint32_t)rand() % (REQUEST_MAX_STOPS + 1);
    for (uint32_t i = 0; i < request.n_stops; i++) {
        size_t longest = rand() % 8 ? 6 : 60;
        size_t n = 1 + (size_t)rand() % longest;
        size_t from = o->n ? (size_t)rand() % o->n : 0;
        if (from + n > o->n) n = o->n - from;
        memcpy(request.stop[i], o->text + from, n);
        if (n > 1 && rand() % 2) request.stop[i][n - 1] = "ae \n"[rand() % 4];
        if (n == 0) request.stop[i][n++] = 'q';
        request.stop_n[i] = (uint16_t)n;
    }
}

/* Those without text may come or not where the cut is. */
static uint32_t drop_silent(int32_t *ids, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes;
        if (tokenizer_is_special(tokenizer, ids[i])) continue;
        if (tokenizer_bytes(tokenizer, ids[i], &bytes)) ids[kept++] = ids[i];
    }
    return kept;
}

static void any_text_is_cut_as_a_search_through_the_whole_would(void **state)
{
    (void)state;
    static struct naive all, o;
    uint32_t stopped = 0;
    for (unsigned seed = 0; seed < 8000; seed++) {
        srand(seed);
        int32_t ids[IDS_MAX];
        uint32_t n = (uint32_t)rand() % (seed % 50 ? 40 : IDS_MAX);
        int32_t base = rand() % 500, span = 1 + rand() % 6;
        for (uint32_t i = 0; i < n; i++)
            ids[i] = rand() % 20 ? base + rand() % span : rand() % 520;

        begin(seed % 2, NULL);
        naive_run(&all, ids, n);
        random_stops(&all);
        uint32_t n_stops = request.n_stops;
        gate_init(&gate, tokenizer, &request, gate_text);
        gate.hold = gate.hold && n_stops > 0;
        naive_run(&o, ids, n);

        uint32_t pushed = 0;
        while (pushed < n && !gate_stopped(&gate)) {
            push(ids[pushed++]);
            size_t have = pushed < n ? o.start[pushed] : (size_t)gate.end;
            if (!gate.hold && !gate_stopped(&gate))
                assert_int_equal(out_n, naive_certain(&o, have));
            assert_true(out_n <= o.cut);
        }
        end();
        assert_int_equal(gate_stopped(&gate), o.stopped);
        assert_int_equal(out_n, o.cut);
        assert_memory_equal(out, o.text, out_n);
        stopped += o.stopped;

        uint32_t expected = pushed;
        if (gate.hold && o.stopped)
            while (expected > 0 && o.start[expected - 1] >= o.cut) expected--;
        expected = drop_silent(ids, expected);
        assert_int_equal(drop_silent(ids_out, ids_out_n), expected);
        assert_memory_equal(ids_out, ids, expected * sizeof *ids);
    }
    assert_true(stopped > 1000);
}

static void nothing_is_allocated(void **state)
{
    (void)state;
    begin(true, (const char *const[]){"END", NULL});
    unsigned long before = allocs_so_far();
    for (int i = 0; i < 200; i++) push(i);
    end();
    assert_int_equal(allocs_so_far(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_comes_at_once_where_no_stop_string_is_near),
        cmocka_unit_test(a_stop_string_is_cut_off_though_it_came_in_pieces),
        cmocka_unit_test(what_is_held_back_comes_at_the_end),
        cmocka_unit_test(the_stop_string_that_is_complete_first_wins),
        cmocka_unit_test(tokens_of_a_stop_string_are_not_given_with_logprobs),
        cmocka_unit_test(a_character_is_never_split_and_its_rest_is_told),
        cmocka_unit_test(a_stop_string_of_one_character_takes_its_bytes_tokens_along),
        cmocka_unit_test(ids_without_text_are_harmless),
        cmocka_unit_test(any_text_is_cut_as_a_search_through_the_whole_would),
        cmocka_unit_test(nothing_is_allocated),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
