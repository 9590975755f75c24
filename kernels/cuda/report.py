#!/usr/bin/env python3
"""report.py NVCC CUOBJDUMP OUT ARCH... -- NVCC_FLAGS... - what the CUDA kernels cost, by the
static word of ptxas and of the machine code.  Prints a table for each architecture, then the
bytes that a decoded token moves against the roofline, and fails (status 1) on a spill, on more
shared memory than a block may have, and on a hot kernel without 128-bit loads or without
tensor-core instructions.  The object files and listings stay in the folder OUT.

Nothing here is measured: occupancy is what registers and shared memory allow, times are what
bandwidth and peak allow.
"""
import glob
import os
import re
import subprocess
import sys

# A multiprocessor's shared memory, what one block may have, and threads (CUDA C++
# Programming Guide, "Technical Specifications per Compute Capability").
LIMITS = {'80': (164, 163, 2048), '86': (100, 99, 1536), '90': (228, 227, 2048),
          '100': (228, 227, 2048)}
REGISTERS, BLOCKS = 65536, 32

# Kernels whose inner loops are where the time goes, and what their code must have.
HOT = {r'attention_mma<': ('LDG128', 'HMMA'), r'matmul_few<': ('LDG128', 'HMMA')}

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


def launch_bounds(ptx):
    """Threads of a block, from .maxntid."""
    found = {}
    for m in re.finditer(r'\.entry\s+(\w+)\s*\(.*?\)(.*?)\{', ptx, re.S):
        n = re.search(r'\.maxntid\s+(\d+)', m.group(2))
        found[m.group(1)] = int(n.group(1)) if n else 1024
    return found


def occupancy(k, threads, arch):
    shared, _, most = LIMITS[arch]
    warps = (threads + 31) // 32
    registers = (max(k['registers'], 1) * 32 + 255) // 256 * 256 * warps
    blocks = min(REGISTERS // registers, (shared << 10) // (k['shared'] + 1024), most // threads,
                 BLOCKS)
    return blocks * warps, most // 32


def report(nvcc, cuobjdump, out, arch, flags):
    faults = []
    print('\nsm_%s%36s regs  shared spill stack  warps' % (arch, ''), end='')
    print(''.join('%7s' % n for n, _ in INSTRUCTIONS))
    for source in sorted(glob.glob('kernels/cuda/*.cu')):
        base = os.path.join(out, 'sm_%s-%s' % (arch, os.path.basename(source)[:-3]))
        found = resources(run(nvcc, *flags, '-arch=sm_' + arch, '-cubin', '-Xptxas', '-v',
                              source, '-o', base + '.cubin'))
        mix = instructions(run(cuobjdump, '-sass', base + '.cubin'))
        run(nvcc, *flags, '-arch=compute_' + arch, '-ptx', source, '-o', base + '.ptx')
        with open(base + '.ptx', encoding='utf-8') as f:
            threads = launch_bounds(f.read())
        names = demangle(list(found))
        for symbol, k in sorted(found.items(), key=lambda item: names[item[0]]):
            name, counts = names[symbol], mix[symbol]
            print('%-40s %4d %7d %5d %5d %3d/%d' % (
                name[:40], k['registers'], k['shared'], k['spill'], k['stack'],
                *occupancy(k, threads[symbol], arch)), end='')
            print(''.join('%7d' % counts[n] for n, _ in INSTRUCTIONS))
            if k['spill']:
                faults.append('%s on sm_%s spills %d bytes' % (name, arch, k['spill']))
            if k['shared'] > LIMITS[arch][1] << 10:
                faults.append('%s on sm_%s has %d bytes of shared memory, at most %d KiB are right'
                              % (name, arch, k['shared'], LIMITS[arch][1]))
            for pattern, needs in HOT.items():
                for n in needs if re.match(pattern, name) else ():
                    if not counts[n]:
                        faults.append('%s on sm_%s has no %s' % (name, arch, n))
    return faults


def roofline():
    """A decoded token of an 8B Llama reads every weight once for the whole batch, and every K
    and V of its own context."""
    layers, kv_heads, head_dim, parameters, context = 32, 8, 128, 8.03e9, 8192
    kv = 2 * layers * kv_heads * head_dim * 2
    print('\nexpected by roofline, not measured: 8B Llama in bf16, context %d, %d KiB of KV a token'
          % (context, kv >> 10))
    print('%-12s %5s %14s %12s %12s' % ('device', 'batch', 'GB for a step', 'ms a step',
                                        'tokens/s'))
    for device, gbps, tflops in DEVICES:
        for batch in (1, 8, 32):
            moved = 2 * parameters + batch * context * kv
            seconds = max(moved / gbps / 1e9, 2 * parameters * batch / tflops / 1e12)
            print('%-12s %5d %14.1f %12.2f %12.0f' % (device, batch, moved / 1e9, seconds * 1e3,
                                                      batch / seconds))


def main(arguments):
    split = arguments.index('--')
    nvcc, cuobjdump, out, *archs = arguments[:split]
    os.makedirs(out, exist_ok=True)
    beside = os.path.dirname(os.path.realpath(cuobjdump))  # cuobjdump calls nvdisasm
    os.environ['PATH'] = beside + os.pathsep + os.environ['PATH']
    faults = [f for a in archs for f in report(nvcc, cuobjdump, out, a, arguments[split + 1:])]
    roofline()
    print()
    for f in faults:
        print('report.py: ' + f)
    print('%d passed, %d failed, 0 skipped' % (not faults, bool(faults)))
    return bool(faults)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
