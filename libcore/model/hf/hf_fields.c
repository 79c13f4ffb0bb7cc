/* hf_fields.c - see d9d/model/hf/hf_fields.h. */
#include "d9d/model/hf/hf_fields.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/quant/dequant.h"
#include "model/hf/hf_config_fields.h"

/* Fields of PretrainedConfig in transformers 4 and 5, of trainers, and of this suite. */
const d9d_hf_field d9d_hf_common[] = {
    /* provenance */
    D9D_HF_IGNORED("model_type"),
    D9D_HF_IGNORED("architectures"),
    D9D_HF_IGNORED("_name_or_path"),
    D9D_HF_IGNORED("name_or_path"),
    D9D_HF_IGNORED("_commit_hash"),
    D9D_HF_IGNORED("transformers_version"),
    D9D_HF_IGNORED("auto_map"),
    D9D_HF_IGNORED("custom_pipelines"),
    D9D_HF_IGNORED("unsloth_version"),
    D9D_HF_IGNORED("unsloth_fixed"),
    D9D_HF_IGNORED("transformers.js_config"),
    D9D_HF_IGNORED("d9d"),
    D9D_HF_ONLY("attention_mask", "[\"causal\", \"prefix\"]"), /* d9d_hf_config_has_prefix_mask() */
    /* storage and execution */
    D9D_HF_IGNORED(D9D_QUANTIZATION_FIELD), /* weights are decoded when they are read */
    D9D_HF_IGNORED("dtype"),
    D9D_HF_IGNORED("torch_dtype"),
    D9D_HF_IGNORED("use_bfloat16"),
    D9D_HF_IGNORED("torchscript"),
    D9D_HF_IGNORED("attn_implementation"),
    D9D_HF_IGNORED("_attn_implementation"),
    D9D_HF_IGNORED("_attn_implementation_autoset"),
    D9D_HF_IGNORED("use_cache"),
    D9D_HF_IGNORED("use_return_dict"),
    D9D_HF_IGNORED("return_dict"),
    D9D_HF_IGNORED("return_dict_in_generate"),
    D9D_HF_IGNORED("output_attentions"),
    D9D_HF_IGNORED("output_hidden_states"),
    D9D_HF_IGNORED("output_scores"),
    D9D_HF_IGNORED("chunk_size_feed_forward"),
    D9D_HF_IGNORED("gradient_checkpointing"),
    D9D_HF_IGNORED("tf_legacy_loss"),
    D9D_HF_IGNORED("is_decoder"),
    /* tokens, tasks and labels */
    D9D_HF_IGNORED("bos_token_id"),
    D9D_HF_IGNORED("eos_token_id"),
    D9D_HF_IGNORED("pad_token_id"),
    D9D_HF_IGNORED("sep_token_id"),
    D9D_HF_IGNORED("decoder_start_token_id"),
    D9D_HF_IGNORED("tokenizer_class"),
    D9D_HF_IGNORED("prefix"),
    D9D_HF_IGNORED("finetuning_task"),
    D9D_HF_IGNORED("task_specific_params"),
    D9D_HF_IGNORED("problem_type"),
    D9D_HF_IGNORED("num_labels"),
    D9D_HF_IGNORED("id2label"),
    D9D_HF_IGNORED("label2id"),
    /* generation settings, which old files have here */
    D9D_HF_IGNORED("max_length"),
    D9D_HF_IGNORED("min_length"),
    D9D_HF_IGNORED("do_sample"),
    D9D_HF_IGNORED("early_stopping"),
    D9D_HF_IGNORED("num_beams"),
    D9D_HF_IGNORED("num_beam_groups"),
    D9D_HF_IGNORED("diversity_penalty"),
    D9D_HF_IGNORED("temperature"),
    D9D_HF_IGNORED("top_k"),
    D9D_HF_IGNORED("top_p"),
    D9D_HF_IGNORED("typical_p"),
    D9D_HF_IGNORED("repetition_penalty"),
    D9D_HF_IGNORED("length_penalty"),
    D9D_HF_IGNORED("no_repeat_ngram_size"),
    D9D_HF_IGNORED("encoder_no_repeat_ngram_size"),
    D9D_HF_IGNORED("bad_words_ids"),
    D9D_HF_IGNORED("num_return_sequences"),
    D9D_HF_IGNORED("forced_bos_token_id"),
    D9D_HF_IGNORED("forced_eos_token_id"),
    D9D_HF_IGNORED("remove_invalid_values"),
    D9D_HF_IGNORED("exponential_decay_length_penalty"),
    D9D_HF_IGNORED("suppress_tokens"),
    D9D_HF_IGNORED("begin_suppress_tokens"),
    /* models other than a plain decoder */
    D9D_HF_ONLY("tie_word_embeddings", "[false]"),
    D9D_HF_ONLY("partial_rotary_factor", "[1]"),
    D9D_HF_ONLY("is_encoder_decoder", "[false]"),
    D9D_HF_ONLY("add_cross_attention", "[false]"),
    D9D_HF_ONLY("tie_encoder_decoder", "[false]"),
    D9D_HF_ONLY("pruned_heads", "[{}]"),
    D9D_HF_END,
};

