/* qwen3_map.c - mappings between the layouts of Qwen3's weights.  See d9d/models/qwen3/qwen3_map.h.
 *
 * Every mapping goes through the suite's own layout: into it, out of it, or both.  Each half is two
 * composed mappers, because experts take two steps.
 */
#include "d9d/models/qwen3/qwen3_map.h"

#include <stdlib.h>
#include <string.h>

#include "models/qwen3/qwen3_names.h"

/* --- detection by names --------------------------------------------------------------- */

static const char hf_prefix[] = "model.";

static bool any_name(const d9d_tensor_source *src, bool (*is)(const char *name, const char *part),
                     const char *part)
{
    for (size_t i = 0; i < src->n; i++)
        if (is(src->at(src->self, i)->name, part))
            return true;
    return false;
}

static bool contains(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static bool has_prefix(const char *name, const char *part)
{
    return strncmp(name, part, strlen(part)) == 0;
}

d9d_weights_layout d9d_qwen3_layout(const d9d_tensor_source *src)
{
    static const char *const ours[] = {".token_embedding.", ".grouped_experts.", ".mlp.router.",
                                       "lm_head.lm_head.", "cls_head."};

    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        if (any_name(src, contains, ours[i]))
            return D9D_LAYOUT_D9D;
    return any_name(src, contains, ".mlp.experts.gate_up_proj") ? D9D_LAYOUT_HF_FUSED
                                                                : D9D_LAYOUT_HF;
}

/* Does the source have a base model's names: "layers.0.mlp..." for "model.layers.0.mlp..."? */
static bool is_bare(const d9d_tensor_source *src)
{
    return any_name(src, has_prefix, "layers.") || any_name(src, has_prefix, "embed_tokens.");
}

/* Names of heads. */
static const struct {
    const char *prefix;
    d9d_head_kind head;
} heads[] = {
    {"lm_head.", D9D_HEAD_CAUSAL_LM},
    {"score.", D9D_HEAD_CLASSIFICATION},
    {"cls_head.", D9D_HEAD_CLASSIFICATION},
    {"embedding_head.", D9D_HEAD_EMBEDDING},
};
enum { N_HEADS = sizeof(heads) / sizeof(heads[0]) };

void d9d_qwen3_infer_config(const d9d_tensor_source *src, d9d_qwen3_config *c)
{
    const bool bare = is_bare(src);

    for (size_t i = 0; i < N_HEADS && c->head_unknown; i++)
        if (any_name(src, has_prefix, heads[i].prefix)) {
            c->head = heads[i].head;
            c->head_unknown = false;
        }
    if (bare)
        c->head = D9D_HEAD_EMBEDDING;
    if (d9d_qwen3_layout(src) != D9D_LAYOUT_D9D)
        c->prefixed = c->head == D9D_HEAD_EMBEDDING && !bare;
    c->tied_copy =
        c->tied && c->head == D9D_HEAD_CAUSAL_LM && any_name(src, has_prefix, "lm_head.");
}

/* --- building ---------------------------------------------------------------------------- */

struct half_mapping {
    const d9d_qwen3_config *c;
    d9d_weights_layout layout;         /* the HuggingFace side */
    bool bare;                         /* its names are a base model's */
    d9d_mapper *first, *second;        /* composed, in this order */
    const char **names;                /* [experts]: scratch */
    char (*text)[D9DI_QWEN3_NAME_MAX]; /* storage of names */
};

/* The HuggingFace name of a tensor. */
static void hf_name(const struct half_mapping *h, const d9di_qwen3_tensor *t, const char *pattern,
                    int64_t expert, char out[D9DI_QWEN3_NAME_MAX])
{
    if (h->bare && has_prefix(pattern, hf_prefix))
        pattern += strlen(hf_prefix);
    d9di_qwen3_name(t, pattern, expert, out);
}

static d9d_status shape_expect(struct half_mapping *h, const d9di_qwen3_tensor *t, const char *name,
                               const char *letters)
{
    int64_t shape[D9D_MAX_DIMS];
    int n = d9di_qwen3_shape(h->c, t, letters, shape);

    return d9d_mapper_expect(h->first, name, n, shape);
}

/* Names of the E tensors in a file that form one grouped tensor. */
static void expert_names(struct half_mapping *h, const d9di_qwen3_tensor *t)
{
    for (int64_t e = 0; e < h->c->experts; e++) {
        hf_name(h, t, t->row->hf, e, h->text[e]);
        h->names[e] = h->text[e];
    }
}

static bool is_expert(const d9di_qwen3_tensor *t)
{
    return t->row->fused != NULL;
}

/* gate and up are one fused tensor, which the row of gate represents. */
static bool is_up(const d9di_qwen3_tensor *t)
{
    return is_expert(t) && strstr(t->row->d9d, ".up_proj.") != NULL;
}

static bool is_gate(const d9di_qwen3_tensor *t)
{
    return is_expert(t) && strstr(t->row->d9d, ".gate_proj.") != NULL;
}

/* Name of the grouped tensor `up` that is fused with gate. */
static void up_name(const d9di_qwen3_tensor *gate, char out[D9DI_QWEN3_NAME_MAX])
{
    d9di_qwen3_tensor up = *gate;

    up.row = gate->row + 1;
    d9di_qwen3_name(&up, up.row->d9d, 0, out);
}

static d9d_status own_map(void *arg, const d9di_qwen3_tensor *t)
{
    struct half_mapping *h = arg;
    char name[D9DI_QWEN3_NAME_MAX];

    d9di_qwen3_name(t, t->row->d9d, 0, name);
    D9D_TRY(d9d_mapper_rename(h->first, name, name));
    return shape_expect(h, t, name, t->row->d9d_shape);
}

/* --- from HuggingFace ----------------------------------------------------------------------- */

static d9d_status fused_to_own(struct half_mapping *h, const d9di_qwen3_tensor *t, const char *name)
{
    const int64_t E = h->c->experts, H = h->c->hidden, N = h->c->expert_intermediate;
    char fused[D9DI_QWEN3_NAME_MAX], up[D9DI_QWEN3_NAME_MAX];
    const char *parts[2] = {name, up};

    hf_name(h, t, t->row->fused, 0, fused);
    if (is_up(t))
        return D9D_OK;
    if (!is_gate(t)) {
        D9D_TRY(d9d_mapper_rename(h->first, fused, name));
        D9D_TRY(d9d_mapper_expect(h->first, fused, 3, (const int64_t[]){E, H, N}));
        return d9d_mapper_transpose(h->second, name, 1, 2);
    }
    up_name(t, up);
    D9D_TRY(d9d_mapper_transpose(h->first, fused, 1, 2));
    D9D_TRY(d9d_mapper_expect(h->first, fused, 3, (const int64_t[]){E, 2 * N, H}));
    return d9d_mapper_chunk(h->second, fused, parts, 2, 2);
}

static d9d_status hf_to_own(void *arg, const d9di_qwen3_tensor *t)
{
    struct half_mapping *h = arg;
    char name[D9DI_QWEN3_NAME_MAX], hf[D9DI_QWEN3_NAME_MAX];

    d9di_qwen3_name(t, t->row->d9d, 0, name);
    if (is_expert(t) && h->layout == D9D_LAYOUT_HF_FUSED)
        return fused_to_own(h, t, name);
    if (is_expert(t)) {
        expert_names(h, t);
        D9D_TRY(d9d_mapper_stack(h->first, h->names, (size_t)h->c->experts, name, 0));
        for (int64_t e = 0; e < h->c->experts; e++)
            D9D_TRY(shape_expect(h, t, h->names[e], t->row->hf_shape));
        return d9d_mapper_transpose(h->second, name, 1, 2);
    }
    hf_name(h, t, t->row->hf, 0, hf);
    D9D_TRY(d9d_mapper_rename(h->first, hf, name));
    return shape_expect(h, t, hf, t->row->hf_shape);
}

/* --- to HuggingFace --------------------------------------------------------------------------- */

static d9d_status own_to_fused(struct half_mapping *h, const d9di_qwen3_tensor *t, const char *name)
{
    char fused[D9DI_QWEN3_NAME_MAX], up[D9DI_QWEN3_NAME_MAX];
    const char *parts[2] = {name, up};

    hf_name(h, t, t->row->fused, 0, fused);
    if (is_gate(t)) {
        up_name(t, up);
        D9D_TRY(d9d_mapper_concat(h->first, parts, 2, fused, 2));
        D9D_TRY(d9d_mapper_transpose(h->second, fused, 1, 2));
    } else if (!is_up(t)) {
        D9D_TRY(d9d_mapper_rename(h->first, name, fused));
        D9D_TRY(d9d_mapper_transpose(h->second, fused, 1, 2));
    }
    return shape_expect(h, t, name, t->row->d9d_shape);
}

static d9d_status own_to_hf(void *arg, const d9di_qwen3_tensor *t)
{
    struct half_mapping *h = arg;
    char name[D9DI_QWEN3_NAME_MAX], hf[D9DI_QWEN3_NAME_MAX];

    if (t->again)
        return D9D_OK; /* the stage with the embedding exports it */
    d9di_qwen3_name(t, t->row->d9d, 0, name);
    if (is_expert(t) && h->layout == D9D_LAYOUT_HF_FUSED)
        return own_to_fused(h, t, name);
    if (is_expert(t)) {
        expert_names(h, t);
        D9D_TRY(d9d_mapper_transpose(h->first, name, 1, 2));
        D9D_TRY(d9d_mapper_unstack(h->second, name, h->names, (size_t)h->c->experts, 0));
    } else {
        hf_name(h, t, t->row->hf, 0, hf);
        D9D_TRY(d9d_mapper_rename(h->first, name, hf));
    }
    return shape_expect(h, t, name, t->row->d9d_shape);
}

/* --- whole mappings ------------------------------------------------------------------------- */

static d9d_status build_half(const d9d_qwen3_config *c, d9d_stage stage, d9d_weights_layout layout,
                             bool bare, d9di_qwen3_fn fn, d9d_mapper **out)
{
    struct half_mapping h = {.c = c, .layout = layout, .bare = bare};
    size_t n = (size_t)c->experts + 1;
    d9d_mapper *second;
    d9d_status st;

    h.names = calloc(n, sizeof(*h.names));
    h.text = calloc(n, sizeof(*h.text));
    if (h.names == NULL || h.text == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "qwen3: out of memory");
        goto out;
    }
    D9D_TRY_OR(st, d9d_mapper_create(&h.first), out);
    D9D_TRY_OR(st, d9d_mapper_create(&h.second), out);
    D9D_TRY_OR(st, d9di_qwen3_each(c, stage, fn, &h), out);
    second = h.second;
    h.second = NULL; /* now owned by the mapper */
    D9D_TRY_OR(st, d9d_mapper_compose(h.first, second), out);
    *out = h.first;
    h.first = NULL;
out:
    d9d_mapper_free(h.first);
    d9d_mapper_free(h.second);
    free(h.names);
    free(h.text);
    return st;
}

