/* passed.c - what a stage of a model passes on to the next.  See d9d/model/model.h. */
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/model/model.h"

d9d_var *d9d_model_find_passed(const d9d_model_in *in, const char *name)
{
    for (size_t i = 0; i < in->n_passed; i++)
        if (strcmp(in->passed[i].name, name) == 0)
            return in->passed[i].v;
    return NULL;
}

d9d_status d9d_model_pass(d9d_model_out *out, const char *name, d9d_var *v)
{
    if (out->n_passed >= D9D_STAGE_TENSORS_MAX)
        return D9D_FAIL(D9D_EINVAL, "\"%s\": a stage passes on more than %d tensors", name,
                        D9D_STAGE_TENSORS_MAX);
    out->passed[out->n_passed++] = (d9d_model_passed){name, v};
    return D9D_OK;
}

/* --- declarations -------------------------------------------------------------------------- */

static bool declares(const d9d_model_ops *ops)
{
    return ops->size > offsetof(d9d_model_ops, stage_tensors) && ops->stage_tensors != NULL;
}

d9d_status d9d_model_stage_specs(const d9d_model *m, int stage,
                                 d9d_stage_spec out[D9D_STAGE_TENSORS_MAX], size_t *n)
{
    *n = 1;
    out[0] = (d9d_stage_spec){.name = D9D_STAGE_HIDDEN,
                              .per = D9D_STAGE_PER_HIDDEN,
                              .dtype = m->dtype,
                              .rank = 1,
                              .shape = {m->hidden}};
    if (!declares(m->ops))
        return D9D_OK;
    *n = 0;
    D9D_TRY(D9D_PLUGIN_CALL(m->ops->name, m->ops, stage_tensors, m, stage, out, n));
    if (*n < 1 || *n > D9D_STAGE_TENSORS_MAX)
        return D9D_FAIL(D9D_ECONFIG, "%s: %zu tensors enter stage %d, not 1 to %d", m->ops->name,
                        *n, stage, D9D_STAGE_TENSORS_MAX);
    return d9d_stage_specs_check(out, *n, m->ops->name);
}

/* --- of a micro-batch ---------------------------------------------------------------------- */

/* The first `n` dimensions of a field. */
static d9d_status field_dims(const d9d_model *m, const d9d_stage_spec *s, const d9d_model_in *in,
                             int n, d9d_shape *out)
{
    const d9d_model_field *f = d9d_model_find_field(in, s->field);

    if (f == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the stage tensor \"%s\" has the rows of the field \"%s\", which this "
                        "batch does not have",
                        m->ops->name, s->name, s->field);
    if (f->value.shape.ndim < n)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the stage tensor \"%s\" is per row of the field \"%s\", which is not "
                        "ragged",
                        m->ops->name, s->name, s->field);
    out->ndim = n;
    memcpy(out->dim, f->value.shape.dim, (size_t)n * sizeof(*out->dim));
    return D9D_OK;
}

/* The dimensions before those of the declaration. */
static d9d_status first_dims(const d9d_model *m, const d9d_stage_spec *s, const d9d_model_in *in,
                             d9d_shape *out)
{
    const d9d_shape *ids = &in->ids->shape;
    const int tp = d9d_comm_size(m->groups.tp);

    switch (s->per) {
    case D9D_STAGE_PER_HIDDEN:
        *out = tp > 1 ? D9D_SHAPE(d9d_shape_numel(ids) / tp) : D9D_SHAPE(ids->dim[0], ids->dim[1]);
        return D9D_OK;
    case D9D_STAGE_PER_TOKEN: *out = D9D_SHAPE(ids->dim[0], ids->dim[1]); return D9D_OK;
    case D9D_STAGE_PER_SEQUENCE: *out = D9D_SHAPE(ids->dim[0]); return D9D_OK;
    case D9D_STAGE_PER_DOCUMENT: return field_dims(m, s, in, 1, out);
    case D9D_STAGE_PER_RAGGED: return field_dims(m, s, in, 2, out);
    default: *out = D9D_SCALAR; return D9D_OK;
    }
}

d9d_status d9d_model_stage_tensor(const d9d_model *m, const d9d_stage_spec *s,
                                  const d9d_model_in *in, d9d_stage_tensor *out)
{
    *out = (d9d_stage_tensor){.name = s->name, .dtype = s->dtype, .constant = s->constant};
    D9D_TRY(first_dims(m, s, in, &out->shape));
    for (int i = 0; i < s->rank; i++)
        out->shape.dim[out->shape.ndim++] = s->shape[i];
    return D9D_OK;
}

/* --- what is given ------------------------------------------------------------------------- */

static size_t spec_index(const d9d_stage_spec *specs, size_t n, const char *name)
{
    size_t i = 0;

    while (i < n && strcmp(specs[i].name, name) != 0)
        i++;
    return i;
}

d9d_status d9d_model_sort_passed(const d9d_model_out *out, const d9d_stage_spec *specs, size_t n,
                                 const char *where, d9d_var **v)
{
    const size_t hidden = spec_index(specs, n, D9D_STAGE_HIDDEN);

    for (size_t i = 0; i < n; i++)
        v[i] = i == hidden ? out->hidden : NULL;
    for (size_t k = 0; k < out->n_passed; k++) {
        const size_t i = spec_index(specs, n, out->passed[k].name);

        if (i == n)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: passes on \"%s\", which the next stage does not take", where,
                            out->passed[k].name);
        v[i] = out->passed[k].v;
    }
    return D9D_OK;
}
