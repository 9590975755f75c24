"""A dormouse server under test: started on a free port, watched, stopped, judged."""
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

PROGRAM = os.environ.get("DORMOUSE", "build/cpu/dormouse")
# The same with block names of 8 bits, which collide all the time.
WEAK_NAMES = os.path.join(os.path.dirname(PROGRAM), "tests", "e2e", "dormouse-weak-names")
MODELS = os.path.join(os.path.dirname(__file__), "..", "golden", "models")
# What a sanitizer prints, whatever the exit code.
REPORT = re.compile(r"(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:)")


def checks_threads():
    """Was it built with ThreadSanitizer, which is slow and keeps up to a MiB on each stack?"""
    with open(PROGRAM, "rb") as f:
        return b"__tsan_init" in f.read()


def model_dir(name):
    """A tiny model of the golden data by its name, or a path as it is."""
    return name if os.sep in name else os.path.join(MODELS, name)


def preload(source, folder):
    """The environment in which a library made of that C file goes before all others."""
    out = os.path.join(folder, source + ".so")
    path = os.path.join(os.path.dirname(__file__), source)
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-Wall", "-Wextra", "-Werror", "-O1",
                    "-shared", "-fPIC", "-o", out, path, "-ldl"], check=True)
    return {"LD_PRELOAD": out, "ASAN_OPTIONS": "verify_asan_link_order=0"}


class Server:
    """Runs `dormouse serve MODEL FLAGS...`; as a context manager it also stops it.  Nothing is
    written beside the model unless a flag asks for it."""

    def __init__(self, model, *flags, env=None, wait=True, timeout=120, preexec=None,
                 program=PROGRAM):
        self.log_file = tempfile.NamedTemporaryFile("w+b", suffix=".log")
        command = [program, "serve", model_dir(model), *flags]
        self.process = subprocess.Popen(
            command, stdout=self.log_file, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, preexec_fn=preexec,
            env={"DORMOUSE_PACKED_CACHE": "false", **os.environ, "DORMOUSE_PORT": "0",
                 **(env or {})})
        self.name = os.path.basename(model.rstrip("/"))
        self.base = None
        if wait:
            self.wait_ready(timeout)

    @property
    def pid(self):
        return self.process.pid

    @property
    def port(self):
        return int(self.base.rsplit(":", 1)[1])

    def log(self):
        with open(self.log_file.name, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def wait_ready(self, timeout=120):
        end = time.time() + timeout
        while time.time() < end:
            found = re.search(r"listening on (http://[^\s/]+)", self.log())
            if found:
                self.base = found.group(1)
                return self
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}:\n{self.log()}")
            time.sleep(0.02)
        self.process.kill()
        raise RuntimeError(f"server not ready after {timeout} s:\n{self.log()}")

    def stop(self, timeout=60):
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        code = self.stop()
        log = self.log()
        if kind is None:
            assert not REPORT.search(log), log
            assert code == 0, f"exit code {code}:\n{log}"

    # ---- requests, standard library only ----

    def request(self, method, path, body=None, headers=None, timeout=120):
        """-> (status, headers, bytes).  body: bytes as they are, or something for json."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data, {"Content-Type": "application/json", **(headers or {})},
            method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, r.headers, r.read()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.headers, e.read()

    def post(self, path, **fields):
        """-> (status, parsed JSON)"""
        status, _, body = self.request("POST", path, fields)
        return status, json.loads(body)

    def chat(self, content="x", **fields):
        """One user message unless messages are given -> (status, parsed JSON)."""
        fields.setdefault("messages", [{"role": "user", "content": content}])
        return self.post("/v1/chat/completions", **fields)

    def text(self, content="x", **fields):
        """The text of a chat's first choice; fails where the status is not 200."""
        status, answer = self.chat(content, **fields)
        assert status == 200, answer
        return answer["choices"][0]["message"]["content"]

    def events(self, path="/v1/chat/completions", body=None, **fields):
        """The frames of a stream, parsed; the last one is "[DONE]" if that was sent.
        Framing is checked: each frame is 'data: ' and strict UTF-8, then an empty line."""
        if body is None:
            fields["stream"] = True
            if path.endswith("/chat/completions"):
                fields.setdefault("messages", [{"role": "user", "content": "x"}])
            body = json.dumps(fields).encode()
        request = urllib.request.Request(self.base + path, body,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as r:
            assert r.headers["Content-Type"].startswith("text/event-stream")
            rest = b""
            while True:
                some = r.read1(65536)
                if not some:
                    assert rest == b"", f"unfinished frame {rest!r}"
                    return
                rest += some
                while b"\n\n" in rest:
                    frame, rest = rest.split(b"\n\n", 1)
                    if frame.startswith(b":"):
                        continue
                    assert frame.startswith(b"data: ") and b"\n" not in frame, frame
                    payload = frame[6:].decode("utf-8")
                    yield payload if payload == "[DONE]" else json.loads(payload)

    def metrics(self):
        """{'name{labels}': value}"""
        _, _, body = self.request("GET", "/metrics")
        found = {}
        for line in body.decode().splitlines():
            if line and not line.startswith("#"):
                key, value = line.rsplit(" ", 1)
                found[key] = float(value)
        return found

    def metrics_sum(self, name):
        """The sum of a metric's series."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

    def rss_mib(self):
        """Anonymous memory and swap of the process."""
        with open(f"/proc/{self.pid}/status") as f:
            return sum(int(line.split()[1]) for line in f
                       if line.startswith(("RssAnon", "VmSwap"))) / 1024


def collect(frames):
    """Frames of a chat stream -> dict of text, finish_reason, usage, error, done."""
    got = {"text": "", "finish_reason": None, "usage": None, "error": None, "done": False}
    for frame in frames:
        assert not got["done"], "a frame after [DONE]"
        if frame == "[DONE]":
            got["done"] = True
            continue
        if "error" in frame:
            got["error"] = frame["error"]
            continue
        got["usage"] = frame.get("usage") or got["usage"]
        for choice in frame["choices"]:
            delta = choice.get("delta") or {}
            got["text"] += delta.get("content") or choice.get("text") or ""
            got["finish_reason"] = choice["finish_reason"] or got["finish_reason"]
    return got


def together(jobs, workers):
    """Run functions at once on so many threads; results in order, first error raised."""
    results, errors = [None] * len(jobs), []
    order = iter(range(len(jobs)))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                i = next(order, None)
            if i is None:
                return
            try:
                results[i] = jobs[i]()
            except Exception as e:  # raised again below, in the test's own thread
                errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results
