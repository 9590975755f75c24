"""A GPU with little memory, or one that fails, which a CPU that stands in for one can be told to be."""
import os
import re

import pytest

from models import expected
from server import Server

pytestmark = pytest.mark.skipif(os.environ.get("DORMOUSE_DEVICE") != "cuda",
                                reason="for a server whose GPU is the stand-in")
MIB = 1 << 20


def serve(*flags, **env):
    """A server with no margin and these settings of the stand-in: its log, and whether it serves,
    which is then with the right text."""
    server = Server("tiny-rand", "--margin", "0", "--context", "512", "--max-running", "8", *flags,
                    wait=False, env={f"STANDIN_{name}": str(value) for name, value in env.items()})
    try:
        server.wait_ready()
    except RuntimeError:
        assert server.process.wait() == 1, server.log()
        return server.log(), False
    case = expected("tiny-rand")[0]
    with server:
        text = server.text(messages=case["messages"], temperature=0, max_tokens=8)
        assert text and case["content"].startswith(text)
    return server.log(), True


def test_any_device_memory_serves_rightly_or_is_refused_by_a_sentence():
    served = []
    for mib in (1, 33, 38, 42, 44, 45, 46, 48, 64):
        log, serves = serve(DEVICE_MEMORY=mib * MIB)
        served.append(serves)
        last = log.splitlines()[-1]
        assert serves or (" error " in last and "memory" in last and last.endswith(" margin")
                          or "no device memory for" in last), log
        if serves:
            assert "had no room" not in log and re.search(r"graphs [\d.]+ MiB, KV pool", log), log
    assert served == sorted(served) and not served[0] and served[-1] and served.count(True) > 2


def test_device_memory_for_graphs_that_is_too_little_makes_steps_slower_only():
    log, serves = serve(NODE_MEMORY=MIB)
    assert serves and re.search(r" 0 steps of decode are recorded .* had no room", log), log


def test_where_less_can_be_pinned_the_ram_tier_is_smaller_and_the_log_says_so():
    log, serves = serve("--ram", "256M", PINNED_MEMORY=48 * MIB)
    said = re.search(r"RAM tier: only ([\d.]+) MiB of 256 MiB could be had .*; it is smaller", log)
    assert serves and said and 1 <= float(said[1]) < 48, log
    assert f"RAM tier: {said[1]} MiB, " in log


def test_a_device_that_fails_ends_requests_by_500_and_a_reason():
    with Server("tiny-rand", "--context", "512", "--max-running", "8",
                env={"STANDIN_FAIL": "kernel:find_best:60:719"}) as server:
        answers = [server.chat(max_tokens=8, temperature=0) for _ in range(20)]
        good = [status for status, _ in answers].index(500)
        assert all(status == 200 for status, _ in answers[:good])
        for status, answer in answers[good:]:
            assert status == 500 and "backend has failed" in answer["error"]["message"]
        assert b"failed" in server.request("GET", "/health")[2]
        log = server.log()
        assert "the CUDA device failed while" in log and "cudaErrorLaunchFailure" in log
