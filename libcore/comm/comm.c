/* comm.c - see d9d/comm/comm.h. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/watch/flight_file.h"

const char *d9di_verb_text(d9di_verb v)
{
    static const char *const texts[] = {
#define X(name, text) text,
        D9DI_VERB_MAP(X)
#undef X
    };

    return texts[v];
}

d9d_status d9di_call_fail(const d9d_comm *c, const d9di_call *k, const char *fmt, ...)
{
    char why[512];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return D9D_FAIL(D9D_ECOMM, "%s: %s of %s: %s", c->name, d9di_verb_text(k->verb), k->what, why);
}

/* --- groups -------------------------------------------------------------------------- */

int d9d_comm_rank(const d9d_comm *c)
{
    return c == NULL ? 0 : c->rank;
}
int d9d_comm_size(const d9d_comm *c)
{
    return c == NULL ? 1 : c->size;
}
int d9d_comm_world_rank(const d9d_comm *c, int i)
{
    return c == NULL ? 0 : c->world[i];
}
const char *d9d_comm_name(const d9d_comm *c)
{
    return c == NULL ? "alone" : c->name;
}

void d9di_comm_sleep(d9d_comm *c)
{
    d9di_rooms_close(c);
    if (c->mail != NULL)
        c->wire->mail->close(c, c->mail);
    c->mail = NULL;
    if (c->wire->close != NULL && c->self != NULL)
        c->wire->close(c);
    c->self = NULL;
}

void d9di_comm_close(d9d_comm *c)
{
    if (c == NULL)
        return;
    d9di_comm_sleep(c);
    D9D_VEC_RELEASE(&c->pieces);
    D9D_VEC_RELEASE(&c->held);
    free(c->world);
    free(c->name);
    free(c);
}

/* Made by all of its ranks, it is their first call: the watchdog sees those who do not come. */
static d9d_status make_group(const d9di_net *net, d9d_comm *c)
{
    const d9di_call k = {.verb = D9DI_WORDS, .t = D9D_U8, .what = "the group, to make it"};
    d9di_flight_call *x;
    d9d_status st;

    c->calls++;
    x = d9di_ring_begin(c, &k);
    st = net->group(net->self, c);
    d9di_ring_end(x, st == D9D_OK ? D9DI_STEP_DONE : D9DI_STEP_FAILED);
    return st;
}

static d9d_status make_mail(d9d_comm *c)
{
    return c->wanted && c->wire->mail != NULL ? c->wire->mail->make(c, &c->mail) : D9D_OK;
}

d9d_status d9di_comm_wake(const d9di_net *net, d9d_comm *c)
{
    D9D_TRY(net->group != NULL ? make_group(net, c) : D9D_OK);
    return make_mail(c);
}