/* --- one field ----------------------------------------------------------------------------- */

static const d9d_hf_field *field_find(const d9d_hf_field *rows, const char *name)
{
    for (; rows != NULL && rows->name != NULL; rows++)
        if (strcmp(rows->name, name) == 0)
            return rows;
    return NULL;
}

static const d9d_key *dim_key(const d9d_table *dims, const char *name)
{
    const d9d_key *k = dims != NULL ? dims->keys : NULL;

    for (; k != NULL && k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

static bool is_dim_key(const d9d_table *dims, const char *name)
{
    return dim_key(dims, name) != NULL;
}

/* It may stand beside rope_scaling, which then reads it, unless layers have ropes of two kinds. */
#define ORIGINAL_POSITIONS "original_max_position_embeddings"
#define POSITIONS          "max_position_embeddings"
#define LOCAL_BASE         "rope_local_base_freq"

static bool has_one_rope(const d9d_hf_family *f)
{
    return is_dim_key(f->dims, "rope_scaling") && !is_dim_key(f->dims, LOCAL_BASE);
}

/* The rule of a field; NULL: not declared. */
static const d9d_hf_field *field_rule(const d9d_hf_family *f, const char *name)
{
    static const d9d_hf_field read = D9D_HF_READ("");
    const d9d_hf_field *row = field_find(f->fields, name);

    if (row != NULL && row->rule == D9D_HF_RULE_OWN && !f->inlined)
        return field_find(row + 1, name);
    if (is_dim_key(f->dims, name) || (strcmp(name, ORIGINAL_POSITIONS) == 0 && has_one_rope(f)))
        return &read;
    return row != NULL ? row : field_find(d9d_hf_common, name);
}

static bool is_read(const d9d_hf_family *f, const char *name)
{
    const d9d_hf_field *row = field_rule(f, name);

    return row != NULL && row->rule == D9D_HF_RULE_READ;
}

/* Does null mean something?  In a key that can be null, and in fields that no key reads. */
static bool null_counts(const d9d_hf_family *f, const char *name)
{
    const d9d_key *k = dim_key(f->dims, name);

    return k == NULL || (k->flags & D9D_NULLABLE) != 0;
}

static bool json_values_equal(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b);
}

/* Is `v` in the JSON list? */
static d9d_status value_allowed(const d9d_hf_field *row, const char *where, const json_t *v,
                                bool *out)
{
    json_t *list;

    D9D_TRY(d9d_json_parse(where, row->only, strlen(row->only), &list));
    *out = false;
    for (size_t i = 0; i < json_array_size(list); i++)
        *out |= json_values_equal(json_array_get(list, i), v);
    json_decref(list);
    return D9D_OK;
}

static d9d_status fail_unknown_field(const d9d_hf_family *f, const char *where, const char *path,
                                     const json_t *v)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v, -1);

    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: %s: %.64s: %s does not know this field, which may change what the "
                      "model computes",
                      where, path, text.data, f->name);
    d9d_buf_release(&text);
    return st;
}

