#!/usr/bin/env python3
"""bench_wake.py SERVER MODEL - how soon a sleeping conversation answers, and from where.

For histories of each length: time to first token cold, from the KV pool (G1), RAM (G2), the SSD (G3)
and the SSD after a restart; the bandwidth of each promotion beside what reading the same
file (O_DIRECT, the same blocks, as many at once) and copying memory reach in the same run; and the
time between tokens of four running streams, alone and while others wake beside them.
Ratios are printed; nothing is asserted about time.  Drives the server from outside.
"""
import argparse
import json
import mmap
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
PAGE = 4096
BLOCK = 16
IDLE = 0.5  # seconds after which a conversation leaves the KV pool


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("server")
    p.add_argument("model")
    p.add_argument("--lengths", default="1024,4096,8192", help="tokens of a history")
    p.add_argument("--repeats", type=int, default=3, help="of each wake; the median counts")
    p.add_argument("--wakes", type=int, default=20, help="beside the running streams")
    p.add_argument("--wake-tokens", type=int, default=512, help="of each of these")
    p.add_argument("--reply", type=int, default=200, help="tokens of each running stream")
    p.add_argument("--folder", help="on the SSD to be measured; a temporary one where missing")
    p.add_argument("--json", metavar="FILE")
    return p.parse_args()


