/* comm_driver.c - launched by tests/multirank/comm.bats: `comm_driver ACT DEGREES [RANK]`.
 *
 * DEGREES are seven numbers, "1,1,2,1,1,2,1": pipeline, replicate, shard, context replicate,
 * context shard, tensor, expert.  D9D_TEST_DEVICE names the device; on GPUs each rank
 * takes the GPU of its number.
 *
 *     all       every call, type and kind of counts, on every group of the mesh
 *     order     sums of floats that do not commute; prints a hash of the bits
 *     first     root-first section: prints which ranks entered before rank 0 was done
 *     groups    prints each group's name and ranks
 *     bandwidth bus bandwidth of bfloat16, as nccl-tests counts it, at 16, 256 and 1024 MiB
 *     busy      calls of all kinds without end
 *     late      RANK does not join a call
 *     mute      RANK does not join an exchange of the bootstrap
 *     other     RANK makes a different call (desync)
 *     short     RANK passes a smaller count than the others
 *     sizes     RANK sums 10 elements where the others sum each number of a list of larger ones
 *     cross     two groups per rank, in the opposite order on RANK
 *     fail      RANK exits with a failure
 *
 * D9D_TEST_TIMEOUT is the limit of a call (limit_calls()), D9D_TEST_FLIGHT where the flight
 * recorder writes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/hash.h"
#include "d9d/base/thread.h"
#include "d9d/comm/mesh.h"
#include "d9d/device/device.h"

enum { MAX_RANKS = 64 };

struct job {
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_device *dev;
    int rank, size, calls, who;
};

/* --- values ----------------------------------------------------------------------------------- */

static const d9d_dtype types[] = {D9D_F32, D9D_BF16, D9D_F64, D9D_I32, D9D_I64};

static void put(d9d_dtype t, void *buf, int64_t i, double v)
{
    switch (t) {
    case D9D_F32: ((float *)buf)[i] = (float)v; break;
    case D9D_BF16: ((uint16_t *)buf)[i] = d9d_bf16_from_f32((float)v); break;
    case D9D_F64: ((double *)buf)[i] = v; break;
    case D9D_I32: ((int32_t *)buf)[i] = (int32_t)v; break;
    default: ((int64_t *)buf)[i] = (int64_t)v; break;
    }
}

static double take(d9d_dtype t, const void *buf, int64_t i)
{
    switch (t) {
    case D9D_F32: return ((const float *)buf)[i];
    case D9D_BF16: return d9d_bf16_to_f32(((const uint16_t *)buf)[i]);
    case D9D_F64: return ((const double *)buf)[i];
    case D9D_I32: return ((const int32_t *)buf)[i];
    default: return (double)((const int64_t *)buf)[i];
    }
}

/* Small whole numbers, whose sums are exact in every type. */
static double value(int rank, int64_t i)
{
    return (double)((rank * 7 + i * 3) % 11 - 3);
}

/* --- memory of the device --------------------------------------------------------------------- */

struct array {
    d9d_dtype t;
    int64_t n;
    void *host, *data;
};

static struct array array_new(struct job *j, d9d_dtype t, int64_t n)
{
    struct array a = {.t = t, .n = n};
    const size_t bytes = (size_t)n * d9d_dtype_size(t);

    a.host = calloc(1, bytes + 1);
    if (a.host == NULL || d9d_device_alloc(j->dev, bytes, &a.data) != D9D_OK)
        exit(99);
    memset(a.host, 0x5a, bytes);
    return a;
}

static d9d_status array_send(struct job *j, struct array *a)
{
    return d9d_device_upload(j->dev, a->data, a->host, (size_t)a->n * d9d_dtype_size(a->t));
}

static d9d_status array_fetch(struct job *j, struct array *a)
{
    return d9d_device_download(j->dev, a->host, a->data, (size_t)a->n * d9d_dtype_size(a->t));
}

static void array_free(struct job *j, struct array *a)
{
    d9d_device_free(j->dev, a->data, (size_t)a->n * d9d_dtype_size(a->t));
    free(a->host);
}

static void *at(const struct array *a, int64_t i)
{
    return (char *)a->data + (size_t)i * d9d_dtype_size(a->t);
}

static int64_t sum_of(const int64_t *counts, int n)
{
    int64_t sum = 0;

    for (int r = 0; r < n; r++)
        sum += counts[r];
    return sum;
}

static d9d_status differs(const char *call, d9d_comm *c, d9d_dtype t, int64_t i, double got,
                          double want)
{
    return D9D_FAIL(D9D_EVERIFY, "%s over %s (%d of %d) of %s: [%lld] is %g, not %g", call,
                    d9d_comm_name(c), d9d_comm_rank(c), d9d_comm_size(c), d9d_dtype_name(t),
                    (long long)i, got, want);
}

#define WANT(call, a, i, want)                                                                     \
    do {                                                                                           \
        if (st == D9D_OK && take((a).t, (a).host, i) != (want))                                    \
            st = differs(call, c, (a).t, i, take((a).t, (a).host, i), want);                       \
    } while (0)

/* --- calls ------------------------------------------------------------------------------------ */

