/* family_map.c - mappings of a family's weights.  See d9d/model/family/family.h.
 *
 * Every mapping goes through the suite's own layout: into it, out of it, or both.
 */
#include <stdlib.h>
#include <string.h>

#include "model/family/family_parts.h"

static bool contains(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static bool has_prefix(const char *name, const char *part)
{
    return strncmp(name, part, strlen(part)) == 0;
}

static bool is_equal(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}

static bool any_name(const d9d_tensor_source *src, bool (*is)(const char *name, const char *part),
                     const char *part)
{
    for (size_t i = 0; i < src->n; i++)
        if (is(src->at(src->self, i)->name, part))
            return true;
    return false;
}

/* --- what a source is ------------------------------------------------------------------------- */

d9d_weights_layout d9d_family_layout(const d9d_tensor_source *src)
{
    static const char *const own[] = {".token_embedding.", ".grouped_experts.", ".mlp.router.gate.",
                                      "lm_head.lm_head.", "cls_head."};

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (any_name(src, contains, own[i]))
            return D9D_LAYOUT_D9D;
    return any_name(src, contains, ".experts.gate_up_proj") ? D9D_LAYOUT_HF_FUSED : D9D_LAYOUT_HF;
}

static const d9d_hf_parts *parts_of(const d9d_family *f)
{
    return f->parts != NULL ? f->parts : &d9d_hf_parts_default;
}

bool d9di_family_is_lm_head(const d9d_family_config *c, const char *name)
{
    const char *beginnings[] = {parts_of(c->family)->hf.head, d9d_hf_own_names.head,
                                "language_model.lm_head"};

    for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++)
        if (has_prefix(name, beginnings[i]) && name[strlen(beginnings[i])] == '.')
            return strcmp(strrchr(name, '.'), ".bias") != 0; /* which no tied head lacks */
    return false;
}

static bool any_lm_head(const d9d_family_config *c, const d9d_tensor_source *src)
{
    for (size_t i = 0; i < src->n; i++)
        if (d9di_family_is_lm_head(c, src->at(src->self, i)->name))
            return true;
    return false;
}

void d9d_family_infer(void *config, const d9d_tensor_source *src)
{
    d9d_family_config *c = config;
    const d9d_family_dims *dims = c->dims;
    const d9d_hf_prefixes *as = d9d_hf_prefixes_of(parts_of(c->family), src);
    const bool bare = as->model != NULL && as->model[0] == '\0';

    for (const d9di_head_name *h = d9di_head_names; h->prefix != NULL && c->head_unknown; h++)
        if (d9di_family_has_head(c, h->head) && any_name(src, has_prefix, h->prefix)) {
            c->head = h->head;
            c->head_unknown = false;
        }
    if (bare && !(parts_of(c->family)->bare_lm && dims->tie_word_embeddings))
        c->head = D9D_HEAD_EMBEDDING;
    if (d9d_family_layout(src) != D9D_LAYOUT_D9D)
        c->prefixed = c->head == D9D_HEAD_EMBEDDING && !bare;
    c->tied_copy = dims->tie_word_embeddings && d9d_head_is_lm(c->head) && any_lm_head(c, src);
}

/* --- parameters ---------------------------------------------------------------------------- */

d9d_hf_naming d9di_family_naming(const d9d_family_config *c)
{
    return (d9d_hf_naming){c->family->name, c->family->tensors, parts_of(c->family), c->dims};
}

/* The parameters of a stage, and of a head that is not the model's own. */
typedef struct param_list {
    const d9d_family_config *c;
    d9d_arena arena;
    D9D_VEC(d9d_hf_param) list;
    bool skip_embed;              /* of a tied model's last stage: the first stage exports it */
    bool add_embed;               /* of such a stage, whose head the source lacks */
    const d9d_tensor_source *own; /* in the suite's layout, without buffers if it has gradients */
} param_list;

static d9d_status param_push(param_list *l, const char *name, d9d_shape shape, bool adaptable)
{
    const char *copy = d9d_arena_strdup(&l->arena, name);

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the names of its parameters", l->c->family->name);
    return D9D_VEC_PUSH(&l->list, ((d9d_hf_param){copy, shape, adaptable}));
}

