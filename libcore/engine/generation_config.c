/* generation_config.c - see engine/generation_config.h. */
#include "engine/generation_config.h"

#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/config/config.h"

#define MAX_FILE   (UINT64_C(1) << 20)
#define GENERATION "generation_config.json"

/* --- members ---------------------------------------------------------------------------------- */

static const d9d_key token = {
    .kind = D9D_KIND_INT, .min = -1e9, .max = INT32_MAX, .doc = "a token"};
#define REAL(member, lo, hi, ...)                                                                  \
    D9D_KEY_REAL(d9di_generation_config, member, "null", lo, hi, __VA_ARGS__)
#define COUNT(member, lo, text)                                                                    \
    D9D_KEY_INT(d9di_generation_config, member, "null", lo, INT32_MAX, text, .flags = D9D_NULLABLE)
static const d9d_key keys[] = {
    D9D_KEY_LIST(d9di_generation_config, eos_token_id, "null", &token, "what ends a generation",
                 .flags = D9D_OR_ONE | D9D_NULLABLE),
    D9D_KEY_BOOL(d9di_generation_config, do_sample, "false", "draw tokens"),
    REAL(temperature, 0, 1e6, "of sampling", .flags = D9D_NULLABLE),
    COUNT(top_k, 0, "draw from so many of the likeliest tokens"),
    REAL(top_p, 0, 1e6, "draw from the likeliest tokens of this share", .flags = D9D_NULLABLE),
    REAL(min_p, 0, 1, "draw from tokens that have this share of the likeliest one's probability",
         .flags = D9D_NULLABLE),
    REAL(repetition_penalty, 0, 1e6, "of logits of tokens that a sequence has",
         .flags = D9D_NULLABLE | D9D_ABOVE_MIN | D9D_FLOAT32),
    COUNT(max_length, 1, "most tokens of a sequence, the prompt's counted"),
    COUNT(max_new_tokens, 1, "most tokens that are generated"),
    D9D_KEY_END,
};
static const d9d_table table =
    D9D_TABLE(d9di_generation_config, "generation_config", keys, "how a model generates");

/* The other members of transformers' GenerationConfig.  `neutral`, in JSON: the value that changes
 * nothing; NULL: none of them changes what a decoder without beams generates. */
static const struct {
    const char *name, *neutral;
} others[] = {
    /* of the file, of prompts and padding, of outputs */
    {"transformers_version", NULL},
    {"_from_model_config", NULL},
    {"_commit_hash", NULL},
    {"bos_token_id", NULL},
    {"pad_token_id", NULL},
    {"decoder_start_token_id", NULL},
    {"output_attentions", NULL},
    {"output_hidden_states", NULL},
    {"output_scores", NULL},
    {"output_logits", NULL},
    {"return_dict_in_generate", NULL},
    /* of caches and speed */
    {"use_cache", NULL},
    {"cache_implementation", NULL},
    {"cache_config", NULL},
    {"max_cache_len", NULL},
    {"compile_config", NULL},
    {"disable_compile", NULL},
    {"prefill_chunk_size", NULL},
    {"low_memory", NULL},
    {"continuous_batching_config", NULL},
    /* of beams, encoders and assistants, which are not there */
    {"early_stopping", NULL},
    {"length_penalty", NULL},
    {"num_beam_groups", NULL},
    {"diversity_penalty", NULL},
    {"encoder_no_repeat_ngram_size", NULL},
    {"encoder_repetition_penalty", NULL},
    {"use_mtp", NULL},
    {"is_assistant", NULL},
    {"num_assistant_tokens", NULL},
    {"num_assistant_tokens_schedule", NULL},
    {"assistant_confidence_threshold", NULL},
    {"assistant_early_exit", NULL},
    {"assistant_lookbehind", NULL},
    {"assistant_ensemble_weight", NULL},
    {"target_lookbehind", NULL},
    {"speculation_type", NULL},
    {"prompt_lookup_num_tokens", NULL},
    {"max_matching_ngram_size", NULL},
    {"renormalize_logits", NULL},
    /* what is not done */
    {"num_beams", "1"},
    {"num_return_sequences", "1"},
    {"min_length", "0"},
    {"min_new_tokens", "0"},
    {"max_time", "null"},
    {"stop_strings", "null"},
    {"top_h", "null"},
    {"typical_p", "1"},
    {"epsilon_cutoff", "0"},
    {"eta_cutoff", "0"},
    {"no_repeat_ngram_size", "0"},
    {"bad_words_ids", "null"},
    {"force_words_ids", "null"},
    {"constraints", "null"},
    {"forced_bos_token_id", "null"},
    {"forced_eos_token_id", "null"},
    {"remove_invalid_values", "false"},
    {"exponential_decay_length_penalty", "null"},
    {"suppress_tokens", "null"},
    {"begin_suppress_tokens", "null"},
    {"sequence_bias", "null"},
    {"token_healing", "false"},
    {"guidance_scale", "1"},
    {"watermarking_config", "null"},
    {"penalty_alpha", "0"},
    {"dola_layers", "null"},
};
enum { OTHERS = sizeof(others) / sizeof(others[0]) };

static bool is_key(const char *name)
{
    const d9d_key *k = keys;

    while (k->name != NULL && strcmp(k->name, name) != 0)
        k++;
    return k->name != NULL;
}