/* Check one field; `path` is its place, for messages. */
static d9d_status field_check(const d9d_hf_family *f, const char *where, const char *path,
                              const char *name, const json_t *v)
{
    const d9d_hf_field *row = field_rule(f, name);
    const d9di_hf_reader r = {NULL, where, false};
    bool fine = true;

    if (json_is_null(v))
        return D9D_OK;
    if (row == NULL)
        return fail_unknown_field(f, where, path, v);
    if (row->rule == D9D_HF_RULE_ONLY)
        D9D_TRY(value_allowed(row, where, v, &fine));
    return fine ? D9D_OK : d9di_hf_refuse(&r, path, v);
}

/* --- RoPE objects ----------------------------------------------------------------------------- */

/* Members that are separate fields in the other generation. */
static bool is_moved(const char *name)
{
    static const char *const names[] = {"rope_theta", "partial_rotary_factor",
                                        "llama_4_scaling_beta", POSITIONS, NULL};

    return d9di_hf_is_among(names, name);
}

static d9d_status rope_check_one(const d9d_hf_family *f, const char *where, const char *field,
                                 const json_t *o)
{
    const d9di_hf_reader r = {NULL, where, false};
    d9d_arena a = {0};
    d9d_status st = D9D_OK;
    const char *name, *path, *const *members;
    json_t *v;

    if (!json_is_object(o))
        return d9di_hf_refuse(&r, field, o);
    D9D_TRY(d9di_hf_rope_members(&r, field, o, &members));
    json_object_foreach((json_t *)(uintptr_t)o, name, v)
    {
        path = d9d_arena_printf(&a, "%s.%s", field, name);
        if (path == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "%s: %s", where, field);
        else if (is_moved(name))
            st = field_check(f, where, path, name, v);
        else if (!json_is_null(v) && !d9di_hf_is_among(members, name))
            st = fail_unknown_field(f, where, path, v);
        else if (is_dim_key(f->dims, LOCAL_BASE) && strcmp(name, "truncate") == 0 &&
                 json_is_false(v)) /* which transformers looks for outside of the object */
            st = d9di_hf_refuse(&r, path, v);
        if (st != D9D_OK)
            break;
    }
    if (st == D9D_OK && !d9di_hf_rope_is_plain(o) && !is_read(f, "rope_scaling"))
        st = d9di_hf_refuse(&r, field, o);
    d9d_arena_release(&a);
    return st;
}

/* Kinds of layers that have a RoPE of their own in rope_parameters. */
#define OF_FULL    "full_attention"
#define OF_WINDOWS "sliding_attention"

/* Are they by kinds of layers, of a family that can have two? */
static bool rope_is_by_layers(const d9d_hf_family *f, const json_t *o)
{
    return is_dim_key(f->dims, LOCAL_BASE) &&
           (json_object_get(o, OF_FULL) != NULL || json_object_get(o, OF_WINDOWS) != NULL);
}

/* Scaling is of the layers without a window. */
static d9d_status rope_check_by_layers(const d9d_hf_family *f, const char *where, const json_t *o)
{
    const d9di_hf_reader r = {NULL, where, false};
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)o, name, v)
    {
        const bool full = strcmp(name, OF_FULL) == 0;
        const char *path = full ? "rope_parameters." OF_FULL : "rope_parameters." OF_WINDOWS;

        if (!full && strcmp(name, OF_WINDOWS) != 0)
            return fail_unknown_field(f, where, "rope_parameters", o);
        if (json_is_null(v))
            continue;
        D9D_TRY(rope_check_one(f, where, path, v));
        if (!full && !d9di_hf_rope_is_plain(v))
            return d9di_hf_refuse(&r, path, v);
    }
    return D9D_OK;
}

/* In rope_scaling of a family whose layers have ropes of two kinds transformers does not read the
 * older name of the type, and where no key reads a scaling it gives both kinds the base. */
static d9d_status rope_check_scaling(const d9d_hf_family *f, const char *where, const json_t *o)
{
    const json_t *theta = d9di_hf_member(o, "rope_theta");
    const d9di_hf_reader r = {NULL, where, false};

    if (!is_dim_key(f->dims, LOCAL_BASE))
        return D9D_OK;
    if (theta != NULL && !is_dim_key(f->dims, "rope_scaling"))
        return d9di_hf_refuse(&r, "rope_scaling.rope_theta", theta);
    return d9di_hf_member(o, "rope_type") == NULL && !d9di_hf_rope_is_plain(o)
               ? D9D_FAIL(D9D_ECONFIG,
                          "%s: rope_scaling.type: in a config.json of %s its name is rope_type",
                          where, f->name)
               : D9D_OK;
}

