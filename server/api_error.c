/* api_error.c - errors as OpenAI's clients expect them. */
#include "kernels/utf8.h"
#include "server/api_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *type_of(int status)
{
    if (status == 429) return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

/* Does the format take no text, which could be the client's? */
static bool takes_numbers_only(const char *fmt)
{
    for (const char *p = fmt; (p = strchr(p, '%')); p++) {
        p += 1 + strcspn(p + 1, "diouxXeEfFgGaAcspn%");
        if (!*p || strchr("csp", *p)) return false;
    }
    return true;
}

int api_fail(struct api_error *e, int status, const char *code, const char *param,
             const char *fmt, ...)
{
    *e = (struct api_error){.status = status, .type = type_of(status), .code = code};
    if (param) snprintf(e->param, sizeof e->param, "%s", param);

    va_list args;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    if (takes_numbers_only(fmt)) snprintf(e->why, sizeof e->why, "%.159s", e->message);
    return -EINVAL;
}

void api_error_json(const struct api_error *e, struct bytes *out)
{
    /* A message that was cut may end within a character; writing mends that. */
    cJSON *root = cJSON_CreateObject();
    cJSON *error = api_put(out, root, "error", cJSON_CreateObject());
    api_put_text(out, error, "message", e->message, strlen(e->message));
    api_put(out, error, "type", cJSON_CreateString(e->type));
    if (e->param[0]) {
        api_put_text(out, error, "param", e->param, strlen(e->param));
    } else {
        api_put(out, error, "param", cJSON_CreateNull());
    }
    api_put(out, error, "code",
            e->code ? cJSON_CreateString(e->code) : cJSON_CreateNull());
    api_json_print(out, root);
}
