/* http_files.c - descriptors: each connection needs one. */
#include "server/http_internal.h"

#include "server/log.h"

#include <sys/resource.h>

#define FILES_A_THREAD    3   // of the library
#define SPARE_FILES       24  // of connections that make room, and of what is read
#define LEAST_CONNECTIONS 8

int http_limit_connections(const struct options *o, int listening, uint32_t *most,
                           struct err *err)
{
    rlim_t taken = (rlim_t)listening + 1 + SPARE_FILES +
                   (rlim_t)FILES_A_THREAD * (o->http_threads + 1);
    rlim_t want = taken + o->max_connections, least = taken + LEAST_CONNECTIONS;
    struct rlimit l;
    *most = o->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= want) return 0;

    struct rlimit more = {.rlim_cur = l.rlim_max < want ? l.rlim_max : want,
                          .rlim_max = l.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &more) == 0) l = more;
    if (l.rlim_cur >= want) return 0;
    if (l.rlim_cur < least)
        return err_set(err, -EMFILE,
                       "this process may open %llu files, but it needs at least %llu; "
                       "raise the limit (ulimit -n)",
                       (unsigned long long)l.rlim_cur, (unsigned long long)least);
    *most = (uint32_t)(l.rlim_cur - taken);
    log_line(LOG_WARN,
             "this process may open %llu files, so at most %u connections are served; "
             "for max_connections %u raise the limit to %llu (ulimit -n)",
             (unsigned long long)l.rlim_cur, *most, o->max_connections,
             (unsigned long long)want);
    return 0;
}
