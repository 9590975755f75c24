"""What one tenant has sent, another finds out neither by what is found nor by how long it
takes."""
import math
import random
import time

import pytest

from server import Server
from sleepers import storm, ask, cached, press, prompt_of, tiers, wait_copied

pytestmark = storm

REPEATS = 30
ROUNDS = 2
TOKENS = 600
KEYS = {"one": "first-key-0123456789", "two": "second-key-0123456789"}


def bearer(tenant):
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


def mann_whitney(a, b):
    """The probability that two samples of one distribution lie so far apart, both sides, by
    the normal approximation with ties; H. B. Mann and D. R. Whitney, 1947."""
    both = sorted(a + b)
    first = {x: i for i, x in reversed(list(enumerate(both)))}
    count = {x: both.count(x) for x in set(both)}
    rank = {x: first[x] + (count[x] + 1) / 2 for x in count}
    n, m, total = len(a), len(b), len(both)
    u = sum(rank[x] for x in a) - n * (n + 1) / 2
    ties = sum(c**3 - c for c in count.values()) / (total * (total - 1))
    spread = math.sqrt(n * m / 12 * (total + 1 - ties))
    return math.erfc(abs(u - n * m / 2) / spread / math.sqrt(2)) if spread else 1.0


def test_mann_whitney_is_that_of_the_books():
    a = [19, 22, 16, 29, 24]
    b = [20, 11, 17, 12]
    assert abs(mann_whitney(a, b) - 0.0864) < 0.0001  # U = 17 of 20
    assert mann_whitney([1, 1, 1], [1, 1, 1]) == 1.0


def first_token(server, prompt, tenant):
    """-> seconds to an answer of one token, cached tokens"""
    began = time.perf_counter()
    _, usage = ask(server, prompt, 1, bearer(tenant))
    return time.perf_counter() - began, cached(usage)


def measure(server, tier, seed):
    """Times of the second tenant's guesses that are right, of those that are not, and of
    the first one's own return, one after the other in random order."""
    choose = random.Random(seed)
    secrets = [prompt_of(TOKENS, f"secret {seed} {i}") for i in range(REPEATS)]
    wrong = [s[:-1] + [(s[-1] + 1) % 256] if i % 2 else prompt_of(TOKENS, f"wrong {seed} {i}")
             for i, s in enumerate(secrets)]
    for i, s in enumerate(secrets):
        ask(server, s, 1, bearer("one"))
        if tier != "device" and i % 4 == 3:
            wait_copied(server)  # or the next ones take their room before
    if tier != "device":
        wait_copied(server)
        press(server, 200, f"press {seed}", bearer("one"))
    # A prompt that begins as another of this tenant's would find that one's blocks: the guess
    # of each is the right one or the wrong one, never both.
    times = {"right": [], "wrong": [], "own": []}
    order = [(kind, i) for i in range(REPEATS) for kind in ("own", "right" if i % 4 < 2 else "wrong")]
    choose.shuffle(order)
    for kind, i in order:
        prompt = wrong[i] if kind == "wrong" else secrets[i]
        seconds, found = first_token(server, prompt, "one" if kind == "own" else "two")
        assert kind == "own" or found == 0
        times[kind].append((seconds, found))
    return {kind: [s for s, _ in x] for kind, x in times.items()}, times["own"]


@pytest.mark.parametrize("tier", ["device", "ram", "ssd"])
def test_a_right_guess_takes_as_long_as_a_wrong_one(tmp_path, tier):
    """Two rounds must both say that the times differ, each with less than 1 in 1,000 for
    chance.  That such a difference would be seen is shown by the first tenant, whose own
    return is told from a stranger's guess by the same measure in at least one round."""
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{t} {k}\n" for t, k in KEYS.items()))
    # A pool that holds all of it or less than one round; nothing of it is lost below.
    flags = {"device": tiers(8000), "ram": tiers(200, ram=8000),
             "ssd": tiers(200, ssd=tmp_path / "kv", slots=8000)}[tier]
    leaks, seen = [], []
    with Server("tiny-rand", *flags, "--keys", str(keys)) as server:
        for k in range(ROUNDS):
            times, own = measure(server, tier, k)
            assert sum(found for _, found in own) >= 0.7 * REPEATS * (TOKENS - 8)
            leaks.append(mann_whitney(times["right"], times["wrong"]))
            seen.append(mann_whitney(times["own"], times["right"] + times["wrong"]))
    print(f"right or wrong: p = {leaks}; own or a stranger's: p = {seen}")
    assert max(leaks) >= 0.001, leaks
    assert min(seen) < 0.001, seen
