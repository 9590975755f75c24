"""Damage to the SSD's folder, before the start and while the server runs, costs time and never
an answer."""
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import time

import pytest

from server import PROGRAM, Server, model_dir
from sleepers import (storm, assert_no_ssd, BLOCK, BLOCK_BYTES, LAZY, PAGE, SLOT_BYTES, Cold, ask,
                      cached, kept, press, prompt_of, slot_count, tiers, wait_copied, wait_slots)

pytestmark = storm

COUNT, BLOCKS = 6, 30  # conversations; blocks of each
PROMPTS = [prompt_of(BLOCKS * BLOCK + 3, f"damage {i}") for i in range(COUNT)]
SLOTS = 400


@pytest.fixture(scope="module")
def cold():
    with Cold() as c:
        yield {tuple(p): c(p, 4) for p in PROMPTS}


@pytest.fixture(scope="module")
def sleeping(tmp_path_factory):
    """A folder in which all conversations sleep."""
    folder = tmp_path_factory.mktemp("sleeping") / "kv"
    with Server("tiny-rand", *tiers(300, ssd=folder, slots=SLOTS)) as server:
        for p in PROMPTS:
            ask(server, p, 4)
    assert slot_count(folder) >= COUNT * BLOCKS
    return folder


# ---- kinds of damage: each changes the file of slots ----

def slots_in_use(f):
    f.seek(PAGE)
    content = f.read()
    return [i for i in range(len(content) // SLOT_BYTES)
            if content.startswith(b"DORMSLOT", i * SLOT_BYTES)]


def flip(f, at):
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 0x10]))


def read_at(f, at, n):
    f.seek(at)
    return f.read(n)


def write_at(f, at, content):
    f.seek(at)
    f.write(content)


def slot_at(i):
    return PAGE + i * SLOT_BYTES


def flip_headers(f):
    for i in slots_in_use(f)[::5]:
        flip(f, slot_at(i) + 40)


def flip_payloads(f):
    for i in slots_in_use(f)[::5]:
        flip(f, slot_at(i) + 4096 + 17 * (i % 200))


def flip_at_random(f):
    size, choose = f.seek(0, os.SEEK_END), random.Random(1)
    for _ in range(300):
        flip(f, choose.randrange(size))


def swap(f, offset, n):
    used = slots_in_use(f)
    for a, b in zip(used[::4], used[1::4]):
        first, second = (read_at(f, slot_at(i) + offset, n) for i in (a, b))
        write_at(f, slot_at(a) + offset, second)
        write_at(f, slot_at(b) + offset, first)


def copy_over(f):
    """The first slot's bytes in every fifth one: one block many times, others gone."""
    used = slots_in_use(f)
    first = read_at(f, slot_at(used[0]), SLOT_BYTES)
    for i in used[::5]:
        write_at(f, slot_at(i), first)


def zero_pages(f, offset):
    for i in slots_in_use(f)[::5]:
        write_at(f, slot_at(i) + offset, bytes(4096))


def size_of(f):
    return f.seek(0, os.SEEK_END)


