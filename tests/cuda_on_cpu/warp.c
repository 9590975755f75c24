/* Warp operations: all lanes of the mask meet, and the last to come computes what every
 * lane gets.  So shuffles, votes, ldmatrix and mma are one mechanism. */
#include <immintrin.h>
#include <string.h>

#include "tests/cuda_on_cpu/internal.h"

enum { LANES = 32, CELLS = 1 << 16 };
static const unsigned FULL = 0xffffffffu;

unsigned device_active_mask(void)
{
    return ~running->warp->exited & (FULL >> (LANES - running->n_mates));
}

/* ---- tensor cores: fragments as the PTX ISA lays them out ---- */

static float from_f16(uint16_t h)
{
    return _cvtsh_ss(h);
}

static float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The i-th of the 16-bit elements that a lane's registers hold, two to each. */
static float element(const uint32_t *registers, int i, bool bf16)
{
    uint16_t h = (uint16_t)(registers[i / 2] >> (16 * (i & 1)));
    return bf16 ? from_bf16(h) : from_f16(h);
}

/* mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32; in: a[4] b[2] c[4] */
static void compute_mma(const struct thread *w, bool bf16)
{
    float a[16][16], b[16][8], c[16][8];
    for (int l = 0; l < LANES; l++) {
        const uint32_t *in = w[l].call->in;
        int group = l / 4, column = l % 4 * 2;
        for (int i = 0; i < 8; i++)
            a[group + (i >> 1 & 1) * 8][column + (i & 1) + i / 4 * 8] =
                element(in, i, bf16);
        for (int i = 0; i < 4; i++)
            b[column + (i & 1) + i / 2 * 8][group] = element(in + 4, i, bf16);
        memcpy(&c[group][column], in + 6, 2 * sizeof(float));
        memcpy(&c[group + 8][column], in + 8, 2 * sizeof(float));
    }
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++) c[m][n] += a[m][k] * b[k][n];
    for (int l = 0; l < LANES; l++) {
        float *out = w[l].call->out;
        memcpy(out, &c[l / 4][l % 4 * 2], 2 * sizeof(float));
        memcpy(out + 2, &c[l / 4 + 8][l % 4 * 2], 2 * sizeof(float));
    }
}

/* ldmatrix .x1 .x2 .x4: lane 8 j + r brings the address of row r of matrix j. */
static void compute_ldmatrix(const struct thread *w, int matrices, bool trans)
{
    for (int j = 0; j < matrices; j++)
        for (int l = 0; l < LANES; l++) {
            const uint16_t *row[2];
            int pair = l % 4 * 2, line = l / 4, lane = j * 8 + (trans ? pair : line);
            memcpy(&row[0], w[lane].call->in, sizeof row[0]);
            memcpy(&row[1], w[lane + (trans ? 1 : 0)].call->in, sizeof row[1]);
            uint32_t low = row[0][trans ? line : pair],
                     high = row[1][trans ? line : pair + 1], v = low | high << 16;
            memcpy((uint32_t *)w[l].call->out + j, &v, sizeof v);
        }
}

/* ---- shuffles and votes ---- */

static int shuffle_source(const struct warp_call *c, int lane)
{
    int first = lane & ~(c->width - 1), end = first + c->width, from;
    switch (c->op) {
    case WARP_SHFL_IDX: return first + (c->arg & (c->width - 1));
    case WARP_SHFL_UP: return lane - c->arg < first ? lane : lane - c->arg;
    case WARP_SHFL_DOWN: from = lane + c->arg; break;
    default: from = lane ^ c->arg; break;
    }
    return from >= end ? lane : from;
}

/* What nearly every shuffle is: 4 bytes, the whole warp, by xor. */
static bool compute_butterfly(const struct thread *w, const struct warp_call *c)
{
    uint32_t in[LANES];
    if (c->op != WARP_SHFL_XOR || c->size != 4 || c->width != LANES) return false;
    for (int l = 0; l < LANES; l++) memcpy(&in[l], w[l].call->in, 4);
    for (int l = 0; l < LANES; l++) {
        unsigned from = (unsigned)(l ^ w[l].call->arg);
        memcpy(w[l].call->out, &in[from < LANES ? from : (unsigned)l], 4);
    }
    return true;
}

static void compute_shuffle(const struct thread *w, unsigned mask)
{
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        const struct warp_call *c = w[l].call;
        int from = shuffle_source(c, l);
        if (!(mask >> from & 1))
            device_report(
                "shuffle at %s:%d: lane %d reads lane %d, which is not in mask %08x",
                c->file, c->line, l, from, mask);
        const void *in = w[from].call->in;
        switch (c->size) {
        case 8: __builtin_memcpy(c->out, in, 8); break;
        case 4: __builtin_memcpy(c->out, in, 4); break;
        case 2: __builtin_memcpy(c->out, in, 2); break;
        default: *(char *)c->out = *(const char *)in; break;
        }
    }
}

