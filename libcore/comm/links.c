/* links.c - see d9d/comm/links.h. */
#include "d9d/comm/links.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/bootstrap_socket.h"
#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"

enum { BURST = 4 << 20 }; /* bytes of one system call */

struct d9d_links {
    int rank, target; /* itself: sends to none */
    int out;          /* the connection with the target; -1: none */
    int n;            /* sources */
    int *source;      /* [n], ascending */
    int *in;          /* [n]: their connections; -1: none yet */
    int cancelled;    /* an eventfd, readable once it is */
    d9d_links_bytes *left;
    struct pollfd *polled; /* [n + 2]: sources, target, cancelled */
};

/* --- connecting ------------------------------------------------------------------------------- */

/* A thread takes the connections of the sources, while this rank connects with its target, which
 * may be doing the same. */
typedef struct reception {
    d9d_links *x;
    int listener;
    d9di_bootstrap_address self;
    d9di_bootstrap_deadline end;
    d9di_bootstrap_caller *callers; /* [sources] */
    int got;
    d9d_err_copy result;
} reception;

static void caller_place(d9d_links *x, const d9di_bootstrap_caller *who)
{
    for (int i = 0; i < x->n; i++)
        if (x->source[i] == who->rank) {
            x->in[i] = who->fd;
            return;
        }
    (void)close(who->fd);
}

static void *sources_accept(void *arg)
{
    reception *r = arg;
    const d9d_status st =
        d9di_bootstrap_accept(r->listener, &r->self, r->x->n, r->end, r->callers, &r->got);

    for (int i = 0; i < r->got; i++)
        caller_place(r->x, &r->callers[i]);
    d9d_err_save(&r->result, st);
    return NULL;
}

static d9d_status target_dial(d9d_links *x, const reception *r, const d9d_bootstrap_blob *all)
{
    d9di_bootstrap_address to;

    if (x->target == x->rank)
        return D9D_OK;
    if (all[x->target].n != sizeof(to))
        return D9D_FAIL(D9D_ECOMM, "rank %d gave %zu bytes as its address, not %zu", x->target,
                        all[x->target].n, sizeof(to));
    memcpy(&to, all[x->target].data, sizeof(to));
    return d9di_bootstrap_dial(&to, x->rank, &r->self, r->end, &x->out);
}

static d9d_status connect_all(d9d_links *x, reception *r, const d9d_bootstrap_blob *all)
{
    d9d_thread_sigmask before;
    pthread_t thread;
    d9d_status st;
    int rc;

    if (x->n == 0)
        return target_dial(x, r, all);
    d9d_thread_block_signals(&before);
    rc = pthread_create(&thread, NULL, sources_accept, r);
    d9d_thread_restore_signals(&before);
    if (rc != 0)
        return D9D_FAIL(D9D_ENOMEM, "no thread for connections between ranks: %s", strerror(rc));
    st = target_dial(x, r, all);
    (void)pthread_join(thread, NULL);
    return st == D9D_OK ? d9d_err_restore(&r->result) : st;
}

static d9d_status links_connect(d9d_links *x, d9d_bootstrap *bootstrap, double timeout_s)
{
    reception r = {.x = x, .listener = -1};
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_status st;

    r.callers = d9d_arena_alloc(&a, ((size_t)x->n + 1) * sizeof(*r.callers));
    st = r.callers != NULL ? d9di_bootstrap_listen(d9d_bootstrap_node(bootstrap), x->n > 0, false,
                                                   &r.self, &r.listener)
                           : D9D_FAIL(D9D_ENOMEM, "no memory for %d connections", x->n);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(bootstrap, &r.self, sizeof(r.self), &a, &all),
               out);
    r.end = d9di_bootstrap_deadline_in(timeout_s);
    st = connect_all(x, &r, all);
out:
    if (r.listener >= 0)
        (void)close(r.listener);
    d9d_arena_release(&a);
    return st;
}

