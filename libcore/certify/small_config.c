/* small_config.c - see small_config.h. */
#include "certify/small_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"

/* Even, so that meshes of two ranks divide them. */
enum { LAYERS = 4, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 8, HIDDEN = HEADS * HEAD_DIM };

/* Largest number of a field; where a family's default is smaller, or there is none ("null"), that
 * remains, unless it is `always`. */
typedef struct small_number {
    const char *key;
    int64_t value;
    bool always;
    const char *unless[2]; /* keys of families of which no such number is made */
} small_number;

static const small_number numbers[] = {
    {"hidden_size", HIDDEN, false, {NULL}},
    {"n_embd", HIDDEN, false, {NULL}},
    {"intermediate_size", 48, false, {NULL}},
    {"n_inner", 48, true, {NULL}},
    {"shared_intermediate_size", 48, false, {NULL}},
    {"num_hidden_layers", LAYERS, false, {NULL}},
    {"n_layer", LAYERS, false, {NULL}},
    {"num_attention_heads", HEADS, false, {NULL}},
    {"n_head", HEADS, false, {NULL}},
    /* Latent attention and ModernBERT's have no groups of query heads. */
    {"num_key_value_heads", KV_HEADS, true, {"kv_lora_rank", "global_attn_every_n_layers"}},
    {"head_dim", HEAD_DIM, false, {NULL}},
    {"vocab_size", D9DI_SMALL_VOCAB, false, {NULL}},
    {"max_position_embeddings", 64, false, {NULL}},
    {"n_positions", 64, false, {NULL}},
    {"sliding_window", 5, false, {NULL}},
    {"local_attention", 6, false, {NULL}},
    {"max_window_layers", 2, false, {NULL}},
    {"sliding_window_pattern", 2, false, {NULL}},
    {"full_attention_interval", 2, false, {NULL}},
    {"no_rope_layer_interval", 2, false, {NULL}},
    {"query_pre_attn_scalar", HEAD_DIM, false, {NULL}},
    {"rotary_dim", HEAD_DIM / 2, false, {NULL}},
    {"q_lora_rank", 12, false, {NULL}},
    {"kv_lora_rank", 8, false, {NULL}},
    {"qk_nope_head_dim", 6, false, {NULL}},
    {"qk_rope_head_dim", 4, false, {NULL}},
    {"v_head_dim", 6, false, {NULL}},
    {"num_experts", 8, false, {NULL}},
    {"num_local_experts", 8, false, {NULL}},
    {"n_routed_experts", 8, false, {NULL}},
    {"num_experts_per_tok", 2, false, {NULL}},
    {"n_shared_experts", 1, false, {NULL}},
    {"n_group", 4, false, {NULL}},
    {"topk_group", 2, false, {NULL}},
    {"first_k_dense_replace", 1, false, {NULL}},
    {"moe_intermediate_size", 16, false, {NULL}},
    {"shared_expert_intermediate_size", 16, false, {NULL}},
    {"linear_num_key_heads", 2, false, {NULL}},
    {"linear_num_value_heads", 4, false, {NULL}},
    {"linear_key_head_dim", 8, false, {NULL}},
    {"linear_value_head_dim", 8, false, {NULL}},
    {"linear_conv_kernel_dim", 3, false, {NULL}},
};
enum { N_NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

/* What is no number, or where a family's defaults make no model that it reads: in families that
 * have the second key too, JSON. */
static const struct {
    const char *key, *with, *value;
} given[] = {
    {"position_embedding_type", "shared_intermediate_size", "\"rope\""},
    {"num_local_experts", "shared_intermediate_size", "0"},
    {"layer_types", "shared_intermediate_size",
     "[\"attention\", \"attention\", \"attention\", \"attention\"]"},
};
enum { N_GIVEN = sizeof(given) / sizeof(given[0]) };

/* Lists end with NULL. */

/* With a member for each layer. */
static const char *const per_layer[] = {"layer_types", "mlp_layer_types", "no_rope_layers",
                                        "attn_type_list", NULL};
/* With numbers of layers. */
static const char *const of_layers[] = {"mlp_only_layers", NULL};
/* With a factor for each pair of rotated features, in one of two objects. */
static const char *const per_pair[] = {"short_factor", "long_factor", NULL};
static const char *const rope_objects[] = {"rope_scaling", "rope_parameters", NULL};

/* The provider's tables, in this library's layout whatever a plugin was built with. */
static d9d_status read_tables(const d9d_model_provider *p, d9d_arena *a, d9d_hf_family *out)
{
    d9d_table *own;

    *out = d9d_model_hf_family(p);
    if (out->dims == NULL || out->model_types == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s: reads no config.json by a table of dimensions",
                        p->table->name);
    D9D_TRY(d9d_config_extend(out->dims, NULL, 0, a, &own));
    out->dims = own;
    return D9D_OK;
}

static const d9d_key *find_key(const d9d_table *t, const char *name)
{
    return d9d_config_find_key(t, name, strlen(name));
}

/* The field of this key in the document, which may have it under another name; the key's own name
 * where it has none. */
static const char *field_of(const d9d_hf_family *f, const json_t *doc, const char *key)
{
    if (json_object_get(doc, key) == NULL)
        for (const d9d_hf_field *r = f->fields; r != NULL && r->name != NULL; r++)
            if (r->rule == D9D_HF_RULE_ALIAS && strcmp(r->only, key) == 0 &&
                json_object_get(doc, r->name) != NULL)
                return r->name;
    return key;
}

/* What the model would have: of the document, else the default; INT64_MAX where it must be given,
 * D9D_INT_NULL for none. */
static int64_t number_of(const d9d_key *key, const json_t *v)
{
    if (json_is_integer(v))
        return json_integer_value(v);
    if (json_is_null(v))
        return D9D_INT_NULL;
    if (key->def == D9D_REQUIRED)
        return INT64_MAX;
    return strcmp(key->def, "null") == 0 ? D9D_INT_NULL : strtoll(key->def, NULL, 10);
}

/* A document that has as many key and value heads as query heads keeps that. */
static int64_t value_of(const small_number *n, const json_t *doc)
{
    const json_t *kv = json_object_get(doc, "num_key_value_heads");
    const json_t *heads = json_object_get(doc, "num_attention_heads");

    return strcmp(n->key, "num_key_value_heads") == 0 && kv != NULL && json_equal(kv, heads)
               ? HEADS
               : n->value;
}

static bool row_counts(const small_number *n, const d9d_table *dims)
{
    for (int i = 0; i < 2; i++)
        if (n->unless[i] != NULL && find_key(dims, n->unless[i]) != NULL)
            return false;
    return true;
}

static void shrink_numbers(const d9d_hf_family *f, const json_t *doc, bool made, json_t **out)
{
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const small_number *n = &numbers[i];
        const d9d_key *key = find_key(f->dims, n->key);
        const char *field = field_of(f, doc, n->key);
        int64_t now;

        if (key == NULL || (made && !row_counts(n, f->dims)))
            continue;
        now = number_of(key, json_object_get(doc, field));
        if (now > n->value || (made && n->always))
            d9d_json_set(out, field, json_integer(value_of(n, doc)));
    }
    for (const d9d_key *k = f->dims->keys; k->name != NULL; k++)
        if (d9d_family_is_dropout(k)) /* training takes no other rate */
            d9d_json_set(out, field_of(f, doc, k->name), json_real(0));
}

