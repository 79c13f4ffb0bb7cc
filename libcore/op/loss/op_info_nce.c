/* op_info_nce.c - InfoNCE: contrastive loss with in-batch negatives.  x [N, H], P = N / 2.
 *
 *     e = x / |x| / sqrt(temperature)    loss[i] = logsumexp_j e_i . e_(P+j) - e_i . e_(P+i)
 *
 * The second half of the rows acts as a language-model head for the first half.  So the kernels are
 * those of RMSNorm and linear cross entropy, and the wgrad of that head is the dgrad of its rows.
 */
#include <math.h>

#include "op/op_common.h"

typedef struct info_nce_attr {
    int64_t pairs, h;
    int32_t ignore;
} info_nce_attr;

enum { X, INV, SCALE, E, LSE, TARGETS, UNIT, SAVED }; /* saved */

static d9d_linear_cross_entropy_dims info_nce_dims(d9d_dtype t, const info_nce_attr *a)
{
    return (d9d_linear_cross_entropy_dims){.t = t,
                                           .rows = a->pairs,
                                           .h = a->h,
                                           .n_split = 1,
                                           .v = &a->pairs,
                                           .ignore = a->ignore,
                                           .vocab = a->pairs};
}

/* Pointer to the second half. */
static void *second_half(const d9d_tensor *e, const info_nce_attr *a)
{
    return (char *)d9d_tensor_data(e) +
           (uint64_t)(a->pairs * a->h) * (uint64_t)d9d_dtype_size(e->dtype);
}

/* Gradient of both halves of e [N, H]; a last row without a pair has none. */
static d9d_status halves_bwd(d9d_node *n, const d9d_tensor *de)
{
    const info_nce_attr *a = n->attr;
    const d9d_tensor *e = &n->saved[E];
    const d9d_linear_cross_entropy_dims dims = info_nce_dims(e->dtype, a);
    const void *w = second_half(e, a);
    void *dw = second_half(de, a);
    const float beta = 0, *dloss = d9d_tensor_data(&n->dout[0]);

    D9D_TRY(D9DI_KERNEL(n->tape, elementwise->fill, de->dtype, d9d_tensor_data(de),
                        d9d_tensor_numel(de), 0.0f));
    D9D_TRY(D9DI_KERNEL(n->tape, loss->linear_cross_entropy_dgrad, e->dtype, d9d_tensor_data(de),
                        dloss, d9d_tensor_data(&n->saved[UNIT]), a->pairs, a->h));
    return D9DI_KERNEL(n->tape, loss->linear_cross_entropy_wgrad, &dims, e->dtype, &dw, &beta,
                       dloss, d9d_tensor_data(&n->saved[LSE]), d9d_tensor_data(e), &w,
                       d9d_tensor_data(&n->saved[TARGETS]));
}

static d9d_status info_nce_dgrad(d9d_node *n)
{
    const d9d_tensor *x = &n->saved[X];
    d9d_tensor dx = {0}, de = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_op_grad_alloc(n, 0, &dx), out);
    D9D_TRY_OR(st, d9d_node_alloc(n, x->dtype, x->shape, &de), out);
    D9D_TRY_OR(st, halves_bwd(n, &de), out);
    D9D_TRY_OR(st,
               D9DI_KERNEL(n->tape, norm->rms_norm_bwd, x->dtype, d9d_tensor_data(&dx), NULL,
                           D9D_F32, NULL, 0.0f, d9d_tensor_data(&de), d9d_tensor_data(x),
                           d9d_tensor_data(&n->saved[SCALE]), d9d_tensor_data(&n->saved[INV]),
                           x->shape.dim[0], x->shape.dim[1], false),
               out);
    st = d9d_node_accumulate_grad(n, 0, &dx);
out:
    d9d_tensor_release(&de);
    d9d_tensor_release(&dx);
    return st;
}

static const d9d_node_ops info_nce_node_ops = {.name = "info_nce", .dgrad = info_nce_dgrad};

