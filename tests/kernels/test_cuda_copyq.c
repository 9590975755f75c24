/* test_cuda_copyq.c - copies between host and device: whole, in order, bounded, and beside
 * each other in both directions.
 */
#include "tests/allocs.h"
#include "tests/kernels/fixture_cuda.h"

#define BLOCK 4096
#define MANY  200

/* A pool of device blocks and as many pinned ones. */
struct copies {
    struct device d;
    struct kv_pool_mem kv;
    char *host;
};

static void open_copies(struct copies *c)
{
    struct err err;
    struct kv_shape shape = {2, 2, 16, DTYPE_F16};
    assert_int_equal(kv_block_bytes(&shape), BLOCK);
    c->d = open_device();
    assert_int_equal(backend_kv_alloc(c->d.b, &c->kv, &shape, MANY, &err), 0);
    c->host = copyq_host_alloc(c->d.q, MANY * BLOCK);
    assert_non_null(c->host);
}

static void close_copies(struct copies *c)
{
    copyq_host_free(c->d.q, c->host);
    backend_kv_free(c->d.b, &c->kv);
    close_device(&c->d);
}

static char *device_block(const struct copies *c, uint32_t i)
{
    return (char *)c->kv.base + i * BLOCK;
}

static void fill(struct copies *c, uint32_t i, uint32_t with)
{
    for (uint32_t k = 0; k < BLOCK; k++) c->host[i * BLOCK + k] = (char)(with * 31 + k);
}

static bool holds(const struct copies *c, uint32_t i, uint32_t what)
{
    for (uint32_t k = 0; k < BLOCK; k++)
        if (c->host[i * BLOCK + k] != (char)(what * 31 + k)) return false;
    return true;
}

static uint64_t push(struct copies *c, void *dst, const void *src)
{
    uint64_t ticket = 0;
    int rc = copyq_push(c->d.q, dst, src, BLOCK, &ticket);
    if (rc) fail_msg("push answers %d", rc);
    return ticket;
}

/* Block i goes to place(i) on the device, and back to where it was. */
static void round_trip(struct copies *c, uint32_t n, uint32_t (*place)(uint32_t))
{
    uint64_t tickets[COPYQ_DEPTH];
    for (uint32_t i = 0; i < n; i++) fill(c, i, i);
    for (uint32_t i = 0; i < n; i++)
        tickets[i] = push(c, device_block(c, place(i)), c->host + i * BLOCK);
    copyq_flush(c->d.q);
    for (uint32_t i = 0; i < n; i++) wait_for(&c->d, tickets[i]);
    memset(c->host, 0, MANY * BLOCK);
    for (uint32_t i = 0; i < n; i++)
        tickets[i] = push(c, c->host + i * BLOCK, device_block(c, place(i)));
    copyq_flush(c->d.q);
    for (uint32_t i = 0; i < n; i++) {
        wait_for(&c->d, tickets[i]);
        assert_true(holds(c, i, i));
    }
}

static uint32_t in_order(uint32_t i)
{
    return i + 3;
}
static uint32_t scattered(uint32_t i)
{
    return i * 37 % MANY;
}
static uint32_t in_pieces(uint32_t i)
{
    return i / 5 * 7 + i % 5;
}

static void blocks_go_and_come_back_together_or_apart(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    round_trip(&c, 1, in_order);
    round_trip(&c, COPYQ_DEPTH, in_order);
    round_trip(&c, COPYQ_DEPTH, scattered);
    round_trip(&c, COPYQ_DEPTH - 1, in_pieces);
    close_copies(&c);
}

/* So many copies the device gets for `n` blocks, in `slices` slices each on their way to it. */
static uint64_t copies_for(struct copies *c, uint32_t n, uint32_t (*place)(uint32_t),
                           uint32_t slices, bool up)
{
    uint64_t tickets[COPYQ_DEPTH];
    struct standin_counts before, after;
    standin_count(&before);
    for (uint32_t i = 0; i < n; i++) {
        char *device = device_block(c, place(i)), *host = c->host + i * BLOCK;
        assert_int_equal(copyq_push_sliced(c->d.q, up ? device : host,
                                           up ? host : device, BLOCK, slices,
                                           &tickets[i]),
                         0);
    }
    copyq_flush(c->d.q);
    standin_count(&after);
    for (uint32_t i = 0; i < n; i++) wait_for(&c->d, tickets[i]);
    assert_int_equal(after.pageable_async, 0);
    return after.copies - before.copies;
}

