/* safetensors.c - the tensors of a model directory, from one file or from shards.
 *
 * With an index, each tensor comes from the shard that the index names and from no
 * other: what else lies in a shard or beside it is not in the set.  What is in no file
 * that the index names is missing, and never zeros.
 */
#include "model/safetensors.h"

#include "kernels/json.h"
#include "model/file_map.h"
#include "model/safetensors_header.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

struct shard {
    char *name;  // base name
    struct file_map map;
};

struct tensor_set {
    char *source;  // what decides which tensors there are, for messages
    struct tensor_list list;
    struct shard *shards;
    uint32_t n_shards;
};

/* One entry of an index. */
struct place {
    char *tensor, *file;
};

static int no_memory(struct err *err, const char *what)
{
    return err_set(err, -ENOMEM, "%s: no memory for its tensors", what);
}

static int set_alloc(struct tensor_set **out, const char *source, uint32_t max_shards,
                     struct err *err)
{
    struct tensor_set *s = calloc(1, sizeof *s);
    if (s) {
        s->source = strdup(source);
        s->shards = calloc(max_shards, sizeof *s->shards);
    }
    if (!s || !s->source || !s->shards) {
        safetensors_close(s);
        return no_memory(err, source);
    }
    *out = s;
    return 0;
}

void safetensors_close(struct tensor_set *s)
{
    if (!s) return;
    tensor_list_free(&s->list);
    for (uint32_t i = 0; i < s->n_shards; i++) {
        file_map_close(&s->shards[i].map);
        free(s->shards[i].name);
    }
    free(s->shards);
    free(s->source);
    free(s);
}

/* Map dir/file as the set's next shard and list what it holds. */
static int open_shard(struct tensor_set *s, const char *dir, const char *file,
                      struct tensor_list *out, struct err *err)
{
    struct shard *shard = &s->shards[s->n_shards];
    char *path = file_path(dir, file);
    shard->name = strdup(file);
    s->n_shards++;
    int rc = path && shard->name ? file_map_open(&shard->map, path, err)
                                 : no_memory(err, file);
    if (rc == 0)
        rc = safetensors_header(out, shard->map.data, shard->map.size, path,
                                shard->name, err);
    free(path);
    return rc;
}

/* ---- the index ---- */

static int compare_places(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    int order = strcmp(a->file, b->file);
    return order ? order : strcmp(a->tensor, b->tensor);
}

/* A string without a NUL in it, or NULL. */
static char *plain_string(struct json_value v)
{
    size_t n;
    char *s = json_string_dup(v, &n);
    if (s && strlen(s) == n) return s;
    free(s);
    return NULL;
}

static int read_place(struct place *p, struct json_iter *i, const char *path,
                      struct err *err)
{
    p->tensor = plain_string(i->key);
    p->file = plain_string(i->value);
    if (!p->tensor || !p->file)
        return err_set(err, -EINVAL,
                       "%s: weight_map does not name a file for each tensor", path);
    if (p->file[0] == '\0' || strchr(p->file, '/') || strstr(p->file, ".."))
        return err_set(
            err, -EINVAL,
            "%s: tensor %s is placed in \"%s\", which is not the name of a file "
            "in the same directory",
            path, p->tensor, p->file);
    return 0;
}

/* The index as an array of places by file, then name; *n counts what is filled. */
static int read_places(struct json_value map, struct place *places, uint32_t *n,
                       const char *path, struct err *err)
{
    for (struct json_iter i = json_iter(map); json_next(&i);) {
        int rc = read_place(&places[(*n)++], &i, path, err);
        if (rc < 0) return rc;
    }
    qsort(places, *n, sizeof *places, compare_places);
    return 0;
}

/* Move the tensors of n places, all of one file, from its list to the set. */
static int take_tensors(struct tensor_set *s, const struct place *places, uint32_t n,
                        struct tensor_list *from, struct err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        struct tensor *t = tensor_list_find(from, places[i].tensor);
        if (!t)
            return err_set(err, -EINVAL,
                           "%s: tensor %s is placed in %s, which does not hold it",
                           s->source, places[i].tensor, places[i].file);
        char *name = strdup(t->name);
        if (!name) return no_memory(err, s->source);
        s->list.at[s->list.n] = *t;
        s->list.at[s->list.n++].name = name;
    }
    return 0;
}

static int open_places(struct tensor_set *s, const char *dir,
                       const struct place *places, uint32_t n, struct err *err)
{
    s->list.at = calloc(n, sizeof *s->list.at);
    if (!s->list.at) return no_memory(err, s->source);

    for (uint32_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n; end++) {
            if (strcmp(places[end].file, places[first].file) != 0) break;
        }
        struct err why = {0};
        struct tensor_list list = {0};
        int rc = open_shard(s, dir, places[first].file, &list, &why);
        if (rc == -ENOENT)
            return err_set(err, -EINVAL, "%s: places tensor %s in %s, which is missing",
                           s->source, places[first].tensor, places[first].file);
        if (rc < 0) return err_set(err, rc, "%s", why.msg);
        rc = take_tensors(s, places + first, end - first, &list, err);
        tensor_list_free(&list);
        if (rc < 0) return rc;
    }
    tensor_list_sort(&s->list);
    return 0;
}

