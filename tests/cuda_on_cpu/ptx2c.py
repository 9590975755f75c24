#!/usr/bin/env python3
"""ptx2c.py FILE.ptx - print the kernels of nvcc's PTX as C for the stand-in (ptx.h).

Every entry becomes a C function that runs one CUDA thread.  Barriers, shuffles, tensor-core
and asynchronous operations are calls of device.h; every access to global or shared memory
is checked.  `nvcc -lineinfo` gives the lines of the .cu files that reports name.
"""
import re
import sys

from ptx_ops import Translator, UINT, Untranslated, bits, c_name, split_operands

DECLARATION = r'(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?'
PARAMETER = (r'\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)\s+'
             r'(?:\.ptr\s+(?:\.(?:global|shared|const|local)\s+)?(?:\.align\s+\d+\s+)?)?'
             r'([\w$]+)(?:\[(\d+)\])?')


def bytes_of(type_name, count):
    return bits(type_name) // 8 * int(count or 1)


class Function(Translator):
    def __init__(self, name, module, parameters, result=None):
        self.symbol, self.module, self.result = name, module, result
        self.parameters = []  # (name, bytes)
        for text in split_operands(parameters):
            m = re.match(PARAMETER, text.strip())
            if not m:
                raise Untranslated('parameter ' + text)
            self.parameters.append((m.group(2), bytes_of(m.group(1), m.group(3))))
        self.registers, self.scopes = {}, [[]]
        self.shared, self.shared_bytes, self.local, self.param_variables = {}, 0, set(), set()
        self.out, self.file, self.line = [], 1, 0

    # ---- what Translator asks ----

    def name(self, o):
        if o in self.shared:
            return '%du' % self.shared[o]
        if o in self.module.dynamic_shared:
            return 'DYNAMIC'
        if o in self.local or o in self.module.variables:
            return '(uint64_t)(uintptr_t)%s' % c_name(o)
        if re.match(r'^[%$_A-Za-z][\w$.%]*$', o):
            return c_name(o)
        raise Untranslated('operand ' + o)

    def register(self, name):
        if name not in self.registers:
            raise Untranslated('register ' + name)
        return self.registers[name]

    def parameter(self, base, offset):
        for i, (name, _) in enumerate(self.parameters):
            if name == base:
                return '((char *)A[%d] + %d)' % (i, offset)
        if base in self.param_variables:
            return '((char *)%s + %d)' % (c_name(base), offset)
        if base == self.result:
            return '((char *)RESULT + %d)' % offset
        raise Untranslated('parameter ' + base)

    def function_name(self, name):
        if name not in self.module.functions:
            raise Untranslated('call of ' + name)
        return 'C_' + c_name(name)

    def where(self):
        return '"%s", %d' % (self.module.files.get(self.file, 'ptx'), self.line)

    # ---- the body ----

    def translate(self, text, at):
        """Statements from text[at], which follows the opening brace, to the closing one."""
        while True:
            at += len(re.match(r'\s*', text[at:at + 4096]).group(0))
            if text[at].isspace():
                continue
            if text[at] == '{':
                self.scopes.append([])
                self.out.append('{')
                at += 1
            elif text[at] == '}':
                if not self.close_scope():
                    return
                at += 1
            elif re.match(r'\.loc\s', text[at:at + 5]):
                end = text.index('\n', at)
                self.locate(text[at:end])
                at = end
            else:
                label = re.match(r'([$%\w]+)\s*:(?!:)', text[at:at + 400])
                end = at + label.end() if label else text.index(';', at) + 1
                if label:
                    self.out.append('%s: ;' % c_name(label.group(1)))
                else:
                    self.statement(' '.join(text[at:end - 1].split()))
                at = end

    def close_scope(self):
        for register, outer in reversed(self.scopes.pop()):
            self.registers[register] = outer
        if self.scopes:
            self.out.append('}')
        return bool(self.scopes)

    def locate(self, text):
        """The line in the kernel itself, where a function was inlined."""
        m = re.search(r'inlined_at\s+(\d+)\s+(\d+)', text) or re.match(r'\.loc\s+(\d+)\s+(\d+)', text)
        self.file, self.line = int(m.group(1)), int(m.group(2))

    def statement(self, text):
        directive = text.split(None, 1)[0] if text else '.pragma'
        if directive == '.reg':
            self.declare_registers(text)
        elif directive in ('.shared', '.local', '.param'):
            align, t, name, count = re.match(r'\.\w+\s+' + DECLARATION, text).groups()
            n = bytes_of(t, count)
            if directive == '.shared':
                align = int(align or 8)
                self.shared_bytes = (self.shared_bytes + align - 1) // align * align
                self.shared[name] = self.shared_bytes
                self.shared_bytes += n
            else:
                (self.local if directive == '.local' else self.param_variables).add(name)
                self.out.append('_Alignas(16) unsigned char %s[%d];' % (c_name(name), n))
        elif directive != '.pragma':
            self.out.append('  ' + self.instruction(text))

    def declare_registers(self, text):
        t, rest = re.match(r'\.reg\s*\.(\w+)\s+(.*)$', text).groups()
        names = []
        for n in split_operands(rest):
            m = re.match(r'(%?\w+)<(\d+)>', n)
            names += ['%s%d' % (m.group(1), i) for i in range(int(m.group(2)))] if m else [n]
        for n in names:
            self.scopes[-1].append((n, self.registers.get(n)))
            self.registers[n] = UINT[bits(t)]
        self.out.append('%s %s;' % (UINT[bits(t)], ', '.join(c_name(n) for n in names)))


