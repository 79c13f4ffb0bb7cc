/* desync_check.c - with D9D_COMM_CHECK=1 every rank says what it is about to call, and all compare.
 *
 * Costs two small calls before each; for tests and for the search of a fault.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_private.h"

/* What a rank says: this, then the counts of what it sends to each rank, and of what it receives
 * from each, -1 where the verb has none. */
struct said {
    int32_t verb, t, op, root;
    int64_t n;
    char what[64];
};

static size_t said_size(const d9d_comm *c)
{
    return sizeof(struct said) + 2 * (size_t)c->size * sizeof(int64_t);
}

static void say(const d9d_comm *c, const d9di_call *k, struct said *out)
{
    int64_t *counts = (int64_t *)(void *)(out + 1);

    *out = (struct said){.verb = (int32_t)k->verb,
                         .t = (int32_t)k->t,
                         .op = (int32_t)k->op,
                         .root = k->root,
                         .n = k->n};
    (void)snprintf(out->what, sizeof(out->what), "%s", k->what);
    for (int r = 0; r < c->size; r++) {
        counts[r] = k->send != NULL ? k->send[r] : -1;
        counts[c->size + r] = k->recv != NULL ? k->recv[r] : -1;
    }
}

static const int64_t *sends(const struct said *s)
{
    return (const int64_t *)(const void *)(s + 1);
}

static const char *describe(const struct said *s, char *buf, size_t n)
{
    char count[32] = "";

    if (s->n > 0)
        (void)snprintf(count, sizeof(count), " [%lld]", (long long)s->n);
    (void)snprintf(buf, n, "%s of %s, %s%s%s", d9di_verb_text((d9di_verb)s->verb), s->what,
                   d9d_dtype_word((d9d_dtype)s->t), count,
                   s->op == D9D_COMM_MAX ? ", maximum" : "");
    return buf;
}

/* Where the counts of two ranks differ, or -1: in a gather or scatter they are the same lists; in
 * an all_to_all what one sends the other receives. */
static int differ(const d9d_comm *c, const struct said *mine, const struct said *other, int rank)
{
    const int64_t *a = sends(mine), *b = sends(other);

    if (mine->verb != D9DI_ALL_TO_ALL) {
        for (int i = 0; i < 2 * c->size; i++)
            if (a[i] != b[i])
                return i % c->size;
        return -1;
    }
    return a[rank] != b[c->size + c->rank] || b[c->rank] != a[c->size + rank] ? rank : -1;
}

static d9d_status compare(const d9d_comm *c, const d9di_call *k, const struct said *mine,
                          const struct said *other, int rank)
{
    char here[160], there[160];
    int at;

    if (mine->verb < 0 || other->verb < 0 || other->verb >= D9DI_VERB_COUNT || other->t < 0 ||
        other->t >= D9D_DTYPE_COUNT)
        return d9di_call_fail(c, k, "rank %d says nothing that is a call", c->world[rank]);
    if (mine->verb != other->verb || mine->t != other->t || mine->op != other->op ||
        mine->root != other->root || mine->n != other->n || strcmp(mine->what, other->what) != 0)
        return d9di_call_fail(c, k, "rank %d calls %s, rank %d calls %s", c->world[c->rank],
                              describe(mine, here, sizeof(here)), c->world[rank],
                              describe(other, there, sizeof(there)));
    at = differ(c, mine, other, rank);
    if (at >= 0)
        return d9di_call_fail(
            c, k, "rank %d counts %lld to and %lld from rank %d, rank %d counts %lld and %lld",
            c->world[c->rank], (long long)sends(mine)[at], (long long)sends(mine)[c->size + at],
            c->world[at], c->world[rank], (long long)sends(other)[at],
            (long long)sends(other)[c->size + at]);
    return D9D_OK;
}

d9d_status d9di_comm_check(d9d_comm *c, const d9di_call *k)
{
    const size_t one = said_size(c);
    char *all = calloc((size_t)c->size + 1, one), *mine = all + (size_t)c->size * one;
    int64_t *counts = calloc((size_t)c->size, sizeof(*counts));
    d9d_status st = D9D_OK;

    if (all == NULL || counts == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory to check a call", c->name);
        goto out;
    }
    for (int r = 0; r < c->size; r++)
        counts[r] = (int64_t)one;
    say(c, k, (struct said *)(void *)mine);
    D9D_TRY_OR(st,
               c->wire->run[D9DI_WORDS](c, &(d9di_call){.verb = D9DI_WORDS,
                                                        .t = D9D_U8,
                                                        .what = "the check of a call",
                                                        .dst = all,
                                                        .src = mine,
                                                        .recv = counts}),
               out);
    for (int r = 0; r < c->size && st == D9D_OK; r++)
        st = compare(c, k, (const struct said *)(void *)mine,
                     (const struct said *)(void *)(all + (size_t)r * one), r);
out:
    free(counts);
    free(all);
    return st;
}
