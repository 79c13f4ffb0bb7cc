/* ckpt_diff.c - compares two checkpoint directories tensor by tensor.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/mapper/dtype_convert.h"
#include "d9d/base/thread.h"
#include "d9d/ckpt/dir/checkpoint.h"

enum { ABSENT = -1 };
enum {
    WORK_BYTES = 1 << 20,
    COMPARE_BYTES = 1 << 16,
    BLOCK = 1024
}; /* elements per work item, per read, per comparison */

struct tensor_pair {
    const char *name;
    int64_t at[2]; /* index in each checkpoint, or NOWHERE */
    bool same_shape, same_dtype;
};

struct diff_item { /* work item: a range of one pair */
    size_t pair_index;
    uint64_t at, n; /* elements */
};

struct diff_result { /* result of one work item */
    uint64_t n_different;
    double max_abs;
};

struct diff_scratch { /* buffers of one worker */
    unsigned char *raw[2];
};

struct diff {
    d9d_checkpoint *side[2];
    D9D_VEC(struct tensor_pair) pairs;
    D9D_VEC(struct diff_item) items;
    struct diff_result *results;
    struct diff_scratch *worker_scratch;
    d9d_arena arena;
    pthread_mutex_t lock;
    d9d_progress progress;
    uint64_t bytes;
};

static const d9d_safetensors_tensor *pair_tensor(const struct diff *d, const struct tensor_pair *p,
                                                 int side)
{
    return p->at[side] == ABSENT ? NULL : d9d_checkpoint_at(d->side[side], (size_t)p->at[side]);
}

/* --- pairs ------------------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct tensor_pair *)a)->name, ((const struct tensor_pair *)b)->name);
}

static void compare_headers(const struct diff *d, struct tensor_pair *p)
{
    const d9d_safetensors_tensor *a = pair_tensor(d, p, 0), *b = pair_tensor(d, p, 1);

    if (a == NULL || b == NULL)
        return;
    p->same_dtype = a->dtype == b->dtype;
    p->same_shape = a->ndim == b->ndim;
    for (int k = 0; k < a->ndim && p->same_shape; k++)
        p->same_shape = a->shape[k] == b->shape[k];
}

static d9d_status split_pair(struct diff *d, size_t tensor_pair, uint64_t elements)
{
    for (uint64_t at = 0; at < elements; at += WORK_BYTES) {
        const uint64_t left = elements - at;

        D9D_TRY(D9D_VEC_PUSH(
            &d->items,
            ((struct diff_item){tensor_pair, at, left < WORK_BYTES ? left : WORK_BYTES})));
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
            struct tensor_pair p = {.name = name, .at = {ABSENT, ABSENT}};

            if (at == 0) {
                D9D_TRY_OR(st, D9D_VEC_PUSH(&d->pairs, p), out);
                at = d->pairs.len;
                D9D_TRY_OR(st, d9d_map_put(&names, name, strlen(name), (void *)at), out);
            }
            d->pairs.data[at - 1].at[side] = (int64_t)i;
        }
    if (d->pairs.len > 0)
        qsort(d->pairs.data, d->pairs.len, sizeof(d->pairs.data[0]), compare_names);
    for (size_t i = 0; i < d->pairs.len; i++) {
        struct tensor_pair *p = &d->pairs.data[i];
        const d9d_safetensors_tensor *a;

        compare_headers(d, p);
        if (!p->same_shape)
            continue;
        a = pair_tensor(d, p, 0);
        d->bytes += a->bytes + pair_tensor(d, p, 1)->bytes;
        D9D_TRY_OR(st, split_pair(d, i, a->bytes / d9d_dtype_size(a->dtype)), out);
    }
out:
    d9d_map_release(&names);
    return st;
}

/* --- numbers ------------------------------------------------------------------------------ */

/* Counts the elements whose bits differ. */
#define COUNT_DIFFERENT(T)                                                                         \
    do {                                                                                           \
        T x, y;                                                                                    \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(&x, a + i * sizeof(x), sizeof(x));                                              \
            memcpy(&y, b + i * sizeof(y), sizeof(y));                                              \
            others += x != y;                                                                      \
        }                                                                                          \
    } while (0)

static uint64_t count_different(const unsigned char *a, const unsigned char *b, size_t n,
                                size_t width)
{
    uint64_t others = 0;

    switch (width) {
    case 1: COUNT_DIFFERENT(uint8_t); break;
    case 2: COUNT_DIFFERENT(uint16_t); break;
    case 4: COUNT_DIFFERENT(uint32_t); break;
    default: COUNT_DIFFERENT(uint64_t); break;
    }
    return others;
}

/* NaNs count as equal; so do infinities of one sign. */
static uint64_t compare_numbers(const double *a, const double *b, size_t n, double *max_abs)
{
    uint64_t others = 0;
    double max_gap = 0;
    bool nan = false;

    for (size_t i = 0; i < n; i++) {
        double x = a[i], y = b[i], gap = fabs(x - y);
        bool same = x == y || (isnan(x) && isnan(y));

        others += !same;
        nan |= !same && isnan(gap);
        max_gap = !same && gap > max_gap ? gap : max_gap;
    }
    if (max_gap > *max_abs)
        *max_abs = max_gap;
    if (nan)
        *max_abs = (double)NAN;
    return others;
}

