/* bootstrap_tree.c - small exchanges of all ranks over TCP.  See bootstrap_tree.h. */
#include "comm/bootstrap_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_private.h"
#include "d9d/base/mem.h"
#include "d9d/base/num_format.h"

enum { MAX_CHILDREN = 31 };

struct link {
    int peer, fd; /* fd -1: not connected */
    char node[64];
};

struct d9di_bootstrap_tree {
    int rank, size, n_children;
    struct link parent, children[MAX_CHILDREN];
    d9di_bootstrap_traffic traffic;
};

/* --- shape ------------------------------------------------------------------------------------ */

int d9di_bootstrap_tree_parent(int rank)
{
    return rank > 0 ? rank & (rank - 1) : -1;
}

int d9di_bootstrap_tree_child(int rank, int size, int i)
{
    const int64_t step = (int64_t)1 << i, reach = rank > 0 ? rank & -rank : size;

    return i < MAX_CHILDREN && step < reach && rank + step < size ? (int)(rank + step) : -1;
}

d9d_status d9di_bootstrap_tree_create(int rank, int size, d9di_bootstrap_tree **out)
{
    d9di_bootstrap_tree *t = calloc(1, sizeof(*t));
    int child;

    if (t == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory");
    t->rank = rank;
    t->size = size;
    t->parent = (struct link){.peer = d9di_bootstrap_tree_parent(rank), .fd = -1};
    while ((child = d9di_bootstrap_tree_child(rank, size, t->n_children)) >= 0)
        t->children[t->n_children++] = (struct link){.peer = child, .fd = -1};
    *out = t;
    return D9D_OK;
}

static void link_close(struct link *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
}

void d9di_bootstrap_tree_free(d9di_bootstrap_tree *t)
{
    if (t == NULL)
        return;
    link_close(&t->parent);
    for (int i = 0; i < t->n_children; i++)
        link_close(&t->children[i]);
    free(t);
}

d9di_bootstrap_traffic d9di_bootstrap_tree_traffic(const d9di_bootstrap_tree *t)
{
    return t->traffic;
}

/* --- connections ------------------------------------------------------------------------------ */

/* NULL for a rank that is no neighbour. */
static struct link *find_link(d9di_bootstrap_tree *t, int peer)
{
    if (peer == t->parent.peer)
        return &t->parent;
    for (int i = 0; i < t->n_children; i++)
        if (t->children[i].peer == peer)
            return &t->children[i];
    return NULL;
}

void d9di_bootstrap_tree_attach(d9di_bootstrap_tree *t, int peer, const char *node, int fd)
{
    struct link *l = find_link(t, peer);

    if (l == NULL) {
        (void)close(fd);
        return;
    }
    link_close(l);
    l->fd = fd;
    (void)snprintf(l->node, sizeof(l->node), "%s", node);
}

static d9d_status accept_children(d9di_bootstrap_tree *t, int listener,
                                  const d9di_bootstrap_address *self, d9di_bootstrap_deadline end)
{
    d9di_bootstrap_caller callers[MAX_CHILDREN];
    int got;
    const d9d_status st = d9di_bootstrap_accept(listener, self, t->n_children, end, callers, &got);

    for (int i = 0; i < got; i++)
        d9di_bootstrap_tree_attach(t, callers[i].rank, callers[i].node, callers[i].fd);
    D9D_TRY(st);
    for (int i = 0; i < t->n_children; i++)
        if (t->children[i].fd < 0)
            return D9D_FAIL(D9D_ECOMM, "bootstrap: another rank than %d has connected to rank %d",
                            t->children[i].peer, t->rank);
    return D9D_OK;
}

d9d_status d9di_bootstrap_tree_connect(d9di_bootstrap_tree *t, int listener,
                                       const d9di_bootstrap_address *self,
                                       const d9di_bootstrap_address *parent, double timeout_s)
{
    const d9di_bootstrap_deadline end = d9di_bootstrap_deadline_in(timeout_s);
    int fd;

    if (t->n_children > 0)
        D9D_TRY(accept_children(t, listener, self, end));
    if (t->rank == 0)
        return D9D_OK;
    D9D_TRY(d9di_bootstrap_dial(parent, t->rank, self, end, &fd));
    d9di_bootstrap_tree_attach(t, t->parent.peer, parent->node, fd);
    return D9D_OK;
}

/* --- frames ----------------------------------------------------------------------------------- */

/* A frame is its length in 8 bytes, and its bytes. */
static d9d_status fail_link(const d9di_bootstrap_tree *t, const struct link *l, bool late,
                            double timeout_s)
{
    if (late)
        return D9D_FAIL(D9D_ECOMM,
                        "bootstrap: rank %d waits since %.0f s for rank %d (%s), or one behind it, "
                        "which has not come so far or stands still",
                        t->rank, timeout_s, l->peer, l->node);
    return D9D_FAIL(D9D_ECOMM,
                    "bootstrap: rank %d has lost its connection to rank %d (%s), which "
                    "may have ended",
                    t->rank, l->peer, l->node);
}

/* Of one exchange. */
struct wait {
    double timeout_s;
    d9di_bootstrap_deadline end;
};

static struct wait wait_begin(double timeout_s)
{
    return (struct wait){timeout_s, d9di_bootstrap_deadline_in(timeout_s)};
}

static d9d_status send_frame(d9di_bootstrap_tree *t, const struct link *l, const struct wait *w,
                             const void *bytes, size_t n)
{
    const uint64_t head = n;
    bool late = false;

    if (l->fd < 0 || d9di_bootstrap_write(l->fd, &head, sizeof(head), w->end, &late) != D9D_OK ||
        d9di_bootstrap_write(l->fd, bytes, n, w->end, &late) != D9D_OK)
        return fail_link(t, l, late, w->timeout_s);
    t->traffic.sent++;
    t->traffic.sent_bytes += sizeof(head) + n;
    return D9D_OK;
}

/* Appends a frame to `out`; *n are its bytes. */
static d9d_status receive_frame(d9di_bootstrap_tree *t, const struct link *l, const struct wait *w,
                                d9d_buf *out, size_t *n)
{
    const uint64_t most = D9DI_BOOTSTRAP_MAX_BYTES + (uint64_t)t->size * 8;
    uint64_t head;
    bool late = false;

    if (l->fd < 0 || d9di_bootstrap_read(l->fd, &head, sizeof(head), w->end, &late) != D9D_OK)
        return fail_link(t, l, late, w->timeout_s);
    if (head > most)
        return D9D_FAIL(D9D_ECOMM,
                        "bootstrap: rank %d sent %llu bytes to rank %d, at most %llu are read",
                        l->peer, (unsigned long long)head, t->rank, (unsigned long long)most);
    D9D_TRY(d9d_buf_reserve(out, out->len + head + 1));
    if (d9di_bootstrap_read(l->fd, out->data + out->len, head, w->end, &late) != D9D_OK)
        return fail_link(t, l, late, w->timeout_s);
    *n = head;
    out->len += head;
    t->traffic.received++;
    t->traffic.received_bytes += sizeof(head) + head;
    return D9D_OK;
}

/* Up: what the children send, in their order, is handed to `join` with what was collected so far;
 * then down: `out` becomes what rank 0 had in the end. */
typedef d9d_status (*join_frame)(d9d_buf *out, size_t before);

static d9d_status exchange(d9di_bootstrap_tree *t, double timeout_s, join_frame join, d9d_buf *out)
{
    const struct wait w = wait_begin(timeout_s);
    size_t n;

    for (int i = 0; i < t->n_children; i++) {
        const size_t before = out->len;

        D9D_TRY(receive_frame(t, &t->children[i], &w, out, &n));
        D9D_TRY(join(out, before));
    }
    if (t->rank > 0) {
        D9D_TRY(send_frame(t, &t->parent, &w, out->data, out->len));
        out->len = 0;
        D9D_TRY(receive_frame(t, &t->parent, &w, out, &n));
    }
    for (int i = t->n_children; i-- > 0;) /* the longest way first */
        D9D_TRY(send_frame(t, &t->children[i], &w, out->data, out->len));
    return D9D_OK;
}

/* --- all-gather: of each rank its length in 4 bytes, its bytes, and a NUL
 * ------------------------- */

static d9d_status entry_append(d9d_buf *out, const void *bytes, size_t n)
{
    const uint32_t head = (uint32_t)n;

    D9D_TRY(d9d_buf_append(out, &head, sizeof(head)));
    if (n > 0)
        D9D_TRY(d9d_buf_append(out, bytes, n));
    return d9d_buf_append(out, "", 1);
}

static d9d_status entries_unpack(const d9d_buf *in, int size, d9d_arena *a, d9d_bootstrap_blob *all)
{
    char *copy = d9d_arena_alloc(a, in->len);
    size_t at = 0;
    uint32_t n;

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: no memory for %zu bytes", in->len);
    memcpy(copy, in->data, in->len);
    for (int r = 0; r < size; r++) {
        if (in->len - at < sizeof(n) + 1)
            return D9D_FAIL(D9D_ECOMM, "bootstrap: %zu bytes of %d rank%s end at rank %d", in->len,
                            size, D9D_PLURAL(size), r);
        memcpy(&n, copy + at, sizeof(n));
        at += sizeof(n);
        if (in->len - at < (size_t)n + 1)
            return D9D_FAIL(D9D_ECOMM, "bootstrap: rank %d sent %u bytes, %zu have come", r, n,
                            in->len - at);
        all[r] = (d9d_bootstrap_blob){copy + at, n};
        at += (size_t)n + 1;
    }
    return D9D_OK;
}

static d9d_status keep_all(d9d_buf *out, size_t before)
{
    (void)out, (void)before;
    return D9D_OK;
}

d9d_status d9di_bootstrap_tree_allgather(d9di_bootstrap_tree *t, double timeout_s,
                                         const void *local, size_t n, d9d_arena *a,
                                         d9d_bootstrap_blob *all)
{
    d9d_buf buf = {0};
    d9d_status st;

    D9D_TRY_OR(st, entry_append(&buf, local, n), out);
    D9D_TRY_OR(st, exchange(t, timeout_s, keep_all, &buf), out);
    st = entries_unpack(&buf, t->size, a, all);
out:
    d9d_buf_release(&buf);
    return st;
}

/* --- the first: a rank in 4 bytes, and its bytes; or nothing ------------------------------------
 */

static d9d_status keep_first(d9d_buf *out, size_t before)
{
    if (before > 0)
        out->len = before;
    return D9D_OK;
}

d9d_status d9di_bootstrap_tree_first(d9di_bootstrap_tree *t, double timeout_s, const void *local,
                                     size_t n, d9d_arena *a, int *rank, d9d_bootstrap_blob *out)
{
    const int32_t own = t->rank;
    int32_t who = -1;
    char *copy = NULL;
    d9d_buf buf = {0};
    d9d_status st = D9D_OK;

    if (n > 0)
        D9D_TRY_OR(st, d9d_buf_append(&buf, &own, sizeof(own)), out);
    if (n > 0)
        D9D_TRY_OR(st, d9d_buf_append(&buf, local, n), out);
    D9D_TRY_OR(st, exchange(t, timeout_s, keep_first, &buf), out);
    if (buf.len >= sizeof(who)) {
        memcpy(&who, buf.data, sizeof(who));
        copy = d9d_arena_strndup(a, buf.data + sizeof(who), buf.len - sizeof(who));
        if (copy == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "bootstrap: no memory for %zu bytes", buf.len);
    }
    *rank = who;
    *out = (d9d_bootstrap_blob){copy, copy != NULL ? buf.len - sizeof(who) : 0};
out:
    d9d_buf_release(&buf);
    return st;
}