static d9d_status try_all_reduce(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts,
                                 d9d_comm_op op)
{
    const int64_t n = sum_of(counts, d9d_comm_size(c));
    struct array a = array_new(j, t, n);
    d9d_status st;

    for (int64_t i = 0; i < n; i++)
        put(t, a.host, i, value(j->rank, i));
    D9D_TRY_OR(st, array_send(j, &a), out);
    D9D_TRY_OR(st, d9d_comm_all_reduce(c, j->dev->stream, "all_reduce", t, a.data, n, op), out);
    D9D_TRY_OR(st, array_fetch(j, &a), out);
    for (int64_t i = 0; i < n; i++) {
        double want = value(d9d_comm_size(c) > 1 ? d9d_comm_world_rank(c, 0) : j->rank, i);

        for (int r = 1; r < d9d_comm_size(c); r++) {
            const double v = value(d9d_comm_world_rank(c, r), i);

            want = op == D9D_COMM_SUM ? want + v : v > want ? v : want;
        }
        WANT("all_reduce", a, i, want);
    }
out:
    array_free(j, &a);
    return st;
}

/* Allocates dst of a gather; `inside`: src is the rank's slice of it. */
static d9d_status try_all_gather(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts,
                                 bool inside)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const int64_t local_count = counts[rank], from = sum_of(counts, rank);
    struct array dst = array_new(j, t, sum_of(counts, size)), src = array_new(j, t, local_count);
    d9d_status st;
    int64_t at_ = 0;

    for (int64_t i = 0; i < local_count; i++) {
        put(t, src.host, i, value(rank, i));
        put(t, dst.host, from + i, inside ? value(rank, i) : 99);
    }
    D9D_TRY_OR(st, array_send(j, &src), out);
    D9D_TRY_OR(st, array_send(j, &dst), out);
    D9D_TRY_OR(st,
               d9d_comm_all_gather(c, j->dev->stream, "all_gather", t, dst.data,
                                   inside ? at(&dst, from) : src.data, counts),
               out);
    D9D_TRY_OR(st, array_fetch(j, &dst), out);
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < counts[r]; i++, at_++)
            WANT("all_gather", dst, at_, value(r, i));
out:
    array_free(j, &src);
    array_free(j, &dst);
    return st;
}

static d9d_status try_reduce_scatter(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts,
                                     bool inside)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const int64_t n = sum_of(counts, size), local_count = counts[rank], from = sum_of(counts, rank);
    struct array src = array_new(j, t, n), dst = array_new(j, t, local_count);
    d9d_status st;

    for (int64_t i = 0; i < n; i++)
        put(t, src.host, i, value(rank, i));
    D9D_TRY_OR(st, array_send(j, &src), out);
    D9D_TRY_OR(st,
               d9d_comm_reduce_scatter(c, j->dev->stream, "reduce_scatter", t,
                                       inside ? at(&src, from) : dst.data, src.data, counts),
               out);
    D9D_TRY_OR(st, array_fetch(j, inside ? &src : &dst), out);
    for (int64_t i = 0; i < local_count; i++) {
        double want = 0;

        for (int r = 0; r < size; r++)
            want += value(r, from + i);
        if (inside)
            WANT("reduce_scatter", src, from + i, want);
        else
            WANT("reduce_scatter", dst, i, want);
    }
out:
    array_free(j, &dst);
    array_free(j, &src);
    return st;
}

/* Rank a sends rank b counts[(a + b) % size] elements. */
static d9d_status try_all_to_all(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    int64_t each[MAX_RANKS], k = 0;
    struct array src, dst;
    d9d_status st;

    for (int r = 0; r < size; r++)
        each[r] = counts[(rank + r) % size]; /* symmetric */
    src = array_new(j, t, sum_of(each, size));
    dst = array_new(j, t, sum_of(each, size));
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < each[r]; i++)
            put(t, src.host, k++, value(rank * 5 + r, i));
    D9D_TRY_OR(st, array_send(j, &src), out);
    D9D_TRY_OR(
        st, d9d_comm_all_to_all(c, j->dev->stream, "all_to_all", t, dst.data, each, src.data, each),
        out);
    D9D_TRY_OR(st, array_fetch(j, &dst), out);
    k = 0;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < each[r]; i++, k++)
            WANT("all_to_all", dst, k, value(r * 5 + rank, i));
out:
    array_free(j, &dst);
    array_free(j, &src);
    return st;
}

static d9d_status try_broadcast(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int size = d9d_comm_size(c);
    const int64_t n = counts[size - 1];
    d9d_status st = D9D_OK;

    for (int root = 0; root < size && st == D9D_OK; root++) {
        struct array a = array_new(j, t, n);

        for (int64_t i = 0; i < n; i++)
            put(t, a.host, i, value(d9d_comm_rank(c), i));
        D9D_TRY_OR(st, array_send(j, &a), out);
        D9D_TRY_OR(st, d9d_comm_broadcast(c, j->dev->stream, "broadcast", t, a.data, n, root), out);
        D9D_TRY_OR(st, array_fetch(j, &a), out);
        for (int64_t i = 0; i < n; i++)
            WANT("broadcast", a, i, value(root, i));
    out:
        array_free(j, &a);
    }
    return st;
}

/* Sends to the next rank and receives from the previous one, twice in one group; then send and
 * receive alone, in turn. */
