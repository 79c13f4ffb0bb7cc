/* bootstrap_socket.c - TCP connections between the ranks of a job.  See bootstrap_socket.h. */
#include "comm/bootstrap_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm_private.h"
#include "d9d/base/hash.h"
#include "d9d/base/thread.h"

enum {
    MAX_CALLERS = 16,    /* connections whose greeting has not arrived whole */
    GREETING_S = 10,     /* for a greeting and its answer */
    BACKLOG = 4096,      /* the system lowers it */
    KEEPALIVE_IDLE = 30, /* seconds; a host that vanished is noticed after 90 s */
    KEEPALIVE_INTERVAL = 10,
    KEEPALIVE_COUNT = 6
};

/* What a connecting rank sends first; the listener answers with its token. */
struct greeting {
    unsigned char token[D9DI_BOOTSTRAP_TOKEN_BYTES];
    int32_t rank;
    char node[64];
};

d9di_bootstrap_deadline d9di_bootstrap_deadline_in(double timeout_s)
{
    return timeout_s > 0 && timeout_s < INT32_MAX ? d9d_clock_ns() + (int64_t)(timeout_s * 1e9)
                                                  : D9DI_BOOTSTRAP_NO_DEADLINE;
}

static d9di_bootstrap_deadline earlier(d9di_bootstrap_deadline a, d9di_bootstrap_deadline b)
{
    return a < b ? a : b;
}

/* Milliseconds for poll(). */
static int time_left(d9di_bootstrap_deadline end)
{
    const int64_t left = end == D9DI_BOOTSTRAP_NO_DEADLINE ? INT64_MAX : end - d9d_clock_ns();

    if (left == INT64_MAX)
        return -1;
    return left <= 0 ? 0 : left / 1000000 >= INT32_MAX ? INT32_MAX : (int)(left / 1000000) + 1;
}

/* Until one of them is ready.  False at the deadline. */
static bool wait_ready(struct pollfd *list, nfds_t n, d9di_bootstrap_deadline end)
{
    int ready;

    do
        ready = poll(list, n, time_left(end));
    while (ready < 0 && errno == EINTR);
    return ready > 0;
}

/* --- bytes ---------------------------------------------------------------------------------- */

d9d_status d9di_bootstrap_write(int fd, const void *bytes, size_t n, d9di_bootstrap_deadline end,
                                bool *late)
{
    const char *at = bytes;

    *late = false;
    while (n > 0) {
        const ssize_t k = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (k > 0) {
            at += k;
            n -= (size_t)k;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            *late = !wait_ready(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, end);
            if (*late)
                return D9D_ECOMM;
        } else if (errno != EINTR) {
            return D9D_ECOMM;
        }
    }
    return D9D_OK;
}

d9d_status d9di_bootstrap_read(int fd, void *bytes, size_t n, d9di_bootstrap_deadline end,
                               bool *late)
{
    char *at = bytes;

    *late = false;
    while (n > 0) {
        const ssize_t k = recv(fd, at, n, MSG_DONTWAIT);

        if (k > 0) {
            at += k;
            n -= (size_t)k;
        } else if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            *late = !wait_ready(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, end);
            if (*late)
                return D9D_ECOMM;
        } else if (k == 0 || errno != EINTR) {
            return D9D_ECOMM;
        }
    }
    return D9D_OK;
}

/* --- addresses ------------------------------------------------------------------------------ */

/* Ranks of one boot and one network namespace reach each other at the loopback address. */
static uint64_t read_host(void)
{
    struct {
        char boot[D9DI_COMM_HOST_ID_MAX];
        uint64_t space[2];
    } id;
    struct stat s = {0};

    memset(&id, 0, sizeof(id));
    d9di_comm_host_id(id.boot);
    (void)stat("/proc/self/ns/net", &s);
    id.space[0] = (uint64_t)s.st_dev;
    id.space[1] = (uint64_t)s.st_ino;
    return d9d_hash_u64(&id, sizeof(id));
}

static bool to_ip(const struct sockaddr *from, unsigned char out[16])
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    if (from == NULL)
        return false;
    if (from->sa_family == AF_INET) {
        memcpy(out, mapped, sizeof(mapped));
        memcpy(out + sizeof(mapped), &((const struct sockaddr_in *)(const void *)from)->sin_addr,
               4);
        return true;
    }
    if (from->sa_family != AF_INET6)
        return false;
    memcpy(out, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
    return true;
}