/* The first members of a list, with one of a kind that they lack as the last. */
static json_t *cut_list(const json_t *list, size_t n)
{
    json_t *cut = json_array();
    bool added = false;

    for (size_t i = 0; i < json_array_size(list) && i < n; i++)
        d9d_json_add(&cut, json_incref(json_array_get(list, i)));
    for (size_t i = n; cut != NULL && n > 0 && !added && i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        size_t same = 0;

        for (size_t k = 0; k < n; k++)
            same += json_equal(json_array_get(cut, k), v) != 0;
        added = same == 0;
        if (added && json_array_set(cut, n - 1, (json_t *)(uintptr_t)v) != 0) {
            json_decref(cut);
            return NULL;
        }
    }
    return cut;
}

/* The numbers of layers that there still are. */
static json_t *cut_numbers(const json_t *list)
{
    json_t *kept = json_array();

    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) < LAYERS)
            d9d_json_add(&kept, json_incref(json_array_get(list, i)));
    return kept;
}

static void shrink_lists(const json_t *doc, json_t **out)
{
    for (const char *const *k = per_layer; *k != NULL; k++)
        if (json_is_array(json_object_get(doc, *k)))
            d9d_json_set(out, *k, cut_list(json_object_get(doc, *k), LAYERS));
    for (const char *const *k = of_layers; *k != NULL; k++)
        if (json_is_array(json_object_get(doc, *k)))
            d9d_json_set(out, *k, cut_numbers(json_object_get(doc, *k)));
}

static double share_rotated(const json_t *doc, const json_t *rope)
{
    const json_t *v = json_object_get(rope, "partial_rotary_factor");

    if (v == NULL)
        v = json_object_get(doc, "partial_rotary_factor");
    return json_is_number(v) ? json_number_value(v) : 1;
}