static d9d_status try_exchange(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const int next = (rank + 1) % size, before = (rank + size - 1) % size;
    const int64_t out_n = counts[rank], in_n = counts[before];
    struct array src = array_new(j, t, out_n), dst = array_new(j, t, 3 * in_n);
    d9d_stream s = j->dev->stream;
    d9d_status st = D9D_OK;

    if (size == 1)
        goto out;
    for (int64_t i = 0; i < out_n; i++)
        put(t, src.host, i, value(rank, i));
    D9D_TRY_OR(st, array_send(j, &src), out);
    D9D_TRY_OR(st, d9d_comm_group_start(c), out);
    for (int i = 0; i < 2; i++) {
        D9D_TRY_OR(st, d9d_comm_send(c, s, "ring", t, src.data, out_n, next), out);
        D9D_TRY_OR(st, d9d_comm_recv(c, s, "ring", t, at(&dst, i * in_n), in_n, before), out);
    }
    D9D_TRY_OR(st, d9d_comm_group_end(c), out);
    if (rank > 0)
        D9D_TRY_OR(st, d9d_comm_recv(c, s, "turn", t, at(&dst, 2 * in_n), in_n, before), out);
    D9D_TRY_OR(st, d9d_comm_send(c, s, "turn", t, src.data, out_n, next), out);
    if (rank == 0)
        D9D_TRY_OR(st, d9d_comm_recv(c, s, "turn", t, at(&dst, 2 * in_n), in_n, before), out);
    D9D_TRY_OR(st, array_fetch(j, &dst), out);
    for (int64_t i = 0; i < 3 * in_n; i++)
        WANT("exchange", dst, i, value(before, i % in_n));
out:
    array_free(j, &dst);
    array_free(j, &src);
    return st;
}

/* Stream order: earlier work is visible to the group's stream, and later work waits for it. */
static d9d_status try_stream_order(struct job *j, d9d_comm *c, d9d_dtype t)
{
    const int64_t n = 1 << 16;
    struct array a = array_new(j, t, n);
    d9d_stream s = j->dev->stream;
    d9d_status st;

    if (t != D9D_F32)
        st = D9D_OK;
    else {
        D9D_TRY_OR(st, j->dev->kernels->elementwise->fill(s, t, a.data, n, 3.0f), out);
        D9D_TRY_OR(st, d9d_comm_wait_stream(c, s), out);
        D9D_TRY_OR(st,
                   d9d_comm_all_reduce(c, d9d_comm_stream(c), "fork", t, a.data, n, D9D_COMM_SUM),
                   out);
        D9D_TRY_OR(st, d9d_stream_wait_comm(c, s), out);
        D9D_TRY_OR(
            st,
            j->dev->kernels->elementwise->add(s, t, a.data, (const void *[]){a.data, a.data}, 2, n),
            out);
        D9D_TRY_OR(st, array_fetch(j, &a), out);
        for (int64_t i = 0; i < n; i++)
            WANT("fork", a, i, 6.0 * d9d_comm_size(c));
    }
out:
    array_free(j, &a);
    return st;
}

/* Two all-gathers in one group, and an event recorded behind them that a later sum does not
 * move. */
static d9d_status try_together(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const int64_t n = sum_of(counts, size), before = sum_of(counts, rank);
    struct array a[2] = {array_new(j, t, n), array_new(j, t, n)};
    d9d_comm_event *point = NULL;
    d9d_status st = D9D_OK;

    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < counts[rank]; i++)
            put(t, a[k].host, before + i, value(rank + k, i));
        D9D_TRY_OR(st, array_send(j, &a[k]), out);
    }
    D9D_TRY_OR(st, d9d_comm_wait_stream(c, j->dev->stream), out);
    D9D_TRY_OR(st, d9d_comm_group_start(c), out);
    for (int k = 0; k < 2; k++)
        D9D_TRY_OR(st,
                   d9d_comm_all_gather(c, d9d_comm_stream(c), "together", t, a[k].data,
                                       at(&a[k], before), counts),
                   out);
    D9D_TRY_OR(st, d9d_comm_group_end(c), out);
    for (int k = 0; k < 2; k++) /* an event may be recorded again */
        D9D_TRY_OR(st, d9d_comm_event_record(c, &point), out);
    D9D_TRY_OR(st, d9d_stream_wait_event(c, point, j->dev->stream), out);
    for (int k = 0; k < 2; k++) {
        D9D_TRY_OR(st, array_fetch(j, &a[k]), out);
        for (int64_t r = 0, i = 0; r < size; r++)
            for (int64_t p = 0; p < counts[r]; p++, i++)
                WANT("together", a[k], i, value((int)r + k, p));
    }
out:
    d9d_comm_event_free(c, point);
    for (int k = 0; k < 2; k++)
        array_free(j, &a[k]);
    return st;
}

/* Peer memory: all ranks read the first content, then what the next round writes to the same
 * arrays. */
static d9d_status try_share(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    struct array all = array_new(j, t, sum_of(counts, size));
    struct array own[2] = {array_new(j, t, counts[rank]), array_new(j, t, counts[rank])};
    void *const own_data[] = {own[0].data, own[1].data};
    d9d_peer_memory *shared = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_peer_map(c, "shared", own_data, 2, &shared), out);
    for (int round = 0; round < 4 && shared != NULL; round++) {
        struct array *a = &own[round % 2];

        for (int64_t i = 0; i < counts[rank]; i++)
            put(t, a->host, i, value(rank + round, i));
        D9D_TRY_OR(st, d9d_peer_barrier(shared, j->dev->stream), out);
        D9D_TRY_OR(st, array_send(j, a), out);
        D9D_TRY_OR(st, d9d_peer_barrier(shared, j->dev->stream), out);
        D9D_TRY_OR(st,
                   d9d_peer_gather(shared, j->dev->stream, (size_t)round % 2, t, all.data, counts),
                   out);
        D9D_TRY_OR(st, array_fetch(j, &all), out);
        for (int64_t r = 0, i = 0; r < size; r++)
            for (int64_t p = 0; p < counts[r]; p++, i++)
                WANT("shared", all, i, value((int)r + round, p));
    }
