"""Sixty-four clients who do at random all that a client may: every answer is that of a server
that never slept, also through ends in the middle of wakes, and nothing is left behind.
STORM_SEED=N for another storm, STORM_SECONDS=N for a longer one."""
import json
import os
import random
import threading
import time

import pytest

from raw import connect, post, wait_for
from server import REPORT, Server
from sleepers import BLOCK, Cold, ask, prompt_of, tiers

SEED = os.environ.get("STORM_SEED", "1")
SECONDS = float(os.environ.get("STORM_SECONDS", "6"))
CLIENTS = 64
NAMES = 10
STEMS, FORKS = 12, 3
MODEL = os.environ.get("STORM_MODEL", "tiny-rand")
COMMANDS = [("POST", "/sleep"), ("POST", "/wake"), ("POST", "/hold?ttl=1"), ("POST", "/hold?ttl=0"),
            ("GET", ""), ("DELETE", "")]
WRONG = [("POST", "/hold?ttl=-1"), ("POST", "/hold?ttl=nan"), ("POST", "/hold?ttl=1e99"),
         ("POST", "/hold?ttl=99999999999999999999"), ("PUT", ""), ("POST", "/nap")]


def histories():
    """Conversations of 3 to 30 blocks, some that fork, and some edited in their middle."""
    choose, found = random.Random(f"storm {SEED}"), []
    for i in range(STEMS):
        stem = prompt_of(choose.randrange(3, 20) * BLOCK + choose.randrange(BLOCK), f"storm {i}")
        found.append(stem)
        for k in range(FORKS):
            found.append(stem + prompt_of(choose.randrange(1, 10 * BLOCK), f"fork {i} {k}"))
        edited = list(stem)
        edited[choose.randrange(len(stem))] ^= 1
        found.append(edited)
    return found


@pytest.fixture(scope="module", name="cold")
def cold_answers():
    with Cold(MODEL) as server:
        yield {tuple(p): server(p, 4) for p in histories()}


class Client(threading.Thread):
    def __init__(self, storm, seed):
        super().__init__()
        self.storm, self.choose = storm, random.Random(seed)

    def run(self):
        while not self.storm.over.is_set():
            act = self.choose.choices([self.talk, self.leave, self.command, self.nonsense],
                                      [10, 2, 5, 1])[0]
            try:
                act()
            except (OSError, ValueError) as e:
                if not self.storm.ending:
                    self.storm.wrong.append(repr(e))
                return
            except AssertionError as e:
                # A server that ends tells so.
                if not self.storm.ending:
                    self.storm.wrong.append(str(e))
                return

    def name(self):
        return f"storm-{self.choose.randrange(NAMES)}"

    def talk(self):
        prompt = self.choose.choice(self.storm.prompts)
        named = self.choose.random() < 0.6
        said, _ = ask(self.storm.server, prompt, 4,
                      {"X-Conversation-Id": self.name()} if named else None)
        if said != self.storm.cold[tuple(prompt)]:
            self.storm.wrong.append(f"another answer to {len(prompt)} tokens: {said}")
        self.storm.answers += 1

    def leave(self):
        """Before the answer: at once, during the load, or in the middle of the reply."""
        body = {"prompt": self.choose.choice(self.storm.prompts), "max_tokens": 64,
                "ignore_eos": True, "stream": self.choose.random() < 0.5}
        with connect(self.storm.server, 30) as s:
            s.sendall(post(json.dumps(body).encode(), "/v1/completions",
                           f"X-Conversation-Id: {self.name()}\r\n"))
            time.sleep(self.choose.choice([0, 0.001, 0.01, 0.1]))

    def command(self):
        method, action = self.choose.choice(COMMANDS)
        status, _, body = self.storm.server.request(
            method, f"/v1/conversations/{self.name()}{action}")
        assert status in (200, 404, 409) or self.storm.ending, (method, action, status, body)

    def nonsense(self):
        method, action = self.choose.choice(WRONG)
        status, _, body = self.storm.server.request(
            method, f"/v1/conversations/{self.name()}{action}")
        assert status in (400, 404, 405) or self.storm.ending, (method, action, status, body)


class Storm:
    def __init__(self, server, cold, seed):
        self.server, self.cold, self.prompts = server, cold, [list(p) for p in cold]
        self.over, self.ending, self.wrong, self.answers = threading.Event(), False, [], 0
        self.clients = [Client(self, f"{SEED} {seed} {k}") for k in range(CLIENTS)]
        for c in self.clients:
            c.start()

    def end(self):
        self.over.set()
        for c in self.clients:
            c.join()
        assert not self.wrong, self.wrong[:3]


def forget_all(server):
    """Every conversation is deleted; one that is on its way is asked again."""
    def gone():
        _, _, body = server.request("GET", "/v1/conversations?limit=1000")
        names = [c["id"] for c in json.loads(body)["data"]]
        for name in names:
            status, _, body = server.request("DELETE", f"/v1/conversations/{name}")
            assert status in (200, 404, 409), body
        return not names
    assert wait_for(gone, 60)


TIERS = {"all three": dict(g1=400, ram=150, slots=260), "no RAM": dict(g1=300, slots=300),
         "no SSD": dict(g1=300, ram=200)}


@pytest.mark.parametrize("kind", TIERS)
def test_sixty_four_clients_at_random_get_the_answers_of_one_that_never_slept(tmp_path, cold, kind):
    size = dict(TIERS[kind])
    if "slots" in size:
        size["ssd"] = tmp_path / "kv"
    with Server(MODEL, *tiers(**size), "--max-stores", "32") as server:
        running = Storm(server, cold, kind)
        time.sleep(SECONDS)
        assert wait_for(lambda: running.answers > CLIENTS or running.wrong, 120)
        running.end()
        for prompt, said in cold.items():
            assert ask(server, list(prompt), 4)[0] == said
        forget_all(server)
        assert wait_for(lambda: server.metrics_sum("dormouse_kv_blocks_used") == 0)
        assert server.metrics_sum("dormouse_num_requests_running") == 0
        assert server.metrics_sum("dormouse_num_requests_waiting") == 0


def test_ends_in_the_middle_of_wakes_are_clean_and_lose_no_answer(tmp_path, cold):
    flags = tiers(300, ram=100, ssd=tmp_path / "kv", slots=500)
    choose = random.Random(SEED)
    for i in range(8):
        server = Server(MODEL, *flags, "--drain", "1s", "--copy-down", "500ms")
        running = Storm(server, cold, i)
        time.sleep(choose.uniform(0.2, 1.5))
        running.ending = True
        code = server.stop()
        running.end()
        assert code == 0 and not REPORT.search(server.log()), server.log()[-2000:]
    with Server(MODEL, *flags) as server:
        for prompt, said in cold.items():
            assert ask(server, list(prompt), 4)[0] == said
