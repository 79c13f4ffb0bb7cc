/* adapter_saved.c - parameters that are trained whole beside adapters.  See adapter_private.h.
 *
 * peft saves such modules (modules_to_save) whole, each tensor under its own name.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/model/params_io.h"
#include "model/lora/adapter_private.h"

/* --- places ---------------------------------------------------------------------------------- */

const d9d_model_matrix *d9di_adapters_param_of(const d9d_model_matrices *of, const char *name)
{
    for (size_t i = 0; i < of->n_params; i++)
        if (strcmp(of->params[i].name, name) == 0)
            return &of->params[i];
    return NULL;
}

bool d9di_adapters_is_embedding(const d9d_model_matrices *of, const d9d_model_matrix *m)
{
    const char *part = of->parts != NULL ? of->parts->hf.embed : "";
    const size_t n = d9di_peft_module_length(m->module.tensor);

    return n > 0 && n == strlen(part) && strncmp(m->module.tensor, part, n) == 0;
}

d9d_shape d9di_peft_own_shape(const d9d_model_matrix *m)
{
    if (m->experts > 0)
        return D9D_SHAPE(m->experts, m->in, m->out);
    return m->vector ? D9D_SHAPE(m->out) : D9D_SHAPE(m->out, m->in);
}

d9d_shape d9di_peft_place_shape(const d9d_model_matrix *m, const d9d_model_matrix_place *p)
{
    const int64_t first = p->in_first ? m->in : p->features,
                  second = p->in_first ? p->features : m->in;
    d9d_shape s = m->vector        ? D9D_SHAPE(p->features)
                  : m->experts > 0 ? D9D_SHAPE(m->experts, first, second)
                                   : D9D_SHAPE(first, second);

    for (int d = s.ndim; p->unit_dim > 0 && d > p->unit_dim; d--)
        s.dim[d] = s.dim[d - 1];
    if (p->unit_dim > 0) {
        s.dim[p->unit_dim] = 1;
        s.ndim++;
    }
    return s;
}

/* Strides of output and input features, and of experts, in a tensor. */
typedef struct strides {
    int64_t expert, out, in;
} strides;

static strides strides_in_place(const d9d_model_matrix *m, const d9d_model_matrix_place *p)
{
    return (strides){p->features * m->in, p->in_first ? 1 : m->in, p->in_first ? p->features : 1};
}

static strides strides_here(const d9d_model_matrix *m)
{
    return (strides){m->out * m->in, m->experts > 0 ? 1 : m->in, m->experts > 0 ? m->out : 1};
}

/* Copy a parameter's numbers from its place (`unpack`) or to it. */
static void place_copy(const d9d_model_matrix *m, const d9d_model_matrix_place *p, bool unpack,
                       float *here, float *there)
{
    const strides h = strides_here(m), t = strides_in_place(m, p);
    const int64_t experts = m->experts > 0 ? m->experts : 1;

    for (int64_t e = 0; e < experts; e++)
        for (int64_t i = 0; i < m->out; i++) {
            float *to = here + e * h.expert + i * h.out;
            float *from = there + e * t.expert + d9di_peft_place_feature(p, i) * t.out;

            for (int64_t j = 0; j < m->in; j++)
                *(unpack ? to + j * h.in : from + j * t.in) =
                    *(unpack ? from + j * t.in : to + j * h.in);
        }
}

void d9di_adapters_saved_pack(const d9di_adapters_saved *x, const d9d_model_matrix *m,
                              const d9d_model_matrix_place *p, float *to)
{
    place_copy(m, p, false, x->v, to);
}

void d9di_adapters_saved_unpack(const d9d_model_matrix *m, const d9d_model_matrix_place *p,
                                float *from, const d9di_adapters_saved *x)
{
    place_copy(m, p, true, x->v, from);
}

/* --- lists ----------------------------------------------------------------------------------- */

static d9d_status no_memory(const char *name)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for its numbers", name);
}

d9d_status d9di_adapters_add_saved(d9d_adapters *ad, const d9di_adapters_saved *like,
                                   d9di_adapters_saved **out)
{
    d9di_adapters_saved x = *like;
    const int64_t n = d9d_shape_numel(&like->shape);

    x.name = d9d_arena_strdup(&ad->arena, like->name);
    x.v = d9d_arena_alloc(&ad->arena, (size_t)n * sizeof(*x.v));
    if (x.name == NULL || x.v == NULL)
        return no_memory(like->name);
    D9D_TRY(D9D_VEC_PUSH(&ad->saved, x));
    *out = &ad->saved.data[ad->saved.len - 1];
    return D9D_OK;
}

const d9di_adapters_saved *d9di_adapters_saved_find(const d9d_adapters *ad, const char *param)
{
    for (size_t i = 0; i < ad->saved.len; i++)
        if (strcmp(ad->saved.data[i].name, param) == 0)
            return &ad->saved.data[i];
    return NULL;
}

