/* fp8.c - see engine/fp8.h. */
#include "engine/fp8.h"

#include <string.h>

#include "optim/param_groups.h"

static bool is_quantised(const d9d_param *p)
{
    return p->spec.adaptable && !p->spec.from_task && p->lora.adapts == NULL &&
           d9di_optimizer_layer_of(p->name) >= 0 && strstr(p->name, ".router.") == NULL;
}

static d9d_status dims_check(const char *name, const d9d_shape *s, const char *where)
{
    for (int i = 0; i < s->ndim; i++)
        if (s->dim[i] % D9D_FP8_ALIGN != 0)
            return D9D_FAIL(D9D_ECONFIG,
                            "trainer.fp8: %s is %lld x %lld%s, and the dimensions of products in "
                            "FP8 are multiples of %d",
                            name, (long long)s->dim[0], (long long)s->dim[1], where, D9D_FP8_ALIGN);
    return D9D_OK;
}

d9d_status d9di_engine_fp8_check(const d9d_params *whole)
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
        D9D_TRY(dims_check(p->name, &p->spec.shape, ""));
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

        if (!is_quantised(p))
            continue;
        D9D_TRY(dims_check(p->name, &p->local.shape, " on each rank"));
        p->fp8.recipe = recipe;
    }
    return D9D_OK;
}