static d9d_status check_hf(const d9d_qwen3_config *c)
{
    if (c->n_splits != 1)
        return D9D_FAIL(D9D_ENOTSUP,
                        "qwen3: a HuggingFace checkpoint has one vocabulary, this model %zu splits",
                        c->n_splits);
    if (c->shared_intermediate > 0)
        return D9D_FAIL(D9D_ENOTSUP, "qwen3: a HuggingFace checkpoint has no shared expert");
    if (c->rope_interleaved)
        return D9D_FAIL(D9D_ENOTSUP, "qwen3: a HuggingFace checkpoint has no interleaved RoPE");
    if (c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "qwen3: a HuggingFace checkpoint has no projection of embeddings, this "
                        "model one to %lld features",
                        (long long)c->embedding_dim);
    return D9D_OK;
}

/* Keep router biases of a source that has them; on a stage those of its parameters. */
static d9d_status biases_keep(const d9d_qwen3_config *c, d9d_stage stage,
                              const d9d_tensor_source *src, d9d_mapper *m)
{
    static const char end[] = ".mlp.router." D9D_ROUTER_BIAS;

    for (size_t i = 0; c->router.expert_bias && stage.count == 1 && i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;
        const size_t n = strlen(name);

        if (n > sizeof(end) && strcmp(name + n - (sizeof(end) - 1), end) == 0)
            D9D_TRY(d9d_mapper_identity(m, name));
    }
    return D9D_OK;
}

