/* family.c - a family's config.json and model.  See d9d/model/family/family.h. */
#include "d9d/model/family/family.h"

#include <ctype.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "model/family/family_parts.h"

/* --- layer types ------------------------------------------------------------------------------ */

const d9d_key d9d_family_word = {.kind = D9D_KIND_STR, .doc = "a word"};

const char *const d9d_family_activation_names[] = {
    "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", NULL};

d9d_glu d9d_family_glu(int hidden_act)
{
    static const d9d_activation of_names[] = {D9D_ACT_SILU,      D9D_ACT_SILU,
                                              D9D_ACT_GELU,      D9D_ACT_GELU_TANH,
                                              D9D_ACT_GELU_TANH, D9D_ACT_GELU_TANH};

    return (d9d_glu){.act = of_names[hidden_act]};
}

d9d_status d9d_layer_types_read(const d9d_list *list, const char *field, const char *const *words,
                                int64_t layers, const char *where, d9d_arena *a,
                                d9d_layer_types *out)
{
    const char *const *items = list->items;
    uint8_t *at;

    *out = (d9d_layer_types){0};
    if (list->items == NULL) /* null, or absent; of an empty list it is not */
        return D9D_OK;
    if ((int64_t)list->n != layers)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s has %zu layer%s, num_hidden_layers is %lld", where,
                        field, list->n, D9D_PLURAL(list->n), (long long)layers);
    at = d9d_arena_alloc(a, list->n);
    if (at == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    for (size_t i = 0; i < list->n; i++) {
        uint8_t k = 0;

        while (words[k] != NULL && strcmp(words[k], items[i]) != 0)
            k++;
        if (words[k] == NULL)
            return D9D_FAIL(D9D_ENOTSUP, "%s: %s: \"%.64s\" is not supported", where, field,
                            items[i]);
        at[i] = k;
    }
    *out = (d9d_layer_types){at, list->n};
    return D9D_OK;
}

d9d_status d9d_layer_types_windowed(const d9d_list *list, int64_t period, int64_t full,
                                    int64_t layers, const char *where, d9d_arena *a, bool **out)
{
    static const char *const words[] = {"full_attention", "sliding_attention", NULL};
    bool *windowed = d9d_arena_alloc(a, (size_t)layers);
    d9d_layer_types types;

    if (windowed == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    D9D_TRY(d9d_layer_types_read(list, "layer_types", words, layers, where, a, &types));
    for (int64_t l = 0; l < layers; l++)
        windowed[l] = types.at != NULL ? types.at[l] == 1 : l % period != full;
    *out = windowed;
    return D9D_OK;
}

/* --- dimensions ------------------------------------------------------------------------------- */

/* The name in files of a member of d9d_family_dims. */
static const char *name_of(const d9d_family *f, size_t offset, const char *member)
{
    for (const d9d_key *k = f->config->keys; k->name != NULL; k++)
        if (k->offset == offset)
            return k->name;
    return member;
}
#define NAME_OF(f, member) name_of(f, offsetof(d9d_family_dims, member), #member)

static d9d_status heads_check(const d9d_family *f, const d9d_family_dims *c, const char *where)
{
    if (c->num_attention_heads % c->num_key_value_heads != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: num_attention_heads %lld is not a multiple of num_key_value_heads "
                        "%lld",
                        where, (long long)c->num_attention_heads,
                        (long long)c->num_key_value_heads);
    if (c->head_dim < 1 && !f->own_heads)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: %s %lld does not divide %s %lld, and head_dim is not given", where,
                        NAME_OF(f, num_attention_heads), (long long)c->num_attention_heads,
                        NAME_OF(f, hidden_size), (long long)c->hidden_size);
    return D9D_OK;
}

