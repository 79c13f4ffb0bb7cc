/* peft_methods.c - the table of built-in methods and their sections.  See d9d/model/lora/peft.h.
 */
#include "model/lora/peft_methods.h"

#include <math.h>

#include "d9d/config/name_pattern.h"

/* --- rank and scale -----------------------------------------------------------------------------
 */

#define PARAMS_KEYS                                                                                \
    D9D_KEY_INT(d9d_peft_params, r, D9D_REQUIRED, 1, 1 << 16, "rank: columns of each factor"),     \
        D9D_KEY_REAL(d9d_peft_params, alpha, D9D_REQUIRED, 0, 1e6,                                 \
                     "the product of the factors is scaled by alpha / r",                          \
                     .flags = D9D_ABOVE_MIN | D9D_FLOAT32),                                        \
        D9D_KEY_BOOL(d9d_peft_params, use_rslora, "false",                                         \
                     "rank-stabilized LoRA: the product is scaled by alpha / sqrt(r)"),            \
        D9D_KEY_MAP(d9d_peft_params, rank_pattern, "{}", 1, 1 << 16,                               \
                    "ranks of modules whose name, or its end, a pattern matches: {\"down_proj\": " \
                    "4}"),                                                                         \
        D9D_KEY_JSON(d9d_peft_params, alpha_pattern, "{}",                                         \
                     "alphas of such modules: {\".*\\\\.1\\\\..*\": 8}")
static const d9d_key lora_params_keys[] = {
    PARAMS_KEYS,
    D9D_KEY_REAL(d9d_peft_params, dropout, "0", 0, 1,
                 "dropout probability of an adapter's input; embeddings have none",
                 .flags = D9D_BELOW_MAX | D9D_FLOAT32),
    D9D_KEY_END,
};
static const d9d_key dora_params_keys[] = {PARAMS_KEYS, D9D_KEY_END};

static d9d_status params_check(const void *value, const char *path)
{
    const d9d_peft_params *p = value;
    const char *pattern;
    json_t *v;

    if (p->alpha_pattern == NULL || json_is_null(p->alpha_pattern))
        return D9D_OK;
    if (!json_is_object(p->alpha_pattern))
        return D9D_FAIL(D9D_ECONFIG, "%s.alpha_pattern: expected an object of numbers", path);
    json_object_foreach(p->alpha_pattern, pattern, v)
    {
        if (!json_is_number(v) || !(json_number_value(v) > 0) || json_number_value(v) > 1e6)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s.alpha_pattern: \"%.100s\" has no number above 0, and at most 1e6",
                            path, pattern);
    }
    return D9D_OK;
}

const d9d_table d9d_peft_params_table = D9D_TABLE(d9d_peft_params, "lora_params", lora_params_keys,
                                                  "the adapters", .check = params_check);
const d9d_table d9d_peft_rank_table = D9D_TABLE(d9d_peft_params, "dora_params", dora_params_keys,
                                                "the adapters", .check = params_check);

d9d_status d9d_peft_params_opts(const d9d_peft_params *p, const char *name, d9d_adapter_opts *out)
{
    d9d_adapter_opts o = {.r = p->r, .alpha = p->alpha, .dropout = p->dropout};
    const char *pattern;
    bool match = false;
    json_t *v;

    for (size_t i = 0; i < p->rank_pattern.n && !match; i++) {
        D9D_TRY(
            d9d_name_pattern_ends("peft: rank_pattern", p->rank_pattern.names[i], name, &match));
        if (match)
            o.r = p->rank_pattern.values[i];
    }
    match = false;
    json_object_foreach(p->alpha_pattern, pattern, v)
    {
        if (!match) {
            D9D_TRY(d9d_name_pattern_ends("peft: alpha_pattern", pattern, name, &match));
            if (match)
                o.alpha = json_number_value(v);
        }
    }
    if (p->use_rslora)
        o.alpha *= sqrt((double)o.r);
    *out = o;
    return D9D_OK;
}

