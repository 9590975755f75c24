#!/usr/bin/env python3
"""faults.py [WORD... | --places] - deliberate bugs in the CUDA backend, each of which its tests must
catch.

A copy of the tree is built for the CPU that stands in for a GPU (the source tier), and its tests
must pass.  Then one bug after the other is put in, and the tests named beside it must fail, or the
stand-in say why it ends them; a time-out or a crash is no catch.  Words pick the bugs whose
description begins with one of them.  Closes with "N passed, N failed, N skipped".

--places only names the bugs that would change nothing, or more than one place.
"""
import fcntl
import filecmp
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
COPY = os.path.join(ROOT, "build", "faults")
MAKE = ["make", "--no-print-directory", "-j%d" % os.cpu_count(), "DEVICE=cuda-on-cpu", "BUILD=build"]

ATTENTION, ROWS, STEPS = "kernels/cuda_attention", "kernels/cuda_rows", "model/cuda_steps"
MATMUL, COPYQ, ARRIVAL = "kernels/cuda_matmul", "kernels/cuda_copyq", "kernels/cuda_arrival"
BEST, SLEEP, FAILURES = "kernels/cuda_best", "server/engine_cuda", "server/engine_cuda_faults"
STORE = "offload/kvstore_storm"

# What is wrong; file, in kernels/cuda/ where no folder is named; text that stands there once; what
# replaces it; who sees it.
FAULTS = (
    ("attention: a tile is overwritten while a warp still reads it", "attention.cu",
     "        __syncthreads();  // before this stage is overwritten\n", "", ATTENTION),
    ("attention: a tile is read before all of it has come", "attention.cu",
     "cp_async_wait<1>();", "cp_async_wait<2>();", ATTENTION),
    ("attention: a token does not see itself", "attention.cu",
     "key <= high[h]", "key < high[h]", ATTENTION),
    ("attention: the window is one key short", "attention.cu",
     "key >= low[h]", "key > low[h]", ATTENTION),
    ("attention: segments are joined without regard to their maxima", "attention.cu",
     "l = joined(l, p[dim + 1], t);", "l += p[dim + 1];", ATTENTION),
    ("attention: a query head reads the next KV head", "attention.cu",
     "(size_t)kv_head * KV_BLOCK_TOKENS * HD;",
     "(size_t)((kv_head + 1) % a.kv.kv_heads) * KV_BLOCK_TOKENS * HD;", ATTENTION),
    ("attention: a token is looked for in the block of the next one", "attention.cu",
     "keys.table[t / KV_BLOCK_TOKENS]", "keys.table[(t + 1) / KV_BLOCK_TOKENS]", ATTENTION),
    ("attention: f16 in heads of 96 is read as bf16", "attention.cu",
     "a.kv.type == DTYPE_F16 ? attention_mma<__half, HD>",
     "a.kv.type == DTYPE_F16 && HD != 96 ? attention_mma<__half, HD>", ATTENTION),
    ("attention: bf16 in heads of 128 is read as f16", "attention.cu",
     "a.kv.type == DTYPE_F16 ? attention_mma<__half, HD>",
     "a.kv.type == DTYPE_F16 || HD == 128 ? attention_mma<__half, HD>", ATTENTION),
    ("rope: the second half turns the other way", "rope.cu",
     "rv = v * c + u * s", "rv = v * c - u * s", ROWS),
    ("rope: V is stored over K", "rope.cu",
     "if (h >= q_heads) to += (size_t)(h - q_heads)",
     "if (h >= q_heads) to += (size_t)((h - q_heads) % kv.kv_heads)", ROWS),
    ("rope: keys are normed by the queries' weights", "rope.cu",
     "h < q_heads ? norm.q : norm.k", "norm.q", ROWS),
    ("rope: a head's norm does not see its second half", "rope.cu",
     "            sum = fmaf(x[i + half], x[i + half], sum);\n", "", ROWS),
    ("rope: padding of a recorded step is stored in block 0", "input.c",
     "in->slots[r] = CUDA_NO_SLOT;", "in->slots[r] = 0;", STEPS),
    ("norm: no barrier before the warps' sums are read", "rows.cu",
     "sums[threadIdx.x / 32] = v;\n    __syncthreads();", "sums[threadIdx.x / 32] = v;", ROWS),
    ("norm: the residual is not kept", "rows.cu",
     "            x4[i] = v;\n", "", ROWS),
    ("activation: an image's padding is not zero", "rows.cu",
     "image.data[(size_t)row * image.ld + i] = 0;", "(void)row;", MATMUL),
    ("best: the least of a warp is lost", "best.cu",
     "if (other < rank) rank = other;", "if (other > rank) rank = other;", BEST),
    ("best: an unusable logit may win", "best.cu",
     "n = *n_usable;", "n = max(ld, *n_usable);", BEST),
    ("product: the last part is left out", "matmul.cu",
     "for (int i = 1; i < WARPS; i++) v += part", "for (int i = 1; i < WARPS - 1; i++) v += part",
     MATMUL),
    ("product: of the columns only those that are loaded at once count", "matmul.cu",
     "k0 < end; k0 += AHEAD * GROUP", "k0 < min(end, begin + AHEAD * GROUP); k0 += AHEAD * GROUP",
     MATMUL),
    ("product of many rows: a stage is read before it has come", "matmul_many.cu",
     "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();", MATMUL),
    ("loading: a staging buffer is filled while it is still read", "load.c",
     "if (!cuda_ok(c, cudaEventSynchronize(c->staged[i]), \"waiting for weights\"))\n"
     "        return NULL;\n", "", MATMUL),
    ("loading: a step does not wait for the weights", "load.c",
     "cuda_ok(c, cudaStreamWaitEvent(c->compute, c->staged[last], 0), \"loading weights\");",
     "(void)last;", MATMUL),
    ("copies: a ticket is taken for landed when it is sent", "copyq.c",
     "if (e == cudaErrorNotReady || !ok(q, e)) return;", "(void)e;", COPYQ),
    ("copies: neighbours in one memory only become one copy", "copyq.c",
     "r->dst + r->bytes == dst && r->src + r->bytes == src &&", "r->dst + r->bytes == dst && src &&",
     COPYQ),
    ("copies: neighbours go one by one", "copyq.c",
     "    if (alike && follows(r, dst, src, bytes)) {", "    if (alike && follows(r, r, r, bytes)) {", COPYQ),
    ("copies: what overwrites a block does not wait for its copy", "copyq.c",
     "    wait_for_compute(q, l);\n", "    (void)wait_for_compute;\n", COPYQ),
    ("arrival: a layer begins before its slice is there", "copyq.c",
     "slice_of(a->waited, a->slices) <= layer", "slice_of(a->waited, a->slices) < layer", ARRIVAL),
    ("graphs: a recorded step is replayed though blocks arrive", "graph.c",
     "    if (c->arriving.from) return false;\n", "", ARRIVAL),
    ("graphs: a recording serves other operations than its own", "graph.c",
     "memcmp(g->ops, c->ops, c->n_ops * sizeof *g->ops) == 0", "true", STEPS),
    ("pinning: one call for all of it", "pinned.c",
     "bytes - done < PIN_BYTES ? bytes - done : PIN_BYTES", "bytes - done", COPYQ),
    ("pinning: what is left is left to nobody else", "pinned.c",
     "            (void)cudaHostUnregister(p + n);\n            return n;\n",
     "            return 2 * n;\n", COPYQ),
    ("a failed load: its block is never free again", "offload/kvstore_load.c",
     "    kv_transfer_give(kv, t);\n    give_up(kv, page);\n",
     "    kv_transfer_give(kv, t);\n    (void)page;\n", STORE),
    ("a failed store: its block can never go", "offload/kvstore_store.c",
     "    slots_unpin(kv->level[KV_DEVICE].slots, page);\n",
     "    if (t->io.res == 0) slots_unpin(kv->level[KV_DEVICE].slots, page);\n", STORE),
    ("a refused allocation: what was taken before it stays", "result.c",
     "    cuda_result_free(b, host);\n    return NULL;\n", "    return NULL;\n", FAILURES),
    ("a device that is too old is taken", "cuda.c",
     "#define LEAST_CAPABILITY 80", "#define LEAST_CAPABILITY 75", FAILURES),
    ("a step waits for the device twice", "step.c",
     "    cuda_results_send(c);\n}",
     "    cuda_results_send(c);\n    cuda_ok(c, cudaStreamSynchronize(c->compute), \"waiting\");\n}",
     STEPS),
    ("a step takes memory", "step.c",
     "    c->copying = false;\n",
     "    c->copying = false;\n    cuda_device_free(c, cuda_device_alloc(c, 4));\n", STEPS),
    ("a sleeper's copy is waited for", "copyq.c",
     "        cudaError_t e = cudaEventQuery(r->event);\n",
     "        cudaError_t e = cudaEventSynchronize(r->event);\n", SLEEP),
    ("a step does not wait for the device", "step.c",
     "cuda_ok(c, cudaStreamSynchronize(c->compute), \"computing a step\");", ";", STEPS),
)