class Module:
    def __init__(self, text):
        text = re.sub(r'//[^\n]*|/\*.*?\*/', '', text, flags=re.S)
        self.files = {int(m.group(1)): m.group(2).split('/')[-1]
                      for m in re.finditer(r'\.file\s+(\d+)\s+"([^"]*)"', text)}
        text = re.sub(r'\.file[^\n]*', '', text).split('.section')[0]
        self.dynamic_shared = set(re.findall(
            r'\.extern\s+\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)\[\]\s*;', text))
        self.variables, self.declarations = {}, []
        for m in re.finditer(r'^(?:\.(?:visible|weak)\s+)?\.(?:global|const)\s+' + DECLARATION +
                             r'(?:\s*=\s*(\{[^}]*\}|[^;]+))?\s*;', text, re.M):
            self.declare(*m.groups())
        self.functions, self.kernels = {}, []
        for m in re.finditer(
                r'\.func\s*(?:\(\s*\.param\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)(?:\[\d+\])?\s*\))?'
                r'\s*([\w$]+)\s*\(([^)]*)\)\s*(\.\w+\s*)*\{', text):
            f = Function(m.group(2), self, m.group(3), m.group(1))
            self.functions[f.symbol] = f
            f.translate(text, m.end())
        for m in re.finditer(r'\.entry\s+([\w$]+)\s*\((.*?)\)\s*((?:\.\w+[^{\n]*\n?)*)\{', text, re.S):
            k = Function(m.group(1), self, m.group(2))
            k.translate(text, m.end())
            self.kernels.append(k)

    def declare(self, align, t, name, count, value):
        self.variables[name] = bytes_of(t, count)
        if value and not value.startswith('{'):
            value = '{' + value + '}'
        self.declarations.append('static _Alignas(%s) %s %s[%s]%s;' % (
            align or 8, UINT[bits(t)], c_name(name), count or 1, ' = ' + value if value else ''))


def print_module(m):
    print('#include "tests/cuda_on_cpu/ptx.h"\n')
    print('\n'.join(m.declarations))
    for f in m.functions.values():
        print('static void C_%s(void **A, void *RESULT, unsigned char *const S)' % c_name(f.symbol))
        print('{ enum { DYNAMIC = 0 };\n%s\n}' % '\n'.join(f.out))
    for k in m.kernels:
        n, static = c_name(k.symbol), (k.shared_bytes + 127) // 128 * 128
        print('static void K_%s(void **A)\n{ unsigned char *const S = device_shared();' % n)
        print('enum { DYNAMIC = %d };\n%s\n}' % (static, '\n'.join(k.out)))
        print('static const size_t Z_%s[] = {%s0};' % (
            n, ''.join('%d, ' % size for _, size in k.parameters)))
        print('static struct kernel D_%s = {.name = "%s", .call = ptx_call, .fn = (const void *)K_%s,'
              ' .size = Z_%s, .n_params = %d, .static_shared = %d};' % (
                  n, k.symbol, n, n, len(k.parameters), static))
    print('__attribute__((constructor)) static void register_all(void)\n{')
    for name, size in m.variables.items():
        print('device_variable(%s, %d);' % (c_name(name), size))
    for k in m.kernels:
        print('device_register(&D_%s);' % c_name(k.symbol))
    print('}')


if __name__ == '__main__':
    try:
        with open(sys.argv[1], encoding='utf-8') as ptx:
            print_module(Module(ptx.read()))
    except Untranslated as refused:
        sys.exit('ptx2c.py: %s: not translated: %s' % (sys.argv[1], refused))
