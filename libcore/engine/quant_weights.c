/* quant_weights.c - see engine/quant_weights.h. */
#include "engine/quant_weights.h"

#include "d9d/base/num_format.h"
#include "engine/layer_matrices.h"

#define KEY      "trainer.model_stage_factory.quantization"
#define HEAD_KEY "trainer.model_stage_factory.head_quantization"

/* Its rows can be quantised, and a rank can multiply by the parts of them that it has. */
static d9d_status rows_check(const char *key, const d9d_param *p, d9d_quant_format f, int64_t tp)
{
    const int64_t align = d9d_quant_align(f), cols = p->spec.shape.dim[1];
    const int64_t part = d9di_engine_part_of(p, 1, tp);

    if (cols % align == 0 && part % align == 0)
        return D9D_OK;
    return D9D_FAIL(
        D9D_ECONFIG,
        "%s \"%s\": rows of %s have %lld element%s%s, and multiples of %lld are possible", key,
        d9d_quant_name(f), p->name, (long long)part, D9D_PLURAL(part),
        part < cols ? " on each rank of mesh.tensor_parallel" : "", (long long)align);
}

static d9d_status matrix_check(const d9d_param *p, d9d_quant_format f, int64_t tp)
{
    if (p->spec.shape.ndim != 2)
        return D9D_FAIL(D9D_ENOTSUP,
                        KEY " \"%s\": %s has the matrices of %lld experts, which are not quantised "
                            "yet; dense models are",
                        d9d_quant_name(f), p->name, (long long)p->spec.shape.dim[0]);
    return rows_check(KEY, p, f, tp);
}

/* Adapters are trained, and what a task adds. */
static d9d_status trained_check(const d9d_params *whole, const d9di_engine_opts *opts)
{
    const char *name = d9d_quant_name(opts->quantised.layers);
    bool has_adapters = false;

    if (opts->fp8 != NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        KEY
                        " \"%s\" and trainer.fp8: matrices that are stored so are multiplied in "
                        "the model's dtype; leave one out",
                        name);
    for (size_t i = 0; i < whole->n; i++) {
        const d9d_param *p = whole->p[i];

        has_adapters =
            has_adapters || p->peft.adapts != NULL || strcmp(p->name, D9D_MODEL_PROMPT_PARAM) == 0;
        if (p->spec.trainable && p->peft.adapts == NULL && !p->spec.from_task)
            return D9D_FAIL(D9D_ECONFIG,
                            KEY " \"%s\": %s is trained, and with a quantised base adapters alone "
                                "are: peft.kind \"lora\"",
                            name, p->name);
        if (p->peft.adapter != NULL && p->peft.adapter->reads_matrix)
            return D9D_FAIL(D9D_ENOTSUP,
                            KEY " \"%s\": %s has an adapter of the kind %s, which reads the matrix "
                                "as it is; peft.kind \"lora\" and \"ia3\" are possible",
                            name, p->name, p->peft.adapter->name);
    }
    return has_adapters ? D9D_OK
                        : D9D_FAIL(D9D_ECONFIG,
                                   KEY " \"%s\": nothing has an adapter that could be trained: "
                                       "peft.kind \"lora\"",
                                   name);
}

static d9d_status layers_check(const d9d_params *whole, const d9di_engine_opts *opts)
{
    const d9d_quant_format f = opts->quantised.layers;
    size_t n = 0;

    if (f == D9D_QUANT_NONE)
        return D9D_OK;
    if (opts->train)
        D9D_TRY(trained_check(whole, opts));
    for (size_t i = 0; i < whole->n; i++) {
        if (!d9d_param_is_layer_matrix(whole->p[i]))
            continue;
        D9D_TRY(matrix_check(whole->p[i], f, opts->mesh->tensor_parallel));
        n++;
    }
    return n > 0 ? D9D_OK
                 : D9D_FAIL(D9D_ECONFIG, KEY " \"%s\": the model has no matrices of layers",
                            d9d_quant_name(f));
}

static d9d_status table_check(const d9d_param *p, d9d_quant_format f, int64_t tp)
{
    if (p->peft.adapter != NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        HEAD_KEY
                        " \"%s\": %s has an adapter, which reads the head as it is; without "
                        "the section peft it is merged before",
                        d9d_quant_name(f), p->name);
    return rows_check(HEAD_KEY, p, f, tp);
}

static d9d_status head_check(const d9d_params *whole, const d9di_engine_opts *opts)
{
    const d9d_quant_format f = opts->quantised.head;
    size_t n = 0;

    if (f == D9D_QUANT_NONE)
        return D9D_OK;
    if (opts->train)
        return D9D_FAIL(D9D_ECONFIG,
                        HEAD_KEY
                        " \"%s\": training reads the head as it is; d9d-infer takes this key",
                        d9d_quant_name(f));
    for (size_t i = 0; i < whole->n; i++) {
        if (!whole->p[i]->spec.is_head)
            continue;
        D9D_TRY(table_check(whole->p[i], f, opts->mesh->tensor_parallel));
        n++;
    }
    return n > 0
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          HEAD_KEY " \"%s\": the model of this task has no head of its vocabulary",
                          d9d_quant_name(f));
}

d9d_status d9di_engine_quant_check(const d9d_params *whole, const d9di_engine_opts *opts)
{
    D9D_TRY(layers_check(whole, opts));
    return head_check(whole, opts);
}

void d9di_engine_quant_apply(const d9d_params *params, const d9di_engine_quant *q)
{
    for (size_t i = 0; i < params->n; i++) {
        d9d_param *p = params->p[i];

        if (p->spec.is_head)
            p->spec.stored = q->head;
        else if (d9d_param_is_layer_matrix(p) && p->spec.shape.ndim == 2)
            p->spec.stored = q->layers;
    }
}