/* Compares n elements in blocks, so that the numbers stay in the L1 cache. */
static void compare_blocks(const struct diff *d, const struct tensor_pair *p,
                           const struct diff_scratch *s, size_t n, struct diff_result *r)
{
    const d9d_dtype types[2] = {pair_tensor(d, p, 0)->dtype, pair_tensor(d, p, 1)->dtype};
    const size_t width[2] = {d9d_dtype_size(types[0]), d9d_dtype_size(types[1])};
    double number[2][BLOCK];

    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t k = n - at < BLOCK ? n - at : BLOCK;
        const unsigned char *a = s->raw[0] + at * width[0], *b = s->raw[1] + at * width[1];
        uint64_t others;

        if (p->same_dtype && memcmp(a, b, k * width[0]) == 0)
            continue;
        d9di_cast_to_f64(a, types[0], number[0], k);
        d9di_cast_to_f64(b, types[1], number[1], k);
        others = compare_numbers(number[0], number[1], k, &r->max_abs);
        r->n_different += p->same_dtype ? count_different(a, b, k, width[0]) : others;
    }
}

static d9d_status compare_span(struct diff *d, const struct tensor_pair *p, struct diff_scratch *s,
                               uint64_t at, size_t n, struct diff_result *r)
{
    size_t bytes[2];

    for (int side = 0; side < 2; side++) {
        const size_t width = d9d_dtype_size(pair_tensor(d, p, side)->dtype);

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

static d9d_status alloc_scratch(struct diff_scratch *s)
{
    for (int side = 0; side < 2; side++)
        if (s->raw[side] == NULL && (s->raw[side] = malloc(COMPARE_BYTES * sizeof(double))) == NULL)
            return D9D_FAIL(D9D_ENOMEM, "diff: out of memory");
    return D9D_OK;
}

static d9d_status compare_item(void *arg, int worker, size_t i)
{
    struct diff *d = arg;
    const struct diff_item *diff_item = &d->items.data[i];
    struct diff_scratch *s = &d->worker_scratch[worker];

    D9D_TRY(alloc_scratch(s));
    for (uint64_t done = 0; done < diff_item->n; done += COMPARE_BYTES)
        D9D_TRY(compare_span(d, &d->pairs.data[diff_item->pair_index], s, diff_item->at + done,
                             diff_item->n - done < COMPARE_BYTES ? (size_t)(diff_item->n - done)
                                                                 : COMPARE_BYTES,
                             &d->results[i]));
    return D9D_OK;
}

static d9d_status compare_all(struct diff *d, int jobs, const d9d_log *log)
{
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    d9d_status st;

    d->results = d9d_arena_alloc(&d->arena, (d->items.len + 1) * sizeof(*d->results));
    d->worker_scratch = d9d_arena_alloc(&d->arena, (size_t)n * sizeof(*d->worker_scratch));
    if (d->results == NULL || d->worker_scratch == NULL)
        return D9D_FAIL(D9D_ENOMEM, "diff: out of memory");
    d9d_progress_start(&d->progress, log, "diff", "B", d->bytes);
    st = d9d_thread_run(n, d->items.len, compare_item, d);
    if (st == D9D_OK)
        d9d_progress_end(&d->progress);
    for (int i = 0; i < n; i++)
        for (int side = 0; side < 2; side++)
            free(d->worker_scratch[i].raw[side]);
    return st;
}

/* --- the report ------------------------------------------------------------------------------ */

static d9d_checkpoint_diff_kind diff_kind_of(const struct tensor_pair *p, uint64_t n_different)
{
    if (p->at[1] == ABSENT)
        return D9D_CHECKPOINT_DIFF_ONLY_A;
    if (p->at[0] == ABSENT)
        return D9D_CHECKPOINT_DIFF_ONLY_B;
    if (!p->same_shape)
        return D9D_CHECKPOINT_DIFF_SHAPE;
    if (n_different > 0)
        return D9D_CHECKPOINT_DIFF_VALUES;
    return p->same_dtype ? D9D_CHECKPOINT_DIFF_EQUAL : D9D_CHECKPOINT_DIFF_DTYPE;
}

/* Work items are in the order of the pairs. */
static uint64_t report_diffs(const struct diff *d, d9d_checkpoint_diff_fn fn, void *arg)
{
    uint64_t n = 0;
    size_t diff_item = 0;

    for (size_t i = 0; i < d->pairs.len; i++) {
        const struct tensor_pair *p = &d->pairs.data[i];
        d9d_checkpoint_tensor_diff t = {
            .name = p->name, .a = pair_tensor(d, p, 0), .b = pair_tensor(d, p, 1)};

        for (; diff_item < d->items.len && d->items.data[diff_item].pair_index == i; diff_item++) {
            const struct diff_result *r = &d->results[diff_item];

            t.n_different += r->n_different;
            if (isnan(r->max_abs) || r->max_abs > t.max_abs)
                t.max_abs = r->max_abs;
        }
        t.kind = diff_kind_of(p, t.n_different);
        n += t.kind != D9D_CHECKPOINT_DIFF_EQUAL;
        if (fn != NULL)
            fn(arg, &t);
    }
    return n;
}

d9d_status d9d_checkpoint_diff(const char *a, const char *b, int jobs, const d9d_log *log,
                               d9d_checkpoint_diff_fn fn, void *arg, uint64_t *n_different)
{
    struct diff d = {.lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpoint_open(a, &d.side[0]), out);
    D9D_TRY_OR(st, d9d_checkpoint_open(b, &d.side[1]), out);
    D9D_TRY_OR(st, list_pairs(&d), out);
    D9D_TRY_OR(st, compare_all(&d, jobs, log), out);
    *n_different = report_diffs(&d, fn, arg);
out:
    D9D_VEC_RELEASE(&d.pairs);
    D9D_VEC_RELEASE(&d.items);
    d9d_arena_release(&d.arena);
    d9d_checkpoint_close(d.side[0]);
    d9d_checkpoint_close(d.side[1]);
    return st;
}