def tests_of(chosen):
    return " ".join(sorted({fault[4] for fault in chosen}))


def unit(tests):
    """-> (did they pass, what they said)"""
    p = subprocess.run([*MAKE, "unit", "T=" + tests], cwd=COPY, capture_output=True, text=True,
                       errors="replace", env={**os.environ, "TEST_TIMEOUT": "120"})
    return p.returncode == 0, p.stdout + p.stderr


def after(word, said):
    """The ends of the lines in which it stands."""
    return [line.split(word, 1)[1] for line in said.splitlines() if word in line]


def seen(passed, said):
    """-> (was the bug seen?, by which test or sentence of the stand-in, or why not)"""
    if passed:
        return False, "they pass"
    if " passed, " not in said:
        return False, (after("error: ", said) or [said[-200:]])[0]
    ended = after("** ", said)  # programs that ended before their tests did
    if late := [line for line in ended if "status 124" in line]:
        return False, "a time-out: " + late[0]
    # cmocka makes a failed test of a signal, too.
    failures = [line for line in after("[  ERROR   ] --- ", said) if "exception: " not in line]
    sentences = (after("[  FAILED  ] ", said) if failures else []) + after("stand-in: ", said)
    crashes = after("with exception: ", said) + ended
    return bool(sentences), (sentences or ["a crash: " + c for c in crashes] or [said[-200:]])[0]


