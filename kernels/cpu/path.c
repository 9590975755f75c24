/* path.c - choosing the inner kernels for this machine. */
#include "kernels/cpu/path.h"

#include <string.h>

static bool always(void)
{
    return true;
}

#ifdef __x86_64__
#include <cpuid.h>

/* Here and not in the path's own file, which is compiled for the very instructions that
 * this asks about. */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    // Includes whether the operating system saves the wide registers.
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

static bool has_avx512bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

static const struct {
    const struct cpu_path *path;
    bool (*supported)(void);
} paths[] = {
#ifdef __x86_64__
    {&cpu_path_avx512bf16, has_avx512bf16},
    {&cpu_path_avx512, has_avx512},
    {&cpu_path_avx2, has_avx2},
#endif
    {&cpu_path_portable, always},  // the last: there is always one
};

int cpu_path_choose(const struct cpu_path **out, const char *name, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        const struct cpu_path *path = paths[i].path;
        if (name && strcmp(name, path->name) != 0) continue;
        if (paths[i].supported()) {
            *out = path;
            return 0;
        }
        if (name) return err_set(err, -ENODEV, "this CPU lacks %s", path->describe);
    }
    return err_set(err, -ENODEV, "there is no cpu_path \"%s\"; \"%s\" always works",
                   name, cpu_path_portable.name);
}
