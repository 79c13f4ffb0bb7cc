/* adapter_saved_read.c - modules that peft saved whole (modules_to_save), whose tensors have their
 * own names, and base weights beside adapters, which it saves of embeddings and heads.  See
 * adapter_reader.h.
 *
 * peft saves the two modules of a tied weight, the embedding and the head, both with
 * ensure_weight_tying.  Without it the one that is trained is no longer the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "model/lora/adapter_reader.h"

/* The tensor of this name behind peft's prefix; NULL: none. */
static d9d_status tensor_find(d9di_peft_reader *r, const char *name,
                              const d9d_safetensors_tensor **out)
{
    const char *whole =
        name != NULL ? d9d_arena_printf(&r->arena, D9DI_ADAPTER_PREFIX "%s", name) : NULL;

    if (whole == NULL)
        return d9di_peft_no_memory(r);
    *out = d9d_safetensors_find(r->file, whole);
    return D9D_OK;
}

static d9d_status shape_check(const d9di_peft_reader *r, const d9d_safetensors_tensor *t,
                              const d9d_shape *want)
{
    bool fits = t->ndim == want->ndim;

    for (int i = 0; i < want->ndim && fits; i++)
        fits = t->shape[i] == want->dim[i];
    if (fits)
        return D9D_OK;
    return want->ndim == 2 ? D9D_FAIL(D9D_EMISMATCH, "%s: %s is not the model's [%lld, %lld]",
                                      d9d_safetensors_path(r->file), t->name,
                                      (long long)want->dim[0], (long long)want->dim[1])
                           : D9D_FAIL(D9D_EMISMATCH,
                                      "%s: %s has not the %lld numbers in %d dimensions of the "
                                      "model's",
                                      d9d_safetensors_path(r->file), t->name,
                                      (long long)d9d_shape_numel(want), want->ndim);
}

/* Read a parameter from the tensor of one of its places. */
static d9d_status saved_add(d9di_peft_reader *r, const d9d_model_matrix *m,
                            const d9d_model_matrix_place *p, const d9d_safetensors_tensor *t,
                            bool is_base)
{
    const d9d_shape there = d9di_peft_place_shape(m, p);
    const d9di_adapters_saved like = {
        .name = m->name, .shape = d9di_peft_own_shape(m), .dtype = t->dtype, .is_base = is_base};
    d9di_adapters_saved *x;
    float *all;
    d9d_status st;

    D9D_TRY(shape_check(r, t, &there));
    D9D_TRY(d9di_adapters_add_saved(r->ad, &like, &x));
    all = malloc((size_t)d9d_shape_numel(&there) * sizeof(*all) + 1);
    st = all != NULL ? d9di_peft_tensor_read_f32(r, t, all) : d9di_peft_no_memory(r);
    if (st == D9D_OK)
        d9di_adapters_saved_unpack(m, p, all, x);
    free(all);
    return st;
}

static d9d_status param_read(d9di_peft_reader *r, const d9d_model_matrix *m)
{
    const d9d_safetensors_tensor *t = NULL;

    for (int i = 0; i < D9DI_PEFT_PLACES && t == NULL; i++) {
        const d9d_model_matrix_place *p = d9di_peft_place_of(m, i);

        if (p->tensor == NULL || d9di_peft_place_is_each(p))
            continue;
        D9D_TRY(tensor_find(r, d9di_peft_tensor_name(r, p, 0), &t));
        if (t != NULL)
            D9D_TRY(saved_add(r, m, p, t, false));
    }
    return D9D_OK;
}

/* --- base weights ---------------------------------------------------------------------------- */

/* "MODULE.base_layer.weight" of "MODULE.weight". */
static const char *base_name(d9di_peft_reader *r, const char *tensor)
{
    const size_t n = tensor != NULL ? d9di_peft_module_length(tensor) : 0;

    return tensor != NULL
               ? d9d_arena_printf(&r->arena, "%.*s.base_layer%s", (int)n, tensor, tensor + n)
               : NULL;
}

/* Read the weights of an adapted embedding or head, which training did not change. */
static d9d_status base_read(d9di_peft_reader *r, const d9d_model_matrix *m)
{
    const d9d_safetensors_tensor *t;

    if (m->experts > 0 || m->vector)
        return D9D_OK;
    D9D_TRY(tensor_find(r, base_name(r, d9di_peft_tensor_name(r, &m->module, 0)), &t));
    return t != NULL ? saved_add(r, m, &m->module, t, true) : D9D_OK;
}

/* --- tied weights ---------------------------------------------------------------------------- */

/* The embedding that was saved of a tied model; NULL: none. */
static const d9di_adapters_saved *embedding_find(const d9di_peft_reader *r)
{
    for (size_t i = 0; i < r->matrices->n_params; i++)
        if (d9di_adapters_is_embedding(r->matrices, &r->matrices->params[i]))
            return d9di_adapters_saved_find(r->ad, r->matrices->params[i].name);
    return NULL;
}

/* The head must be the embedding, to the bit. */
static d9d_status head_check(d9di_peft_reader *r, const d9d_safetensors_tensor *t,
                             const d9di_adapters_saved *embed)
{
    const int64_t n = d9d_shape_numel(&embed->shape);
    float *all;
    d9d_status st;

    D9D_TRY(shape_check(r, t, &embed->shape));
    all = malloc((size_t)n * sizeof(*all) + 1);
    st = all != NULL ? d9di_peft_tensor_read_f32(r, t, all) : d9di_peft_no_memory(r);
    if (st == D9D_OK && memcmp(all, embed->v, (size_t)n * sizeof(*all)) != 0)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: the model's head is its embedding (tied), and %s is another matrix",
                      d9d_safetensors_path(r->file), t->name);
    free(all);
    return st;
}

static d9d_status tied_check(d9di_peft_reader *r)
{
    const d9di_adapters_saved *embed = embedding_find(r);
    const d9d_safetensors_tensor *head = NULL;
    const char *name = d9d_arena_printf(&r->arena, "%s.weight", r->matrices->parts->hf.head);

    D9D_TRY(tensor_find(r, name, &head));
    if (head == NULL)
        D9D_TRY(tensor_find(r, base_name(r, name), &head));
    if (head == NULL && embed != NULL && embed->is_base)
        return D9D_OK;
    if (embed != NULL && head != NULL)
        return head_check(r, head, embed);
    if (head == NULL &&
        (embed == NULL || json_is_true(json_object_get(r->doc, "ensure_weight_tying"))))
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: the model's head is its embedding (tied), and modules_to_save has one of "
                    "them alone, which unties them in peft; train with ensure_weight_tying",
                    r->config_path);
}

d9d_status d9di_peft_saved_read(d9di_peft_reader *r)
{
    for (size_t i = 0; i < r->matrices->n_params; i++) {
        const d9d_model_matrix *m = &r->matrices->params[i];

        if (!d9d_adapters_have_saved(r->ad, m->name))
            D9D_TRY(param_read(r, m));
        if (!d9d_adapters_have_saved(r->ad, m->name))
            D9D_TRY(base_read(r, m));
    }
    return r->matrices->tied ? tied_check(r) : D9D_OK;
}
