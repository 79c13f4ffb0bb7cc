/* comm_mpi.c - groups of ranks that compute on processors: messages through MPI.
 *
 * MPI carries messages only; which rank sends what to whom, and every sum, is made here.  So a
 * sum is added in the order of ranks whatever the library, and bfloat16 is a type like others.
 * A group is a part of the tag: two ranks share at most one group of a set of axes.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/backend/mpi_module.h"
#include "comm/comm_private.h"
#include "d9d/base/environment.h"

enum {
    DIRECT = 16 << 10, /* bytes of an all_reduce up to which everyone gets all parts at once */
    SCRATCH = 16 << 20 /* bytes of the parts that a sum holds at a time, about */
};

struct mpi {
    void *library;
    const d9di_mpi_module *module;
    d9di_mpi_world world;
};

/* --- exchanges --------------------------------------------------------------------------- */

/* Messages that are being collected for one exchange. */
struct post {
    const d9d_comm *c;
    const d9di_call *k;
    d9di_mpi_piece *pieces;
    int n;
};

static d9d_status post_open(const d9d_comm *c, const d9di_call *k, int64_t most, struct post *out)
{
    *out = (struct post){.c = c, .k = k, .pieces = calloc((size_t)most, sizeof(*out->pieces))};
    if (out->pieces == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %lld messages", c->name, (long long)most);
    return D9D_OK;
}

static void post_add(struct post *p, void *data, size_t bytes, int peer, bool receive)
{
    if (bytes > 0)
        p->pieces[p->n++] = (d9di_mpi_piece){
            .data = data, .n = bytes, .peer = p->c->world[peer], .receive = receive};
}
static void post_recv(struct post *p, void *dst, size_t bytes, int from)
{
    post_add(p, dst, bytes, from, true);
}
static void post_send(struct post *p, const void *src, size_t bytes, int to)
{
    void *data;

    memcpy(&data, &src, sizeof(data)); /* one type of piece for both; a sent one is only read */
    post_add(p, data, bytes, to, false);
}

/* Messages of different calls do not match, so that ranks which make different ones wait, and the
 * watchdog says so, instead of taking one for the other.  MPI has tags up to 32767 at least. */
static int tag_of(const d9d_comm *c, const d9di_call *k)
{
    const int turn = k->verb == D9DI_EXCHANGE ? 0 : (int)(c->calls % 32);

    return (c->tag * 8 + (int)k->verb) * 32 + turn;
}

/* Send and receive; the post is used up. */
static d9d_status post_go(struct post *p)
{
    const struct mpi *self = p->c->net;
    char why[256];
    const bool ok =
        self->module->exchange(&self->world, p->pieces, p->n, tag_of(p->c, p->k), why, sizeof(why));

    free(p->pieces);
    return ok ? D9D_OK : d9di_call_fail(p->c, p->k, "%s", why);
}

static void move(void *dst, const void *src, size_t n)
{
    if (dst != src && n > 0)
        memmove(dst, src, n);
}

/* dst becomes the parts of all ranks in order, of bytes[r] each; mine may lie in its place. */
static d9d_status gather(const d9d_comm *c, const d9di_call *k, char *dst, const void *mine,
                         const size_t *bytes)
{
    struct post p;

    D9D_TRY(post_open(c, k, 2 * (int64_t)c->size, &p));
    for (int r = 0; r < c->size; dst += bytes[r], r++) {
        if (r == c->rank) {
            move(dst, mine, bytes[r]);
            continue;
        }
        post_recv(&p, dst, bytes[r], r);
        post_send(&p, mine, bytes[c->rank], r);
    }
    return post_go(&p);
}

static d9d_status swap(const d9d_comm *c, const d9di_call *k, char *dst, const size_t *recv,
                       const char *src, const size_t *send)
{
    struct post p;

    D9D_TRY(post_open(c, k, 2 * (int64_t)c->size, &p));
    for (int r = 0; r < c->size; dst += recv[r], src += send[r], r++) {
        if (r == c->rank) {
            move(dst, src, send[r]);
            continue;
        }
        post_recv(&p, dst, recv[r], r);
        post_send(&p, src, send[r], r);
    }
    return post_go(&p);
}

/* --- calls ------------------------------------------------------------------------------ */

static d9d_status sizes_of(const d9d_comm *c, d9d_dtype t, const int64_t *counts, size_t **out)
{
    *out = calloc((size_t)c->size, sizeof(**out));
    if (*out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d counts", c->name, c->size);
    for (int r = 0; r < c->size; r++)
        (*out)[r] = (size_t)counts[r] * d9d_dtype_size(t);
    return D9D_OK;
}

static d9d_status all_gather(d9d_comm *c, const d9di_call *k)
{
    size_t *bytes;
    d9d_status st;

    D9D_TRY(sizes_of(c, k->t, k->recv, &bytes));
    st = gather(c, k, k->dst, k->src, bytes);
    free(bytes);
    return st;
}

static d9d_status all_to_all(d9d_comm *c, const d9di_call *k)
{
    size_t *recv, *send;
    d9d_status st;

    D9D_TRY(sizes_of(c, k->t, k->recv, &recv));
    st = sizes_of(c, k->t, k->send, &send);
    if (st == D9D_OK) {
        st = swap(c, k, k->dst, recv, k->src, send);
        free(send);
    }
    free(recv);
    return st;
}

/* Rank r has part r of a sum: elements [start[r], start[r + 1]) of src.  A slice of it, elements
 * [from, from + most) of each part, goes to its rank, which adds what came in the order of ranks.
 */
struct slice {
    const int64_t *start;
    int64_t from, most;
};

static int64_t slice_of(const struct slice *s, int r)
{
    const int64_t rest = s->start[r + 1] - s->start[r] - s->from;

    return rest < 0 ? 0 : rest < s->most ? rest : s->most;
}

static d9d_status sum_slice(d9d_comm *c, const d9di_call *k, const struct slice *s, char *scratch,
                            char *dst, const char *src)
{
    const size_t e = d9d_dtype_size(k->t);
    const int64_t n = slice_of(s, c->rank);
    struct post p;

    D9D_TRY(post_open(c, k, 2 * (int64_t)c->size, &p));
    for (int r = 0; r < c->size; r++) {
        const char *theirs = src + (size_t)(s->start[r] + s->from) * e;
        char *place = scratch + (size_t)(r * n) * e;

        if (r == c->rank) {
            move(place, theirs, (size_t)n * e);
            continue;
        }
        post_recv(&p, place, (size_t)n * e, r);
        post_send(&p, theirs, (size_t)slice_of(s, r) * e, r);
    }
    D9D_TRY(post_go(&p));
    d9di_reduce(k->t, k->op, dst + (size_t)s->from * e, scratch, c->size, n, n);
    return D9D_OK;
}

/* dst [of this rank's part] = the sum; it may be this rank's place in src. */
static d9d_status sum_parts(d9d_comm *c, const d9di_call *k, const int64_t *start, void *dst,
                            const void *src)
{
    const size_t e = d9d_dtype_size(k->t);
    int64_t longest = 0, most = SCRATCH / (int64_t)(e * (size_t)c->size) + 1;
    d9d_status st = D9D_OK;
    char *scratch;

    for (int r = 0; r < c->size; r++)
        longest = start[r + 1] - start[r] > longest ? start[r + 1] - start[r] : longest;
    most = most < longest ? most : longest;
    scratch = malloc((size_t)most * e * (size_t)c->size + 1);
    if (scratch == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for sums of %lld elements", c->name,
                        (long long)most);
    for (int64_t from = 0; from < longest && st == D9D_OK; from += most)
        st = sum_slice(c, k, &(struct slice){.start = start, .from = from, .most = most}, scratch,
                       dst, src);
    free(scratch);
    return st;
}

static d9d_status starts_of(const d9d_comm *c, const int64_t *counts, int64_t n, int64_t **out)
{
    int64_t *start = calloc((size_t)c->size + 1, sizeof(*start));

    if (start == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d counts", c->name, c->size);
    for (int r = 0; r < c->size; r++) /* without counts: n, cut evenly */
        start[r + 1] =
            start[r] + (counts != NULL ? counts[r] : n / c->size + (r < n % c->size ? 1 : 0));
    *out = start;
    return D9D_OK;
}

static d9d_status reduce_scatter(d9d_comm *c, const d9di_call *k)
{
    int64_t *start;
    d9d_status st;

    D9D_TRY(starts_of(c, k->send, 0, &start));
    st = sum_parts(c, k, start, k->dst, k->src);
    free(start);
    return st;
}

/* Everyone gets everything and adds it: one round of messages. */
static d9d_status reduce_small(d9d_comm *c, const d9di_call *k)
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
    D9D_TRY_OR(st, gather(c, k, parts, k->dst, each), out);
    d9di_reduce(k->t, k->op, k->dst, parts, c->size, k->n, k->n);
out:
    free(parts);
    free(each);
    return st;
}

/* Each sums a piece, and all gather the pieces. */
static d9d_status reduce_large(d9d_comm *c, const d9di_call *k)
{
    const size_t e = d9d_dtype_size(k->t);
    int64_t *start;
    size_t *bytes = NULL;
    d9d_status st;
    char *mine;

    D9D_TRY(starts_of(c, NULL, k->n, &start));
    mine = (char *)k->dst + (size_t)start[c->rank] * e;
    D9D_TRY_OR(st, sum_parts(c, k, start, mine, k->dst), out);
    for (int r = 0; r < c->size; r++)
        start[r] = start[r + 1] - start[r];
    D9D_TRY_OR(st, sizes_of(c, k->t, start, &bytes), out);
    st = gather(c, k, k->dst, mine, bytes);
out:
    free(bytes);
    free(start);
    return st;
}

static d9d_status all_reduce(d9d_comm *c, const d9di_call *k)
{
    const bool small = (size_t)k->n * d9d_dtype_size(k->t) <= DIRECT;

    return small ? reduce_small(c, k) : reduce_large(c, k);
}

/* A binomial tree: in round i the first 2^i ranks, counted from the root, have it and pass it on.
 */
static d9d_status broadcast(d9d_comm *c, const d9di_call *k)
{
    const size_t bytes = (size_t)k->n * d9d_dtype_size(k->t);
    const int me = (c->rank - k->root + c->size) % c->size;

    for (int have = 1; have < c->size; have *= 2) {
        struct post p;

        if (me >= 2 * have || (me < have && me + have >= c->size))
            continue;
        D9D_TRY(post_open(c, k, 1, &p));
        if (me >= have)
            post_recv(&p, k->dst, bytes, (me - have + k->root) % c->size);
        else
            post_send(&p, k->dst, bytes, (me + have + k->root) % c->size);
        D9D_TRY(post_go(&p));
    }
    return D9D_OK;
}

static d9d_status exchange(d9d_comm *c, const d9di_call *k)
{
    struct post p;

    D9D_TRY(post_open(c, k, k->n, &p));
    for (int64_t i = 0; i < k->n; i++) {
        const d9di_p2p_msg *x = &k->pieces[i];

        post_add(&p, x->data, (size_t)x->n * d9d_dtype_size(x->t), x->peer, x->receive);
    }
    return post_go(&p);
}

/* --- posted ones --------------------------------------------------------------------------- */

static d9d_status post_piece(d9d_comm *c, const d9di_call *k, void **out)
{
    const struct mpi *self = c->net;
    const d9di_p2p_msg *x = k->pieces;
    const d9di_mpi_piece piece = {.data = x->data,
                                  .n = (size_t)x->n * d9d_dtype_size(x->t),
                                  .peer = c->world[x->peer],
                                  .receive = x->receive};
    char why[256];

    *out = NULL;
    if (piece.n == 0)
        return D9D_OK;
    *out = self->module->post(&self->world, &piece, tag_of(c, k), why, sizeof(why));
    return *out != NULL ? D9D_OK : d9di_call_fail(c, k, "%s", why);
}

static bool has_passed(d9d_comm *c, void *posted)
{
    const struct mpi *self = c->net;

    return self->module->passed(posted);
}

static d9d_status finish(d9d_comm *c, const d9di_call *k, void *posted)
{
    const struct mpi *self = c->net;
    char why[256];

    return self->module->end(posted, why, sizeof(why)) ? D9D_OK : d9di_call_fail(c, k, "%s", why);
}

static const d9di_wire wire = {.hosts = true,
                               .rooms = &d9di_rooms_host,
                               .post = post_piece,
                               .passed = has_passed,
                               .finish = finish,
                               .run = {[D9DI_ALL_REDUCE] = all_reduce,
                                       [D9DI_ALL_GATHER] = all_gather,
                                       [D9DI_REDUCE_SCATTER] = reduce_scatter,
                                       [D9DI_ALL_TO_ALL] = all_to_all,
                                       [D9DI_BROADCAST] = broadcast,
                                       [D9DI_EXCHANGE] = exchange,
                                       [D9DI_WORDS] = all_gather,
                                       [D9DI_FENCE] = d9di_host_fence}};

/* --- the module ------------------------------------------------------------------------- */

static d9d_status load(struct mpi *m)
{
    d9d_environment environment;

    d9d_environment_read(D9D_ENVIRONMENT_MPI, getenv, &environment);
    d9d_environment_apply(&environment);
    /* Global: MPI's own plugins look for its symbols there. */
    m->library = dlopen("libd9d_mpi.so.0", RTLD_NOW | RTLD_GLOBAL);
    if (m->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "several ranks on processors need MPI, which this build or machine lacks "
                        "(install an MPI with mpicc, and build again): %s",
                        dlerror());
    m->module = dlsym(m->library, D9DI_MPI_MODULE);
    if (m->module == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "libd9d_mpi.so.0 is of another version: it has no %s",
                        D9DI_MPI_MODULE);
    return D9D_OK;
}

static d9d_status join(struct mpi *m, const d9d_boot *boot)
{
    char why[256];

    if (!m->module->open(&m->world, why, sizeof(why)))
        return D9D_FAIL(D9D_ECOMM, "%s", why);
    if (m->world.rank != d9d_boot_rank(boot) || m->world.size != d9d_boot_size(boot))
        return D9D_FAIL(D9D_ECOMM,
                        "MPI counts this process as rank %d of %d, PMIx as rank %d of %d: is this "
                        "MPI built for the launcher?",
                        m->world.rank, m->world.size, d9d_boot_rank(boot), d9d_boot_size(boot));
    return D9D_OK;
}

/* The library stays: what it has started may still be on its way out. */
static void leave(void *self, bool failed)
{
    struct mpi *m = self;

    if (!failed) /* otherwise it would wait for those who have failed */
        m->module->close();
    free(m);
}

d9d_status d9di_net_mpi(d9d_boot *boot, d9d_stream stream, d9di_net *out)
{
    struct mpi *m = calloc(1, sizeof(*m));
    d9d_status st;

    (void)stream; /* the CPU has none */
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "MPI: out of memory");
    st = load(m);
    if (st == D9D_OK)
        st = join(m, boot);
    if (st == D9D_OK)
        *out = (d9di_net){.wire = &wire, .self = m, .close = leave};
    else
        free(m);
    return st;
}