static d9d_status links_make(d9d_links *x, d9d_bootstrap *bootstrap, const int *target)
{
    const int ranks = d9d_bootstrap_size(bootstrap);
    size_t n = 0;

    x->rank = d9d_bootstrap_rank(bootstrap);
    x->target = target[x->rank];
    x->out = -1;
    for (int r = 0; r < ranks; r++)
        n += target[r] == x->rank && r != x->rank;
    x->source = calloc(n + 1, sizeof(*x->source));
    x->in = calloc(n + 1, sizeof(*x->in));
    x->left = calloc(n + 1, sizeof(*x->left));
    x->polled = calloc(n + 2, sizeof(*x->polled));
    if (x->source == NULL || x->in == NULL || x->left == NULL || x->polled == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu connections", n);
    for (int r = 0; r < ranks; r++)
        if (target[r] == x->rank && r != x->rank) {
            x->in[x->n] = -1;
            x->source[x->n++] = r;
        }
    x->cancelled = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return x->cancelled >= 0
               ? D9D_OK
               : D9D_FAIL(D9D_EIO, "connections between ranks: no eventfd: %s", strerror(errno));
}

d9d_status d9d_links_open(d9d_bootstrap *bootstrap, const int *target, double timeout_s,
                          d9d_links **out)
{
    d9d_links *x = calloc(1, sizeof(*x));
    d9d_status st = x != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for connections");

    if (x != NULL)
        x->cancelled = -1;
    if (st == D9D_OK)
        st = links_make(x, bootstrap, target);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(bootstrap, st), out);
    D9D_TRY_OR(st, links_connect(x, bootstrap, timeout_s), out);
    *out = x;
    x = NULL;
out:
    d9d_links_close(x);
    return st;
}

void d9d_links_close(d9d_links *x)
{
    if (x == NULL)
        return;
    for (int i = 0; i < x->n; i++)
        if (x->in[i] >= 0)
            (void)close(x->in[i]);
    if (x->out >= 0)
        (void)close(x->out);
    if (x->cancelled >= 0)
        (void)close(x->cancelled);
    free(x->source);
    free(x->in);
    free(x->left);
    free(x->polled);
    free(x);
}

int d9d_links_sources(const d9d_links *x, const int **ranks)
{
    *ranks = x->source;
    return x->n;
}

/* --- exchanges -------------------------------------------------------------------------------- */

static bool is_later(ssize_t k)
{
    return k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static void advance(d9d_links_bytes *left, ssize_t k)
{
    left->data = (char *)left->data + k;
    left->n -= (size_t)k;
}

static size_t burst_of(const d9d_links_bytes *left)
{
    return left->n < BURST ? left->n : BURST;
}

/* Some more bytes of a connection that is ready. */
static d9d_status send_some(d9d_links *x, d9d_links_bytes *left)
{
    const ssize_t k = send(x->out, left->data, burst_of(left), MSG_NOSIGNAL | MSG_DONTWAIT);

    if (k > 0)
        advance(left, k);
    else if (!is_later(k))
        return D9D_FAIL(D9D_ECOMM,
                        "the connection with rank %d ended, %zu bytes before all had "
                        "been sent",
                        x->target, left->n);
    return D9D_OK;
}

static d9d_status receive_some(d9d_links *x, int i)
{
    d9d_links_bytes *left = &x->left[i];
    const ssize_t k = recv(x->in[i], left->data, burst_of(left), MSG_DONTWAIT);

    if (k > 0)
        advance(left, k);
    else if (!is_later(k))
        return D9D_FAIL(D9D_ECOMM,
                        "the connection with rank %d ended, %zu bytes before all had "
                        "come",
                        x->source[i], left->n);
    return D9D_OK;
}

/* Waits for the connections with bytes left; one without is not looked at.  False if there is none.
 */
static bool wait_ready(d9d_links *x, const d9d_links_bytes *sent)
{
    bool any = sent->n > 0;

    for (int i = 0; i < x->n; i++) {
        x->polled[i] = (struct pollfd){.fd = x->left[i].n > 0 ? x->in[i] : -1, .events = POLLIN};
        any = any || x->left[i].n > 0;
    }
    x->polled[x->n] = (struct pollfd){.fd = sent->n > 0 ? x->out : -1, .events = POLLOUT};
    x->polled[x->n + 1] = (struct pollfd){.fd = x->cancelled, .events = POLLIN};
    while (any && poll(x->polled, (nfds_t)x->n + 2, -1) < 0 && errno == EINTR)
        ;
    return any;
}

d9d_status d9d_links_exchange(d9d_links *x, const d9d_links_bytes *sent,
                              const d9d_links_bytes *received)
{
    d9d_links_bytes left = x->out >= 0 ? *sent : (d9d_links_bytes){NULL, 0};

    if (x->n > 0)
        memcpy(x->left, received, (size_t)x->n * sizeof(*received));
    while (wait_ready(x, &left)) {
        if (x->polled[x->n + 1].revents != 0)
            return D9D_FAIL(D9D_ECOMM, "the transfer between ranks was cancelled");
        for (int i = 0; i < x->n; i++)
            if (x->polled[i].revents != 0)
                D9D_TRY(receive_some(x, i));
        if (x->polled[x->n].revents != 0)
            D9D_TRY(send_some(x, &left));
    }
    return D9D_OK;
}

void d9d_links_cancel(d9d_links *x)
{
    const uint64_t one = 1;

    if (x != NULL && write(x->cancelled, &one, sizeof(one)) < 0)
        return; /* it is full, and so cancelled already */
}