out:
    d9d_peer_unmap(shared);
    array_free(j, &all);
    for (int k = 0; k < 2; k++)
        array_free(j, &own[k]);
    return st;
}

/* Reads the staging buffers of all ranks after one barrier. */
static d9d_status get_after_barrier(struct job *j, d9d_comm *c, const struct array *all,
                                    const int64_t *counts)
{
    const size_t e = d9d_dtype_size(all->t);

    D9D_TRY(d9d_comm_wait_stream(c, j->dev->stream));
    D9D_TRY(d9d_symm_buffer_barrier(c, "symm_buffer"));
    for (int r = 0; r < d9d_comm_size(c); r++)
        D9D_TRY(d9d_symm_buffer_get(c, d9d_comm_stream(c), r, 0, at(all, sum_of(counts, r)),
                                    (uint64_t)counts[r] * e));
    return d9d_stream_wait_comm(c, j->dev->stream);
}

/* Signals each other rank, the last first, and reads from them in that order. */
static d9d_status get_on_signals(struct job *j, d9d_comm *c, const struct array *all,
                                 const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const size_t e = d9d_dtype_size(all->t);
    d9d_symm_buffer_slice parts[MAX_RANKS];
    int n = 0;

    D9D_TRY(d9d_comm_wait_stream(c, j->dev->stream));
    for (int r = size - 1; r >= 0; r--) {
        if (r == rank)
            continue;
        D9D_TRY(d9d_symm_buffer_signal(c, j->dev->stream, r));
        parts[n++] =
            (d9d_symm_buffer_slice){r, 0, at(all, sum_of(counts, r)), (uint64_t)counts[r] * e};
    }
    D9D_TRY(d9d_symm_buffer_get_on_signal(c, "symm_buffer", parts, n));
    D9D_TRY(d9d_symm_buffer_get(c, d9d_comm_stream(c), rank, 0, at(all, sum_of(counts, rank)),
                                (uint64_t)counts[rank] * e));
    for (int i = 0; i < n; i++)
        D9D_TRY(d9d_symm_buffer_wait(c, parts[i].from, j->dev->stream));
    return d9d_stream_wait_comm(c, j->dev->stream);
}

/* All-gathers by staging buffers; each round writes while others may still read the previous
 * one. */
static d9d_status try_symm_buffer(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const size_t e = d9d_dtype_size(t);
    struct array all = array_new(j, t, sum_of(counts, size)), local = array_new(j, t, counts[rank]);
    d9d_status st;

    D9D_TRY_OR(st, d9d_symm_buffer_reserve(c, (uint64_t)all.n * e + 1), out);
    for (int round = 0; round < 5 && d9d_symm_buffer_bytes(c) > 0; round++) {
        for (int64_t i = 0; i < counts[rank]; i++)
            put(t, local.host, i, value(rank + round, i));
        D9D_TRY_OR(st, array_send(j, &local), out);
        D9D_TRY_OR(st,
                   d9d_device_copy(j->dev, d9d_symm_buffer_local(c), local.data,
                                   (uint64_t)counts[rank] * e),
                   out);
        D9D_TRY_OR(st, (round % 3 == 2 ? get_after_barrier : get_on_signals)(j, c, &all, counts),
                   out);
        D9D_TRY_OR(st, array_fetch(j, &all), out);
        for (int64_t r = 0, i = 0; r < size; r++)
            for (int64_t p = 0; p < counts[r]; p++, i++)
                WANT("symm_buffer", all, i, value((int)r + round, p));
    }
out:
    array_free(j, &local);
    array_free(j, &all);
    return st;
}

enum { ROUNDS = 12 };

/* Several rounds of put, signal and get on the group's stream, joined after the last. */
static d9d_status enqueue_rounds(struct job *j, d9d_comm *c, const struct array *local,
                                 const struct array *all, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const size_t e = d9d_dtype_size(local->t);
    d9d_stream stream = d9d_comm_stream(c);

    D9D_TRY(d9d_comm_wait_stream(c, j->dev->stream));
    for (int64_t round = 0; round < ROUNDS; round++) {
        d9d_symm_buffer_slice parts[MAX_RANKS];
        int n = 0;

        D9D_TRY(d9d_symm_buffer_put(c, stream, 0, at(local, round * counts[rank]),
                                    (uint64_t)counts[rank] * e));
        for (int k = 1; k < size; k++) {
            const int r = (rank + k) % size;

            D9D_TRY(d9d_symm_buffer_signal(c, stream, r));
            parts[n++] = (d9d_symm_buffer_slice){
                .from = r,
                .dst = at(all, round * sum_of(counts, size) + sum_of(counts, r)),
                .n = (uint64_t)counts[r] * e};
        }
        D9D_TRY(d9d_symm_buffer_get_on_signal(c, "symm_buffer", parts, n));
    }
    return d9d_stream_wait_comm(c, j->dev->stream);
}

