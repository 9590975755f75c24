/* path.c - linked around cpu_path_choose() into programs that only tests run: the paths whose
 * instructions are emulated, by the names that follow.  Any other name is the machine's own. */
#include "kernels/cpu/path.h"

#include <string.h>

extern const struct cpu_path emulated_avx2, emulated_avx512, emulated_avx512bf16;

int __real_cpu_path_choose(const struct cpu_path **out, const char *name,
                           struct err *err);
int __wrap_cpu_path_choose(const struct cpu_path **out, const char *name,
                           struct err *err);

int __wrap_cpu_path_choose(const struct cpu_path **out, const char *name,
                           struct err *err)
{
    static const struct {
        const char *name;
        const struct cpu_path *path;
    } emulated[] = {{"emulated avx2", &emulated_avx2},
                    {"emulated avx512", &emulated_avx512},
                    {"emulated avx512bf16", &emulated_avx512bf16}};
    for (size_t i = 0; name && i < ARRAY_LEN(emulated); i++) {
        if (strcmp(name, emulated[i].name) != 0) continue;
        *out = emulated[i].path;
        return 0;
    }
    return __real_cpu_path_choose(out, name, err);
}
