/* fp8.c - see engine/fp8.h. */
#include "engine/fp8.h"

#include <string.h>

static bool is_quantised(const d9d_param *p)
{
    return p->spec.adaptable && !p->spec.from_task && p->lora.adapts == NULL &&
           d9d_param_layer_of(p->name) >= 0 && strstr(p->name, ".router.") == NULL;
}

/* The elements of dimension i that a rank multiplies. */
static int64_t part_of(const d9d_param *p, int i, int64_t tp)
{
    const d9d_param_parallel *by = &p->spec.parallel;
    const int dim = by->style == D9D_COLWISE ? 0 : 1;
    const bool is_shared = by->shared && by->units < tp;

    if (i != dim || (by->style != D9D_COLWISE && by->style != D9D_ROWWISE))
        return p->spec.shape.dim[i];
    return p->spec.shape.dim[i] / (is_shared ? by->units : tp);
}

static d9d_status dims_check(const d9d_param *p, int64_t tp)
{
    const int64_t dim[] = {part_of(p, 0, tp), part_of(p, 1, tp)};

    if (dim[0] % D9D_FP8_ALIGN == 0 && dim[1] % D9D_FP8_ALIGN == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "trainer.fp8: %s is %lld x %lld%s, and the dimensions of products in FP8 are "
                    "multiples of %d",
                    p->name, (long long)dim[0], (long long)dim[1],
                    tp > 1 ? " on each rank of mesh.tensor_parallel" : "", D9D_FP8_ALIGN);
}

d9d_status d9di_engine_fp8_check(const d9d_params *whole, int64_t tensor_parallel)
{
    size_t n = 0;

    for (size_t i = 0; i < whole->n; i++) {
        const d9d_param *p = whole->p[i];

        if (!is_quantised(p))
            continue;
        if (p->spec.shape.ndim != 2)
            return D9D_FAIL(D9D_ENOTSUP,
                            "trainer.fp8: %s has the matrices of %lld experts, whose products are "
                            "not in FP8 yet; dense models are",
                            p->name, (long long)p->spec.shape.dim[0]);
        D9D_TRY(dims_check(p, tensor_parallel));
        n++;
    }
    return n > 0 ? D9D_OK
                 : D9D_FAIL(D9D_ECONFIG, "trainer.fp8: the model has no matrices of layers");
}

d9d_status d9di_engine_fp8_apply(const d9d_job_fp8_section *fp8, const d9d_device *dev,
                                 const d9d_params *params, d9d_quantised_recipe *recipe)
{
    if (!dev->has_fp8)
        return D9D_FAIL(D9D_ENOTSUP,
                        "trainer.fp8: %s does not multiply in FP8; GPUs of compute capability 8.9 "
                        "and above do",
                        dev->name);
    *recipe = (d9d_quantised_recipe){
        .scaling = (d9d_quantised_scaling)fp8->recipe,
        .format = D9D_F8_E4M3,
        .grad_format = fp8->grad_format == D9D_JOB_FP8_E5M2 ? D9D_F8_E5M2 : D9D_F8_E4M3,
        .fast_accum = fp8->fast_accumulation};
    for (size_t i = 0; i < params->n; i++) {
        d9d_param *p = params->p[i];

        if (is_quantised(p))
            p->fp8.recipe = recipe;
    }
    return D9D_OK;
}
