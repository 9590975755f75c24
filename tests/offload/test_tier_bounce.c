/* What is between a tier and device memory; the rest of it is proven with every other tier. */
#include "tests/offload/tier_fixture.h"

/* "Device memory": copies to and from it can fail, or never come to an end. */
struct device {
    struct copyq base;
    struct copyq *real;
    char *memory, *host;  // (BUFFER_BYTES); only the second can be read
    int poll;             // 0: as the real one does
};

static struct device *device_of(struct copyq *q)
{
    return CONTAINER_OF(q, struct device, base);
}

static int push(struct copyq *q, void *dst, const void *src, size_t n, uint64_t *out)
{
    return copyq_push(device_of(q)->real, dst, src, n, out);
}

static int poll(struct copyq *q, uint64_t ticket)
{
    struct device *d = device_of(q);
    return d->poll ? d->poll : copyq_poll(d->real, ticket);
}

static bool readable(struct copyq *q, const void *p)
{
    return p != device_of(q)->memory;
}

static void *host_alloc(struct copyq *q, size_t n)
{
    return copyq_host_alloc(device_of(q)->real, n);
}

static void host_free(struct copyq *q, void *p)
{
    copyq_host_free(device_of(q)->real, p);
}

static const struct copyq_ops device_ops = {.push = push,
                                            .poll = poll,
                                            .readable = readable,
                                            .host_alloc = host_alloc,
                                            .host_free = host_free};

static void open_device(struct device *d, struct world *w)
{
    *d = (struct device){
        .base.ops = &device_ops,
        .memory = take_buffer(BUFFER_BYTES),
        .host = take_buffer(BUFFER_BYTES),
    };
    assert_int_equal(copyq_cpu_open(&d->real, NULL), 0);
    world_ssd(w, "/tmp", 4);
    world_start(w);
    assert_int_equal(tier_bounce(w->tier, &d->base, 2, &w->err), 0);
}

static void close_device(struct device *d, struct world *w)
{
    world_close(w);
    copyq_close(d->real);
    free(d->memory);
    free(d->host);
}

static int store_from(struct device *d, struct world *w, const struct block_meta *m)
{
    block_fill(d->memory, BLOCK_BYTES, m);
    return move(w->tier, TIER_STORE, m, d->memory, 1);
}

static void a_block_goes_down_from_a_device_and_comes_back_to_it(void **state)
{
    (void)state;
    struct device d;
    struct world w;
    open_device(&d, &w);
    struct block_meta m = block_meta_of(1, 0);
    assert_int_equal(store_from(&d, &w, &m), 0);
    memset(d.memory, 0, BUFFER_BYTES);
    assert_int_equal(move(w.tier, TIER_LOAD, &m, d.memory, 1), 0);
    assert_true(block_holds(d.memory, BLOCK_BYTES, &m));
    assert_int_equal(move(w.tier, TIER_LOAD, &m, d.host, 1), 0);
    assert_true(block_holds(d.host, BLOCK_BYTES, &m));
    close_device(&d, &w);
}

static void the_caller_gets_its_own_buffer_back(void **state)
{
    (void)state;
    struct device d;
    struct world w;
    open_device(&d, &w);
    struct block_meta m = block_meta_of(1, 0);
    struct tier_io io = {.meta = m, .dir = TIER_STORE, .buf = d.memory};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tier_submit(w.tier, &io, 1), 0);
        tier_flush(w.tier);
        assert_ptr_equal(reap_one(w.tier, 1), &io);
        assert_int_equal(io.res, 0);
        assert_ptr_equal(io.buf, d.memory);
        io.dir = TIER_LOAD;
    }
    close_device(&d, &w);
}

static void what_did_not_come_from_the_device_is_not_written(void **state)
{
    (void)state;
    struct device d;
    struct world w;
    open_device(&d, &w);
    struct block_meta m = block_meta_of(1, 0);
    d.poll = -ENODEV;
    assert_int_equal(store_from(&d, &w, &m), -ENODEV);
    assert_false(finds(w.tier, &m));
    close_device(&d, &w);
}

static void a_block_outlives_the_device_that_it_could_not_reach(void **state)
{
    (void)state;
    struct device d;
    struct world w;
    open_device(&d, &w);
    struct block_meta m = block_meta_of(1, 0);
    assert_int_equal(store_from(&d, &w, &m), 0);
    d.poll = -ENODEV;
    assert_int_equal(move(w.tier, TIER_LOAD, &m, d.memory, 1), -ENODEV);
    assert_true(finds(w.tier, &m));
    world_restart(&w);
    assert_int_equal(move(w.tier, TIER_LOAD, &m, d.host, 1), 0);
    assert_true(block_holds(d.host, BLOCK_BYTES, &m));
    close_device(&d, &w);
}

static void more_than_there_are_buffers_for_is_to_be_tried_again(void **state)
{
    (void)state;
    struct device d;
    struct world w;
    open_device(&d, &w);
    struct tier_io io[3];
    d.poll = -EAGAIN;
    for (uint32_t i = 0; i < 3; i++) {
        io[i] = (struct tier_io){
            .meta = block_meta_of(i, 0), .dir = TIER_STORE, .buf = d.memory};
        assert_int_equal(tier_submit(w.tier, &io[i], 1), i < 2 ? 0 : -EAGAIN);
    }
    struct tier_io *done;
    tier_flush(w.tier);
    assert_int_equal(tier_reap(w.tier, &done, 1, 1), 0);
    d.poll = 0;
    for (int i = 0; i < 2; i++) assert_int_equal(reap_one(w.tier, 1)->res, 0);
    assert_int_equal(tier_submit(w.tier, &io[2], 1), 0);
    assert_int_equal(reap_one(w.tier, 1)->res, 0);
    close_device(&d, &w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_goes_down_from_a_device_and_comes_back_to_it),
        cmocka_unit_test(the_caller_gets_its_own_buffer_back),
        cmocka_unit_test(what_did_not_come_from_the_device_is_not_written),
        cmocka_unit_test(a_block_outlives_the_device_that_it_could_not_reach),
        cmocka_unit_test(more_than_there_are_buffers_for_is_to_be_tried_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
