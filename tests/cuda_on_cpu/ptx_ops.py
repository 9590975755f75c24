"""PTX instructions as C statements, one method an opcode.

A register becomes a C variable of the register's width, unsigned; a type suffix says how
its bits are read and written.  What is not known is refused: Untranslated.
"""
import re

UINT = {1: 'bool', 8: 'uint8_t', 16: 'uint16_t', 32: 'uint32_t', 64: 'uint64_t'}
SPECIAL = {'%%%s.%s' % (ptx, axis): '%s.%s' % (c, axis)
           for ptx, c in (('tid', 'device_thread'), ('ctaid', 'device_block'),
                          ('ntid', 'device_block_dim'), ('nctaid', 'device_grid_dim'))
           for axis in 'xyz'}
SPECIAL['%laneid'] = 'device_lane'
COMPARE = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>=',
           'lo': '<', 'ls': '<=', 'hi': '>', 'hs': '>='}
UNORDERED = ('equ', 'neu', 'ltu', 'leu', 'gtu', 'geu')
FLOATS = {'f32': ('F', 'FB'), 'f64': ('D', 'DB'), 'f16': ('H', 'HB'), 'bf16': ('BF', 'BB')}
PAIRS = {'f16x2': ('H', 'HB'), 'bf16x2': ('BF', 'BB')}
FULL = '0xffffffffu'


class Untranslated(Exception):
    pass


def bits(t):
    if t == 'pred':
        return 1
    if t in ('bf16', 'f16'):
        return 16
    return int(re.match(r'[busf](\d+)', t).group(1))


def ctype(t):
    return 'int%d_t' % bits(t) if t[0] == 's' else UINT[bits(t)]


def split_operands(s):
    out, depth, current = [], 0, ''
    for c in s:
        depth += (c in '{[(') - (c in '}])')
        if c == ',' and depth == 0:
            out.append(current.strip())
            current = ''
        else:
            current += c
    return out + [current.strip()] if current.strip() else out


def c_name(n):
    return n.replace('%', 'R_').replace('$', 'L_').replace('.', '_')


def space_of(parts):
    spaces = ('global', 'shared', 'local', 'param', 'const')
    return next((x for x in parts if x.split('::')[0] in spaces), 'generic').split('::')[0]


