/* What is found again in a file of blocks, whole, foreign or damaged. */
#include "tests/offload/tier_fixture.h"

#include "kernels/checksum.h"

#include <fcntl.h>
#include <sys/stat.h>

static void open_world(struct world *w, uint32_t capacity)
{
    world_ssd(w, "/tmp", capacity);
    world_start(w);
}

static char *blocks_path(const struct world *w)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/blocks", w->dir);
    return path;
}

static void poke(const struct world *w, uint64_t at, const void *bytes, size_t n)
{
    int fd = open(blocks_path(w), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
    close(fd);
}

static void peek(const struct world *w, uint64_t at, void *bytes, size_t n)
{
    int fd = open(blocks_path(w), O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, bytes, n, (off_t)at), n);
    close(fd);
}

static void flip(const struct world *w, uint64_t at)
{
    unsigned char byte;
    peek(w, at, &byte, 1);
    byte ^= (unsigned char)(1u << at % 8);
    poke(w, at, &byte, 1);
}

static uint64_t slot_of(const struct world *w, uint32_t conversation, uint32_t depth)
{
    struct block_id id = block_name(conversation, depth);
    return disk_slot_at(SLOT_BYTES, slots_find(w->tier->slots, &id));
}

static void every_block_is_there_again(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 50);
    assert_string_equal(w.found.note, "");
    for (uint32_t c = 1; c <= 5; c++)
        for (uint32_t d = 0; d < 10; d++) assert_int_equal(store(w.tier, c, d), 0);
    for (int path = 0; path < 4;
         path++) {  // each way to the file reads what another wrote
        w.ssd.no_uring = path & 1;
        w.ssd.no_direct = path & 2;
        world_restart(&w);
        assert_int_equal(w.found.blocks, 50);
        assert_int_equal(w.found.foreign + w.found.damaged + w.found.orphans, 0);
        for (uint32_t c = 1; c <= 5; c++) {
            assert_int_equal(slots_used_by(w.tier->slots, c), 10);
            for (uint32_t d = 0; d < 10; d++) assert_int_equal(load(w.tier, c, d), 0);
        }
        assert_true(slots_check(w.tier->slots));
    }
    world_close(&w);
}

static void
conversations_keep_their_order_and_their_deepest_block_goes_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 20);
    // 1 was begun first but added to last; 3 forks from 1 after its first block.
    store(w.tier, 1, 0), store(w.tier, 1, 1);
    store(w.tier, 2, 0), store(w.tier, 2, 1), store(w.tier, 2, 2);
    struct block_meta fork = block_meta_of(3, 1);
    fork.parent = block_name(1, 0);
    unsigned char *buf = take_buffer(BUFFER_BYTES);
    block_fill(buf, BLOCK_BYTES, &fork);
    assert_int_equal(move(w.tier, TIER_STORE, &fork, buf, 1), 0);
    store(w.tier, 1, 2);
    world_restart(&w);
    static const struct {
        uint64_t tenant;
        uint32_t depth;
    } order[] = {{2, 2}, {2, 1}, {2, 0}, {3, 1}, {1, 2}, {1, 1}, {1, 0}};
    assert_int_equal(w.found.blocks, ARRAY_LEN(order));
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        struct block_meta m;
        assert_true(coldest(w.tier, NULL, &m));
        assert_int_equal(m.tenant, order[i].tenant);
        assert_int_equal(m.depth, order[i].depth);
        assert_int_equal(tier_drop(w.tier, &m.id), 0);
    }
    free(buf);
    world_close(&w);
}

static void blocks_of_another_fingerprint_are_foreign_until_it_returns(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10);
    for (uint32_t d = 0; d < 4; d++) store(w.tier, 1, d);
    w.ssd.fingerprint.bytes[31] ^= 1;
    world_restart(&w);
    assert_int_equal(w.found.foreign, 4);
    assert_int_equal(w.found.blocks + w.found.damaged, 0);
    assert_int_equal(load(w.tier, 1, 0), -ENOENT);
    w.ssd.fingerprint.bytes[31] ^= 1;
    world_restart(&w);
    assert_int_equal(w.found.blocks, 4);
    world_close(&w);
}