/* Is a member, not a null, of no effect here? */
static bool is_neutral(size_t other, const json_t *v)
{
    json_t *neutral;
    bool same;

    if (others[other].neutral == NULL)
        return true;
    neutral = json_loads(others[other].neutral, JSON_DECODE_ANY, NULL);
    same = json_is_number(v)
               ? json_is_number(neutral) && json_number_value(v) == json_number_value(neutral)
               : json_equal(v, neutral);
    json_decref(neutral);
    return same;
}

static d9d_status note(d9d_buf *out, const char *name, const json_t *v)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, v, -1);

    if (st == D9D_OK)
        st = d9d_buf_printf(out, "%s%.64s %.40s%s", out->len > 0 ? ", " : "", name, text.data,
                            text.len > 40 ? "..." : "");
    d9d_buf_release(&text);
    return st;
}

/* Sort a member: those of the table go to `known`.  Names that transformers does not know either
 * are noted, but in a config.json they are the model's. */
static d9d_status sort_member(const char *name, json_t *v, bool is_model, json_t *known,
                              d9d_buf *left_out)
{
    size_t i = 0;

    if (json_is_null(v))
        return D9D_OK;
    if (is_key(name))
        return json_object_set(known, name, v) == 0 ? D9D_OK
                                                    : D9D_FAIL(D9D_ENOMEM, "%s: no memory", name);
    while (i < OTHERS && strcmp(others[i].name, name) != 0)
        i++;
    if (i < OTHERS ? is_neutral(i, v) : is_model)
        return D9D_OK;
    return note(left_out, name, v);
}

/* --- files ------------------------------------------------------------------------------------ */

/* The text part of a config.json, as transformers looks for it. */
static const json_t *text_part(const json_t *doc)
{
    static const char *const names[] = {"decoder", "generator", "text_config"};
    const json_t *part = NULL;

    for (size_t i = 0; i < 3 && json_object_size(part) == 0; i++)
        part = json_object_get(doc, names[i]);
    return part;
}

/* All members but nulls, `over` before `under`, which may be NULL; a new reference. */
static json_t *members_merge(const json_t *over, const json_t *under)
{
    json_t *all = json_object();
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)under, name, v)
        d9d_json_set(&all, name, json_incref(v));
    json_object_foreach((json_t *)(uintptr_t)over, name, v) if (!json_is_null(v))
        d9d_json_set(&all, name, json_incref(v));
    return all;
}

static d9d_status members_bind(const char *path, json_t *doc, bool is_model, d9d_arena *a,
                               d9di_generation_config *out)
{
    json_t *all = members_merge(doc, is_model ? text_part(doc) : NULL), *known = json_object();
    d9d_buf left_out = {0};
    d9d_status st = D9D_OK;
    const char *name;
    json_t *v;

    if (all == NULL || known == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    json_object_foreach(all, name, v) if (st == D9D_OK) st =
        sort_member(name, v, is_model, known, &left_out);
    if (st == D9D_OK)
        st = d9d_config_bind(&table, known, path, NULL, a, out);
    if (st == D9D_OK) {
        out->path = d9d_arena_strdup(a, path);
        out->left_out = d9d_arena_strdup(a, left_out.len > 0 ? left_out.data : "");
        if (out->path == NULL || out->left_out == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    }
    d9d_buf_release(&left_out);
    json_decref(all);
    json_decref(known);
    return st;
}

static d9d_status file_read(const char *path, bool is_model, d9d_arena *a,
                            d9di_generation_config *out)
{
    d9d_buf text = {0};
    json_t *doc = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_read(path, MAX_FILE, &text), out);
    D9D_TRY_OR(st, d9d_json_parse(path, text.data != NULL ? text.data : "", text.len, &doc), out);
    st = json_is_object(doc) ? members_bind(path, doc, is_model, a, out)
                             : D9D_FAIL(D9D_EFORMAT, "%s: is not a JSON object", path);
out:
    json_decref(doc);
    d9d_buf_release(&text);
    return st;
}

static bool is_generation(const char *path)
{
    const size_t n = strlen(path), tail = strlen(GENERATION);

    return n >= tail && strcmp(path + n - tail, GENERATION) == 0;
}

d9d_status d9di_generation_config_read(const d9di_model_aux_files_places *c, d9d_arena *a,
                                       d9di_generation_config *out)
{
    static const char *const names[] = {GENERATION, "config.json", NULL};
    const char *path;
    json_t *nothing;
    d9d_status st;

    D9D_TRY(d9di_model_aux_files_find_any(c, names, a, &path));
    if (path != NULL)
        return file_read(path, !is_generation(path), a, out);
    nothing = json_object();
    st = nothing != NULL ? d9d_config_bind(&table, nothing, GENERATION, NULL, a, out)
                         : D9D_FAIL(D9D_ENOMEM, GENERATION ": no memory");
    json_decref(nothing);
    if (st == D9D_OK) {
        out->path = NULL;
        out->left_out = "";
    }
    return st;
}

d9d_status d9di_generation_config_stops(const d9di_generation_config *g, d9d_token_ids *out)
{
    const int64_t *ids = g->eos_token_id.items;

    for (size_t i = 0; i < g->eos_token_id.n; i++)
        if (ids[i] >= 0)
            D9D_TRY(D9D_VEC_PUSH(out, (uint32_t)ids[i]));
    return D9D_OK;
}
