/* attention_parts.c - see attention_parts.h. */
#include "attention_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "host_kernels.h"

/* A call whose arrays have some keys of each row. */
typedef struct part_call {
    attention_call of;
    int64_t z; /* keys of a row of all */
} part_call;

/* Copies the part's rows of x [B, Z, w], or back. */
static void rows_copy(const part_call *c, void *part, void *x, int64_t w, bool back)
{
    const d9d_attention_key_part *in = &c->of.n.part;
    const size_t bytes = (size_t)(in->n * w) * d9d_dtype_size(c->of.n.t);
    const size_t width = (size_t)w * d9d_dtype_size(c->of.n.t);

    for (int64_t b = 0; b < c->of.n.b; b++) {
        char *some = (char *)part + (size_t)b * bytes;
        char *all = (char *)x + (size_t)(b * c->z + in->first) * width;

        memcpy(back ? all : some, back ? some : all, bytes);
    }
}

static part_call part_create(const attention_call *p, int64_t i, int64_t parts)
{
    part_call c = {.of = *p, .z = p->n.z};
    d9d_attention_dims arrays = p->n;
    d9d_attention_dims *n = &c.of.n;

    n->part.first = i * n->z / parts;
    n->part.n = (i + 1) * n->z / parts - n->part.first;
    arrays.z = n->part.n;
    c.of.k = array_poison(n->t, attention_k_size(&arrays));
    c.of.v = array_poison(n->t, attention_v_size(&arrays));
    c.of.grads = array_poison(n->t, attention_grads_size(&arrays));
    rows_copy(&c, c.of.k, p->k, n->kv * n->d, false);
    rows_copy(&c, c.of.v, p->v, n->kv * d9d_attention_dims_resolve(n).dv, false);
    return c;
}

static void part_release(part_call *c)
{
    free(c->of.k);
    free(c->of.v);
    free(c->of.grads);
}

/* Writes `sum` into an array of the call's type. */
static void store(d9d_dtype t, void *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        array_set(t, to, i, (double)from[i]);
}

/* o and lse of all parts, into p. */
static void parts_fwd(attention_call *p, int64_t parts)
{
    const d9d_attention_dims *n = &p->n;
    const int64_t no = attention_o_size(n), rows = n->b * n->a * n->s;
    float *acc = array_poison(D9D_F32, no), *acc_lse = array_poison(D9D_F32, rows);
    bool first = true;

    for (int64_t i = 0; i < parts; i++) {
        part_call c = part_create(p, i, parts);

        if (c.of.n.part.n > 0) {
            assert_int_equal(
                host_kernels()->attention->fwd(NULL, &c.of.n, p->o, p->lse, p->q, c.of.k, c.of.v),
                D9D_OK);
            assert_int_equal(
                host_kernels()->attention->merge(NULL, n, first, acc, acc_lse, p->o, p->lse),
                D9D_OK);
            first = false;
        }
        part_release(&c);
    }
    store(n->t, p->o, acc, no);
    memcpy(p->lse, acc_lse, (size_t)rows * sizeof(*acc_lse));
    if (p->sink != NULL)
        assert_int_equal(host_kernels()->attention->sink(NULL, n, p->o, p->lse, p->sink), D9D_OK);
    free(acc);
    free(acc_lse);
}

/* The gradients of all parts, into p. */
static void parts_bwd(attention_call *p, int64_t parts)
{
    const d9d_attention_dims *n = &p->n;
    const int64_t nq = attention_q_size(n), nk = attention_k_size(n);
    const int64_t dv = d9d_attention_dims_resolve(n).dv;
    float *dq = calloc((size_t)nq + 1, sizeof(*dq));

    for (int64_t i = 0; i < parts; i++) {
        part_call c = part_create(p, i, parts);
        d9d_attention_dims arrays = c.of.n;
        int64_t size;

        arrays.z = c.of.n.part.n;
        size = attention_k_size(&arrays);
        if (arrays.z > 0) {
            assert_int_equal(host_kernels()->attention->bwd(
                                 NULL, &c.of.n, c.of.grads, attention_call_grad(&c.of, nq),
                                 attention_call_grad(&c.of, nq + size), p->dout, p->q, c.of.k,
                                 c.of.v, p->o, p->lse),
                             D9D_OK);
            for (int64_t j = 0; j < nq; j++)
                dq[j] += (float)array_get(n->t, c.of.grads, j);
            rows_copy(&c, attention_call_grad(&c.of, nq), attention_call_grad(p, nq), n->kv * n->d,
                      true);
            rows_copy(&c, attention_call_grad(&c.of, nq + size), attention_call_grad(p, nq + nk),
                      n->kv * dv, true);
        }
        part_release(&c);
    }
    store(n->t, p->grads, dq, nq);
    free(dq);
}

void attention_parts_check(const attention_call *of, int64_t parts, const double *o,
                           const double *lse, const double *grads)
{
    attention_call p = *of;
    const d9d_attention_dims *n = &p.n;
    const int64_t no = attention_o_size(n), ng = attention_grads_size(n);

    if (n->b * n->s * n->a * n->z == 0)
        return;
    p.o = array_poison(n->t, no);
    p.lse = array_poison(D9D_F32, n->b * n->a * n->s);
    p.grads = array_poison(n->t, ng);
    parts_fwd(&p, parts);
    array_close("o of parts", n->t, p.o, o, no, n->t == D9D_F32 ? 5e-6 : 2e-2);
    array_close("lse of parts", D9D_F32, p.lse, lse, n->b * n->a * n->s, 5e-6);
    parts_bwd(&p, parts);
    array_close("dq, dk, dv of parts", n->t, p.grads, grads, ng, n->t == D9D_F32 ? 2e-5 : 3e-2);
    free(p.o);
    free(p.lse);
    free(p.grads);
}
