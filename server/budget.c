#include "server/budget.h"

#include "kernels/kv_block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define DEFAULT_MOST ((uint64_t)2 << 30)
#define FEW_TOKENS   2048

/* ---- what is available ---- */

/* The file's text, cut at cap; false where it cannot be read. */
static bool read_text(const char *root, const char *path, char *buf, size_t cap)
{
    char name[1024];
    if ((size_t)snprintf(name, sizeof name, "%s%s", root, path) >= sizeof name)
        return false;
    FILE *f = fopen(name, "re");
    if (!f) return false;
    size_t n = fread(buf, 1, cap - 1, f);
    buf[n] = 0;
    fclose(f);
    return n > 0;
}

/* The number behind `key` at the start of a line. */
static bool number_of(const char *text, const char *key, uint64_t *out)
{
    size_t n = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (strncmp(p, key, n) == 0 && (p[n] == ' ' || p[n] == ':')) {
            const char *digits = p + n + strspn(p + n, ": \t");
            if (*digits < '0' || *digits > '9') return false;
            *out = strtoull(digits, NULL, 10);
            return true;
        }
    return false;
}

static void take_least(struct budget *b, uint64_t bytes, const char *limit)
{
    if (bytes >= b->available) return;
    b->available = bytes;
    b->limit = limit;
}

struct cgroup_files {
    const char *base, *max, *current, *cached, *limit;
};

static const struct cgroup_files cgroup_v1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
    "total_inactive_file", "the memory limit of the control group"};
static const struct cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max",
                                              "memory.current", "inactive_file",
                                              "the memory limit of the control group"};

/* One directory of the hierarchy.  Page cache that nobody uses counts as free, as it does
 * in MemAvailable. */
static void look_at_cgroup(struct budget *b, const char *root,
                           const struct cgroup_files *files, const char *path)
{
    char name[1024], text[8192];
    uint64_t max, current, cached = 0;

    snprintf(name, sizeof name, "%s%s/%s", files->base, path, files->max);
    if (!read_text(root, name, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return;  // not there, or "max"
    max = strtoull(text, NULL, 10);
    snprintf(name, sizeof name, "%s%s/%s", files->base, path, files->current);
    if (!read_text(root, name, text, sizeof text)) return;
    current = strtoull(text, NULL, 10);
    snprintf(name, sizeof name, "%s%s/memory.stat", files->base, path);
    if (read_text(root, name, text, sizeof text))
        number_of(text, files->cached, &cached);

    uint64_t used = current > cached ? current - cached : 0;
    take_least(b, max > used ? max - used : 0, files->limit);
}

/* The group of this process and every one above it: each may have a limit. */
static void look_at_cgroups(struct budget *b, const char *root)
{
    char text[8192];
    if (!read_text(root, "/proc/self/cgroup", text, sizeof text)) return;
    char *save;
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        bool v2 = controllers[1] == 0;
        if (!v2 && strcmp(controllers + 1, "memory")) continue;
        for (;;) {
            size_t n = strlen(path);
            if (n && path[n - 1] == '/') path[n - 1] = 0;
            look_at_cgroup(b, root, v2 ? &cgroup_v2 : &cgroup_v1, path);
            char *slash = strrchr(path, '/');
            if (!slash) break;
            *slash = 0;
        }
    }
}

static void look_at_address_space(struct budget *b, const char *root)
{
    struct rlimit limit;
    char text[256];
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
    if (!read_text(root, "/proc/self/statm", text, sizeof text)) return;
    uint64_t used = strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    take_least(b, limit.rlim_cur > used ? limit.rlim_cur - used : 0,
               "the limit of address space (ulimit -v)");
}

int budget_available(struct budget *b, const char *root, struct err *err)
{
    char text[8192];
    uint64_t kib;
    if (!read_text(root, "/proc/meminfo", text, sizeof text) ||
        !number_of(text, "MemAvailable", &kib))
        return err_set(err, -EIO, "MemAvailable cannot be read from %s/proc/meminfo",
                       root);
    b->available = kib * 1024;
    b->limit = "MemAvailable";
    look_at_cgroups(b, root);
    look_at_address_space(b, root);
    return 0;
}

/* ---- what is taken ---- */

const char *budget_size(uint64_t bytes, char buf[24])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double n = (double)bytes;
    for (; n >= 1024 && unit + 1 < ARRAY_LEN(units); unit++) n /= 1024;
    int decimals = unit == 0 || n >= 100 ? 0 : n >= 10 ? 1 : 2;
    snprintf(buf, 24, "%.*f %s", decimals, n, units[unit]);
    return buf;
}