static void neighbours_are_one_copy_and_others_are_not(void **state)
{
    (void)state;
    static const struct {
        uint32_t (*place)(uint32_t);
        uint32_t runs;
    } cases[] = {{in_order, 1}, {in_pieces, 8}, {scattered, 40}};
    struct copies c;
    open_copies(&c);
    if (!standin_count) {
        close_copies(&c);
        print_message("skipped: a real device does not count its copies\n");
        skip();
    }
    memset(c.host, 0, MANY * BLOCK);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint32_t runs = cases[i].runs;
        assert_int_equal(copies_for(&c, 40, cases[i].place, 0, true), runs);
        assert_int_equal(copies_for(&c, 40, cases[i].place, 0, false), runs);
        // In two pieces each, which follow one another through all of them.
        assert_int_equal(copies_for(&c, 40, cases[i].place, 2, true), 2 * runs);
    }
    close_copies(&c);
}

static void the_last_ticket_of_a_direction_ends_all_before_it(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    uint64_t ticket = 0;
    for (uint32_t i = 0; i < 40; i++) {
        fill(&c, i, i);
        ticket = push(&c, device_block(&c, scattered(i)), c.host + i * BLOCK);
    }
    wait_for(&c.d, ticket);
    for (uint32_t i = 0; i < 40; i++)
        ticket = push(&c, c.host + (100 + i) * BLOCK, device_block(&c, scattered(i)));
    wait_for(&c.d, ticket);
    for (uint32_t i = 0; i < 40; i++) assert_true(holds(&c, 100 + i, i));
    close_copies(&c);
}

static void a_full_direction_says_try_again_and_the_other_goes_on(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    uint64_t first = 0, ticket;
    for (uint32_t i = 0; i < COPYQ_DEPTH; i++) {
        ticket = push(&c, device_block(&c, i), c.host + i * BLOCK);
        if (i == 0) first = ticket;
    }
    assert_int_equal(
        copyq_push(c.d.q, device_block(&c, 70), c.host + 70 * BLOCK, BLOCK, &ticket),
        -EAGAIN);
    wait_for(&c.d, push(&c, c.host + 80 * BLOCK, device_block(&c, 80)));
    wait_for(&c.d, first);
    wait_for(&c.d, push(&c, device_block(&c, 70), c.host + 70 * BLOCK));
    close_copies(&c);
}

static void host_to_host_is_a_copy_too(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    fill(&c, 0, 9);
    wait_for(&c.d, push(&c, c.host + BLOCK, c.host));
    assert_true(holds(&c, 1, 9));
    close_copies(&c);
}

/* The block that copy on write has copied, with a load into the original right behind it. */
static void a_load_waits_for_the_block_that_is_still_being_copied(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    for (uint32_t round = 0; round < 20; round++) {
        fill(&c, 0, round);
        fill(&c, 1, 1000 + round);
        wait_for(&c.d, push(&c, device_block(&c, 5), c.host));
        backend_copy_block(c.d.b, &c.kv, 6, 5);
        wait_for(&c.d, push(&c, device_block(&c, 5), c.host + BLOCK));
        finish(c.d.b);
        wait_for(&c.d, push(&c, c.host + 2 * BLOCK, device_block(&c, 6)));
        assert_true(holds(&c, 2, round));
    }
    close_copies(&c);
}

static void a_ticket_that_was_never_handed_out_is_refused(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    assert_int_equal(copyq_poll(c.d.q, 0), -EINVAL);
    uint64_t ticket = push(&c, device_block(&c, 0), c.host);
    assert_int_equal(copyq_poll(c.d.q, ticket + 3), -EINVAL);
    wait_for(&c.d, ticket);
    assert_int_equal(copyq_poll(c.d.q, ticket), 0);
    close_copies(&c);
}