/* Parameters that a task adds have one name in all layouts, unless a row of the family has them. */
static bool is_left_out(const d9d_family_config *c, const d9d_param *p)
{
    const d9d_hf_naming naming = d9di_family_naming(c);

    return p->spec.from_task && !d9d_hf_has_row(&naming, p->name);
}

static d9d_status param_add(void *arg, d9d_param *p)
{
    param_list *l = arg;

    if (p->spec.is_buffer && l->own != NULL && !any_name(l->own, is_equal, p->name))
        return D9D_OK;
    if (is_left_out(l->c, p) || (l->skip_embed && has_prefix(p->name, d9d_hf_own_names.embed)))
        return D9D_OK;
    return param_push(l, p->name, p->spec.shape, p->spec.adaptable);
}

/* Tables of the vocabulary.  A tied model's file may have a head too, a copy of the embedding. */
static d9d_status tables_add(param_list *l, const char *prefix)
{
    const d9d_family_config *c = l->c;
    const d9d_family_dims *dims = c->dims;
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < c->n_splits && st == D9D_OK; i++) {
        char name[160];

        (void)snprintf(name, sizeof(name), "%s.%s.weight", prefix, c->splits[i].name);
        st = param_push(l, name, D9D_SHAPE(c->splits[i].size, dims->hidden_size), false);
    }
    return st;
}

static d9d_status heads_add(param_list *l)
{
    const d9d_family_config *c = l->c;
    const int64_t hidden = ((const d9d_family_dims *)c->dims)->hidden_size;

    if (l->add_embed)
        D9D_TRY(tables_add(l, "model.embed_tokens.token_embedding"));
    if (c->tied_copy && d9d_head_is_lm(c->head))
        return tables_add(l, "lm_head.lm_head");
    if (c->head == D9D_HEAD_CLASSIFICATION)
        return param_push(l, D9D_HEAD_SCORE ".weight", D9D_SHAPE(c->labels, hidden), true);
    if (c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0)
        return param_push(l, D9D_HEAD_PROJECTION ".weight", D9D_SHAPE(c->embedding_dim, hidden),
                          true);
    return D9D_OK;
}

/* List the parameters by building the stage, which takes no memory for them. */
static d9d_status params_list(param_list *l, d9d_stage stage)
{
    const d9d_model_opts opts = {.dtype = D9D_F32};
    d9d_model *m;
    d9d_status st;

    D9D_TRY(d9d_family_create(l->c, stage, &opts, &m));
    st = d9d_module_bind(m->module);
    if (st == D9D_OK)
        st = d9d_module_each(m->module, param_add, l);
    d9d_model_free(m);
    return st == D9D_OK && d9d_stage_is_last(stage) ? heads_add(l) : st;
}

static void params_release(param_list *l)
{
    D9D_VEC_RELEASE(&l->list);
    d9d_arena_release(&l->arena);
}

static d9d_hf_params params_of(const param_list *l)
{
    return (d9d_hf_params){l->list.data, l->list.len};
}

/* Are the files those of a base model, whose names have no prefix? */
static bool is_base(const d9d_family_config *c)
{
    return c->head == D9D_HEAD_EMBEDDING && !c->prefixed;
}

/* --- one direction ------------------------------------------------------------------------- */

/* Is this the last of several stages of a tied `model`, whose head a source as `c` has not? */
static bool lacks_tied_embed(const d9d_family_config *model, const d9d_family_config *c,
                             d9d_stage stage)
{
    return stage.count > 1 && d9d_stage_is_last(stage) && d9d_head_is_lm(model->head) &&
           !d9d_head_is_lm(c->head) && ((const d9d_family_dims *)c->dims)->tie_word_embeddings;
}

