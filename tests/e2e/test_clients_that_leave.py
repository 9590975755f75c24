"""Clients that go away, or stay and do not read."""
import json
import os
import time

from raw import connect, post, wait_for
from server import Server, collect

BLOCKS = "dormouse_kv_blocks_used"


def body(**fields):
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


def test_a_client_that_leaves_frees_its_blocks(tiny_abc):
    assert wait_for(lambda: tiny_abc.metrics_sum(BLOCKS) == 0)
    long_prompt = [{"role": "user", "content": "one two three " * 8000}]
    for request in (body(stream=True, max_tokens=100000), body(max_tokens=100000),
                    body(messages=long_prompt, max_tokens=5),
                    body(messages=long_prompt, max_tokens=5, stream=True)):
        s = connect(tiny_abc)
        s.sendall(post(request))
        assert wait_for(lambda: tiny_abc.metrics_sum(BLOCKS) > 0)
        s.close()
        assert wait_for(lambda: tiny_abc.metrics_sum(BLOCKS) == 0)
    assert tiny_abc.metrics_sum("dormouse_num_requests_running") == 0


def test_a_client_that_does_not_read_is_bounded_and_dropped():
    with Server("tiny-abc", "--stall", "3s") as server:
        before = server.rss_mib()
        s = connect(server, receive_buffer=4096)
        s.sendall(post(body(stream=True, max_tokens=120000, temperature=0)))
        for _ in range(30):
            assert collect(server.events(max_tokens=20))["text"] == "ABCDEFGHIJKLMNOPQRST"
        assert server.rss_mib() - before < 64
        assert wait_for(lambda: server.metrics_sum(BLOCKS) == 0, 60)
        s.close()
        assert server.request("GET", "/health")[0] == 200


def test_a_hundred_clients_that_break_off_leave_nothing_behind(tiny_rand):
    for i in range(100):
        s = connect(tiny_rand)
        s.sendall(post(body(stream=True, max_tokens=500, n=1 + i % 3)))
        if i % 2:
            s.recv(100)
        s.close()
    assert wait_for(lambda: tiny_rand.metrics_sum(BLOCKS) == 0)
    assert tiny_rand.text("hello", max_tokens=12, temperature=0).startswith("J padword468R")


def test_a_left_stream_gives_its_descriptor_back_while_others_are_idle(tiny_abc):
    """The idle clients are older and do nothing, so no event of theirs helps to clean up."""
    idle = [connect(tiny_abc) for _ in range(8)]
    for s in idle:
        s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert s.recv(4096)
    files = f"/proc/{tiny_abc.pid}/fd"
    before = len(os.listdir(files))
    for i in range(40):
        with connect(tiny_abc) as s:
            s.sendall(post(body(stream=True, max_tokens=20000)))
            assert s.recv(1024 * (1 + i % 4))
            time.sleep(i % 5 * 0.005)
    assert wait_for(lambda: len(os.listdir(files)) <= before)
    for s in idle:
        s.close()


def test_a_client_that_leaves_within_its_request_frees_its_connection():
    """Its last bytes and its end arrive together, long before any deadline."""
    with Server("tiny-abc", "--header-timeout", "10m", "--body-timeout", "10m") as server:
        whole = post(body(max_tokens=1))
        for cut in (9, 40, len(whole) - 20):
            for _ in range(8):
                s = connect(server)
                s.sendall(whole[:-cut])
                s.close()
        # The one that asks is a connection too.
        assert wait_for(lambda: server.metrics_sum("dormouse_connections") <= 1)
