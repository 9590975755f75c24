#include "offload/slots.h"
#include "tests/allocs.h"
#include "tests/offload/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct slots *open_slots(uint32_t capacity)
{
    struct slots *s = NULL;
    struct err err = {{0}};
    assert_int_equal(slots_open(&s, capacity, &err), 0);
    assert_true(slots_check(s));
    return s;
}

static uint32_t put(struct slots *s, uint32_t conversation, uint32_t depth)
{
    struct block_meta m = block_meta_of(conversation, depth);
    uint32_t i = slots_claim(s, &m);
    assert_int_not_equal(i, SLOT_NONE);
    slots_commit(s, i);
    return i;
}

static void a_match_takes_every_field_and_a_ready_slot(void **state)
{
    (void)state;
    struct slots *s = open_slots(2);
    struct block_meta m = block_meta_of(1, 2), other;
    uint32_t i = slots_claim(s, &m);
    assert_int_equal(slots_match(s, &m), SLOT_NONE);  // still filling
    slots_commit(s, i);
    assert_int_equal(slots_match(s, &m), i);

    other = m, other.tokens[15]++;
    assert_int_equal(slots_match(s, &other), SLOT_NONE);
    other = m, other.parent.bytes[31] ^= 1;
    assert_int_equal(slots_match(s, &other), SLOT_NONE);
    other = m, other.tenant++;
    assert_int_equal(slots_match(s, &other), SLOT_NONE);
    other = m, other.depth++;
    assert_int_equal(slots_match(s, &other), SLOT_NONE);
    other = m, other.id.bytes[31] ^= 1;
    assert_int_equal(slots_match(s, &other), SLOT_NONE);
    slots_doom(s, i);
    assert_int_equal(slots_match(s, &m), SLOT_NONE);
    slots_close(s);
}

static void ids_that_agree_in_their_first_bytes_are_kept_apart(void **state)
{
    (void)state;
    struct slots *s = open_slots(64);
    struct block_meta m = block_meta_of(1, 0);
    memset(m.id.bytes, 7, sizeof m.id.bytes);
    for (uint8_t k = 0; k < 64; k++) {
        m.id.bytes[31] = k;
        slots_commit(s, slots_claim(s, &m));
    }
    assert_true(slots_check(s));
    for (uint8_t k = 0; k < 64; k++) {
        m.id.bytes[31] = k;
        uint32_t i = slots_match(s, &m);
        assert_int_not_equal(i, SLOT_NONE);
        slots_release(s, i);
        assert_int_equal(slots_find(s, &m.id), SLOT_NONE);
    }
    assert_true(slots_check(s));
    slots_close(s);
}

/* Their parents' names share a bucket as often as not: the index is small. */
static void the_blocks_that_follow_one_are_found_each_once(void **state)
{
    (void)state;
    struct slots *s = open_slots(64);
    struct block_id none = block_name(99, 0);
    for (uint32_t c = 0; c < 6; c++) put(s, c, 0);
    for (uint32_t k = 0; k < 30; k++) {
        struct block_meta m = block_meta_of(100 + k, 1);
        m.parent = block_name(k % 5, 0);  // the sixth has none
        uint32_t i = slots_claim(s, &m);
        assert_int_not_equal(i, SLOT_NONE);
        if (k % 2) slots_commit(s, i);  // in any state
    }
    for (int round = 0; round < 2; round++) {
        for (uint32_t c = 0; c < 6; c++) {
            struct block_id parent = block_name(c, 0);
            uint64_t seen = 0;
            uint32_t n = 0, first = SLOT_NONE;
            for (uint32_t i = SLOT_NONE; (i = slots_child(s, &parent, i)) != SLOT_NONE;
                 n++) {
                assert_true(block_id_equal(&slots_at(s, i)->meta.parent, &parent));
                assert_false(seen >> i & 1);
                seen |= UINT64_C(1) << i;
                if (first == SLOT_NONE) first = i;
            }
            assert_int_equal(n, c == 5 ? 0 : round ? 5 : 6);
            if (c < 5 && round == 0) slots_release(s, first);  // for the next round
        }
        assert_true(slots_check(s));
    }
    assert_int_equal(slots_child(s, &none, SLOT_NONE), SLOT_NONE);
    slots_close(s);
}

static void a_slot_of_choice_is_had_once(void **state)
{
    (void)state;
    struct slots *s = open_slots(3);
    struct block_meta m = block_meta_of(1, 0), n = block_meta_of(1, 1);
    assert_true(slots_claim_at(s, 1, &m));
    assert_false(slots_claim_at(s, 1, &n));
    assert_true(slots_check(s));
    assert_int_equal(slots_claim(s, &n), 0);
    n = block_meta_of(1, 2);
    assert_int_equal(slots_claim(s, &n), 2);
    n = block_meta_of(1, 3);
    assert_int_equal(slots_claim(s, &n), SLOT_NONE);
    slots_close(s);
}

