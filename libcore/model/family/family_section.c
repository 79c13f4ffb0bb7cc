/* family_section.c - the section of a family in "model_provider".  See d9d/model/family/family.h.
 */
#include <string.h>

#include "model/family/family_parts.h"

/* --- keys ---------------------------------------------------------------------------------- */

#define COEFFICIENT(word, field, d, text)                                                          \
    {                                                                                              \
        .name = (word), .kind = D9D_KIND_REAL, .offset = offsetof(d9d_block_router, field),        \
        .def = (d), .flags = D9D_FLOAT32, .min = 0, .max = 1e3, .doc = (text)                      \
    }
static const d9d_key router_keys[] = {
    COEFFICIENT("bias_update_rate", bias_rate, "0.001",
                "how far an expert's bias goes in a step, where the model has one"),
    COEFFICIENT("aux_loss_coef", aux_loss, "0",
                "coefficient of the load-balancing loss of each row and layer; 1 is what it is of "
                "even loads"),
    COEFFICIENT("z_loss_coef", z_loss, "0",
                "coefficient of the squared log-sum-exp of each token's logits"),
    D9DI_ROUTER_CAPACITY_KEY("row"),
    D9D_KEY_END,
};
const d9d_table d9di_family_router_table =
    D9D_TABLE(d9d_block_router, "family_router", router_keys, "how evenly tokens choose experts");

const d9d_key d9d_family_section_keys[] = {
    D9D_MODEL_SECTION_KEYS,
    D9D_KEY_JSON(d9d_family_section, model, "null",
                 "the fields of a config.json, in place of hf_config", .flags = D9D_NULLABLE),
    D9DI_FAMILY_JOB_KEYS,
    D9D_KEY_END,
};

d9d_status d9d_family_section_check(const void *section, const char *path)
{
    const d9d_family_section *s = section;
    const bool inlined = s->model != NULL && !json_is_null(s->model);

    if ((s->head.hf_config == NULL) == !inlined)
        return D9D_FAIL(D9D_ECONFIG, "%s: give either hf_config or model", path);
    if (inlined && !json_is_object(s->model))
        return D9D_FAIL(D9D_ECONFIG, "%s.model: must be an object", path);
    return D9D_OK;
}

/* --- reading ------------------------------------------------------------------------------- */

/* "model" with the family's model_type, which it need not have. */
static d9d_status inline_document(const d9d_family *f, const json_t *model, json_t **out)
{
    json_t *doc = json_copy((json_t *)(uintptr_t)model);

    if (doc != NULL && json_object_get(doc, "model_type") == NULL &&
        json_object_set_new(doc, "model_type", json_string(f->model_types[0])) != 0) {
        json_decref(doc);
        doc = NULL;
    }
    *out = doc;
    return doc != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "model_provider.model: out of memory");
}

static d9d_status splits_read(const d9d_str_int_map *sizes, d9d_arena *a, d9d_family_config *c)
{
    const int64_t vocab = ((const d9d_family_dims *)c->dims)->vocab_size;
    d9d_block_vocab_split *splits = d9d_arena_alloc(a, (sizes->n + 1) * sizeof(*splits));
    int64_t sum = 0;

    if (splits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider: %zu splits", sizes->n);
    for (size_t i = 0; i < sizes->n; i++) {
        splits[i] = (d9d_block_vocab_split){sizes->names[i], sizes->values[i]};
        sum += sizes->values[i];
    }
    if (sum != vocab)
        return D9D_FAIL(D9D_ECONFIG,
                        "model_provider.split_vocab_size: has %lld ids, vocab_size is %lld",
                        (long long)sum, (long long)vocab);
    c->splits = splits;
    c->n_splits = sizes->n;
    return D9D_OK;
}

static d9d_status options_read(const d9d_family_section *s, d9d_arena *a, d9d_family_config *c)
{
    d9d_family_dims *dims = (d9d_family_dims *)(uintptr_t)c->dims;

    dims->router.bias_rate = s->router.bias_rate;
    dims->router.aux_loss = s->router.aux_loss;
    dims->router.z_loss = s->router.z_loss;
    dims->router.capacity = s->router.capacity;
    if (s->max_positions > dims->max_position_embeddings)
        return D9D_FAIL(D9D_ECONFIG,
                        "model_provider.max_positions: is %lld, and the model has %lld positions",
                        (long long)s->max_positions, (long long)dims->max_position_embeddings);
    c->max_positions = s->max_positions > 0 ? s->max_positions : 0;
    c->virtual_pre = s->pipeline_num_virtual_layers_pre;
    c->virtual_post = s->pipeline_num_virtual_layers_post;
    return s->split_vocab_size.n > 0 ? splits_read(&s->split_vocab_size, a, c) : D9D_OK;
}

d9d_status d9d_family_read_section(const d9d_family *f, const void *section, const json_t *doc,
                                   const char *where, d9d_arena *a, const void **out)
{
    const d9d_family_section *s = section;
    d9d_family_config *c = d9d_arena_alloc(a, sizeof(*c));
    json_t *inlined = NULL;
    d9d_status st;

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "model_provider: %zu bytes", sizeof(*c));
    if (doc == NULL) {
        D9D_TRY(inline_document(f, s->model, &inlined));
        doc = inlined;
        where = "model_provider.model";
    }
    st = d9d_family_read(f, doc, where, inlined != NULL, a, c);
    json_decref(inlined);
    if (st == D9D_OK)
        st = options_read(s, a, c);
    *out = c;
    return st;
}
