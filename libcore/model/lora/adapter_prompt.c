/* adapter_prompt.c - virtual tokens of prompt tuning in peft's files: one tensor,
 * prompt_embeddings [P, H], without a prefix.  See adapter_reader.h.
 */
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "model/lora/adapter_reader.h"

static const char tensor[] = "prompt_embeddings";

const d9di_adapters_saved *d9di_adapters_prompt(const d9d_adapters *ad)
{
    return d9di_adapters_saved_find(ad, D9D_MODEL_PROMPT_PARAM);
}

bool d9d_adapters_are_prompt(const d9d_adapters *ad)
{
    return ad != NULL && d9di_adapters_prompt(ad) != NULL;
}

/* --- read ------------------------------------------------------------------------------------ */

/* Encoder and decoder models have rows for each of the two, one below the other. */
static d9d_status config_check(const d9di_peft_reader *r, int64_t rows)
{
    const json_t *parts = json_object_get(r->doc, "num_transformer_submodules"),
                 *n = json_object_get(r->doc, "num_virtual_tokens");

    if (json_is_integer(parts) && json_integer_value(parts) != 1)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: num_transformer_submodules is %lld, and a decoder has one",
                        r->config_path, (long long)json_integer_value(parts));
    if (json_is_integer(n) && json_integer_value(n) == rows)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH, "%s: num_virtual_tokens is %lld, and %s of %s has %lld row%s",
                    r->config_path, (long long)json_integer_value(n), tensor,
                    d9d_safetensors_path(r->file), (long long)rows, D9D_PLURAL(rows));
}

d9d_status d9di_peft_prompt_read(d9di_peft_reader *r)
{
    const d9d_safetensors_tensor *t = d9d_safetensors_find(r->file, tensor);
    d9di_adapters_saved like = {.name = D9D_MODEL_PROMPT_PARAM}, *x;

    if (t == NULL || t->ndim != 2)
        return D9D_FAIL(D9D_EMISMATCH, "%s: has no tensor %s of two dimensions",
                        d9d_safetensors_path(r->file), tensor);
    D9D_TRY(config_check(r, t->shape[0]));
    like.shape = D9D_SHAPE(t->shape[0], t->shape[1]);
    like.dtype = t->dtype;
    D9D_TRY(d9di_adapters_add_saved(r->ad, &like, &x));
    return d9di_peft_tensor_read_f32(r, t, x->v);
}

d9d_status d9d_adapters_prompt_check(const d9d_adapters *ad, const char *dir,
                                     const d9d_params *params)
{
    const d9di_adapters_saved *x = d9di_adapters_prompt(ad);
    const d9d_param *p = NULL;

    for (size_t i = 0; i < params->n && p == NULL; i++)
        p = strcmp(params->p[i]->name, D9D_MODEL_PROMPT_PARAM) == 0 ? params->p[i] : NULL;
    if (p == NULL && x == NULL)
        return D9D_OK;
    if (p == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: has virtual tokens (prompt tuning), which no weights can hold: give "
                        "\"peft\": {\"kind\": \"prompt_tuning\", \"num_virtual_tokens\": %lld}",
                        dir, (long long)x->shape.dim[0]);
    if (x == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: has no virtual tokens, and peft is prompt_tuning", dir);
    if (!d9d_shape_equal(&x->shape, &p->spec.shape))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: has %lld virtual tokens of %lld features, the configuration %lld of "
                        "%lld",
                        dir, (long long)x->shape.dim[0], (long long)x->shape.dim[1],
                        (long long)p->spec.shape.dim[0], (long long)p->spec.shape.dim[1]);
    return D9D_OK;
}

/* --- write ----------------------------------------------------------------------------------- */

static d9d_status tensor_write(const d9di_adapters_saved *x, const char *path)
{
    d9d_safetensors_writer *to;
    d9d_status st;

    D9D_TRY(d9d_safetensors_writer_create(&to));
    D9D_TRY_OR(st, d9d_safetensors_writer_metadata(to, "format", "pt"), out);
    D9D_TRY_OR(st, d9d_safetensors_writer_declare(to, tensor, x->dtype, 2, x->shape.dim), out);
    D9D_TRY_OR(st, d9d_safetensors_writer_begin(to, path), out);
    D9D_TRY_OR(st, d9di_adapters_values_write(to, 0, x->dtype, x->v, d9d_shape_numel(&x->shape)),
               out);
    st = d9d_safetensors_writer_end(to);
out:
    d9d_safetensors_writer_free(to);
    return st;
}

d9d_status d9di_adapters_prompt_write(const d9di_adapters_saved *x, const char *base,
                                      const char *dir)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, D9DI_ADAPTER_TENSORS);
    json_t *doc = json_pack("{s:s, s:s, s:o, s:I, s:I, s:i, s:s, s:n, s:n, s:b}", "peft_type",
                            "PROMPT_TUNING", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                            d9d_json_str(base), "num_virtual_tokens", (json_int_t)x->shape.dim[0],
                            "token_dim", (json_int_t)x->shape.dim[1], "num_transformer_submodules",
                            1, "prompt_tuning_init", "RANDOM", "prompt_tuning_init_text",
                            "tokenizer_name_or_path", "inference_mode", 1);
    d9d_status st = D9D_OK;

    if (path == NULL || doc == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
    if (st == D9D_OK)
        st = d9di_adapters_config_write(doc, dir);
    if (st == D9D_OK)
        st = tensor_write(x, path);
    json_decref(doc);
    d9d_arena_release(&a);
    return st;
}
