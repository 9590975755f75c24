"""What the machine can do, measured beside the server: reading a file, copying memory."""
import json
import mmap
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

PAGE = 4096


def fio(path, block, blocks, seconds, depth, fixed):
    """Bytes a second, or None where fio cannot.  fixed: with buffers registered."""
    command = ["fio", "--name=read", f"--filename={path}", "--readonly", "--rw=read", "--direct=1",
               f"--bs={block}", f"--offset={PAGE}", f"--size={block * blocks}",
               f"--iodepth={depth}", "--ioengine=io_uring", f"--fixedbufs={fixed}",
               "--time_based", f"--runtime={seconds}", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None
    return json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]["read"]["bw_bytes"]


def own_read(path, block, blocks, seconds, depth):
    """The same with `depth` threads of ours."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(k, end):
        buffer, total = mmap.mmap(-1, block), 0
        while time.monotonic() < end:
            for i in range(k, blocks, depth):
                total += os.preadv(fd, [buffer], PAGE + i * block)
        return total
    try:
        began = time.monotonic()
        with ThreadPoolExecutor(depth) as pool:
            jobs = [pool.submit(read, k, began + seconds) for k in range(depth)]
            return sum(j.result() for j in jobs) / (time.monotonic() - began)
    finally:
        os.close(fd)


def read_speed(path, block, blocks):
    """-> (bytes a second of reading blocks of the file with O_DIRECT, the best of some numbers of
    them at once; by what)"""
    if shutil.which("fio"):
        found = [fio(path, block, blocks, 1, depth, fixed) for depth in (8, 32) for fixed in (0, 1)]
        if all(found):
            return max(found), "fio"
        print("fio is here, but reads nothing: a loop of our own is the measure")
    else:
        print("fio is not here: a loop of our own is the measure")
    return max(own_read(path, block, blocks, 0.5, depth) for depth in (4, 8, 32)), "own loop"


def copy_speed(size=256 << 20):
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