static const unsigned char loopback[16] = {[10] = 0xff, 0xff, 127, 0, 0, 1};

/* Of interfaces that are up, IPv4 first; link-local addresses mean nothing elsewhere. */
static void read_interfaces(d9di_bootstrap_address *out)
{
    struct ifaddrs *list = NULL;

    if (getifaddrs(&list) != 0)
        return;
    for (int family = AF_INET;; family = AF_INET6) {
        for (const struct ifaddrs *i = list; i != NULL && out->n < D9DI_BOOTSTRAP_INTERFACES;
             i = i->ifa_next) {
            const unsigned want = IFF_UP | IFF_RUNNING;
            unsigned char ip[16];

            if (i->ifa_addr == NULL || i->ifa_addr->sa_family != family ||
                (i->ifa_flags & want) != want || (i->ifa_flags & IFF_LOOPBACK) != 0 ||
                !to_ip(i->ifa_addr, ip) || (ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80))
                continue;
            memcpy(out->ip[out->n++], ip, sizeof(ip));
        }
        if (family == AF_INET6)
            break;
    }
    freeifaddrs(list);
}

/* A socket for IPv6 and IPv4, or for IPv4 on a host without the other; and the address with it. */
struct endpoint {
    int family;
    socklen_t n;
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } addr;
};

static struct endpoint make_endpoint(const unsigned char ip[16], uint16_t port)
{
    struct endpoint e = {.family = AF_INET6, .n = sizeof(e.addr.v6)};
    unsigned char mapped[16];

    (void)to_ip((const struct sockaddr *)&(struct sockaddr_in){.sin_family = AF_INET}, mapped);
    if (memcmp(ip, mapped, 12) == 0) {
        e = (struct endpoint){.family = AF_INET, .n = sizeof(e.addr.v4)};
        e.addr.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
        memcpy(&e.addr.v4.sin_addr, ip + 12, 4);
    } else {
        e.addr.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        memcpy(&e.addr.v6.sin6_addr, ip, 16);
    }
    return e;
}

static int tcp_socket(int family)
{
    return socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
}

static void set_options(int fd)
{
    const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},
                   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT}};

    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof(options[i].value));
}

/* --- listening ------------------------------------------------------------------------------ */

static bool bind_any(int fd, int family, bool one_host)
{
    const int both = 0;

    if (family == AF_INET) {
        struct sockaddr_in a = {.sin_family = AF_INET};

        a.sin_addr.s_addr = htonl(one_host ? INADDR_LOOPBACK : INADDR_ANY);
        return bind(fd, (const struct sockaddr *)&a, sizeof(a)) == 0;
    }
    return setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof(both)) == 0 &&
           bind(fd,
                (const struct sockaddr *)&(struct sockaddr_in6){.sin6_family = AF_INET6,
                                                                .sin6_addr = in6addr_any},
                sizeof(struct sockaddr_in6)) == 0;
}

/* -1 if this host gives none. */
static int open_listener(bool one_host)
{
    /* The loopback address of IPv4 serves on one host. */
    for (int family = one_host ? AF_INET : AF_INET6;; family = AF_INET) {
        const int fd = tcp_socket(family);

        if (fd >= 0 && bind_any(fd, family, one_host) && listen(fd, BACKLOG) == 0)
            return fd;
        if (fd >= 0)
            (void)close(fd);
        if (family == AF_INET)
            return -1;
    }
}

static bool read_port(int fd, uint16_t *port)
{
    struct endpoint e = {.n = sizeof(e.addr)};

    if (getsockname(fd, &e.addr.any, &e.n) != 0)
        return false;
    *port = ntohs(e.addr.any.sa_family == AF_INET ? e.addr.v4.sin_port : e.addr.v6.sin6_port);
    return true;
}

