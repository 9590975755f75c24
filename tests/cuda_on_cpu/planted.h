/* planted.h - kernels with bugs in them, and a few without, for the tests of the stand-in.
 *
 * Owns     nothing.  Every kernel has the same parameters: what it writes, what it reads, a
 *          number.  planted.cu says what is wrong with each.
 */
#ifndef CUDA_ON_CPU_PLANTED_H
#define CUDA_ON_CPU_PLANTED_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Launches the kernel of that name; cudaErrorInvalidDeviceFunction where there is none. */
cudaError_t planted_launch(const char *name, dim3 grid, unsigned threads, size_t shared,
                           cudaStream_t stream, float *out, const float *in, int n);
/* Launches the kernel that copies in[0..n) to out; the pointer goes inside a struct. */
cudaError_t planted_launch_struct(float *out, const float *in, int n);
/* Lets the kernel "dynamic" have so many bytes of shared memory. */
cudaError_t planted_allow_shared(int bytes);

#ifdef __cplusplus
}
#endif
#endif
