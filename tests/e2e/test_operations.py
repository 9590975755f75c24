"""Signals, keys, metrics, options."""
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time

import pytest

from raw import exchange, statuses, wait_for
from server import PROGRAM, Server, collect, model_dir, preload, together

KEY = "k" * 20 + "-0123456789-right"
CHAT = "/v1/chat/completions"
X = {"messages": [{"role": "user", "content": "x"}]}


def test_sigterm_ends_a_running_stream_by_a_last_frame():
    server = Server("tiny-abc", "--drain", "2s")
    got = {}

    def stream():
        got.update(collect(server.events(max_tokens=100000)))
    thread = threading.Thread(target=stream)
    thread.start()
    assert wait_for(lambda: server.metrics_sum("dormouse_num_requests_running") == 1)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    try:
        status, headers, _ = server.request("POST", CHAT, {**X, "max_tokens": 1})
        assert status == 503 and int(headers["Retry-After"]) >= 1
    except OSError:
        pass  # not listening any more is an answer too
    assert server.process.wait(20) == 0
    thread.join()
    assert got["text"].startswith("ABCDEF")
    assert got["error"] or got["finish_reason"]


def test_loading_says_how_far_it_is(tmp_path):
    server = Server("tiny-smollm2", wait=False, env=preload("fast_clock.c", tmp_path))
    try:
        assert wait_for(lambda: "weights loaded" in server.log())
        shares = re.findall(r"loading weights: (\d+) % of [\d.]+ [KM]iB\n", server.log())
        shares = [int(s) for s in shares]
        assert len(shares) > 1 and shares == sorted(shares) and shares[-1] <= 100, server.log()
    finally:
        server.process.kill()
        server.process.wait()


def test_sigterm_lets_a_short_stream_end_by_itself():
    server = Server("tiny-abc", "--drain", "60s")
    frames = server.events(max_tokens=3000)
    first = next(frames)
    server.process.send_signal(signal.SIGTERM)
    got = collect([first, *frames])
    assert got["finish_reason"] == "length" and got["done"]
    assert server.process.wait(20) == 0


def test_a_second_signal_ends_at_once():
    for second in (signal.SIGTERM, signal.SIGINT):
        server = Server("tiny-abc", "--drain", "600s")
        frames = server.events(max_tokens=100000)
        next(frames)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        server.process.send_signal(second)
        server.process.wait(20)
        frames.close()


def test_health_tells_loading_from_ready(tiny_abc):
    status, _, body = tiny_abc.request("GET", "/health")
    assert status == 200 and b'"ok"' in body


