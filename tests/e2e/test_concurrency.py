"""Many at once: the same texts as one by one, and nobody stands still."""
import json
import os
import random
import threading
import time

from models import expected
from raw import wait_for
from server import Server, collect, together

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" * 100


def test_answers_do_not_depend_on_who_else_is_running(tiny_rand):
    with open(os.path.join(GOLDEN, "cases", "concurrent_prompts.json")) as f:
        prompts = json.load(f)
    jobs = [(lambda p=p, n=n: tiny_rand.text(messages=p, max_tokens=n, temperature=0))
            for p in prompts for n in (1, 7, 40)]
    alone = [job() for job in jobs]
    for seed in range(3):
        order = list(range(len(jobs)))
        random.Random(seed).shuffle(order)
        got = together([jobs[i] for i in order], 12)
        assert got == [alone[i] for i in order]


def test_64_greedy_streams_give_the_texts_of_one_by_one(tiny_rand):
    asks = [{"messages": [{"role": "user", "content": f"{'cat sat ' * (i % 23)}number {i}"}],
             "max_tokens": 8 + i % 40, "temperature": 0} for i in range(64)]
    alone = [tiny_rand.text(**dict(a)) for a in asks]
    streams = [(lambda a=a: collect(tiny_rand.events(**dict(a)))["text"]) for a in asks]
    assert together(streams, 64) == alone


def test_known_answers_hold_while_others_stream(tiny_rand):
    stop = threading.Event()

    def noise():
        while not stop.is_set():
            collect(tiny_rand.events(max_tokens=60, temperature=1))
    threads = [threading.Thread(target=noise) for _ in range(10)]
    for t in threads:
        t.start()
    try:
        for _ in range(3):
            for case in expected("tiny-rand"):
                answer = tiny_rand.text(messages=case["messages"], temperature=0,
                                        max_tokens=case["max_tokens"])
                assert answer == case["content"]
    finally:
        stop.set()
        for t in threads:
            t.join()


def test_a_seed_gives_the_same_text_under_load(tiny_rand):
    def ask():
        return tiny_rand.text("hello", max_tokens=24, temperature=1.5, seed=42)
    first = ask()
    assert set(together([ask] * 16, 8)) == {first}


def test_a_long_prompt_does_not_stop_the_other_streams(tiny_abc):
    """While 24,000-token prompts are computed one after another, a stream goes on: between
    two of its tokens there is never a whole prefill."""
    stop, full = threading.Event(), []

    def long_prompts():
        k = 0
        while not stop.is_set():
            k += 1
            start = time.time()
            tiny_abc.chat(f"{k} " + "one two three four " * 6000, max_tokens=1)
            full.append(time.time() - start)
    thread = threading.Thread(target=long_prompts)
    thread.start()
    try:
        between, seen, text = [], 0, ""
        for frame in tiny_abc.events(max_tokens=600, temperature=0):
            if frame == "[DONE]":
                continue
            text += frame["choices"][0]["delta"].get("content") or ""
            between.append(len(full) - seen)  # prefills that ended since the last token
            seen = len(full)
        assert text == LETTERS[:600]
        assert max(between) <= 1
    finally:
        stop.set()
        thread.join()


def test_what_fits_the_pool_is_answered_and_what_cannot_is_refused():
    """A pool of 64 blocks holds 1,024 tokens, the context 131,072."""
    with Server("tiny-abc", "--kv-blocks", "64") as server:
        _, answer = server.chat("a", max_tokens=1)
        base = answer["usage"]["prompt_tokens"]
        for tokens in (1007, 1008, 1009, 1023, 1024, 1025):
            for n in (4, 64):
                status, answer = server.chat("a" + " cat" * (tokens - base), max_tokens=n,
                                             temperature=0)
                if tokens >= 1024:
                    assert status == 400 and "1024" in answer["error"]["message"]
                else:
                    assert answer["usage"]["prompt_tokens"] == tokens
                    assert answer["usage"]["completion_tokens"] == min(n, 1024 - tokens)
                    assert answer["choices"][0]["finish_reason"] == "length"
                assert server.text(max_tokens=4, temperature=0) == "ABCD"
        assert wait_for(lambda: server.metrics_sum("dormouse_kv_blocks_used") == 0)


def test_a_big_request_gets_its_turn_among_small_ones():
    with Server("tiny-abc", "--kv-blocks", "64") as server:
        stop, small = threading.Event(), []

        def chats():
            while not stop.is_set():
                small.append(server.text("one two three four five", max_tokens=150, temperature=0))
        threads = [threading.Thread(target=chats) for _ in range(4)]
        for t in threads:
            t.start()
        try:
            for _ in range(3):
                before = len(small)
                status, answer = server.chat("a" + " cat" * 800, max_tokens=20, temperature=0)
                assert status == 200, answer
                assert answer["choices"][0]["message"]["content"] == LETTERS[:20]
                assert wait_for(lambda: len(small) > before)
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert set(small) == {LETTERS[:150]}


def test_replies_that_outgrow_the_pool_all_end_right():
    """Eight replies of 800 tokens want 50 blocks each of a pool of 64: some are put back and
    computed again, and no text changes."""
    with Server("tiny-rand", "--kv-blocks", "64") as server:
        asks = [{"content": f"number {i}", "max_tokens": 800, "temperature": 0, "ignore_eos": True}
                for i in range(8)]
        alone = [server.text(**dict(a)) for a in asks]
        assert together([(lambda a=a: server.text(**dict(a))) for a in asks], 8) == alone
        assert server.metrics_sum("dormouse_num_preemptions_total") > 0