/* A pattern that matches nothing is a mistake. */
static d9d_status pattern_check(const char *where, const char *pattern, const char *const *names,
                                size_t n)
{
    bool match = false;

    for (size_t i = 0; i < n && !match; i++)
        D9D_TRY(d9d_name_pattern_ends(where, pattern, names[i], &match));
    if (match)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG, "%s \"%.200s\": of %zu module%s with an adapter it matches none",
                    where, pattern, n, n == 1 ? "" : "s");
}

/* The rank and the scale in a section; NULL: it has none. */
static const d9d_peft_params *params_find(const d9d_table *t, const void *section)
{
    for (const d9d_key *k = t->keys; k->name != NULL; k++)
        if (k->kind == D9D_KIND_TABLE &&
            (k->table == &d9d_peft_params_table || k->table == &d9d_peft_rank_table))
            return (const void *)((const char *)section + k->offset);
    return NULL;
}

d9d_status d9di_peft_patterns_check(const d9d_table *t, const void *section,
                                    const char *const *names, size_t n)
{
    const d9d_peft_params *p = params_find(t, section);
    const char *pattern;
    json_t *v;

    if (p == NULL)
        return D9D_OK;
    for (size_t i = 0; i < p->rank_pattern.n; i++)
        D9D_TRY(pattern_check("peft: rank_pattern", p->rank_pattern.names[i], names, n));
    json_object_foreach(p->alpha_pattern, pattern, v)
        D9D_TRY(pattern_check("peft: alpha_pattern", pattern, names, n));
    return D9D_OK;
}

/* --- sections ------------------------------------------------------------------------------------
 */

typedef struct low_rank_section {
    d9d_peft_target target;
    d9d_peft_params params;
} low_rank_section;
typedef struct ia3_section {
    d9d_peft_target target;
    const char *feedforward_name_pattern; /* NULL: none */
} ia3_section;
typedef struct full_section {
    d9d_peft_target target;
} full_section;

const d9d_key d9d_peft_layer_elem = {
    .kind = D9D_KIND_INT, .min = 0, .max = INT32_MAX, .doc = "a layer, from 0"};

