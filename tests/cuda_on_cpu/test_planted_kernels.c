/* Mistakes in kernels, and kernels without one. */
#include "tests/cuda_on_cpu/cases.h"

/* Cases that are one launch of the kernel of the same name. */
#define LAUNCHES(kernel, ...)                                                          \
    static void kernel(void)                                                           \
    {                                                                                  \
        launch(#kernel, __VA_ARGS__);                                                  \
    }
LAUNCHES(lost_update, 1, 64, device(1), NULL, 0)
LAUNCHES(half_at_barrier, 1, 64, device(64), NULL, 0)
LAUNCHES(two_barriers, 1, 64, device(64), NULL, 0)
LAUNCHES(early_exit, 1, 64, device(64), NULL, 0)
LAUNCHES(static_bounds, 1, 64, device(64), NULL, 1)
LAUNCHES(shuffle_in_branch, 1, 32, device(32), NULL, 0)
LAUNCHES(shuffle_as_fence, 1, 32, device(32), NULL, 0)
LAUNCHES(misaligned, 1, 1, device(64), device(64), 0)
LAUNCHES(race_of_blocks, 4, 32, device(1), NULL, 0)

static void no_barrier(void)
{
    float *d = device(64);
    launch("no_barrier", 1, 64, d, NULL, 0);
    fetch(d, 64);
    for (int i = 0; i < 64; i++) wrong(host[i] != (float)(63 - i));
}

static void unwritten_shared(void)
{
    float *d = device(64);
    launch("unwritten_shared", 1, 64, d, NULL, 0);
    fetch(d, 64);
    wrong(host[63] != 1);
}

static void dynamic_bounds(void)
{
    OK(planted_launch("dynamic_bounds", (dim3){1, 1, 1}, 64, 256, NULL, device(64),
                      NULL, 0));
    OK(cudaDeviceSynchronize());
}

static void tie_by_order(void)
{
    float *d = device(1);
    launch("tie_by_order", 1, 64, d, pinned(64, 5), 0);
    fetch(d, 1);
    wrong(host[0] != 0);
}

static void no_copy_wait(void)
{
    float *d = device(64);
    launch("no_copy_wait", 1, 64, d, device(64), 0);
    fetch(d, 64);
    wrong(host[0] != 0);
}

static void unwritten_global(void)
{
    float *d = device(64);
    void *p;
    OK(cudaMalloc(&p, 256));
    launch("add_one", 1, 64, d, p, 64);
    fetch(d, 64);
    wrong(host[0] != host[0]);
}

static void past_the_end(void)
{
    launch("add_one", 1, 64, device(63), device(64), 64);
}

static void far_past_the_end(void)
{
    launch("add_one", 64, 64, device(64), device(4096), 4096);
}

static void freed_argument(void)
{
    float *d = device(64);
    OK(cudaFree(d));
    launch("add_one", 1, 64, d, device(64), 64);
}

static void host_argument(void)
{
    launch("add_one", 1, 64, device(64), host, 64);
}

static void host_argument_in_struct(void)
{
    OK(planted_launch_struct(device(64), host, 64));
}

/* ---- without a mistake ---- */

static void atomic_is_right(void)
{
    float *d = device(1);
    launch("atomic", 64, 32, d, NULL, 0);
    fetch(d, 1);
    wrong(host[0] != 64);
}

static void pinned_argument_is_right(void)
{
    float *p = pinned(64, 5);
    launch("add_one", 1, 64, p, p, 64);
    wrong(p[63] != 6);
}

static void dynamic_is_right(void)
{
    enum { LARGE = 100 << 10 };
    float *d = device(64), *in = pinned(64, 0);
    for (int i = 0; i < 64; i++) in[i] = (float)i;
    dim3 one = {1, 1, 1};
    GIVES(planted_launch("dynamic", one, 64, LARGE, NULL, d, in, 0),
          cudaErrorInvalidValue);
    GIVES(planted_allow_shared(300 << 10), cudaErrorInvalidValue);
    OK(planted_allow_shared(LARGE));
    OK(planted_launch("dynamic", one, 64, LARGE, NULL, d, in, 0));
    fetch(d, 64);
    for (int i = 0; i < 64; i++) wrong(host[i] != (float)(63 - i));
}

/* Small integers are exact in both types: their f16 and bf16 bits by hand. */
static uint16_t small_bits(int v, bool bf16)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400};
    static const uint16_t b16[] = {0, 0x3f80, 0x4000, 0x4040, 0x4080};
    return (bf16 ? b16 : f16)[v];
}

