/* quant_weights.c - see engine/quant_weights.h. */
#include "engine/quant_weights.h"

#include "engine/layer_matrices.h"

#define KEY "trainer.model_stage_factory.quantization"

/* The matrix has rows that can be quantised, and parts of them that a rank can multiply. */
static d9d_status matrix_check(const d9d_param *p, d9d_quant_format f, int64_t tp)
{
    const int64_t align = d9d_quant_align(f);
    const d9d_shape *s = &p->spec.shape;
    const int64_t part = d9di_engine_part_of(p, 1, tp);

    if (s->ndim != 2)
        return D9D_FAIL(D9D_ENOTSUP,
                        KEY " \"%s\": %s has the matrices of %lld experts, which are not quantised "
                            "yet; dense models are",
                        d9d_quant_name(f), p->name, (long long)s->dim[0]);
    if (s->dim[1] % align != 0 || part % align != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY " \"%s\": rows of %s have %lld elements%s, and multiples of %lld are "
                            "possible",
                        d9d_quant_name(f), p->name, (long long)part,
                        part < s->dim[1] ? " on each rank of mesh.tensor_parallel" : "",
                        (long long)align);
    return D9D_OK;
}

/* Adapters are trained, and what a task adds. */
static d9d_status trained_check(const d9d_params *whole, const d9di_engine_opts *opts)
{
    const char *name = d9d_quant_name(opts->quantised);
    bool has_adapters = false;

    if (opts->fp8 != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY
                        " \"%s\" and trainer.fp8: matrices that are stored so are multiplied in "
                        "the model's dtype; leave one out",
                        name);
    for (size_t i = 0; i < whole->n; i++) {
        const d9d_param *p = whole->p[i];

        has_adapters = has_adapters || p->peft.adapts != NULL;
        if (p->spec.trainable && p->peft.adapts == NULL && !p->spec.from_task)
            return D9D_FAIL(D9D_ECONFIG,
                            KEY " \"%s\": %s is trained, and with a quantised base adapters alone "
                                "are: peft.kind \"lora\"",
                            name, p->name);
        if (p->peft.adapter != NULL && p->peft.adapter->param[D9D_ADAPTER_MAGNITUDE] != NULL)
            return D9D_FAIL(D9D_ENOTSUP,
                            KEY
                            " \"%s\": %s has an adapter with a magnitude (DoRA), which reads the "
                            "matrix as it is; peft.kind \"lora\" and \"ia3\" are possible",
                            name, p->name);
    }
    return has_adapters ? D9D_OK
                        : D9D_FAIL(D9D_ECONFIG,
                                   KEY " \"%s\": nothing has an adapter that could be trained: "
                                       "peft.kind \"lora\"",
                                   name);
}

d9d_status d9di_engine_quant_check(const d9d_params *whole, const d9di_engine_opts *opts)
{
    size_t n = 0;

    if (opts->quantised == D9D_QUANT_NONE)
        return D9D_OK;
    if (opts->train)
        D9D_TRY(trained_check(whole, opts));
    for (size_t i = 0; i < whole->n; i++) {
        if (!d9di_engine_is_layer_matrix(whole->p[i]))
            continue;
        D9D_TRY(matrix_check(whole->p[i], opts->quantised, opts->mesh->tensor_parallel));
        n++;
    }
    return n > 0 ? D9D_OK
                 : D9D_FAIL(D9D_ECONFIG, KEY " \"%s\": the model has no matrices of layers",
                            d9d_quant_name(opts->quantised));
}

void d9di_engine_quant_apply(const d9d_params *params, d9d_quant_format f)
{
    for (size_t i = 0; i < params->n; i++)
        if (d9di_engine_is_layer_matrix(params->p[i]) && params->p[i]->spec.shape.ndim == 2)
            params->p[i]->spec.stored = f;
}
