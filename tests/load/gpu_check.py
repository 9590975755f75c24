#!/usr/bin/env python3
"""gpu_check.py BUILD TOKENIZER - what a machine with a GPU is to be asked once, in ten minutes.

Goldens: the tests of the CUDA backend on the device.  Kernels: their bandwidth and FLOPs as a
share of the device's limits, promotion and demotion as a share of copying pinned memory
(tests/bench_cuda.c).  Waking: time to first token cold and from each tier, for contexts of 8k and
32k.  Streams: the time between tokens with and without twenty wakes beside them (bench_wake.py).
The model of the last two has the shape of an 8B Llama, and random weights.

Writes all of it as JSON, and prints a table.  What does not end within its time is left out, said
so, and makes the check fail.  --standin runs small shapes on the CPU that stands in for a GPU:
that proves this script, and says nothing of a GPU.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import random_model

TESTS = ("kernels/cuda_attention kernels/cuda_best kernels/cuda_copyq kernels/cuda_matmul "
         "kernels/cuda_rows model/cuda_steps model/exact model/forward model/smollm2 "
         "server/engine_cuda")
# Arguments of bench_wake.py, and seconds that each part may take.
ON_GPU = dict(tests=TESTS, bench=[], shape="8b",
              waking="--lengths 8192,32752 --repeats 3 --restarts 1",
              streams="--wakes 20 --wake-tokens 2048 --rounds 2",
              seconds=dict(tests=120, kernels=60, waking=240, streams=150))
ON_STANDIN = dict(tests="kernels/cuda_best kernels/cuda_copyq", bench=["small"], shape="small",
                  waking="--lengths 48,96 --repeats 1 --restarts 1",
                  streams="--wakes 3 --wake-tokens 32 --message 4 --reply 4 --begun 2 --rounds 1",
                  seconds=dict(tests=400, kernels=200, waking=400, streams=400))
NO_GPU = "These are figures of a CPU that stands in for a GPU. They say nothing of a GPU."


class Check:
    def __init__(self, o):
        self.o = o
        self.set = ON_STANDIN if o.standin else ON_GPU
        self.out = {"standin": o.standin}
        self.failed = []
        self.env = dict(os.environ, DORMOUSE=os.path.join(o.build, "dormouse"))
        if o.standin:
            self.env["LD_LIBRARY_PATH"] = os.path.join(o.build, "standin")

    def run(self, part, command):
        """What the command says, or None; it is told of as it goes."""
        print(f"\n== {part}", flush=True)
        began, said = time.monotonic(), []
        limit = self.set["seconds"][part]
        command = ["timeout", "--kill-after=5", str(limit), *command]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env=self.env) as p:
            for line in p.stdout:
                said.append(line)
                print(line, end="", flush=True)
        if p.returncode != 0:
            took = time.monotonic() - began
            self.failed.append(f"{part} ended with status {p.returncode} after {took:.0f} s "
                               f"(it may take {limit} s)")
        return said

    def tests(self):
        standin = [] if self.o.standin else ["GPU=1"]
        said = self.run("tests", ["make", "--no-print-directory", "CUDA=1", *standin,
                                  f"BUILD={self.o.build}", "unit", "T=" + self.set["tests"]])
        self.out["tests"] = next((s.strip() for s in reversed(said) if " passed, " in s), None)

    def kernels(self):
        bench = os.path.join(self.o.build, "tests", "bench_cuda")
        rows = [json.loads(line) for line in self.run("kernels", [bench, *self.set["bench"]])
                if line.startswith("{")]
        self.out["device"] = rows[0]["device"] if rows else None
        self.out["kernels"] = rows[1:]
        if rows and rows[0]["standin"] != self.o.standin:
            self.failed.append("the device is " + ("none: a CPU stands in for it"
                                                   if rows[0]["standin"] else "a GPU"))

    def wake(self, part, only, model, folder):
        found = os.path.join(folder, part + ".json")
        self.run(part, [sys.executable, os.path.join(HERE, "bench_wake.py"),
                        self.env["DORMOUSE"], model, "--only", only, "--json", found,
                        "--folder", folder, "--flags", "--device cuda",
                        *self.set[part].split()])
        if os.path.exists(found):
            with open(found, encoding="utf-8") as f:
                self.out[part] = json.load(f)

    # ---- the table ----

    def table(self):
        print(f"\n== {self.out.get('device')}")
        print(f"tests: {self.out.get('tests')}\n")
        for row in self.out.get("kernels", ()):
            share = f"{row['share']:>7.0%} of the limit" if "share" in row else ""
            print(f"{row['what']:<52}{row['rate']:>12.1f} {row['unit']:<8}{share}")
        for length in self.out.get("waking", {}).get("waking", ()):
            cold = length["cold"]["seconds"]
            print(f"\n{length['tokens']} tokens: TTFT ms, sooner than cold")
            for where in ("cold", "G1", "G2", "G3", "restart"):
                s = length[where]["seconds"]
                print(f"{where:>12}{s * 1e3:>12.1f}{cold / s:>10.1f}x")
        for condition, m in self.out.get("streams", {}).get("G2", {}).items():
            print(f"{condition:>28}: between tokens p50 {m['p50'] * 1e3:.1f} ms, "
                  f"p99 {m['p99'] * 1e3:.1f} ms, {m['ratio']:.2f} of that alone")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("tokenizer")
    p.add_argument("--standin", action="store_true")
    p.add_argument("--folder", help="on the SSD to be measured, for 30 GB; a temporary one where missing")
    p.add_argument("--json", metavar="FILE", default="build/gpu-check.json")
    o = p.parse_args()
    c, began = Check(o), time.monotonic()
    if o.standin:
        print(NO_GPU)
    with tempfile.TemporaryDirectory(dir=o.folder) as folder:
        c.kernels()
        c.tests()
        model = os.path.join(folder, "model")
        random_model.make(model, o.tokenizer, c.set["shape"])
        c.wake("waking", "waking", model, folder)
        c.wake("streams", "streams-ram", model, folder)
    c.out["seconds"] = time.monotonic() - began
    c.out["failed"] = c.failed
    with open(o.json, "w", encoding="utf-8") as f:
        json.dump(c.out, f, indent=1)
    c.table()
    for f in c.failed:
        print("gpu_check: " + f)
    print(f"\n{c.out['seconds']:.0f} s, all of it is in {o.json}")
    if o.standin:
        print(NO_GPU)
    return bool(c.failed)


if __name__ == "__main__":
    sys.exit(main())