static d9d_status try_rounds(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    const int rank = d9d_comm_rank(c), size = d9d_comm_size(c);
    const int64_t sum = sum_of(counts, size);
    struct array local = array_new(j, t, ROUNDS * counts[rank]),
                 all = array_new(j, t, ROUNDS * sum);
    d9d_status st = D9D_OK;

    if (d9d_symm_buffer_bytes(c) == 0)
        goto out;
    for (int64_t i = 0; i < local.n; i++)
        put(t, local.host, i, value(rank + (int)(i / counts[rank]), i % counts[rank]));
    D9D_TRY_OR(st, array_send(j, &local), out);
    D9D_TRY_OR(st, enqueue_rounds(j, c, &local, &all, counts), out);
    D9D_TRY_OR(st, array_fetch(j, &all), out);
    for (int64_t round = 0; round < ROUNDS; round++)
        for (int r = 0; r < size; r++)
            for (int64_t p = 0; p < counts[r] && r != rank; p++)
                WANT("openings", all, round * sum + sum_of(counts, r) + p,
                     value(r + (int)round, p));
out:
    array_free(j, &local);
    array_free(j, &all);
    return st;
}

static d9d_status try_words(struct job *j, d9d_comm *c)
{
    d9d_comm_blob all[MAX_RANKS];
    d9d_arena a = {0};
    d9d_status st = D9D_OK;
    char local[256];

    for (int round = 0; round < 3 && st == D9D_OK; round++) {
        const size_t n = (size_t)(j->rank * round * 5);

        memset(local, 'a' + j->rank, sizeof(local));
        D9D_TRY_OR(st, d9d_comm_allgather_bytes(c, "words", local, n, &a, all), out);
        for (int r = 0; r < d9d_comm_size(c); r++) {
            const int other = d9d_comm_size(c) > 1 ? d9d_comm_world_rank(c, r) : j->rank;
            const char *word = all[r].data;

            if (all[r].n != (size_t)(other * round * 5) || word[all[r].n] != '\0' ||
                strspn(word, (char[]){(char)('a' + other), '\0'}) != all[r].n)
                st = D9D_FAIL(D9D_EVERIFY, "words over %s: rank %d gave other ones",
                              d9d_comm_name(c), r);
        }
    }
    if (st == D9D_OK)
        st = d9d_comm_barrier(c, "barrier");
out:
    d9d_arena_release(&a);
    return st;
}

static d9d_status try_calls(struct job *j, d9d_comm *c, d9d_dtype t, const int64_t *counts)
{
    D9D_TRY(try_all_reduce(j, c, t, counts, D9D_COMM_SUM));
    D9D_TRY(try_all_reduce(j, c, t, counts, D9D_COMM_MAX));
    D9D_TRY(try_all_gather(j, c, t, counts, false));
    D9D_TRY(try_all_gather(j, c, t, counts, true));
    D9D_TRY(try_reduce_scatter(j, c, t, counts, false));
    D9D_TRY(try_reduce_scatter(j, c, t, counts, true));
    D9D_TRY(try_all_to_all(j, c, t, counts));
    D9D_TRY(try_broadcast(j, c, t, counts));
    D9D_TRY(try_exchange(j, c, t, counts));
    D9D_TRY(try_stream_order(j, c, t));
    D9D_TRY(try_together(j, c, t, counts));
    D9D_TRY(try_share(j, c, t, counts));
    D9D_TRY(try_symm_buffer(j, c, t, counts));
    D9D_TRY(try_rounds(j, c, t, counts));
    j->calls += 13;
    return D9D_OK;
}

/* Counts: even, uneven, some empty, all empty, and too large for the short path. */
static void counts_of(int kind, int size, int64_t *counts)
{
    for (int r = 0; r < size; r++) {
        const int64_t kinds[] = {5, r + 1, r % 2 == 0 ? 0 : 4, 0, 30011 / size + 7 * r};

        counts[r] = kinds[kind];
    }
}

static d9d_status try_group(struct job *j, unsigned axes)
{
    int64_t counts[MAX_RANKS];
    d9d_comm *c;

    D9D_TRY(d9d_mesh_group(j->mesh, axes, &c));
    if (d9d_comm_size(c) != d9d_mesh_count(j->mesh, axes) ||
        d9d_comm_rank(c) != d9d_mesh_index(j->mesh, axes))
        return D9D_FAIL(D9D_EVERIFY, "%s: rank %d of %d, not %d of %d", d9d_comm_name(c),
                        d9d_comm_rank(c), d9d_comm_size(c), d9d_mesh_index(j->mesh, axes),
                        d9d_mesh_count(j->mesh, axes));
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (int kind = 0; kind < 5; kind++) {
            counts_of(kind, d9d_comm_size(c), counts);
            D9D_TRY(try_calls(j, c, types[t], counts));
        }
    return try_words(j, c);
}

/* --- acts ------------------------------------------------------------------------------------- */

static const unsigned sets[] = {0,
                                D9D_AXIS(PP),
                                D9D_AXIS(DP_REPLICATE),
                                D9D_AXIS(DP_SHARD),
                                D9D_AXIS(CP_SHARD),
                                D9D_AXIS(CP_REPLICATE),
                                D9D_AXIS(TP),
                                D9D_AXES_DP,
                                D9D_AXES_SHARD,
                                D9D_AXES_REPLICATE,
                                D9D_AXES_TOKENS,
                                D9D_AXES_STAGE,
                                D9D_AXES_WORLD,
                                D9D_AXES_EXPERT,
                                D9D_AXES_EXPERT_SHARD,
                                D9D_AXES_EXPERT_REPLICATE,
                                D9D_AXES_EXPERT_SHARD | D9D_AXES_EXPERT_REPLICATE};

