/* op_distillation.c - divergences of a student's and a teacher's distributions over a vocabulary.
 *
 *     z, q [T, V_local] --log_softmax over all parts--> log p, log q
 *     sum over v of terms --sum over the ranks' parts--> loss [T, 1]
 *
 * A collective's backward sums the gradients of all ranks, so one rank's loss alone is trained.
 */
#include "op/op_common.h"

#include <math.h>

#include "d9d/op/loss.h"

/* y [T, 1] = a reduction of x [T, 1] over the ranks. */
static d9d_status reduce_ranks(d9d_tape *t, d9d_reduce_kind kind, d9d_var *x, d9d_comm *comm,
                               d9d_var **y)
{
    const int64_t n = d9d_comm_size(comm), rows = d9d_var_tensor(x)->shape.dim[0];

    *y = x;
    if (n == 1)
        return D9D_OK;
    D9D_TRY(d9d_op_all_gather_rows(t, x, comm, "parts of a vocabulary", y));
    D9D_TRY(d9d_op_reshape(t, *y, D9D_SHAPE(n, rows), y));
    D9D_TRY(d9d_op_reduce(t, kind, *y, 0, y));
    return d9d_op_reshape(t, *y, D9D_SHAPE(rows, 1), y);
}

static d9d_status log_softmax(d9d_tape *t, d9d_var *z, float temperature, d9d_comm *comm,
                              d9d_var **y)
{
    d9d_var *lse;

    D9D_TRY(d9d_op_cast(t, z, D9D_F32, &z));
    D9D_TRY(d9d_op_affine(t, z, 1.0f / temperature, 0, &z));
    D9D_TRY(d9d_op_logsumexp(t, z, -1, &lse));
    D9D_TRY(reduce_ranks(t, D9D_REDUCE_LOGSUMEXP, lse, comm, &lse));
    return d9d_op_sub(t, z, lse, y);
}

/* Sum over v of p (log p - log m), of this rank's part. */
static d9d_status divergence(d9d_tape *t, d9d_var *log_p, d9d_var *log_m, d9d_var **y)
{
    d9d_var *p, *terms;

    D9D_TRY(d9d_op_exp(t, log_p, &p));
    D9D_TRY(d9d_op_sub(t, log_p, log_m, &terms));
    D9D_TRY(d9d_op_mul(t, p, terms, &terms));
    return d9d_op_sum(t, terms, -1, y);
}

/* log((1 - beta) p + beta q) = a + log(1 + e^(b - a)), of the logarithms a and b of its terms. */
static d9d_status log_mixture(d9d_tape *t, d9d_var *log_p, d9d_var *log_q, float beta, d9d_var **y)
{
    d9d_var *a, *b, *d;

    D9D_TRY(d9d_op_affine(t, log_p, 1.0f, log1pf(-beta), &a));
    D9D_TRY(d9d_op_affine(t, log_q, 1.0f, logf(beta), &b));
    D9D_TRY(d9d_op_sub(t, a, b, &d));
    D9D_TRY(d9d_op_log_sigmoid(t, d, &d));
    return d9d_op_sub(t, a, d, y);
}

static d9d_status jsd_parts(d9d_tape *t, d9d_var *log_p, d9d_var *log_q, float beta, d9d_var **y)
{
    d9d_var *m, *of_q, *of_p;

    if (beta == 0.0f)
        return divergence(t, log_q, log_p, y);
    if (beta == 1.0f)
        return divergence(t, log_p, log_q, y);
    D9D_TRY(log_mixture(t, log_p, log_q, beta, &m));
    D9D_TRY(divergence(t, log_q, m, &of_q));
    D9D_TRY(divergence(t, log_p, m, &of_p));
    D9D_TRY(d9d_op_affine(t, of_q, beta, 0, &of_q));
    D9D_TRY(d9d_op_affine(t, of_p, 1.0f - beta, 0, &of_p));
    return d9d_op_add(t, of_q, of_p, y);
}

d9d_status d9d_op_generalized_jsd(d9d_tape *t, d9d_var *student, d9d_var *teacher, float beta,
                                  float temperature, d9d_comm *comm, d9d_var **loss)
{
    d9d_var *log_p, *log_q;

    D9D_TRY(d9di_op_check_same("generalized_jsd", "student", d9d_var_tensor(student), "teacher",
                               d9d_var_tensor(teacher)));
    if (!(beta >= 0.0f && beta <= 1.0f) || !(temperature > 0.0f))
        return D9D_FAIL(D9D_EINVAL, "generalized_jsd: beta %g, not in [0, 1], or temperature %g",
                        (double)beta, (double)temperature);
    D9D_TRY(log_softmax(t, student, temperature, comm, &log_p));
    D9D_TRY(log_softmax(t, teacher, temperature, comm, &log_q));
    D9D_TRY(jsd_parts(t, log_p, log_q, beta, loss));
    return reduce_ranks(t, D9D_REDUCE_SUM, *loss, comm, loss);
}
