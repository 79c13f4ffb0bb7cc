/* pointwise_table.c - names, inputs and reads of d9d_pointwise; checks of d9d/kernels/math.h. */
#include "common/pointwise_table.h"

enum { A = 1, B = 2, NO = D9D_POINTWISE_NO_GRAD };

typedef struct pointwise_row {
    const char *name;
    int inputs, reads[3];
} pointwise_row;

static const pointwise_row rows[D9D_N_POINTWISE] = {
#define X(NAME, name, n, value, r0, d0, r1, d1, r2, d2)                                            \
    [D9D_POINTWISE_##NAME] = {#name, n, {r0, r1, r2}},
    D9DI_POINTWISE_TABLE(X)
#undef X
};

const char *d9d_pointwise_name(d9d_pointwise f)
{
    return rows[f].name;
}

int d9d_pointwise_inputs(d9d_pointwise f)
{
    return rows[f].inputs;
}

int d9d_pointwise_reads(d9d_pointwise f, int of)
{
    return of == D9D_POINTWISE_VALUE ? (1 << rows[f].inputs) - 1 : rows[f].reads[of];
}

d9d_status d9di_args_check_pointwise(const d9d_pointwise_dims *d)
{
    if ((unsigned)d->f >= D9D_N_POINTWISE)
        return D9D_FAIL(D9D_EINVAL, "pointwise: function %d of %d", (int)d->f, D9D_N_POINTWISE);
    if (d->of < D9D_POINTWISE_VALUE || d->of >= rows[d->f].inputs)
        return D9D_FAIL(D9D_EINVAL, "%s: a derivative by input %d of %d", rows[d->f].name, d->of,
                        rows[d->f].inputs);
    if (d->ndim < 1 || d->ndim > D9D_MAX_DIMS)
        return D9D_FAIL(D9D_EINVAL, "%s: %d dimensions, possible are 1 to %d", rows[d->f].name,
                        d->ndim, D9D_MAX_DIMS);
    for (int i = 0; i < D9D_POINTWISE_INPUTS; i++)
        if (d->x[i].t != D9D_I32)
            D9D_TRY(d9di_args_check_float(rows[d->f].name, d->x[i].t));
    return d9di_args_check_float(rows[d->f].name, d->yt);
}

d9d_status d9di_args_check_reduce_axis(const char *op, const d9d_reduce_axis_dims *d)
{
    if ((unsigned)d->kind >= D9D_N_REDUCE_KINDS)
        return D9D_FAIL(D9D_EINVAL, "%s: reduction %d of %d", op, (int)d->kind, D9D_N_REDUCE_KINDS);
    return d9di_args_check_float(op, d->t);
}
