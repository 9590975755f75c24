#!/usr/bin/env python3
"""bench_start.py SERVER MODEL [FLAG...] - from the start of the process to the first token, and
what is resident then.

Starts the server several times on the packed weights of an earlier start, asks for one token of a
short chat as soon as the port answers, and prints the median of the time from the start of the
process to that token; then the process' resident memory, beside the bytes of the packed weights.
FLAGs go to the server.
"""
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

TIMES = 5
BODY = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1,
                   "temperature": 0})


def first_token(port):
    while True:
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            c.request("POST", "/v1/chat/completions", BODY, {"Content-Type": "application/json"})
            answer = c.getresponse()
            answer.read()
            if answer.status == 200:
                return
        except ConnectionError:
            pass
        time.sleep(0.002)


def port_of(log, process):
    while process.poll() is None:
        with open(log.name) as f:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", f.read())
        if found:
            return int(found[1])
        time.sleep(0.002)
    sys.exit(f"bench_start: the server ended:\n{open(log.name).read()}")


def memory(pid):
    """-> {name: MB} of /proc/PID/status"""
    with open(f"/proc/{pid}/status") as f:
        return {k: int(v) * 1024 / 1e6 for k, v in re.findall(r"^(\w+):\s+(\d+) kB$", f.read(), re.M)}


def start(server, model, flags):
    """-> (seconds to the first token, memory at it)"""
    with tempfile.NamedTemporaryFile("w+") as log:
        began = time.monotonic()
        process = subprocess.Popen([server, "serve", model, "--port", "0", *flags],
                                   stdout=log, stderr=subprocess.STDOUT)
        try:
            first_token(port_of(log, process))
            return time.monotonic() - began, memory(process.pid)
        finally:
            process.terminate()
            process.wait()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    server, model, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
    start(server, model, flags)  # packs, where nobody has yet
    runs = [start(server, model, flags) for _ in range(TIMES)]
    seconds = [s for s, _ in runs]
    m = runs[-1][1]
    packed = [os.path.getsize(os.path.join(model, f)) for f in os.listdir(model)
              if f.endswith(".packed")]
    print(f"from start to the first token: {statistics.median(seconds):.2f} s "
          f"({min(seconds):.2f} to {max(seconds):.2f})")
    print(f"resident {m['VmRSS']:.0f} MB: {m['RssAnon']:.0f} own, {m['RssFile']:.0f} of files; "
          f"packed weights {', '.join(f'{b / 1e6:.0f}' for b in packed)} MB")


main()