static d9d_status all(struct job *j)
{
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        D9D_TRY(try_group(j, sets[i]));
    if (j->rank == 0)
        printf("%d calls of %d ranks are right\n", j->calls, j->size);
    return D9D_OK;
}

static float wild(int rank, int64_t i)
{
    uint32_t x = (uint32_t)rank * 2654435761u ^ (uint32_t)i * 2246822519u;

    x ^= x >> 15;
    x *= 3266489917u;
    x ^= x >> 13;
    return ((float)(x & 0xffff) - 32768.0f) * (float)(1u << (x >> 28));
}

static d9d_status order_of(struct job *j, d9d_comm *c, d9d_dtype t, int64_t n)
{
    struct array a = array_new(j, t, n);
    uint64_t h;
    d9d_status st;

    for (int64_t i = 0; i < n; i++)
        put(t, a.host, i, wild(j->rank, i));
    D9D_TRY_OR(st, array_send(j, &a), out);
    D9D_TRY_OR(st, d9d_comm_all_reduce(c, j->dev->stream, "order", t, a.data, n, D9D_COMM_SUM),
               out);
    D9D_TRY_OR(st, array_fetch(j, &a), out);
    for (int64_t i = 0; i < n && strcmp(j->dev->name, "cpu") == 0; i++) {
        float want = 0;

        for (int r = 0; r < d9d_comm_size(c); r++) {
            const float v = wild(d9d_comm_world_rank(c, r), i);

            want += t == D9D_BF16 ? d9d_bf16_to_f32(d9d_bf16_from_f32(v)) : v;
        }
        WANT("order", a, i,
             t == D9D_BF16 ? d9d_bf16_to_f32(d9d_bf16_from_f32(want)) : (double)want);
    }
    h = d9d_hash_u64(a.host, (size_t)n * d9d_dtype_size(t));
    printf("%d %s %s %lld %016llx\n", j->rank, d9d_comm_name(c), d9d_dtype_name(t), (long long)n,
           (unsigned long long)h);
out:
    array_free(j, &a);
    return st;
}

static d9d_status order(struct job *j)
{
    d9d_comm *c;

    D9D_TRY(d9d_mesh_group(j->mesh, D9D_AXES_WORLD, &c));
    for (int64_t n = 3; n < 1000000; n *= 71)
        for (int t = 0; t < 2; t++)
            D9D_TRY(order_of(j, c, types[t], n));
    return D9D_OK;
}

static d9d_status first(struct job *j)
{
    if (j->rank == 0)
        (void)unlink("first");
    D9D_TRY(d9d_bootstrap_agree_status(j->bootstrap, D9D_OK));
    D9D_TRY(d9d_mesh_root_first_begin(j->mesh));
    if (j->rank == 0) {
        FILE *f;

        (void)usleep(300000);
        f = fopen("first", "w");
        if (f == NULL || fclose(f) != 0)
            return D9D_FAIL(D9D_EIO, "first: cannot be made");
    }
    printf("%d: rank 0 was %s\n", j->rank, access("first", F_OK) == 0 ? "done" : "not done");
    return d9d_mesh_root_first_end(j->mesh);
}

static d9d_status groups(struct job *j)
{
    char text[1024], place[64];

    printf("%d is %s;", j->rank, d9d_mesh_text(j->mesh, place, sizeof(place)));
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        size_t len = 0;
        d9d_comm *c;

        D9D_TRY(d9d_mesh_group(j->mesh, sets[i], &c));
        for (int r = 0; r < d9d_comm_size(c) && c != NULL; r++)
            len +=
                (size_t)snprintf(text + len, sizeof(text) - len, " %d", d9d_comm_world_rank(c, r));
        if (c != NULL)
            printf(" %s%s", d9d_comm_name(c), text);
    }
    printf("\n");
    return D9D_OK;
}

/* Buffers of one size, and the slices of each rank. */
struct bench {
    d9d_comm *c;
    struct array a, b;
    int64_t n, counts[MAX_RANKS];
};

static d9d_status once(struct job *j, struct bench *t, int call)
{
    const int64_t from = sum_of(t->counts, d9d_comm_rank(t->c));
    d9d_stream s = j->dev->stream;

    switch (call) {
    case 0: return d9d_comm_all_reduce(t->c, s, "bench", D9D_BF16, t->a.data, t->n, D9D_COMM_SUM);
    case 1:
        return d9d_comm_all_gather(t->c, s, "bench", D9D_BF16, t->b.data, at(&t->a, from),
                                   t->counts);
    case 2:
        return d9d_comm_reduce_scatter(t->c, s, "bench", D9D_BF16, t->b.data, t->a.data, t->counts);
    default:
        return d9d_comm_all_to_all(t->c, s, "bench", D9D_BF16, t->b.data, t->counts, t->a.data,
                                   t->counts);
    }
}