/* Drop the head of a tied model: transformers ignores it implicitly, we do so explicitly. */
static d9d_status drop_tied_head(const d9d_qwen3_config *c, const d9d_tensor_source *src,
                                 d9d_mapper *m)
{
    for (size_t i = 0; c->tied && c->head == D9D_HEAD_CAUSAL_LM && !c->tied_copy && i < src->n;
         i++) {
        const char *name = src->at(src->self, i)->name;

        if (has_prefix(name, "lm_head."))
            D9D_TRY(d9d_mapper_drop(m, name));
    }
    return D9D_OK;
}

/* Drop the source's head, which a task's head replaces. */
static d9d_status drop_other_heads(const d9d_qwen3_config *c, const d9d_tensor_source *src,
                                   d9d_mapper *m)
{
    for (size_t i = 0; c->new_head && i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;

        for (size_t k = 0; k < N_HEADS; k++)
            if (heads[k].head != c->head && has_prefix(name, heads[k].prefix))
                D9D_TRY(d9d_mapper_drop(m, name));
    }
    return D9D_OK;
}

/* The configuration without a head that the source does not have. */
static d9d_qwen3_config without_head(const d9d_qwen3_config *c, const d9d_tensor_source *src)
{
    d9d_qwen3_config h = *c;
    bool has_it = !c->new_head || c->head == D9D_HEAD_CAUSAL_LM;

    for (size_t k = 0; k < N_HEADS && !has_it; k++)
        has_it = heads[k].head == c->head && any_name(src, has_prefix, heads[k].prefix);
    if (!has_it) {
        h.head = D9D_HEAD_EMBEDDING;
        h.embedding_dim = 0;
    }
    return h;
}

