"""What would refuse a start is refused by --check-config, in the same words."""
import os
import socket
import subprocess

import pytest

from server import PROGRAM, Server, model_dir
from sleepers import tiers

ENV = {"DORMOUSE_PACKED_CACHE": "false", "DORMOUSE_PORT": "0", "DORMOUSE_SSD_SIZE": "1M"}


def refusal(*flags, model="tiny-rand", preexec=None):
    """-> (exit code, last line without its time)"""
    done = subprocess.run([PROGRAM, "serve", model_dir(model), *flags], env={**os.environ, **ENV},
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, preexec_fn=preexec)
    return done.returncode, done.stdout.splitlines()[-1].split(" ", 1)[1]


def assert_same_refusal(*flags, words, **how):
    checked = refusal(*flags, "--check-config", **how)
    assert checked == refusal(*flags, **how)
    assert checked[0] == 1 and checked[1].startswith("error ") and words in checked[1], checked


def assert_good(*flags):
    checked = refusal(*flags, "--check-config")
    assert checked[0] == 0, checked


@pytest.mark.parametrize("folder, words", [
    ("/proc/dormouse", "/proc/dormouse cannot be made: "),
    ("/proc/self", "/proc/self cannot be written: "),
    ("/dev/null", "/dev/null cannot be opened: Not a directory"),
    ("/dev/null/kv", "/dev/null/kv cannot be made: Not a directory"),
    ("not/there/kv", "not/there/kv cannot be made: No such file"),
    ("{others}", "others holds other things than the tier's; expected one of its own"),
    ("/" + "x" * 300, "cannot be made: File name too long"),
    ("/tmp/" + "x" * 5000, "flag --ssd: `/tmp/xxx"),
    ("{loop}", "loop cannot be opened: Too many levels"),
    ("{loop}/kv", "loop/kv cannot be made: Too many levels"),
    ("{file}", "file cannot be opened: Not a directory"),
    ("{open}", "open may be written by other users; expected mode 0700"),
])
def test_a_folder_for_the_ssd_that_is_none(folder, words, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    (tmp_path / "others").mkdir(0o700)
    (tmp_path / "others" / "photo").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    names = {n: str(tmp_path / n) for n in ("loop", "file", "open", "others")}
    assert_same_refusal("--ssd", folder.format(**names), words=words)


def test_a_folder_that_is_not_there_is_fine_and_is_not_made(tmp_path):
    relative = os.path.relpath(tmp_path / "kv")
    for folder in ("", str(tmp_path / "kv"), relative, relative + "/"):
        assert_good("--ssd", folder)
    assert not list(tmp_path.iterdir())
    (tmp_path / "kv").mkdir(0o700)
    assert_good("--ssd", relative)
    assert not list((tmp_path / "kv").iterdir())


def test_too_little_room_is_noted_by_both(tmp_path):
    """A file system that holds less than the tier is to have costs room, not the start."""
    flags = ("--ssd", str(tmp_path / "kv"), "--ssd-size", "7T")
    done = subprocess.run([PROGRAM, "serve", model_dir("tiny-rand"), *flags, "--margin", "0",
                           "--check-config"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **ENV})
    # So much that what is kept of each block takes more memory than there is.
    assert done.returncode == 1 and "the memory budget needs" in done.stderr
    assert "of the SSD tier's" in done.stderr
    assert_same_refusal(*flags, words="the memory budget needs")
    for size in ("900000G", "1024T"):
        assert_same_refusal("--ssd", str(tmp_path / "kv"), "--ssd-size", size,
                            words="KV blocks of 8192 bytes; at most 1073741823 can be kept")
    assert_same_refusal("--ssd", str(tmp_path / "kv"), "--ssd-size", "1M", "--kv-type", "f32",
                        "--ram", "1", words="ram of 1 bytes holds no KV block")
    assert not list(tmp_path.iterdir())


def test_what_another_server_has(tmp_path):
    with Server("tiny-rand", *tiers(64, ssd=tmp_path / "kv", slots=100)) as server:
        assert_same_refusal("--ssd", str(tmp_path / "kv"),
                            words=f"{tmp_path}/kv is in use by another process")
        assert_same_refusal("--port", str(server.port), words="Address already in use")
    assert_good("--ssd", str(tmp_path / "kv"))


@pytest.mark.parametrize("flags, words", [
    (("--host", "192.0.2.1", "--allow-open"), "cannot listen on 192.0.2.1 port 0: Cannot assign"),
    (("--host", "0.0.0.0"), "host 0.0.0.0 is beyond loopback"),
    (("--host", "no host"), "host no host is no address to listen on"),
    (("--keys", "not/there"), "not/there"),
    (("--context", "1"), "flag --context: `1` is not 0 or a whole number from 2"),
    (("--context", "200000"), "context is 200000 tokens, but the model was made for 131072"),
    (("--step-tokens", "16"), "step_tokens is 16"),
    (("--kv-memory", "1"), "kv_memory of 1 B is less than one KV block"),
    (("--device", "cuda:99"), "cuda"),
    (("--low", "90", "--high", "50"), "high"),
])
def test_a_setting_that_cannot_be(flags, words):
    assert_same_refusal(*flags, words=words)


@pytest.mark.parametrize("model", ["not/there", "/dev/null", "./README.md"])
def test_a_model_that_is_none(model):
    assert_same_refusal(model=model, words=model)


def test_a_port_is_free_again_after_the_check():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    assert_good("--port", port)
    with Server("tiny-rand", "--port", port) as server:
        assert server.port == int(port)
