#include "tests/files.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void die(const char *what)
{
    perror(what);
    abort();
}

static void *take(size_t n)
{
    void *p = malloc(n);
    if (!p) die("malloc");
    return p;
}

static char *join(const char *dir, const char *name)
{
    char *path;
    if (asprintf(&path, "%s/%s", dir, name) < 0) die("asprintf");
    return path;
}

char *files_read(const char *path, size_t *out_n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) < 0) die(path);
    long size = ftell(f);
    if (size < 0 || fseek(f, 0, SEEK_SET) < 0) die(path);
    char *data = take((size_t)size + 1);
    if (fread(data, 1, (size_t)size, f) != (size_t)size) die(path);
    data[size] = '\0';
    fclose(f);
    if (out_n) *out_n = (size_t)size;
    return data;
}

void files_write(const char *dir, const char *name, const void *data, size_t n)
{
    char *path = join(dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) die(path);
    free(path);
}

void files_copy(const char *from_dir, const char *name, const char *to_dir)
{
    size_t n;
    char *path = join(from_dir, name);
    char *data = files_read(path, &n);
    files_write(to_dir, name, data, n);
    free(data);
    free(path);
}

char *files_temp_dir(void)
{
    char *dir = strdup("/tmp/dormouse-test-XXXXXX");
    if (!dir || !mkdtemp(dir)) die("mkdtemp");
    return dir;
}

void files_remove_dir(char *dir)
{
    DIR *d = opendir(dir);
    if (!d) die(dir);
    for (struct dirent *e; (e = readdir(d));) {
        char *path = join(dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
        free(path);
    }
    closedir(d);
    rmdir(dir);
    free(dir);
}

char *files_replace(const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    if (!at || strstr(at + 1, old)) {
        fprintf(stderr, "\"%s\" is not in the text just once\n", old);
        abort();
    }
    char *out;
    if (asprintf(&out, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old)) < 0)
        die("asprintf");
    return out;
}

char *files_safetensors_raw(const char *header, const void *data, size_t bytes,
                            size_t *out_n)
{
    size_t n = strlen(header);
    char *file = take(8 + n + bytes);
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)n >> 8 * i);
    memcpy(file + 8, header, n);
    if (bytes > 0) memcpy(file + 8 + n, data, bytes);
    *out_n = 8 + n + bytes;
    return file;
}

char *files_safetensors(const struct files_tensor *t, size_t n, size_t *out_n)
{
    char *header = NULL;
    size_t size, total = 0;
    FILE *f = open_memstream(&header, &size);
    if (!f) die("open_memstream");
    fputc('{', f);
    for (size_t i = 0; i < n; i++) {
        fprintf(
            f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
            i ? "," : "", t[i].name, t[i].dtype, t[i].shape, total, total + t[i].bytes);
        total += t[i].bytes;
    }
    fputc('}', f);
    if (fclose(f) != 0) die("open_memstream");

    char *data = take(total + 1);
    size_t at = 0;
    for (size_t i = 0; i < n; at += t[i++].bytes)
        memcpy(data + at, t[i].data, t[i].bytes);
    char *file = files_safetensors_raw(header, data, total, out_n);
    free(data);
    free(header);
    return file;
}

void files_write_safetensors(const char *dir, const char *name,
                             const struct files_tensor *t, size_t n)
{
    size_t bytes;
    char *file = files_safetensors(t, n, &bytes);
    files_write(dir, name, file, bytes);
    free(file);
}