# name: (the change; are all blocks still to be found?)
KINDS = {
    "nothing": (lambda f: None, True),
    "a bit of the first page": (lambda f: flip(f, 20), True),
    "bits of headers": (flip_headers, False),
    "bits of payloads": (flip_payloads, False),
    "the last bit": (lambda f: flip(f, size_of(f) - 1), True),
    "bits at random": (flip_at_random, False),
    "cut in half": (lambda f: f.truncate(slot_at(slots_in_use(f)[-1] // 2) + 100), False),
    "cut by one byte": (lambda f: f.truncate(size_of(f) - 1), True),
    "cut within a payload": (lambda f: f.truncate(slot_at(slots_in_use(f)[-1]) + 5000), False),
    "emptied": (lambda f: f.truncate(0), False),
    "zeroed headers": (lambda f: zero_pages(f, 0), False),
    "zeroed payloads": (lambda f: zero_pages(f, 4096), False),
    "zeroed first page": (lambda f: write_at(f, 0, bytes(PAGE)), True),
    "something appended": (lambda f: write_at(f, size_of(f), b"\xee" * 5000), True),
    "swapped slots": (lambda f: swap(f, 0, SLOT_BYTES), True),
    "swapped headers": (lambda f: swap(f, 0, 4096), False),
    "swapped payloads": (lambda f: swap(f, 4096, BLOCK_BYTES), False),
    "one slot over others": (copy_over, False),
}


def ask_all(server, cold):
    """Every conversation returns, twice; -> tokens found the first time."""
    found = 0
    for again in range(2):
        for p in PROMPTS:
            said, usage = ask(server, p, 4)
            assert said == cold[tuple(p)]
            if not again:
                found += cached(usage)
    return found


def most_found(cold, flags, enough=COUNT * BLOCKS * BLOCK, folder=None, again=5):
    """Tokens found by a server on that folder, the best of some, as each may compute what
    it thinks is sooner computed.  folder: each gets a copy of its own."""
    most = 0
    for k in range(again):
        mine = flags
        if folder:
            shutil.copytree(folder, f"{folder} {k}")
            mine = [f"{folder} {k}" if x == str(folder) else x for x in flags]
        with Server("tiny-rand", *mine) as server:
            most = max(most, ask_all(server, cold))
            warned = re.findall(r" (?:warn|error) .*", server.log())
            assert len(warned) <= 8, warned
        if most >= enough:
            break
    return most


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_costs_time_and_no_answer(tmp_path, sleeping, cold, kind):
    change, whole = KINDS[kind]
    folder = tmp_path / "kv"
    shutil.copytree(sleeping, folder)
    with open(folder / "blocks", "r+b") as f:
        change(f)
    flags = tiers(300, ssd=folder, slots=SLOTS)
    everything = COUNT * BLOCKS * BLOCK
    found = most_found(cold, flags, folder=folder)
    assert found == everything if whole else found < everything
    # What is damaged is dropped, and written anew when it has been computed.
    assert most_found(cold, flags) == everything
    with Server("tiny-rand", *flags) as server:
        assert ", 0 damaged" in server.log()


@pytest.mark.parametrize("change", [
    lambda d: os.utime(d / "blocks", (1, 1)),
    lambda d: (d / "blocks.tmp").write_bytes(b"stray"),
    lambda d: shutil.copy(d / "blocks", d / "blocks.old"),
    lambda d: os.chmod(d / "blocks", 0o644),
], ids=["an old date", "a stray file", "a copy beside it", "another mode"])
def test_what_is_beside_the_slots_does_not_matter(tmp_path, sleeping, cold, change):
    folder = tmp_path / "kv"
    shutil.copytree(sleeping, folder)
    change(folder)
    flags = tiers(300, ssd=folder, slots=SLOTS)
    assert most_found(cold, flags) == COUNT * BLOCKS * BLOCK


# ---- no file at all ----

def bind(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))


@pytest.mark.parametrize("kind, make", [
    ("symbolic link", lambda p: os.symlink("/etc/hostname", p)),
    ("directory", lambda p: os.mkdir(p)), ("pipe", lambda p: os.mkfifo(p, 0o600)),
    ("socket", bind)])
@pytest.mark.parametrize("name", ["blocks", "lock"])
def test_what_is_no_file_costs_the_tier_and_no_answer(tmp_path, sleeping, cold, kind, make,
                                                      name):
    """It neither hangs, nor reads or writes through a link: the server says what is in the
    way, once, and serves without the SSD."""
    folder = tmp_path / "kv"
    shutil.copytree(sleeping, folder)
    os.remove(folder / name)
    make(folder / name)
    before = open("/etc/hostname", "rb").read()
    with Server("tiny-rand", *tiers(300, ssd=folder, slots=SLOTS)) as server:
        assert ask_all(server, cold) == 0
        assert_no_ssd(server, f"{folder}/{name}", "regular file")
    assert open("/etc/hostname", "rb").read() == before


def test_a_second_server_is_kept_out_of_the_folder(tmp_path):
    flags = tiers(64, ssd=tmp_path / "kv", slots=100)
    with Server("tiny-rand", *flags) as server:
        second = Server("tiny-rand", *flags, wait=False)
        assert second.process.wait(30) > 0 and "in use by another process" in second.log()
        ask(server, PROMPTS[0])


# ---- while it runs ----

def change_file(change):
    def act(folder):
        with open(folder / "blocks", "r+b") as f:
            change(f)
    return act


RUNNING = {
    "folder removed": lambda d: shutil.rmtree(d),
    "file removed": lambda d: os.remove(d / "blocks"),
    "folder renamed": lambda d: os.rename(d, str(d) + " away"),
    "file emptied": change_file(lambda f: f.truncate(0)),
    "file cut by a page": change_file(lambda f: f.truncate(size_of(f) - 4096)),
    "file cut in half": change_file(lambda f: f.truncate(slot_at(slots_in_use(f)[-1] // 2) + 100)),
    "bits of payloads": change_file(flip_payloads),
    "bits of headers": change_file(flip_headers),
    "swapped payloads": change_file(lambda f: swap(f, 4096, BLOCK_BYTES)),
    "swapped slots": change_file(lambda f: swap(f, 0, SLOT_BYTES)),
    "read only": lambda d: (os.chmod(d, 0o555), os.chmod(d / "blocks", 0o444)),
}


@pytest.mark.parametrize("kind", RUNNING)
def test_damage_to_a_running_server_costs_time_and_no_answer(tmp_path, cold, kind):
    folder = tmp_path / "kv"
    flags = tiers(100, ssd=folder, slots=SLOTS)
    enough = COUNT * BLOCKS * BLOCK * 0.9
    with Server("tiny-rand", *flags) as server:
        for turn in range(3):
            ask_all(server, cold)
            wait_copied(server)
            press(server, 100, f"damage {turn}")
            if turn == 1:
                RUNNING[kind](folder)
        assert server.text("x", max_tokens=2, temperature=0) is not None
    if kind == "read only":
        os.chmod(folder, 0o700)
    with Server("tiny-rand", *flags) as server:  # and the folder serves again
        ask_all(server, cold)
        wait_copied(server)
    assert most_found(cold, flags, enough) >= enough


# ---- no room ----

@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=0700", "none", folder],
                          capture_output=True)
    if done.returncode:
        pytest.skip("a small file system needs a right to mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def storm_of_forty(server, cold_of, turns=2):
    prompts = [prompt_of(40 * BLOCK + 1, f"forty {i}") for i in range(40)]
    for _ in range(turns):
        for p in prompts:
            said, _ = ask(server, p, 4)
            assert said == cold_of(p, 4)


@pytest.fixture(scope="module")
def cold_of():
    with Cold() as c:
        yield c


def test_a_disk_smaller_than_the_tier_fails_no_request(small_disk, cold_of):
    """64 MiB are wanted, 6 are there, and another program takes of them and gives back."""
    flags = tiers(100, ssd=small_disk / "kv", slots=(64 << 20) // SLOT_BYTES)
    checked = subprocess.run([PROGRAM, "serve", model_dir("tiny-rand"), "--port", "0", *flags,
                              "--check-config"], capture_output=True, text=True, check=True)
    noted = re.search("Only 0 of the SSD tier's .*", checked.stderr)[0]
    assert not list(small_disk.iterdir())
    with Server("tiny-rand", *flags) as server:
        assert noted in server.log()
        storm_of_forty(server, cold_of)
        with open(small_disk / "other", "wb") as f:
            try:
                f.write(bytes(8 << 20))
            except OSError:
                pass
        storm_of_forty(server, cold_of)
        os.remove(small_disk / "other")
        storm_of_forty(server, cold_of)
        log = server.log()
        warned = [x for x in log.splitlines() if re.search(r" (warn|error) .*SSD", x)]
        assert 1 <= len(warned) <= 20, warned
    with Server("tiny-rand", *flags) as server:
        storm_of_forty(server, cold_of, 1)


def test_a_file_system_without_direct_io_serves(small_disk, cold_of):
    with Server("tiny-rand", *tiers(100, ssd=small_disk / "kv", slots=400)) as server:
        storm_of_forty(server, cold_of)
        assert len(re.findall("page cache", server.log())) <= 1


def test_a_limit_on_the_size_of_files_ends_nothing_by_a_signal(tmp_path, cold_of):
    """Either the server says at the start that the file cannot be, or it serves without."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    server = Server("tiny-rand", *tiers(100, ssd=tmp_path / "kv", slots=2000), wait=False,
                    preexec=limit)
    time.sleep(0.5)
    if server.process.poll() is not None:
        assert server.process.returncode > 0, server.log()
        assert "tmp" in server.log()
        return
    with server.wait_ready():
        storm_of_forty(server, cold_of, 1)


def test_a_folder_that_is_deleted_under_the_server_is_told_of_once(tmp_path, cold):
    folder = tmp_path / "kv"
    with Server("tiny-rand", *tiers(64, ssd=folder, slots=SLOTS)) as server:
        for p in PROMPTS:
            assert ask(server, p, 4)[0] == cold[tuple(p)]
        shutil.rmtree(folder)
        end = time.time() + 60
        while "file has been deleted" not in server.log() and time.time() < end:
            time.sleep(0.1)
        for p in PROMPTS:
            assert ask(server, p, 4)[0] == cold[tuple(p)]
        time.sleep(6)
        assert server.log().count("file has been deleted") == 1


def test_sigterm_copies_down_within_its_time(tmp_path):
    """Nothing was copied before; the end copies all, and a restart finds it."""
    folder = tmp_path / "kv"
    flags = tiers(300, ssd=folder, slots=SLOTS, timing=LAZY)
    with Server("tiny-rand", *flags) as server:
        said = [ask(server, p, 4)[0] for p in PROMPTS]
        assert slot_count(folder) == 0
        server.stop()
        told = re.search(r"before the end (\d+) blocks \(.*\) were copied to the SSD in [0-9.]+ s\n",
                         server.log())
        assert told and int(told.group(1)) >= COUNT * BLOCKS, server.log()
    assert wait_slots(folder, COUNT * BLOCKS, 0) >= COUNT * BLOCKS
    with Server("tiny-rand", *flags) as server:
        for p, before in zip(PROMPTS, said):
            again, usage = ask(server, p, 4)
            assert again == before and kept(usage) == BLOCKS * BLOCK
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