static void product_is_right(void)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        float *d = device(128), *in = pinned(256, 0);
        uint16_t *h = (uint16_t *)in;
        int v[32][16];
        for (int r = 0; r < 32; r++)
            for (int k = 0; k < 16; k++)
                h[r * 16 + k] = small_bits(v[r][k] = (r * 7 + k * 3 + r * k) % 5, bf16);
        launch("product", 1, 32, d, in, bf16);
        fetch(d, 128);
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 8; n++) {
                int sum = 0;
                for (int k = 0; k < 16; k++) sum += v[m][k] * v[16 + n][k];
                wrong(host[m * 8 + n] != (float)sum);
            }
    }
}

static const struct mistake cases[] = {
    {"a_missing_syncthreads_is_seen", no_barrier, ALL, "wrong result|data race"},
    {"a_lost_update_in_shared_memory_is_seen", lost_update, THREAD, "data race"},
    {"a_syncthreads_that_half_the_threads_reach_is_seen", half_at_barrier, ALL,
     "is stuck|exited"},
    {"two_different_syncthreads_are_seen", two_barriers, ALL,
     "divergent __syncthreads"},
    {"a_syncthreads_after_a_thread_left_is_seen", early_exit, ALL, "exited"},
    {"unwritten_shared_memory_is_seen", unwritten_shared, ALL,
     "wrong result|AddressSanitizer"},
    {"an_index_past_static_shared_memory_is_seen", static_bounds, BOUNDS,
     "AddressSanitizer|out of bounds"},
    {"an_index_past_dynamic_shared_memory_is_seen", dynamic_bounds, BOUNDS,
     "AddressSanitizer|out of bounds"},
    {"a_tie_that_goes_to_whoever_comes_first_is_seen", tie_by_order, ALL,
     "wrong result"},
    {"a_full_mask_shuffle_in_a_branch_is_seen", shuffle_in_branch, ALL, "exited|stuck"},
    {"a_shuffle_that_should_order_memory_is_seen", shuffle_as_fence, THREAD,
     "data race"},
    {"a_missing_wait_for_cp_async_is_seen", no_copy_wait, ALL, "wrong result"},
    {"unwritten_global_memory_is_seen", unwritten_global, ALL, "wrong result"},
    {"one_element_past_an_allocation_is_seen", past_the_end, BOUNDS,
     "AddressSanitizer|outside every"},
    {"an_index_far_past_an_allocation_is_seen", far_past_the_end, ALL,
     "AddressSanitizer|device code touched|outside every"},
    {"a_misaligned_vector_access_is_seen", misaligned, BOUNDS, "misaligned"},
    {"blocks_that_race_are_seen", race_of_blocks, THREAD, "data race"},
    {"a_freed_pointer_as_argument_is_seen", freed_argument, ALL,
     "no live device allocation"},
    {"a_host_pointer_as_argument_is_seen", host_argument, ALL, "not pinned"},
    {"a_host_pointer_in_a_struct_argument_is_seen", host_argument_in_struct, ALL,
     "not pinned"},
    {"atomics_of_many_blocks_add_up", atomic_is_right, 0, NULL},
    {"a_kernel_may_use_pinned_memory", pinned_argument_is_right, 0, NULL},
    {"dynamic_shared_memory_has_the_limits_of_a_device", dynamic_is_right, 0, NULL},
    {"ldmatrix_and_mma_multiply", product_is_right, 0, NULL},
};

int main(void)
{
    return run_cases(cases, sizeof cases / sizeof *cases);
}