static d9d_status rope_check(const d9d_hf_family *f, const char *where, const char *field,
                             const json_t *o)
{
    if (strcmp(field, "rope_scaling") == 0)
        D9D_TRY(rope_check_scaling(f, where, o));
    return strcmp(field, "rope_parameters") == 0 && rope_is_by_layers(f, o)
               ? rope_check_by_layers(f, where, o)
               : rope_check_one(f, where, field, o);
}

/* --- documents ------------------------------------------------------------------------------- */

static bool is_rope(const char *name)
{
    return strcmp(name, "rope_scaling") == 0 || strcmp(name, "rope_parameters") == 0;
}

/* "qwen3 and qwen3_moe are" */
static d9d_status fail_model_type(const d9d_hf_family *f, const char *where, const char *type)
{
    d9d_buf list = {0};
    d9d_status st = D9D_OK;

    for (const char *const *t = f->model_types; *t != NULL && st == D9D_OK; t++)
        st = d9d_buf_printf(&list, "%s%s",
                            t == f->model_types ? ""
                            : t[1] == NULL      ? " and "
                                                : ", ",
                            *t);
    if (st == D9D_OK)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: model_type: \"%.64s\" is not supported; %s %s, and plugins bring others "
                      "(man d9d-plugin)",
                      where, type, list.data, f->model_types[1] == NULL ? "is" : "are");
    d9d_buf_release(&list);
    return st;
}

static d9d_status type_check(const d9d_hf_family *f, const json_t *doc, const char *where)
{
    const char *type;

    if (f->model_types == NULL || f->model_types[0] == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s takes no config.json", where, f->name);
    D9D_TRY(d9di_hf_model_type(doc, where, &type));
    return d9di_hf_is_among(f->model_types, type) ? D9D_OK : fail_model_type(f, where, type);
}

/* Check a member of the document. */
static d9d_status member_check(const d9d_hf_family *f, const json_t *doc, const char *where,
                               const char *name, const json_t *v)
{
    d9d_quantization q;
    d9d_dtype dtype;

    if (json_is_null(v))
        return D9D_OK;
    if (strcmp(name, "dtype") == 0 || strcmp(name, "torch_dtype") == 0)
        return d9d_hf_config_dtype(doc, where, D9D_F32, &dtype);
    if (strcmp(name, D9D_QUANTIZATION_FIELD) == 0)
        return d9d_quantization_read(doc, where, &q);
    return is_rope(name) ? rope_check(f, where, name, v) : field_check(f, where, name, name, v);
}

void d9d_hf_family_each_field(const d9d_hf_family *f, const json_t *doc, const char *where,
                              d9d_hf_field_fn fn, void *arg)
{
    static const d9d_hf_field read = D9D_HF_READ("");
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)doc, name, v)
    {
        const bool special = is_rope(name) || strcmp(name, D9D_QUANTIZATION_FIELD) == 0;

        fn(arg, name, special ? &read : field_rule(f, name), member_check(f, doc, where, name, v));
    }
}

d9d_status d9d_hf_family_check(const d9d_hf_family *f, const json_t *doc, const char *where)
{
    const char *name;
    json_t *v;

    D9D_TRY(type_check(f, doc, where));
    json_object_foreach((json_t *)(uintptr_t)doc, name, v)
    {
        D9D_TRY(member_check(f, doc, where, name, v));
    }
    return D9D_OK;
}

/* Move a field with another name of a key to that name. */
static d9d_status alias_fold(const d9d_hf_field *row, const json_t *v, const char *where,
                             json_t *one)
{
    json_t *other = json_object_get(one, row->only);

    if (json_is_null(v))
        return D9D_OK;
    if (other != NULL && !json_is_null(other) && !json_values_equal(other, v)) {
        d9d_buf text = {0};
        d9d_status st = d9d_buf_printf(&text, "%s: %s is ", where, row->only);

        if (st == D9D_OK)
            st = d9d_json_put(&text, other, -1);
        if (st == D9D_OK)
            st = d9d_buf_printf(&text, " and %s is ", row->name);
        if (st == D9D_OK)
            st = d9d_json_put(&text, v, -1);
        if (st == D9D_OK)
            st = D9D_FAIL(D9D_ECONFIG, "%s", text.data);
        d9d_buf_release(&text);
        return st;
    }
    return json_object_set(one, row->only, (json_t *)(uintptr_t)v) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
}