d9d_status d9di_comm_open(const d9di_net *net, const d9di_members *m, d9d_comm **out)
{
    d9d_comm *c = calloc(1, sizeof(*c));
    d9d_status st = D9D_OK;

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a group", m->name);
    *c = (d9d_comm){.wire = net->wire,
                    .net = net->self,
                    .name = strdup(m->name),
                    .rank = m->rank,
                    .size = m->size,
                    .tag = m->tag,
                    .world = calloc((size_t)m->size, sizeof(*c->world)),
                    .check = m->check,
                    .how = m->how,
                    .failed = m->failed,
                    .ring = m->ring,
                    .group = m->group};
    if (c->name == NULL || c->world == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d ranks", m->name, m->size);
    else
        memcpy(c->world, m->world, (size_t)m->size * sizeof(*c->world));
    if (st == D9D_OK)
        st = d9di_comm_wake(net, c);
    if (st == D9D_OK)
        *out = c;
    else
        d9di_comm_close(c);
    return st;
}

/* --- calls --------------------------------------------------------------------------- */

/* The backend has it, or it failed. */
static void handed_over(d9d_comm *c, const d9di_call *k, d9di_flight_call *x, d9d_status st)
{
    if (st != D9D_OK || x == NULL || c->wire->mark == NULL || !c->wire->mark(c, k, x))
        d9di_ring_end(x, st == D9D_OK ? D9DI_STEP_DONE : D9DI_STEP_FAILED);
    *c->failed |= st != D9D_OK;
}

d9d_status d9di_comm_go(d9d_comm *c, const d9di_call *k)
{
    d9di_flight_call *x;
    d9d_status st = D9D_OK;

    assert(!c->together || k->verb != D9DI_WORDS);
    *(k->verb == D9DI_EXCHANGE ? &c->exchanges : &c->calls) += 1;
    x = d9di_ring_begin(c, k);
    if (c->check && k->verb != D9DI_EXCHANGE)
        st = d9di_comm_check(c, k);
    if (st == D9D_OK && c->holds)
        st = D9D_VEC_PUSH(&c->held, ((d9di_held){*k, x}));
    if (st == D9D_OK)
        st = c->wire->run[k->verb](c, k);
    if (st != D9D_OK || !c->holds)
        handed_over(c, k, x, st);
    return st;
}

/* In a group of one: dst becomes src, which may be the same. */
static d9d_status copy(d9d_stream s, d9d_dtype t, void *dst, const void *src, int64_t n)
{
    const size_t bytes = (size_t)n * d9d_dtype_size(t);

    if (dst == src || n == 0)
        return D9D_OK;
#ifdef D9D_CUDA
    if (s != NULL)
        return d9di_cuda_copy(s, dst, src, bytes);
#endif
    (void)s;
    memmove(dst, src, bytes);
    return D9D_OK;
}

static d9d_status check_sums(const d9d_comm *c, const char *what, d9d_dtype t)
{
    if (d9di_reducible(t))
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %s: there are no sums of %s between ranks", d9d_comm_name(c),
                    what, d9d_dtype_word(t));
}

d9d_status d9d_comm_all_reduce(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t, void *buf,
                               int64_t n, d9d_comm_op op)
{
    D9D_TRY(check_sums(c, what, t));
    if (c == NULL)
        return D9D_OK;
    return d9di_comm_go(c, &(d9di_call){.verb = D9DI_ALL_REDUCE,
                                        .t = t,
                                        .op = op,
                                        .what = what,
                                        .stream = s,
                                        .dst = buf,
                                        .src = buf,
                                        .n = n});
}

d9d_status d9d_comm_all_gather(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t, void *dst,
                               const void *src, const int64_t *counts)
{
    if (c == NULL)
        return copy(s, t, dst, src, counts[0]);
    return d9di_comm_go(c, &(d9di_call){.verb = D9DI_ALL_GATHER,
                                        .t = t,
                                        .what = what,
                                        .stream = s,
                                        .dst = dst,
                                        .src = src,
                                        .recv = counts});
}

d9d_status d9d_comm_reduce_scatter(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t,
                                   void *dst, const void *src, const int64_t *counts)
{
    D9D_TRY(check_sums(c, what, t));
    if (c == NULL)
        return copy(s, t, dst, src, counts[0]);
    return d9di_comm_go(c, &(d9di_call){.verb = D9DI_REDUCE_SCATTER,
                                        .t = t,
                                        .what = what,
                                        .stream = s,
                                        .dst = dst,
                                        .src = src,
                                        .send = counts});
}

d9d_status d9d_comm_all_to_all(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t, void *dst,
                               const int64_t *recv, const void *src, const int64_t *send)
{
    if (c == NULL)
        return copy(s, t, dst, src, send[0]);
    return d9di_comm_go(c, &(d9di_call){.verb = D9DI_ALL_TO_ALL,
                                        .t = t,
                                        .what = what,
                                        .stream = s,
                                        .dst = dst,
                                        .src = src,
                                        .send = send,
                                        .recv = recv});
}

d9d_status d9d_comm_broadcast(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t, void *buf,
                              int64_t n, int root)
{
    if (c == NULL)
        return D9D_OK;
    return d9di_comm_go(c, &(d9di_call){.verb = D9DI_BROADCAST,
                                        .t = t,
                                        .what = what,
                                        .stream = s,
                                        .dst = buf,
                                        .src = buf,
                                        .n = n,
                                        .root = root});
}

