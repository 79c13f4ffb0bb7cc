/* comm_mpi.c - the CPU backend: collectives over MPI point-to-point messages.
 *
 * MPI carries messages only; the algorithms and every sum are here.  So a sum is added in rank
 * order with every MPI library, and bfloat16 is a type like the others.  The group is part of the
 * MPI tag: two ranks share at most one group over a set of axes.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend/mpi_module.h"
#include "comm/comm_private.h"
#include "d9d/base/environment.h"
#include "d9d/comm/exchange.h"

enum {
    DIRECT_BYTES = 16 << 10, /* bytes up to which an all-reduce is one all-gather and a local sum */
    SCRATCH_BYTES = 16 << 20 /* approximate bytes of parts that a reduction receives at a time */
};

struct mpi {
    void *library;
    const d9di_mpi_module *module;
    d9di_mpi_world world;
};

/* --- batches of messages ------------------------------------------------------------- */

/* Messages that are collected for one exchange. */
struct msg_batch {
    const d9d_comm *c;
    const d9di_comm_call *k;
    d9di_mpi_msg *msgs;
    int n;
};

static d9d_status msg_batch_init(const d9d_comm *c, const d9di_comm_call *k, int64_t max_n,
                                 struct msg_batch *out)
{
    *out = (struct msg_batch){.c = c, .k = k, .msgs = calloc((size_t)max_n, sizeof(*out->msgs))};
    if (out->msgs == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %lld messages", c->name, (long long)max_n);
    return D9D_OK;
}

static void msg_batch_add(struct msg_batch *p, void *data, size_t bytes, int peer, bool receive)
{
    if (bytes > 0)
        p->msgs[p->n++] =
            (d9di_mpi_msg){.data = data, .n = bytes, .peer = p->c->world[peer], .receive = receive};
}
static void msg_batch_recv(struct msg_batch *p, void *dst, size_t bytes, int from)
{
    msg_batch_add(p, dst, bytes, from, true);
}
static void msg_batch_send(struct msg_batch *p, const void *src, size_t bytes, int to)
{
    void *data;

    memcpy(&data, &src,
           sizeof(data)); /* one message type for both directions; a sent one is only read */
    msg_batch_add(p, data, bytes, to, false);
}

/* Tags differ between calls, so messages of different calls never match.  Desynchronised ranks then
 * wait until the watchdog reports them.  At most D9DI_MPI_TAG_MAX. */
static int mpi_tag(const d9d_comm *c, const d9di_comm_call *k)
{
    const int phase = k->coll == D9DI_COLL_SEND_RECV ? 0 : (int)(c->calls % 32);

    return (c->tag * 8 + (int)k->coll) * 32 + phase;
}

/* Send and receive all of the batch, and free it. */
static d9d_status msg_batch_exchange(struct msg_batch *p)
{
    struct mpi *self = p->c->backend;
    char why[256];
    const bool ok =
        self->module->exchange(&self->world, p->msgs, p->n, mpi_tag(p->c, p->k), why, sizeof(why));

    free(p->msgs);
    return ok ? D9D_OK : d9di_comm_call_fail(p->c, p->k, "%s", why);
}

/* Free memory that a call received into.  After a failed exchange it stays allocated, since MPI may
 * still write a message whose transfer had begun. */
static void received_free(void *p, d9d_status st)
{
#ifdef __clang_analyzer__ /* which would call that a leak */
    st = D9D_OK;
#endif
    if (st != D9D_ECOMM)
        free(p);
}

static void copy_bytes(void *dst, const void *src, size_t n)
{
    if (dst != src && n > 0)
        memmove(dst, src, n);
}

/* All-gather of bytes[r] from rank r; src may be this rank's place in dst. */
static d9d_status mpi_all_gather_bytes(const d9d_comm *c, const d9di_comm_call *k, char *dst,
                                       const void *local, const size_t *bytes)
{
    struct msg_batch p;

    D9D_TRY(msg_batch_init(c, k, 2 * (int64_t)c->size, &p));
    for (int r = 0; r < c->size; dst += bytes[r], r++) {
        if (r == c->rank) {
            copy_bytes(dst, local, bytes[r]);
            continue;
        }
        msg_batch_recv(&p, dst, bytes[r], r);
        msg_batch_send(&p, local, bytes[c->rank], r);
    }
    return msg_batch_exchange(&p);
}

static d9d_status mpi_all_to_all_bytes(const d9d_comm *c, const d9di_comm_call *k, char *dst,
                                       const size_t *recv, const char *src, const size_t *send)
{
    struct msg_batch p;

    D9D_TRY(msg_batch_init(c, k, 2 * (int64_t)c->size, &p));
    for (int r = 0; r < c->size; dst += recv[r], src += send[r], r++) {
        if (r == c->rank) {
            copy_bytes(dst, src, send[r]);
            continue;
        }
        msg_batch_recv(&p, dst, recv[r], r);
        msg_batch_send(&p, src, send[r], r);
    }
    return msg_batch_exchange(&p);
}

/* --- calls ------------------------------------------------------------------------------ */

static d9d_status byte_counts(const d9d_comm *c, d9d_dtype t, const int64_t *counts, size_t **out)
{
    *out = calloc((size_t)c->size, sizeof(**out));
    if (*out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d counts", c->name, c->size);
    for (int r = 0; r < c->size; r++)
        (*out)[r] = (size_t)counts[r] * d9d_dtype_size(t);
    return D9D_OK;
}

static d9d_status mpi_all_gather(d9d_comm *c, const d9di_comm_call *k)
{
    size_t *bytes;
    d9d_status st;

    D9D_TRY(byte_counts(c, k->t, k->recv, &bytes));
    st = mpi_all_gather_bytes(c, k, k->dst, k->src, bytes);
    free(bytes);
    return st;
}

static d9d_status mpi_all_to_all(d9d_comm *c, const d9di_comm_call *k)
{
    size_t *recv, *send;
    d9d_status st;

    D9D_TRY(byte_counts(c, k->t, k->recv, &recv));
    st = byte_counts(c, k->t, k->send, &send);
    if (st == D9D_OK) {
        st = mpi_all_to_all_bytes(c, k, k->dst, recv, k->src, send);
        free(send);
    }
    free(recv);
    return st;
}

/* Rank r reduces part r: elements [start[r], start[r + 1]) of src.  It receives one slice at a
 * time, elements [from, from + max_n) of the part, from each rank, and adds them in rank order.
 */
struct slice {
    const int64_t *start;
    int64_t from, max_n;
};

static int64_t slice_len(const struct slice *s, int r)
{
    const int64_t rest = s->start[r + 1] - s->start[r] - s->from;

    return rest < 0 ? 0 : rest < s->max_n ? rest : s->max_n;
}

static d9d_status reduce_slice(d9d_comm *c, const d9di_comm_call *k, const struct slice *s,
                               char *scratch, char *dst, const char *src)
{
    const size_t e = d9d_dtype_size(k->t);
    const int64_t n = slice_len(s, c->rank);
    struct msg_batch p;

    D9D_TRY(msg_batch_init(c, k, 2 * (int64_t)c->size, &p));
    for (int r = 0; r < c->size; r++) {
        const char *theirs = src + (size_t)(s->start[r] + s->from) * e;
        char *place = scratch + (size_t)(r * n) * e;

        if (r == c->rank) {
            copy_bytes(place, theirs, (size_t)n * e);
            continue;
        }
        msg_batch_recv(&p, place, (size_t)n * e, r);
        msg_batch_send(&p, theirs, (size_t)slice_len(s, r) * e, r);
    }
    D9D_TRY(msg_batch_exchange(&p));
    d9di_host_reduce(k->t, k->op, dst + (size_t)s->from * e, scratch, c->size, n, n);
    return D9D_OK;
}

/* dst [this rank's part] = the sum; dst may be this rank's place in src. */
static d9d_status reduce_parts(d9d_comm *c, const d9di_comm_call *k, const int64_t *start,
                               void *dst, const void *src)
{
    const size_t e = d9d_dtype_size(k->t);
    int64_t longest = 0, max_n = SCRATCH_BYTES / (int64_t)(e * (size_t)c->size) + 1;
    d9d_status st = D9D_OK;
    char *scratch;

    for (int r = 0; r < c->size; r++)
        longest = start[r + 1] - start[r] > longest ? start[r + 1] - start[r] : longest;
    max_n = max_n < longest ? max_n : longest;
    scratch = malloc((size_t)max_n * e * (size_t)c->size + 1);
    if (scratch == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for sums of %lld elements", c->name,
                        (long long)max_n);
    for (int64_t from = 0; from < longest && st == D9D_OK; from += max_n)
        st = reduce_slice(c, k, &(struct slice){.start = start, .from = from, .max_n = max_n},
                          scratch, dst, src);
    received_free(scratch, st);
    return st;
}

static d9d_status part_starts(const d9d_comm *c, const int64_t *counts, int64_t n, int64_t **out)
{
    int64_t *start = calloc((size_t)c->size + 1, sizeof(*start));

    if (start == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d counts", c->name, c->size);
    for (int r = 0; r < c->size; r++) /* without counts: n, divided evenly */
        start[r + 1] =
            start[r] + (counts != NULL ? counts[r] : n / c->size + (r < n % c->size ? 1 : 0));
    *out = start;
    return D9D_OK;
}

static d9d_status mpi_reduce_scatter(d9d_comm *c, const d9di_comm_call *k)
{
    int64_t *start;
    d9d_status st;

    D9D_TRY(part_starts(c, k->send, 0, &start));
    st = reduce_parts(c, k, start, k->dst, k->src);
    free(start);
    return st;
}

/* All-gather and local sum: one round of messages. */
static d9d_status all_reduce_small(d9d_comm *c, const d9di_comm_call *k)
{
    const size_t bytes = (size_t)k->n * d9d_dtype_size(k->t), ranks = (size_t)c->size;
    size_t *each = calloc(ranks, sizeof(*each));
    char *parts = malloc(ranks * bytes + 1);
    d9d_status st = D9D_OK;

    if (each == NULL || parts == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for sums of %lld elements", c->name,
                      (long long)k->n);
        goto out;
    }
    for (size_t r = 0; r < ranks; r++)
        each[r] = bytes;
    D9D_TRY_OR(st, mpi_all_gather_bytes(c, k, parts, k->dst, each), out);
    d9di_host_reduce(k->t, k->op, k->dst, parts, c->size, k->n, k->n);
out:
    received_free(parts, st);
    free(each);
    return st;
}

/* Reduce-scatter, then all-gather. */
static d9d_status all_reduce_large(d9d_comm *c, const d9di_comm_call *k)
{
    const size_t e = d9d_dtype_size(k->t);
    int64_t *start;
    size_t *bytes = NULL;
    d9d_status st;
    char *local;

    D9D_TRY(part_starts(c, NULL, k->n, &start));
    local = (char *)k->dst + (size_t)start[c->rank] * e;
    D9D_TRY_OR(st, reduce_parts(c, k, start, local, k->dst), out);
    for (int r = 0; r < c->size; r++)
        start[r] = start[r + 1] - start[r];
    D9D_TRY_OR(st, byte_counts(c, k->t, start, &bytes), out);
    st = mpi_all_gather_bytes(c, k, k->dst, local, bytes);
out:
    free(bytes);
    free(start);
    return st;
}

static d9d_status mpi_all_reduce(d9d_comm *c, const d9di_comm_call *k)
{
    const bool small = (size_t)k->n * d9d_dtype_size(k->t) <= DIRECT_BYTES;

    return small ? all_reduce_small(c, k) : all_reduce_large(c, k);
}

/* A binomial tree: in round i the first 2^i ranks, counted from the root, send to the next 2^i.
 */
static d9d_status mpi_broadcast(d9d_comm *c, const d9di_comm_call *k)
{
    const size_t bytes = (size_t)k->n * d9d_dtype_size(k->t);
    const int me = (c->rank - k->root + c->size) % c->size;

    for (int have = 1; have < c->size; have *= 2) {
        struct msg_batch p;

        if (me >= 2 * have || (me < have && me + have >= c->size))
            continue;
        D9D_TRY(msg_batch_init(c, k, 1, &p));
        if (me >= have)
            msg_batch_recv(&p, k->dst, bytes, (me - have + k->root) % c->size);
        else
            msg_batch_send(&p, k->dst, bytes, (me + have + k->root) % c->size);
        D9D_TRY(msg_batch_exchange(&p));
    }
    return D9D_OK;
}

static d9d_status mpi_send_recv(d9d_comm *c, const d9di_comm_call *k)
{
    struct msg_batch p;

    D9D_TRY(msg_batch_init(c, k, k->n, &p));
    for (int64_t i = 0; i < k->n; i++) {
        const d9di_comm_msg *x = &k->msgs[i];

        msg_batch_add(&p, x->data, (size_t)x->n * d9d_dtype_size(x->t), x->peer, x->receive);
    }
    return msg_batch_exchange(&p);
}

/* --- posted messages ----------------------------------------------------------------- */

static d9d_status mpi_post(d9d_comm *c, const d9di_comm_call *k, void **out)
{
    struct mpi *self = c->backend;
    const d9di_comm_msg *x = k->msgs;
    const d9di_mpi_msg msg = {.data = x->data,
                              .n = (size_t)x->n * d9d_dtype_size(x->t),
                              .peer = c->world[x->peer],
                              .receive = x->receive};
    char why[256];

    *out = NULL;
    if (msg.n == 0)
        return D9D_OK;
    *out = self->module->post(&self->world, &msg, mpi_tag(c, k), why, sizeof(why));
    return *out != NULL ? D9D_OK : d9di_comm_call_fail(c, k, "%s", why);
}

static bool mpi_test(d9d_comm *c, void *posted)
{
    const struct mpi *self = c->backend;

    return self->module->test(posted);
}

static d9d_status mpi_wait(d9d_comm *c, const d9di_comm_call *k, void *posted)
{
    const struct mpi *self = c->backend;
    char why[256];

    return self->module->wait(posted, why, sizeof(why)) ? D9D_OK
                                                        : d9di_comm_call_fail(c, k, "%s", why);
}

static void mpi_cancel(d9d_comm *c, void *posted)
{
    const struct mpi *self = c->backend;

    self->module->cancel(posted);
}

static const d9di_comm_backend_ops mpi_ops = {
    .host_local = true,
    .symm_buffer = &d9di_symm_buffer_host,
    .post = mpi_post,
    .test = mpi_test,
    .wait = mpi_wait,
    .cancel = mpi_cancel,
    .run = {[D9DI_COLL_ALL_REDUCE] = mpi_all_reduce,
            [D9DI_COLL_ALL_GATHER] = mpi_all_gather,
            [D9DI_COLL_REDUCE_SCATTER] = mpi_reduce_scatter,
            [D9DI_COLL_ALL_TO_ALL] = mpi_all_to_all,
            [D9DI_COLL_BROADCAST] = mpi_broadcast,
            [D9DI_COLL_SEND_RECV] = mpi_send_recv,
            [D9DI_COLL_ALLGATHER_BYTES] = mpi_all_gather,
            [D9DI_COLL_PEER_BARRIER] = d9di_symm_buffer_barrier_host}};

/* --- the module ------------------------------------------------------------------------- */

static d9d_status mpi_load(struct mpi *m)
{
    d9d_environment environment;

    d9d_environment_read(D9D_ENVIRONMENT_MPI, getenv, &environment);
    d9d_environment_apply(&environment);
    /* RTLD_GLOBAL: MPI's plugins look up its symbols. */
    m->library = dlopen("libd9d_mpi.so.0", RTLD_NOW | RTLD_GLOBAL);
    if (m->library == NULL)
        return D9D_FAIL(
            D9D_ENOTSUP,
            "several ranks on processors need MPI, which this build or machine lacks "
            "(load or install an MPI with mpicc, and run PREFIX/share/d9d/mpi/build): %s",
            dlerror());
    m->module = dlsym(m->library, D9DI_MPI_MODULE);
    if (m->module == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "libd9d_mpi.so.0 is of another version: it has no %s",
                        D9DI_MPI_MODULE);
    return D9D_OK;
}

/* What a rank runs on. */
struct place {
    char node[64];
    cpu_set_t processors; /* that it may use */
};

/* The ranks of this host to each processor that they may use, rounded up.  Collective. */
static d9d_status ranks_per_processor(d9d_bootstrap *bootstrap, int *out)
{
    const int size = d9d_bootstrap_size(bootstrap);
    struct place own = {.node = ""};
    d9d_arena a = {0};
    d9d_bootstrap_blob *all;
    cpu_set_t used;
    d9d_status st;
    int ranks = 0, n;

    (void)snprintf(own.node, sizeof(own.node), "%s", d9d_bootstrap_node(bootstrap));
    CPU_ZERO(&own.processors);
    (void)sched_getaffinity(0, sizeof(own.processors), &own.processors);
    CPU_ZERO(&used);
    D9D_TRY_OR(st, d9d_bootstrap_allgather_arena(bootstrap, &own, sizeof(own), &a, &all), out);
    for (int r = 0; r < size; r++) {
        const struct place *x = all[r].data;

        if (all[r].n != sizeof(*x) || memcmp(x->node, own.node, sizeof(own.node)) != 0)
            continue;
        CPU_OR(&used, &used, &x->processors);
        ranks++;
    }
    n = CPU_COUNT(&used) > 0 ? CPU_COUNT(&used) : 1;
    *out = (ranks + n - 1) / n;
out:
    d9d_arena_release(&a);
    return st;
}

static d9d_status mpi_open(struct mpi *m, d9d_bootstrap *bootstrap)
{
    char why[256];
    int share;

    D9D_TRY(ranks_per_processor(bootstrap, &share));
    if (!m->module->open(share, &m->world, why, sizeof(why)))
        return D9D_FAIL(D9D_ECOMM, "%s", why);
    if (m->world.rank != d9d_bootstrap_rank(bootstrap) ||
        m->world.size != d9d_bootstrap_size(bootstrap))
        return D9D_FAIL(D9D_ECOMM,
                        "MPI counts this process as rank %d of %d, PMIx as rank %d of %d: is this "
                        "MPI built for the launcher?",
                        m->world.rank, m->world.size, d9d_bootstrap_rank(bootstrap),
                        d9d_bootstrap_size(bootstrap));
    return D9D_OK;
}

/* The library stays loaded: its threads may still be running. */
static void mpi_close(void *self, bool failed)
{
    struct mpi *m = self;

    if (!failed) /* MPI_Finalize() would wait for failed ranks */
        m->module->close();
    free(m);
}

d9d_status d9di_comm_backend_mpi(d9d_bootstrap *bootstrap, d9d_stream stream,
                                 d9di_comm_backend *out)
{
    struct mpi *m = calloc(1, sizeof(*m));
    d9d_status st;

    (void)stream; /* the CPU has none */
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "MPI: out of memory");
    /* A rank without the module must not leave the others in what all take part in. */
    st = d9d_bootstrap_agree_status(bootstrap, mpi_load(m));
    if (st == D9D_OK)
        st = mpi_open(m, bootstrap);
    if (st == D9D_OK)
        *out = (d9di_comm_backend){.ops = &mpi_ops, .self = m, .close = mpi_close};
    else
        free(m);
    return st;
}
