/* gradient.c - the gradient as a whole: norm, finiteness, clipping.  See d9d/optim/optim.h. */
#include <math.h>

#include "d9d/optim/optim.h"

d9d_status d9d_grad_norm(d9d_device *dev, const d9d_params *params, double scale, double *out)
{
    d9d_tensor sum = {0};
    double squares = 0, beta = 0;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(dev, D9D_F64, D9D_SCALAR, &sum));
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];

        if (!p->trainable || !p->has_grad)
            continue;
        D9D_TRY_OR(st,
                   dev->kernels->sum_squares(dev->stream, d9d_tensor_data(&sum), beta,
                                             p->grad.dtype, d9d_tensor_data(&p->grad),
                                             d9d_tensor_numel(&p->grad)),
                   out);
        beta = 1;
    }
    st = beta > 0 ? d9d_device_download(dev, &squares, d9d_tensor_data(&sum), sizeof(squares))
                  : D9D_OK;
    if (st == D9D_OK)
        *out = fabs(scale) * sqrt(squares);
out:
    d9d_tensor_release(&sum);
    return st;
}

/* The array of a parameter to look at, or NULL. */
typedef const d9d_tensor *array_fn(const d9d_param *p);

static const d9d_tensor *grad_of(const d9d_param *p)
{
    return p->trainable && p->has_grad ? &p->grad : NULL;
}

static const d9d_tensor *data_of(const d9d_param *p)
{
    return &p->data;
}

static d9d_status find_nonfinite(d9d_device *dev, const d9d_params *params, array_fn *array,
                                 const d9d_param **out, int64_t *index)
{
    d9d_tensor where = {0};
    int64_t at = -1;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_tensor_alloc(dev, D9D_I64, D9D_SCALAR, &where));
    *out = NULL;
    for (size_t i = 0; i < params->n && at < 0; i++) {
        const d9d_tensor *t = array(params->p[i]);

        if (t == NULL)
            continue;
        D9D_TRY_OR(st,
                   dev->kernels->find_nonfinite(dev->stream, d9d_tensor_data(&where), t->dtype,
                                                d9d_tensor_data(t), d9d_tensor_numel(t)),
                   out);
        D9D_TRY_OR(st, d9d_device_download(dev, &at, d9d_tensor_data(&where), sizeof(at)), out);
        if (at >= 0) {
            *out = params->p[i];
            *index = at;
        }
    }
out:
    d9d_tensor_release(&where);
    return st;
}

d9d_status d9d_grad_find_nonfinite(d9d_device *dev, const d9d_params *params, const d9d_param **out,
                                   int64_t *index)
{
    return find_nonfinite(dev, params, grad_of, out, index);
}

d9d_status d9d_data_find_nonfinite(d9d_device *dev, const d9d_params *params, const d9d_param **out,
                                   int64_t *index)
{
    return find_nonfinite(dev, params, data_of, out, index);
}

double d9d_clip_factor(double norm, double max_norm)
{
    return max_norm > 0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
}
