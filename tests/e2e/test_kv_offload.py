"""Sleep is invisible: whatever tier a prefix comes from, the answer is that of a server that
reuses nothing; and what was not computed was found."""
import pytest

from models import expected
from server import PROGRAM, WEAK_NAMES, Server, checks_threads, together
from sleepers import (storm, BLOCK, BLOCK_BYTES, SLOT_BYTES, SLOW, Cold, ask, cached, press, prompt_of, tiers,
                      wait_copied, wait_slots, written)

pytestmark = storm

TIERS = ("ram", "ssd", "both")


@pytest.fixture(scope="module")
def cold():
    with Cold() as c:
        yield c


@pytest.fixture(scope="module")
def quick_cold():
    """For long histories, which are dear enough as they are."""
    with Cold(speed=()) as c:
        yield c


def below(tier, folder, g1, blocks, speed=SLOW):
    """Flags for a KV pool of g1 blocks over one tier, or both, that hold so many."""
    return tiers(g1, ram=blocks if tier != "ssd" else 0,
                 ssd=folder if tier != "ram" else None, slots=blocks, speed=speed)


# ---- a prompt's last token is always computed ----

@pytest.mark.parametrize("tier", TIERS)
def test_whole_prompts_at_the_borders_of_blocks_wake_to_the_same_answer(tmp_path, cold, tier):
    lengths = [k * BLOCK + d for k in (1, 2, 3, 4, 8, 21) for d in (-1, 0, 1)]
    with Server("tiny-rand", *below(tier, tmp_path / "kv", 64, 2000)) as server:
        for tokens in (8, 1):
            for n in lengths:
                prompt = prompt_of(n, f"border {n}")
                for _ in range(3):
                    said, usage = ask(server, prompt, tokens)
                    assert said == cold(prompt, tokens)
                    assert cached(usage) <= n - 1
            wait_copied(server)
            press(server, 64, f"border {tokens}")


# ---- long and short histories ----

LENGTHS = (1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025)
POOL = 1200  # blocks
if checks_threads():  # the longest alone take it minutes, and its threads meet as in the others
    LENGTHS, POOL = LENGTHS[:-3], 800


def resume_all(server, cold, prompts):
    """Every prompt once more; most of it is found."""
    found = 0
    for blocks, prompt in prompts.items():
        said, usage = ask(server, prompt, 4)
        assert said == cold(prompt, 4), blocks
        found += cached(usage)
    assert found >= sum(prompts) * BLOCK / 2


def edit(prompt, block):
    """The history with one token of that block changed."""
    at = block * BLOCK + 3
    return prompt[:at] + [(prompt[at] + 1) % 256] + prompt[at + 1:]


