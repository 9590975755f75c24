"""The first token of a long conversation that slept costs one step, whatever its length: all but
the new message, and the block that the history ends in, is found.  What is counted is what makes
it sooner than a cold one; `make bench-wake` prints by how much."""
import pytest

from server import Server, checks_threads
from sleepers import BLOCK, Cold, ask, cached, prompt_of, tiers, wait_copied

HISTORY = (4000 if checks_threads() else 20000) + 5  # the last block is not full
MESSAGE = 40
TOKENS = 4
POOL = 1400          # blocks: one such conversation at a time
CHUNK = 512          # tokens of a prompt in one step, at most
TIERS = ("ram", "ssd", "both")


@pytest.fixture(scope="module")
def cold():
    with Cold(speed=()) as c:
        yield c


def flags(tier, folder):
    below = 4 * POOL
    return tiers(POOL, ram=below if tier != "ssd" else 0,
                 ssd=folder if tier != "ram" else None, slots=below, speed=())


class Resume:
    """The answer to a prompt, and what it took by the server's own count."""

    def __init__(self, server, prompt):
        before = self.count(server)
        self.said, self.usage = ask(server, prompt, TOKENS)
        self.computed, self.steps, self.found = (
            b - a for a, b in zip(before, self.count(server)))
        # A reply of n tokens takes n - 1 steps beyond the one that ends the prompt.
        assert self.computed + cached(self.usage) == len(prompt) + TOKENS - 1
        assert self.found == cached(self.usage)

    @staticmethod
    def count(server):
        return [server.metrics_sum(f"dormouse_{name}_total")
                for name in ("computed_tokens", "steps", "cached_tokens")]


def expect_quick(resume, known, new, sources):
    """One step to the first token; of what is known no token computed beyond its whole blocks."""
    assert resume.computed == known % BLOCK + new + TOKENS - 1
    assert resume.steps == TOKENS
    told = resume.usage["dormouse"]
    assert sum(told["tokens"][source] for source in sources) == known - known % BLOCK
    assert told["computed"]["new"] == known % BLOCK + new


@pytest.mark.parametrize("tier", TIERS)
def test_a_resume_after_20000_tokens_computes_the_message_and_less_than_a_block(tmp_path, cold,
                                                                               tier):
    history = prompt_of(HISTORY, "long")
    prompt = history + prompt_of(MESSAGE, "message")
    folder = tmp_path / "kv"
    with Server("tiny-rand", *flags(tier, folder)) as server:
        began = Resume(server, history)
        assert began.found == 0 and began.steps >= HISTORY // CHUNK  # what a resume is spared
        wait_copied(server)
        resume = Resume(server, prompt)
        assert resume.said == cold(prompt, TOKENS)
        expect_quick(resume, HISTORY, MESSAGE, ("ram", "ssd"))
        wait_copied(server)
    if tier == "ram":
        return
    with Server("tiny-rand", *flags(tier, folder)) as server:  # what a restart finds
        resume = Resume(server, prompt)
        assert resume.said == cold(prompt, TOKENS)
        expect_quick(resume, len(prompt), 0, ("ssd",))
