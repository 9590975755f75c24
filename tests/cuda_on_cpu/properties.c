/* What the device says of itself, and the names of errors. */
#include "tests/cuda_on_cpu/internal.h"

/* An H100's limits with few multiprocessors, so that grids stay small. */
enum { PROCESSORS = 4, SHARED = 48 << 10, SHARED_OPTIN = 227 << 10 };

static int capability = 90;

void standin_capability(int tenths)
{
    capability = tenths;
}

size_t shared_optin(void)
{
    return SHARED_OPTIN;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    ENTER();
    *n = 1;
    LEAVE(cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    ENTER();
    LEAVE(device ? cudaErrorInvalidDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER();
    *device = 0;
    LEAVE(cudaSuccess);
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    ENTER();
    LEAVE(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER();
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    LEAVE(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    ENTER();
    if (device) LEAVE(cudaErrorInvalidDevice);
    *p = (struct cudaDeviceProp){
        .name = "stand-in (CUDA on a CPU)",
        .totalGlobalMem = device_capacity,
        .major = capability / 10,
        .minor = capability % 10,
        .multiProcessorCount = PROCESSORS,
        .warpSize = 32,
        .sharedMemPerBlock = SHARED,
        .sharedMemPerBlockOptin = SHARED_OPTIN,
        .sharedMemPerMultiprocessor = 228 << 10,
        .regsPerBlock = 65536,
        .maxThreadsPerBlock = 1024,
        .maxThreadsPerMultiProcessor = 2048,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .l2CacheSize = 50 << 20,
        .unifiedAddressing = 1,
        .canMapHostMemory = 1,
        .asyncEngineCount = 2,
        .concurrentKernels = 1,
    };
    LEAVE(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device)
{
    ENTER();
    if (device) LEAVE(cudaErrorInvalidDevice);
    switch (a) {
    case cudaDevAttrMultiProcessorCount: *value = PROCESSORS; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_OPTIN; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability % 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrAsyncEngineCount: *value = 2; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;    // kHz
    case cudaDevAttrGlobalMemoryBusWidth: *value = 5120; break;  // bits
    case cudaDevAttrL2CacheSize: *value = 50 << 20; break;
    default: LEAVE(cudaErrorNotSupported);
    }
    LEAVE(cudaSuccess);
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable",
     "uncorrectable ECC error encountered"},
};

const char *cudaGetErrorName(cudaError_t e)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == e) return errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].error == e) return errors[i].text;
    return "unrecognized error code";
}
