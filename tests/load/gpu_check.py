#!/usr/bin/env python3
"""gpu_check.py BUILD - what a machine with a GPU is to be asked once, in nine minutes.

kernels  their bandwidth and FLOPs as a share of the device's limits, promotion and demotion as a
         share of copying pinned memory (tests/bench_cuda.c)
tests    the tests of the CUDA backend on the device, goldens among them
model    random weights in the shape of an 8B Llama, into memory where there is room
waking   time to first token cold and from each tier, for contexts of 8k and 32k (bench_wake.py)
streams  the time between tokens with and without twenty wakes beside it (likewise)

Each part has its time and ends with it; one that fails leaves the others running.  What there is
stands as JSON after each part, also when this is told to stop (SIGTERM, SIGINT), and a table of
it ends what is printed.  What is missing is said, and makes the check fail.

Needs Python alone, 40 GB of memory beside the GPU, 8 GB of disk in --folder, and no network.
--standin runs small shapes on the CPU that stands in for a GPU: that proves this script, and
says nothing of a GPU.
"""
import argparse
import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import gpu_table
import random_model

# Tests, arguments of bench_cuda and bench_wake.py, and seconds that each part may take.
ON_GPU = dict(tests="kernels/cuda_arrival kernels/cuda_attention kernels/cuda_best "
                    "kernels/cuda_copyq kernels/cuda_matmul kernels/cuda_rows model/cuda_steps "
                    "model/exact model/forward model/smollm2 server/engine_cuda",
              bench=[], shape="8b",
              waking="--lengths 8192,32752 --repeats 3 --restarts 1",
              streams="--wakes 20 --wake-tokens 2048 --rounds 2",
              seconds=dict(kernels=60, tests=120, model=60, waking=180, streams=100))
ON_STANDIN = dict(tests="kernels/cuda_best kernels/cuda_copyq", bench=["small"], shape="small",
                  waking="--lengths 48,96 --repeats 1 --restarts 1",
                  streams="--wakes 3 --wake-tokens 32 --message 4 --reply 4 --begun 2 --rounds 1",
                  seconds=dict(kernels=60, tests=120, model=60, waking=180, streams=100))
SECONDS = 540
CLOSING = 8  # seconds for ending what runs, and the table
NO_GPU = "These are figures of a CPU that stands in for a GPU. They say nothing of a GPU."


class Stopped(BaseException):
    """By a signal; the first one alone does so, and what cleans up runs to its end."""


class Failed(Exception):
    pass


# ---- what runs ----

def session(sid):
    """Processes of this session, but for those that only wait to be buried."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                state, _, _, of, *_ = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(of) == sid and state != "Z":
            found.append(int(path.split("/")[2]))
    return found


def end_session(sid):
    """Nothing of a part outlives it: no server keeps the GPU's memory from the next one."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in session(sid):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                pass
        end = time.monotonic() + CLOSING / 2
        while session(sid) and time.monotonic() < end:
            time.sleep(0.05)


@contextlib.contextmanager
def surely(clean_up):
    """Does it in the end, and again where a signal has struck while it was done."""
    try:
        try:
            yield
        finally:
            clean_up()
    except Stopped:
        clean_up()
        raise