static void pushing_and_polling_allocate_nothing(void **state)
{
    (void)state;
    struct copies c;
    open_copies(&c);
    unsigned long before = allocs_so_far();
    for (uint32_t i = 0; i < 100; i++) {
        wait_for(&c.d, push(&c, device_block(&c, i), c.host + i * BLOCK));
        wait_for(&c.d, push(&c, c.host + i * BLOCK, device_block(&c, i)));
    }
    assert_int_equal(allocs_so_far() - before, 0);
    close_copies(&c);
}

static void the_cpu_reads_what_the_host_has_and_not_the_device(void **state)
{
    (void)state;
    struct copies c;
    int here = 0;
    open_copies(&c);
    assert_true(copyq_readable(c.d.q, c.host));
    assert_true(copyq_readable(c.d.q, &here));
    assert_false(copyq_readable(c.d.q, device_block(&c, 0)));
    assert_false(copyq_readable(c.d.q, device_block(&c, MANY - 1) + BLOCK - 1));
    close_copies(&c);
}

#define GIB ((size_t)1 << 30)

/* `bytes` of host memory of which the nth call of pinning is the first that fails; 0: none. */
static size_t pinned_of(struct copies *c, size_t bytes, unsigned fails)
{
    struct standin_counts before, after;
    size_t got = 0;
    standin_count(&before);
    if (fails) standin_fail("cudaHostRegister", fails, 2);  // cudaErrorMemoryAllocation
    char *p = copyq_host_alloc_most(c->d.q, bytes, &got);
    assert_true(p != NULL && got <= bytes);
    standin_count(&after);
    assert_int_equal(after.pinned_used - before.pinned_used, got);
    copyq_host_free(c->d.q, p);
    standin_count(&after);
    assert_int_equal(after.pinned_used, before.pinned_used);
    return got;
}

static void very_much_is_pinned_in_chunks_as_far_as_it_goes(void **state)
{
    (void)state;
    struct copies c;
    struct standin_counts now;
    open_copies(&c);
    if (!standin_memory) {
        close_copies(&c);
        print_message("skipped: a real device has what memory it has\n");
        skip();
    }
    standin_memory(GIB, 16 * GIB);
    assert_int_equal(pinned_of(&c, 4 * GIB + 8192, 0), 4 * GIB + 8192);
    assert_int_equal(pinned_of(&c, 4 * GIB, 3), 2 * GIB + GIB / 2);
    // Of five calls the last one is for what is left over a whole number of chunks.
    assert_int_equal(pinned_of(&c, 4 * GIB + 8192, 5), 3 * GIB + GIB / 2);
    // Where less than a chunk can be had, some of it is left for who comes next.
    standin_count(&now);
    for (size_t left = (size_t)8 << 20; left < 3 * GIB; left *= 3) {
        size_t chunks = left / GIB * GIB, rest = left % GIB;
        standin_memory(GIB, now.pinned_used + left);
        size_t got = pinned_of(&c, 4 * GIB, 0);
        assert_true(got > chunks + rest / 4 && got <= chunks + rest / 2);
    }
    standin_memory(GIB, 4 * GIB);
    close_copies(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_go_and_come_back_together_or_apart),
        cmocka_unit_test(neighbours_are_one_copy_and_others_are_not),
        cmocka_unit_test(the_last_ticket_of_a_direction_ends_all_before_it),
        cmocka_unit_test(a_full_direction_says_try_again_and_the_other_goes_on),
        cmocka_unit_test(host_to_host_is_a_copy_too),
        cmocka_unit_test(a_load_waits_for_the_block_that_is_still_being_copied),
        cmocka_unit_test(a_ticket_that_was_never_handed_out_is_refused),
        cmocka_unit_test(pushing_and_polling_allocate_nothing),
        cmocka_unit_test(the_cpu_reads_what_the_host_has_and_not_the_device),
        cmocka_unit_test(very_much_is_pinned_in_chunks_as_far_as_it_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
