/* map_fingerprint.c - hashes everything that decides the bytes of a plan's outputs.  See
 * d9d/ckpt/mapper/mapper.h. */
#include "ckpt/mapper/map_plan.h"

/* Change this string whenever outputs are computed differently from their boxes. */
static const char fingerprint_version[] = "d9d.plan.v1";

static void add_dims(d9d_hasher *h, const int64_t *dims, int ndim)
{
    d9d_hasher_add(h, dims, (size_t)ndim * sizeof(*dims));
}

/* Hashes the steps of a box that has any, so that other boxes have the hash that they always had.
 */
static void add_steps(d9d_hasher *h, const d9di_mapper_box *b, int ndim)
{
    static const char mark[] = "step";
    bool any = false;

    for (int d = 0; d < ndim; d++)
        any = any || b->step[d] != 1;
    if (!any)
        return;
    d9d_hasher_add(h, mark, sizeof(mark));
    add_dims(h, b->step, ndim);
}

static void add_box(d9d_hasher *h, const d9di_mapper_box *b, int ndim, d9d_cast_overflow overflow)
{
    if (b->n_casts > 0)
        d9d_hasher_add(h, &overflow, sizeof(overflow));
    d9d_hasher_add(h, &b->source, sizeof(b->source));
    d9d_hasher_add(h, &b->n_casts, sizeof(b->n_casts));
    d9d_hasher_add(h, b->casts, (size_t)b->n_casts * sizeof(b->casts[0]));
    add_dims(h, b->start, ndim);
    add_dims(h, b->size, ndim);
    add_dims(h, b->stride, ndim);
    add_steps(h, b, ndim);
    d9d_hasher_add(h, &b->base, sizeof(b->base));
}

static void add_output(d9d_hasher *h, const d9d_safetensors_tensor *t, const d9di_mapper_view *v,
                       d9d_cast_overflow overflow)
{
    d9d_hasher_add(h, t->name, strlen(t->name) + 1);
    d9d_hasher_add(h, &t->dtype, sizeof(t->dtype));
    d9d_hasher_add(h, &t->ndim, sizeof(t->ndim));
    add_dims(h, t->shape, t->ndim);
    for (size_t k = 0; k < v->n; k++)
        add_box(h, &v->boxes[k], v->ndim, overflow);
}

d9d_status d9d_map_plan_fingerprint(const d9d_map_plan *p, d9d_hash *out)
{
    d9d_hasher *h;

    if (p->src.fingerprint == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: cannot tell whether it is the same as before", p->source);
    D9D_TRY(d9d_hasher_create(&h));
    d9d_hasher_add(h, fingerprint_version, sizeof(fingerprint_version));
    p->src.fingerprint(p->src.self, h);
    for (size_t i = 0; i < p->n_outputs; i++)
        add_output(h, &p->outputs[i], p->out_views[i], p->overflow);
    *out = d9d_hasher_digest(h);
    d9d_hasher_free(h);
    return D9D_OK;
}
