#include "server/api_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int api_open(struct api **out, const struct api_options *o, struct err *err)
{
    if (o->max_choices == 0 || o->max_choices > REQUEST_MAX_CHOICES) {
        return err_set(err, -EINVAL, "max_choices is %u, but must be from 1 to %d",
                       o->max_choices, REQUEST_MAX_CHOICES);
    }
    struct api *a = malloc(sizeof *a);
    if (!a) return err_set(err, -ENOMEM, "no memory for the API");
    *a = (struct api){
        .o = *o,
        .capacity = engine_capacity(o->engine),
        .event_text = engine_event_text_max(o->engine),
    };
    *out = a;
    return 0;
}

bool api_failed(const struct api *a)
{
    return engine_failure(a->o.engine, NULL);
}

void api_close(struct api *a)
{
    free(a);
}

/* ---- a call ---- */

static int check_sizes(const struct api *a, enum api_kind kind,
                       const struct api_prompts *p, struct api_error *e)
{
    const char *what = kind == API_CHAT ? "messages" : "prompt";
    for (uint32_t i = 0; i < p->n; i++) {
        size_t n = p->list[i].n_ids;
        if (n == 0) {
            return api_fail(e, 400, "invalid_value", what, "%s has no tokens", what);
        }
        if (n >= a->capacity) {
            return api_too_long(a, e, what, "", n);
        }
    }
    return 0;
}

int api_prepare(struct api *a, enum api_kind kind, const char *body, size_t n,
                uint32_t tenant, struct api_call **out, struct api_error *e)
{
    struct api_body b;
    struct api_prompts p = {0};
    int rc = api_body_read(a, kind, body, n, &b, e);
    if (rc == 0) {
        rc = kind == API_CHAT ? api_chat_prompts(a, &b, &p, e)
                              : api_completion_prompts(a, &b, &p, e);
    }
    if (rc == 0) rc = check_sizes(a, kind, &p, e);
    if (rc == 0) rc = api_call_make(a, kind, &b, &p, tenant, out, e);
    api_prompts_free(&p);
    api_body_free(&b);
    if (rc < 0 && a->o.metrics) {
        metrics_outcome(a->o.metrics,
                        e->status < 500 ? OUTCOME_INVALID : OUTCOME_ERROR);
    }
    return rc;
}

/* ---- the models ---- */

static cJSON *model(const struct api *a, struct bytes *out)
{
    const char *name = a->o.model_name;
    cJSON *m = cJSON_CreateObject();
    api_put_text(out, m, "id", name, strlen(name));
    api_put(out, m, "object", cJSON_CreateString("model"));
    api_put(out, m, "created", cJSON_CreateNumber((double)a->o.created));
    api_put(out, m, "owned_by", cJSON_CreateString("dormouse"));
    api_put(out, m, "max_model_len", cJSON_CreateNumber(a->capacity));
    return m;
}

void api_models_json(const struct api *a, struct bytes *out)
{
    cJSON *root = cJSON_CreateObject();
    api_put(out, root, "object", cJSON_CreateString("list"));
    cJSON *data = api_put(out, root, "data", cJSON_CreateArray());
    api_put(out, data, NULL, model(a, out));
    api_json_print(out, root);
}

int api_model_json(const struct api *a, const char *id, struct bytes *out,
                   struct api_error *e)
{
    if (strcmp(id, a->o.model_name) == 0) {
        api_json_print(out, model(a, out));
        return 0;
    }
    api_fail(e, 404, "model_not_found", "model",
             "the model \"%.*s\" does not exist here; this server has \"%s\"",
             API_SHOWN, id, a->o.model_name);
    return -ENOENT;
}
