/* stage_tensor.c - checks of declarations.  See d9d/pipe/stage_tensor.h. */
#include "d9d/pipe/stage_tensor.h"

#include <string.h>

static bool has_field(const d9d_stage_spec *s)
{
    return s->per == D9D_STAGE_PER_DOCUMENT || s->per == D9D_STAGE_PER_RAGGED;
}

static d9d_status check_shape(const d9d_stage_spec *s, const char *where)
{
    const int least = s->per == D9D_STAGE_PER_MICRO_BATCH;

    if (s->rank < least || s->rank > D9D_STAGE_TENSOR_DIMS)
        return D9D_FAIL(D9D_ECONFIG, "%s: the stage tensor \"%s\" has %d dimensions, not %d to %d",
                        where, s->name, s->rank, least, D9D_STAGE_TENSOR_DIMS);
    for (int i = 0; i < s->rank; i++)
        if (s->shape[i] < 1)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: dimension %d of the stage tensor \"%s\" has %lld elements", where,
                            i, s->name, (long long)s->shape[i]);
    return D9D_OK;
}

static d9d_status check_spec(const d9d_stage_spec *s, const char *where)
{
    const bool is_float = s->dtype == D9D_F32 || s->dtype == D9D_BF16,
               is_integer = s->dtype == D9D_I32 || s->dtype == D9D_I64;

    if (s->name == NULL || s->name[0] == '\0')
        return D9D_FAIL(D9D_ECONFIG, "%s: a stage tensor has no name", where);
    if ((unsigned)s->per > D9D_STAGE_PER_MICRO_BATCH)
        return D9D_FAIL(D9D_ECONFIG, "%s: the stage tensor \"%s\" is per %d, which is nothing",
                        where, s->name, (int)s->per);
    if (has_field(s) != (s->field != NULL))
        return D9D_FAIL(D9D_ECONFIG, "%s: the stage tensor \"%s\" %s", where, s->name,
                        s->field != NULL ? "names a field and is not per document"
                                         : "is per document and names no field");
    if (!is_float && !(s->constant && is_integer))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the stage tensor \"%s\" is %s; one with a gradient is float32 or "
                        "bfloat16, a constant also int32 or int64",
                        where, s->name,
                        (unsigned)s->dtype < D9D_DTYPE_COUNT ? d9d_dtype_name(s->dtype)
                                                             : "untyped");
    return check_shape(s, where);
}

d9d_status d9d_stage_specs_check(const d9d_stage_spec *specs, size_t n, const char *where)
{
    bool constant = n > 0;

    for (size_t i = 0; i < n; i++) {
        D9D_TRY(check_spec(&specs[i], where));
        constant = constant && specs[i].constant;
        for (size_t k = 0; k < i; k++)
            if (strcmp(specs[k].name, specs[i].name) == 0)
                return D9D_FAIL(D9D_ECONFIG, "%s: two stage tensors have the name \"%s\"", where,
                                specs[i].name);
    }
    if (constant)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: all %zu tensors that enter a stage are constants, so that the stages "
                        "before it would learn nothing",
                        where, n);
    return D9D_OK;
}

d9d_status d9d_stage_tensor_check(const d9d_stage_tensor *taken, const d9d_tensor *x, int from)
{
    char given[128], wanted[128];

    if (x == NULL)
        return D9D_FAIL(D9D_EMISMATCH, "pipeline: stage %d gives no \"%s\", and stage %d takes one",
                        from, taken->name, from + 1);
    if (x->dtype == taken->dtype && d9d_shape_equal(&x->shape, &taken->shape))
        return D9D_OK;
    return D9D_FAIL(
        D9D_EMISMATCH, "pipeline: stage %d gives \"%s\" as %s %s, and stage %d takes %s %s", from,
        taken->name, d9d_dtype_name(x->dtype), d9d_shape_text(&x->shape, given, sizeof(given)),
        from + 1, d9d_dtype_name(taken->dtype),
        d9d_shape_text(&taken->shape, wanted, sizeof(wanted)));
}