d9d_status d9di_bootstrap_listen(const char *node, bool listens, bool one_host,
                                 d9di_bootstrap_address *out, int *fd)
{
    memset(out, 0, sizeof(*out));
    *fd = -1;
    (void)snprintf(out->node, sizeof(out->node), "%.*s", (int)sizeof(out->node) - 1, node);
    out->host = read_host();
    if (!listens)
        return D9D_OK;
    if (getrandom(out->token, sizeof(out->token), 0) != (ssize_t)sizeof(out->token))
        return D9D_FAIL(D9D_EIO, "bootstrap: no random bytes: %s", strerror(errno));
    if (one_host) /* also for ranks that take themselves for another host */
        memcpy(out->ip[out->n++], loopback, sizeof(loopback));
    else
        read_interfaces(out);
    *fd = open_listener(one_host);
    if (*fd >= 0 && read_port(*fd, &out->port))
        return D9D_OK;
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
    return D9D_FAIL(D9D_ECOMM, "bootstrap: %s cannot listen for other ranks: %s", node,
                    strerror(errno));
}

/* --- taking connections --------------------------------------------------------------------- */

struct pending {
    int fd;
    size_t got;
    d9di_bootstrap_deadline end;
    struct greeting greeting;
};

struct reception {
    struct pending list[MAX_CALLERS];
    nfds_t n;
};

static void reception_remove(struct reception *r, nfds_t i, bool keep)
{
    if (!keep)
        (void)close(r->list[i].fd);
    r->list[i] = r->list[--r->n];
}

/* One makes room where too many are silent. */
static void reception_add(struct reception *r, int listener)
{
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    if (r->n == MAX_CALLERS)
        reception_remove(r, 0, false);
    r->list[r->n++] = (struct pending){.fd = fd, .end = d9di_bootstrap_deadline_in(GREETING_S)};
}