static int open_weight_map(struct tensor_set **out, const char *dir, const char *path,
                           struct json_value map, struct err *err)
{
    uint32_t count = json_count(map), n = 0;
    if (!json_is(map, JSON_OBJECT) || count == 0)
        return err_set(
            err, -EINVAL,
            "%s: weight_map is %s; expected an object of at least one tensor", path,
            json_type_name(map));

    struct tensor_set *s = NULL;
    struct place *places = calloc(count, sizeof *places);
    int rc = places ? read_places(map, places, &n, path, err) : no_memory(err, path);
    if (rc == 0) rc = set_alloc(&s, path, count, err);
    if (rc == 0) rc = open_places(s, dir, places, n, err);
    for (uint32_t i = 0; i < n; i++) {
        free(places[i].tensor);
        free(places[i].file);
    }
    free(places);
    if (rc < 0) {
        safetensors_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

static int open_index(struct tensor_set **out, const char *dir, const char *path,
                      const struct file_map *text, struct err *err)
{
    struct err why = {0};
    struct json *doc = NULL;
    int rc = json_open(&doc, text->data, text->size, JSON_MAX_DEPTH, &why);
    if (rc < 0) return err_set(err, rc, "%s: %s", path, why.msg);
    rc = open_weight_map(out, dir, path, json_get(json_root(doc), "weight_map"), err);
    json_close(doc);
    return rc;
}

/* ---- opening ---- */

static int open_single(struct tensor_set **out, const char *dir, struct err *err)
{
    char *path = file_path(dir, SINGLE);
    if (!path) return no_memory(err, dir);

    struct err why = {0};
    struct tensor_set *s = NULL;
    int rc = set_alloc(&s, path, 1, &why);
    if (rc == 0) rc = open_shard(s, dir, SINGLE, &s->list, &why);
    free(path);
    if (rc < 0) {
        safetensors_close(s);
        if (rc == -ENOENT)
            return err_set(err, rc, "%s: holds neither " INDEX " nor " SINGLE, dir);
        return err_set(err, rc, "%s", why.msg);
    }
    *out = s;
    return 0;
}

int safetensors_open_dir(struct tensor_set **out, const char *dir, struct err *err)
{
    struct err why = {0};
    struct file_map text;
    char *path = file_path(dir, INDEX);
    if (!path) return no_memory(err, dir);

    int rc = file_map_open(&text, path, &why);
    if (rc == -ENOENT) {
        rc = open_single(out, dir, err);
    } else if (rc < 0) {
        err_set(err, rc, "%s", why.msg);
    } else {
        rc = open_index(out, dir, path, &text, err);
        file_map_close(&text);
    }
    free(path);
    return rc;
}

int safetensors_parse(struct tensor_set **out, const void *data, size_t n,
                      const char *name, struct err *err)
{
    struct tensor_set *s = NULL;
    int rc = set_alloc(&s, name, 1, err);
    if (rc < 0) return rc;
    rc = safetensors_header(&s->list, data, n, s->source, s->source, err);
    if (rc < 0) {
        safetensors_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* ---- access ---- */

const struct tensor *safetensors_find(const struct tensor_set *s, const char *name)
{
    return tensor_list_find(&s->list, name);
}

uint32_t safetensors_count(const struct tensor_set *s)
{
    return s->list.n;
}

const struct tensor *safetensors_at(const struct tensor_set *s, uint32_t i)
{
    return &s->list.at[i];
}

const struct tensor *safetensors_expect(const struct tensor_set *s, const char *name,
                                        uint32_t n_dims, const uint64_t *dims,
                                        struct err *err)
{
    char want[TENSOR_SHAPE_TEXT], found[TENSOR_SHAPE_TEXT];
    tensor_shape_text(want, sizeof want, n_dims, dims);

    const struct tensor *t = safetensors_find(s, name);
    if (!t) {
        err_set(err, -EINVAL, "%s: tensor %s is missing; expected shape %s", s->source,
                name, want);
        return NULL;
    }
    if (!t->float_type) {
        err_set(err, -EINVAL, "%s: tensor %s has type %s; expected F32, F16 or BF16",
                t->file, name, t->dtype_name);
        return NULL;
    }
    if (t->n_dims != n_dims || memcmp(t->dims, dims, n_dims * sizeof *dims) != 0) {
        err_set(err, -EINVAL, "%s: tensor %s has shape %s; expected %s", t->file, name,
                tensor_shape_text(found, sizeof found, t->n_dims, t->dims), want);
        return NULL;
    }
    return t;
}

void safetensors_release_pages(const struct tensor_set *s)
{
    for (uint32_t i = 0; i < s->n_shards; i++)
        file_map_release_pages(&s->shards[i].map);
}