static void what_failed_is_claimed_after_all_others(void **state)
{
    (void)state;
    struct slots *s = open_slots(3);
    slots_release_last(s, put(s, 1, 0));  // slot 0
    assert_int_equal(put(s, 1, 1), 1);
    slots_release(s, 1);
    assert_int_equal(put(s, 1, 2), 1);
    assert_int_equal(put(s, 1, 3), 2);
    assert_int_equal(put(s, 1, 4), 0);
    assert_true(slots_check(s));
    slots_close(s);
}

static void the_coldest_of_a_tenant_is_its_own(void **state)
{
    (void)state;
    struct slots *s = open_slots(6);
    uint32_t a0 = put(s, 10, 0), b0 = put(s, 20, 0), a1 = put(s, 10, 1);
    uint64_t a = 10, b = 20, nobody = 30;
    assert_int_equal(slots_coldest(s, NULL), a0);
    assert_int_equal(slots_coldest(s, &b), b0);
    assert_int_equal(slots_coldest(s, &nobody), SLOT_NONE);
    slots_pin(s, a0);
    assert_int_equal(slots_coldest(s, &a), a1);
    assert_int_equal(slots_coldest(s, NULL), b0);
    slots_unpin(s, a0);
    slots_touch(s, a0);
    assert_int_equal(slots_coldest(s, &a), a1);
    assert_int_equal(slots_used_by(s, a), 2);
    slots_release(s, b0);
    assert_int_equal(slots_used_by(s, b), 0);
    assert_int_equal(slots_coldest(s, &b), SLOT_NONE);
    assert_true(slots_check(s));
    slots_close(s);
}

static void a_chain_that_came_first_block_first_goes_last_block_first(void **state)
{
    (void)state;
    struct slots *s = open_slots(6);
    uint32_t chain[4], other = 0;
    uint64_t tenant = 1;
    for (uint32_t d = 0; d < 4; d++) {
        chain[d] = put(s, 1, d);
        slots_follow(s, chain[d]);
        if (d == 1) other = put(s, 2, 0);
    }
    slots_follow(s, other);  // it follows none
    assert_true(slots_check(s));
    for (uint32_t d = 4; d-- > 0;) {
        assert_int_equal(slots_coldest(s, NULL), chain[d]);
        assert_int_equal(slots_coldest(s, &tenant), chain[d]);
        slots_release(s, chain[d]);
    }
    assert_int_equal(slots_coldest(s, NULL), other);
    slots_close(s);
}

// ---- against a model that is too simple to be wrong ----------------------------------

#define NAMES 40
#define ROOM  12

struct simple {
    bool there, ready, leaving;
    uint32_t slot, pins;
    uint64_t used;  // when
};

static struct block_meta name(uint32_t n)
{
    return block_meta_of(n % 5, n / 5);
}

static uint32_t simple_coldest(const struct simple *m, const uint64_t *tenant)
{
    uint32_t best = NAMES;
    for (uint32_t n = 0; n < NAMES; n++) {
        if (!m[n].there || !m[n].ready || m[n].leaving || m[n].pins) continue;
        if (tenant && name(n).tenant != *tenant) continue;
        if (best == NAMES || m[n].used < m[best].used) best = n;
    }
    return best;
}

static void compare(const struct slots *s, const struct simple *m)
{
    uint32_t used = 0, used_by[5] = {0};
    for (uint32_t n = 0; n < NAMES; n++) {
        struct block_meta meta = name(n);
        used += m[n].there;
        used_by[n % 5] += m[n].there;
        assert_int_equal(slots_find(s, &meta.id), m[n].there ? m[n].slot : SLOT_NONE);
        bool match = m[n].there && m[n].ready && !m[n].leaving;
        assert_int_equal(slots_match(s, &meta), match ? m[n].slot : SLOT_NONE);
    }
    assert_int_equal(slots_used(s), used);
    for (uint64_t t = 0; t < 5; t++) {
        assert_int_equal(slots_used_by(s, t), used_by[t]);
        uint32_t cold = simple_coldest(m, &t);
        assert_int_equal(slots_coldest(s, &t),
                         cold == NAMES ? SLOT_NONE : m[cold].slot);
    }
    uint32_t cold = simple_coldest(m, NULL);
    assert_int_equal(slots_coldest(s, NULL), cold == NAMES ? SLOT_NONE : m[cold].slot);
    assert_true(slots_check(s));
}

/* Just before its parent, if that is there: all from there on are later by one. */
static void simple_follow(struct simple *m, uint32_t n)
{
    if (n < 5 || !m[n - 5].there) return;  // of the same conversation, one less deep
    uint64_t at = m[n - 5].used;
    for (uint32_t k = 0; k < NAMES; k++) m[k].used += m[k].used >= at;
    m[n].used = at;
}