/* Reads what is there of a greeting.  False if the connection has ended, or is a stranger's. */
static bool greeting_read(struct pending *p, const d9di_bootstrap_address *self)
{
    char *to = (char *)&p->greeting + p->got;
    const ssize_t k = recv(p->fd, to, sizeof(p->greeting) - p->got, MSG_DONTWAIT);

    if (k < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    p->got += (size_t)k;
    return k > 0 && (p->got < sizeof(p->greeting) ||
                     memcmp(p->greeting.token, self->token, sizeof(self->token)) == 0);
}

static bool greeting_answer(struct pending *p, const d9di_bootstrap_address *self,
                            d9di_bootstrap_caller *who)
{
    bool late;

    *who = (d9di_bootstrap_caller){.rank = p->greeting.rank, .fd = p->fd};
    (void)snprintf(who->node, sizeof(who->node), "%.*s", (int)sizeof(who->node) - 1,
                   p->greeting.node);
    set_options(p->fd);
    return d9di_bootstrap_write(p->fd, self->token, sizeof(self->token), p->end, &late) == D9D_OK;
}

/* Waits for a listener and its pending connections; reads what has come. */
static void reception_wait(struct reception *r, int listener, const d9di_bootstrap_address *self,
                           d9di_bootstrap_deadline end)
{
    struct pollfd list[MAX_CALLERS + 1];
    const nfds_t n = r->n;

    for (nfds_t i = 0; i < n; i++) {
        list[i] = (struct pollfd){.fd = r->list[i].fd, .events = POLLIN};
        end = earlier(end, r->list[i].end);
    }
    list[n] = (struct pollfd){.fd = listener, .events = POLLIN};
    (void)wait_ready(list, n + 1, end);
    for (nfds_t i = n; i-- > 0;) {
        struct pending *p = &r->list[i];

        if (list[i].revents != 0 ? !greeting_read(p, self) : d9d_clock_ns() >= p->end)
            reception_remove(r, i, false);
    }
    if (list[n].revents != 0)
        reception_add(r, listener);
}

/* True for a greeting that is whole, once it is answered. */
static bool reception_take(struct reception *r, const d9di_bootstrap_address *self,
                           d9di_bootstrap_caller *who)
{
    for (nfds_t i = r->n; i-- > 0;) {
        struct pending *p = &r->list[i];
        bool answered;

        if (p->got < sizeof(p->greeting))
            continue;
        answered = greeting_answer(p, self, who);
        reception_remove(r, i, answered);
        if (answered)
            return true;
    }
    return false;
}

static void callers_add(d9di_bootstrap_caller *list, int *n, const d9di_bootstrap_caller *who)
{
    for (int i = 0; i < *n; i++)
        if (list[i].rank == who->rank) {
            (void)close(list[i].fd);
            list[i] = *who;
            return;
        }
    list[(*n)++] = *who;
}

d9d_status d9di_bootstrap_accept(int listener, const d9di_bootstrap_address *self, int n,
                                 d9di_bootstrap_deadline end, d9di_bootstrap_caller *out, int *got)
{
    struct reception r = {.n = 0};
    d9di_bootstrap_caller who;

    *got = 0;
    while (*got < n && (end == D9DI_BOOTSTRAP_NO_DEADLINE || d9d_clock_ns() < end)) {
        reception_wait(&r, listener, self, end);
        while (*got < n && reception_take(&r, self, &who))
            callers_add(out, got, &who);
    }
    while (r.n > 0)
        reception_remove(&r, 0, false);
    return *got == n ? D9D_OK
                     : D9D_FAIL(D9D_ECOMM, "bootstrap: %d of %d ranks have connected to %s", *got,
                                n, self->node);
}

/* --- connecting ------------------------------------------------------------------------------- */

enum { MAX_DIALS = D9DI_BOOTSTRAP_INTERFACES };

/* One attempt for each address of the listener, all at once. */
struct dial {
    struct pollfd list[MAX_DIALS];
    nfds_t n;
};

static void dial_add(struct dial *d, const unsigned char ip[16], uint16_t port)
{
    const struct endpoint e = make_endpoint(ip, port);
    const int fd = tcp_socket(e.family);

    if (fd >= 0 && (connect(fd, &e.addr.any, e.n) == 0 || errno == EINPROGRESS))
        d->list[d->n++] = (struct pollfd){.fd = fd, .events = POLLOUT};
    else if (fd >= 0)
        (void)close(fd);
}

static void dial_start(struct dial *d, const d9di_bootstrap_address *to, bool same_host)
{
    if (same_host)
        dial_add(d, loopback, to->port);
    for (int i = 0; !same_host && i < to->n && i < MAX_DIALS; i++)
        dial_add(d, to->ip[i], to->port);
}

static bool is_connected(int fd)
{
    socklen_t n = sizeof(int);
    int error = 0;

    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0;
}

/* True if who listens there knows its token. */
static bool greet(int fd, const struct greeting *own, d9di_bootstrap_deadline end)
{
    unsigned char answer[D9DI_BOOTSTRAP_TOKEN_BYTES];
    bool late;

    end = earlier(end, d9di_bootstrap_deadline_in(GREETING_S));
    return d9di_bootstrap_write(fd, own, sizeof(*own), end, &late) == D9D_OK &&
           d9di_bootstrap_read(fd, answer, sizeof(answer), end, &late) == D9D_OK &&
           memcmp(answer, own->token, sizeof(answer)) == 0;
}

/* The first attempt that is answered; -1 when none is left, or at the deadline. */
static int dial_finish(struct dial *d, const struct greeting *own, d9di_bootstrap_deadline end)
{
    int fd = -1;

    while (fd < 0 && d->n > 0 && wait_ready(d->list, d->n, end)) {
        for (nfds_t i = d->n; i-- > 0 && fd < 0;) {
            const int x = d->list[i].fd;

            if (d->list[i].revents == 0)
                continue;
            d->list[i] = d->list[--d->n];
            if (is_connected(x) && greet(x, own, end))
                fd = x;
            else
                (void)close(x);
        }
    }
    while (d->n > 0)
        (void)close(d->list[--d->n].fd);
    return fd;
}

d9d_status d9di_bootstrap_dial(const d9di_bootstrap_address *to, int rank,
                               const d9di_bootstrap_address *self, d9di_bootstrap_deadline end,
                               int *fd)
{
    struct greeting own = {.rank = rank};
    struct dial d = {.n = 0};

    memcpy(own.token, to->token, sizeof(own.token));
    memcpy(own.node, self->node, sizeof(own.node));
    dial_start(&d, to, to->host == self->host);
    *fd = dial_finish(&d, &own, end);
    if (*fd < 0)
        return D9D_FAIL(D9D_ECOMM,
                        "bootstrap: rank %d cannot reach port %u of %s at any of its %u addresses",
                        rank, (unsigned)to->port, to->node, (unsigned)to->n);
    set_options(*fd);
    return D9D_OK;
}