/* transformers reads a base or share of RoPE by the family's other name alone. */
static d9d_status alias_check_rope(const d9d_hf_family *f, const d9d_hf_field *row,
                                   const json_t *doc, const char *where)
{
    const json_t *v = d9di_hf_member(doc, row->only);
    const char *field;

    if (v == NULL || !is_moved(row->only) ||
        d9di_hf_member(d9di_hf_rope_object(doc, &field), row->only) != NULL ||
        json_number_value(v) == strtod(dim_key(f->dims, row->only)->def, NULL))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG, "%s: %s is %g: in a config.json of %s its name is %s", where,
                    row->only, json_number_value(v), f->name, row->name);
}

static d9d_status aliases_fold(const d9d_hf_family *f, const json_t *doc, const char *where,
                               json_t *one)
{
    for (const d9d_hf_field *row = f->fields; row != NULL && row->name != NULL; row++) {
        const json_t *v = json_object_get(doc, row->name);

        if (row->rule != D9D_HF_RULE_ALIAS)
            continue;
        D9D_TRY(v != NULL ? alias_fold(row, v, where, one) : alias_check_rope(f, row, doc, where));
    }
    return D9D_OK;
}

d9d_status d9d_hf_family_select(const d9d_hf_family *f, const json_t *doc, const char *where,
                                json_t **out)
{
    const char *name;
    json_t *v, *one;
    d9d_status st;
    bool bad;

    D9D_TRY(d9d_hf_family_check(f, doc, where));
    one = json_object();
    bad = one == NULL;
    json_object_foreach((json_t *)(uintptr_t)doc, name, v)
    {
        if ((is_rope(name) || is_read(f, name)) && (!json_is_null(v) || null_counts(f, name)))
            bad |= json_object_set(one, name, v) != 0;
    }
    st = bad ? D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where) : aliases_fold(f, doc, where, one);
    if (st == D9D_OK)
        *out = one;
    else
        json_decref(one);
    return st;
}

/* --- dimensions ------------------------------------------------------------------------------ */

/* The default of a key that is an integer; 0: none. */
static int64_t int_default(const d9d_hf_family *f, const char *name)
{
    const d9d_key *k = dim_key(f->dims, name);

    return k != NULL && k->def != NULL ? strtoll(k->def, NULL, 10) : 0;
}

/* The base of a file that does not say it; transformers' own where no key reads it. */
static double base_default(const d9d_hf_family *f)
{
    const d9d_key *k = dim_key(f->dims, "rope_theta");

    return k != NULL && k->def != NULL ? strtod(k->def, NULL) : 10000;
}

/* Replace rope_parameters by kinds of layers by those of layers without a window, and the base of
 * the others. */
static d9d_status rope_fold_layers(const d9d_hf_family *f, json_t *doc, const char *where)
{
    json_t *params = json_object_get(doc, "rope_parameters"), *full, *local;
    int bad;

    if (!rope_is_by_layers(f, params))
        return D9D_OK;
    full = (json_t *)(uintptr_t)d9di_hf_member(params, OF_FULL);
    local = (json_t *)(uintptr_t)d9di_hf_member(d9di_hf_member(params, OF_WINDOWS), "rope_theta");
    bad = local != NULL ? json_object_set(doc, LOCAL_BASE, local) : 0;
    bad |= full != NULL ? json_object_set_new(doc, "rope_parameters", json_incref(full))
                        : json_object_del(doc, "rope_parameters");
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
}

