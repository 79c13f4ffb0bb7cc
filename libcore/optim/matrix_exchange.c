/* matrix_exchange.c - see optim/matrix_exchange.h. */
#include "optim/matrix_exchange.h"

/* Slices begin at multiples of this many elements, so that kernels read whole vectors. */
enum { ALIGN = 8 };

/* counts of d9di_matrix_round */
enum { TO_OWNER, AT_OWNER, FROM_OWNER, BACK, COUNTS };

/* A rank's rectangle of a matrix in `whole`, and in `far`. */
typedef struct d9di_matrix_copy {
    int64_t rows, cols, whole_cols, whole_at;
    int64_t input_at, result_at; /* input_at -1: another copy is the input */
} matrix_copy;

/* What is counted, then where each rank's part goes on. */
typedef struct round_cursor {
    int64_t *at[COUNTS]; /* [ranks] */
    int64_t unsent;      /* inputs of slices that another rank sends */
} round_cursor;

static int64_t padded(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t advance(int64_t *at, int64_t n)
{
    const int64_t begin = *at;

    *at += padded(n);
    return begin;
}

/* Is the rectangle whole rows of a matrix in `whole`, at an aligned place? */
static bool is_direct(const d9di_matrix_class *c, const d9di_matrix_box *b, int64_t at)
{
    return b->dim[2] == c->cols && at % ALIGN == 0;
}

/* First element in `whole` of a rectangle of a matrix of round k. */
static int64_t place_in_whole(const d9di_matrix_class *c, const d9di_matrix *m, size_t k,
                              const d9di_matrix_box *b)
{
    return (m->place - (int64_t)k * c->per_round) * c->rows * c->cols + b->first[1] * c->cols +
           b->first[2];
}

/* This rank's slice of a matrix, if it has one. */
static void slice_add(const d9di_matrix_shards *s, const d9di_matrix_class *c, size_t k,
                      const d9di_matrix *m, round_cursor *cursor, d9di_matrix_round *r)
{
    bool has_part;
    const d9di_matrix_box *b = d9di_matrix_box_of(s, m, s->rank, &has_part);
    const int64_t n = b->dim[1] * b->dim[2], at = place_in_whole(c, m, k, b);
    d9di_matrix_slice slice = {.update = m->update, .first = (m->index - b->first[0]) * n, .n = n};

    if (!has_part)
        return;
    slice.is_direct = m->owner == s->rank && is_direct(c, b, at);
    if (slice.is_direct) {
        slice.at = at;
    } else {
        const bool sends = d9di_matrix_sender(s, m, s->rank) == s->rank;

        slice.input_at = advance(sends ? &cursor->at[TO_OWNER][m->owner] : &cursor->unsent, n);
        slice.at = advance(&cursor->at[BACK][m->owner], n);
    }
    if (r->slices != NULL)
        r->slices[r->n_slices] = slice;
    r->n_slices++;
}

/* The rectangles of a matrix that this rank owns. */
static void copies_add(const d9di_matrix_shards *s, const d9di_matrix_class *c, size_t k,
                       const d9di_matrix *m, round_cursor *cursor, d9di_matrix_round *r)
{
    for (int rank = 0; rank < s->ranks; rank++) {
        bool has_part;
        const d9di_matrix_box *b = d9di_matrix_box_of(s, m, rank, &has_part);
        const int64_t n = b->dim[1] * b->dim[2], at = place_in_whole(c, m, k, b);
        matrix_copy copy = {b->dim[1], b->dim[2], c->cols, at, -1, 0};

        if (!has_part || (rank == s->rank && is_direct(c, b, at)))
            continue;
        if (d9di_matrix_sender(s, m, rank) == rank)
            copy.input_at = advance(&cursor->at[AT_OWNER][rank], n);
        copy.result_at = advance(&cursor->at[FROM_OWNER][rank], n);
        if (r->copies != NULL)
            r->copies[r->n_copies] = copy;
        r->n_copies++;
    }
}

/* Count the slices and copies of round k or, where the round has arrays for them, fill these.
 * Returns the number of matrices that this rank owns. */
static int64_t round_walk(const d9di_matrix_shards *s, const d9di_matrix_class *c, size_t k,
                          round_cursor *cursor, d9di_matrix_round *r)
{
    int64_t owned = 0;

    r->n_slices = r->n_copies = 0;
    for (size_t i = 0; i < c->n; i++) {
        const d9di_matrix *m = &c->matrices[i];

        if ((size_t)(m->place / c->per_round) != k)
            continue;
        slice_add(s, c, k, m, cursor, r);
        if (m->owner != s->rank)
            continue;
        owned++;
        copies_add(s, c, k, m, cursor, r);
    }
    return owned;
}

/* Turn the counts of each rank into its first element; *cursor has the counts' places. */
static void cursor_begin(const d9di_matrix_round *r, int ranks, round_cursor *cursor)
{
    for (int i = 0; i < COUNTS; i++) {
        int64_t sum = 0;

        for (int rank = 0; rank < ranks; rank++) {
            cursor->at[i][rank] = sum;
            sum += r->counts[i * ranks + rank];
        }
        if (i == TO_OWNER)
            cursor->unsent = sum;
    }
}

static int64_t count_sum(const d9di_matrix_round *r, int which)
{
    const int ranks = d9d_comm_size(r->group);
    int64_t sum = 0;

    for (int rank = 0; rank < ranks; rank++)
        sum += r->counts[which * ranks + rank];
    return sum;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void *element(const d9d_tensor *t, int64_t i)
{
    return (char *)d9d_tensor_data(t) + (size_t)i * d9d_dtype_size(t->dtype);
}

/* Zeros, since a step that is skipped writes no inputs, and padding is sent too. */
static d9d_status buffer_alloc(d9d_device *dev, d9d_dtype t, d9d_shape shape, d9d_tensor *out)
{
    D9D_TRY(d9d_tensor_alloc(dev, t, shape, out));
    return dev->kernels->elementwise->fill(dev->stream, t, d9d_tensor_data(out),
                                           d9d_tensor_numel(out), 0);
}

static d9d_status buffers_alloc(const d9di_matrix_class *c, int64_t owned, int64_t unsent,
                                d9d_dtype t, d9di_matrix_round *r)
{
    const int64_t near = larger(count_sum(r, TO_OWNER) + unsent, count_sum(r, BACK)),
                  far = larger(count_sum(r, AT_OWNER), count_sum(r, FROM_OWNER));

    D9D_TRY(buffer_alloc(r->dev, t, D9D_SHAPE(owned, c->rows, c->cols), &r->whole));
    D9D_TRY(buffer_alloc(r->dev, t, D9D_SHAPE(near), &r->near));
    D9D_TRY(buffer_alloc(r->dev, t, D9D_SHAPE(far), &r->far));
    for (size_t i = 0; i < r->n_slices; i++) {
        d9di_matrix_slice *slice = &r->slices[i];

        slice->data =
            slice->is_direct ? element(&r->whole, slice->at) : element(&r->near, slice->input_at);
    }
    return D9D_OK;
}

d9d_status d9di_matrix_round_open(const d9di_matrix_plan *p, const d9di_matrix_class *c, size_t k,
                                  d9d_dtype t, d9d_arena *a, d9di_matrix_round *out)
{
    const d9di_matrix_shards *s = p->shards;
    const size_t ranks = (size_t)s->ranks;
    d9di_matrix_round r = {.dev = s->dev, .group = s->group};
    round_cursor cursor = {.unsent = 0};
    int64_t *places = d9d_arena_alloc(a, COUNTS * ranks * sizeof(*places)), owned, unsent;
    d9d_status st;

    r.counts = d9d_arena_alloc(a, COUNTS * ranks * sizeof(*r.counts));
    if (places == NULL || r.counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for the counts of %d ranks", s->ranks);
    for (size_t i = 0; i < COUNTS; i++)
        cursor.at[i] = r.counts + i * ranks;
    owned = round_walk(s, c, k, &cursor, &r);
    unsent = cursor.unsent;
    r.slices = d9d_arena_alloc(a, (r.n_slices + 1) * sizeof(*r.slices));
    r.copies = d9d_arena_alloc(a, (r.n_copies + 1) * sizeof(*r.copies));
    if (r.slices == NULL || r.copies == NULL)
        return D9D_FAIL(D9D_ENOMEM, "optimizer: no memory for a round of %zu slices", r.n_slices);
    for (size_t i = 0; i < COUNTS; i++)
        cursor.at[i] = places + i * ranks;
    cursor_begin(&r, s->ranks, &cursor);
    (void)round_walk(s, c, k, &cursor, &r);
    st = buffers_alloc(c, owned, unsent, t, &r);
    if (st == D9D_OK)
        *out = r;
    else
        d9di_matrix_round_close(&r);
    return st;
}

void d9di_matrix_round_close(d9di_matrix_round *r)
{
    d9d_tensor_release(&r->whole);
    d9d_tensor_release(&r->near);
    d9d_tensor_release(&r->far);
}

static d9d_status exchange(const d9di_matrix_round *r, const d9d_tensor *to, int received,
                           const d9d_tensor *from, int sent)
{
    const int ranks = d9d_comm_size(r->group);

    if (r->group == NULL && count_sum(r, sent) == 0)
        return D9D_OK;
    return d9d_comm_all_to_all(r->group, r->dev->stream, "matrices", to->dtype, d9d_tensor_data(to),
                               r->counts + received * ranks, d9d_tensor_data(from),
                               r->counts + sent * ranks);
}

/* Copy a rectangle from or to `whole`; `at` is its place in `far`. */
static d9d_status rectangle_copy(const d9di_matrix_round *r, const matrix_copy *c, int64_t at,
                                 bool to_whole)
{
    const d9d_copy_strided_dims dims = {
        .t = r->whole.dtype,
        .m = c->rows,
        .heads = 1,
        .n = c->cols,
        .x_cols = to_whole ? c->cols : c->whole_cols,
        .x_first = to_whole ? at : c->whole_at,
        .y_cols = to_whole ? c->whole_cols : c->cols,
        .y_first = to_whole ? c->whole_at : at,
    };
    const d9d_tensor *y = to_whole ? &r->whole : &r->far, *x = to_whole ? &r->far : &r->whole;

    return r->dev->kernels->elementwise->copy_strided(r->dev->stream, &dims, d9d_tensor_data(y),
                                                      d9d_tensor_data(x));
}

d9d_status d9di_matrix_round_gather(d9di_matrix_round *r)
{
    D9D_TRY(exchange(r, &r->far, AT_OWNER, &r->near, TO_OWNER));
    for (size_t i = 0; i < r->n_copies; i++)
        if (r->copies[i].input_at >= 0)
            D9D_TRY(rectangle_copy(r, &r->copies[i], r->copies[i].input_at, true));
    return D9D_OK;
}

d9d_status d9di_matrix_round_scatter(d9di_matrix_round *r)
{
    for (size_t i = 0; i < r->n_copies; i++)
        D9D_TRY(rectangle_copy(r, &r->copies[i], r->copies[i].result_at, false));
    D9D_TRY(exchange(r, &r->near, BACK, &r->far, FROM_OWNER));
    for (size_t i = 0; i < r->n_slices; i++) {
        d9di_matrix_slice *slice = &r->slices[i];

        slice->data = element(slice->is_direct ? &r->whole : &r->near, slice->at);
    }
    return D9D_OK;
}