@pytest.mark.parametrize("tier", TIERS)
def test_histories_of_1_to_1025_blocks_wake_to_the_same_answer(tmp_path, quick_cold, tier):
    prompts = {n: prompt_of(n * BLOCK + 5, f"length {n}") for n in LENGTHS}
    folder = tmp_path / "kv"
    flags = below(tier, folder, POOL, 8000, speed=())
    with Server("tiny-rand", *flags) as server:
        for n, prompt in prompts.items():
            assert ask(server, prompt, 4)[0] == quick_cold(prompt, 4), n
            if n >= 255:
                wait_copied(server)  # or the next one takes its room before
        press(server, POOL)
        resume_all(server, quick_cold, prompts)
    if tier == "ram":
        return
    with Server("tiny-rand", *flags) as server:  # what is there after a restart
        resume_all(server, quick_cold, prompts)
        for n in LENGTHS:
            if n < 15:
                continue
            for block in (0, n // 2, n - 1):
                changed = edit(prompts[n], block)
                said, usage = ask(server, changed, 4)
                assert said == quick_cold(changed, 4), (n, block)
                assert cached(usage) <= block * BLOCK


# ---- names ----

@pytest.mark.parametrize("program", [PROGRAM, WEAK_NAMES], ids=["names", "names of 8 bits"])
@pytest.mark.parametrize("tier", TIERS)
def test_prompts_that_differ_in_one_token_never_share_the_changed_block(tmp_path, cold, tier,
                                                                       program):
    """Also where a block's name says next to nothing, because the tokens are compared."""
    whole = prompt_of(4 * BLOCK, "whole")
    front = prompt_of(BLOCK, "front")
    variants = [(edit_at(whole, i), i // BLOCK) for i in range(len(whole))]
    variants += [(front + whole, 0), (whole[BLOCK:] + whole[:BLOCK], 0), (whole[:BLOCK] * 4, 1),
                 (whole[:BLOCK] * 3, 1), (whole[:2 * BLOCK] + whole[:2 * BLOCK], 2)]
    with Server("tiny-rand", *below(tier, tmp_path / "kv", 64, 1000),
                program=program) as server:
        for turn in range(3):
            for prompt, shared in variants:
                assert ask(server, whole)[0] == cold(whole)
                said, usage = ask(server, prompt)
                assert said == cold(prompt)
                if turn == 0 and len(prompt) == len(whole):
                    assert cached(usage) <= max(shared, 0) * BLOCK
            wait_copied(server)
            press(server, 64, f"variants {turn}")


def edit_at(prompt, i):
    return prompt[:i] + [(prompt[i] + 7) % 256] + prompt[i + 1:]


# ---- what was computed, and what was found ----

def computed_by(server, prompt, tokens):
    before = server.metrics_sum("dormouse_computed_tokens_total")
    said, usage = ask(server, prompt, tokens)
    return said, usage, server.metrics_sum("dormouse_computed_tokens_total") - before


@pytest.mark.parametrize("tier", TIERS)
def test_computed_and_cached_tokens_add_up_to_the_prompt(tmp_path, cold, tier):
    """A reply of n tokens takes n - 1 steps beyond the prompt."""
    count, length, turns = 5, 40 * BLOCK, 20
    histories = [prompt_of(length, f"sum {i}") for i in range(count)]
    with Server("tiny-rand", *below(tier, tmp_path / "kv", 128, 2000)) as server:
        found = total = 0
        for turn in range(turns):
            for i, history in enumerate(histories):
                said, usage, computed = computed_by(server, history, 4)
                assert said == cold(history, 4)
                assert computed + cached(usage) == len(history) + 4 - 1
                found += cached(usage)
                total += len(history)
                histories[i] = history + prompt_of(7, f"turn {turn} of {i}")
            wait_copied(server)
        assert server.metrics_sum("dormouse_cached_tokens_total") == found
        new = count * (length + (turns - 1) * 7)
        # All but what is new, and the block that a prompt ends in, comes from somewhere.
        assert found >= (total - new - count * turns * BLOCK) * 0.9


# ---- tenants ----

def bearer(key):
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def two_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("one first-key-0123456789\ntwo second-key-0123456789\n")
    return ("--keys", str(file)), bearer("first-key-0123456789"), bearer("second-key-0123456789")


@pytest.mark.parametrize("tier", TIERS)
def test_tenants_find_nothing_of_each_other(tmp_path, cold, two_keys, tier):
    keys, one, two = two_keys
    prompt, wrong = prompt_of(600, "secret"), prompt_of(599, "secret") + [1]
    folder = tmp_path / "kv"
    flags = (*below(tier, folder, 128, 2000), *keys)
    with Server("tiny-rand", *flags) as server:
        ask(server, prompt, headers=one)
        assert cached(ask(server, prompt, headers=one)[1]) == 592
        for guess in (prompt, wrong):
            said, usage = ask(server, guess, headers=two)
            assert said == cold(guess)
            # its own second guess shares with its first one, and no more than that
            assert cached(usage) == (0 if guess is prompt else 592)
        wait_copied(server)
        press(server, 128, "one", headers=one)
        assert cached(ask(server, prompt, headers=one)[1]) == 592  # its own woke
    if tier == "ram":
        return
    other = prompt_of(600, "second secret")
    with Server("tiny-rand", *flags) as server:
        ask(server, other, headers=one)
    with Server("tiny-rand", *flags) as server:  # after a restart, from the folder
        assert cached(ask(server, other, headers=two)[1]) == 0
        assert cached(ask(server, other, headers=one)[1]) == 592


def test_tenants_of_one_group_share(tmp_path, cold, two_keys):
    keys, one, two = two_keys
    prompt = prompt_of(600, "shared")
    with Server("tiny-rand", *tiers(128, ram=500), *keys, "--share", "one, two") as server:
        ask(server, prompt, headers=one)
        said, usage = ask(server, prompt, headers=two)
        assert said == cold(prompt) and cached(usage) == 592


def test_conversations_of_another_tenant_are_not_there(two_keys):
    keys, one, two = two_keys
    named = {**one, "X-Conversation-Id": "mine"}
    with Server("tiny-rand", *tiers(128, ram=500), *keys) as server:
        if server.request("GET", "/v1/conversations", headers=one)[0] == 404:
            pytest.skip("no /v1/conversations")
        ask(server, prompt_of(100, "named"), headers=named)
        path = "/v1/conversations/mine"
        assert server.request("GET", path, headers=one)[0] == 200
        for method, target in (("GET", path), ("DELETE", path), ("POST", path + "/sleep"),
                               ("POST", path + "/wake"), ("POST", path + "/hold?ttl=60")):
            assert server.request(method, target, headers=two)[0] == 404, (method, target)
        status, _, body = server.request("GET", "/v1/conversations", headers=two)
        assert status == 200 and b"mine" not in body
        # The same name is another conversation for another tenant.
        same = ask(server, prompt_of(100, "named"), headers={**two, "X-Conversation-Id": "mine"})
        assert cached(same[1]) == 0
        assert server.request("DELETE", path, headers=two)[0] == 200
        assert cached(ask(server, prompt_of(100, "named"), headers=named)[1]) == 96
        assert server.request("DELETE", path, headers=one)[0] in (200, 204)
        assert server.request("GET", path, headers=one)[0] == 404


# ---- bytes written ----

def alternate(server, cold, conversations, length, turns, step=20):
    """Turn by turn around all conversations; -> blocks of distinct KV there are at the end."""
    histories = [prompt_of(length, f"alternate {i}") for i in range(conversations)]
    for turn in range(turns):
        for i in range(conversations):
            said, _ = ask(server, histories[i], 1)
            if turn % 10 == 0:
                assert said == cold(histories[i], 1)
            histories[i] = histories[i] + prompt_of(step, f"{turn} {i}")
    wait_copied(server)
    return sum((length + (turns - 1) * step) // BLOCK for _ in histories)


def test_what_is_on_the_ssd_is_not_written_again(tmp_path, quick_cold):
    folder = tmp_path / "kv"
    with Server("tiny-rand", *tiers(400, ssd=folder, slots=1500, speed=())) as server:
        before = written(server)
        distinct = alternate(server, quick_cold, 4, 4000, 50)
        blocks = (written(server) - before) / SLOT_BYTES
        assert wait_slots(folder, distinct) >= distinct * 0.95
        assert blocks <= distinct * 1.2


@pytest.mark.parametrize("quota", [False, True], ids=["size", "quota"])
def test_a_full_ssd_keeps_three_of_four_that_take_turns(tmp_path, quick_cold, quota):
    """Room for three conversations of 4,000 tokens, by the file's size or the tenant's quota:
    neither do the four push each other out, nor is anything written again and again."""
    room = 3 * 250
    flags = tiers(400, ssd=tmp_path / "kv", slots=2000 if quota else room, speed=())
    if quota:
        flags += ("--ssd-quota", str(room * BLOCK_BYTES))
    with Server("tiny-rand", *flags) as server:
        before = written(server)
        new = alternate(server, quick_cold, 4, 4000, 50)
        blocks = (written(server) - before) / SLOT_BYTES
        asked = server.metrics_sum("dormouse_prompt_tokens_total")
        found = server.metrics_sum("dormouse_cached_tokens_total")
        evicted = server.metrics()[next(k for k in server.metrics() if k.startswith(
            "dormouse_evicted_blocks_total{") and 'tier="ssd"' in k)]
        print(f"{blocks:.0f} slots written, {new} blocks of new KV, {evicted:.0f} evicted, "
              f"{found / asked:.0%} of {asked:.0f} tokens found")
        assert blocks <= 2 * new
        assert evicted <= new
        assert found >= asked / 2


# ---- chats ----

@pytest.mark.parametrize("tier", TIERS)
def test_known_answers_hold_from_every_tier(tmp_path, tier):
    with Server("tiny-rand", *below(tier, tmp_path / "kv", 64, 500)) as server:
        for turn in range(4):
            for case in expected("tiny-rand"):
                assert server.text(messages=case["messages"], temperature=0,
                                   max_tokens=case["max_tokens"]) == case["content"]
            wait_copied(server)
            press(server, 64, f"known {turn}")


def test_many_resume_at_once(tmp_path, cold):
    """Twelve prompts, some beginning alike, asked together over a pool that holds two."""
    stem = prompt_of(20 * BLOCK, "stem")
    prompts = [stem + prompt_of(100 + 7 * i, f"branch {i}") for i in range(6)]
    prompts += [prompt_of(300 + 16 * i, f"alone {i}") for i in range(6)]
    with Server("tiny-rand", *below("both", tmp_path / "kv", 80, 300)) as server:
        for _ in range(6):
            got = together([(lambda p=p: ask(server, p, 12)[0]) for p in prompts * 2], 12)
            assert got == [cold(p, 12) for p in prompts * 2]