static void what_was_dropped_does_not_come_back(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10);
    for (uint32_t d = 0; d < 6; d++) store(w.tier, 1, d);
    struct block_id a = block_name(1, 5), b = block_name(1, 4);
    uint64_t erased = slot_of(&w, 1, 4);
    assert_int_equal(tier_drop(w.tier, &a), 0);
    assert_int_equal(tier_erase(w.tier, &b, 0), 0);
    world_restart(&w);
    assert_int_equal(w.found.blocks, 4);
    assert_int_equal(w.found.damaged + w.found.orphans, 0);
    unsigned char bytes[SLOT_BYTES];
    peek(&w, erased, bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0);
    world_close(&w);
}

static void erased_bytes_are_gone_soon_without_a_restart(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10);
    store(w.tier, 1, 0);
    uint64_t at = slot_of(&w, 1, 0);
    struct block_id id = block_name(1, 0);
    assert_int_equal(tier_erase(w.tier, &id, 0), 0);
    assert_int_equal(w.tier->wipes.left, 1);
    assert_int_equal(w.tier->to_erase[0], 1);
    end_wipes(w.tier, 1);
    assert_int_equal(w.tier->to_erase[0], 0);
    unsigned char bytes[SLOT_BYTES];
    peek(&w, at, bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) assert_int_equal(bytes[i], 0);
    world_close(&w);
}

static void a_gap_in_a_chain_drops_what_follows_it(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10);
    for (uint32_t d = 0; d < 6; d++) store(w.tier, 1, d);
    store(w.tier, 2, 0);
    struct block_id id = block_name(1, 2);
    assert_int_equal(tier_drop(w.tier, &id), 0);
    world_restart(&w);
    assert_int_equal(w.found.blocks, 3);
    assert_int_equal(w.found.orphans, 3);
    assert_true(has(w.tier, 1, 1) && !has(w.tier, 1, 3) && has(w.tier, 2, 0));
    world_restart(&w);
    assert_int_equal(w.found.orphans, 0);  // said once
    world_close(&w);
}

static void of_two_copies_of_a_block_the_later_stays(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4);
    store(w.tier, 1, 0);
    store(w.tier, 1, 1);
    unsigned char slot[SLOT_BYTES];
    peek(&w, slot_of(&w, 1, 1), slot, sizeof slot);
    struct disk_header *h = (struct disk_header *)slot;
    for (int later = 0; later < 2; later++) {
        h->sequence = later ? 100 : 1;
        h->sum = checksum_xxh3(h, DISK_PAGE - 8);
        poke(&w, disk_slot_at(SLOT_BYTES, later ? 3 : 2), slot, sizeof slot);
        world_restart(&w);
        assert_int_equal(w.found.blocks, 2);
        assert_int_equal(slot_of(&w, 1, 1), disk_slot_at(SLOT_BYTES, later ? 3 : 1));
        assert_int_equal(load(w.tier, 1, 1), 0);
        assert_true(slots_check(w.tier->slots));
    }
    world_close(&w);
}

// ---- damage ----------------------------------------------------------------------------

static void a_flipped_bit_anywhere_in_a_header_is_noticed(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4096);
    for (uint32_t c = 0; c < 4096; c++) assert_int_equal(store(w.tier, c, 0), 0);
    for (uint32_t c = 0; c < 4096; c++) flip(&w, slot_of(&w, c, 0) + c);
    world_restart(&w);
    assert_int_equal(w.found.damaged, 4096);
    assert_int_equal(w.found.blocks, 0);
    world_restart(&w);
    assert_int_equal(w.found.damaged, 0);  // said once
    world_close(&w);
}

static void a_flipped_bit_in_a_header_read_before_is_noticed_by_the_load(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4096 / 8);
    for (uint32_t c = 0; c < 4096 / 8; c++) assert_int_equal(store(w.tier, c, 0), 0);
    for (uint32_t c = 0; c < 4096 / 8; c++) flip(&w, slot_of(&w, c, 0) + 8 * c);
    for (uint32_t c = 0; c < 4096 / 8; c++) {
        assert_int_equal(load(w.tier, c, 0), -EBADMSG);
        assert_int_equal(load(w.tier, c, 0), -ENOENT);
    }
    assert_int_equal(w.tier->dropped_bad, 4096 / 8);
    assert_true(w.tier->health.writable);
    world_close(&w);
}