d9d_status d9d_qwen3_mapper(const d9d_qwen3_config *model, d9d_stage stage,
                            const d9d_tensor_source *src, d9d_weights_layout to, d9d_mapper **out)
{
    const d9d_qwen3_config there = without_head(model, src), *c = &there;
    const d9d_weights_layout from = d9d_qwen3_layout(src);
    const bool bare =
        c->head == D9D_HEAD_EMBEDDING && !c->prefixed; /* the written names are bare */
    const bool in = from != D9D_LAYOUT_D9D, on = to != D9D_LAYOUT_D9D;
    d9d_mapper *m = NULL, *rest;
    d9d_status st;

    D9D_TRY(d9d_qwen3_check(model));
    if (in || on)
        D9D_TRY(check_hf(c));
    if (on && d9d_block_router_is_custom(&c->router))
        return D9D_FAIL(D9D_ENOTSUP,
                        "qwen3: a HuggingFace checkpoint has no routers other than softmax top-k");
    D9D_TRY(in   ? build_half(c, stage, from, is_bare(src), hf_to_own, &m)
            : on ? build_half(c, stage, to, bare, own_to_hf, &m)
                 : build_half(c, stage, to, bare, own_map, &m));
    D9D_TRY_OR(st, biases_keep(c, stage, src, m), out);
    D9D_TRY_OR(st, drop_tied_head(c, src, m), out);
    D9D_TRY_OR(st, drop_other_heads(model, src, m), out);
    if (in && on) {
        D9D_TRY_OR(st, build_half(c, stage, to, bare, own_to_hf, &rest), out);
        D9D_TRY_OR(st, d9d_mapper_compose(m, rest), out);
    }
    *out = m;
    m = NULL;
out:
    d9d_mapper_free(m);
    return st;
}
