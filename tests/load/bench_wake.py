#!/usr/bin/env python3
"""bench_wake.py SERVER MODEL - how soon a sleeping conversation answers, and who notices.

Waking: for histories of each length the time to first token cold, from the KV pool (G1), RAM (G2),
the SSD (G3) and the SSD after a restart; and the bandwidth of each promotion beside what fio
reads from the same file (O_DIRECT, the same blocks) and copying memory reach in the same run.

Streams: the time between tokens of four running streams, alone and while others wake all at
once - by a call that only promotes, and by messages that are answered with one token.  The same messages
answered from G1 tell what of it is owed to more rows in a batch.

Ratios are printed; nothing is asserted about time.  Drives the server from outside.  The JSON is
written anew after each measurement, so that what ends early leaves what it has.
"""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
import gaps
import machine

PAGE = machine.PAGE
BLOCK = 16
STREAMS = 4


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("server")
    p.add_argument("model")
    p.add_argument("--quick", action="store_true", help="one length, two rounds: two minutes")
    p.add_argument("--only", choices=("waking", "streams", "streams-ram", "streams-ssd"))
    p.add_argument("--lengths", default="1024,4096,8176", help="tokens of a history")
    p.add_argument("--repeats", type=int, default=5, help="of each wake; the median counts")
    p.add_argument("--restarts", type=int, default=3)
    p.add_argument("--wakes", type=int, default=20, help="beside the running streams")
    p.add_argument("--wake-tokens", type=int, default=1024, help="history of each of these")
    p.add_argument("--message", type=int, default=16, help="new tokens of each of these")
    p.add_argument("--reply", type=int, default=300, help="tokens of each running stream")
    p.add_argument("--begun", type=int, default=20, help="of these before anything is measured")
    p.add_argument("--rounds", type=int, default=4, help="with streams")
    p.add_argument("--folder", help="on the SSD to be measured; a temporary one where missing")
    p.add_argument("--flags", default="", help="more of the server's own, separated by blanks")
    p.add_argument("--json", metavar="FILE")
    o = p.parse_args()
    if o.quick:
        o.lengths, o.repeats, o.rounds = "1024", 3, 2
    return o