/* --- one to another -------------------------------------------------------------------- */

static d9d_status exchange(d9d_comm *c)
{
    const d9di_call k = {.verb = D9DI_EXCHANGE,
                         .what = c->what,
                         .stream = c->stream,
                         .n = (int64_t)c->pieces.len,
                         .pieces = c->pieces.data};
    const d9d_status st = k.n == 0 ? D9D_OK : d9di_comm_go(c, &k);

    c->pieces.len = 0;
    return st;
}

static d9d_status check_peer(const d9d_comm *c, const char *what, const d9di_p2p_msg *p)
{
    if (c == NULL || p->peer < 0 || p->peer >= c->size || p->peer == c->rank)
        return D9D_FAIL(D9D_EINVAL, "%s: %s: a message between rank %d and rank %d of %d",
                        d9d_comm_name(c), what, d9d_comm_rank(c), p->peer, d9d_comm_size(c));
    return D9D_OK;
}

static d9d_status add_piece(d9d_comm *c, d9d_stream s, const char *what, const d9di_p2p_msg *p)
{
    D9D_TRY(check_peer(c, what, p));
    if (c->pieces.len == 0) {
        (void)snprintf(c->what, sizeof(c->what), "%s", what);
        c->stream = s;
    }
    D9D_TRY(D9D_VEC_PUSH(&c->pieces, *p));
    return c->together ? D9D_OK : exchange(c);
}

static d9di_p2p_msg piece_out(d9d_dtype t, const void *src, int64_t n, int to)
{
    d9di_p2p_msg p = {.t = t, .n = n, .peer = to};

    memcpy(&p.data, &src, sizeof(p.data)); /* a piece that is sent is not written */
    return p;
}

d9d_status d9d_comm_send(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t, const void *src,
                         int64_t n, int to)
{
    const d9di_p2p_msg p = piece_out(t, src, n, to);

    return add_piece(c, s, what, &p);
}

d9d_status d9d_comm_recv(d9d_comm *c, d9d_stream s, const char *what, d9d_dtype t, void *dst,
                         int64_t n, int from)
{
    return add_piece(c, s, what,
                     &(d9di_p2p_msg){.t = t, .data = dst, .n = n, .peer = from, .receive = true});
}

/* A check is a call of its own before each: then they go one by one. */
d9d_status d9d_comm_begin(d9d_comm *c)
{
    if (c == NULL)
        return D9D_OK;
    c->together = true;
    c->holds = !c->check && c->wire->begin != NULL;
    return c->holds ? c->wire->begin(c) : D9D_OK;
}

static d9d_status hand_over(d9d_comm *c)
{
    const d9d_status st = c->wire->end(c);

    c->holds = false;
    for (size_t i = 0; i < c->held.len; i++)
        handed_over(c, &c->held.data[i].call, c->held.data[i].recorded, st);
    c->held.len = 0;
    return st;
}

d9d_status d9d_comm_end(d9d_comm *c)
{
    d9d_status st, held;

    if (c == NULL)
        return D9D_OK;
    st = exchange(c);
    c->together = false;
    held = c->holds ? hand_over(c) : D9D_OK;
    return st != D9D_OK ? st : held;
}

/* --- messages under way ---------------------------------------------------------------- */

d9d_status d9d_comm_mail_want(d9d_comm *c)
{
    if (c == NULL || c->wanted)
        return D9D_OK;
    c->wanted = true;
    return make_mail(c);
}

struct d9d_message {
    d9d_comm *comm;
    d9di_p2p_msg piece;
    void *posted; /* the wire's; NULL: it is done */
    char what[64];
};

static d9di_call call_of(const d9d_message *m, d9d_stream s)
{
    return (d9di_call){
        .verb = D9DI_EXCHANGE, .what = m->what, .stream = s, .n = 1, .pieces = &m->piece};
}