/* Fill in what an absent key means. */
static d9d_status dims_complete(const d9d_family *f, d9d_family_dims *c, const char *where)
{
    if (c->num_key_value_heads < 1)
        c->num_key_value_heads = c->num_attention_heads;
    if (c->head_dim < 1 && c->hidden_size % c->num_attention_heads == 0)
        c->head_dim = c->hidden_size / c->num_attention_heads;
    return heads_check(f, c, where);
}

/* --- reading -------------------------------------------------------------------------------- */

static d9d_status vocabulary_read(const d9d_family_dims *c, const char *where, d9d_arena *a,
                                  d9d_family_config *out)
{
    d9d_block_vocab_split *split = d9d_arena_alloc(a, sizeof(*split));

    if (split == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    *split = (d9d_block_vocab_split){"regular", c->vocab_size};
    out->splits = split;
    out->n_splits = 1;
    return D9D_OK;
}

static d9d_status document_keep(const json_t *doc, const char *where, d9d_arena *a,
                                d9d_family_config *out)
{
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, doc, -1);

    if (st == D9D_OK) {
        out->document = d9d_arena_strdup(a, text.data);
        if (out->document == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", where);
    }
    d9d_buf_release(&text);
    return st;
}

/* The router of the family, or of a model that was trained with another one. */
static d9d_status router_read(const json_t *doc, const char *where, d9d_family_dims *dims,
                              d9d_family_config *c)
{
    c->native_router = dims->router;
    D9D_TRY(d9di_family_router_read(doc, where, &dims->router));
    c->custom_router = !d9di_family_routers_equal(&c->native_router, &dims->router);
    return D9D_OK;
}

d9d_status d9d_family_read(const d9d_family *f, const json_t *doc, const char *where, bool inlined,
                           d9d_arena *a, d9d_family_config *out)
{
    const d9d_hf_family fields = {f->name, f->model_types, f->config, f->fields, inlined};
    void *dims = d9d_arena_alloc(a, f->config->size);
    d9d_family_config c = {.family = f, .dims = dims};

    if (dims == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its dimensions", where);
    memset(dims, 0, f->config->size);
    D9D_TRY(d9d_hf_family_bind(&fields, doc, where, a, dims));
    D9D_TRY(dims_complete(f, dims, where));
    if (f->check != NULL)
        D9D_TRY(D9D_PLUGIN_CALL(f->name, f, check, dims, where, a));
    D9D_TRY(vocabulary_read(dims, where, a, &c));
    D9D_TRY(d9di_family_head_read(doc, where, &c));
    D9D_TRY(router_read(doc, where, dims, &c));
    D9D_TRY(d9di_family_rope_check(&c, where));
    D9D_TRY(document_keep(doc, where, a, &c));
    *out = c;
    return D9D_OK;
}

/* --- the model ------------------------------------------------------------------------------ */

bool d9d_family_is_dropout(const d9d_key *k)
{
    return k->kind == D9D_KIND_REAL && strstr(k->name, "drop") != NULL;
}

d9d_status d9d_family_trainable(const void *config)
{
    const d9d_family_config *c = config;

    for (const d9d_key *k = c->family->config->keys; !c->family->dropout && k->name != NULL; k++) {
        double rate = 0;

        if (d9d_family_is_dropout(k))
            memcpy(&rate, (const char *)c->dims + k->offset, sizeof(rate));
        if (rate != 0)
            return D9D_FAIL(D9D_ENOTSUP, "%s: %s is %g, and the family is trained with 0",
                            c->family->name, k->name, rate);
    }
    return D9D_OK;
}

static int64_t vocab_size(const d9d_family_config *c)
{
    int64_t n = 0;

    for (size_t i = 0; i < c->n_splits; i++)
        n += c->splits[i].size;
    return n;
}

/* The row of padding, in families whose table has its key. */
static void padding_set(const d9d_family_config *c, d9d_decoder_shape *s)
{
    const size_t offset = offsetof(d9d_family_dims, pad_token_id);
    const int64_t id = ((const d9d_family_dims *)c->dims)->pad_token_id;

    s->padding = id < 0 && id >= -s->vocab ? id + s->vocab : id;
    s->has_padding =
        name_of(c->family, offset, NULL) != NULL && s->padding >= 0 && s->padding < s->vocab;
}

/* The usual decoder; the family then changes what differs. */
d9d_decoder_shape d9di_family_shape(const d9d_family_config *c)
{
    const d9d_family_dims *d = c->dims;
    d9d_decoder_shape s = {
        .layers = d->num_hidden_layers,
        .hidden = d->hidden_size,
        .vocab = vocab_size(c),
        .splits = c->splits,
        .n_splits = c->n_splits,
        .max_positions = d->max_position_embeddings,
        .init_std = d->initializer_range > 0 ? d->initializer_range : -1,
        .norm_eps = d->norm_eps,
        .rope = {.base = d->rope_theta,
                 .scaling = d->rope_scaling,
                 .features = d->rope_theta > 0 ? d->head_dim : 0},
        .no_head = !d9d_head_is_lm(c->head),
        .new_head = c->new_head,
        .tied = d->tie_word_embeddings,
        .virtual_pre = c->virtual_pre,
        .virtual_post = c->virtual_post,
    };

    padding_set(c, &s);
    if (c->family->shape != NULL)
        c->family->shape(c->dims, &s);
    if (c->head != D9D_HEAD_MASKED_LM)
        s.mlm_head.hidden = 0;
    if (c->max_positions > 0)
        s.max_positions = c->max_positions;
    s.rope.scaling.is_long = (double)s.max_positions > s.rope.scaling.original;
    s.local_rope.scaling.is_long = (double)s.max_positions > s.local_rope.scaling.original;
    return s;
}

/* Can it be a component of a tensor's name? */
static bool is_part_of_name(const char *s)
{
    if (s[0] == '\0')
        return false;
    while (*s != '\0' && !iscntrl((unsigned char)*s))
        s++;
    return *s == '\0';
}

static d9d_status vocabulary_check(const d9d_family_config *c)
{
    const char *name = c->family->name;
    int64_t total = 0;

    if (c->n_splits < 1 || c->n_splits > D9D_NODE_MAX)
        return D9D_FAIL(D9D_ECONFIG, "%s: split_vocab_size has %zu splits, 1 to %d are possible",
                        name, c->n_splits, D9D_NODE_MAX);
    for (size_t i = 0; i < c->n_splits; i++) {
        const d9d_block_vocab_split *s = &c->splits[i];

        if (!is_part_of_name(s->name))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: split_vocab_size: split %zu is called \"%s\": tensors are named "
                            "after it, by a text without control characters",
                            name, i, s->name);
        if (s->size <= 0 || s->size > INT32_MAX - total)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: split_vocab_size: split %s has %lld ids, which must be above 0 "
                            "and in all at most %d",
                            name, s->name, (long long)s->size, INT32_MAX);
        total += s->size;
    }
    return D9D_OK;
}

/* A kind of layers for each family: its functions, and the rest from blocks. */
static d9d_decoder_kind decoder_kind(const d9d_family *f)
{
    return (d9d_decoder_kind){
        .size = sizeof(d9d_decoder_kind),
        .name = f->name,
        .layer = f->layer,
        .init = f->init,
        .forward = f->forward,
        .ffn = f->ffn,
        .names = &d9d_hf_own_names,
        .of_blocks = true,
    };
}

d9d_status d9d_family_create(const void *config, d9d_stage stage, const d9d_model_opts *opts,
                             d9d_model **out)
{
    const d9d_family_config *c = config;
    const d9d_decoder_shape shape = d9di_family_shape(c);
    const d9d_decoder_kind kind = decoder_kind(c->family);

    D9D_TRY(vocabulary_check(c));
    return d9d_decoder_create(&kind, &shape, c->dims, stage, opts, out);
}