def block_bytes(model):
    """Of a KV block as f16: K and V of all layers."""
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    heads = c.get("num_key_value_heads") or c["num_attention_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return 2 * c["num_hidden_layers"] * heads * dim * BLOCK * 2


def slot_bytes(block):
    return PAGE + -(-block // PAGE) * PAGE


def history(tokens, name):
    choose = random.Random(name)
    return [choose.randrange(1000, 20000) for _ in range(tokens)]


class Run:
    """A server under measurement, with tiers for `tokens` of sleeping history."""

    def __init__(self, o, g1_tokens, tokens, ram, ssd):
        from server import Server
        block = block_bytes(o.model)
        blocks = -(-tokens // BLOCK) + 64
        flags = ["--kv-blocks", str(-(-g1_tokens // BLOCK) + 64), "--copy-after", "1ms",
                 "--idle-after", f"{int(IDLE * 1e3)}ms", "--ssd-after", "1ms",
                 "--residency", "1ms"]
        if ram:
            flags += ["--ram", str(blocks * block)]
        if ssd:
            flags += ["--ssd", ssd, "--ssd-size", str(PAGE + blocks * slot_bytes(block))]
        self.server = Server(o.model, *flags)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    def first_token(self, prompt):
        """-> (seconds to the first token, tokens found, what was said)"""
        began = time.monotonic()
        status, answer = self.server.post("/v1/completions", prompt=prompt, max_tokens=1,
                                          temperature=0, logprobs=1)
        took = time.monotonic() - began
        if status != 200:
            sys.exit(f"bench_wake: {answer}")
        found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return took, found, answer["choices"][0]["logprobs"]["token_logprobs"]

    def asleep(self):
        """Wait until what is quiet has left the KV pool and nothing is written any more."""
        time.sleep(IDLE)
        last = None
        while (now := self.written()) != last:
            last = now
            time.sleep(0.4)

    def written(self):
        with open(f"/proc/{self.server.pid}/io") as f:
            return f.read().split("write_bytes:")[1].split()[0]


class Median:
    def __init__(self):
        self.times, self.found, self.said = [], None, None

    def add(self, measured):
        took, self.found, self.said = measured
        self.times.append(took)

    @property
    def seconds(self):
        return statistics.median(self.times)


def measure_tier(o, run, prompt, cold, into, name):
    cold.add(run.first_token(prompt))
    for _ in range(o.repeats):
        into["G1"].add(run.first_token(prompt))
    for _ in range(o.repeats):
        run.asleep()
        into[name].add(run.first_token(prompt))


def measure_length(o, tokens, folder):
    """-> {where: Median}"""
    prompt = history(tokens + 1, f"length {tokens}")
    m = {name: Median() for name in ("cold", "G1", "G2", "G3", "restart")}
    with Run(o, tokens, tokens, True, None) as run:
        measure_tier(o, run, prompt, m["cold"], m, "G2")
    with Run(o, tokens, tokens, False, folder) as run:
        measure_tier(o, run, prompt, m["cold"], m, "G3")
    for _ in range(o.repeats):
        with Run(o, tokens, tokens, False, folder) as run:
            m["restart"].add(run.first_token(prompt))
    different = [name for name in m if m[name].said != m["cold"].said]
    if different:
        sys.exit(f"bench_wake: another answer to {tokens} tokens from {different}")
    return m


# ---- what the machine can do ----

def raw_read(folder, block, blocks, seconds=0.5):
    """Bytes a second of reading that many slots of the file over and over, O_DIRECT, one slot
    at a time in each thread; the best of three numbers of threads."""
    slot, best = slot_bytes(block), 0
    fd = os.open(os.path.join(folder, "blocks"), os.O_RDONLY | os.O_DIRECT)

    def read(k, at_once, end):
        buffer, total = mmap.mmap(-1, slot), 0
        while time.monotonic() < end:
            for i in range(k, blocks, at_once):
                total += os.preadv(fd, [buffer], PAGE + i * slot)
        return total
    try:
        for at_once in (4, 8, 32):
            began = time.monotonic()
            with ThreadPoolExecutor(at_once) as pool:
                jobs = [pool.submit(read, k, at_once, began + seconds) for k in range(at_once)]
                total = sum(j.result() for j in jobs)
            best = max(best, total / (time.monotonic() - began))
    finally:
        os.close(fd)
    return best


def raw_copy(size=256 << 20):
    """Bytes a second of one thread copying memory, the best of five."""
    source, target = mmap.mmap(-1, size), mmap.mmap(-1, size)
    source.write(os.urandom(1 << 20) * (size >> 20))
    best = 0
    with memoryview(source) as s, memoryview(target) as t:
        for _ in range(5):
            began = time.monotonic()
            t[:] = s
            best = max(best, size / (time.monotonic() - began))
    return best


# ---- beside running streams ----

def stream_gaps(server, name, tokens):
    gaps, last = [], None
    for frame in server.events("/v1/completions", prompt=history(32, name), max_tokens=tokens,
                               temperature=0, ignore_eos=True):
        if frame == "[DONE]":
            continue
        now = time.monotonic()
        if last is not None:
            gaps.append(now - last)
        last = now
    return gaps


def four_streams(server, round_name, tokens, beside=None):
    gaps, lock = [], threading.Lock()

    def one(k):
        got = stream_gaps(server, f"stream {round_name} {k}", tokens)
        with lock:
            gaps.extend(got)
    threads = [threading.Thread(target=one, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    if beside:
        beside()
    for t in threads:
        t.join()
    return sorted(gaps)


def measure_streams(o, folder):
    """-> (gaps alone, gaps beside the wakes, tokens found of tokens asked)"""
    prompts = [history(o.wake_tokens + 1, f"wake {i}") for i in range(o.wakes)]
    total = o.wakes * o.wake_tokens
    found = []
    with Run(o, 4 * (o.reply + 64) + total, total, True, folder) as run:
        for p in prompts:
            run.first_token(p)
        run.asleep()
        alone = four_streams(run.server, "alone", o.reply)

        def wakes():
            time.sleep(0.5)
            for p in prompts:
                found.append(run.first_token(p)[1])
        beside = four_streams(run.server, "beside", o.reply, wakes)
    return alone, beside, sum(found), total


def p99(values):
    return values[min(len(values) - 1, int(0.99 * len(values)))]


# ---- what is printed ----

def report_length(o, tokens, m, folder, copy):
    block, cold = block_bytes(o.model), m["cold"].seconds
    raw = raw_read(folder, block, tokens // BLOCK)
    out = {"tokens": tokens, "raw_read": raw, "memcpy": copy}
    print(f"\n{tokens} tokens, {tokens // BLOCK * block / 2**20:.0f} MiB:"
          f"{'TTFT ms':>12}{'sooner than cold':>18}{'found':>8}{'promoted':>14}{'share':>8}")
    for name, x in m.items():
        line = f"{name:>22}{x.seconds * 1e3:>14.1f}{cold / x.seconds:>17.1f}x{x.found:>8}"
        out[name] = {"seconds": x.seconds, "found": x.found}
        if name in ("G2", "G3", "restart") and x.found:
            beyond = max(x.seconds - m["G1"].seconds, 1e-6)
            rate = x.found // BLOCK * block / beyond
            limit, what = (copy, "of memcpy") if name == "G2" else (raw, "of raw read")
            out[name].update(rate=rate, share=rate / limit)
            line += f"{rate / 1e9:>9.2f} GB/s{rate / limit:>7.0%} {what}"
        print(line)
    print(f"{'':>12}raw read {raw / 1e9:.2f} GB/s, memcpy {copy / 1e9:.2f} GB/s")
    return out


def main():
    o = options()
    os.environ["DORMOUSE"] = o.server
    results = {"lengths": []}
    copy = raw_copy()
    for tokens in (int(n) for n in o.lengths.split(",")):
        with tempfile.TemporaryDirectory(dir=o.folder) as top:
            folder = os.path.join(top, "kv")
            m = measure_length(o, tokens, folder)
            results["lengths"].append(report_length(o, tokens, m, folder, copy))
    if o.wakes:
        with tempfile.TemporaryDirectory(dir=o.folder) as top:
            alone, beside, found, total = measure_streams(o, os.path.join(top, "kv"))
        ratio = p99(beside) / p99(alone)
        results["streams"] = {"alone_p99": p99(alone), "beside_p99": p99(beside), "ratio": ratio}
        print(f"\nfour streams, between tokens: p99 {p99(alone) * 1e3:.1f} ms alone, "
              f"{p99(beside) * 1e3:.1f} ms while {o.wakes} wake ({found} of {total} tokens "
              f"found): {ratio:.2f} times")
    if o.json:
        with open(o.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