class Translator:
    """Translates the instructions of one function; subclasses know what a name is."""

    # ---- operands ----

    def raw(self, o, n=32):
        """The bits of an operand, as an unsigned expression."""
        o = o.strip()
        if o in SPECIAL:
            return SPECIAL[o]
        if re.match(r'^0[fF][0-9A-Fa-f]{8}$', o):
            return '0x%su' % o[2:]
        if re.match(r'^0[dD][0-9A-Fa-f]{16}$', o):
            return '0x%sull' % o[2:]
        if re.match(r'^-?(0[xX][0-9A-Fa-f]+|\d+)U?$', o):
            n = max(n, 8)
            return '(%s)%dull' % (UINT[n], int(o.rstrip('U'), 0) & ((1 << n) - 1))
        if o.startswith('!'):
            return '!' + self.raw(o[1:])
        return self.name(o)

    def read(self, o, t):
        r = self.raw(o, bits(t))
        if t in FLOATS:
            return '%s(%s)' % (FLOATS[t][0], r)
        return r if t == 'pred' else '(%s)(%s)' % (ctype(t), r)

    def write(self, d, value, t):
        d = d.strip()
        if d == '_':
            return '(void)(%s);' % value
        if t in FLOATS:
            value = '%s(%s)' % (FLOATS[t][1], value)
        elif t[0] == 's':
            value = '(int64_t)(int%d_t)(%s)' % (bits(t), value)
        elif t != 'pred':
            value = '(%s)(%s)' % (ctype(t), value)
        return '%s = (%s)(%s);' % (c_name(d), self.register(d), value)

    def address(self, a, space):
        m = re.match(r'^\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\d+))?\s*\]$', a)
        if not m:
            raise Untranslated('address ' + a)
        base, offset = m.group(1), int(m.group(2) or 0)
        if space == 'param':
            return self.parameter(base, offset)
        r = self.raw(base, 64)
        if space == 'shared':
            return '(uint32_t)(%s + %du)' % (r, offset & 0xffffffff)
        return '(uint64_t)(%s + (int64_t)%d)' % (r, offset)

    def checked(self, a, space, n, write):
        """Statements that check an access and leave its pointer in p_."""
        if space == 'shared':
            return 'uint32_t a_ = %s; CHECK_SHARED(a_, %d, %d, %s); void *p_ = S + a_;' % (
                self.address(a, space), n, write, self.where())
        if space == 'global':
            return ('uint64_t a_ = %s; CHECK_GLOBAL(a_, %d, %d, %s); void *p_ = (void *)a_;'
                    % (self.address(a, space), n, write, self.where()))
        if space == 'param':
            return 'void *p_ = %s;' % self.address(a, space)
        return 'void *p_ = (void *)%s;' % self.address(a, space)

    # ---- statements ----

    def instruction(self, text):
        m = re.match(r'^(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)$', text, re.S)
        if not m:
            raise Untranslated('statement ' + text)
        negated, predicate, opcode, rest = m.groups()
        parts = opcode.split('.')
        method = getattr(self, 'op_' + parts[0], None)
        if not method:
            raise Untranslated(opcode)
        try:
            code = method(parts, split_operands(rest), parts[-1])
        except (IndexError, KeyError, StopIteration, AttributeError) as e:
            raise Untranslated('%s (%r)' % (text, e)) from e
        if predicate:
            code = 'if (%s%s) { %s }' % (negated, c_name(predicate), code)
        return code

    # ---- moving ----

    def op_mov(self, p, o, t):
        if o[0].startswith('{'):
            parts = split_operands(o[0][1:-1])
            n = bits(t) // len(parts)
            return ' '.join(self.write(d, '(uint64_t)%s >> %d' % (self.raw(o[1], bits(t)), i * n),
                                       'b%d' % n) for i, d in enumerate(parts))
        if o[1].startswith('{'):
            parts = split_operands(o[1][1:-1])
            n = bits(t) // len(parts)
            v = ' | '.join('(uint64_t)(%s)%s << %d' % (UINT[n], self.raw(x, n), i * n)
                           for i, x in enumerate(parts))
            return self.write(o[0], v, 'b%d' % bits(t))
        return self.write(o[0], self.raw(o[1], bits(t)),
                          'pred' if t == 'pred' else 'b%d' % bits(t))

    def op_ld(self, p, o, t):
        count = 4 if 'v4' in p else 2 if 'v2' in p else 1
        pre = self.checked(o[1], space_of(p), bits(t) // 8 * count, 0)
        ct = ctype(t) if t[0] in 'us' else UINT[bits(t)]
        to = split_operands(o[0].strip('{}')) if count > 1 else [o[0]]
        body = (self.write(d, '((%s *)p_)[%d]' % (ct, i), t if t[0] in 'us' else 'b%d' % bits(t))
                for i, d in enumerate(to))
        return '{ %s %s }' % (pre, ' '.join(body))

    op_ldu = op_ld

    def op_st(self, p, o, t):
        count = 4 if 'v4' in p else 2 if 'v2' in p else 1
        pre = self.checked(o[0], space_of(p), bits(t) // 8 * count, 1)
        values = split_operands(o[1].strip('{}')) if count > 1 else [o[1]]
        ct = UINT[bits(t)]
        body = ('((%s *)p_)[%d] = (%s)(%s);' % (ct, i, ct, self.raw(v, bits(t)))
                for i, v in enumerate(values))
        return '{ %s %s }' % (pre, ' '.join(body))

    def op_cvta(self, p, o, t):
        a = self.raw(o[1], 64)
        if 'shared' in p:
            base = '(uint64_t)(uintptr_t)S'
            a = '%s - %s' % (a, base) if 'to' in p else '%s + %s' % (base, a)
        return self.write(o[0], a, 'b64')

    def op_cvt(self, p, o, t):
        for pair, (_, narrow) in PAIRS.items():
            if pair in p:
                return self.write(o[0], '(uint32_t)%s(%s) << 16 | %s(%s)' % (
                    narrow, self.read(o[1], 'f32'), narrow, self.read(o[2], 'f32')), 'b32')
        to, v = p[-2], self.read(o[1], t)
        for mode, f in (('rzi', 'trunc'), ('rni', 'rint'), ('rmi', 'floor'), ('rpi', 'ceil')):
            if mode in p:
                v = '%s(%s)' % (f, v)
        if to[0] in 'us' and t in FLOATS:
            v = 'sat_%s(%s)' % (to, v)
        if 'sat' in p and to == 'f32':
            v = 'fminf(fmaxf(%s, 0.f), 1.f)' % v
        return self.write(o[0], v, to)

    # ---- arithmetic ----

    PAIR_FORMS = {'add': '%s + %s', 'sub': '%s - %s', 'mul': '%s * %s',
                  'fma': 'fmaf(%s, %s, %s)', 'min': 'fminf(%s, %s)', 'max': 'fmaxf(%s, %s)',
                  'neg': '-%s', 'abs': 'fabsf(%s)'}

    def pair(self, p, o, t):
        """Two 16-bit numbers in one register."""
        if 'sat' in p or 'relu' in p:
            raise Untranslated('.'.join(p))
        widen, narrow = PAIRS[t]
        form = self.PAIR_FORMS[p[0]]
        low = form % tuple('%s(%s)' % (widen, self.raw(x)) for x in o[1:])
        high = form % tuple('%s(%s >> 16)' % (widen, self.raw(x)) for x in o[1:])
        return self.write(o[0], '%s(%s) | (uint32_t)%s(%s) << 16' % (narrow, low, narrow, high),
                          'b32')

    def sum(self, p, o, t, sign):
        if t in PAIRS:
            return self.pair(p, o, t)
        cast = '' if t in FLOATS else '(uint64_t)'
        return self.write(o[0], '%s%s %s %s%s' % (cast, self.read(o[1], t), sign, cast,
                                                  self.read(o[2], t)), t)

    def op_add(self, p, o, t):
        return self.sum(p, o, t, '+')

    def op_sub(self, p, o, t):
        return self.sum(p, o, t, '-')

    def product(self, p, o, t):
        n, signed = bits(t), t[0] == 's'
        if p[1] == 'lo':
            return '(%s)%s * (%s)%s' % (UINT[n], self.read(o[1], t), UINT[n], self.read(o[2], t))
        wide = '__int128' if n == 64 else 'int64_t'
        wide = wide if signed else 'unsigned __int128' if n == 64 else 'uint64_t'
        v = '(%s)%s * (%s)%s' % (wide, self.read(o[1], t), wide, self.read(o[2], t))
        return v if p[1] == 'wide' else '((%s) >> %d)' % (v, n)

    def op_mul(self, p, o, t):
        if t in PAIRS:
            return self.pair(p, o, t)
        if t in FLOATS:
            return self.write(o[0], '%s * %s' % (self.read(o[1], t), self.read(o[2], t)), t)
        if p[1] == 'wide':
            return self.write(o[0], self.product(p, o, t), t[0] + str(2 * bits(t)))
        return self.write(o[0], self.product(p, o, t), t)

    def op_mad(self, p, o, t):
        if t in FLOATS:
            return self.op_fma(p, o, t)
        if p[1] == 'wide':
            wide = t[0] + str(2 * bits(t))
            return self.write(o[0], '%s + %s' % (self.product(p, o, t), self.read(o[3], wide)),
                              wide)
        u = UINT[bits(t)]
        return self.write(o[0], '(%s)(%s) + (%s)%s' % (u, self.product(p, o, t), u,
                                                       self.read(o[3], t)), t)

    def op_fma(self, p, o, t):
        if t in PAIRS:
            return self.pair(p, o, t)
        return self.write(o[0], '%s(%s, %s, %s)' % (('fma' if t == 'f64' else 'fmaf',)
                                                    + tuple(self.read(x, t) for x in o[1:4])), t)

    def extreme(self, p, o, t, sign):
        if t in PAIRS:
            return self.pair(p, o, t)
        a, b = self.read(o[1], t), self.read(o[2], t)
        if t in FLOATS:
            if 'NaN' in p:
                raise Untranslated('.'.join(p))
            return self.write(o[0], 'f%sf(%s, %s)' % (p[0], a, b), t)
        return self.write(o[0], '%s %s %s ? %s : %s' % (a, sign, b, a, b), t)

    def op_min(self, p, o, t):
        return self.extreme(p, o, t, '<')

    def op_max(self, p, o, t):
        return self.extreme(p, o, t, '>')

    def op_div(self, p, o, t):
        return self.write(o[0], '%s / %s' % (self.read(o[1], t), self.read(o[2], t)), t)

    def op_rem(self, p, o, t):
        return self.write(o[0], '%s %% %s' % (self.read(o[1], t), self.read(o[2], t)), t)

    def op_neg(self, p, o, t):
        if t in PAIRS:
            return self.pair(p, o, t)
        return self.write(o[0], ('-%s' if t in FLOATS else '0 - (uint64_t)%s')
                          % self.read(o[1], t), t)

    def op_abs(self, p, o, t):
        if t in PAIRS:
            return self.pair(p, o, t)
        return self.write(o[0], ('fabsf(%s)' if t in FLOATS else 'llabs(%s)')
                          % self.read(o[1], t), t)

    FUNCTIONS = {'ex2': 'exp2f(%s)', 'lg2': 'log2f(%s)', 'rsqrt': '1.0f / sqrtf(%s)',
                 'rcp': '1.0f / %s', 'sqrt': 'sqrtf(%s)', 'sin': 'sinf(%s)', 'cos': 'cosf(%s)',
                 'tanh': 'tanhf(%s)'}

    def function(self, p, o, t):
        if t != 'f32':
            raise Untranslated('.'.join(p))
        return self.write(o[0], self.FUNCTIONS[p[0]] % self.read(o[1], t), t)

    op_ex2 = op_lg2 = op_rsqrt = op_rcp = op_sqrt = op_sin = op_cos = op_tanh = function

    # ---- bits ----

    def logic(self, p, o, t):
        sign = {'and': '&', 'or': '|', 'xor': '^'}[p[0]]
        return self.write(o[0], '%s %s %s' % (self.read(o[1], t), sign, self.read(o[2], t)), t)

    op_and = op_or = op_xor = logic

    def op_not(self, p, o, t):
        return self.write(o[0], ('!%s' if t == 'pred' else '~%s') % self.read(o[1], t), t)

    def op_shl(self, p, o, t):
        n, by = bits(t), self.read(o[2], 'u32')
        return self.write(o[0], '%s > %d ? 0 : (uint64_t)%s << (%s & %d)' % (
            by, n - 1, self.read(o[1], t), by, n - 1), t)

    def op_shr(self, p, o, t):
        n, by, v = bits(t), self.read(o[2], 'u32'), self.read(o[1], t)
        rest = '%s >> %d' % (v, n - 1) if t[0] == 's' else '0'
        return self.write(o[0], '%s > %d ? %s : %s >> (%s & %d)' % (by, n - 1, rest, v, by, n - 1),
                          t)

    def op_shf(self, p, o, t):
        by = self.read(o[3], 'u32')
        by = '%s & 31' % by if 'wrap' in p else '(%s > 32 ? 32 : %s)' % (by, by)
        both = '((uint64_t)%s << 32 | %s)' % (self.read(o[2], 'b32'), self.read(o[1], 'b32'))
        return self.write(o[0], ('%s << (%s) >> 32' if p[1] == 'l' else '%s >> (%s)')
                          % (both, by), 'b32')

    def op_bfi(self, p, o, t):
        return self.write(o[0], 'bfi%d(%s, %s, %s, %s)' % (
            bits(t), self.read(o[1], t), self.read(o[2], t), self.read(o[3], 'u32'),
            self.read(o[4], 'u32')), t)

    def op_bfe(self, p, o, t):
        if bits(t) != 32:
            raise Untranslated('.'.join(p))
        return self.write(o[0], 'bfe_%s(%s, %s & 255, %s & 255)' % (
            t, self.read(o[1], t), self.read(o[2], 'u32'), self.read(o[3], 'u32')), t)

    def op_prmt(self, p, o, t):
        if p[1:] != ['b32']:
            raise Untranslated('.'.join(p))
        return self.write(o[0], 'prmt(%s, %s, %s)' % tuple(self.read(x, 'b32') for x in o[1:4]),
                          'b32')

    def op_popc(self, p, o, t):
        return self.write(o[0], '__builtin_popcountll(%s)' % self.read(o[1], t), 'u32')

    def op_clz(self, p, o, t):
        v = self.read(o[1], t)
        return self.write(o[0], '%s ? __builtin_clzll(%s) - %d : %d' % (v, v, 64 - bits(t), bits(t)),
                          'u32')

    def op_brev(self, p, o, t):
        return self.write(o[0], 'brev64(%s) >> %d' % (self.read(o[1], t), 64 - bits(t)), t)

    def op_bfind(self, p, o, t):
        if t[0] != 'u':
            raise Untranslated('.'.join(p))
        v, top = self.read(o[1], t), '63 - __builtin_clzll(%s)' % self.read(o[1], t)
        if 'shiftamt' in p:
            top = '%d - (%s)' % (bits(t) - 1, top)
        return self.write(o[0], '%s ? %s : %s' % (v, top, FULL), 'u32')

    # ---- comparing and going elsewhere ----

    def comparison(self, c, a, b, is_float):
        if c in ('num', 'nan'):
            return '%s(isnan(%s) || isnan(%s))' % ('!' if c == 'num' else '', a, b)
        if is_float and c in UNORDERED:
            return '(isnan(%s) || isnan(%s) || %s %s %s)' % (a, b, a, COMPARE[c[:2]], b)
        if is_float and c == 'ne':
            return '(!isnan(%s) && !isnan(%s) && %s != %s)' % (a, b, a, b)
        return '(%s %s %s)' % (a, COMPARE[c], b)

    def op_setp(self, p, o, t):
        to = o[0].split('|')
        v = self.comparison(p[1], self.read(o[1], t), self.read(o[2], t), t in FLOATS)
        if p[2] in ('and', 'or', 'xor'):
            sign = {'and': '&&', 'or': '||', 'xor': '!='}[p[2]]
            results = ['v_ %s q_' % sign, '!v_ %s q_' % sign]
            q = self.raw(o[3])
        else:
            results, q = ['v_', '!v_'], '0'
        return '{ bool v_ = %s, q_ = %s; %s }' % (
            v, q, ' '.join(self.write(d, r, 'pred') for d, r in zip(to, results)))

    def op_selp(self, p, o, t):
        n = bits(t)
        return self.write(o[0], '%s ? %s : %s' % (self.raw(o[3]), self.raw(o[1], n),
                                                  self.raw(o[2], n)), 'b%d' % n)

    def op_bra(self, p, o, t):
        return 'goto %s;' % c_name(o[0])

    def op_ret(self, p, o, t):
        return 'return;'

    op_exit = op_ret

    def op_trap(self, p, o, t):
        return 'device_report("trap at %%s:%%d", %s);' % self.where()

    def op_call(self, p, o, t):
        result = split_operands(o[0].strip('()')) if o[0].startswith('(') else []
        o = o[1:] if result else o
        args = split_operands(o[1].strip('()')) if len(o) > 1 else []
        return '{ void *a_[] = {%s0}; %s(a_, %s, S); }' % (
            ''.join('%s, ' % c_name(x) for x in args), self.function_name(o[0]),
            c_name(result[0]) if result else '0')

    # ---- blocks and warps ----

    def op_bar(self, p, o, t):
        if p[1] == 'warp':
            return 'WARP(WARP_SYNC, %s, 0, 32, 0, 0, 0, %s);' % (self.read(o[0], 'b32'),
                                                                 self.where())
        if 'red' in p:
            op = {'popc': 'COUNT', 'and': 'AND', 'or': 'OR'}[p[p.index('red') + 1]]
            return self.write(o[0], 'device_barrier(%s, BARRIER_%s, %s)' % (
                self.raw(o[-1]), op, self.where()), 'u32' if op == 'COUNT' else 'pred')
        if o and o[0] != '0' or len(o) > 1:
            raise Untranslated('a named barrier')
        return 'device_barrier(0, BARRIER_COUNT, %s);' % self.where()

    op_barrier = op_bar

    def op_membar(self, p, o, t):
        return '__atomic_thread_fence(__ATOMIC_SEQ_CST);'

    op_fence = op_membar

    def op_shfl(self, p, o, t):
        op = 'WARP_SHFL_' + {'idx': 'IDX', 'up': 'UP', 'down': 'DOWN', 'bfly': 'XOR'}[p[2]]
        to = o[0].split('|')
        by, width = '(int)%s' % self.read(o[2], 'b32'), '32 - (int)(%s >> 8 & 31)' % self.read(o[3], 'b32')
        code = 'uint32_t i_ = %s, r_; WARP(%s, %s, %s, %s, &i_, &r_, 4, %s); %s' % (
            self.read(o[1], 'b32'), op, self.read(o[4], 'b32'), by, width, self.where(),
            self.write(to[0], 'r_', 'b32'))
        if len(to) > 1:
            code += self.write(to[1], 'shuffle_inside(%s, %s, %s)' % (op, by, width), 'pred')
        return '{ %s }' % code

    def vote(self, op, mask, value, result):
        return '{ uint32_t i_ = %s, r_; WARP(%s, %s, 0, 32, &i_, &r_, 4, %s); %s }' % (
            value, op, mask, self.where(), result)

    def op_vote(self, p, o, t):
        q, how = self.raw(o[1]), p[2]
        result = {'ballot': ('r_', 'b32'), 'any': ('r_ != 0', 'pred'), 'all': ('r_ == 0', 'pred')}
        return self.vote('WARP_BALLOT', self.read(o[2], 'b32'),
                         '!(%s)' % q if how == 'all' else q, self.write(o[0], *result[how]))

    def op_redux(self, p, o, t):
        if t[0] == 's' and p[2] != 'add':
            raise Untranslated('.'.join(p))
        return self.vote('WARP_' + p[2].upper(), self.read(o[2], 'b32'), self.read(o[1], 'b32'),
                         self.write(o[0], 'r_', 'b32'))

    def op_activemask(self, p, o, t):
        return self.write(o[0], 'device_active_mask()', 'b32')

    def op_mma(self, p, o, t):
        kind = p[-3]
        if p[1:6] != ['sync', 'aligned', 'm16n8k16', 'row', 'col'] or \
                p[6:] not in (['f32', 'f16', 'f16', 'f32'], ['f32', 'bf16', 'bf16', 'f32']):
            raise Untranslated('.'.join(p))
        d, a, b, c = [split_operands(x[1:-1]) for x in o]
        return '{ uint32_t i_[10] = {%s}, r_[4]; WARP(WARP_MMA_%s, %s, 0, 32, i_, r_, 40, %s); %s }' % (
            ', '.join(self.raw(x) for x in a + b + c), kind.upper(), FULL, self.where(),
            ' '.join(self.write(x, 'r_[%d]' % i, 'b32') for i, x in enumerate(d)))

    def op_ldmatrix(self, p, o, t):
        if p[1:4] != ['sync', 'aligned', 'm8n8'] or t != 'b16':
            raise Untranslated('.'.join(p))
        n, to = int(p[4][1:]), split_operands(o[0].strip('{}'))
        return '{ %s uint32_t r_[4]; WARP(WARP_LDMATRIX%s, %s, %d, 32, &p_, r_, 8, %s); %s }' % (
            self.checked(o[1], 'shared', 16, 0), '_TRANS' if 'trans' in p else '', FULL, n,
            self.where(), ' '.join(self.write(x, 'r_[%d]' % i, 'b32') for i, x in enumerate(to)))

    def op_cp(self, p, o, t):
        if p[1] != 'async':
            raise Untranslated('.'.join(p))
        if p[2] in ('ca', 'cg'):
            n = int(o[2])
            return '{ %s device_cp_async(p_, (const void *)(uintptr_t)%s, %d, %s); }' % (
                self.checked(o[0], 'shared', n, 1), self.address(o[1], 'global'), n,
                self.read(o[3], 'u32') if len(o) > 3 else n)
        return {'commit_group': 'device_cp_async_commit();',
                'wait_group': 'device_cp_async_wait(%s);' % ''.join(o[:1]),
                'wait_all': 'device_cp_async_commit(); device_cp_async_wait(0);'}[p[2]]

    # ---- atomics ----

    def op_atom(self, p, o, t, to=None):
        if to is None:
            to, o = o[0], o[1:]
        kind = next(x for x in p if x in ('add', 'max', 'min', 'exch', 'cas', 'or', 'and', 'xor'))
        u = UINT[bits(t)]
        v = '(%s)%s' % (u, self.raw(o[1], bits(t)))
        if kind == 'cas':
            new = 'o_ == %s ? (%s)%s : o_' % (v, u, self.raw(o[2], bits(t)))
        elif kind == 'exch':
            new = v
        elif kind == 'add':
            new = 'FB(F(o_) + %s)' % self.read(o[1], t) if t == 'f32' else 'o_ + %s' % v
        elif kind in ('min', 'max'):
            new = '(%s)o_ %s %s ? o_ : %s' % (ctype(t), '<' if kind == 'min' else '>',
                                              self.read(o[1], t), v)
        else:
            new = 'o_ %s %s' % ({'or': '|', 'and': '&', 'xor': '^'}[kind], v)
        if t in FLOATS and (t != 'f32' or kind != 'add'):
            raise Untranslated('.'.join(p))
        space = 'shared' if space_of(p) == 'shared' else 'global'
        return ('{ %s %s o_ = __atomic_load_n((%s *)p_, __ATOMIC_RELAXED), n_; do n_ = %s; while '
                '(!__atomic_compare_exchange_n((%s *)p_, &o_, n_, 0, __ATOMIC_RELAXED, '
                '__ATOMIC_RELAXED)); %s }' % (
                    self.checked(o[0], space, bits(t) // 8, 1), u, u, new, u,
                    '' if to == '_' else self.write(to, 'o_', 'b%d' % bits(t))))

    def op_red(self, p, o, t):
        return self.op_atom(p, o, t, '_')