static d9d_status run_bench(struct job *j, struct bench *t, int call, int rounds, double *s)
{
    int64_t start;

    for (int i = 0; i < 3; i++)
        D9D_TRY(once(j, t, call));
    D9D_TRY(d9d_device_sync(j->dev));
    D9D_TRY(d9d_comm_barrier(t->c, "start"));
    start = d9d_clock_ns();
    for (int i = 0; i < rounds; i++)
        D9D_TRY(once(j, t, call));
    D9D_TRY(d9d_device_sync(j->dev));
    *s = (double)(d9d_clock_ns() - start) / 1e9 / rounds;
    return D9D_OK;
}

static d9d_status bandwidth_of(struct job *j, struct bench *t, int call, const char *name)
{
    const double share = (double)(j->size - 1) / j->size;

    for (int mib = 16; mib <= 1024; mib = mib == 256 ? 1024 : 256) {
        double s = 0;

        t->n = (int64_t)mib << 19;
        for (int r = 0; r < j->size; r++)
            t->counts[r] = t->n / j->size;
        D9D_TRY(run_bench(j, t, call, mib > 256 ? 20 : 50, &s));
        if (j->rank == 0)
            printf("%-15s %5d MiB %7.1f GB/s %9.3f ms\n", name, mib,
                   1e-9 * (call == 0 ? 2 : 1) * share * (double)mib * (1 << 20) / s, 1e3 * s);
        if (mib == 1024)
            break;
    }
    return D9D_OK;
}

/* Prints host time and total time per call. */
static d9d_status latency_of(struct job *j, struct bench *t)
{
    const int rounds = 2000;
    int64_t start, queued;

    t->n = 1024;
    for (int i = 0; i < 10; i++)
        D9D_TRY(once(j, t, 0));
    D9D_TRY(d9d_device_sync(j->dev));
    D9D_TRY(d9d_comm_barrier(t->c, "start"));
    start = d9d_clock_ns();
    for (int i = 0; i < rounds; i++)
        D9D_TRY(once(j, t, 0));
    queued = d9d_clock_ns();
    D9D_TRY(d9d_device_sync(j->dev));
    if (j->rank == 0)
        printf("%-15s     2 KiB %7.2f us on the host, %.2f us in all\n", "all_reduce",
               (double)(queued - start) / 1e3 / rounds,
               (double)(d9d_clock_ns() - start) / 1e3 / rounds);
    return D9D_OK;
}

static d9d_status bandwidth(struct job *j)
{
    static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
    struct bench t = {0};

    D9D_TRY(d9d_mesh_group(j->mesh, D9D_AXES_WORLD, &t.c));
    t.a = array_new(j, D9D_BF16, INT64_C(512) << 20);
    t.b = array_new(j, D9D_BF16, INT64_C(512) << 20);
    for (int64_t i = 0; i < t.a.n; i++) /* small, of either sign; not all terms alike */
        ((uint16_t *)t.a.host)[i] =
            (uint16_t)(0x3a00 | ((uint64_t)i * 0x9e3779b97f4a7c15u >> 48 & 0x80ff));
    D9D_TRY(array_send(j, &t.a));
    D9D_TRY(latency_of(j, &t));
    for (int call = 0; call < 4; call++)
        D9D_TRY(bandwidth_of(j, &t, call, names[call]));
    array_free(j, &t.a);
    array_free(j, &t.b);
    return D9D_OK;
}

static d9d_status reduce(struct job *j, d9d_comm *c, const char *what, int64_t n)
{
    struct array a = array_new(j, D9D_F32, n);
    d9d_status st = array_send(j, &a);

    if (st == D9D_OK)
        st = d9d_comm_all_reduce(c, j->dev->stream, what, D9D_F32, a.data, n, D9D_COMM_SUM);
    if (st == D9D_OK)
        st = array_fetch(j, &a);
    array_free(j, &a);
    return st;
}

static d9d_status group_of(struct job *j, unsigned axes, d9d_comm **out)
{
    D9D_TRY(d9d_mesh_group(j->mesh, axes, out));
    return *out == NULL ? D9D_FAIL(D9D_ECONFIG, "the test needs more ranks") : D9D_OK;
}

static d9d_status busy(struct job *j)
{
    int64_t counts[MAX_RANKS];
    d9d_comm *world, *tp;

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &world));
    D9D_TRY(d9d_mesh_group(j->mesh, D9D_AXIS(TP), &tp));
    printf("%d is %lld\n", j->rank, (long long)getpid());
    (void)fflush(stdout);
    for (int i = 0;; i++) {
        counts_of(i % 5, d9d_comm_size(world), counts);
        D9D_TRY(try_calls(j, world, D9D_F32, counts));
        counts_of(i % 5, d9d_comm_size(tp), counts);
        D9D_TRY(try_calls(j, tp, D9D_BF16, counts));
    }
}

static d9d_status late(struct job *j)
{
    d9d_comm *c;

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &c));
    D9D_TRY(reduce(j, c, "warm", 10));
    if (j->rank == j->who)
        (void)sleep(1000);
    return reduce(j, c, "loss", 10);
}

static d9d_status mute(struct job *j)
{
    if (j->rank == j->who)
        (void)sleep(1000);
    return d9d_bootstrap_agree_status(d9d_mesh_bootstrap(j->mesh), D9D_OK);
}

static d9d_status other(struct job *j)
{
    int64_t counts[MAX_RANKS];
    d9d_comm *c;

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &c));
    D9D_TRY(reduce(j, c, "warm", 10));
    counts_of(0, j->size, counts);
    return j->rank == j->who ? try_all_gather(j, c, D9D_F32, counts, true)
                             : reduce(j, c, "loss", 5);
}