@pytest.fixture(name="keyed", scope="module")
def keyed_server(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(f"# who: key\nfirst {KEY}\nsecond {'z' * 40}\n")
    path.chmod(0o600)
    with Server("tiny-abc", "--keys", str(path)) as server:
        yield server


@pytest.mark.parametrize("header", [
    None, "", "Bearer", "Bearer ", "Bearer x" + KEY[1:], "Bearer " + KEY[:-1] + "x",
    "Bearer " + KEY[:-1], "Bearer " + KEY + "x", "Basic " + KEY, KEY, "Bearer  " + KEY + " x"])
def test_a_wrong_key_is_refused(keyed, header):
    for method, path in (("POST", CHAT), ("GET", "/metrics"), ("GET", "/v1/models"),
                         ("GET", "//v1/models"), ("GET", "/v1/../metrics"), ("BREW", "/x")):
        status, headers, body = keyed.request(method, path, b"{}" if method == "POST" else None,
                                              {} if header is None else {"Authorization": header})
        assert status == 401, (method, path, header)
        assert headers["WWW-Authenticate"].startswith("Bearer")
        assert KEY.encode() not in body


def test_the_right_key_is_taken_and_never_shown(keyed):
    for scheme in ("Bearer", "bearer", "BEARER"):
        status, _, _ = keyed.request("POST", CHAT, {**X, "max_tokens": 2},
                                     {"Authorization": f"{scheme} {KEY}"})
        assert status == 200
    two = (f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
           f"Authorization: Bearer wrong\r\nConnection: close\r\n\r\n").encode()
    assert statuses(exchange(keyed, two)) in ([400], [401])
    assert keyed.request("GET", "/health")[0] == 200
    _, _, metrics = keyed.request("GET", "/metrics", None, {"Authorization": f"Bearer {KEY}"})
    with open(f"/proc/{keyed.pid}/cmdline") as f:
        everything = keyed.log() + metrics.decode() + f.read()
    assert KEY not in everything and "wrong" not in keyed.log()


def test_without_keys_only_loopback_is_served():
    run = subprocess.run([PROGRAM, "serve", model_dir("tiny-abc"), "--host", "0.0.0.0", "--port", "0"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "keys" in run.stderr and "allow-open" in run.stderr


def wait_for_line(server, text):
    """The last line of the log that has it; a line is written just after its answer."""
    wait_for(lambda: text in server.log())
    return next((line for line in reversed(server.log().splitlines(True)) if text in line), None)


def test_prompts_and_answers_stay_out_of_the_log(tiny_rand):
    tiny_rand.chat("a very secret word: xylophone", max_tokens=12, temperature=0)
    tiny_rand.request("POST", CHAT, b'{"messages": "xylophone"}')
    tiny_rand.request("GET", "/xylophone-not-in-metrics")
    assert "secret word" not in tiny_rand.log()
    assert "xylophone\"" not in tiny_rand.log()


@pytest.mark.parametrize("body, said", [
    (b'{"messages": []}', " code=invalid_value field=messages why=must be an array of at least one message"),
    (b'{"messages": [{"role": "xylophone", "content": "x"}]}',
     " code=invalid_value field=messages[0].role why=must be \"system\""),
    (b'{"messages": [{"role": "user", "content": "x"}], "n": "xylophone"}',
     " code=invalid_value field=n why=must be an integer from 1 to 16"),
    (b'{"xylophone": 1, "xylophone": 2}', " code=invalid_json\n"),
    (b'{"model": "xylophone"}', " code=model_not_found field=model\n")])
def test_the_log_says_why_a_request_was_refused_but_not_what_it_said(tiny_rand, body, said):
    tiny_rand.request("POST", CHAT, body)
    line = wait_for_line(tiny_rand, said)
    assert line and "xylophone" not in line


@pytest.mark.parametrize("host", [b"", b"Host: x\r\n"])
@pytest.mark.parametrize("target", [b"/quiet?k=xylophone", b"http://u:xylophone@h/quiet"])
def test_the_log_names_a_path_without_query_or_password(tiny_rand, target, host):
    answer = exchange(tiny_rand, b"GET " + target + b" HTTP/1.1\r\n" + host + b"Connection: close\r\n\r\n")
    assert statuses(answer) == [404 if host else 400]
    assert "xylophone@" not in tiny_rand.log() and "k=xylophone" not in tiny_rand.log()


LINE = re.compile(r'^[a-z_:][a-z0-9_:]*(\{([a-z_]+="([^"\\\n]|\\["\\n])*",?)*\})? [-+0-9.eE]+(Inf)?$')


def check_metrics(text):
    """-> (types, {series: value}); the text follows the exposition format: of each family the
    HELP, the TYPE and then all its series, no series twice, buckets that add up."""
    types, seen, helped, family = {}, {}, set(), None
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in helped
            helped.add(family)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family and name not in types
            types[name] = kind
        else:
            assert LINE.match(line), line
            series, number = line.rsplit(" ", 1)
            assert series not in seen, series
            seen[series] = float(number)
            name = series.split("{")[0]
            parts = ("_bucket", "_sum", "_count") if types[family] == "histogram" else ("",)
            assert name in [family + part for part in parts], line
    counts = {s: v for s, v in seen.items() if types.get(s.split("{")[0].removesuffix("_count"))
              == "histogram"}
    assert {s.split("_count{")[0] for s in counts} == \
        {name for name, kind in types.items() if kind == "histogram"}
    for series, count in counts.items():  # one histogram for each set of labels
        begin = series.replace("_count{", "_bucket{")[:-1] + ",le="
        buckets = [(float(s[len(begin) + 1:-2]), v) for s, v in seen.items()
                   if s.startswith(begin)]
        assert buckets == sorted(buckets) and [v for _, v in buckets] == sorted(v for _, v in buckets)
        assert buckets[-1] == (float("inf"), count)
    return types, seen


def test_metrics_add_up_and_never_go_down(tmp_path):
    name = 'quote" back\\slash'
    with Server("tiny-rand", "--name", name) as server:
        stop, scrapes = threading.Event(), ([], [])

        def scrape(mine):
            while not stop.is_set():
                mine.append(server.request("GET", "/metrics")[2].decode())
                time.sleep(0.02)
        scrapers = [threading.Thread(target=scrape, args=(mine,)) for mine in scrapes]
        for t in scrapers:
            t.start()
        usage = [0, 0]
        lock = threading.Lock()

        def ask(i):
            if i % 4 == 3:
                assert server.post(CHAT, messages=5)[0] == 400
                return
            if i % 4 == 2:  # a client that leaves in the middle is no answer
                frames = server.events(max_tokens=100000, ignore_eos=True)
                next(frames)
                frames.close()
                return
            _, answer = server.chat(f"number {i}", max_tokens=5 + i % 7, n=1 + i % 2)
            with lock:
                usage[0] += answer["usage"]["prompt_tokens"]
                usage[1] += answer["usage"]["completion_tokens"]
        together([(lambda i=i: ask(i)) for i in range(60)], 8)
        stop.set()
        for t in scrapers:
            t.join()
        for mine in scrapes:  # between two scrapers there is no order
            last = {}
            for text in mine:
                types, seen = check_metrics(text)
                for series, number in seen.items():
                    family = series.split("{")[0]
                    assert number >= 0, series
                    if types.get(family) == "counter" or re.search(r"_(bucket|sum|count)$", family):
                        assert number >= last.get(series, 0), series
                        last[series] = number
        assert wait_for(lambda: server.metrics_sum("dormouse_num_requests_running") == 0)
        assert server.metrics_sum("dormouse_prompt_tokens_total") == usage[0]
        assert server.metrics_sum("dormouse_generation_tokens_total") == usage[1]
        for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert wait_for(lambda: server.metrics_sum("dormouse_" + gauge) == 0), gauge
        assert 'quote\\" back\\\\slash' in server.request("GET", "/metrics")[2].decode()


def test_help_is_on_standard_output_and_a_wrong_flag_is_named():
    run = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "--kv-memory" in run.stdout and not run.stderr
    run = subprocess.run([PROGRAM, "serve", "--contxt", "5"], capture_output=True, text=True)
    assert run.returncode == 1 and "--contxt" in run.stderr and "--context" in run.stderr


@pytest.mark.parametrize("flags", [("--ram", "1024T"), ("--ram", "16T"), ("--ssd-size", "1024T"),
                                   ("--kv-memory", "1024T"), ("--kv-blocks", "4294967294"),
                                   ("--margin", "1024T")])
def test_sizes_that_no_machine_has_are_refused_by_a_sentence(tmp_path, flags):
    run = subprocess.run([PROGRAM, "serve", model_dir("tiny-rand"), "--port", "0", "--ssd",
                          str(tmp_path / "kv"), *flags], capture_output=True, text=True, timeout=100)
    assert run.returncode == 1 and " error " in run.stderr and "lower" in run.stderr, run.stderr


@pytest.mark.parametrize("number", ["1", "4096"])
def test_the_least_and_the_most_transfers_at_once_serve(tmp_path, number):
    flags = ("--ram", "1M", "--ssd", str(tmp_path / "kv"), "--ssd-size", "8M", "--margin", "1M",
             "--max-loads", number, "--max-stores", number, "--copy-after", "1ms")
    with Server("tiny-rand", *flags) as server:
        first = server.text("hello " * 50, max_tokens=4, temperature=0)
        assert server.text("hello " * 50, max_tokens=4, temperature=0) == first


@pytest.mark.parametrize("words", [["options"], ["--version"], ["help"]])
def test_a_command_without_arguments_refuses_one(words):
    assert subprocess.run([PROGRAM, *words], capture_output=True).returncode == 0
    run = subprocess.run([PROGRAM, *words, "extra"], capture_output=True, text=True)
    assert run.returncode == 2 and not run.stdout and "takes no argument" in run.stderr


def test_flags_are_over_environment_over_file(tmp_path):
    path = tmp_path / "dormouse.ini"
    path.write_text("name = from-file\nmax_tokens_default = 3\n".replace(
        "max_tokens_default", "default_max_tokens"))
    with Server("tiny-abc", "--config", str(path)) as server:
        assert b"from-file" in server.request("GET", "/v1/models")[2]
        assert server.text() == "ABC"
    with Server("tiny-abc", "--config", str(path), env={"DORMOUSE_NAME": "from-env"}) as server:
        assert b"from-env" in server.request("GET", "/v1/models")[2]
    with Server("tiny-abc", "--config", str(path), "--name", "from-flag",
                env={"DORMOUSE_NAME": "from-env"}) as server:
        assert b"from-flag" in server.request("GET", "/v1/models")[2]
    path.write_text("name = x\n\nprot = 80\n")
    run = subprocess.run([PROGRAM, "serve", "x", "--config", str(path)], capture_output=True, text=True)
    assert run.returncode == 1
    for word in ("dormouse.ini", "line 3", "prot", "port"):
        assert word in run.stderr, run.stderr


def test_one_tenant_may_be_held_to_so_many_at_once():
    with Server("tiny-abc", "--max-per-tenant", "2") as server:
        streams = [server.events(max_tokens=100000) for _ in range(2)]
        for s in streams:
            next(s)
        status, headers, body = server.request("POST", CHAT, {**X, "max_tokens": 1})
        assert status == 429 and int(headers["Retry-After"]) >= 1 and b"rate_limit" in body
        for s in streams:
            s.close()
        assert wait_for(lambda: server.chat(max_tokens=1)[0] == 200)


def test_a_full_queue_is_503_with_retry_after():
    with Server("tiny-abc", "--max-running", "1", "--max-waiting", "1") as server:
        got = together([lambda: server.request("POST", CHAT, {**X, "max_tokens": 3000})
                        for _ in range(8)], 8)
        codes = sorted(status for status, _, _ in got)
        assert set(codes) <= {200, 503} and codes[0] == 200 and codes[-1] == 503
        assert all(int(h["Retry-After"]) >= 1 for status, h, _ in got if status == 503)
    assert os.path.exists(PROGRAM)


def test_closed_standard_files_are_not_taken_for_sockets():
    """Or lines of the log would be written into them."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", PROGRAM, "serve", model_dir("tiny-abc"),
         "--port", str(port)])
    try:
        assert wait_for(lambda: answers(port), 60)
        files = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in range(3)]
        assert files == ["/dev/null"] * 3
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def answers(port):
    """What /health says, as bytes; empty where nobody listens yet."""
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            got = b""
            while some := s.recv(65536):
                got += some
            return got if b" 200 " in got[:13] else b""
    except ConnectionError:
        return b""


def test_with_few_descriptors_idle_connections_make_room():
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with Server("tiny-abc", preexec=few) as server:
        assert "so at most" in server.log()
        idle = [socket.create_connection(("127.0.0.1", server.port), 30) for _ in range(80)]
        assert server.text(max_tokens=3)
        for s in idle:
            s.close()