def place_of(tree, fault):
    """-> (path, what the file says, how often the fault's place is there)"""
    path = os.path.join(tree, fault[1] if "/" in fault[1] else "kernels/cuda/" + fault[1])
    with open(path, encoding="utf-8") as f:
        text = f.read()
    return path, text, text.count(fault[2])


def misplaced(tree):
    for fault in FAULTS:
        if (n := place_of(tree, fault)[2]) != 1:
            yield f"{fault[0]}: its place in {fault[1]} is there {n} times"


def planted(fault):
    """Was it caught?"""
    what, _, old, new, tests = fault
    path, text, n = place_of(COPY, fault)
    if n != 1:
        print(f"FAILED  {what}: its place is there {n} times", flush=True)
        return False
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(old, new))
    caught, why = seen(*unit(tests))
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    print(f"{'caught' if caught else 'FAILED'}  {what}: {tests}: {why}", flush=True)
    return caught


def copy_tree():
    """What git knows of, and nothing else: the Makefile compiles whatever lies there."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.split("\0")
    names = {name for name in names if name and os.path.exists(os.path.join(ROOT, name))}
    for folder, folders, files in os.walk(COPY):
        if folder == COPY and "build" in folders:
            folders.remove("build")
        for file in files:
            path = os.path.join(folder, file)
            if os.path.relpath(path, COPY) not in names:
                os.remove(path)
                # It may be in archives, which no rule would make anew for that.
                shutil.rmtree(os.path.join(COPY, "build"), ignore_errors=True)
    for name in names:
        source, to = os.path.join(ROOT, name), os.path.join(COPY, name)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        if not os.path.exists(to) or not filecmp.cmp(source, to, shallow=False):
            shutil.copy(source, to)


def main(words):
    if words == ["--places"]:
        print(*misplaced(ROOT), sep="\n", end="")
        return 0
    chosen = [f for f in FAULTS if not words or f[0].startswith(tuple(words))]
    if not chosen:
        sys.exit("faults.py: no fault begins so")
    os.makedirs(COPY, exist_ok=True)
    alone = os.open(COPY + ".lock", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(alone, fcntl.LOCK_EX)  # two at once would plant into one another's copy
    copy_tree()
    passed, said = unit(tests_of(chosen))
    if not passed:
        sys.exit(said + "faults.py: the tests fail without a fault")
    caught = sum(planted(f) for f in chosen)
    print(f"{caught} passed, {len(chosen) - caught} failed, 0 skipped")
    return caught < len(chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