static d9d_status map_files(const d9d_family_config *model, const d9d_family_config *c,
                            d9d_stage stage, const d9d_hf_mapping *mapping,
                            const d9d_tensor_source *own, d9d_mapper **out)
{
    const d9d_hf_naming naming = d9di_family_naming(c);
    param_list l = {.c = c,
                    .own = own,
                    .add_embed = mapping->to_own && lacks_tied_embed(model, c, stage),
                    .skip_embed = !mapping->to_own && stage.count > 1 && d9d_stage_is_last(stage)};
    d9d_status st = params_list(&l, stage);
    const d9d_hf_params params = params_of(&l);

    if (st == D9D_OK)
        st = d9d_hf_mapper(&naming, &params, mapping, out);
    params_release(&l);
    return st;
}

static d9d_status map_own(const d9d_family_config *model, const d9d_family_config *c,
                          d9d_stage stage, d9d_mapper **out)
{
    param_list l = {.c = c, .add_embed = lacks_tied_embed(model, c, stage)};
    d9d_mapper *m = NULL;
    d9d_status st;

    D9D_TRY_OR(st, params_list(&l, stage), out);
    D9D_TRY_OR(st, d9d_mapper_create(&m), out);
    for (size_t i = 0; i < l.list.len; i++) {
        const d9d_hf_param *p = &l.list.data[i];

        D9D_TRY_OR(st, d9d_mapper_identity(m, p->name), out);
        D9D_TRY_OR(st, d9d_mapper_expect(m, p->name, p->shape.ndim, p->shape.dim), out);
    }
    *out = m;
    m = NULL;
out:
    d9d_mapper_free(m);
    params_release(&l);
    return st;
}

/* --- tensors that are left out or kept ------------------------------------------------------- */

static bool is_other_head(const d9d_family_config *c, const char *name)
{
    for (const d9di_head_name *h = d9di_head_names; h->prefix != NULL; h++)
        if (c->new_head && h->head != c->head && has_prefix(name, h->prefix))
            return true;
    return false;
}

/* Is it of a layer behind the last? */
static bool is_mtp_layer(const d9d_family_config *c, const char *name)
{
    const d9d_hf_naming naming = d9di_family_naming(c);
    const int64_t layer = d9d_hf_layer_of(&naming, name);

    return c->family->mtp_layers && layer >= ((const d9d_family_dims *)c->dims)->num_hidden_layers;
}

/* Parts of a model that the family does not compute, by the beginning of their tensors' names. */
static const struct {
    const char *part;
    bool of_encoder; /* of encoders alone */
    const char *beginnings[8];
} left_out[D9D_FAMILY_LEFT_OUT] = {
    {"layers for multi-token prediction", false, {"mtp."}},
    {"the prediction head", true, {"head.", "decoder.", "classifier."}},
    {"the vision model",
     false,
     {"model.visual.", "visual.", "model.vision_tower.", "vision_tower.", "mm_projector.",
      "model.multi_modal_projector.", "multi_modal_projector."}},
};

static bool is_left_out_as(const d9d_family_config *c, size_t part, const char *name)
{
    if (left_out[part].of_encoder && (!c->family->encoder || c->head == D9D_HEAD_MASKED_LM))
        return false;
    for (const char *const *b = left_out[part].beginnings; *b != NULL; b++)
        if (has_prefix(name, *b))
            return true;
    return part == 0 && is_mtp_layer(c, name);
}

bool d9d_family_is_left_out(const void *config, const char *name)
{
    size_t part = 0;

    while (part < D9D_FAMILY_LEFT_OUT && !is_left_out_as(config, part, name))
        part++;
    return part < D9D_FAMILY_LEFT_OUT;
}

size_t d9d_family_left_out(const void *config, const d9d_tensor_source *src, size_t part,
                           const char **what)
{
    size_t n = 0;

    for (size_t i = 0; i < src->n; i++)
        n += is_left_out_as(config, part, src->at(src->self, i)->name);
    *what = left_out[part].part;
    return n;
}

/* The head of a tied model's files is a copy (family_tied.c), a task's head replaces another, and
 * some files have tensors that no model uses; each is dropped by name.  `c` is the model as the
 * source has it.
 */
