/* quantised.c - matrices in 8 bits.  See d9d/tensor/quantised.h. */
#include "d9d/tensor/quantised.h"

static d9d_status copy_alloc(d9d_device *dev, const d9d_quantised_recipe *recipe, d9d_dtype format,
                             int64_t rows, int64_t length, d9d_quantised *out)
{
    const bool by_row = recipe->scaling == D9D_SCALE_ROWWISE;
    d9d_status st;

    out->scale_by_row = by_row;
    D9D_TRY(d9d_tensor_alloc(dev, format, D9D_SHAPE(rows, length), &out->data));
    st = d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(by_row ? rows : 1), &out->scale);
    if (st != D9D_OK)
        d9d_tensor_release(&out->data);
    return st;
}

d9d_status d9d_quantise(const d9d_tensor *x, const d9d_quantised_recipe *recipe, d9d_dtype format,
                        d9d_quantised *rows, d9d_quantised *cols)
{
    d9d_device *dev = d9d_tensor_device(x);
    const int64_t k = x->shape.dim[x->shape.ndim - 1], m = k > 0 ? d9d_tensor_numel(x) / k : 0;
    d9d_quantised by_row = {0}, by_col = {0};
    d9d_fp8_operand r, c;
    d9d_status st = D9D_OK;

    if (rows != NULL)
        D9D_TRY_OR(st, copy_alloc(dev, recipe, format, m, k, &by_row), out);
    if (cols != NULL)
        D9D_TRY_OR(st, copy_alloc(dev, recipe, format, k, d9d_fp8_padded(m), &by_col), out);
    r = d9d_quantised_operand(&by_row, 0, 0);
    c = d9d_quantised_operand(&by_col, 0, 0);
    D9D_TRY_OR(st,
               dev->kernels->fp8->quantise(dev->stream, x->dtype, d9d_tensor_data(x), m, k,
                                           rows != NULL ? &r : NULL, cols != NULL ? &c : NULL),
               out);
    if (rows != NULL)
        *rows = by_row;
    if (cols != NULL)
        *cols = by_col;
    return D9D_OK;
out:
    d9d_quantised_release(&by_row);
    d9d_quantised_release(&by_col);
    return st;
}

d9d_quantised d9d_quantised_ref(const d9d_quantised *x)
{
    return (d9d_quantised){d9d_tensor_ref(&x->data), d9d_tensor_ref(&x->scale), x->scale_by_row};
}

void d9d_quantised_release(d9d_quantised *x)
{
    d9d_tensor_release(&x->data);
    d9d_tensor_release(&x->scale);
}

d9d_fp8_operand d9d_quantised_operand(const d9d_quantised *x, int64_t row, int64_t k)
{
    const int64_t length = x->data.shape.dim[1];
    d9d_fp8_operand o = {.t = x->data.dtype, .scale_by_row = x->scale_by_row, .row_stride = length};

    if (d9d_quantised_is_empty(x))
        return o;
    o.data = (char *)d9d_tensor_data(&x->data) + row * length + k;
    o.scale = (float *)d9d_tensor_data(&x->scale) + (x->scale_by_row ? row : 0);
    return o;
}