def toolkit_libraries():
    """Folders with cuBLAS: the toolkit's, or that of Python's packages."""
    nvcc = shutil.which("nvcc")
    home = [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
    folders = [os.path.join(h, "lib64") for h in [*home, "/usr/local/cuda"]]
    folders += [os.path.join(p, "nvidia", "cu13", "lib") for p in sys.path]
    return [f for f in folders if os.path.exists(os.path.join(f, "libcublas.so.13"))]


def program_of(build, test):
    room, name = test.split("/")
    return os.path.join(build, "tests", room, "test_" + name)


class Check:
    def __init__(self, o):
        self.o, self.set = o, ON_STANDIN if o.standin else ON_GPU
        self.began = time.monotonic()
        self.end = self.began + o.seconds - CLOSING
        self.failed, self.model, self.folder = [], None, None
        self.out = {"standin": o.standin, "shape": self.set["shape"],
                    "weights": random_model.weights_bytes(self.set["shape"])}
        libraries = [os.path.join(o.build, "standin")] if o.standin else []
        libraries += [os.path.join(o.build, "lib"), *toolkit_libraries()]
        libraries += filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
        self.env = dict(os.environ, DORMOUSE=os.path.join(o.build, "dormouse"),
                        LD_LIBRARY_PATH=":".join(libraries))

    def left(self, part):
        """Seconds that it has; in a shorter check all have less."""
        most = self.set["seconds"][part] * min(1, self.o.seconds / SECONDS)
        return max(0, min(most, self.end - time.monotonic()))

    def run(self, part, command, hear=lambda line: None, **env):
        """Tells each line that the command says."""
        limit, late = self.left(part), threading.Event()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", env={**self.env, **env}, cwd=ROOT,
                              start_new_session=True) as p:
            timer = threading.Timer(limit, lambda: (late.set(), end_session(p.pid)))

            def end():
                timer.cancel()
                end_session(p.pid)

            with surely(end):
                timer.start()
                for line in p.stdout:
                    print(line, end="", flush=True)
                    hear(line)
            timer.join()
        if late.is_set():
            self.failed.append(f"{part} was ended after the {limit:.0f} s that it had")
        elif p.returncode != 0:
            self.failed.append(f"{part} ended with status {p.returncode}")

    # ---- parts ----

    def kernels(self):
        def hear(line):
            row = json.loads(line) if line.startswith("{") else {}
            if "device" in row:
                self.out.update(device=row["device"], simulated=row["standin"], kernels=[])
            elif row:
                self.out["kernels"].append(row)
        self.run("kernels", [os.path.join(self.o.build, "tests", "bench_cuda"), *self.set["bench"]],
                 hear)
        if "device" not in self.out:
            raise Failed("no device was found")
        if self.out["simulated"] != self.o.standin:
            raise Failed("the device is " + ("a CPU that stands in for a GPU: --standin is for that"
                                             if self.out["simulated"] else "a GPU"))

    def tests(self):
        programs = [program_of(self.o.build, t) for t in self.set["tests"].split()]
        there = [p for p in programs if os.path.exists(p)]
        jobs = str(min(8, os.cpu_count()))

        skipped = self.out["skipped"] = {}  # why, by program and test
        program = why = ""

        def hear(line):
            nonlocal program, why
            if line.startswith("== "):
                program = line[3:].strip()
            elif line.startswith("skipped: "):
                why = line[9:].strip()
            elif line.startswith("[  SKIPPED ] "):
                # Once more in a list at the end.
                skipped.setdefault(program + ": " + line.split()[-1], why or "it says not why")
                why = ""
            elif " passed, " in line:
                self.out["tests"] = line.strip()
        self.run("tests", [os.path.join(ROOT, "tests", "run.sh"), *there], hear, JOBS=jobs,
                 TEST_TIMEOUT=str(int(self.left("tests")) + 1))
        if missing := set(programs) - set(there):
            raise Failed("not built: " + " ".join(sorted(missing)))

    def make_model(self):
        """In memory where there is room for it twice, else in the folder."""
        size = self.out["weights"]
        memory, disk = (shutil.disk_usage(f).free if os.path.isdir(f) else 0
                        for f in ("/dev/shm", self.folder))
        with open("/proc/meminfo", encoding="utf-8") as f:
            free = next(int(x.split()[1]) << 10 for x in f if x.startswith("MemAvailable"))
        if min(memory, free / 2) > size:
            top = "/dev/shm"
        elif disk > size:
            top = self.folder
        else:
            raise Failed(f"{size >> 30} GiB of weights have no room: {memory >> 30} GiB are free in "
                         f"/dev/shm and {disk >> 30} GiB in {self.folder}; --folder names another")
        self.model = tempfile.mkdtemp(dir=top, prefix="dormouse-model-")
        # In a process of its own, which can be ended.
        self.run("model", [sys.executable, os.path.join(HERE, "random_model.py"), self.model,
                           "-", self.set["shape"]])
        if not os.path.exists(os.path.join(self.model, "tokenizer_config.json")):
            self.drop_model()

    def drop_model(self):
        if self.model:
            shutil.rmtree(self.model, ignore_errors=True)
            self.model = None

    def wake(self, part, only):
        if not self.model:
            raise Failed("there is no model")
        found = os.path.join(self.folder, part + ".json")
        self.run(part, [sys.executable, os.path.join(HERE, "bench_wake.py"), self.env["DORMOUSE"],
                        self.model, "--only", only, "--json", found, "--folder", self.folder,
                        "--flags", "--device cuda", *self.set[part].split()])
        if os.path.exists(found):
            with open(found, encoding="utf-8") as f:
                self.out[part] = json.load(f)

    def part(self, name, work):
        print(f"\n== {name}, {self.left(name):.0f} s at most", flush=True)
        began = time.monotonic()
        try:
            if self.left(name) <= 0:
                raise Failed("no time was left")
            work()
        except Stopped:
            self.failed.append(f"it was told to stop in {name}")
            raise
        except Exception as e:  # said, and the other parts run
            self.failed.append(f"{name}: {e if isinstance(e, Failed) else repr(e)}")
        finally:
            self.out.setdefault("took", {})[name] = time.monotonic() - began
            self.save()

    def save(self):
        self.out["seconds"] = time.monotonic() - self.began
        self.out["failed"] = self.failed + gpu_table.missing(self.out)
        with open(self.o.json + ".new", "w", encoding="utf-8") as f:
            json.dump(self.out, f, indent=1)
        os.replace(self.o.json + ".new", self.o.json)

    def clean_up(self):
        self.drop_model()
        shutil.rmtree(self.folder, ignore_errors=True)

    def all(self):
        self.folder = tempfile.mkdtemp(dir=self.o.folder, prefix="dormouse-check-")
        with surely(self.clean_up):
            self.part("kernels", self.kernels)
            if "device" not in self.out:
                return
            self.part("tests", self.tests)
            self.part("model", self.make_model)
            self.part("waking", lambda: self.wake("waking", "waking"))
            self.part("streams", lambda: self.wake("streams", "streams-ram"))


def stop(*_):
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: None)
    raise Stopped


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", nargs="?", default="build/cuda")
    p.add_argument("--standin", action="store_true")
    p.add_argument("--seconds", type=int, default=SECONDS, help="for all of it")
    p.add_argument("--folder", default="build", help="on the SSD to be measured")
    p.add_argument("--json", metavar="FILE", default="build/gpu-check.json")
    p.add_argument("--list", action="store_true", help="print which tests run, and end")
    o = p.parse_args()
    o.build, o.folder, o.json = (os.path.abspath(x) for x in (o.build, o.folder, o.json))
    return o


def main():
    o = options()
    c = Check(o)
    if o.list:
        print(c.set["tests"])
        return 0
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if o.standin:
        print(NO_GPU)
    try:
        c.all()
    except Stopped:
        pass
    c.save()
    gpu_table.show(c.out)
    print(f"\n{c.out['seconds']:.0f} s, all of it is in {o.json}")
    if o.standin:
        print(NO_GPU)
    return bool(c.out["failed"])


if __name__ == "__main__":
    sys.exit(main())
