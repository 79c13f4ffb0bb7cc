/* desync_check.c - the desynchronisation check: with D9D_COMM_CHECK=1 all ranks of a group compare
 * the call that each is about to make.
 *
 * It costs two small collectives before each call; for tests and for debugging.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"

/* A call as it is sent to the other ranks.  The counts of elements sent to each rank and received
 * from each follow; -1 where the collective has none. */
struct call_desc {
    int32_t coll, t, op, root;
    int64_t n;
    char label[64];
};

static size_t call_desc_size(const d9d_comm *c)
{
    return sizeof(struct call_desc) + 2 * (size_t)c->size * sizeof(int64_t);
}

static void call_desc_fill(const d9d_comm *c, const d9di_comm_call *k, struct call_desc *out)
{
    int64_t *counts = (int64_t *)(void *)(out + 1);

    *out = (struct call_desc){.coll = (int32_t)k->coll,
                              .t = (int32_t)k->t,
                              .op = (int32_t)k->op,
                              .root = k->root,
                              .n = k->n};
    (void)snprintf(out->label, sizeof(out->label), "%s", k->label);
    for (int r = 0; r < c->size; r++) {
        counts[r] = k->send != NULL ? k->send[r] : -1;
        counts[c->size + r] = k->recv != NULL ? k->recv[r] : -1;
    }
}

static const int64_t *send_counts(const struct call_desc *s)
{
    return (const int64_t *)(const void *)(s + 1);
}

static const char *call_desc_text(const struct call_desc *s, char *buf, size_t n)
{
    char count[32] = "";

    if (s->n > 0)
        (void)snprintf(count, sizeof(count), " [%lld]", (long long)s->n);
    (void)snprintf(buf, n, "%s of %s, %s%s%s", d9di_comm_coll_name((d9di_comm_coll)s->coll),
                   s->label, d9d_dtype_name((d9d_dtype)s->t), count,
                   s->op == D9D_COMM_MAX ? ", maximum" : "");
    return buf;
}

/* The first rank whose counts differ between two ranks, or -1.  In an all-gather or reduce-scatter
 * both have the same lists; in an all-to-all what one sends is what the other receives. */
static int find_count_mismatch(const d9d_comm *c, const struct call_desc *local,
                               const struct call_desc *other, int rank)
{
    const int64_t *a = send_counts(local), *b = send_counts(other);

    if (local->coll != D9DI_COLL_ALL_TO_ALL) {
        for (int i = 0; i < 2 * c->size; i++)
            if (a[i] != b[i])
                return i % c->size;
        return -1;
    }
    return a[rank] != b[c->size + c->rank] || b[c->rank] != a[c->size + rank] ? rank : -1;
}

static d9d_status compare_calls(const d9d_comm *c, const d9di_comm_call *k,
                                const struct call_desc *local, const struct call_desc *other,
                                int rank)
{
    char here[160], there[160];
    int at;

    if (local->coll < 0 || other->coll < 0 || other->coll >= D9DI_COLL_COUNT || other->t < 0 ||
        other->t >= D9D_DTYPE_COUNT)
        return d9di_comm_call_fail(c, k, "rank %d sent no record of a call", c->world[rank]);
    if (local->coll != other->coll || local->t != other->t || local->op != other->op ||
        local->root != other->root || local->n != other->n ||
        strcmp(local->label, other->label) != 0)
        return d9di_comm_call_fail(c, k, "rank %d calls %s, rank %d calls %s", c->world[c->rank],
                                   call_desc_text(local, here, sizeof(here)), c->world[rank],
                                   call_desc_text(other, there, sizeof(there)));
    at = find_count_mismatch(c, local, other, rank);
    if (at >= 0)
        return d9di_comm_call_fail(
            c, k, "rank %d counts %lld to and %lld from rank %d, rank %d counts %lld and %lld",
            c->world[c->rank], (long long)send_counts(local)[at],
            (long long)send_counts(local)[c->size + at], c->world[at], c->world[rank],
            (long long)send_counts(other)[at], (long long)send_counts(other)[c->size + at]);
    return D9D_OK;
}

d9d_status d9di_desync_check(d9d_comm *c, const d9di_comm_call *k)
{
    const size_t one = call_desc_size(c);
    char *all = calloc((size_t)c->size + 1, one), *local = all + (size_t)c->size * one;
    int64_t *counts = calloc((size_t)c->size, sizeof(*counts));
    d9d_status st = D9D_OK;

    if (all == NULL || counts == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory to check a call", c->name);
        goto out;
    }
    for (int r = 0; r < c->size; r++)
        counts[r] = (int64_t)one;
    call_desc_fill(c, k, (struct call_desc *)(void *)local);
    D9D_TRY_OR(st,
               c->ops->run[D9DI_COLL_ALLGATHER_BYTES](
                   c, &(d9di_comm_call){.coll = D9DI_COLL_ALLGATHER_BYTES,
                                        .t = D9D_U8,
                                        .label = "the check of a call",
                                        .dst = all,
                                        .src = local,
                                        .recv = counts}),
               out);
    for (int r = 0; r < c->size && st == D9D_OK; r++)
        st = compare_calls(c, k, (const struct call_desc *)(void *)local,
                           (const struct call_desc *)(void *)(all + (size_t)r * one), r);
out:
    free(counts);
    free(all);
    return st;
}
