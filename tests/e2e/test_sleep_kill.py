"""kill -9 at any moment of a storm of demotions and promotions: every restart answers right,
and finds what had reached the SSD.  KILLS=200 for more than the ordinary 25."""
import os
import random
import signal
import threading
import time

import pytest

from server import REPORT, Server
from sleepers import BLOCK, Cold, ask, kept, names, prompt_of, slot_count, tiers

KILLS = int(os.environ.get("KILLS", "25"))
CONVERSATIONS = 24
TURNS = 12
STEP = 37       # tokens a turn adds: blocks are filled over several turns
FIRST = 400


def history(i, turn):
    """Each third conversation is a fork of the one before it."""
    stem = prompt_of(FIRST, f"kill {i - 1 if i % 3 == 2 else i}")
    own = prompt_of(TURNS * STEP, f"kill turns {i}")
    return stem + own[:turn * STEP]


class Storm:
    """Clients that resume conversations at random until the server is gone."""

    def __init__(self, server, cold, seed):
        self.server, self.cold, self.wrong, self.answers = server, cold, [], 0
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(f"{seed} {k}",))
                        for k in range(4)]
        for t in self.threads:
            t.start()

    def client(self, seed):
        choose = random.Random(seed)
        while not self.stop.is_set():
            prompt = history(choose.randrange(CONVERSATIONS), choose.randrange(TURNS))
            try:
                said, _ = ask(self.server, prompt, 4)
            except AssertionError as e:
                self.wrong.append(e)
            except (OSError, ValueError):  # killed before or in the middle of an answer
                return
            else:
                self.answers += 1
                if said != self.cold[tuple(prompt)]:
                    self.wrong.append(f"another answer to {len(prompt)} tokens")

    def wait(self, answers):
        """Also a server under a sanitizer is to be killed amid work, not before it."""
        end = time.time() + 30
        while self.answers < answers and time.time() < end:
            time.sleep(0.01)

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join()
        assert not self.wrong, self.wrong[:3]


def test_killed_at_random_moments_it_serves_right_answers_and_finds_conversations(tmp_path):
    with Cold() as ask_cold:
        cold = {tuple(p): ask_cold(p, 4) for p in
                (history(i, t) for i in range(CONVERSATIONS) for t in range(TURNS))}
    folder = tmp_path / "kv"
    # All of it takes about 1,100 blocks: it fits no tier but is held by all of them together.
    flags = tiers(120, ram=200, ssd=folder, slots=900)
    choose = random.Random(4)
    answers = found = restarts_with_blocks = 0
    for _ in range(KILLS):
        had = slot_count(folder) if (folder / "blocks").exists() else 0
        server = Server("tiny-rand", *flags)
        if had:
            restarts_with_blocks += 1
            first = [ask(server, history(i, t), 4) + (history(i, t),)
                     for i, t in ((choose.randrange(CONVERSATIONS), choose.randrange(TURNS))
                                  for _ in range(8))]
            for said, _, prompt in first:
                assert said == cold[tuple(prompt)]
            found += any(kept(usage) >= 2 * BLOCK for _, usage, _ in first)
        storm = Storm(server, cold, choose.random())
        storm.wait(choose.randrange(4))
        time.sleep(choose.uniform(0, 0.8))
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        storm.end()
        answers += storm.answers
        assert not REPORT.search(server.log())
    assert answers > KILLS
    assert restarts_with_blocks >= KILLS // 2
    assert found >= restarts_with_blocks * 0.9, f"{found} of {restarts_with_blocks} restarts"

    with Server("tiny-rand", *flags) as server:  # and ends well
        for i in range(CONVERSATIONS):
            prompt = history(i, TURNS - 1)
            assert ask(server, prompt, 4)[0] == cold[tuple(prompt)]


def test_what_had_reached_the_ssd_before_a_kill_is_found_after_it(tmp_path):
    folder = tmp_path / "kv"
    flags = tiers(120, ssd=folder, slots=600)
    prompts = [prompt_of(40 * BLOCK + 1, f"before the kill {i}") for i in range(10)]
    server = Server("tiny-rand", *flags)
    before = [ask(server, p, 4)[0] for p in prompts]
    end = time.time() + 30
    while slot_count(folder) < 400 and time.time() < end:
        time.sleep(0.05)
    assert slot_count(folder) >= 400
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    with Server("tiny-rand", *flags) as server:
        for prompt, said in zip(prompts, before):
            again, usage = ask(server, prompt, 4)
            assert again == said and kept(usage) == 40 * BLOCK


@pytest.mark.parametrize("ram", [0, 300])
def test_a_kill_loses_nothing_that_begins_with_what_others_use_all_the_time(tmp_path, ram):
    """A system prompt that somebody uses more often than anything is ever quiet for."""
    folder = tmp_path / "kv"
    timing = ("--copy-after", "300ms", "--ssd-after", "500ms", "--idle-after", "1s",
              "--margin", "1M")
    flags = tiers(300, ram=ram, ssd=folder, slots=600, timing=timing)
    system, own, count = 20, 5, 8
    shared = prompt_of(system * BLOCK, "system prompt")
    prompts = [shared + prompt_of(own * BLOCK + 1, f"under it {i}") for i in range(count)]
    server = Server("tiny-rand", *flags)
    before = [ask(server, p, 4)[0] for p in prompts]
    end = time.time() + 30
    while slot_count(folder) < system + count * own and time.time() < end:
        ask(server, shared + [1, 2, 3], 1)
    assert slot_count(folder) == system + count * own
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    with Server("tiny-rand", *flags) as server:
        for prompt, said in zip(prompts, before):
            again, usage = ask(server, prompt, 4)
            assert again == said and kept(usage) == (system + own) * BLOCK
            assert usage["dormouse"]["computed"]["new"] == 1


def test_no_name_that_was_deleted_comes_back_from_a_kill(tmp_path):
    """Conversations that share stems, and so blocks, under a name each that is used once."""
    folder = tmp_path / "kv"
    flags = tiers(200, ssd=folder, slots=500)
    choose = random.Random(11)
    used, deleted, found = set(), set(), 0
    for k in range(max(KILLS // 3, 4)):
        server = Server("tiny-rand", *flags)
        listed = set(names(server))
        assert not listed & deleted
        assert all(n in used or n.startswith("conv-") for n in listed)
        found += len(listed & used)
        new = {f"kill-{k}-{i}" for i in range(6)}
        for name in sorted(new):
            prompt = history(choose.randrange(6), choose.randrange(TURNS))
            ask(server, prompt, 4, {"X-Conversation-Id": name})
        used |= new
        time.sleep(choose.uniform(0, 0.4))
        there = sorted((listed & used) | new)
        for name in choose.sample(there, len(there) // 2):
            status, _, body = server.request("DELETE", f"/v1/conversations/{name}")
            assert status in (200, 404), body
            deleted.add(name)
        time.sleep(choose.uniform(0, 0.1))
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        content = (folder / "names").read_bytes()
        assert not [n for n in deleted if n.encode() + b"\0" in content]
    assert found >= KILLS // 3
