/* newton_schulz.c - see optim/newton_schulz.h. */
#include "optim/newton_schulz.h"

#include <stdlib.h>

/* A batch in work. */
typedef struct batch {
    d9d_device *dev;
    const d9di_newton_schulz_opts *opts;
    int64_t count, rows, cols, side; /* side: of A, the smaller of rows and cols */
    d9d_tensor next, gram, poly;     /* of x; A; b A + c A A */
} batch;

/* Divide each matrix by its norm. */
static d9d_status matrices_normalize(const batch *b, d9d_tensor *x)
{
    const int64_t n = b->rows * b->cols;
    d9d_sum_squares_array *list = calloc((size_t)b->count, sizeof(*list));
    const d9d_kernels *k = b->dev->kernels;
    d9d_tensor squares = {0};
    d9d_status st;

    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "Newton-Schulz: no memory for a list of %lld matrices",
                        (long long)b->count);
    for (int64_t i = 0; i < b->count; i++)
        list[i] = (d9d_sum_squares_array){
            (const char *)d9d_tensor_data(x) + (size_t)(i * n) * d9d_dtype_size(x->dtype), n};
    D9D_TRY_OR(st, d9d_tensor_alloc(b->dev, D9D_F64, D9D_SHAPE(b->count), &squares), out);
    D9D_TRY_OR(
        st,
        k->reduce->sum_squares(b->dev->stream, d9d_tensor_data(&squares), x->dtype, list, b->count),
        out);
    st = k->optim->muon_normalize(b->dev->stream, x->dtype, d9d_tensor_data(x),
                                  d9d_tensor_data(&squares), b->count, n, b->opts->eps);
out:
    d9d_tensor_release(&squares);
    free(list);
    return st;
}

/* Results of [side, side] are symmetric. */
static d9d_status multiply(const batch *b, const d9d_gemm *g, float alpha, const d9d_tensor *left,
                           const d9d_tensor *right, d9d_tensor *to)
{
    const d9d_gemm_batched n = {
        .gemm = *g, .count = b->count, .alpha = alpha, .symmetric = to != &b->next};

    return b->dev->kernels->gemm->batched(b->dev->stream, &n, d9d_tensor_data(left),
                                          d9d_tensor_data(right), d9d_tensor_data(to));
}

/* One iteration, from x to b->next. */
static d9d_status iterate(batch *b, const d9d_tensor *x)
{
    const bool tall = b->rows > b->cols;
    const d9d_gemm of_side = {
        .t = x->dtype, .ct = x->dtype, .m = b->side, .n = b->side, .k = b->side};
    d9d_gemm gram = of_side, poly = of_side, next = of_side;

    gram.trans_a = tall;
    gram.trans_b = !tall;
    gram.k = tall ? b->rows : b->cols;
    poly.beta = b->opts->b;
    poly.addend = d9d_tensor_data(&b->gram);
    next.m = b->rows;
    next.n = b->cols;
    next.beta = b->opts->a;
    next.addend = d9d_tensor_data(x);
    D9D_TRY(multiply(b, &gram, 1, x, x, &b->gram));
    D9D_TRY(multiply(b, &poly, b->opts->c, &b->gram, &b->gram, &b->poly));
    return multiply(b, &next, 1, tall ? x : &b->poly, tall ? &b->poly : x, &b->next);
}

static d9d_status iterations_run(batch *b, d9d_tensor *x)
{
    const d9d_shape side = D9D_SHAPE(b->count, b->side, b->side);

    D9D_TRY(d9d_tensor_alloc(b->dev, x->dtype, x->shape, &b->next));
    D9D_TRY(d9d_tensor_alloc(b->dev, x->dtype, side, &b->gram));
    D9D_TRY(d9d_tensor_alloc(b->dev, x->dtype, side, &b->poly));
    for (int64_t i = 0; i < b->opts->steps; i++) {
        const d9d_tensor done = *x;

        D9D_TRY(iterate(b, x));
        *x = b->next;
        b->next = done;
    }
    return D9D_OK;
}

d9d_status d9di_newton_schulz(d9d_device *dev, const d9di_newton_schulz_opts *opts, d9d_tensor *x)
{
    const int64_t *dim = x->shape.dim;
    batch b = {.dev = dev,
               .opts = opts,
               .count = dim[0],
               .rows = dim[1],
               .cols = dim[2],
               .side = dim[1] < dim[2] ? dim[1] : dim[2]};
    d9d_status st;

    if (d9d_tensor_numel(x) == 0)
        return D9D_OK;
    st = matrices_normalize(&b, x);
    if (st == D9D_OK)
        st = iterations_run(&b, x);
    d9d_tensor_release(&b.next);
    d9d_tensor_release(&b.gram);
    d9d_tensor_release(&b.poly);
    return st;
}
