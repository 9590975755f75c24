/* graph.c - steps of decode as CUDA graphs: one launch instead of some hundreds.
 *
 * A step in which every sequence computes one row is padded to one of a few numbers of rows.
 * The first one of a size is run as it is, so that all its kernels are loaded, and recorded;
 * after that it is replayed as long as the same operations are listed.  All that differs
 * between two such steps lies in the input's arrays.  Any other step, one with more rows
 * than there are graphs for and one that copies a block are launched kernel by kernel.
 *
 * Recording allocates; who minds runs a step of each size before it matters.  What a graph takes
 * of the device's memory is seen by what is free before and after, which others may change, too:
 * so it decides nothing but whether more are recorded.
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

/* A graph takes about 10 KB of device memory a node in CUDA 12.8, as NVIDIA's own library counts
 * it (github.com/NVIDIA/cccl, pull request 3768).  This much for each is set aside; the nodes
 * are more than a step has, cuBLAS's included; and the driver takes memory in such pieces. */
#define NODE_BYTES  ((size_t)16 << 10)
#define LAYER_NODES 16  // of each layer
#define STEP_NODES  16  // beside them
#define PIECE_BYTES ((size_t)2 << 20)

/* 1, 2, 4, 8, then in eights up to 32, then in thirty-twos: padding costs little, and the
 * CUDA_GRAPHS sizes that are kept reach 320 rows. */
static uint32_t padded_rows(uint32_t rows, uint32_t most)
{
    uint32_t n = 1;
    while (n < rows && n < 8) n *= 2;
    if (rows > 8) n = (uint32_t)ALIGN_UP(rows, rows > 32 ? 32u : 8u);
    return n < most ? n : most;
}

/* Decode only; and where it copies a block, the block is another one each time.  One that
 * waits for what arrives is run as it is. */
static bool repeats(const struct cuda *c)
{
    const struct batch *t = c->base.batch;
    if (c->arriving.from) return false;
    if (t->n_rows != t->n_seqs || t->n_logits != t->n_rows) return false;
    for (uint32_t i = 0; i < c->n_ops; i++)
        if (c->ops[i].kind == OP_COPY_BLOCK) return false;
    return true;
}

static struct cuda_graph *graph_of(struct cuda *c, uint32_t rows)
{
    for (int i = 0; i < CUDA_GRAPHS; i++)
        if (c->graphs[i].rows == rows || c->graphs[i].rows == 0) return &c->graphs[i];
    return NULL;
}

uint32_t cuda_decode_rows(const struct backend *b, uint32_t n)
{
    return padded_rows(n, cuda_min(b->limits.max_rows, b->limits.max_seqs));
}

void cuda_graphs_open(struct cuda *c, uint32_t layers)
{
    uint32_t most = cuda_min(c->base.limits.max_rows, c->base.limits.max_seqs);
    size_t nodes = (size_t)layers * LAYER_NODES + STEP_NODES, sizes = 0;
    for (uint32_t n = 1; n <= most && sizes < CUDA_GRAPHS; sizes++)
        n = padded_rows(n, most) + 1;
    c->graph_reserve =
        layers ? sizes * ALIGN_UP(nodes * NODE_BYTES, PIECE_BYTES) : SIZE_MAX;
}

struct backend_recorded cuda_recorded(const struct backend *b)
{
    const struct cuda *c = cuda_of((struct backend *)(uintptr_t)b);
    struct backend_recorded r = {
        .reserve = c->graph_reserve == SIZE_MAX ? 0 : c->graph_reserve,
        .full = c->graphs_full,
    };
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        r.taken += c->graphs[i].bytes;
        r.steps += c->graphs[i].exec != NULL;
    }
    return r;
}

uint32_t cuda_graph_rows(struct cuda *c)
{
    if (!repeats(c)) return 0;
    uint32_t rows = cuda_decode_rows(&c->base, c->base.batch->n_rows);
    const struct cuda_graph *g = rows <= c->room ? graph_of(c, rows) : NULL;
    return g && (g->exec || !c->graphs_full) ? rows : 0;
}

static void forget(struct cuda_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    free(g->ops);
    *g = (struct cuda_graph){0};
}

/* Whether a call of recording succeeded.  Where memory is lacking for it, no more is recorded;
 * anything else is a failure of the device. */
static bool recorded(struct cuda *c, cudaError_t e)
{
    if (e != cudaErrorMemoryAllocation) return cuda_ok(c, e, "recording a step");
    (void)cudaGetLastError();
    c->graphs_full = true;
    return false;
}

static size_t free_memory(struct cuda *c)
{
    size_t left = 0, total;
    cuda_ok(c, cudaMemGetInfo(&left, &total), "recording a step");
    return left;
}

/* Of what has been captured, in *exec with all the memory that it will need; also where it
 * fails the caller has to destroy it. */
static bool instantiate(struct cuda *c, cudaGraph_t graph, cudaGraphExec_t *exec)
{
    return recorded(c, cudaGraphInstantiate(exec, graph, 0)) &&
           recorded(c, cudaGraphUpload(*exec, c->compute));
}

/* Record what is listed into g, which is empty. */
static bool record(struct cuda *c, struct cuda_graph *g)
{
    cudaGraph_t graph = NULL;
    size_t before = free_memory(c), after = before;
    if (c->dead ||
        !recorded(c, cudaStreamBeginCapture(c->compute, cudaStreamCaptureModeRelaxed)))
        return false;
    cuda_run(c, g->rows, g->rows, true);
    // Also where that failed: a stream must not be left recording.
    if (!recorded(c, cudaStreamEndCapture(c->compute, &graph))) return false;
    bool good = !c->dead && instantiate(c, graph, &g->exec);
    (void)cudaGraphDestroy(graph);
    if (good) after = free_memory(c);
    g->bytes = before > after ? before - after : 0;
    g->ops = good && !c->dead ? malloc(c->n_ops * sizeof *g->ops) : NULL;
    if (!g->ops) return false;
    memcpy(g->ops, c->ops, c->n_ops * sizeof *g->ops);
    g->n_ops = c->n_ops;
    return cuda_recorded(&c->base).taken <= c->graph_reserve;
}

static bool same(const struct cuda *c, const struct cuda_graph *g)
{
    return g->exec && g->n_ops == c->n_ops &&
           memcmp(g->ops, c->ops, c->n_ops * sizeof *g->ops) == 0;
}

void cuda_graph_run(struct cuda *c, uint32_t rows)
{
    struct cuda_graph *g = graph_of(c, rows);
    if (same(c, g)) {
        cuda_ok(c, cudaGraphLaunch(g->exec, c->compute), "launching a step");
        return;
    }
    cuda_run(c, rows, rows, true);
    if (c->graphs_full || c->dead) return;
    forget(g);
    g->rows = rows;
    if (record(c, g)) return;
    c->graphs_full = true;
    forget(g);
}

void cuda_graphs_close(struct cuda *c)
{
    for (int i = 0; i < CUDA_GRAPHS; i++) forget(&c->graphs[i]);
}
