#!/usr/bin/env python3
"""bench_peer.py BENCH_MODEL LLAMA MODEL GGUF... - this backend beside llama.cpp, in one run.

LLAMA is a build directory of llama.cpp with bin/llama-bench and, for long prompts and for decoding
over a context, bin/llama-batched-bench, which does not warm up with a whole prompt; nothing is
built.  MODEL is a Hugging Face folder and each GGUF a file of
the same weights; its name says the format: bf16 and f16 are compared with ours in bf16, q8 with q8,
q4 with q4.  Both sides have the same threads, prompts of the same length and KV in f16, and take
turns, so that what the machine does meanwhile hits both; of flash attention on and off, the
peer's better median counts.  Printed are medians in tokens a second, the ratio of each turn
(median, least and most), and what ours is of the machine's read bandwidth and peak of
multiply-adds (of bf16 pairs where the backend multiplies those, of f32 elsewhere), measured
beside it.  Give it fresh copies of the files: the peer decodes from the page cache, up to a third
faster where a file lies there in large pieces.  One row alone: --cases decode:1:4096 --threads 2.
--busy 1: while either side is measured, one other process computes all the time.  --flash 1 leaves
the setting out that a shorter prompt has shown to be the slower one.
"""
import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys

CASES = ["decode:1:0", "decode:1:1024", "decode:1:4096", "decode:8:1024",
         "prefill:1:512", "prefill:1:2048", "prefill:1:8192"]
REPLY = 24  # tokens that a peer decodes; as many as bench_model does
SHORT = 2048  # prompts up to this many tokens are warmed up to, as bench_model repeats them


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bench_model")
    p.add_argument("llama")
    p.add_argument("model")
    p.add_argument("gguf", nargs="+")
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--threads", default="1,2")
    p.add_argument("--cases", default=",".join(CASES))
    p.add_argument("--flash", default="0,1", choices=["0,1", "0", "1"],
                   help="settings of the peer's flash attention")
    p.add_argument("--busy", type=int, default=0, help="processes that take cores away")
    return p.parse_args()


@contextlib.contextmanager
def busy(n):
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for p in others:
            p.kill()
            p.wait()


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench_peer: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def format_of(gguf):
    name = os.path.basename(gguf).lower()
    for word, ours in (("bf16", "bf16"), ("f16", "bf16"), ("q8", "q8"), ("q4", "q4")):
        if word in name:
            return ours
    sys.exit(f"bench_peer: the name of {gguf} has none of bf16, f16, q8 and q4 in it")


def ours(o, fmt, threads, case):
    out = run([o.bench_model, o.model, str(threads), fmt, case])
    return [float(x) for x in out.split()[1:]]


def peer(o, gguf, threads, case, flash):
    what, seqs, tokens = case.split(":")
    seqs, tokens = int(seqs), int(tokens)
    tool = os.path.join(o.llama, "bin", "llama-bench")
    common = ["-m", gguf, "-t", str(threads)]
    if tokens == 0 or what == "prefill" and tokens <= SHORT:
        n = ["-p", str(tokens), "-n", "0"] if what == "prefill" else ["-p", "0", "-n", str(REPLY)]
        out = run([tool, *common, *n, "-fa", str(int(flash)), "-r", "1", "-o", "json"])
        return json.loads(out)[0]["avg_ts"]
    tool = os.path.join(o.llama, "bin", "llama-batched-bench")
    reply = 1 if what == "prefill" else REPLY
    room = str(seqs * (tokens + reply) + 64)
    flags = ["-c", room, "-b", "2048", "-ub", "512", "-npp", str(tokens), "-ntg", str(reply),
             "-npl", str(seqs)] + (["-fa"] if flash else [])
    out = run([tool, *common, *flags])
    # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
    rows = re.findall(rf"^\|\s*{tokens} \|\s*{reply} \|\s*{seqs} \|(.*)\|$", out, re.M)
    if not rows:
        sys.exit(f"bench_peer: {tool} printed no row for {case}:\n{out[-1000:]}")
    return float(rows[-1].split("|")[2 if what == "prefill" else 4])


def compare(o, gguf, threads, case):
    fmt = format_of(gguf)
    mine, theirs = [], {flash == "1": [] for flash in o.flash.split(",")}
    for _ in range(o.turns):
        for flash in theirs:
            theirs[flash].append(peer(o, gguf, threads, case, flash))
        mine.append(ours(o, fmt, threads, case))
    best = max(theirs, key=lambda flash: statistics.median(theirs[flash]))
    rates, bandwidth, peak_flops = zip(*mine)
    ratios = [a / b for a, b in zip(rates, theirs[best])]
    print(f"  {case:16} {threads} {statistics.median(rates):9.1f} "
          f"{statistics.median(theirs[best]):9.1f}{' fa' if best else '   '}   "
          f"{statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})  "
          f"{statistics.median(bandwidth):3.0f} % {statistics.median(peak_flops):3.0f} %", flush=True)


def main():
    o = options()
    for gguf in o.gguf:
        print(f"{os.path.basename(gguf)}, ours in {format_of(gguf)}: "
              "case, threads, our tokens/s, llama.cpp's, "
              "ratio, of bandwidth, of peak", flush=True)
        for case in o.cases.split(","):
            for threads in o.threads.split(","):
                with busy(o.busy):
                    compare(o, gguf, int(threads), case)


main()