static void compute_vote(const struct thread *w, unsigned mask, enum warp_op op)
{
    unsigned result = op == WARP_MIN ? FULL : 0;
    for (int l = 0; l < LANES; l++) {
        if (!(mask >> l & 1)) continue;
        unsigned v;
        memcpy(&v, w[l].call->in, sizeof v);
        switch (op) {
        case WARP_BALLOT: result |= (unsigned)(v != 0) << l; break;
        case WARP_ADD: result += v; break;
        case WARP_MAX: result = v > result ? v : result; break;
        default: result = v < result ? v : result; break;
        }
    }
    for (int l = 0; l < LANES; l++)
        if (mask >> l & 1) memcpy(w[l].call->out, &result, sizeof result);
}

static void compute(const struct thread *w, const struct warp_call *c, unsigned mask)
{
    switch (c->op) {
    case WARP_SYNC: break;
    case WARP_MMA_F16: compute_mma(w, false); break;
    case WARP_MMA_BF16: compute_mma(w, true); break;
    case WARP_LDMATRIX: compute_ldmatrix(w, c->arg, false); break;
    case WARP_LDMATRIX_TRANS: compute_ldmatrix(w, c->arg, true); break;
    case WARP_BALLOT:
    case WARP_ADD:
    case WARP_MAX:
    case WARP_MIN: compute_vote(w, mask, c->op); break;
    default:
        if (mask != FULL || !compute_butterfly(w, c)) compute_shuffle(w, mask);
        break;
    }
}

/* ---- the meeting ---- */

static void check_same(const struct thread *w, unsigned lane, const struct warp_call *c,
                       unsigned me)
{
    const struct warp_call *o = w[lane].call;
    if (o->mask != c->mask || o->op != c->op || o->line != c->line ||
        differ(o->file, c->file))
        device_report(
            "divergent warp operation: lane %u at %s:%d (mask %08x), lane %u at "
            "%s:%d (mask %08x)",
            me, c->file, c->line, c->mask, lane, o->file, o->line, o->mask);
}

static void check_mask(const struct thread *w, const struct warp_call *c, unsigned mask)
{
    const struct warp *state = running->warp;
    if (!(mask >> running->lane & 1))
        device_report("warp operation at %s:%d: lane %u is not in its own mask %08x",
                      c->file, c->line, running->lane, mask);
    if (c->op >= WARP_LDMATRIX && mask != FULL)
        device_report("%s:%d: ldmatrix and mma need a full warp", c->file, c->line);
    unsigned absent = mask & (state->exited | state->at_barrier);
    if (!absent) return;
    unsigned l = (unsigned)__builtin_ctz(absent);
    if (state->exited >> l & 1)
        device_report("warp operation at %s:%d names lane %u, which has exited",
                      c->file, c->line, l);
    device_report(
        "warp operation at %s:%d waits for lane %u, which waits in __syncthreads "
        "at %s:%d",
        c->file, c->line, l, w[l].file, w[l].line);
}

static void check_row(const struct warp_call *c)
{
    const void *row;
    memcpy(&row, c->in, sizeof row);
    if ((uintptr_t)row % 16)
        device_report("ldmatrix at %s:%d: row %p is misaligned", c->file, c->line, row);
    memory_touch(row, 16, false);
}

void device_warp(const struct warp_call *c)
{
    static char cells[CELLS][8];
    static unsigned phase;
    counts.warp_ops++;
    struct thread *t = running, *w = t->mates;
    struct warp *state = t->warp;
    unsigned me = t->lane;
    unsigned mask = c->mask & (FULL >> (LANES - t->n_mates));
    check_mask(w, c, mask);
    if ((c->op == WARP_LDMATRIX || c->op == WARP_LDMATRIX_TRANS) &&
        me < (unsigned)c->arg * 8)
        check_row(c);
    t->call = c;
    unsigned others = mask & state->waiting;
    if (others) check_same(w, (unsigned)__builtin_ctz(others), c, me);
    char *cell = t->sync =
        others ? w[__builtin_ctz(others)].sync : cells[phase++ % CELLS];
    bool orders = c->op == WARP_SYNC;  // a shuffle orders no memory, __syncwarp does
    if (orders) sync_release(cell);
    if ((others | 1u << me) == mask) {
        compute(w, c, mask);
        for (unsigned m = others; m; m &= m - 1)
            w[__builtin_ctz(m)].state = THREAD_READY;
        state->waiting &= ~others;
    } else {
        t->state = THREAD_IN_WARP_OP;
        state->waiting |= 1u << me;
        thread_yield();
    }
    if (orders) sync_acquire(cell);
}
