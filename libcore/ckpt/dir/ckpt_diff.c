/* ckpt_diff.c - two checkpoint directories, tensor by tensor.  See d9d/ckpt/dir/checkpoint.h. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/mapper/dtype_convert.h"
#include "d9d/base/thread.h"
#include "d9d/ckpt/dir/checkpoint.h"

enum { NOWHERE = -1 };
enum { PIECE = 1 << 20, PART = 1 << 16, BLOCK = 1024 }; /* elements dealt out, read, compared */

struct pair {
    const char *name;
    int64_t at[2]; /* number in either checkpoint, or NOWHERE */
    bool same_shape, same_dtype;
};

struct piece { /* of a pair: what a worker takes */
    size_t pair;
    uint64_t at, n; /* elements */
};

struct result { /* of a piece */
    uint64_t n_different;
    double max_abs;
};

struct scratch { /* of a worker */
    unsigned char *raw[2];
};

struct diff {
    d9d_checkpoint *side[2];
    D9D_VEC(struct pair) pairs;
    D9D_VEC(struct piece) pieces;
    struct result *results;
    struct scratch *scratch;
    d9d_arena arena;
    pthread_mutex_t lock;
    d9d_progress progress;
    uint64_t bytes;
};

static const d9d_st_tensor *tensor(const struct diff *d, const struct pair *p, int side)
{
    return p->at[side] == NOWHERE ? NULL : d9d_checkpoint_at(d->side[side], (size_t)p->at[side]);
}

/* --- pairs ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct pair *)a)->name, ((const struct pair *)b)->name);
}

static void compare_heads(const struct diff *d, struct pair *p)
{
    const d9d_st_tensor *a = tensor(d, p, 0), *b = tensor(d, p, 1);

    if (a == NULL || b == NULL)
        return;
    p->same_dtype = a->dtype == b->dtype;
    p->same_shape = a->ndim == b->ndim;
    for (int k = 0; k < a->ndim && p->same_shape; k++)
        p->same_shape = a->shape[k] == b->shape[k];
}

static d9d_status cut_pair(struct diff *d, size_t pair, uint64_t elements)
{
    for (uint64_t at = 0; at < elements; at += PIECE) {
        const uint64_t left = elements - at;

        D9D_TRY(D9D_VEC_PUSH(&d->pieces, ((struct piece){pair, at, left < PIECE ? left : PIECE})));
    }
    return D9D_OK;
}

static d9d_status list_pairs(struct diff *d)
{
    d9d_map names = {0};
    d9d_status st = D9D_OK;

    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < d9d_checkpoint_count(d->side[side]); i++) {
            const char *name = d9d_checkpoint_at(d->side[side], i)->name;
            uintptr_t at = (uintptr_t)d9d_map_get(&names, name, strlen(name));
            struct pair p = {.name = name, .at = {NOWHERE, NOWHERE}};

            if (at == 0) {
                D9D_TRY_OR(st, D9D_VEC_PUSH(&d->pairs, p), out);
                at = d->pairs.len;
                D9D_TRY_OR(st, d9d_map_put(&names, name, strlen(name), (void *)at), out);
            }
            d->pairs.data[at - 1].at[side] = (int64_t)i;
        }
    if (d->pairs.len > 0)
        qsort(d->pairs.data, d->pairs.len, sizeof(d->pairs.data[0]), by_name);
    for (size_t i = 0; i < d->pairs.len; i++) {
        struct pair *p = &d->pairs.data[i];
        const d9d_st_tensor *a;

        compare_heads(d, p);
        if (!p->same_shape)
            continue;
        a = tensor(d, p, 0);
        d->bytes += a->bytes + tensor(d, p, 1)->bytes;
        D9D_TRY_OR(st, cut_pair(d, i, a->bytes / d9d_dtype_size(a->dtype)), out);
    }
out:
    d9d_map_release(&names);
    return st;
}

/* --- numbers ------------------------------------------------------------------------------ */

/* How many of n elements have other bits. */
#define COUNT_OTHERS(T)                                                                            \
    do {                                                                                           \
        T x, y;                                                                                    \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(&x, a + i * sizeof(x), sizeof(x));                                              \
            memcpy(&y, b + i * sizeof(y), sizeof(y));                                              \
            others += x != y;                                                                      \
        }                                                                                          \
    } while (0)

static uint64_t count_others(const unsigned char *a, const unsigned char *b, size_t n, size_t width)
{
    uint64_t others = 0;

    switch (width) {
    case 1: COUNT_OTHERS(uint8_t); break;
    case 2: COUNT_OTHERS(uint16_t); break;
    case 4: COUNT_OTHERS(uint32_t); break;
    default: COUNT_OTHERS(uint64_t); break;
    }
    return others;
}

/* One NaN is as good as another; infinities of one sign are equal. */
static uint64_t compare_numbers(const double *a, const double *b, size_t n, double *max_abs)
{
    uint64_t others = 0;
    double most = 0;
    bool nan = false;

    for (size_t i = 0; i < n; i++) {
        double x = a[i], y = b[i], gap = fabs(x - y);
        bool same = x == y || (isnan(x) && isnan(y));

        others += !same;
        nan |= !same && isnan(gap);
        most = !same && gap > most ? gap : most;
    }
    if (most > *max_abs)
        *max_abs = most;
    if (nan)
        *max_abs = (double)NAN;
    return others;
}