def block_bytes(model):
    """Of a KV block as f16: K and V of all layers."""
    with open(os.path.join(model, "config.json")) as f:
        c = json.load(f)
    heads = c.get("num_key_value_heads") or c["num_attention_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    return 2 * c["num_hidden_layers"] * heads * dim * BLOCK * 2


def slot_bytes(block):
    return PAGE + -(-block // PAGE) * PAGE


def tokens_of(n, name):
    choose = random.Random(name)
    return [choose.randrange(1000, 20000) for _ in range(n)]


class Run:
    """A server under measurement, with tiers for `tokens` of sleeping history.  Nothing goes to sleep
    by itself; everything is copied down at once."""

    def __init__(self, o, g1_tokens, tokens, ram, ssd):
        from server import Server
        block = block_bytes(o.model)
        blocks = -(-tokens // BLOCK) + 64
        self.block = block
        flags = ["--kv-blocks", str(-(-g1_tokens // BLOCK) + 64), "--copy-after", "1ms",
                 "--idle-after", "1h", "--ssd-after", "1ms", "--residency", "0ms",
                 "--high", "100", "--low", "100"] + o.flags.split()
        if ram:
            flags += ["--ram", str(blocks * block)]
        if ssd:
            size = max(PAGE + blocks * slot_bytes(block), 1 << 20)
            flags += ["--ssd", ssd, "--ssd-size", str(size)]
        began = time.monotonic()
        self.server = Server(o.model, *flags)
        self.up = time.monotonic() - began

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop()

    def call(self, method, path, body=None, name=None):
        headers = {"X-Conversation-Id": name} if name else None
        status, _, answer = self.server.request(method, path, body, headers)
        if status != 200:
            sys.exit(f"bench_wake: {method} {path}: {status} {answer.decode()}")
        return json.loads(answer)

    def first_token(self, name, prompt):
        """-> (seconds to the first token, the server's wake, tokens found, what was said)"""
        began = time.monotonic()
        answer = self.call("POST", "/v1/completions",
                           {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1},
                           name)
        took = time.monotonic() - began
        found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return (took, answer["usage"]["dormouse"]["wake_ms"] / 1e3, found,
                answer["choices"][0]["logprobs"]["token_logprobs"])

    def sleep(self, names):
        """Send them to sleep and wait until they are, and nothing is written any more."""
        for name in names:
            self.call("POST", f"/v1/conversations/{name}/sleep")
        for name in names:
            while self.call("GET", f"/v1/conversations/{name}")["state"] != "asleep":
                time.sleep(0.01)
        last = None
        while (now := self.written()) != last:
            last = now
            time.sleep(0.2)

    def written(self):
        with open(f"/proc/{self.server.pid}/io") as f:
            return f.read().split("write_bytes:")[1].split()[0]


# ---- waking ----

class Median:
    def __init__(self):
        self.times, self.wakes, self.found, self.said = [], [], None, None

    def add(self, measured):
        took, wake, self.found, self.said = measured
        self.times.append(took)
        self.wakes.append(wake)

    @property
    def seconds(self):
        return statistics.median(self.times)


def prompt_of(tokens):
    return tokens_of(tokens + 1, f"length {tokens}")


def measure_tier(o, run, tokens, m, tier):
    name, prompt = f"c{tokens}", prompt_of(tokens)
    m["cold"].add(run.first_token(name, prompt))
    for _ in range(o.repeats):
        m["G1"].add(run.first_token(name, prompt))
    for _ in range(o.repeats):
        run.sleep([name])
        m[tier].add(run.first_token(name, prompt))


def check_answers(o, tokens, m, of_one_prefill):
    """They are the same wherever the tokens were.  On a GPU that is not exact a long step rounds
    its products by its length: there only those agree that read all K and V of one prefill."""
    names = list(m)
    if "cuda" in o.flags and "--exact" not in o.flags:
        names = [name for name in of_one_prefill if m[name].found == tokens // BLOCK * BLOCK]
    said = [m[name].said for name in names if m[name].said]
    if any(s != said[0] for s in said):
        sys.exit(f"bench_wake: different answers to {tokens} tokens: "
                 f"{ {name: x.said for name, x in m.items()} }")


class Waking:
    """A server for each tier, and in it one length after the other.  out: filled on the way."""

    def __init__(self, o, save):
        self.o, self.save = o, save
        self.block, self.copy = block_bytes(o.model), machine.copy_speed()
        self.lengths = [int(n) for n in o.lengths.split(",")]
        self.of = {n: {name: Median() for name in ("cold", "G1", "G2", "G3", "restart")}
                   for n in self.lengths}
        self.out = [{"tokens": n, "memcpy": self.copy} for n in self.lengths]

    def server(self, ram, ssd):
        return Run(self.o, sum(self.lengths), sum(self.lengths), ram, ssd)

    def measure(self, folder):
        for tier, ssd in (("G2", None), ("G3", folder)):
            with self.server(tier == "G2", ssd) as run:
                for out, n in zip(self.out, self.lengths):
                    measure_tier(self.o, run, n, self.of[n], tier)
                    check_answers(self.o, n, self.of[n], ("G1", tier))
                    self.report(out, n, run, ("cold", "G1", tier), ssd)
        for i in range(self.o.restarts):
            with self.server(False, folder) as run:
                for out, n in zip(self.out, self.lengths):
                    self.of[n]["restart"].add(run.first_token(f"c{n}", prompt_of(n)))
                    check_answers(self.o, n, self.of[n], ("G3", "restart"))
                    if i + 1 == self.o.restarts:
                        self.report(out, n, run, ("restart",), folder)

    def report(self, out, tokens, run, names, folder):
        """Adds to out what was measured so far."""
        out["up"] = run.up
        if folder:
            out["read"], out["read_by"] = machine.read_speed(
                os.path.join(folder, "blocks"), slot_bytes(self.block), tokens // BLOCK)
        print(f"\n{tokens:>5} tokens, {tokens // BLOCK * self.block / 2**20:>4.0f} MiB   TTFT ms   "
              f"sooner than cold   found   promoted in, at            share of")
        for name in names:
            print(self.line(out, name, self.of[tokens]), flush=True)
        by = f"{out['read_by']} {out['read'] / 1e9:.2f} GB/s, " if folder else ""
        print(f"{'':>22}{by}memcpy {self.copy / 1e9:.2f} GB/s; the server was up in {run.up:.1f} s",
              flush=True)
        self.save()

    def line(self, out, name, m):
        x, cold = m[name], m["cold"].seconds
        line = f"{name:>22}{x.seconds * 1e3:>10.1f}{cold / x.seconds:>18.1f}x{x.found:>8}"
        out[name] = {"seconds": x.seconds, "found": x.found, "all": x.times}
        if name in ("G2", "G3", "restart") and x.found:
            wake = statistics.median(x.wakes)
            rate = x.found // BLOCK * self.block / max(wake, 1e-6)
            limit, what = ((self.copy, "memcpy") if name == "G2"
                           else (out["read"], out["read_by"]))
            out[name].update(wake=wake, rate=rate, share=rate / limit)
            line += f"{wake * 1e3:>8.1f} ms{rate / 1e9:>7.2f} GB/s{rate / limit:>8.0%} {what}"
        return line


def waking(o, results, save):
    with tempfile.TemporaryDirectory(dir=o.folder) as top:
        w = Waking(o, save)
        results["waking"] = w.out
        w.measure(os.path.join(top, "kv"))


# ---- beside running streams ----

def p99(values):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def stream_requests(o, n_round):
    return [gaps.request_bytes("POST", "/v1/completions", {
        "prompt": tokens_of(32, f"stream {n_round} {k}"), "max_tokens": o.reply + o.begun,
        "temperature": 0, "ignore_eos": True, "stream": True}) for k in range(STREAMS)]


class Sleepers:
    """Conversations that wake beside the streams, one message longer each time."""

    def __init__(self, o, run):
        self.o, self.run = o, run
        self.names = [f"w{i}" for i in range(o.wakes)]
        self.histories = [tokens_of(o.wake_tokens, name) for name in self.names]
        for name, h in zip(self.names, self.histories):
            run.first_token(name, h + [1])

    def messages(self, n_round, where):
        return [gaps.request_bytes("POST", "/v1/completions", {
            "prompt": h + tokens_of(self.o.message, f"{name} {n_round} {where}"),
            "max_tokens": 1, "temperature": 0}, name)
            for name, h in zip(self.names, self.histories)]

    def wakes(self):
        return [gaps.request_bytes("POST", f"/v1/conversations/{n}/wake") for n in self.names]

    def last_is_up(self):
        return (gaps.request_bytes("GET", f"/v1/conversations/{self.names[-1]}"),
                b'"state":"idle"')


def measure_round(o, run, sleepers, n_round, tier):
    """-> {condition: (gaps, gaps in the window, its seconds, seconds until each was answered)}"""
    port, out = run.server.port, {}
    full = o.wake_tokens // BLOCK * BLOCK

    def measure(condition, others=(), asked=None):
        every, window, seconds, answered = gaps.together(
            port, stream_requests(o, n_round), o.begun, others, asked)
        times = sorted(x.ended - x.sent for x in answered) if not asked else []
        out[condition] = (every, window, seconds, times)
        return answered

    def found(answered):
        for x in answered:
            cached = json.loads(x.answer())["usage"]["prompt_tokens_details"]["cached_tokens"]
            if cached < full:
                print(f"bench_wake: {cached} tokens were found where {full} slept")

    measure("alone")
    found(measure("messages, from G1", sleepers.messages(n_round, "G1")))
    run.sleep(sleepers.names)
    measure(f"wake calls, from {tier}", sleepers.wakes(), sleepers.last_is_up())
    run.sleep(sleepers.names)
    found(measure(f"messages, from {tier}", sleepers.messages(n_round, tier)))
    return out


def sum_up(rounds):
    """The median of the rounds' p99s, their spread, and what it is of the median alone."""
    out, alone = {}, statistics.median(p99(r["alone"][1]) for r in rounds)
    for condition in rounds[0]:
        of_round = [p99(r[condition][1]) for r in rounds]
        times = [t for r in rounds for t in r[condition][3]]
        out[condition] = {
            "seconds": statistics.median(r[condition][2] for r in rounds),
            "p50": statistics.median(statistics.median(r[condition][1]) for r in rounds),
            "p99": statistics.median(of_round), "p99s": of_round,
            "ratio": statistics.median(of_round) / alone,
            "answered": statistics.median(times) if times else None}
    return out


def report_streams(o, of_all, tier):
    print(f"\n{STREAMS} streams of {o.reply} tokens; {o.wakes} conversations of {o.wake_tokens} "
          f"tokens wake at once from {tier}, messages of {o.message} tokens; {o.rounds} rounds")
    print(f"{'between tokens:':>24}   in the first      p50 ms   p99 ms (least-most)   x alone"
          f"   answered after, p50")
    for condition, x in of_all.items():
        answered = f"{x['answered']:.2f} s" if x["answered"] else ""
        spread = f"({min(x['p99s']) * 1e3:.1f}-{max(x['p99s']) * 1e3:.1f})"
        line = (f"{condition:>24}{x['seconds']:>13.2f} s{x['p50'] * 1e3:>12.1f}"
                f"{x['p99'] * 1e3:>9.1f} {spread:<13}{x['ratio']:>9.2f}{answered:>22}")
        print(line.rstrip(), flush=True)


def streams(o, tier, results, save):
    total = o.wakes * (o.wake_tokens + BLOCK)
    g1 = STREAMS * (o.reply + o.begun + 64) + total + o.wakes * (o.message + 2 * BLOCK)
    rounds = []
    with tempfile.TemporaryDirectory(dir=o.folder) as top:
        folder = os.path.join(top, "kv")
        room = 2 * total + (o.rounds + 1) * (o.wakes * 2 * o.message + 4 * STREAMS * o.reply)
        with Run(o, g1 + room, room, tier == "G2", folder if tier == "G3" else None) as run:
            sleepers = Sleepers(o, run)
            for i in range(o.rounds):
                rounds.append(measure_round(o, run, sleepers, i, tier))
                results[tier] = sum_up(rounds)
                save()
    report_streams(o, results[tier], tier)


def main():
    o = options()
    os.environ["DORMOUSE"] = o.server
    results = {}

    def save():
        if o.json:
            with open(o.json + ".new", "w") as f:
                json.dump(results, f, indent=1)
            os.replace(o.json + ".new", o.json)

    if o.only in (None, "waking"):
        waking(o, results, save)
    if o.only in (None, "streams", "streams-ram"):
        streams(o, "G2", results, save)
    if o.only in (None, "streams", "streams-ssd"):
        streams(o, "G3", results, save)


if __name__ == "__main__":
    main()
