#!/usr/bin/env python3
"""report.py NVCC CUOBJDUMP OUT ARCH... -- NVCC_FLAGS... - what the CUDA kernels cost, by the
static word of ptxas and of the machine code.  Prints a table for each architecture, then the
bytes that a decoded token moves against the roofline, and fails (status 1) on a spill, on more
shared memory than a launch may have without asking, and on a hot kernel without 128-bit loads
or without tensor-core instructions.  The object files and listings stay in the folder OUT.

shared is static, launch what the launch adds (the kernels say so by GPU_DYN_SHARED of gpu.h).

Nothing here is measured: occupancy is what registers and shared memory allow, times are what
bandwidth and peak allow.
"""
import glob
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

# A multiprocessor's shared memory in KiB, threads and blocks (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability").
LIMITS = {'80': (164, 2048, 32), '86': (100, 1536, 16), '90': (228, 2048, 32),
          '100': (228, 2048, 32)}
REGISTERS = 65536
BLOCK_SHARED = 48 << 10  # for more a launch has to ask, and none does
RESERVED = 1024  # of shared memory by the system, for each block

# Kernels whose inner loops are where the time goes, and what their code must have.
HOT = {'attention_mma<': ('LDG128', 'HMMA'), 'matmul_few<': ('LDG128', 'HMMA'),
       'matmul_many<': ('LDG128', 'HMMA')}

# Launched with so few threads, too: decode.
NARROW = {'attention_mma<': 32}

INSTRUCTIONS = (('LDG128', r'(LDG|LDGSTS)\..*\b128\b'), ('LDG', r'LDG'), ('LDGSTS', r'LDGSTS'),
                ('STG', r'STG'), ('LDS', r'LDS'), ('HMMA', r'HMMA|[HQ]GMMA|UTCHMMA'),
                ('FFMA', r'FFMA'), ('MUFU', r'MUFU'), ('SHFL', r'SHFL'), ('BAR', r'BAR'),
                ('LOCAL', r'LDL|STL'))

# Devices for the roofline: memory GB/s and dense bf16 TFLOP/s by their data sheets.
DEVICES = (('A100 80GB', 2039, 312), ('L4', 300, 121), ('H100 SXM', 3350, 989),
           ('H200', 4800, 989))


def run(*command):
    p = subprocess.run(command, capture_output=True, text=True)
    if p.returncode:
        sys.exit('report.py: %s\n%s%s' % (' '.join(command), p.stdout, p.stderr))
    return p.stdout + p.stderr


def demangle(names):
    plain = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True,
                           text=True).stdout.split('\n')
    short = (re.sub(r'\(.*', '', n.replace('void ', '').replace('__nv_bfloat16', 'bf16')
                    .replace('__half', 'f16')) for n in plain)
    return dict(zip(names, short))


def resources(log):
    """What `ptxas -v` says of each kernel."""
    found, k = {}, None
    for line in log.split('\n'):
        m = re.search(r"Compiling entry function '(\w+)'", line)
        if m:
            k = found[m.group(1)] = dict(registers=0, shared=0, spill=0, stack=0)
        m = re.search(r'(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads', line)
        if m and k is not None:
            k['stack'], k['spill'] = int(m[1]), int(m[2]) + int(m[3])
        for field, pattern in (('registers', r'Used (\d+) registers'), ('shared', r'(\d+) bytes smem')):
            m = re.search(pattern, line)
            if m and k is not None:
                k[field] = int(m[1])
    return found


def instructions(listing):
    """How often each kernel has an instruction of each kind."""
    found, counts = {}, None
    for line in listing.split('\n'):
        m = re.search(r'Function : (\w+)', line)
        if m:
            counts = found[m.group(1)] = dict.fromkeys((n for n, _ in INSTRUCTIONS), 0)
        m = re.match(r'\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]+)', line)
        for name, pattern in INSTRUCTIONS if m and counts is not None else ():
            counts[name] += bool(re.match(pattern, m.group(1)))
    return found


def launches(ptx):
    """What the PTX says of each kernel's launch: threads of a block at most (.maxntid), and
    bytes of shared memory; None where the kernel has some without saying how much."""
    found = {}
    given = re.findall(r'\.extern \.shared [^;]*?(\w+)\[\];', ptx)
    for entry in ptx.split('.entry ')[1:]:
        head, body = entry.split('{', 1)
        n = re.search(r'\.maxntid\s+(\d+)', head)
        says = re.search(r'// (\d+) bytes of shared memory by the launch', body)
        takes = any(re.search(r'\b%s\b' % name, body) for name in given)
        found[re.match(r'\w+', head)[0]] = dict(
            threads=int(n[1]) if n else 1024, launch=int(says[1]) if says else None if takes else 0)
    return found


def occupancy(k, threads, arch):
    """Warps at work on a multiprocessor, by what blocks of so many threads leave each other."""
    shared, most, blocks = LIMITS[arch]
    warps = (threads + 31) // 32
    registers = (max(k['registers'], 1) * 32 + 255) // 256 * 256 * warps
    each = (k['shared'] + (k['launch'] or 0) + RESERVED + 127) // 128 * 128
    return min(REGISTERS // registers, (shared << 10) // each, most // threads,
               blocks) * warps, most // 32


