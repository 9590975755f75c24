"""Many conversations asleep: all are listed, each wakes, and a restart has them all.
SLEEPERS=10000 for more than the ordinary 1,000."""
import os
import random
import time

import pytest

from server import Server, together
from sleepers import BLOCK, ask, kept, names, prompt_of, slot_count, tiers, wait_slots

SLEEPERS = int(os.environ.get("SLEEPERS", "1000"))
BLOCKS = 12
LOT = 200  # conversations that fill the KV pool
WOKEN = min(SLEEPERS, 200)


def prompt(i):
    return prompt_of(BLOCKS * BLOCK + 1, f"sleeper {i}")


def name_of(i):
    return {"X-Conversation-Id": f"sleeper-{i}"}


def wake_at_random(server, said, seed):
    """-> tokens found of WOKEN conversations, each answered as before it slept"""
    chosen = random.Random(seed).sample(range(SLEEPERS), WOKEN)
    found = 0
    for i in chosen:
        again, usage = ask(server, prompt(i), 4, name_of(i))
        assert again == said[i]
        found += kept(usage)
    return found


@pytest.mark.timeout(3000)
def test_sleeping_conversations_are_listed_and_wake_also_after_a_restart(tmp_path, capsys):
    folder = tmp_path / "kv"
    flags = (*tiers(LOT * (BLOCKS + 2), ssd=folder, slots=SLEEPERS * (BLOCKS + 1)),
             "--max-conversations", str(2 * SLEEPERS))
    most = WOKEN * BLOCKS * BLOCK
    with Server("tiny-rand", *flags) as server:
        ask(server, prompt(-1), 4)
        before = server.rss_mib()
        said = []
        for lot in range(0, SLEEPERS, LOT):  # as many as the pool holds, then they fall asleep
            said += together([(lambda i=i: ask(server, prompt(i), 4, name_of(i))[0])
                              for i in range(lot, min(lot + LOT, SLEEPERS))], 4)
            asleep = (min(lot + LOT, SLEEPERS) + 1) * BLOCKS
            assert wait_slots(folder, asleep, 120) >= asleep  # or the next take their room
        bytes_each = (server.rss_mib() - before) * 2**20 / SLEEPERS
        listed = names(server)
        assert {f"sleeper-{i}" for i in range(SLEEPERS)} <= set(listed)
        assert wake_at_random(server, said, 1) >= most * 0.9
    began = time.time()
    with Server("tiny-rand", *flags) as server:
        ready = time.time() - began
        assert slot_count(folder) >= SLEEPERS * BLOCKS
        assert wake_at_random(server, said, 2) >= most * 0.9
        restarted = names(server)
        assert {f"sleeper-{i}" for i in range(SLEEPERS)} <= set(restarted)
    with capsys.disabled():
        print(f"\n{SLEEPERS} conversations of {BLOCKS} blocks asleep: {bytes_each:.0f} bytes of "
              f"memory each; ready {ready:.2f} s after a restart; "
              f"{len(listed)} listed, {len(restarted)} after it")


def test_what_comes_faster_than_it_falls_asleep_is_kept_or_told_as_not_waited_for(tmp_path):
    """Nobody waits between the turns of eight clients: room is made by saving.  Where the
    disk is so slow that computing a tiny model again is quicker, blocks are dropped, and each
    of them is counted: nothing else is lost."""
    folder, count = tmp_path / "kv", 600
    flags = tiers(LOT * BLOCKS, ssd=folder, slots=count * (BLOCKS + 1),
                  timing=("--margin", "1M", "--max-stores", "32"))
    with Server("tiny-rand", *flags) as server:
        together([(lambda i=i: ask(server, prompt(i), 4, name_of(i))) for i in range(count)], 8)
        lost = server.metrics_sum("dormouse_lost_blocks_total")
        unwaited = server.metrics_sum("dormouse_unwaited_blocks_total")
        least = count * BLOCKS - unwaited
        assert lost <= unwaited and unwaited < count * BLOCKS
        assert least <= wait_slots(folder, least, 250) <= count * BLOCKS