static d9d_status drops_add(const d9d_family_config *model, const d9d_family_config *c,
                            const d9d_tensor_source *src, d9d_mapper *m)
{
    const d9d_hf_naming naming = d9di_family_naming(c);
    const bool tied = ((const d9d_family_dims *)c->dims)->tie_word_embeddings &&
                      d9d_head_is_lm(c->head) && !c->tied_copy;

    for (size_t i = 0; i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;

        if ((tied && d9di_family_is_lm_head(c, name)) || is_other_head(model, name) ||
            d9d_family_is_left_out(c, name) || d9d_hf_is_unused(&naming, name))
            D9D_TRY(d9d_mapper_drop(m, name));
    }
    return D9D_OK;
}

/* Keep router biases of a source that has them; on a stage those of its parameters. */
static d9d_status biases_keep(const d9d_family_config *c, d9d_stage stage,
                              const d9d_tensor_source *src, d9d_mapper *m)
{
    static const char end[] = ".mlp.router." D9D_ROUTER_BIAS;
    const bool has = c->custom_router && ((const d9d_family_dims *)c->dims)->router.expert_bias;

    for (size_t i = 0; has && stage.count == 1 && i < src->n; i++) {
        const char *name = src->at(src->self, i)->name;
        const size_t n = strlen(name);

        if (n > sizeof(end) && strcmp(name + n - (sizeof(end) - 1), end) == 0)
            D9D_TRY(d9d_mapper_identity(m, name));
    }
    return D9D_OK;
}

/* Has the source tensors of the task's head?  Another class of an encoder may have a part of that
 * of a masked language model. */
static bool has_new_head(const d9d_family_config *c, const d9d_tensor_source *src)
{
    bool has_it = false;

    for (const d9di_head_name *n = d9di_head_names; n->prefix != NULL && !has_it; n++)
        has_it = n->head == c->head && any_name(src, has_prefix, n->prefix);
    return has_it && !(c->head == D9D_HEAD_MASKED_LM && any_name(src, has_prefix, "classifier."));
}

/* The configuration without a head that the source does not have. */
static d9d_family_config without_head(const d9d_family_config *c, const d9d_tensor_source *src)
{
    d9d_family_config h = *c;
    const bool has_it = !c->new_head || c->head == D9D_HEAD_CAUSAL_LM || has_new_head(c, src);

    if (!has_it) {
        h.head = D9D_HEAD_EMBEDDING;
        h.embedding_dim = 0;
    }
    return h;
}

/* Files of some families have a tensor for each expert and no other layout. */
bool d9d_family_has_fused_layout(const d9d_family *f)
{
    bool separate = false, fused = false;

    for (const d9d_hf_tensor *r = f->tensors; r != NULL && r->hf != NULL; r++) {
        separate |= r->rows == D9D_HF_ROWS_SEPARATE;
        fused |= r->rows == D9D_HF_ROWS_FUSED;
    }
    return fused || !separate;
}

/* --- the whole ----------------------------------------------------------------------------- */

d9d_status d9d_family_mapper(const void *config, d9d_stage stage, const d9d_tensor_source *src,
                             d9d_weights_layout to, d9d_mapper **out)
{
    const d9d_family_config *model = config, c = without_head(model, src);
    const d9d_weights_layout from = d9d_family_layout(src);
    const bool in = from != D9D_LAYOUT_D9D, on = to != D9D_LAYOUT_D9D;
    const d9d_hf_mapping read = {true, from, d9d_hf_prefixes_of(parts_of(c.family), src)};
    const d9d_hf_mapping write = {false, to, is_base(&c) ? &d9d_hf_prefixes_bare : NULL};
    d9d_mapper *m = NULL, *rest;
    d9d_status st;

    if (in || on)
        D9D_TRY(d9di_family_check_hf(&c));
    if (on)
        D9D_TRY(d9di_family_check_router(&c));
    if (to == D9D_LAYOUT_HF_FUSED && !d9d_family_has_fused_layout(c.family))
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: its HuggingFace files have a tensor for each expert, and no fused "
                        "layout",
                        c.family->name);
    D9D_TRY(in   ? map_files(model, &c, stage, &read, NULL, &m)
            : on ? map_files(model, &c, stage, &write, src, &m)
                 : map_own(model, &c, stage, &m));
    st = biases_keep(&c, stage, src, m);
    if (st == D9D_OK)
        st = drops_add(model, &c, src, m);
    if (st == D9D_OK && in && on) {
        D9D_TRY_OR(st, map_files(model, &c, stage, &write, NULL, &rest), out);
        D9D_TRY_OR(st, d9d_mapper_compose(m, rest), out);
    }
    if (st == D9D_OK) {
        *out = m;
        m = NULL;
    }
