/* fp8.c - see engine/fp8.h. */
#include "engine/fp8.h"

#include "engine/layer_matrices.h"

/* One row, as of a shared expert's gate, is a vector; a third dimension counts experts. */
static bool is_for_fp8(const d9d_job_fp8_section *fp8, const d9d_param *p)
{
    const d9d_shape *s = &p->spec.shape;

    return d9d_param_is_layer_matrix(p) && s->dim[s->ndim - 2] > 1 &&
           (s->ndim == 2 || fp8->experts);
}

static d9d_status dims_check(const d9d_param *p, int64_t tp)
{
    const int last = p->spec.shape.ndim - 1; /* before it: experts, or nothing */
    const int64_t dim[] = {d9di_engine_part_of(p, last - 1, tp), d9di_engine_part_of(p, last, tp)};

    if (dim[0] % D9D_FP8_ALIGN == 0 && dim[1] % D9D_FP8_ALIGN == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "trainer.fp8: %s is %lld x %lld%s, and the dimensions of products in FP8 are "
                    "multiples of %d",
                    p->name, (long long)dim[0], (long long)dim[1],
                    tp > 1 ? " on each rank of mesh.tensor_parallel" : "", D9D_FP8_ALIGN);
}

d9d_status d9di_engine_fp8_check(const d9d_job_fp8_section *fp8, const d9d_params *whole,
                                 int64_t tensor_parallel)
{
    size_t n = 0;

    for (size_t i = 0; i < whole->n; i++) {
        const d9d_param *p = whole->p[i];

        if (!is_for_fp8(fp8, p))
            continue;
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

        if (is_for_fp8(fp8, p))
            p->fp8.recipe = recipe;
    }
    return D9D_OK;
}

void d9di_engine_fp8_log(const d9d_job_fp8_section *fp8, const d9d_parallel_degrees *mesh,
                         const d9d_log *log)
{
    if (fp8->fsdp_float8_all_gather &&
        mesh->data_parallel_shard * mesh->context_parallel_shard == 1)
        d9d_log_warn(log,
                     "trainer.fp8.fsdp_float8_all_gather: has no effect here: "
                     "mesh.data_parallel_shard and context_parallel_shard are 1, and no weight "
                     "is gathered");
}
