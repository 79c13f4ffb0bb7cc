/* absent_values.c - see tasks/absent_values.h. */
#include "tasks/absent_values.h"

#include <math.h>

#include "d9d/op/math.h"
#include "d9d/op/op.h"

d9d_status d9di_absent_values_mask(d9d_tape *t, int64_t columns, d9d_var **values, d9d_var **mask)
{
    d9d_var *have, *zero;

    D9D_TRY(d9d_op_ge(t, *values, -INFINITY, &have));
    D9D_TRY(d9d_op_affine(t, have, 0, 0, &zero));
    D9D_TRY(d9d_op_where(t, have, *values, zero, values));
    D9D_TRY(d9d_op_sum(t, have, -1, &have));
    D9D_TRY(d9d_op_ge(t, have, (float)columns, &have));
    return d9d_op_mul(t, *mask, have, mask);
}