static json_t *shrink_factors(const json_t *rope, size_t n)
{
    json_t *small = json_copy((json_t *)(uintptr_t)rope);

    for (const char *const *k = per_pair; *k != NULL; k++) {
        const json_t *list = json_object_get(rope, *k);
        json_t *cut = json_array();

        for (size_t i = 0; i < n && i < json_array_size(list); i++)
            d9d_json_add(&cut, json_incref(json_array_get(list, i)));
        if (json_is_array(list))
            d9d_json_set(&small, *k, cut);
        else
            json_decref(cut);
    }
    return small;
}

static void shrink_rope(const json_t *doc, json_t **out)
{
    for (const char *const *k = rope_objects; *k != NULL; k++) {
        const json_t *rope = json_object_get(doc, *k);

        if (json_is_object(rope))
            d9d_json_set(out, *k,
                         shrink_factors(rope, (size_t)(HEAD_DIM * share_rotated(doc, rope) / 2)));
    }
}

d9d_status d9di_small_config_shrink(const d9d_model_provider *p, const json_t *doc, d9d_arena *a,
                                    json_t **out)
{
    json_t *small;
    d9d_hf_family f;

    D9D_TRY(read_tables(p, a, &f));
    small = json_copy((json_t *)(uintptr_t)doc);
    shrink_numbers(&f, doc, false, &small);
    shrink_lists(doc, &small);
    shrink_rope(doc, &small);
    if (small == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: a small config.json", p->table->name);
    /* Its weights are not those of the folder. */
    (void)d9d_hf_config_unquantize(small);
    *out = small;
    return D9D_OK;
}

/* A class of transformers, where the family has one. */
static json_t *architectures_of(const d9d_family *f, d9d_head_kind head)
{
    const char *const ends[D9D_HEAD_COUNT] = {
        [D9D_HEAD_CAUSAL_LM] = f != NULL && f->lm_class != NULL ? f->lm_class : "ForCausalLM",
        [D9D_HEAD_CLASSIFICATION] = f != NULL && f->encoder ? "Model" : "ForSequenceClassification",
        [D9D_HEAD_EMBEDDING] = "Model",
        [D9D_HEAD_MASKED_LM] = "ForMaskedLM",
    };
    char name[128];

    if (f == NULL || f->class_name == NULL)
        return NULL;
    (void)snprintf(name, sizeof(name), "%s%s", f->class_name, ends[head]);
    return json_pack("[s]", name);
}

static d9d_status give(const d9d_hf_family *f, json_t **out)
{
    json_t *v;

    for (size_t i = 0; i < N_GIVEN; i++) {
        if (find_key(f->dims, given[i].key) == NULL || find_key(f->dims, given[i].with) == NULL)
            continue;
        D9D_TRY(d9d_json_parse(given[i].key, given[i].value, strlen(given[i].value), &v));
        d9d_json_set(out, given[i].key, v);
    }
    return D9D_OK;
}

static d9d_status check_required(const d9d_hf_family *f, const json_t *doc)
{
    for (const d9d_key *k = f->dims->keys; k->name != NULL; k++)
        if (k->def == D9D_REQUIRED && json_object_get(doc, k->name) == NULL)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: no small value of its required field %s is known; name a folder "
                            "with a small config.json",
                            f->name, k->name);
    return D9D_OK;
}

d9d_status d9di_small_config_make(const d9d_model_provider *p, d9d_head_kind head, d9d_arena *a,
                                  json_t **out)
{
    json_t *doc, *classes;
    d9d_hf_family f;
    d9d_status st;

    D9D_TRY(read_tables(p, a, &f));
    doc = json_pack("{s:s, s:s}", "model_type", f.model_types[0], "torch_dtype", "float32");
    classes = architectures_of(p->family, head);
    if (classes != NULL)
        d9d_json_set(&doc, "architectures", classes);
    if (head == D9D_HEAD_CLASSIFICATION)
        d9d_json_set(&doc, "num_labels", json_integer(D9DI_SMALL_VOCAB));
    shrink_numbers(&f, doc, true, &doc);
    st = give(&f, &doc);
    if (st == D9D_OK)
        st = doc != NULL ? check_required(&f, doc)
                         : D9D_FAIL(D9D_ENOMEM, "%s: a small config.json", p->table->name);
    if (st != D9D_OK) {
        json_decref(doc);
        return st;
    }
    *out = doc;
    return D9D_OK;
}
