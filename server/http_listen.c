/* http_listen.c - the listening socket: where, and whether that is wise. */
#include "server/http_internal.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024
/* What the system may hold of answers that a client does not read. */
#define SEND_BUFFER (256 << 10)

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
    /* An IPv4 address within IPv6, ::ffff:127.0.0.1, reaches no further than that one. */
    return IN6_IS_ADDR_LOOPBACK(v6) ||
           (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

/* A socket that listens there, or -errno. */
static int listen_at(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -errno;
    int on = 1, off = 0, buffer = SEND_BUFFER;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a->ai_addr, a->ai_addrlen) || listen(fd, BACKLOG)) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

static void describe(int fd, const char *host, char *address, size_t cap)
{
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    getsockname(fd, (struct sockaddr *)&at, &n);
    bool v6 = at.ss_family == AF_INET6;
    unsigned port = ntohs(v6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                             : ((struct sockaddr_in *)&at)->sin_port);
    bool brackets = strchr(host, ':');
    snprintf(address, cap, "http://%s%s%s:%u", brackets ? "[" : "", host,
             brackets ? "]" : "", port);
}

static int check_exposure(const struct options *o, bool keys, const struct sockaddr *a,
                          struct err *err)
{
    if (keys || o->allow_open || is_loopback(a)) return 0;
    return err_set(err, -EPERM,
                   "host %s is beyond loopback and no keys are set, so anybody who "
                   "reaches it could use the server; set keys, or --allow-open "
                   "if that is meant",
                   o->host);
}

int http_listen(const struct options *o, bool keys, int *fd, char *address, size_t cap,
                struct err *err)
{
    char port[8];
    snprintf(port, sizeof port, "%u", o->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(o->host, port, &hints, &found);
    if (rc)
        return err_set(err, -EINVAL, "host %s is no address to listen on: %s", o->host,
                       gai_strerror(rc));

    int last = -EADDRNOTAVAIL;
    bool open = false;
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        open = (last = check_exposure(o, keys, a->ai_addr, err)) < 0;
        if (open) break;
        last = *fd = listen_at(a);
        if (last >= 0) break;
    }
    freeaddrinfo(found);
    if (last >= 0) {
        describe(*fd, o->host, address, cap);
        return 0;
    }
    if (open) return last;
    return err_set(err, last, "cannot listen on %s port %u: %s%s", o->host, o->port,
                   strerror(-last),
                   last == -EADDRINUSE ? "; --port N takes another, --port 0 any" : "");
}
