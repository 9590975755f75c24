/* The way into the stand-in and out of it: one lock, what the environment asks for,
 * faults on demand, errors that stay. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_on_cpu/internal.h"

struct standin_counts counts;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static cudaError_t sticky;
static __thread cudaError_t last_error;
static uint64_t random_state = 88172645463325252u;

enum { MAX_FAULTS = 16 };
static struct fault {
    char call[64];
    unsigned left;  // calls until it is its turn; 0: used up
    cudaError_t error;
} faults[MAX_FAULTS];

uint64_t random_number(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

uint64_t random_below(uint64_t n)
{
    return random_number() % n;
}

/* ---- what is asked for ---- */

void standin_schedule(enum standin_streams s, enum standin_threads t, uint64_t seed)
{
    order_set(s);
    block_set_order(t);
    random_state = (seed + 1) * 0x9E3779B97F4A7C15u;
    if (!random_state) random_state = 1;
}

void standin_memory(size_t device_bytes, size_t pinned_bytes)
{
    device_capacity = device_bytes;
    pinned_capacity = pinned_bytes;
}

void standin_node_memory(size_t bytes)
{
    node_bytes = bytes;
}

static void add_fault(const char *call, unsigned nth, int error)
{
    for (unsigned i = 0; i < MAX_FAULTS; i++) {
        if (faults[i].left) continue;
        snprintf(faults[i].call, sizeof faults[i].call, "%s", call);
        faults[i].left = nth;
        faults[i].error = (cudaError_t)error;
        return;
    }
    device_report("more than %d faults at a time", MAX_FAULTS);
}

void standin_fail(const char *call, unsigned nth, int error)
{
    pthread_mutex_lock(&lock);
    add_fault(call, nth, error);
    pthread_mutex_unlock(&lock);
}

void standin_count(struct standin_counts *out)
{
    pthread_mutex_lock(&lock);
    *out = counts;
    pthread_mutex_unlock(&lock);
}

/* ---- the environment, read once ---- */

static void refuse_setting(const char *name, const char *value, const char *right)
{
    fprintf(stderr, "stand-in: %s is %s; it may be %s\n", name, value, right);
    abort();
}

static uint64_t number_setting(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);
    if (!value) return otherwise;
    char *end;
    errno = 0;
    uint64_t n = strtoull(value, &end, 10);
    if (errno || *end || end == value) refuse_setting(name, value, "a number");
    return n;
}

static unsigned word_setting(const char *name, const char *const words[3],
                             unsigned otherwise)
{
    const char *value = getenv(name);
    if (!value) return otherwise;
    for (unsigned i = 0; i < 3; i++)
        if (!strcmp(value, words[i])) return i;
    char right[64];
    snprintf(right, sizeof right, "%s, %s or %s", words[0], words[1], words[2]);
    refuse_setting(name, value, right);
    return 0;
}

static void fail_setting(void)
{
    const char *value = getenv("STANDIN_FAIL");
    if (!value) return;
    char call[64] = "";
    unsigned nth = 0;
    int error = cudaErrorMemoryAllocation;
    size_t end =
        strncmp(value, "kernel:", 7) ? 0 : 7;  // this colon belongs to the call
    end += strcspn(value + end, ":");
    if (end < sizeof call) memcpy(call, value, end);
    if (sscanf(value + end, ":%u:%d", &nth, &error) < 1 || !nth || !*call)
        refuse_setting("STANDIN_FAIL", value, "CALL:N or CALL:N:ERROR");
    add_fault(call, nth, error);
}

static void write_counts(void)
{
    FILE *f = fopen(getenv("STANDIN_COUNTS"), "w");
    if (!f) return;
#define ONE(name) fprintf(f, #name " %llu\n", (unsigned long long)counts.name)
    ONE(calls), ONE(launches), ONE(blocks), ONE(threads), ONE(switches), ONE(barriers);
    ONE(warp_ops), ONE(copies), ONE(h2d_bytes), ONE(d2h_bytes), ONE(d2d_bytes),
        ONE(h2h_bytes);
    ONE(pageable_async), ONE(syncs), ONE(allocs), ONE(frees), ONE(gemms);
    ONE(graph_launches), ONE(device_used), ONE(device_peak), ONE(pinned_used);
#undef ONE
    fclose(f);
}

static void open_once(void)
{
    static bool open;
    static const char *const order[] = {"eager", "lazy", "random"}, *const first[] = {
                                                                        "forward",
                                                                        "reverse",
                                                                        "shuffled"};
    if (open) return;
    open = true;
    memory_open();
    order_open();
    if (getenv("STANDIN_STREAMS") || getenv("STANDIN_THREADS") ||
        getenv("STANDIN_SEED"))
        standin_schedule(word_setting("STANDIN_STREAMS", order, STANDIN_RANDOM),
                         word_setting("STANDIN_THREADS", first, STANDIN_FORWARD),
                         number_setting("STANDIN_SEED", 0));
    device_capacity = number_setting("STANDIN_DEVICE_MEMORY", device_capacity);
    pinned_capacity = number_setting("STANDIN_PINNED_MEMORY", pinned_capacity);
    node_bytes = number_setting("STANDIN_NODE_MEMORY", node_bytes);
    fail_setting();
    if (getenv("STANDIN_COUNTS")) atexit(write_counts);
}

/* ---- entry ---- */

static bool ends_something(const char *call)
{
    return !strncmp(call, "cudaFree", 8) || strstr(call, "Destroy") ||
           strstr(call, "Unregister");
}

/* A free or a destroy fails only where the device is dead, so "any" does not mean it. */
static cudaError_t fault_of(const char *call)
{
    bool counted = !ends_something(call);
    if (counted) counts.calls++;
    for (struct fault *f = faults; f < faults + MAX_FAULTS; f++) {
        bool meant = !strcmp(f->call, call) || (counted && !strcmp(f->call, "any"));
        if (!f->left || !meant || --f->left) continue;
        return f->error;
    }
    return cudaSuccess;
}

bool kernel_fails(const char *name, cudaError_t *e)
{
    for (struct fault *f = faults; f < faults + MAX_FAULTS; f++) {
        if (!f->left || strncmp(f->call, "kernel:", 7) || !strstr(name, f->call + 7))
            continue;
        if (--f->left) continue;
        *e = f->error;
        return true;
    }
    return false;
}

static bool kills_a_context(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorLaunchFailure:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorAssert: return true;
    default: return false;
    }
}

cudaError_t standin_enter(const char *call)
{
    pthread_mutex_lock(&lock);
    open_once();
    memory_watch();
    if (sticky) return sticky;
    cudaError_t e = fault_of(call);
    if (kills_a_context(e)) sticky = e;
    if (!e) operations_progress();
    return e;
}

cudaError_t standin_leave(cudaError_t e)
{
    if (e) last_error = e;
    pthread_mutex_unlock(&lock);
    return e;
}

cudaError_t sticky_error(void)
{
    return sticky;
}

void kill_device(cudaError_t e)
{
    if (!sticky) sticky = e;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = sticky ? sticky : last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void)
{
    return sticky ? sticky : last_error;
}

int standin_reset(void)
{
    pthread_mutex_lock(&lock);
    open_once();
    memset(faults, 0, sizeof faults);
    operations_wait_all();
    captures_forget();
    streams_free_all();
    int left = memory_free_all();
    launch_forget();
    memset(&counts, 0, sizeof counts);
    sticky = last_error = cudaSuccess;
    pthread_mutex_unlock(&lock);
    return left;
}
