/* path.c - choosing the inner kernels for this machine. */
#include "kernels/cpu/path.h"

#include <string.h>

static const struct cpu_path *const paths[] = {
    &cpu_path_portable,  // the last: always supported
};

int cpu_path_choose(const struct cpu_path **out, const char *name, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (name && strcmp(name, paths[i]->name) != 0) continue;
        if (paths[i]->supported()) {
            *out = paths[i];
            return 0;
        }
        if (name) return err_set(err, -ENODEV, "this CPU lacks %s", paths[i]->describe);
    }
    return err_set(err, -ENODEV, "there is no cpu_path \"%s\"; \"%s\" always works",
                   name, cpu_path_portable.name);
}