out:
    d9d_mapper_free(m);
    return st;
}

d9d_status d9d_family_matrices(const void *config, d9d_arena *a, d9d_model_matrices *out)
{
    const d9d_family_config *c = config;
    const d9d_hf_naming naming = d9di_family_naming(c);
    param_list l = {.c = c};
    d9d_status st = params_list(&l, D9D_WHOLE_MODEL);
    const d9d_hf_params params = params_of(&l);

    if (st == D9D_OK)
        st = d9d_hf_matrices(&naming, &params, a, out);
    if (st == D9D_OK) {
        out->base = is_base(c);
        out->tied =
            ((const d9d_family_dims *)c->dims)->tie_word_embeddings && d9d_head_is_lm(c->head);
        out->rows = c->family->tensors;
    }
    params_release(&l);
    return st;
}

/* --- random weights ------------------------------------------------------------------------ */

/* A list of the whole model's parameters with their initialisation. */
typedef struct tensor_list {
    const d9d_family_config *c;
    d9d_arena *arena; /* of the names */
    D9D_VEC(d9d_model_tensor) list;
} tensor_list;

static d9d_status tensor_add(void *arg, d9d_param *p)
{
    tensor_list *l = arg;
    const d9d_model_tensor t = {d9d_arena_strdup(l->arena, p->name), p->spec.shape, p->spec.init,
                                p->spec.init_scale};

    if (is_left_out(l->c, p))
        return D9D_OK;
    return t.name != NULL ? D9D_VEC_PUSH(&l->list, t)
                          : D9D_FAIL(D9D_ENOMEM, "%s: out of memory", p->name);
}

/* A head that is not the model's own has the deviation of the other matrices. */
static d9d_status head_tensor_add(const d9d_family_config *c, tensor_list *l)
{
    const d9d_family_dims *dims = c->dims;
    const float std = dims->initializer_range > 0 ? (float)dims->initializer_range : 0.02f;

    if (c->head == D9D_HEAD_CLASSIFICATION)
        return D9D_VEC_PUSH(&l->list, ((d9d_model_tensor){D9D_HEAD_SCORE ".weight",
                                                          D9D_SHAPE(c->labels, dims->hidden_size),
                                                          D9D_INIT_NORMAL, std}));
    if (c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0)
        return D9D_VEC_PUSH(&l->list,
                            ((d9d_model_tensor){D9D_HEAD_PROJECTION ".weight",
                                                D9D_SHAPE(c->embedding_dim, dims->hidden_size),
                                                D9D_INIT_NORMAL, std}));
    return D9D_OK;
}

d9d_status d9d_family_tensors(const void *config, d9d_arena *a, d9d_model_tensors *out)
{
    const d9d_family_config *c = config;
    const d9d_model_opts opts = {.dtype = D9D_F32};
    tensor_list l = {.c = c, .arena = a};
    d9d_model *m;
    d9d_status st;

    D9D_TRY(d9d_family_create(c, D9D_WHOLE_MODEL, &opts, &m));
    st = d9d_module_bind(m->module);
    if (st == D9D_OK)
        st = d9d_module_each(m->module, tensor_add, &l);
    d9d_model_free(m);
    if (st == D9D_OK)
        st = head_tensor_add(c, &l);
    if (st == D9D_OK) {
        out->n = l.list.len;
        out->items = d9d_arena_alloc(a, (l.list.len + 1) * sizeof(*out->items));
        if (out->items == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "%s: a list of %zu tensors", c->family->name, l.list.len);
        else if (l.list.len > 0)
            memcpy(out->items, l.list.data, l.list.len * sizeof(*out->items));
    }
    D9D_VEC_RELEASE(&l.list);
    return st;
}
