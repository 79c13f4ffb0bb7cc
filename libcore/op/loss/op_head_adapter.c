/* op_head_adapter.c - see op_head_adapter.h. */
#include "op/loss/op_head_adapter.h"

enum { RANKS = 8 }; /* the rank is a multiple of this */

static int64_t padded_rank(int64_t r)
{
    return (r + RANKS - 1) / RANKS * RANKS;
}

const d9d_param_adapter *d9di_op_head_adapter(const d9d_tape *t, d9d_param *const *heads, size_t n)
{
    const d9d_param_adapter *ad = n == 1 ? d9d_tape_adapter(t, heads[0]) : NULL;

    return ad != NULL && ad->param[D9D_ADAPTER_B] != NULL ? ad : NULL;
}

d9d_status d9di_op_head_adapter_check(const char *op, d9d_param *const *heads, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (heads[i]->peft.adapter == NULL)
            continue;
        if (n > 1)
            return D9D_FAIL(
                D9D_ENOTSUP,
                "%s: %s has an adapter and is one of %zu tables; a head of one table can "
                "have one",
                op, d9di_op_param_name(heads[i]), n);
        if (heads[i]->spec.stored != D9D_QUANT_NONE)
            return D9D_FAIL(D9D_ENOTSUP, "%s: %s has an adapter and is quantised to %s", op,
                            d9di_op_param_name(heads[i]), d9d_quant_name(heads[i]->spec.stored));
    }
    return D9D_OK;
}

d9d_status d9di_op_head_input(d9d_tape *t, d9d_var *h, const d9d_param_adapter *ad, d9d_var **wide)
{
    const d9d_shape *s = &d9d_var_tensor(h)->shape;
    const d9d_op_dropout_opts dropout = {.p = ad->dropout, .site = ad->param[D9D_ADAPTER_A]};
    d9d_op_concat_input part[] = {{.x = h, .n = s->dim[1]}, {.n = ad->r}};
    d9d_var *in;

    D9D_TRY(d9d_op_dropout(t, h, &dropout, &in));
    D9D_TRY(d9d_op_linear(t, in, ad->param[D9D_ADAPTER_A], &part[1].x));
    D9D_TRY(d9d_op_scale(t, part[1].x, ad->scale, &part[1].x));
    return d9d_op_concat(t, part, 2, D9D_SHAPE(s->dim[0], s->dim[1] + padded_rank(ad->r)), wide);
}

/* Columns [first, first + n) of a matrix of so many columns, where a narrow one [rows, n] is. */
static d9d_copy_strided_dims columns(d9d_dtype t, int64_t rows, int64_t n, int64_t first,
                                     int64_t all)
{
    return (d9d_copy_strided_dims){t, rows, 1, n, n, 0, all, first};
}

d9d_status d9di_op_head_matrix(d9d_tape *t, const d9d_param *head, const d9d_param *up,
                               d9d_tensor *out)
{
    const d9d_tensor *w = &head->local.data, *b = &up->local.data;
    const int64_t v = w->shape.dim[0], h = w->shape.dim[1], r = b->shape.dim[1];
    const int64_t all = h + padded_rank(r);
    const d9d_copy_strided_dims of_w = columns(w->dtype, v, h, 0, all),
                                of_b = columns(w->dtype, v, r, h, all);
    d9d_tensor x;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(t), w->dtype, D9D_SHAPE(v, all), &x));
    if (h + r < all)
        st = D9DI_KERNEL(t, elementwise->fill, w->dtype, d9d_tensor_data(&x), v * all, 0.0f);
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, elementwise->copy_strided, &of_w, d9d_tensor_data(&x),
                         d9d_tensor_data(w));
    if (st == D9D_OK)
        st = D9DI_KERNEL(t, elementwise->copy_strided, &of_b, d9d_tensor_data(&x),
                         d9d_tensor_data(b));
    if (st == D9D_OK)
        *out = d9d_tensor_ref(&x);
    d9d_tensor_release(&x);
    return st;
}

/* Add columns from `first` on to beta times the gradient of a parameter that has so many. */
static d9d_status columns_add(d9d_node *n, d9d_param *p, float beta, const d9d_tensor *grad,
                              int64_t first)
{
    const d9d_shape *s = &p->local.data.shape;
    const d9d_copy_strided_dims dims =
        columns(grad->dtype, s->dim[0], s->dim[1], first, grad->shape.dim[1]);
    d9d_tensor own;
    d9d_status st;

    if (!d9d_param_needs_grad(p))
        return D9D_OK;
    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(n->tape), grad->dtype, *s, &own));
    st = D9DI_KERNEL(n->tape, elementwise->copy_strided_bwd, &dims, d9d_tensor_data(&own),
                     d9d_tensor_data(grad));
    if (st == D9D_OK)
        st = D9DI_KERNEL(n->tape, elementwise->accumulate, p->local.grad.dtype,
                         d9d_tensor_data(&p->local.grad), beta, grad->dtype, d9d_tensor_data(&own),
                         d9d_tensor_numel(&own));
    d9d_tensor_release(&own);
    return st;
}

d9d_status d9di_op_head_wgrad(d9d_node *n, d9d_param *const *of, const float *beta,
                              const d9d_tensor *grad)
{
    D9D_TRY(columns_add(n, of[0], beta[0], grad, 0));
    return columns_add(n, of[1], beta[1], grad, of[0]->local.data.shape.dim[1]);
}