static d9d_status fewer(struct job *j)
{
    d9d_comm *c;

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &c));
    return reduce(j, c, "loss", j->rank == j->who ? 7 : 10);
}

/* D9D_TEST_ELEMENTS: of the ranks but one. */
static d9d_status sizes(struct job *j)
{
    const char *elements = getenv("D9D_TEST_ELEMENTS");
    d9d_comm *c;

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &c));
    D9D_TRY(reduce(j, c, "warm", 10));
    return reduce(j, c, "loss", j->rank == j->who || elements == NULL ? 10 : atoll(elements));
}

static d9d_status cross(struct job *j)
{
    d9d_comm *c[2];

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &c[0]));
    D9D_TRY(group_of(j, D9D_AXIS(TP), &c[1]));
    for (int i = 0; i < 2; i++)
        D9D_TRY(reduce(j, c[i ^ (j->rank == j->who)], i == 0 ? "one" : "two", 10));
    return D9D_OK;
}

static d9d_status fail(struct job *j)
{
    d9d_comm *c;

    D9D_TRY(group_of(j, D9D_AXES_WORLD, &c));
    D9D_TRY(reduce(j, c, "warm", 10));
    return j->rank == j->who ? D9D_FAIL(D9D_EIO, "no more") : reduce(j, c, "loss", 10);
}

/* --- main ------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    d9d_status (*run)(struct job *j);
} acts[] = {{"all", all},       {"order", order},         {"first", first},
            {"groups", groups}, {"bandwidth", bandwidth}, {"busy", busy},
            {"late", late},     {"mute", mute},           {"other", other},
            {"short", fewer},   {"sizes", sizes},         {"cross", cross},
            {"fail", fail}};

static void say(void *arg, d9d_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    fprintf(stderr, "%s\n", text);
}

/* What a call may take, in seconds: D9D_TEST_TIMEOUT.  Where ranks wait for a processor, that is no
 * fault of theirs: then it is 200 times what an exchange takes now. */
static d9d_status measure_limit(struct job *j, double *limit)
{
    enum { EXCHANGES = 10, TIMES = 200 };
    const char *s = getenv("D9D_TEST_TIMEOUT");
    const int64_t start = d9d_clock_ns();

    *limit = 0;
    if (s == NULL)
        return D9D_OK;
    for (int i = 0; i < EXCHANGES; i++)
        D9D_TRY(d9d_bootstrap_agree_status(j->bootstrap, D9D_OK));
    *limit = fmax(strtod(s, NULL), (double)(d9d_clock_ns() - start) / 1e9 / EXCHANGES * TIMES);
    return D9D_OK;
}

static d9d_status run(struct job *j, const char *word, const char *degrees)
{
    const char *device = getenv("D9D_TEST_DEVICE");
    const bool gpu = device != NULL && strncmp(device, "cuda", 4) == 0;
    static const d9d_log log = {.line = say, .level = D9D_LOG_INFO};
    const d9d_mesh_opts opts = {
        .flight_dir = getenv("D9D_TEST_FLIGHT"), .log = &log, .exit_fn = _exit};
    long long n[7];
    char which[32] = "cpu";
    d9d_parallel_degrees d;
    double limit;

    if (sscanf(degrees, "%lld,%lld,%lld,%lld,%lld,%lld,%lld", &n[0], &n[1], &n[2], &n[3], &n[4],
               &n[5], &n[6]) != 7)
        return D9D_FAIL(D9D_ECONFIG, "%s: not seven numbers", degrees);
    d = (d9d_parallel_degrees){n[0], n[1], n[2], n[3], n[4], n[5], n[6], 1, D9D_CP_ALL_GATHER};
    if (gpu)
        (void)snprintf(which, sizeof(which), "cuda:%d", j->rank);
    D9D_TRY(d9d_device_open(which, &j->dev));
    D9D_TRY(measure_limit(j, &limit));
    D9D_TRY(d9d_mesh_open(j->bootstrap, &d, gpu ? "cuda" : "cpu", j->dev->stream, &opts, &j->mesh));
    d9d_mesh_set_timeout(j->mesh, limit, NULL);
    for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++)
        if (strcmp(acts[i].word, word) == 0)
            return acts[i].run(j);
    return D9D_FAIL(D9D_EINVAL, "%s: no such act", word);
}

int main(int argc, char **argv)
{
    struct job j = {.who = argc > 3 ? atoi(argv[3]) : 0};
    d9d_status st = argc < 3 ? D9D_EINVAL : d9d_bootstrap_open(&j.bootstrap);

    if (st == D9D_OK) {
        j.rank = d9d_bootstrap_rank(j.bootstrap);
        j.size = d9d_bootstrap_size(j.bootstrap);
        st = run(&j, argv[1], argv[2]);
    }
    if (st != D9D_OK)
        fprintf(stderr, "%d: %s\n", j.rank, d9d_err_message());
    if (st != D9D_OK && j.mesh != NULL)
        d9d_bootstrap_abort(j.bootstrap, d9d_status_exit_code(st), d9d_err_message());
    d9d_mesh_close(j.mesh);
    d9d_device_close(j.dev);
    d9d_bootstrap_close(j.bootstrap);
    return d9d_status_exit_code(st);
}
