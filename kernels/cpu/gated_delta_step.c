/* gated_delta_step.c - recurrent gated delta rule, token by token, for documents that continue from
 * a saved state (decode):
 *
 *     X <- e^g X        u = sigmoid(b) (v - X' k)        X <- X + k u'        o = X' q
 */
#include "cpu/gated_delta.h"
#include "cpu/math.h"

/* Row `at` of D features, normalised to the length `scale`. */
static void row_l2_normalize(const d9d_gated_delta_dims *n, float *y, const void *x, int64_t at,
                             float scale)
{
    d9di_cpu_load(n->t, y, x, at * n->d, n->d);
    d9di_cpu_row_scale(y, scale / sqrtf(d9di_cpu_row_dot(y, y, n->d) + D9DI_QK_NORM_EPS), y, n->d);
}

/* Token t of head h: o [F] from its value u [F], which becomes what the token writes. */
static void token_step(const d9di_gated_delta_args *c, int64_t t, int64_t h, float *state, float *q,
                       float *k, float *u, float *o)
{
    const d9d_gated_delta_dims *n = c->n;
    const int64_t gate = t * n->a + h, key = t * n->k + h / (n->a / n->k), f = n->f;
    const float decay = d9di_cpu_expf(c->g[gate]);
    float beta;

    row_l2_normalize(n, q, c->q, key, n->scale);
    row_l2_normalize(n, k, c->k, key, 1.0f);
    d9di_cpu_load(n->t, u, c->v, gate * f, f);
    d9di_cpu_load(n->t, &beta, c->b, gate, 1);
    for (int64_t i = 0; i < n->d; i++) {
        d9di_cpu_row_scale(state + i * f, decay, state + i * f, f);
        d9di_cpu_row_axpy(u, -k[i], state + i * f, f);
    }
    d9di_cpu_row_scale(u, d9di_cpu_sigmoid(beta), u, f);
    memset(o, 0, (size_t)f * sizeof(*o));
    for (int64_t i = 0; i < n->d; i++) {
        d9di_cpu_row_axpy(state + i * f, k[i], u, f);
        d9di_cpu_row_axpy(o, q[i], state + i * f, f);
    }
}

d9d_status d9d_ref_gated_delta_step(d9d_stream s, const d9d_gated_delta_dims *n,
                                    const d9d_state_slots *past, void *o, const void *q,
                                    const void *k, const void *v, const float *g, const void *b)
{
    const d9di_gated_delta_args c = {.n = n, .q = q, .k = k, .v = v, .g = g, .b = b};
    const int64_t floats = 2 * n->d + 2 * n->f, size = n->d * n->f;
    float *workspace;

    (void)s;
    D9D_TRY(d9di_gated_delta_check("gated_delta_step", n));
    D9D_TRY(d9di_varlen_check_past("gated_delta_step", &n->docs));
    if ((workspace = d9di_cpu_scratch_alloc_threads("gated_delta_step", floats)) == NULL)
        return D9D_ENOMEM;
#pragma omp parallel for schedule(dynamic) if (n->docs.s * n->a * size > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < n->docs.segments * n->a; i++) {
        const d9di_varlen_document d = d9di_varlen_document_at(&n->docs, i / n->a);
        const int64_t h = i % n->a;
        float *state = (float *)past->slots + (past->slot_index[i / n->a] * n->a + h) * size;
        float *scratch = d9di_cpu_scratch_of_thread(workspace, floats), *u = scratch + 2 * n->d,
              *y = u + n->f;

        if (d.n > 0 && d9di_varlen_past_tokens(&n->docs, i / n->a) == 0)
            memset(state, 0, (size_t)size * sizeof(*state));
        for (int64_t t = d.first; t < d.first + d.n; t++) {
            token_step(&c, t, h, state, scratch, scratch + n->d, u, y);
            d9di_cpu_store(n->t, o, (t * n->a + h) * n->f, n->f, y);
        }
    }
    free(workspace);
    return D9D_OK;
}