void budget_describe(const struct budget *b, char *buf, size_t cap)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {{"weights", b->weights}, {"activations", b->activations},
                 {"graphs", b->graphs},   {"engine", b->engine},
                 {"KV pool", b->kv},      {"tiers", b->tiers},
                 {"margin", b->margin}};
    size_t n = 0;
    buf[0] = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts) && n < cap; i++) {
        // What is 0 is of another budget: the device's, or the host's beside it.
        if (parts[i].bytes == 0 && i + 1 < ARRAY_LEN(parts)) continue;
        char size[24];
        const char *between = n == 0 ? "" : i + 1 < ARRAY_LEN(parts) ? ", " : " and ";
        n += (size_t)snprintf(buf + n, cap - n, "%s%s %s", between, parts[i].name,
                              budget_size(parts[i].bytes, size));
    }
}

static int refuse(const struct budget *b, const char *remedy, struct err *err)
{
    char parts[256], need[24], have[24];
    budget_describe(b, parts, sizeof parts);
    return err_set(err, -ENOMEM,
                   "the memory budget needs %s (%s), but %s has %s available; %s",
                   budget_size(b->total, need), parts, b->limit,
                   budget_size(b->available, have), remedy);
}

/* a + b, or the largest number: a sum that overflows fits nothing. */
static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static void total(struct budget *b, uint64_t fixed, uint64_t blocks)
{
    b->kv = blocks > UINT64_MAX / b->block_bytes ? UINT64_MAX : blocks * b->block_bytes;
    b->total = add(fixed, b->kv);
}

/* The number of blocks where nobody asked for one; `left` bytes are there for them. */
static uint64_t choose(const struct budget *b, uint64_t left)
{
    uint64_t one = kv_blocks_for(b->context), few = kv_blocks_for(FEW_TOKENS);
    uint64_t fits = left / b->block_bytes, n = fits;
    if (few > one) few = one;
    if (!b->whole) {
        uint64_t quarter = (b->available - b->weights) / 4;
        uint64_t useful = one * b->max_sequences;
        n = (quarter < DEFAULT_MOST ? quarter : DEFAULT_MOST) / b->block_bytes;
        if (n > useful) n = useful;
        if (n < one) n = one;
        if (n > fits && fits >= few) n = fits;
    }
    if (n < few) n = few;  // which does not fit, and is refused
    return n < UINT32_MAX - 1 ? n : UINT32_MAX - 1;
}

int budget_fits(struct budget *b, struct err *err)
{
    uint64_t fixed = add(add(b->weights, b->activations), add(b->engine, b->margin));
    b->total = add(add(fixed, b->graphs), b->tiers);
    b->kv = 0;
    if (b->total <= b->available) return 0;
    return refuse(
        b, "take a smaller model, or lower step_tokens, ram, ssd_size or margin", err);
}

int budget_plan(struct budget *b, struct err *err)
{
    int rc = budget_fits(b, err);
    if (rc < 0) return rc;
    uint64_t fixed = b->total;

    bool asked = b->kv_blocks || b->kv_bytes;
    uint64_t blocks = b->kv_blocks  ? b->kv_blocks
                      : b->kv_bytes ? b->kv_bytes / b->block_bytes
                                    : choose(b, b->available - fixed);
    if (blocks == 0) {
        char want[24], block[24];
        return err_set(err, -EINVAL, "kv_memory of %s is less than one KV block of %s",
                       budget_size(b->kv_bytes, want),
                       budget_size(b->block_bytes, block));
    }
    if (blocks >= UINT32_MAX)
        return err_set(
            err, -EINVAL,
            "the KV pool would have %llu blocks of 16 tokens; at most %u can be "
            "used, so lower kv_memory",
            (unsigned long long)blocks, UINT32_MAX - 1);
    total(b, fixed, blocks);
    b->blocks = (uint32_t)blocks;
    if (b->total > b->available)
        return refuse(b,
                      asked ? "lower kv_memory, kv_blocks or margin"
                            : "lower context, set kv_memory or lower margin",
                      err);
    return 0;
}
