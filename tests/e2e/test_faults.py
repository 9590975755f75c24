"""An SSD whose reads and writes fail at every call in turn costs time and never an answer.
Through the threads that read and write (`ssd_io = threads`), which a preloaded library can
reach; what a ring brings is made to fail in tests/offload/test_ssd_faults.c."""
import os
import re

import pytest

from raw import wait_for
from server import Server, preload
from sleepers import (storm, BLOCK, LAZY, Cold, ask, cached, prompt_of, tiers, wait_copied,
                      wait_slots)

pytestmark = storm

COUNT, BLOCKS = 4, 40
PROMPTS = [prompt_of(BLOCKS * BLOCK + 3, f"fault {i}") for i in range(COUNT)]
CALLS = range(51)


@pytest.fixture(scope="module")
def cold():
    with Cold() as c:
        yield {tuple(p): c(p, 4) for p in PROMPTS}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return preload("fault_io.c", tmp_path_factory.mktemp("fault"))


class Faults:
    """Says which calls fail, from now on."""

    def __init__(self, folder, library):
        self.control, self.serial = folder / "faults", 0
        self.env = {**library, "FAULT_IO": str(self.control)}
        self.set("none")

    def set(self, kind, at=0, count=1):
        self.serial += 1
        new = f"{self.control}.new"
        with open(new, "w") as f:
            f.write(f"{self.serial} {kind} {at} {count}\n")
        os.rename(new, self.control)

    def hits(self):
        name = f"{self.control}.hits"
        return os.path.getsize(name) if os.path.exists(name) else 0


@pytest.fixture
def faults(tmp_path, library):
    return Faults(tmp_path, library)


def flags(folder, slots=400):
    return (*tiers(60, ssd=folder, slots=slots), "--ssd-io", "threads")


def dropped(server):
    return server.metrics()[next(k for k in server.metrics() if k.startswith(
        "dormouse_dropped_blocks_total{") and 'tier="ssd"' in k)]


def ask_all(server, cold):
    found = 0
    for p in PROMPTS:
        said, usage = ask(server, p, 4)
        assert said == cold[tuple(p)]
        found += cached(usage)
    return found


@pytest.mark.parametrize("kind", ["shortr", "eio"])
@pytest.mark.parametrize("count", [1, 5])
def test_reads_that_fail_during_promotion_at_each_call(tmp_path, cold, faults, kind, count):
    """One that is short is gone on with; one that fails costs the block that it was for."""
    with Server("tiny-rand", *flags(tmp_path / "kv"), env=faults.env) as server:
        assert "by threads" in server.log()
        for _ in range(2):
            ask_all(server, cold)
            wait_copied(server)
        reached = found = 0
        for at in CALLS:
            before, lost = faults.hits(), dropped(server)
            faults.set(kind, at, count)
            found += ask_all(server, cold)
            hits = faults.hits() - before
            reached += hits > 0
            assert dropped(server) - lost <= (0 if kind == "shortr" else hits)
            faults.set("none")
            if at % 10 == 9:
                wait_copied(server)
        assert reached >= 20  # of the calls; one wake of 40 blocks takes five or more
        # What was read well was used.
        assert found >= len(CALLS) * COUNT * BLOCKS * BLOCK * (0.9 if kind == "shortr" else 0.5)


@pytest.mark.parametrize("kind", ["shortw", "enospc", "eiow"])
def test_writes_that_fail_at_each_call(tmp_path, cold, faults, kind):
    """Each time on an empty folder: nothing partial is served, and writing goes on."""
    reached = 0
    for at in CALLS:
        folder = tmp_path / f"kv {at}"
        faults.set(kind, at, 1)
        before = faults.hits()
        with Server("tiny-rand", *flags(folder), env=faults.env) as server:
            for _ in range(2):
                ask_all(server, cold)
            if at % 10 == 0:
                wait_slots(folder, COUNT * BLOCKS - 8, 10)
                ask_all(server, cold)
        reached += faults.hits() > before
        faults.set("none")
        if at % 10 == 0:
            with Server("tiny-rand", *flags(folder), env=faults.env) as server:
                assert ", 0 damaged" in server.log() or kind == "shortw", server.log()
                ask_all(server, cold)
    assert reached >= 15


