"""Conversations that sleep: prompts, servers with tiny tiers, and answers that never slept."""
import json
import os
import random
import tempfile
import time

import pytest

from server import Server

# The long proofs: minutes of demotion and damage.  `make storms` runs them.
storm = pytest.mark.skipif("STORMS" not in os.environ,
                           reason="takes minutes; `make storms` runs it")

BLOCK = 16               # tokens
BLOCK_BYTES = 4096       # of tiny-rand and tiny-abc: 2 layers, K and V, 2 heads of 16, f16
SLOT_BYTES = 4096 + BLOCK_BYTES
PAGE = 4096              # before the first slot: disk_format.h

# Computing a tiny model is about as quick as reading its blocks, and then the server may rightly
# compute; where a test counts what is found, computing is made dear, for all
# servers of that test: each instruction set has bits of its own.
SLOW = ("--cpu-path", "portable", "--threads", "1")

# Down at once and without hysteresis, so that a test needs no patience.
EAGER = ("--copy-after", "1ms", "--idle-after", "100ms", "--ssd-after", "1ms",
         "--residency", "1ms", "--margin", "1M")
# Down only for want of room or at the end, so that a test says when.
LAZY = ("--copy-after", "1h", "--idle-after", "1h", "--ssd-after", "1h", "--margin", "1M")


def tiers(g1, ram=0, ssd=None, slots=0, timing=EAGER, speed=SLOW):
    """Flags for so many blocks of the KV pool, of RAM, and in the folder ssd."""
    flags = ("--kv-blocks", str(g1), *timing, *speed)
    if ram:
        flags += ("--ram", str(ram * BLOCK_BYTES))
    if ssd:
        size = max(PAGE + slots * SLOT_BYTES, 1 << 20)
        flags += ("--ssd", str(ssd), "--ssd-size", str(size))
    return flags


def prompt_of(n, seed):
    """n token ids of tiny-rand, each a byte, that no other seed begins with."""
    choose = random.Random(seed)
    return [choose.randrange(256) for _ in range(n)]


def ask(server, prompt, tokens=8, headers=None):
    """-> (what was said, with its logprobs; usage).  Checks what every answer must hold."""
    fields = {"prompt": prompt, "temperature": 0, "max_tokens": tokens, "logprobs": 2,
              "ignore_eos": True}
    status, _, body = server.request("POST", "/v1/completions", fields, headers)
    assert status == 200, (status, body)
    answer = json.loads(body)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached % BLOCK == 0 and 0 <= cached < len(prompt)
    choice = answer["choices"][0]
    return (choice["text"], choice["finish_reason"], choice["logprobs"]), usage


def names(server):
    """Of all conversations that the server lists."""
    found, after = [], ""
    while True:
        status, _, body = server.request("GET", f"/v1/conversations?limit=1000{after}")
        assert status == 200, body
        page = [c["id"] for c in json.loads(body)["data"]]
        if not page:
            return found
        found += page
        after = f"&after={page[-1]}"


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def kept(usage):
    """Tokens that were still there, computed anew or not: on a slow disk that is quicker."""
    computed = usage["dormouse"]["computed"]
    return cached(usage) + computed["cheaper"] + computed["late"]


class Cold:
    """Answers of a server that reuses nothing: each question comes from a tenant of its
    own.  Asked once; then remembered."""

    TENANTS = 4000

    def __init__(self, model="tiny-rand", speed=SLOW):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.writelines(f"t{i} {self._key(i)}\n" for i in range(self.TENANTS))
            keys.flush()
            self.server = Server(model, "--keys", keys.name, *speed)
        self.known, self.asked = {}, 0

    @staticmethod
    def _key(i):
        return f"tenant-{i:04d}-0123456789"

    def __call__(self, prompt, tokens=8):
        name = (tuple(prompt), tokens)
        if name not in self.known:
            key = self._key(self.asked % self.TENANTS)
            said, usage = ask(self.server, prompt, tokens, {"Authorization": f"Bearer {key}"})
            assert self.asked >= self.TENANTS or cached(usage) == 0
            self.asked += 1
            self.known[name] = said
        return self.known[name]

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.server.__exit__(*why)


def slot_count(folder):
    """Slots of the file that hold something."""
    used = 0
    with open(os.path.join(folder, "blocks"), "rb") as f:
        f.seek(PAGE)
        while slot := f.read(SLOT_BYTES):
            used += slot.startswith(b"DORMSLOT")
    return used


def wait_slots(folder, n, seconds=30):
    """Until n blocks have reached the SSD; how many have."""
    end = time.time() + seconds
    while (have := slot_count(folder)) < n and time.time() < end:
        time.sleep(0.05)
    return have


def written(server):
    """Bytes that the process has caused to be written to devices."""
    with open(f"/proc/{server.pid}/io") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("write_bytes"))


def busy(server):
    """What grows while the process computes, copies or writes: clock ticks, and bytes."""
    with open(f"/proc/{server.pid}/stat") as f:
        ticks = sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])
    return ticks, written(server)


def wait_copied(server, seconds=30):
    """Until all that is quiet lies below the KV pool: nothing has moved for a while."""
    end = time.time() + seconds
    time.sleep(0.2)  # EAGER's 100 ms are over
    before = busy(server)
    while time.time() < end:
        time.sleep(0.2)
        now = busy(server)
        if now[1] == before[1] and now[0] - before[0] <= 1:
            return
        before = now


def press(server, blocks, seed="press", headers=None):
    """Fill the KV pool with strangers, so that all else has to go."""
    for i in range(4):
        ask(server, prompt_of((blocks // 2 - 1) * BLOCK, f"{seed} {i}"), 1, headers)


def assert_no_ssd(server, *words):
    """It said so in one line, and its metrics tell."""
    warned = [x for x in server.log().splitlines() if "there is no SSD tier" in x]
    assert len(warned) == 1 and all(w in warned[0] for w in words), server.log()
    values = {k.split("{")[0]: v for k, v in server.metrics().items() if 'tier="ssd"' in k}
    assert values["dormouse_tier_configured"] == 1
    assert values["dormouse_tier_writable"] == 0
