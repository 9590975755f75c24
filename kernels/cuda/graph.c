/* graph.c - steps of decode as CUDA graphs: one launch instead of some hundreds.
 *
 * A step in which every sequence computes one row is padded to one of a few numbers of rows.
 * The first one of a size is run as it is, so that all its kernels are loaded, and recorded;
 * after that it is replayed as long as the same operations are listed.  All that differs
 * between two such steps lies in the input's arrays.  Any other step, one with more rows
 * than there are graphs for and one that copies a block are launched kernel by kernel.
 *
 * Recording allocates; who minds runs a step of each size before it matters.
 */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

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

uint32_t cuda_graph_rows(struct cuda *c)
{
    if (c->no_graphs || !repeats(c)) return 0;
    uint32_t rows = cuda_decode_rows(&c->base, c->base.batch->n_rows);
    return rows <= c->room && graph_of(c, rows) ? rows : 0;
}

static void forget(struct cuda_graph *g)
{
    if (g->exec) (void)cudaGraphExecDestroy(g->exec);
    free(g->ops);
    *g = (struct cuda_graph){0};
}

/* Whether a call of recording succeeded.  Where memory is lacking for it, steps run as they
 * are from now on; anything else is a failure of the device. */
static bool recorded(struct cuda *c, cudaError_t e)
{
    if (e != cudaErrorMemoryAllocation) return cuda_ok(c, e, "recording a step");
    (void)cudaGetLastError();
    c->no_graphs = true;
    return false;
}

/* Record what is listed, of which g keeps what decides whether it may be replayed. */
static void record(struct cuda *c, struct cuda_graph *g, uint32_t rows)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (!recorded(c, cudaStreamBeginCapture(c->compute, cudaStreamCaptureModeRelaxed)))
        return;
    cuda_run(c, rows, rows, true);
    // Also where that failed: a stream must not be left recording.
    if (!recorded(c, cudaStreamEndCapture(c->compute, &graph))) return;
    cudaError_t e = c->dead ? cudaSuccess : cudaGraphInstantiate(&exec, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (!recorded(c, e) || c->dead) return;
    *g = (struct cuda_graph){.exec = exec, .ops = malloc(c->n_ops * sizeof *g->ops)};
    if (!g->ops) {
        forget(g);
        c->no_graphs = true;
        return;
    }
    memcpy(g->ops, c->ops, c->n_ops * sizeof *g->ops);
    g->n_ops = c->n_ops;
    g->rows = rows;
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
    forget(g);
    cuda_run(c, rows, rows, true);
    if (!c->dead) record(c, g, rows);
}

void cuda_graphs_close(struct cuda *c)
{
    for (int i = 0; i < CUDA_GRAPHS; i++) forget(&c->graphs[i]);
}