bool d9d_adapters_have_saved(const d9d_adapters *ad, const char *param)
{
    return d9di_adapters_saved_find(ad, param) != NULL;
}

/* --- of a model ------------------------------------------------------------------------------ */

/* Buffers that training changes are trained too.  Of what a task adds peft has a classifier alone.
 */
static bool is_trained_whole(const d9d_param *p)
{
    return p->peft.adapts == NULL && (p->spec.trainable || p->spec.is_mutable_buffer) &&
           (!p->spec.from_task || strcmp(p->name, D9D_HEAD_SCORE ".weight") == 0 ||
            strcmp(p->name, D9D_MODEL_PROMPT_PARAM) == 0);
}

d9d_status d9di_adapters_saved_list(const d9d_params *params, d9d_adapters *ad)
{
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];
        const d9di_adapters_saved x = {.name = d9d_arena_strdup(&ad->arena, p->name),
                                       .shape = p->spec.shape,
                                       .dtype = p->spec.dtype,
                                       .adapted = p->peft.adapter != NULL};

        if (!is_trained_whole(p))
            continue;
        if (x.name == NULL)
            return no_memory(p->name);
        D9D_TRY(D9D_VEC_PUSH(&ad->saved, x));
    }
    return D9D_OK;
}

d9d_status d9di_adapters_saved_read(const d9d_tensor_source *src, d9d_adapters *ad)
{
    for (size_t i = 0; i < ad->saved.len; i++) {
        d9di_adapters_saved *x = &ad->saved.data[i];
        const int64_t n = d9d_shape_numel(&x->shape);
        size_t at = 0;

        D9D_TRY(d9di_adapters_source_find(src, x->name, &at));
        x->v = d9d_arena_alloc(&ad->arena, (size_t)n * sizeof(*x->v));
        if (x->v == NULL)
            return no_memory(x->name);
        D9D_TRY(d9di_adapters_read_f32(src, at, n, x->v));
    }
    return D9D_OK;
}

/* Output features of a tensor of transformers' model that are saved. */
static int64_t features_saved(const d9d_adapters *ad, const d9d_model_matrices *of,
                              const char *tensor)
{
    int64_t n = 0;

    for (size_t i = 0; i < of->n_params; i++)
        if (strcmp(of->params[i].module.tensor, tensor) == 0 &&
            d9di_adapters_saved_find(ad, of->params[i].name) != NULL)
            n += of->params[i].out;
    return n;
}

d9d_status d9di_adapters_saved_check(const d9d_adapters *ad, const d9d_model_matrices *of)
{
    for (size_t i = 0; i < ad->saved.len; i++) {
        const d9di_adapters_saved *x = &ad->saved.data[i];
        const d9d_model_matrix *m = d9di_adapters_param_of(of, x->name);

        if (x == d9di_adapters_prompt(ad))
            continue;
        if (m == NULL || d9di_peft_place_is_each(&m->module))
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s is trained whole and has no place in the modules that peft saves",
                            x->name);
        if (x->adapted)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s is trained whole and has an adapter too, and peft has one of them",
                            x->name);
        if (features_saved(ad, of, m->module.tensor) != m->module.features)
            return D9D_FAIL(D9D_ENOTSUP,
                            "%s is trained whole and is a part of %s of transformers' model, of "
                            "which peft saves all; train its other parts too",
                            x->name, m->module.tensor);
    }
    return D9D_OK;
}

/* --- into a model ---------------------------------------------------------------------------- */

d9d_status d9d_adapters_saved_check_trained(const d9d_adapters *ad, const d9d_params *params)
{
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];
        const d9di_adapters_saved *x = d9di_adapters_saved_find(ad, p->name);

        if (x != NULL && !x->is_base && !is_trained_whole(p))
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: was trained whole beside the adapters of the files, and no method "
                            "of the configuration trains it; \"full_tune\" does",
                            p->name);
    }
    return D9D_OK;
}

static d9d_status param_fill(const d9di_adapters_saved *x, d9d_param *p, const d9d_log *log)
{
    const d9d_params one = {&p, 1};
    d9d_safetensors_tensor t = {.name = p->name,
                                .dtype = D9D_F32,
                                .ndim = x->shape.ndim,
                                .bytes = (uint64_t)d9d_shape_numel(&x->shape) * sizeof(float)};
    const float *v = x->v;

    memcpy(t.shape, x->shape.dim, (size_t)t.ndim * sizeof(t.shape[0]));
    return d9di_adapters_params_fill(&t, &v, 1, &one, log);
}

d9d_status d9d_adapters_saved_to_model(const d9d_adapters *ad, const d9d_params *params,
                                       const d9d_log *log)
{
    for (size_t i = 0; i < params->n; i++) {
        const d9di_adapters_saved *x = d9di_adapters_saved_find(ad, params->p[i]->name);

        if (x != NULL && (!x->is_base || params->p[i]->peft.adapter != NULL))
            D9D_TRY(param_fill(x, params->p[i], log)); /* else merged, with its adapter */
    }
    return D9D_OK;
}