/* n elements, a block at a time so that the numbers stay in the nearest cache. */
static void compare_blocks(const struct diff *d, const struct pair *p, const struct scratch *s,
                           size_t n, struct result *r)
{
    const d9d_dtype types[2] = {tensor(d, p, 0)->dtype, tensor(d, p, 1)->dtype};
    const size_t width[2] = {d9d_dtype_size(types[0]), d9d_dtype_size(types[1])};
    double number[2][BLOCK];

    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t k = n - at < BLOCK ? n - at : BLOCK;
        const unsigned char *a = s->raw[0] + at * width[0], *b = s->raw[1] + at * width[1];
        uint64_t others;

        if (p->same_dtype && memcmp(a, b, k * width[0]) == 0)
            continue;
        d9di_to_double(a, types[0], number[0], k);
        d9di_to_double(b, types[1], number[1], k);
        others = compare_numbers(number[0], number[1], k, &r->max_abs);
        r->n_different += p->same_dtype ? count_others(a, b, k, width[0]) : others;
    }
}

static d9d_status compare_part(struct diff *d, const struct pair *p, struct scratch *s, uint64_t at,
                               size_t n, struct result *r)
{
    size_t bytes[2];

    for (int side = 0; side < 2; side++) {
        const size_t width = d9d_dtype_size(tensor(d, p, side)->dtype);

        bytes[side] = n * width;
        D9D_TRY(d9d_checkpoint_read(d->side[side], (size_t)p->at[side], at * width, s->raw[side],
                                    bytes[side]));
    }
    if (!p->same_dtype || memcmp(s->raw[0], s->raw[1], bytes[0]) != 0)
        compare_blocks(d, p, s, n, r);
    (void)pthread_mutex_lock(&d->lock);
    d9d_progress_add(&d->progress, bytes[0] + bytes[1]);
    (void)pthread_mutex_unlock(&d->lock);
    return D9D_OK;
}

static d9d_status take_scratch(struct scratch *s)
{
    for (int side = 0; side < 2; side++)
        if (s->raw[side] == NULL && (s->raw[side] = malloc(PART * sizeof(double))) == NULL)
            return D9D_FAIL(D9D_ENOMEM, "diff: out of memory");
    return D9D_OK;
}

static d9d_status compare_piece(void *arg, int worker, size_t i)
{
    struct diff *d = arg;
    const struct piece *piece = &d->pieces.data[i];
    struct scratch *s = &d->scratch[worker];

    D9D_TRY(take_scratch(s));
    for (uint64_t done = 0; done < piece->n; done += PART)
        D9D_TRY(compare_part(d, &d->pairs.data[piece->pair], s, piece->at + done,
                             piece->n - done < PART ? (size_t)(piece->n - done) : PART,
                             &d->results[i]));
    return D9D_OK;
}

static d9d_status compare_all(struct diff *d, int jobs, const d9d_log *log)
{
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    d9d_status st;

    d->results = d9d_arena_alloc(&d->arena, (d->pieces.len + 1) * sizeof(*d->results));
    d->scratch = d9d_arena_alloc(&d->arena, (size_t)n * sizeof(*d->scratch));
    if (d->results == NULL || d->scratch == NULL)
        return D9D_FAIL(D9D_ENOMEM, "diff: out of memory");
    d9d_progress_start(&d->progress, log, "diff", "B", d->bytes);
    st = d9d_thread_run(n, d->pieces.len, compare_piece, d);
    if (st == D9D_OK)
        d9d_progress_end(&d->progress);
    for (int i = 0; i < n; i++)
        for (int side = 0; side < 2; side++)
            free(d->scratch[i].raw[side]);
    return st;
}

/* --- the report ------------------------------------------------------------------------------ */

static d9d_diff_kind kind_of(const struct pair *p, uint64_t n_different)
{
    if (p->at[1] == NOWHERE)
        return D9D_DIFF_ONLY_A;
    if (p->at[0] == NOWHERE)
        return D9D_DIFF_ONLY_B;
    if (!p->same_shape)
        return D9D_DIFF_SHAPE;
    if (n_different > 0)
        return D9D_DIFF_VALUES;
    return p->same_dtype ? D9D_DIFF_EQUAL : D9D_DIFF_DTYPE;
}

/* Pieces are in the order of the pairs. */
static uint64_t report(const struct diff *d, d9d_diff_fn fn, void *arg)
{
    uint64_t n = 0;
    size_t piece = 0;

    for (size_t i = 0; i < d->pairs.len; i++) {
        const struct pair *p = &d->pairs.data[i];
        d9d_tensor_diff t = {.name = p->name, .a = tensor(d, p, 0), .b = tensor(d, p, 1)};

        for (; piece < d->pieces.len && d->pieces.data[piece].pair == i; piece++) {
            const struct result *r = &d->results[piece];

            t.n_different += r->n_different;
            if (isnan(r->max_abs) || r->max_abs > t.max_abs)
                t.max_abs = r->max_abs;
        }
        t.kind = kind_of(p, t.n_different);
        n += t.kind != D9D_DIFF_EQUAL;
        if (fn != NULL)
            fn(arg, &t);
    }
    return n;
}

d9d_status d9d_checkpoint_diff(const char *a, const char *b, int jobs, const d9d_log *log,
                               d9d_diff_fn fn, void *arg, uint64_t *n_different)
{
    struct diff d = {.lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpoint_open(a, &d.side[0]), out);
    D9D_TRY_OR(st, d9d_checkpoint_open(b, &d.side[1]), out);
    D9D_TRY_OR(st, list_pairs(&d), out);
    D9D_TRY_OR(st, compare_all(&d, jobs, log), out);
    *n_different = report(&d, fn, arg);
out:
    D9D_VEC_RELEASE(&d.pairs);
    D9D_VEC_RELEASE(&d.pieces);
    d9d_arena_release(&d.arena);
    d9d_checkpoint_close(d.side[0]);
    d9d_checkpoint_close(d.side[1]);
    return st;
}