/* Give a file with neither object the family's own: the default of its key rope_scaling. */
static d9d_status rope_default(const d9d_hf_family *f, json_t *doc, const char *where)
{
    const d9d_key *k = dim_key(f->dims, "rope_scaling");
    const d9di_hf_reader r = {doc, where, false};
    const char *field;
    json_t *own;
    double theta, bare;

    if (k == NULL || k->def == NULL || d9di_hf_rope_object(doc, &field) != NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_parse(where, k->def, strlen(k->def), &own));
    if (json_object_set_new(doc, "rope_parameters", own) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    D9D_TRY(d9di_hf_f64(&r, own, "rope_theta", 0, &theta));
    D9D_TRY(d9di_hf_f64(&r, doc, "rope_theta", theta, &bare));
    if (theta != 0 && bare != theta)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: rope_theta is %g, and of %s without rope_parameters it is %g", where,
                        bare, f->name, theta);
    return D9D_OK;
}

/* Move members of a RoPE object to the fields that the family's keys read. */
static int members_fold(const d9d_hf_family *f, json_t *doc, const json_t *rope)
{
    static const char *const names[] = {"partial_rotary_factor", "llama_4_scaling_beta"};
    int bad = 0;

    for (size_t i = 0; i < 2; i++) {
        const json_t *part = d9di_hf_member(rope, names[i]);

        if (is_dim_key(f->dims, names[i]) && part != NULL)
            bad |= json_object_set(doc, names[i], (json_t *)(uintptr_t)part);
    }
    return bad;
}

/* Replace the objects of either generation by rope_theta and rope_scaling, which `dims` have. */
static int rope_replace(const d9d_hf_family *f, json_t *doc, const d9d_rope_scaling *s,
                        double theta)
{
    const char *field;
    const json_t *rope = d9di_hf_rope_object(doc, &field);
    int bad = members_fold(f, doc, rope);

    if (d9di_hf_member(rope, "rope_theta") != NULL)
        bad |= json_object_set_new(doc, "rope_theta", json_real(theta));
    if (!is_dim_key(f->dims, ORIGINAL_POSITIONS))
        (void)json_object_del(doc, ORIGINAL_POSITIONS);
    (void)json_object_del(doc, "rope_parameters");
    (void)json_object_del(doc, "rope_scaling");
    return is_dim_key(f->dims, "rope_scaling")
               ? bad | json_object_set_new(doc, "rope_scaling", d9di_hf_rope_to_json(s))
               : bad;
}

static d9d_status rope_fold(const d9d_hf_family *f, json_t *doc, const char *where)
{
    const d9di_hf_reader r = {doc, where, false};
    const int64_t original = int_default(f, ORIGINAL_POSITIONS);
    d9di_hf_rope_defaults defaults = {.base = base_default(f)};
    d9d_rope_scaling scaling = {0};
    double theta;

    D9D_TRY(rope_default(f, doc, where));
    if (original > 0 && d9di_hf_member(doc, ORIGINAL_POSITIONS) == NULL &&
        json_object_set_new(doc, ORIGINAL_POSITIONS, json_integer(original)) != 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    D9D_TRY(d9di_hf_i64(&r, POSITIONS, int_default(f, POSITIONS), &defaults.positions));
    D9D_TRY(d9di_hf_rope(&r, &defaults, &scaling, &theta));
    return rope_replace(f, doc, &scaling, theta) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
}

/* The fields that are read, under the names of the family's keys; a new reference. */
static d9d_status fields_fold(const d9d_hf_family *f, const json_t *doc, const char *where,
                              json_t **out)
{
    json_t *one;
    d9d_status st;

    D9D_TRY(d9d_hf_family_select(f, doc, where, &one));
    st = rope_fold_layers(f, one, where);
    if (st == D9D_OK)
        st = rope_fold(f, one, where);
    if (st == D9D_OK)
        *out = one;
    else
        json_decref(one);
    return st;
}

d9d_status d9d_hf_family_bind(const d9d_hf_family *f, const json_t *doc, const char *where,
                              d9d_arena *a, void *out)
{
    json_t *one;
    d9d_status st;

    D9D_TRY(fields_fold(f, doc, where, &one));
    st = d9d_config_bind(f->dims, one, where, NULL, a, out);
    json_decref(one);
    return st;
}

d9d_status d9d_hf_family_resolve(const d9d_hf_family *f, const json_t *doc, const char *where,
                                 json_t **out)
{
    json_t *one;
    d9d_status st;

    D9D_TRY(fields_fold(f, doc, where, &one));
    st = d9d_config_resolve(f->dims, one, where, NULL, out);
    json_decref(one);
    return st;
}