static void act(struct slots *s, struct simple *m, uint64_t r, uint64_t now)
{
    uint32_t n = (uint32_t)(r >> 8) % NAMES;
    struct simple *x = &m[n];
    struct block_meta meta = name(n);
    bool steady = x->there && x->ready && !x->leaving;
    switch (r % 9) {
    case 8:
        if (x->there) slots_follow(s, x->slot), simple_follow(m, n);
        break;
    case 0:
    case 1:
        if (x->there) break;
        uint32_t i = slots_claim(s, &meta);
        if (i != SLOT_NONE) *x = (struct simple){true, false, false, i, 0, now};
        break;
    case 2:
        if (x->there && !x->ready) slots_commit(s, x->slot), x->ready = true;
        break;
    case 3:
        if (!x->there || x->pins) break;
        if (r >> 40 & 1)
            slots_release(s, x->slot);
        else
            slots_release_last(s, x->slot);
        x->there = false;
        break;
    case 4:
        if (steady) slots_pin(s, x->slot), x->pins++;
        break;
    case 5:
        if (x->there && x->pins) slots_unpin(s, x->slot), x->pins--;
        break;
    case 6:
        if (x->there) slots_touch(s, x->slot), x->used = now;
        break;
    case 7:
        if (steady && (r >> 40) % 4 == 0) slots_doom(s, x->slot), x->leaving = true;
        break;
    }
}

static void any_sequence_of_calls_does_what_a_plain_model_does(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct slots *s = open_slots(ROOM);
        struct simple m[NAMES] = {{0}};
        uint64_t random = seed;
        for (uint64_t now = 1; now <= 2000; now++) {
            act(s, m, mix64(&random), now);
            compare(s, m);
        }
        slots_close(s);
    }
}

static void more_tenants_than_slots_come_and_go(void **state)
{
    (void)state;
    struct slots *s = open_slots(8);
    unsigned long before = allocs_so_far();
    for (uint32_t n = 0; n < 1000; n++) {
        if (n >= 8) slots_release(s, slots_coldest(s, NULL));
        put(s, n, 0);
        assert_int_equal(slots_used_by(s, n), 1);
        if (n >= 8) assert_int_equal(slots_used_by(s, n - 8), 0);
    }
    assert_int_equal(allocs_so_far() - before, 0);
    assert_true(slots_check(s));
    slots_close(s);
}

static void a_broken_index_is_noticed(void **state)
{
    (void)state;
    struct slots *s = open_slots(4);
    uint32_t a = put(s, 1, 0), b = put(s, 1, 1);
    struct slot *x = (struct slot *)(uintptr_t)slots_at(s, a), good = *x;
    x->state = SLOT_FREE;
    assert_false(slots_check(s));
    *x = good, x->meta.id.bytes[0] ^= 0xff;
    assert_false(slots_check(s));
    *x = good, x->meta.tenant++;
    assert_false(slots_check(s));
    *x = good, x->newer = a;
    assert_false(slots_check(s));
    *x = good, x->behind = SLOT_NONE;
    assert_false(slots_check(s));
    *x = good;
    assert_true(slots_check(s));
    slots_release(s, b);
    assert_true(slots_check(s));
    slots_close(s);
}

static void a_capacity_out_of_range_is_refused(void **state)
{
    (void)state;
    struct slots *s = NULL;
    struct err err = {{0}};
    assert_int_equal(slots_open(&s, 0, &err), -EINVAL);
    assert_string_equal(err.msg, "a tier of 0 blocks is not possible; expected 1 to "
                                 "1073741823");
    assert_int_equal(slots_open(&s, UINT32_MAX, &err), -EINVAL);
    assert_null(s);
    slots_close(NULL);
}

static void the_memory_of_any_capacity_is_told(void **state)
{
    (void)state;
    size_t before = 0;
    for (uint64_t n = 1; n <= UINT32_MAX; n *= 2) {
        assert_true(slots_bytes((uint32_t)n) > before);
        before = slots_bytes((uint32_t)n);
    }
    assert_true(slots_bytes(UINT32_MAX) > before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_match_takes_every_field_and_a_ready_slot),
        cmocka_unit_test(ids_that_agree_in_their_first_bytes_are_kept_apart),
        cmocka_unit_test(the_blocks_that_follow_one_are_found_each_once),
        cmocka_unit_test(a_slot_of_choice_is_had_once),
        cmocka_unit_test(what_failed_is_claimed_after_all_others),
        cmocka_unit_test(the_coldest_of_a_tenant_is_its_own),
        cmocka_unit_test(a_chain_that_came_first_block_first_goes_last_block_first),
        cmocka_unit_test(any_sequence_of_calls_does_what_a_plain_model_does),
        cmocka_unit_test(more_tenants_than_slots_come_and_go),
        cmocka_unit_test(a_broken_index_is_noticed),
        cmocka_unit_test(a_capacity_out_of_range_is_refused),
        cmocka_unit_test(the_memory_of_any_capacity_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