@pytest.mark.parametrize("kind", ["enospc", "eiow"])
def test_a_disk_that_takes_nothing_is_told_of_a_few_times_and_used_again(tmp_path, cold, faults,
                                                                        kind):
    folder = tmp_path / "kv"
    why = "No space left on device" if kind == "enospc" else "Input/output error"
    with Server("tiny-rand", *flags(folder), env=faults.env) as server:
        faults.set(kind, 0, 1 << 40)
        for _ in range(4):
            ask_all(server, cold)
        assert server.metrics_sum("dormouse_demoted_bytes_total") == 0
        assert server.metrics_sum("dormouse_store_failures_total") > 0
        warned = re.findall(r" warn .*ssd tier takes no blocks.*", server.log())
        assert 1 <= len(warned) <= 4 and all(why in w for w in warned), server.log()
        faults.set("none")
        end = 40
        while "ssd tier takes blocks again" not in server.log() and end > 0:
            ask_all(server, cold)
            wait_copied(server)
            end -= 1
        assert "ssd tier takes blocks again" in server.log()
        for _ in range(2):  # what was tried too often is listed again with its next use
            ask_all(server, cold)
            wait_copied(server)
        # Most of it: under pressure the pool may free a block that nobody has copied yet.
        most = COUNT * BLOCKS * 3 // 4
        assert wait_slots(folder, most) >= most
        assert ask_all(server, cold) > 0


def test_at_the_end_a_device_without_room_is_not_waited_for(tmp_path, faults):
    with Server("tiny-rand", *tiers(300, ssd=tmp_path / "kv", slots=300, timing=LAZY),
                "--ssd-io", "threads", "--copy-down", "1h", env=faults.env) as server:
        faults.set("enospc", 0, 1 << 40)
        ask(server, PROMPTS[0])
        server.stop()  # within a minute
        assert re.search(r"before the end 0 blocks .* more could not be: No space left",
                         server.log()), server.log()


def test_what_cannot_be_overwritten_is_not_said_to_be_deleted(tmp_path, faults):
    folder = tmp_path / "kv"

    def delete(server):
        status, _, body = server.request("DELETE", "/v1/conversations/one")
        return status, body.decode()

    with Server("tiny-rand", *flags(folder), env=faults.env) as server:
        ask(server, PROMPTS[0], 1, {"X-Conversation-Id": "one"})
        assert wait_slots(folder, BLOCKS) >= BLOCKS
        faults.set("eiow", 0, 1 << 40)
        for _ in range(2):
            status, answer = delete(server)
            assert status == 503 and "Input/output error" in answer
        assert "cannot overwrite" in server.log()
        faults.set("none")
        assert delete(server)[0] == 404
        assert "has overwritten them all" in server.log()
    with Server("tiny-rand", *flags(folder), env=faults.env) as server:
        assert " 0 blocks are there again" in server.log()


def test_a_name_that_cannot_be_overwritten_holds_up_its_own_deletion_alone(tmp_path, faults):
    folder = tmp_path / "kv"

    def delete(server, name):
        status, _, body = server.request("DELETE", f"/v1/conversations/{name}")
        return status, body.decode()

    def written(name):
        return name.encode() + b"\0" in (folder / "names").read_bytes()

    with Server("tiny-rand", *flags(folder), env=faults.env) as server:
        ask(server, PROMPTS[0], 1, {"X-Conversation-Id": "one"})
        assert wait_for(lambda: written("one"))
        faults.set("names", 0, 1 << 40)
        ask(server, PROMPTS[1], 1, {"X-Conversation-Id": "two"})
        assert wait_for(lambda: "cannot write the names" in server.log())
        for _ in range(2):
            status, answer = delete(server, "one")
            assert status == 503 and "Input/output error" in answer
        assert written("one")
        assert delete(server, "three")[0] == 404
        faults.set("none")
        assert delete(server, "one")[0] == 404
        assert not written("one")
        assert wait_for(lambda: written("two"))
        assert "has written the names" in server.log()