static const d9d_key lora_keys[] = {
    D9D_PEFT_TARGET_KEYS(low_rank_section),
    D9D_KEY_TABLE(low_rank_section, params, &d9d_peft_params_table, "the adapters"),
    D9D_KEY_END,
};
static const d9d_key dora_keys[] = {
    D9D_PEFT_TARGET_KEYS(low_rank_section),
    D9D_KEY_TABLE(low_rank_section, params, &d9d_peft_rank_table, "the adapters"),
    D9D_KEY_END,
};
static const d9d_key ia3_keys[] = {
    D9D_PEFT_TARGET_KEYS(ia3_section),
    D9D_KEY_STR(ia3_section, feedforward_name_pattern, "null",
                "of those modules, the ones whose input is scaled, not their output",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
static const d9d_key full_keys[] = {D9D_PEFT_TARGET_KEYS(full_section), D9D_KEY_END};
static const d9d_key method_elem = {.kind = D9D_KIND_UNION,
                                    .def = D9D_REQUIRED,
                                    .names = d9d_peft_tag,
                                    .choices = d9d_peft_choices,
                                    .doc = "one method"};
static const d9d_key stack_keys[] = {
    D9D_KEY_LIST(d9di_peft_stack, methods, D9D_REQUIRED, &method_elem, "one after another",
                 .min = 1),
    D9D_KEY_END,
};

static const char *const prompt_inits[] = {"sample_vocab", "random", "text", NULL};
static const d9d_key prompt_keys[] = {
    D9D_KEY_INT(d9d_peft_prompt, num_virtual_tokens, D9D_REQUIRED, 1, 1 << 20,
                "rows that are trained, of tokens that begin each sequence"),
    D9D_KEY_ENUM(
        d9d_peft_prompt, init, "\"sample_vocab\"", prompt_inits,
        "how they begin: as random rows of the vocabulary, as normal random numbers, or as "
        "the rows of init_text's tokens, repeated or cut to so many"),
    D9D_KEY_STR(d9d_peft_prompt, init_text, "null", "the text of init \"text\"",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};

static d9d_status prompt_check(const void *value, const char *path)
{
    const d9d_peft_prompt *p = value;

    if ((p->init == D9D_PEFT_PROMPT_TEXT) == (p->init_text != NULL))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    p->init_text != NULL ? "%s.init_text: init is \"%s\", and \"text\" reads it"
                                         : "%s.init_text: null, and init is \"%s\"",
                    path, prompt_inits[p->init]);
}

/* --- methods -------------------------------------------------------------------------------------
 */

static d9d_status lora_adapt(const void *section, const char *name, const d9d_param *w,
                             const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    (void)w;
    *kind = &d9d_adapter_lora;
    return d9d_peft_params_opts(&((const low_rank_section *)section)->params, name, opts);
}

static d9d_status dora_adapt(const void *section, const char *name, const d9d_param *w,
                             const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    (void)w;
    *kind = &d9d_adapter_dora;
    return d9d_peft_params_opts(&((const low_rank_section *)section)->params, name, opts);
}

static d9d_status ia3_adapt(const void *section, const char *name, const d9d_param *w,
                            const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    const char *pattern = ((const ia3_section *)section)->feedforward_name_pattern;
    bool feedforward = false;

    (void)w, (void)opts;
    if (pattern != NULL)
        D9D_TRY(
            d9d_name_pattern_ends("peft: feedforward_name_pattern", pattern, name, &feedforward));
    *kind = feedforward ? &d9d_adapter_ia3_feedforward : &d9d_adapter_ia3;
    return D9D_OK;
}

static const d9d_table lora_table, dora_table, ia3_table, full_table, prompt_table;
#define METHOD(word, f)                                                                            \
    static const d9d_peft_method word##_method = {                                                 \
        .size = sizeof(d9d_peft_method), .table = &word##_table, .adapt = f}
METHOD(lora, lora_adapt);
METHOD(dora, dora_adapt);
METHOD(ia3, ia3_adapt);
METHOD(full, NULL);
METHOD(prompt, NULL); /* d9d_peft_apply() knows it */

static const d9d_table lora_table = D9D_TABLE(
    low_rank_section, "lora", lora_keys,
    "low-rank adapters of linear layers, experts, embeddings and heads", .row = &lora_method);
static const d9d_table dora_table = D9D_TABLE(
    low_rank_section, "dora", dora_keys,
    "low-rank adapters and a magnitude for each output feature (DoRA)", .row = &dora_method);
static const d9d_table ia3_table =
    D9D_TABLE(ia3_section, "ia3", ia3_keys, "a factor for each feature of linear layers, (IA)^3",
              .row = &ia3_method);
static const d9d_table full_table = D9D_TABLE(
    full_section, "full_tune", full_keys, "all parameters of some modules", .row = &full_method);
static const d9d_table stack_table =
    D9D_TABLE(d9di_peft_stack, "stack", stack_keys, "several methods");

static const d9d_table prompt_table = D9D_TABLE(d9d_peft_prompt, "prompt_tuning", prompt_keys,
                                                "rows of virtual tokens that begin each sequence",
                                                .check = prompt_check, .row = &prompt_method);

const char *const d9d_peft_tag[] = {"kind", NULL};
const d9d_table *const d9d_peft_choices[] = {&lora_table,  &dora_table,   &ia3_table, &full_table,
                                             &stack_table, &prompt_table, NULL};

const d9d_peft_prompt *d9d_peft_prompt_of(const d9d_union *peft)
{
    return peft != NULL && peft->which >= 0 && peft->choice->row == &prompt_method ? peft->value
                                                                                   : NULL;
}
