/* Mistakes in host code that drives streams, and what the interface promises. */
#include <cublas_v2.h>

#include "tests/cuda_on_cpu/cases.h"

enum { BYTES = 64 * sizeof(float) };

static void add_one(float *out, const float *in, cudaStream_t s)
{
    OK(planted_launch("add_one", (dim3){1, 1, 1}, 64, 0, s, out, in, 64));
}

/* ---- mistakes ---- */

static void early_read(void)
{
    float *d = device(64), *p = pinned(64, 5);
    OK(cudaMemcpyAsync(p, d, BYTES, cudaMemcpyDeviceToHost, stream()));
    wrong(p[7] != 0);
}

static void early_write(void)
{
    float *d = device(64), *p = pinned(64, 5);
    cudaStream_t s = stream();
    OK(cudaMemcpyAsync(d, p, BYTES, cudaMemcpyHostToDevice, s));
    p[7] = 9;
    OK(cudaStreamSynchronize(s));
    fetch(d, 64);
    wrong(host[7] != 5);
}

/* Two streams hand a buffer to each other; `waits` says whether one of them waits. */
static void ping_pong(bool waits)
{
    float *a = device(64), *b = device(64);
    cudaStream_t s = stream(), t = stream();
    cudaEvent_t e;
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (int i = 0; i < 6; i++) {
        add_one(a, a, s);
        OK(cudaEventRecord(e, s));
        if (waits) OK(cudaStreamWaitEvent(t, e, 0));
        add_one(b, a, t);
        OK(cudaEventRecord(e, t));
        OK(cudaStreamWaitEvent(s, e, 0));
    }
    OK(cudaStreamSynchronize(t));
    fetch(b, 1);
    wrong(host[0] != 7);
}

static void no_event_wait(void)
{
    ping_pong(false);
}

static void host_reads_device(void)
{
    volatile float *d = device(64);
    wrong(d[3] != 0);
}

static void host_copies_device(void)
{
    memcpy(host, device(64), BYTES);
    wrong(host[3] != 0);
}

/* ---- promises ---- */

static void event_wait_is_right(void)
{
    ping_pong(true);
}

/* Where the second block takes place, the stand-in has last cleared less than it uses. */
static void shared_memory_is_right(void)
{
    float *a = device(256), *b = device(256), *zeros = device(256);
    cudaStream_t s = stream(), t = stream();
    const dim3 one = {1, 1, 1};
    OK(planted_launch("product", one, 32, 0, s, a, zeros, 0));
    OK(planted_launch("add_one", one, 32, 0, s, a, zeros, 1));
    OK(planted_launch("product", one, 32, 0, t, b, zeros, 0));
    OK(cudaDeviceSynchronize());
    fetch(a, 2);
    wrong(host[0] != 1 || host[1] != 0);
    fetch(b, 1);
    wrong(host[0] != 0);
}

