"""Sizes: of prompts, of requests, of what one client may take."""
import os
import resource
import threading
import time

import pytest

from models import variant
from raw import connect, exchange, post, read_all, statuses
from server import Server, checks_threads

CHUNKED = os.path.join(os.path.dirname(__file__), "..", "golden", "cases", "chunked")
SMALL = b'{"max_tokens":1,"messages":[{"role":"user","content":"x"}]}'


def test_a_prompt_over_the_context_is_refused_before_any_event(tiny_abc):
    content = "a" + " cat" * 330000
    for stream in (False, True):
        status, headers, body = tiny_abc.request("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 5})
        assert status == 400 and headers["Content-Type"].startswith("application/json")
        assert b"context_length_exceeded" in body and b"131072" in body
    assert tiny_abc.text(max_tokens=3) == "ABC"


def test_prompt_and_answer_fill_the_context_to_the_last_token(tmp_path):
    path = variant(tmp_path / "abc256", "tiny-abc", {"max_position_embeddings": 256})
    with Server(path) as server:
        def ask(words, **fields):
            return server.chat("x" + " cat" * words, max_tokens=500, temperature=0, **fields)
        _, answer = ask(0)
        base = answer["usage"]["prompt_tokens"]
        for tokens, left in ((240, 16), (255, 1), (256, None), (257, None)):
            status, answer = ask(tokens - base)
            if left is None:
                assert status == 400, answer
                assert answer["error"]["code"] == "context_length_exceeded"
                assert "256" in answer["error"]["message"]
            else:
                assert answer["usage"]["prompt_tokens"] == tokens
                assert answer["usage"]["completion_tokens"] == left
                assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("name, codes", [
    ("chunked.bin", [200, 200]), ("chunked_ext_trailer.bin", [200, 200]),
    ("chunk_size_overflow.bin", [413]), ("chunk_size_neg.bin", [400])])
def test_chunked_bodies_are_read_or_refused(tiny_abc, name, codes):
    with open(os.path.join(CHUNKED, name), "rb") as f:
        got = statuses(exchange(tiny_abc, f.read()))
    # Nothing follows a refusal; a connection that is just closed is a refusal too.
    assert got == codes or (codes[0] >= 400 and got == [])


@pytest.mark.parametrize("size, code", [
    (b"-5", 400), (b"+5", 400), (b"0x5", 400), (b" 5", 400), (b"", 400), (b"g", 400),
    (b"10000000000000000", 413), (b"1" * 40, 413)])
def test_a_chunk_whose_size_is_no_number_ends_the_connection(tiny_abc, size, code):
    after = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = exchange(tiny_abc, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                      b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                      + size + b"\r\n" + SMALL + b"\r\n0\r\n\r\n" + after)
    assert statuses(answer) in ([code], []), answer


def test_deep_nesting_needs_no_deep_stack():
    size = (256 << 10) + (1 << 20 if checks_threads() else 0)

    def small_stack():
        resource.setrlimit(resource.RLIMIT_STACK, (size, size))
    with Server("tiny-abc", preexec=small_stack) as server:
        for body in (b"[" * 200000, b'{"a":' * 200000, b'{"a":"\\',
                     b'{"messages":' + b"[" * 200000 + b"]" * 200000 + b"}"):
            for _ in range(25):
                assert server.request("POST", "/v1/chat/completions", body)[0] == 400
        assert server.text(max_tokens=2) == "AB"


def test_both_lengths_or_two_of_them_are_refused(tiny_abc):
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    for head in (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
                 b"Content-Length: 4\r\nContent-Length: 60\r\n"):
        answer = exchange(tiny_abc, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                          b"Content-Type: application/json\r\n" + head + b"\r\n0\r\n\r\n" + smuggled)
        assert statuses(answer) in ([400], []), answer


def test_a_missing_host_is_refused(tiny_abc):
    assert statuses(exchange(tiny_abc, b"GET /health HTTP/1.1\r\n\r\n"))[:1] == [400]


def test_an_absolute_target_is_understood(tiny_abc):
    data = b"GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert statuses(exchange(tiny_abc, data)) == [200]


def test_wrong_methods_paths_and_types_have_their_status(tiny_abc):
    status, headers, body = tiny_abc.request("GET", "/v1/chat/completions")
    assert status == 405 and "POST" in headers["Allow"] and b'"error"' in body
    status, headers, _ = tiny_abc.request("POST", "/health", b"{}")
    assert status == 405 and "GET" in headers["Allow"]
    assert tiny_abc.request("DELETE", "/v1/models")[0] == 405
    assert tiny_abc.request("BREW", "/v1/models")[0] in (405, 501)
    for path in ("/nothing", "//v1/models", "/v1/../metrics", "/v1/chat/completions/"):
        assert tiny_abc.request("GET", path)[0] == 404, path
    assert tiny_abc.request("POST", "/v1/chat/completions", SMALL,
                            {"Content-Type": "text/plain"})[0] == 415
    assert tiny_abc.request("POST", "/v1/chat/completions", SMALL,
                            {"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_a_body_over_the_limit_is_refused_before_it_is_sent():
    with Server("tiny-abc", "--max-body", "1M") as server:
        before = server.rss_mib()
        head = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 10737418240\r\n\r\n")
        assert statuses(exchange(server, head))[:1] == [413]
        chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
        data = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 64)
        assert statuses(exchange(server, data))[:1] in ([413], [])
        assert server.rss_mib() - before < 64
        assert server.text(max_tokens=2) == "AB"


def test_huge_headers_are_refused_with_memory_flat(tiny_abc):
    before = tiny_abc.rss_mib()
    line = b"GET /health HTTP/1.1\r\nHost: x\r\n"
    for data, codes in ((line + b"X: " + b"a" * 4_000_000 + b"\r\n\r\n", ([431], [])),
                        (line + b"X: 1\r\n" * 100_000 + b"\r\n", ([431], [413], [])),
                        (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", ([414], [431], []))):
        assert statuses(exchange(tiny_abc, data))[:1] in codes
    assert tiny_abc.rss_mib() - before < 64


def test_slow_and_idle_connections_disturb_nobody_and_are_closed():
    with Server("tiny-abc", "--header-timeout", "2s", "--body-timeout", "2s", "--idle-timeout", "2s",
                "--max-connections-per-ip", "1000") as server:
        idle = [connect(server) for _ in range(250)]
        slow = [connect(server) for _ in range(250)]
        for s in slow:
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        stop = threading.Event()

        def drip():
            while not stop.wait(1):
                for s in slow:
                    try:
                        s.sendall(b"X")
                    except OSError:
                        pass
        thread = threading.Thread(target=drip)
        thread.start()
        worst = 0
        for _ in range(20):
            start = time.time()
            assert server.request("GET", "/health")[0] == 200
            worst = max(worst, time.time() - start)
            time.sleep(0.1)
        print(f"worst /health beside 500 slow connections: {worst * 1e3:.0f} ms")
        end = time.time() + 30
        closed = 0
        while closed < 500 and time.time() < end:
            closed = sum(is_closed(s) for s in idle + slow)
            time.sleep(0.2)
        stop.set()
        thread.join()
        assert closed == 500
        for s in idle + slow:
            s.close()


def is_closed(s):
    try:
        s.settimeout(0)
        return s.recv(65536) == b"" or is_closed(s)
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_pipelined_requests_are_answered_in_order(tiny_abc):
    last = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with connect(tiny_abc) as s:
        s.sendall(post(SMALL) + post(b"{") + last)
        assert statuses(read_all(s)) == [200, 400, 200]


def test_expect_continue_is_answered(tiny_abc):
    with connect(tiny_abc) as s:
        s.sendall(post(SMALL, extra="Expect: 100-continue\r\nConnection: close\r\n")[:-len(SMALL)])
        time.sleep(0.3)
        s.sendall(SMALL)
        assert statuses(read_all(s))[-1] == 200