/* A device says when it is done with a call; the others are known to wait where they end it. */
static d9d_status post_now(d9d_message *m)
{
    d9d_comm *c = m->comm;
    const d9di_call k = call_of(m, d9d_comm_queue(c));
    d9di_flight_call *x = NULL;
    d9d_status st;

    if (c->wire->post == NULL)
        return d9di_comm_go(c, &k);
    c->exchanges++;
    if (c->wire->mark != NULL)
        x = d9di_ring_begin(c, &k);
    st = c->wire->post(c, &k, &m->posted);
    if (st != D9D_OK || x == NULL || !c->wire->mark(c, &k, x))
        d9di_ring_end(x, st == D9D_OK ? D9DI_STEP_DONE : D9DI_STEP_FAILED);
    *c->failed |= st != D9D_OK;
    return st;
}

static d9d_status post(d9d_comm *c, const char *what, const d9di_p2p_msg *p, d9d_message **out)
{
    d9d_message *m;
    d9d_status st;

    D9D_TRY(check_peer(c, what, p));
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for a message", c->name, what);
    m->comm = c;
    m->piece = *p;
    (void)snprintf(m->what, sizeof(m->what), "%s", what);
    st = post_now(m);
    if (st == D9D_OK)
        *out = m;
    else
        free(m);
    return st;
}

d9d_status d9d_comm_post_send(d9d_comm *c, const char *what, d9d_dtype t, const void *src,
                              int64_t n, int to, d9d_message **out)
{
    const d9di_p2p_msg p = piece_out(t, src, n, to);

    return post(c, what, &p, out);
}

d9d_status d9d_comm_post_recv(d9d_comm *c, const char *what, d9d_dtype t, void *dst, int64_t n,
                              int from, d9d_message **out)
{
    return post(c, what,
                &(d9di_p2p_msg){.t = t, .data = dst, .n = n, .peer = from, .receive = true}, out);
}

bool d9d_message_done(d9d_message *m)
{
    return m->posted == NULL || m->comm->wire->passed(m->comm, m->posted);
}

d9d_status d9d_message_end(d9d_message *m, d9d_stream s)
{
    d9di_flight_call *x = NULL;
    d9d_status st = D9D_OK;

    if (m == NULL)
        return D9D_OK;
    if (m->posted != NULL) {
        const d9di_call k = call_of(m, s);

        if (m->comm->wire->mark == NULL)
            x = d9di_ring_begin(m->comm, &k);
        st = m->comm->wire->finish(m->comm, &k, m->posted);
        d9di_ring_end(x, st == D9D_OK ? D9DI_STEP_DONE : D9DI_STEP_FAILED);
        *m->comm->failed |= st != D9D_OK;
    }
    free(m);
    return st;
}

void d9d_message_drop(d9d_message *m)
{
    free(m);
}

/* --- beside the computation ------------------------------------------------------------ */

d9d_stream d9d_comm_queue(d9d_comm *c)
{
    return c == NULL || c->wire->queue == NULL ? NULL : c->wire->queue(c);
}
d9d_status d9d_comm_fork(d9d_comm *c, d9d_stream s)
{
    return c == NULL || c->wire->fork == NULL ? D9D_OK : c->wire->fork(c, s);
}
d9d_status d9d_comm_join(d9d_comm *c, d9d_stream s)
{
    return c == NULL || c->wire->join == NULL ? D9D_OK : c->wire->join(c, s);
}

d9d_status d9d_comm_point_set(d9d_comm *c, d9d_comm_point **at)
{
    return c == NULL || c->wire->point_set == NULL ? D9D_OK : c->wire->point_set(c, at);
}
d9d_status d9d_comm_join_at(d9d_comm *c, d9d_comm_point *at, d9d_stream s)
{
    return at == NULL ? D9D_OK : c->wire->join_at(c, at, s);
}
void d9d_comm_point_free(d9d_comm *c, d9d_comm_point *at)
{
    if (at != NULL)
        c->wire->point_free(at);
}

d9d_status d9d_comm_share(d9d_comm *c, const char *what, void *const *mine, size_t n,
                          d9d_comm_shared **out)
{
    bool near;

    *out = NULL;
    if (c == NULL || c->wire->share == NULL)
        return D9D_OK;
    D9D_TRY(d9di_comm_near(c, what, &near));
    return near ? c->wire->share(c, what, mine, n, out) : D9D_OK;
}

