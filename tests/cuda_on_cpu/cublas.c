/* cuBLAS as far as a transformer needs it: column-major products of bf16, f16 or f32
 * matrices with f32 sums, enqueued on the handle's stream. */
#include <cublas_v2.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_on_cpu/internal.h"

struct cublasContext {
    cudaStream_t stream;
};

/* C = alpha op(A) op(B) + beta C; op(A) is m x k, op(B) k x n. */
struct gemm {
    bool a_transposed, b_transposed;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const void *a, *b;
    void *c;
    cudaDataType a_type, b_type, c_type;
};

/* ---- numbers ---- */

static size_t width(cudaDataType t)
{
    return t == CUDA_R_32F ? 4 : 2;
}

static float load(const void *p, size_t i, cudaDataType t)
{
    if (t == CUDA_R_32F) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    if (t == CUDA_R_16F) return _cvtsh_ss(h);
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void store(void *p, size_t i, cudaDataType t, float f)
{
    if (t == CUDA_R_32F)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = t == CUDA_R_16F ? _cvtss_sh(f, 0) : to_bf16(f);
}

/* n numbers from `first` on, `step` apart, as floats. */
static void load_line(float *out, const void *p, cudaDataType t, size_t first,
                      size_t step, int n)
{
    int i = 0;
    if (step == 1 && t == CUDA_R_16F)
        for (; i + 8 <= n; i += 8) {
            const void *h = (const uint16_t *)p + first + i;
            _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(h)));
        }
    if (step == 1 && t == CUDA_R_16BF)
        for (; i + 8 <= n; i += 8) {
            const void *h = (const uint16_t *)p + first + i;
            __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(h));
            _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
        }
    for (; i < n; i++) out[i] = load(p, first + (size_t)i * step, t);
}

static float dot(const float *a, const float *b, int n)
{
    __m256 even = _mm256_setzero_ps(), odd = even;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        even = _mm256_fmadd_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i), even);
        odd = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8),
                              odd);
    }
    float part[8], sum = 0;
    _mm256_storeu_ps(part, _mm256_add_ps(even, odd));
    for (int j = 0; j < 8; j++) sum += part[j];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* ---- the product ---- */

static void touch(const void *p, cudaDataType t, int rows, int cols, int ld, bool write)
{
    for (int j = 0; j < cols; j++)
        memory_touch((const char *)p + (size_t)j * (size_t)ld * width(t),
                     (size_t)rows * width(t), write);
}

static void touch_all(const struct gemm *g)
{
    bool a = g->a_transposed, b = g->b_transposed;
    touch(g->a, g->a_type, a ? g->k : g->m, a ? g->m : g->k, g->lda, false);
    touch(g->b, g->b_type, b ? g->n : g->k, b ? g->k : g->n, g->ldb, false);
    if (g->beta != 0) touch(g->c, g->c_type, g->m, g->n, g->ldc, false);
    touch(g->c, g->c_type, g->m, g->n, g->ldc, true);
}

static void run_gemm(void *argument)
{
    struct gemm g = *(const struct gemm *)argument;
    g.a = memory_bytes(g.a);
    g.b = memory_bytes(g.b);
    g.c = memory_bytes(g.c);
    touch_all(&g);
    size_t k = (size_t)g.k;
    float *rows = raw_alloc(((size_t)g.n + 1) * k * sizeof *rows + 1);
    float *row = rows + (size_t)g.n * k;
    for (int j = 0; j < g.n; j++)
        load_line(rows + (size_t)j * k, g.b, g.b_type,
                  (size_t)j * (g.b_transposed ? 1 : (size_t)g.ldb),
                  g.b_transposed ? (size_t)g.ldb : 1, g.k);
    for (int i = 0; i < g.m; i++) {
        load_line(row, g.a, g.a_type, (size_t)i * (g.a_transposed ? (size_t)g.lda : 1),
                  g.a_transposed ? 1 : (size_t)g.lda, g.k);
        for (int j = 0; j < g.n; j++) {
            size_t at = (size_t)j * (size_t)g.ldc + (size_t)i;
            float v = g.alpha * dot(row, rows + (size_t)j * k, g.k);
            if (g.beta != 0) v += g.beta * load(g.c, at, g.c_type);
            store(g.c, at, g.c_type, v);
        }
    }
    raw_free(rows);
}

/* ---- the interface ---- */

static cublasStatus_t status_of(cudaError_t e)
{
    return e ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    if (standin_leave(standin_enter(__func__))) return CUBLAS_STATUS_ALLOC_FAILED;
    *out = calloc(1, sizeof **out);
    return *out ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t h)
{
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode)
{
    (void)h, (void)mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t h, void *workspace, size_t n)
{
    (void)h;
    return !workspace || memory_on_device(workspace, n) ? CUBLAS_STATUS_SUCCESS
                                                        : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t a_op,
                            cublasOperation_t b_op, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type,
                            int lda, const void *b, cudaDataType b_type, int ldb,
                            const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    (void)algorithm;
    cudaError_t e = standin_enter(__func__);
    if (e) return status_of(standin_leave(e));
    struct gemm g = {
        a_op != CUBLAS_OP_N,   b_op != CUBLAS_OP_N,  m, n, k, lda,    ldb,    ldc,
        *(const float *)alpha, *(const float *)beta, a, b, c, a_type, b_type, c_type};
    bool known =
        (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC) &&
        a_type == b_type;
    bool legal = m >= 0 && n >= 0 && k >= 0 && lda >= (g.a_transposed ? k : m) &&
                 ldb >= (g.b_transposed ? n : k) && ldc >= m;
    if (known && legal && m && n) {
        counts.gemms++;
        e = standin_enqueue_gemm(h->stream, run_gemm, &g, sizeof g);
    }
    standin_leave(e);
    if (!known) return CUBLAS_STATUS_NOT_SUPPORTED;
    return legal ? status_of(e) : CUBLAS_STATUS_INVALID_VALUE;
}