static void a_flipped_bit_in_the_bytes_drops_the_block_once(void **state)
{
    (void)state;
    static const uint64_t places[] = {0,    1,    511,  512,
                                      4095, 4096, 4097, BLOCK_BYTES - 1};
    struct world w;
    open_world(&w, 20);
    for (uint32_t c = 0; c < ARRAY_LEN(places); c++) {
        assert_int_equal(store(w.tier, c, 0), 0);
        flip(&w, slot_of(&w, c, 0) + DISK_PAGE + places[c]);
    }
    world_restart(&w);
    assert_int_equal(w.found.blocks, ARRAY_LEN(places));  // headers are right
    for (uint32_t c = 0; c < ARRAY_LEN(places); c++) {
        assert_int_equal(load(w.tier, c, 0), -EBADMSG);
        assert_int_equal(load(w.tier, c, 0), -ENOENT);
    }
    assert_int_equal(w.tier->dropped_bad, ARRAY_LEN(places));
    world_restart(&w);
    assert_int_equal(w.found.blocks, 0);  // and it does not come back
    world_close(&w);
}

static void swapped_slots_are_noticed_or_right(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4);
    store(w.tier, 1, 0), store(w.tier, 2, 0), store(w.tier, 3, 0), store(w.tier, 4, 0);
    unsigned char a[SLOT_BYTES], b[SLOT_BYTES];
    peek(&w, slot_of(&w, 1, 0), a, sizeof a);
    peek(&w, slot_of(&w, 2, 0), b, sizeof b);
    poke(&w, slot_of(&w, 1, 0), b, sizeof b);
    poke(&w, slot_of(&w, 2, 0), a, sizeof a);
    peek(&w, slot_of(&w, 3, 0), a, sizeof a);
    peek(&w, slot_of(&w, 4, 0), b, sizeof b);
    poke(&w, slot_of(&w, 3, 0) + DISK_PAGE, b + DISK_PAGE, BLOCK_BYTES);
    poke(&w, slot_of(&w, 4, 0) + DISK_PAGE, a + DISK_PAGE, BLOCK_BYTES);

    assert_int_equal(load(w.tier, 1, 0), -EBADMSG);  // another block lies there
    world_restart(&w);  // 1 lies in the slot of 2 now, where it is whole
    assert_int_equal(load(w.tier, 1, 0), 0);
    assert_int_equal(load(w.tier, 3, 0), -EBADMSG);  // headers of others' bytes
    assert_int_equal(load(w.tier, 4, 0), -EBADMSG);
    world_close(&w);
}

static void slots_beyond_the_end_of_a_cut_file_are_absent(void **state)
{
    (void)state;
    for (int cut = 0; cut < 4; cut++) {
        struct world w;
        open_world(&w, 8);
        for (uint32_t c = 0; c < 8; c++) store(w.tier, c, 0);
        off_t at[] = {(off_t)disk_slot_at(SLOT_BYTES, 4),
                      (off_t)disk_slot_at(SLOT_BYTES, 4) + 100,
                      (off_t)disk_slot_at(SLOT_BYTES, 4) + DISK_PAGE + 1, 0};
        world_stop(&w);
        assert_int_equal(truncate(blocks_path(&w), at[cut]), 0);
        world_start(&w);
        assert_int_equal(w.found.blocks, cut == 3 ? 0 : cut == 2 ? 5 : 4);
        assert_int_equal(w.found.damaged, cut == 1);
        for (uint32_t c = 0; c < 8; c++) {
            int want = cut < 3 && c < 4 ? 0 : cut == 2 && c == 4 ? -EBADMSG : -ENOENT;
            assert_int_equal(load(w.tier, c, 0), want);
        }
        for (uint32_t c = 100; c < 103; c++) assert_int_equal(store(w.tier, c, 0), 0);
        world_close(&w);
    }
}

static void a_file_cut_while_it_is_in_use_is_noticed(void **state)
{
    (void)state;
    for (int path = 0; path < 4; path++) {
        struct world w;
        world_ssd(&w, "/tmp", 8);
        w.ssd.no_uring = path & 1;
        w.ssd.no_direct = path & 2;
        world_start(&w);
        for (uint32_t c = 0; c < 8; c++) store(w.tier, c, 0);
        off_t end = (off_t)disk_slot_at(SLOT_BYTES, 8) - DISK_PAGE;
        assert_int_equal(truncate(blocks_path(&w), end), 0);
        assert_int_equal(load(w.tier, 7, 0), -EBADMSG);
        assert_int_equal(load(w.tier, 6, 0), 0);
        assert_int_equal(truncate(blocks_path(&w), end - 2 * SLOT_BYTES - 1), 0);
        assert_int_equal(load(w.tier, 6, 0), -EBADMSG);
        assert_int_equal(load(w.tier, 5, 0), -EBADMSG);
        assert_int_equal(load(w.tier, 4, 0), 0);
        assert_true(w.tier->health.writable);
        world_close(&w);
    }
}