static void errors_are_right(void)
{
    float *d = device(64);
    void *x;
    size_t left, total;
    GIVES(cudaMemcpy(d, host, BYTES + 4, cudaMemcpyHostToDevice),
          cudaErrorInvalidValue);
    GIVES(cudaMemcpy(d, host, BYTES, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    GIVES(planted_launch("add_one", (dim3){1, 1, 1}, 1025, 0, NULL, d, d, 64),
          cudaErrorInvalidConfiguration);
    GIVES(planted_launch("add_one", (dim3){1, 65536, 1}, 1, 0, NULL, d, d, 64),
          cudaErrorInvalidConfiguration);
    GIVES(planted_launch("add_one", (dim3){1, 1, 1}, 64, 49 << 10, NULL, d, d, 64),
          cudaErrorInvalidValue);
    GIVES(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaGetLastError());
    standin_memory(1 << 20, 1 << 20);
    GIVES(cudaMalloc(&x, 1 << 20), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&x, (1 << 20) - 512));
    OK(cudaMemGetInfo(&left, &total));
    wrong(left != 0 || total != 1 << 20);
    OK(cudaFree(x));
    GIVES(cudaFree(x), cudaErrorInvalidValue);
    GIVES(cudaMallocHost(&x, 2 << 20), cudaErrorMemoryAllocation);
    wrong(standin_reset() != 1);  // d
}

static void faults_are_right(void)
{
    float *d = device(64);
    void *x;
    standin_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    OK(cudaMalloc(&x, 64));
    GIVES(cudaMalloc(&x, 64), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&x, 64));
    standin_fail("any", 3, cudaErrorInvalidValue);
    OK(cudaMemset(x, 0, 64));
    OK(cudaDeviceSynchronize());
    GIVES(cudaDeviceSynchronize(), cudaErrorInvalidValue);
    OK(cudaDeviceSynchronize());
    standin_fail("kernel:add_one", 1, cudaErrorIllegalAddress);
    add_one(d, d, stream());  // shows at the next wait and then for ever
    GIVES(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    GIVES(cudaMalloc(&x, 64), cudaErrorIllegalAddress);
    GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
}

static cudaGraph_t capture(cudaStream_t s, cudaStream_t t, float *p, float *a, float *b)
{
    cudaEvent_t fork, join;
    cudaGraph_t g;
    OK(cudaEventCreate(&fork));
    OK(cudaEventCreate(&join));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(a, p, BYTES, cudaMemcpyHostToDevice, s));
    OK(cudaEventRecord(fork, s));
    OK(cudaStreamWaitEvent(t, fork, 0));
    add_one(b, a, t);
    OK(cudaEventRecord(join, t));
    OK(cudaStreamWaitEvent(s, join, 0));
    OK(cudaMemcpyAsync(p, b, BYTES, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    return g;
}

static void graphs_are_right(void)
{
    float *a = device(64), *b = device(64), *p = pinned(64, 5), *q = pinned(64, 50);
    cudaStream_t s = stream(), t = stream();
    cudaGraph_t g = capture(s, t, p, a, b);
    cudaGraphExec_t x;
    cudaGraphExecUpdateResultInfo info;
    OK(cudaGraphInstantiate(&x, g, 0));
    OK(cudaGraphDestroy(g));
    for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(x, s));
    OK(cudaStreamSynchronize(s));
    wrong(p[9] != 8);
    g = capture(s, t, q, a, b);
    OK(cudaGraphExecUpdate(x, g, &info));
    OK(cudaGraphDestroy(g));
    OK(cudaGraphLaunch(x, s));
    OK(cudaStreamSynchronize(s));
    wrong(p[9] != 8 || q[9] != 51);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    add_one(a, a, s);
    OK(cudaStreamEndCapture(s, &g));
    GIVES(cudaGraphExecUpdate(x, g, &info), cudaErrorGraphExecUpdateFailure);
    OK(cudaGraphDestroy(g));
    OK(cudaGraphExecDestroy(x));
}

static void captures_are_right(void)
{
    cudaStream_t s = stream(), t = stream();
    float *a = device(64);
    cudaGraph_t g;
    cudaEvent_t e;
    OK(cudaEventCreate(&e));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    GIVES(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    GIVES(cudaStreamSynchronize(t), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamSynchronize(t));
    GIVES(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(e, s));
    OK(cudaStreamWaitEvent(t, e, 0));
    add_one(a, a, t);  // which s never waits for
    GIVES(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureUnjoined);
    OK(cudaDeviceSynchronize());
    fetch(a, 64);
    wrong(host[0] != 0);
}

static void pageable_is_right(void)
{
    float *d = device(64);
    cudaStream_t s = stream();
    struct standin_counts c;
    OK(cudaMemcpyAsync(d, host, BYTES, cudaMemcpyHostToDevice, s));
    host[3] = 77;  // read before the call returned
    OK(cudaStreamSynchronize(s));
    standin_count(&c);
    wrong(c.pageable_async != 1 || c.h2d_bytes != BYTES);
    fetch(d, 64);
    wrong(host[3] == 77);
    OK(cudaHostRegister(host, sizeof host, 0));
    OK(cudaMemcpyAsync(host, d, BYTES, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    standin_count(&c);
    wrong(c.pageable_async != 1);
    OK(cudaHostUnregister(host));
}

static void gemm_is_right(void)
{
    enum { M = 5, N = 3, K = 7 };
    float *a = pinned(M * K, 0), *b = pinned(K * N, 0), alpha = 2, beta = 0;
    float *da = device(M * K), *db = device(K * N), *dc = device(M * N);
    for (int i = 0; i < M * K; i++) a[i] = (float)(i % 5);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i % 3);
    cudaStream_t s = stream();
    cublasHandle_t h;
    wrong(cublasCreate_v2(&h) || cublasSetStream_v2(h, s));
    OK(cudaMemcpyAsync(da, a, M * K * sizeof *a, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpyAsync(db, b, K * N * sizeof *b, cudaMemcpyHostToDevice, s));
    wrong(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &alpha, da, CUDA_R_32F, K,
                       db, CUDA_R_32F, K, &beta, dc, CUDA_R_32F, M, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT));
    OK(cudaStreamSynchronize(s));
    fetch(dc, M * N);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += a[m * K + k] * b[n * K + k];
            wrong(host[n * M + m] != 2 * sum);
        }
    cublasDestroy_v2(h);
}

static const struct mistake cases[] = {
    {"a_read_before_the_copy_is_done_is_seen", early_read, ALL,
     "wrong result|data race"},
    {"a_write_before_the_copy_is_done_is_seen", early_write, ALL,
     "wrong result|data race"},
    {"a_missing_event_wait_is_seen", no_event_wait, ALL, "wrong result|data race"},
    {"a_device_pointer_followed_by_the_host_is_seen", host_reads_device, ALL,
     "host code touched"},
    {"a_memcpy_of_device_memory_is_seen", host_copies_device, ALL, "host code touched"},
    {"streams_that_wait_for_each_other_agree", event_wait_is_right, 0, NULL},
    {"blocks_of_two_streams_do_not_meet_in_shared_memory", shared_memory_is_right, 0,
     NULL},
    {"what_is_not_legal_gives_the_errors_of_a_device", errors_are_right, 0, NULL},
    {"faults_come_when_asked_for_and_some_stay", faults_are_right, 0, NULL},
    {"a_graph_can_be_launched_and_updated", graphs_are_right, 0, NULL},
    {"a_capture_that_is_broken_says_so", captures_are_right, 0, NULL},
    {"pageable_memory_is_read_at_once_and_counted", pageable_is_right, 0, NULL},
    {"gemm_multiplies_column_major", gemm_is_right, 0, NULL},
};

int main(void)
{
    return run_cases(cases, sizeof cases / sizeof *cases);
}