def faults_of(name, k, counts):
    if k['spill']:
        yield 'spills %d bytes' % k['spill']
    if k['launch'] is None:
        yield 'has shared memory by the launch and does not say how much'
    elif k['shared'] + k['launch'] > BLOCK_SHARED:
        yield ('has %d bytes of shared memory; without asking a launch may have %d'
               % (k['shared'] + k['launch'], BLOCK_SHARED))
    for prefix, needs in HOT.items():
        for n in needs if name.startswith(prefix) else ():
            if not counts[n]:
                yield 'has no %s' % n


def measure(nvcc, cuobjdump, out, flags, arch, source):
    """-> what ptxas, the machine code and the PTX say of each kernel of a source."""
    base = os.path.join(out, 'sm_%s-%s' % (arch, os.path.basename(source)[:-3]))
    run(nvcc, *flags, '-arch=compute_' + arch, '-ptx', source, '-o', base + '.ptx')
    found = resources(run(nvcc, *flags, '-arch=sm_' + arch, '-cubin', '-Xptxas', '-v',
                          base + '.ptx', '-o', base + '.cubin'))
    mix = instructions(run(cuobjdump, '-sass', base + '.cubin'))
    with open(base + '.ptx', encoding='utf-8') as f:
        return found, mix, launches(f.read())


def report(arch, measured):
    faults = []
    hot = dict.fromkeys(HOT, 0)
    print('\nsm_%-37s regs  shared  launch spill stack  warps' % arch, end='')
    print(''.join('%7s' % n for n, _ in INSTRUCTIONS))
    for found, mix, launch in measured:
        names = demangle(list(found))
        for symbol, k in sorted(found.items(), key=lambda item: names[item[0]]):
            name, counts = names[symbol], mix[symbol]
            k.update(launch[symbol])
            print('%-40s %4d %7d %7d %5d %5d %3d/%d' % (
                name[:40], k['registers'], k['shared'], k['launch'] or 0, k['spill'],
                k['stack'], *occupancy(k, k['threads'], arch)), end='')
            print(''.join('%7d' % counts[n] for n, _ in INSTRUCTIONS))
            for prefix, threads in NARROW.items():
                if name.startswith(prefix):
                    print('%-68s %3d/%d' % ('    in blocks of %d threads' % threads,
                                            *occupancy(k, threads, arch)))
            faults += ['%s on sm_%s %s' % (name, arch, f) for f in faults_of(name, k, counts)]
            for prefix in HOT:
                hot[prefix] += name.startswith(prefix)
    faults += ['no kernel on sm_%s is named %s' % (arch, p) for p, n in hot.items() if not n]
    return faults


def roofline():
    """A decoded token of an 8B Llama reads every weight, once for the whole batch, and every K
    and V of its own context; each weight and each K and V is a multiplication and an addition
    for every query that meets it."""
    layers, q_heads, kv_heads, head_dim, parameters, context = 32, 32, 8, 128, 8.03e9, 8192
    kv = 2 * layers * kv_heads * head_dim * 2
    print('\nexpected by roofline, not measured: 8B Llama in bf16, context %d, %d KiB of KV a token'
          % (context, kv >> 10))
    print('%-12s %5s %13s %11s %10s %10s  %s' % ('device', 'batch', 'GB a token', 'GFLOP',
                                                 'ms a step', 'tokens/s', 'bound by'))
    for device, gbps, tflops in DEVICES:
        for batch in (1, 8, 32):
            moved = 2 * parameters / batch + context * kv
            flop = 2 * parameters + 4 * layers * q_heads * head_dim * context
            memory, compute = batch * moved / gbps / 1e9, batch * flop / tflops / 1e12
            seconds = max(memory, compute)
            print('%-12s %5d %13.2f %11.1f %10.2f %10.0f  %s' % (
                device, batch, moved / 1e9, flop / 1e9, seconds * 1e3, batch / seconds,
                'memory' if memory > compute else 'compute'))


def main(arguments):
    split = arguments.index('--')
    nvcc, cuobjdump, out, *archs = arguments[:split]
    os.makedirs(out, exist_ok=True)
    beside = os.path.dirname(os.path.realpath(cuobjdump))  # cuobjdump calls nvdisasm
    os.environ['PATH'] = beside + os.pathsep + os.environ['PATH']
    flags, sources = arguments[split + 1:], sorted(glob.glob('kernels/cuda/*.cu'))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        measured = {a: [pool.submit(measure, nvcc, cuobjdump, out, flags, a, s) for s in sources]
                    for a in archs}
        faults = [f for a in archs for f in report(a, (m.result() for m in measured[a]))]
    roofline()
    print()
    for f in faults:
        print('report.py: ' + f)
    print('%d passed, %d failed, 0 skipped' % (not faults, bool(faults)))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
