/* adapter_embedding_read.c - factors of an embedding, which peft has transposed: lora_embedding_A
 * [r, V] is B of the table [V, H], lora_embedding_B [H, r] its A.  See adapter_reader.h.
 *
 * Of a tied weight peft adapts one of the two modules, or with ensure_weight_tying both by the same
 * factors, which is what an adapter of the table does here.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "model/lora/adapter_reader.h"

/* The two tensors of a module's adapter. */
typedef struct table_factors {
    const d9d_safetensors_tensor *a, *b; /* of the table: A [r, H] and B [V, r] */
} table_factors;

/* Find both; NULL: none.  They are [r, V] and [H, r] if transposed. */
static d9d_status factors_find(d9di_peft_reader *r, const char *module, bool transposed,
                               table_factors *out)
{
    static const char *const ends[2][2] = {{"lora_A.weight", "lora_B.weight"},
                                           {"lora_embedding_B", "lora_embedding_A"}};
    const d9d_safetensors_tensor *found[2];

    for (int i = 0; i < 2; i++) {
        const char *name =
            d9d_arena_printf(&r->arena, D9DI_ADAPTER_PREFIX "%s.%s", module, ends[transposed][i]);

        if (name == NULL)
            return d9di_peft_no_memory(r);
        found[i] = d9d_safetensors_find(r->file, name);
    }
    if ((found[0] != NULL) != (found[1] != NULL))
        return D9D_FAIL(D9D_EMISMATCH, "%s: has one factor of %s alone",
                        d9d_safetensors_path(r->file), module);
    *out = (table_factors){found[0], found[1]};
    return D9D_OK;
}

static d9d_status shape_check(const d9di_peft_reader *r, const char *module, bool transposed,
                              const table_factors *f, const d9d_model_matrix *m, int64_t *ranks)
{
    const int rank = transposed ? 1 : 0;
    const bool ranked = f->a->ndim == 2 && f->b->ndim == 2 && f->a->shape[rank] > 0;

    if (!ranked || f->a->shape[rank] != f->b->shape[1 - rank] || f->a->shape[1 - rank] != m->in ||
        f->b->shape[rank] != m->out || f->a->dtype != f->b->dtype)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: the factors of %s are not those of a table [%lld, %lld]",
                        d9d_safetensors_path(r->file), module, (long long)m->out, (long long)m->in);
    *ranks = f->a->shape[rank];
    return D9D_OK;
}

static d9d_status factor_read(d9di_peft_reader *r, const d9d_safetensors_tensor *t, bool transposed,
                              int64_t rows, int64_t columns, float *to)
{
    float *all = malloc((size_t)(rows * columns) * sizeof(*all) + 1);
    d9d_status st = all != NULL ? d9di_peft_tensor_read_f32(r, t, all) : d9di_peft_no_memory(r);

    for (int64_t i = 0; i < rows && st == D9D_OK; i++)
        for (int64_t j = 0; j < columns; j++)
            to[i * columns + j] = all[transposed ? j * rows + i : i * columns + j];
    free(all);
    return st;
}

/* Read a module's adapter of the table; *out is NULL if there is none. */
static d9d_status module_read(d9di_peft_reader *r, const d9d_model_matrix *m, const char *module,
                              bool transposed, d9d_adapters *to, d9di_adapters_factors **out)
{
    d9di_adapters_factors f = {.name = m->name,
                               .experts = 1,
                               .in = m->in,
                               .out = m->out,
                               .params = 1 << D9D_ADAPTER_A | 1 << D9D_ADAPTER_B};
    table_factors of = {NULL, NULL};

    *out = NULL;
    D9D_TRY(factors_find(r, module, transposed, &of));
    if (of.a == NULL)
        return D9D_OK;
    if (r->type != D9DI_PEFT_LORA)
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s has an adapter, and embeddings have LoRA alone",
                        r->config_path, module);
    D9D_TRY(shape_check(r, module, transposed, &of, m, &f.r));
    D9D_TRY(d9di_peft_alpha_of(r, module, f.r, &f.alpha));
    f.dtype = of.a->dtype;
    D9D_TRY(d9di_adapters_add(to, &f, out));
    D9D_TRY(factor_read(r, of.a, transposed, f.r, f.in, (*out)->v[D9D_ADAPTER_A]));
    return factor_read(r, of.b, transposed, f.out, f.r, (*out)->v[D9D_ADAPTER_B]);
}

static bool is_equal(const d9di_adapters_factors *f, const d9di_adapters_factors *g)
{
    return f->r == g->r && f->alpha == g->alpha &&
           memcmp(f->v[D9D_ADAPTER_A], g->v[D9D_ADAPTER_A],
                  (size_t)(f->r * f->in) * sizeof(float)) == 0 &&
           memcmp(f->v[D9D_ADAPTER_B], g->v[D9D_ADAPTER_B],
                  (size_t)(f->r * f->out) * sizeof(float)) == 0;
}

/* The head's adapter must be that of the embedding. */
static d9d_status tied_check(d9di_peft_reader *r, const d9d_model_matrix *m,
                             const d9di_adapters_factors *embed)
{
    const char *head =
        d9d_hf_name_as(r->matrices->parts, r->as, r->matrices->parts->hf.head, &r->arena);
    const bool ensured = json_is_true(json_object_get(r->doc, "ensure_weight_tying"));
    d9di_adapters_factors *other = NULL;
    d9d_adapters *apart = NULL;
    d9d_status st;

    if (head == NULL)
        return d9di_peft_no_memory(r);
    D9D_TRY(d9di_adapters_create(&apart));
    st = module_read(r, m, head, false, apart, &other);
    if (st == D9D_OK &&
        ((embed == NULL && other != NULL) || (embed != NULL && other == NULL && !ensured) ||
         (embed != NULL && other != NULL && !is_equal(embed, other))))
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: the model's head is its embedding (tied), and the adapter is not the "
                      "same for both; train with ensure_weight_tying",
                      r->config_path);
    d9d_adapters_free(apart);
    return st;
}

d9d_status d9di_peft_embedding_read(d9di_peft_reader *r, const d9d_model_matrix *m)
{
    const char *tensor = d9di_peft_tensor_name(r, &m->module, 0);
    const char *module = tensor != NULL
                             ? d9d_arena_strndup(&r->arena, tensor, d9di_peft_module_length(tensor))
                             : NULL;
    d9di_adapters_factors *embed = NULL;

    if (module == NULL)
        return d9di_peft_no_memory(r);
    D9D_TRY(module_read(r, m, module, true, r->ad, &embed));
    return r->matrices->tied ? tied_check(r, m, embed) : D9D_OK;
}