static d9d_status info_nce_check(const d9d_tensor *x, const d9d_tensor *targets)
{
    D9D_TRY(d9di_op_check_real("info_nce", "x", x));
    D9D_TRY(d9di_op_check("info_nce", "targets", targets, D9D_I32));
    if (x->shape.ndim != 2 || x->shape.dim[1] % 8 != 0 || targets->shape.ndim != 1 ||
        targets->shape.dim[0] != x->shape.dim[0] / 2)
        return d9di_op_misfit("info_nce", "targets", &targets->shape, "x", &x->shape,
                              "x is [N, H] with H a multiple of 8, targets are [N / 2]");
    return D9D_OK;
}

/* Normalise rows to length 1 / sqrt(temperature), by an RMSNorm with that weight. */
static d9d_status rows_normalize(d9d_tape *t, const d9d_tensor *x, float temperature,
                                 d9d_tensor *saved)
{
    enum { LOG10_MIN_SQUARE = 24 }; /* smallest sum of squares: 1e-24, a length of 1e-12 */
    d9d_device *dev = d9d_tape_device(t);
    const int64_t n = x->shape.dim[0], h = x->shape.dim[1];

    D9D_TRY(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(n), &saved[INV]));
    D9D_TRY(d9d_tensor_alloc(dev, x->dtype, D9D_SHAPE(h), &saved[SCALE]));
    D9D_TRY(d9d_tensor_alloc(dev, x->dtype, x->shape, &saved[E]));
    D9D_TRY(D9DI_KERNEL(t, elementwise->fill, x->dtype, d9d_tensor_data(&saved[SCALE]), h,
                        1.0f / sqrtf((float)h * temperature)));
    return D9DI_KERNEL(t, norm->rms_norm, x->dtype, d9d_tensor_data(&saved[E]),
                       d9d_tensor_data(&saved[INV]), d9d_tensor_data(x),
                       d9d_tensor_data(&saved[SCALE]), n, h,
                       powf(10.0f, -LOG10_MIN_SQUARE) / (float)h, false);
}

static d9d_status info_nce_run(d9d_tape *t, const info_nce_attr *a, const d9d_tensor *x,
                               float temperature, const d9d_tensor *targets, d9d_tensor *saved,
                               d9d_var **loss)
{
    d9d_device *dev = d9d_tape_device(t);
    const d9d_linear_cross_entropy_dims dims = info_nce_dims(x->dtype, a);
    const void *w;

    saved[X] = d9d_tensor_ref(x);
    saved[TARGETS] = d9d_tensor_ref(targets);
    D9D_TRY(rows_normalize(t, x, temperature, saved));
    w = second_half(&saved[E], a);
    D9D_TRY(d9d_tensor_alloc(dev, D9D_F32, targets->shape, &saved[LSE]));
    D9D_TRY(d9d_tensor_alloc(dev, x->dtype, D9D_SHAPE(a->pairs, a->h), &saved[UNIT]));
    D9D_TRY(d9d_tape_output(t, D9D_F32, targets->shape, loss));
    return D9DI_KERNEL(t, loss->linear_cross_entropy, &dims, d9d_tensor_data(d9d_var_tensor(*loss)),
                       d9d_tensor_data(&saved[LSE]), d9d_tensor_data(&saved[UNIT]),
                       d9d_tensor_data(&saved[E]), &w, d9d_tensor_data(targets));
}

d9d_status d9d_op_info_nce(d9d_tape *t, d9d_var *x, float temperature, const d9d_tensor *targets,
                           int32_t ignore, d9d_var **loss)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    d9d_tensor saved[SAVED] = {0};
    info_nce_attr a;
    d9d_var *out;
    d9d_node *n;
    d9d_status st;

    D9D_TRY(info_nce_check(tx, targets));
    a = (info_nce_attr){tx->shape.dim[0] / 2, tx->shape.dim[1], ignore};
    D9D_TRY_OR(st, info_nce_run(t, &a, tx, temperature, targets, saved, &out), out);
    if (d9d_tape_should_record(t, &x, 1, NULL, 0)) {
        D9D_TRY_OR(st,
                   d9d_tape_record(t, &info_nce_node_ops, &x, 1, &out, 1, NULL, 0, sizeof(a), &n),
                   out);
        *(info_nce_attr *)n->attr = a;
        for (int i = 0; i < SAVED; i++)
            (void)d9d_node_save(n, &saved[i], D9D_NEED_DGRAD);
    }
    *loss = out;
out:
    for (int i = 0; i < SAVED; i++)
        d9d_tensor_release(&saved[i]);
    return st;
}