// ---- geometry --------------------------------------------------------------------------

static void a_damaged_first_page_costs_no_block(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4);
    for (uint32_t c = 0; c < 4; c++) store(w.tier, c, 0);
    flip(&w, 20);
    world_restart(&w);
    assert_int_equal(w.found.blocks, 4);
    assert_non_null(strstr(w.found.note, "/blocks was damaged and is written anew."));
    world_restart(&w);
    assert_string_equal(w.found.note, "");
    world_close(&w);
}

static void a_file_of_another_block_size_is_made_anew_and_says_so(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4);
    for (uint32_t c = 0; c < 4; c++) store(w.tier, c, 0);
    w.ssd.block_bytes = BLOCK_BYTES - 8;  // even where slots are of one size
    world_restart(&w);
    assert_int_equal(w.found.blocks + w.found.damaged + w.found.foreign, 0);
    assert_non_null(strstr(w.found.note, "held blocks of another size or version"));
    world_restart(&w);
    assert_string_equal(w.found.note, "");
    world_close(&w);
}

static void a_smaller_or_larger_file_keeps_what_fits(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8);
    for (uint32_t c = 0; c < 8; c++) store(w.tier, c, 0);
    w.ssd.bytes = disk_slot_at(SLOT_BYTES, 5) + 17;
    world_restart(&w);
    assert_int_equal(w.found.blocks, 5);
    assert_int_equal(slots_capacity(w.tier->slots), 5);
    struct stat st;
    assert_int_equal(stat(blocks_path(&w), &st), 0);
    assert_int_equal(st.st_size, disk_slot_at(SLOT_BYTES, 5));
    w.ssd.bytes = disk_slot_at(SLOT_BYTES, 20);
    world_restart(&w);
    assert_int_equal(w.found.blocks, 5);
    assert_int_equal(slots_capacity(w.tier->slots), 20);
    world_close(&w);
}

static void a_file_of_noise_holds_nothing(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10);
    world_stop(&w);
    unsigned char noise[SLOT_BYTES];
    uint64_t random = 5;
    for (uint32_t i = 0; i < 11; i++) {
        for (size_t k = 0; k < sizeof noise; k++)
            noise[k] = (unsigned char)mix64(&random);
        poke(&w, i * SLOT_BYTES, noise, sizeof noise);
    }
    world_start(&w);
    assert_int_equal(w.found.damaged, 10);
    assert_int_equal(w.found.blocks, 0);
    assert_int_equal(store(w.tier, 1, 0), 0);
    assert_int_equal(load(w.tier, 1, 0), 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_there_again),
        cmocka_unit_test(
            conversations_keep_their_order_and_their_deepest_block_goes_first),
        cmocka_unit_test(blocks_of_another_fingerprint_are_foreign_until_it_returns),
        cmocka_unit_test(what_was_dropped_does_not_come_back),
        cmocka_unit_test(erased_bytes_are_gone_soon_without_a_restart),
        cmocka_unit_test(a_gap_in_a_chain_drops_what_follows_it),
        cmocka_unit_test(of_two_copies_of_a_block_the_later_stays),
        cmocka_unit_test(a_flipped_bit_anywhere_in_a_header_is_noticed),
        cmocka_unit_test(a_flipped_bit_in_a_header_read_before_is_noticed_by_the_load),
        cmocka_unit_test(a_flipped_bit_in_the_bytes_drops_the_block_once),
        cmocka_unit_test(swapped_slots_are_noticed_or_right),
        cmocka_unit_test(slots_beyond_the_end_of_a_cut_file_are_absent),
        cmocka_unit_test(a_file_cut_while_it_is_in_use_is_noticed),
        cmocka_unit_test(a_damaged_first_page_costs_no_block),
        cmocka_unit_test(a_file_of_another_block_size_is_made_anew_and_says_so),
        cmocka_unit_test(a_smaller_or_larger_file_keeps_what_fits),
        cmocka_unit_test(a_file_of_noise_holds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