#ifndef D9D_CUDA /* see cuda_ipc.c */
d9d_status d9d_comm_shared_fence(d9d_comm_shared *x, d9d_stream s)
{
    (void)x, (void)s;
    return D9D_OK;
}
d9d_status d9d_comm_shared_gather(d9d_comm_shared *x, d9d_stream s, size_t i, d9d_dtype t,
                                  void *dst, const int64_t *counts)
{
    (void)x, (void)s, (void)i, (void)t, (void)dst, (void)counts;
    return D9D_OK;
}
void d9d_comm_unshare(d9d_comm_shared *x)
{
    (void)x;
}
#endif

/* --- words ----------------------------------------------------------------------------- */

static d9d_status words(d9d_comm *c, const char *what, void *dst, const void *src,
                        const int64_t *counts)
{
    return d9di_comm_go(
        c,
        &(d9di_call){
            .verb = D9DI_WORDS, .t = D9D_U8, .what = what, .dst = dst, .src = src, .recv = counts});
}

/* counts [size], parts [sum + a NUL each], both from the arena. */
static d9d_status gather_lengths(d9d_comm *c, const char *what, size_t n, d9d_arena *a,
                                 int64_t **counts)
{
    const size_t size = (size_t)c->size;
    int64_t mine = (int64_t)n, *eights = d9d_arena_alloc(a, size * sizeof(*eights));

    *counts = d9d_arena_alloc(a, size * sizeof(**counts));
    if (eights == NULL || *counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: out of memory", c->name, what);
    for (size_t r = 0; r < size; r++)
        eights[r] = sizeof(mine);
    return words(c, what, *counts, &mine, eights);
}

static d9d_status gather_words(d9d_comm *c, const char *what, const void *mine, size_t n,
                               d9d_arena *a, d9d_comm_word *all)
{
    int64_t *counts;
    uint64_t sum = 0;
    char *data, *ends, *at;

    D9D_TRY(gather_lengths(c, what, n, a, &counts));
    for (int r = 0; r < c->size; r++)
        if (!d9d_add_u64(sum, (uint64_t)counts[r], &sum))
            return D9D_FAIL(D9D_ECOMM, "%s: %s: rank %d says %lld bytes", c->name, what, r,
                            (long long)counts[r]);
    data = d9d_arena_alloc(a, sum + 1);
    ends = d9d_arena_alloc(a, sum + (size_t)c->size);
    if (data == NULL || ends == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %s: no memory for %llu bytes", c->name, what,
                        (unsigned long long)sum);
    D9D_TRY(words(c, what, data, n > 0 ? mine : "", counts));
    at = ends; /* each with a NUL behind it: the arena's bytes are zero */
    for (int r = 0; r < c->size; r++) {
        all[r] = (d9d_comm_word){memcpy(at, data, (size_t)counts[r]), (size_t)counts[r]};
        at += counts[r] + 1;
        data += counts[r];
    }
    return D9D_OK;
}

static d9d_status gather_alone(const void *mine, size_t n, d9d_arena *a, d9d_comm_word *all)
{
    char *copy = d9d_arena_alloc(a, n + 1);

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "alone: no memory for %zu bytes", n);
    if (n > 0)
        memcpy(copy, mine, n);
    all[0] = (d9d_comm_word){copy, n};
    return D9D_OK;
}

d9d_status d9d_comm_gather_words(d9d_comm *c, const char *what, const void *mine, size_t n,
                                 d9d_arena *a, d9d_comm_word *all)
{
    return c == NULL ? gather_alone(mine, n, a, all) : gather_words(c, what, mine, n, a, all);
}

d9d_status d9d_comm_barrier(d9d_comm *c, const char *what)
{
    d9d_arena a = {0};
    int64_t *lengths;
    d9d_status st;

    if (c == NULL)
        return D9D_OK;
    st = gather_lengths(c, what, 0, &a, &lengths);
    d9d_arena_release(&a);
    return st;
}
