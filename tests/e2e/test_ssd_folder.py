"""A folder for the SSD that is there but cannot be written costs the tier, and no start."""
import os
import re
import subprocess
import tempfile

import pytest

from server import PROGRAM, Server, model_dir
from sleepers import BLOCK, Cold, ask, assert_no_ssd, cached, prompt_of, tiers, wait_copied

PROMPTS = [prompt_of(4 * BLOCK + 1, f"folder {i}") for i in range(2)]


@pytest.fixture(scope="module")
def cold():
    with Cold() as c:
        yield {tuple(p): c(p, 4) for p in PROMPTS}


def become_nobody():
    """Another user than root, whom modes do not stop."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


@pytest.fixture
def nobodys():
    """A folder that nobody may enter and not write."""
    try:
        subprocess.run([PROGRAM, "serve", model_dir("tiny-rand"), "--check-config"],
                       preexec_fn=become_nobody, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("another user cannot run the program here")
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        yield top


def give_away(path):
    if os.getuid() == 0:
        os.chown(path, 65534, 65534)


def assert_serves_without_ssd(folder, cold, *words, preexec=None):
    """And --check-config has said so, in the same words, and as no error."""
    flags = tiers(64, ssd=folder, slots=100)
    checked = subprocess.run([PROGRAM, "serve", model_dir("tiny-rand"), "--port", "0", *flags,
                              "--check-config"], capture_output=True, text=True, check=True,
                             preexec_fn=preexec)
    warned = re.findall("warn +(there is no SSD tier: .*)", checked.stderr)
    assert len(warned) == 1, checked.stderr
    with Server("tiny-rand", *flags, preexec=preexec) as server:
        for p in PROMPTS:
            assert ask(server, p, 4)[0] == cold[tuple(p)]
        assert_no_ssd(server, warned[0], str(folder), *words)
        assert server.request("GET", "/health")[0] == 200


def test_a_folder_that_may_not_be_written_costs_the_tier(nobodys, cold):
    folder = os.path.join(nobodys, "kv")
    os.mkdir(folder, 0o555)
    assert_serves_without_ssd(folder, cold, "cannot be written: Permission denied",
                              preexec=become_nobody)
    assert_serves_without_ssd(os.path.join(folder, "kv"), cold,
                              "kv cannot be made: Permission denied", preexec=become_nobody)


def test_a_folder_that_takes_no_more_files_serves_with_those_it_has(nobodys, cold):
    folder = os.path.join(nobodys, "kv")
    os.mkdir(folder, 0o700)
    give_away(folder)
    flags = tiers(64, ssd=folder, slots=100)
    for mode in (0o700, 0o500):
        os.chmod(folder, mode)
        with Server("tiny-rand", *flags, preexec=become_nobody) as server:
            found = [cached(ask(server, p, 4)[1]) for p in PROMPTS]
            assert "there is no SSD tier" not in server.log()
            wait_copied(server)
    assert sum(found) > 0


def test_a_parent_that_cannot_be_listed_will_do(nobodys):
    parent = os.path.join(nobodys, "parent")
    os.mkdir(parent, 0o300)
    give_away(parent)
    with Server("tiny-rand", *tiers(64, ssd=os.path.join(parent, "kv"), slots=100),
                preexec=become_nobody) as server:
        ask(server, PROMPTS[0])
        assert "SSD tier: " in server.log() and "there is no SSD tier" not in server.log()


def test_a_file_system_that_is_read_only_costs_the_tier(tmp_path, cold):
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(*how):
        return subprocess.run(["mount", *how, disk], capture_output=True).returncode == 0
    if not mount("-t", "tmpfs", "-o", "size=6m,mode=0700", "none"):
        pytest.skip("a file system of its own needs a right to mount")
    try:
        assert mount("-o", "remount,ro")
        assert_serves_without_ssd(disk / "kv", cold, "cannot be made: Read-only file system")
        assert mount("-o", "remount,rw")
        with Server("tiny-rand", *tiers(64, ssd=disk / "kv", slots=100)) as server:
            ask(server, PROMPTS[0])
        assert mount("-o", "remount,ro")
        assert_serves_without_ssd(disk / "kv", cold,
                                  "/lock cannot be opened: Read-only file system")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
