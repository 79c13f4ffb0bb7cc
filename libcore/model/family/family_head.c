/* family_head.c - a family's head in config.json: read, changed, and written.  See
 * d9d/model/family/family.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/model/hf/hf_config.h"
#include "model/family/family_parts.h"
#include "model/hf/hf_config_fields.h"

const d9di_head_name d9di_head_names[] = {
    {"lm_head.", D9D_HEAD_CAUSAL_LM},        {"embed_out.", D9D_HEAD_CAUSAL_LM},
    {"score.", D9D_HEAD_CLASSIFICATION},     {"cls_head.", D9D_HEAD_CLASSIFICATION},
    {"embedding_head.", D9D_HEAD_EMBEDDING}, {"mlm_head.", D9D_HEAD_MASKED_LM},
    {"head.dense.", D9D_HEAD_MASKED_LM},     {NULL, D9D_HEAD_COUNT},
};

/* Classes of transformers by suffix, the longest first: trainers prepend words. */
typedef struct head_class {
    const char *end; /* NULL ends the table */
    d9d_head_kind head;
    bool left_out; /* the class has another head, which the model does not compute */
} head_class;
static const head_class decoder_classes[] = {
    {"ForSequenceClassification", D9D_HEAD_CLASSIFICATION, false},
    {"ForCausalLM", D9D_HEAD_CAUSAL_LM, false},
    {"LMHeadModel", D9D_HEAD_CAUSAL_LM, false},
    {"Model", D9D_HEAD_EMBEDDING, false},
    {NULL, D9D_HEAD_COUNT, false},
};
static const head_class encoder_classes[] = {
    {"ForSequenceClassification", D9D_HEAD_EMBEDDING, true},
    {"ForMaskedLM", D9D_HEAD_MASKED_LM, false},
    {"Model", D9D_HEAD_EMBEDDING, false},
    {NULL, D9D_HEAD_COUNT, false},
};

static bool is_encoder(const d9d_family_config *c)
{
    return c->family != NULL && c->family->encoder;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);

    return n >= k && strcmp(name + n - k, end) == 0;
}

bool d9di_family_has_head(const d9d_family_config *c, d9d_head_kind head)
{
    d9d_family_config masked = *c;

    masked.head = D9D_HEAD_MASKED_LM;
    if (head == D9D_HEAD_MASKED_LM)
        return d9di_family_shape(&masked).mlm_head.hidden > 0;
    return head != D9D_HEAD_CAUSAL_LM || !is_encoder(c);
}

/* --- reading -------------------------------------------------------------------------------- */

static d9d_status head_of_class(const d9di_hf_reader *r, d9d_family_config *c)
{
    const json_t *list = d9di_hf_member(r->doc, "architectures"), *first = json_array_get(list, 0);
    const char *name = json_string_value(first);
    const head_class *k = is_encoder(c) ? encoder_classes : decoder_classes;

    if (list == NULL || (json_is_array(list) && first == NULL)) {
        c->head_unknown = !is_encoder(c);
        c->head = is_encoder(c) ? D9D_HEAD_EMBEDDING : c->head;
        return D9D_OK;
    }
    while (k->end != NULL && (name == NULL || !ends_with(name, k->end)))
        k++;
    if (k->end == NULL)
        return d9di_hf_refuse(r, "architectures", list);
    c->head = k->head;
    c->new_head = k->left_out;
    return D9D_OK;
}

/* What transformers makes of a classifier's logits: null is as ONE_CLASS, a softmax. */
#define PROBLEM   "problem_type"
#define ONE_CLASS "single_label_classification"

/* Upper bounds keep products of dimensions far from overflow. */
enum { MOST_LABELS = 1 << 16, MOST_FEATURES = 1 << 20 };

static d9d_status range_check(const d9di_hf_reader *r, const char *field, int64_t v, int64_t min,
                              int64_t max)
{
    return v >= min && v <= max
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG, "%s: %s is %" PRId64 ", outside %" PRId64 "..%" PRId64,
                          r->where, field, v, min, max);
}

/* Read the head from the member "d9d", which overrides the class. */
static d9d_status head_of_mark(const d9di_hf_reader *r, d9d_family_config *c)
{
    const d9di_hf_reader mark = {json_object_get(r->doc, "d9d"), r->where, false};
    const json_t *head = d9di_hf_member(mark.doc, "head");
    const char *word = json_string_value(head);

    D9D_TRY(d9di_hf_i64(&mark, "embedding_dim", 0, &c->embedding_dim));
    D9D_TRY(range_check(r, "embedding_dim", c->embedding_dim, 0, MOST_FEATURES));
    D9D_TRY(d9di_hf_bool(&mark, "prefixed", &c->prefixed));
    for (int h = 0; word != NULL && h < D9D_HEAD_COUNT; h++)
        if (strcmp(word, d9d_head_name((d9d_head_kind)h)) == 0 &&
            d9di_family_has_head(c, (d9d_head_kind)h)) {
            c->head = (d9d_head_kind)h;
            c->head_unknown = false;
            return D9D_OK;
        }
    return head == NULL ? D9D_OK : d9di_hf_refuse(&mark, "d9d.head", head);
}

/* Two labels by default, as in transformers. */
static d9d_status labels_read(const d9di_hf_reader *r, d9d_family_config *c)
{
    const json_t *names = d9di_hf_member(r->doc, "id2label");
    int64_t n;

    if (names != NULL && !json_is_object(names))
        return D9D_FAIL(D9D_ECONFIG, "%s: id2label must be an object", r->where);
    n = names != NULL ? (int64_t)json_object_size(names) : 2;
    D9D_TRY(d9di_hf_i64(r, "num_labels", n, &c->labels));
    if (names != NULL && c->labels != n)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: num_labels is %" PRId64 " and id2label has %" PRId64 " label%s",
                        r->where, c->labels, n, D9D_PLURAL(n));
    return range_check(r, "num_labels", c->labels, c->head == D9D_HEAD_CLASSIFICATION, MOST_LABELS);
}

d9d_status d9d_family_check_problem(const d9d_family_config *c, const char *where)
{
    const char *word;
    json_t *doc;
    d9d_status st = D9D_OK;

    if (c->head != D9D_HEAD_CLASSIFICATION || c->labels < 2)
        return D9D_OK;
    D9D_TRY(d9d_json_parse(D9D_HF_CONFIG_NAME, c->document, strlen(c->document), &doc));
    word = json_string_value(d9di_hf_member(doc, PROBLEM));
    if (word != NULL && strcmp(word, ONE_CLASS) != 0)
        st = D9D_FAIL(D9D_ENOTSUP,
                      "%s: problem_type is \"%s\", and task classification has probabilities of "
                      "classes of which a text has one, \"" ONE_CLASS "\"",
                      where, word);
    json_decref(doc);
    return st;
}

d9d_status d9di_family_head_read(const json_t *doc, const char *where, d9d_family_config *c)
{
    const d9di_hf_reader r = {doc, where, false};

    D9D_TRY(head_of_class(&r, c));
    D9D_TRY(head_of_mark(&r, c));
    return labels_read(&r, c);
}

/* --- another head --------------------------------------------------------------------------- */

d9d_status d9d_family_set_head(const void *config, d9d_arena *a, d9d_head *head, const void **out)
{
    const d9d_family_config *c = config;
    d9d_family_config *new = d9d_arena_alloc(a, sizeof(*new));
    const bool same = c->head == head->kind;

    if (new == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu bytes", c->family->name, sizeof(*new));
    if (head->kind == D9D_HEAD_CAUSAL_LM && c->family->encoder)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: every position sees those behind it, so there is no next token to "
                        "learn, score or generate; give task masked_lm, embedding, classification "
                        "or hidden_states",
                        c->family->name);
    if (!d9di_family_has_head(c, head->kind))
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: no position sees those behind it, so there is no masked token to "
                        "learn; give task causal_lm",
                        c->family->name);
    if (head->kind == D9D_HEAD_CAUSAL_LM && !same)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: the configuration is that of a model with the head \"%s\", and the "
                        "task needs one with \"%s\"",
                        c->family->name, d9d_head_name(c->head), d9d_head_name(head->kind));
    if (head->kind == D9D_HEAD_CLASSIFICATION && !same && head->size == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "task.num_labels: must be given; the model's configuration has "
                        "no labels");
    *new = *c;
    new->head = head->kind;
    new->head_unknown = false;
    new->new_head = !d9d_head_is_lm(head->kind) || !same;
    new->tied_copy = c->tied_copy &&same;
    if (head->kind == D9D_HEAD_CLASSIFICATION && head->size > 0)
        new->labels = head->size;
    if (head->kind == D9D_HEAD_EMBEDDING && head->size > 0)
        new->embedding_dim = head->size;
    head->size = head->kind == D9D_HEAD_CLASSIFICATION ? new->labels
                 : head->kind == D9D_HEAD_EMBEDDING    ? new->embedding_dim
                                                       : 0;
    *out = new;
    return D9D_OK;
}

d9d_status d9di_family_check_router(const d9d_family_config *c)
{
    return c->custom_router ? D9D_FAIL(D9D_ENOTSUP,
                                       "%s: a HuggingFace checkpoint has no routers other than "
                                       "softmax top-k",
                                       c->family->name)
                            : D9D_OK;
}

/* Parse the document that the model was made from.  It was valid: only memory can be missing. */
static d9d_status document_parse(const d9d_family_config *c, json_t **out)
{
    *out = json_loads(c->document, 0, NULL);
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

/* The default of a key, as text; NULL: none. */
static const char *default_of(const d9d_family *f, const char *name)
{
    for (const d9d_key *k = f->config->keys; k->name != NULL; k++)
        if (strcmp(k->name, name) == 0)
            return k->def;
    return NULL;
}

/* Does the document have a field that files cannot have, other than at its default? */
static d9d_status own_field(const d9d_family_config *c, const char **out)
{
    json_t *doc;
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    *out = NULL;
    D9D_TRY(document_parse(c, &doc));
    for (const d9d_hf_field *f = c->family->fields;
         f != NULL && f->name != NULL && st == D9D_OK && *out == NULL; f++) {
        const json_t *v = json_object_get(doc, f->name);
        const char *otherwise = default_of(c->family, f->name);

        if (f->rule != D9D_HF_RULE_OWN || v == NULL || json_is_null(v))
            continue;
        text.len = 0;
        st = d9d_json_put(&text, v, -1);
        if (st == D9D_OK && (otherwise == NULL || strcmp(text.data, otherwise) != 0))
            *out = f->name;
    }
    d9d_buf_release(&text);
    json_decref(doc);
    return st;
}

/* --- writing -------------------------------------------------------------------------------- */

d9d_status d9di_family_check_hf(const d9d_family_config *c)
{
    const char *what = c->n_splits != 1 ? "a vocabulary of several splits"
                       : c->head == D9D_HEAD_CLASSIFICATION && c->family->encoder
                           ? "a classification head of one matrix"
                       : c->head == D9D_HEAD_EMBEDDING && c->embedding_dim > 0
                           ? "a projection of embeddings"
                           : NULL;

    if (what == NULL)
        D9D_TRY(own_field(c, &what));
    if (what == NULL)
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP, "%s: a HuggingFace checkpoint cannot have %s", c->family->name,
                    what);
}

/* The same of its config.json alone. */
static d9d_status check_config(const d9d_family_config *c)
{
    D9D_TRY(d9di_family_check_hf(c));
    return d9di_family_check_router(c);
}

/* id2label and label2id, as transformers writes them. */
static json_t *labels_build(int64_t n)
{
    json_t *names = json_object(), *ids = json_object();

    for (int64_t i = 0; i < n; i++) {
        char number[24], name[32];

        (void)snprintf(number, sizeof(number), "%" PRId64, i);
        (void)snprintf(name, sizeof(name), "LABEL_%" PRId64, i);
        d9d_json_set(&names, number, json_string(name));
        d9d_json_set(&ids, name, json_integer(i));
    }
    return json_pack("{s:o, s:o}", "id2label", names, "label2id", ids);
}

/* "LlamaForCausalLM" */
static json_t *class_build(const d9d_family_config *c)
{
    const char *const lm = c->family->lm_class;
    const char *const ends[D9D_HEAD_COUNT] = {
        [D9D_HEAD_CAUSAL_LM] = lm != NULL ? lm : "ForCausalLM",
        [D9D_HEAD_CLASSIFICATION] = "ForSequenceClassification",
        [D9D_HEAD_EMBEDDING] = "Model",
        [D9D_HEAD_MASKED_LM] = "ForMaskedLM",
    };
    char name[128];

    (void)snprintf(name, sizeof(name), "%s%s", c->family->class_name, ends[c->head]);
    return json_pack("[s]", name);
}

/* A task learns one class of each text, whatever the head was that it began with. */
static d9d_status problem_write(const d9d_family_config *c, json_t *doc)
{
    const json_t *problem = d9di_hf_member(doc, PROBLEM);

    if (!c->new_head || c->head != D9D_HEAD_CLASSIFICATION || c->labels < 2 || problem == NULL)
        return D9D_OK;
    return json_object_set_new(doc, PROBLEM, json_string(ONE_CLASS)) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

/* Set the labels of a classifier. */
static d9d_status labels_write(const d9d_family_config *c, json_t *doc)
{
    json_t *more;
    int bad;

    if (c->head != D9D_HEAD_CLASSIFICATION)
        return D9D_OK;
    more = labels_build(c->labels);
    (void)json_object_del(doc, "num_labels");
    bad = json_object_update(doc, more);
    json_decref(more);
    return bad == 0 ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

/* Set the class, and the labels of a classifier. */
static d9d_status head_write(const d9d_family_config *c, json_t *doc)
{
    D9D_TRY(labels_write(c, doc));
    return json_object_set_new(doc, "architectures", class_build(c)) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

/* The number of labels of a classifier's document; -1: not a classifier. */
static int64_t labels_count(const d9d_family *f, const json_t *doc)
{
    d9d_family_config c = {.family = f};

    if (d9di_family_head_read(doc, D9D_HF_CONFIG_NAME, &c) != D9D_OK ||
        c.head != D9D_HEAD_CLASSIFICATION)
        return -1;
    return c.labels;
}

/* The document of a model that only the suite's own layout can have. */
static d9d_status own_layout_write(const d9d_family_config *c, json_t *doc)
{
    const bool classifier = c->new_head && c->family->encoder;

    D9D_TRY(d9d_family_mark(c, doc, d9d_hf_config_was_fused(doc)));
    D9D_TRY(problem_write(c, doc));
    return classifier && labels_count(c->family, doc) != c->labels ? labels_write(c, doc) : D9D_OK;
}

d9d_status d9d_family_hf_head(const void *config, json_t *doc)
{
    const d9d_family_config *c = config;

    if (d9di_family_check_hf(c) != D9D_OK || c->custom_router)
        D9D_TRY(own_layout_write(c, doc));
    D9D_TRY(check_config(c));
    D9D_TRY(problem_write(c, doc));
    if (!c->new_head ||
        (c->head == D9D_HEAD_CLASSIFICATION && labels_count(c->family, doc) == c->labels))
        return D9D_OK;
    return head_write(c, doc);
}

/* Fields that files cannot have are at their defaults here. */
static void own_fields_drop(const d9d_family_config *c, json_t *doc)
{
    for (const d9d_hf_field *f = c->family->fields; f != NULL && f->name != NULL; f++)
        if (f->rule == D9D_HF_RULE_OWN)
            (void)json_object_del(doc, f->name);
}

/* Matrices that are uniform by fan-in: transformers has no such initialisation, and its default is
 * written. */
static d9d_status range_write(json_t *doc)
{
    const json_t *std = json_object_get(doc, "initializer_range");

    return json_is_number(std) && json_number_value(std) == 0 &&
                   json_object_set_new(doc, "initializer_range", json_real(0.02)) != 0
               ? D9D_FAIL(D9D_ENOMEM, "config.json: out of memory")
               : D9D_OK;
}

d9d_status d9d_family_hf_config(const void *config, d9d_dtype dtype, json_t **out)
{
    const d9d_family_config *c = config;
    json_t *doc;
    d9d_status st;

    D9D_TRY(check_config(c));
    D9D_TRY(document_parse(c, &doc));
    own_fields_drop(c, doc);
    (void)d9d_hf_config_unquantize(doc);
    st = head_write(c, doc);
    if (st == D9D_OK)
        st = range_write(doc);
    if (st == D9D_OK)
        st = d9d_hf_config_set_dtype(doc, dtype);
    if (st == D9D_OK)
        *out = doc;
    else
        json_decref(doc);
    return st;
}

d9d_status d9d_family_mark(const void *config, json_t *doc, bool fused)
{
    const d9d_family_config *c = config;
    json_t *more = json_object();

    if (c->custom_router)
        d9d_json_set(&more, "router",
                     d9di_family_router_to_json(&((const d9d_family_dims *)c->dims)->router));
    if (c->prefixed)
        d9d_json_set(&more, "prefixed", json_true());
    if (c->embedding_dim > 0)
        d9d_json_set(&more, "embedding_dim", json_integer(c->embedding_dim));
    if (more == NULL)
        return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
    return d9d_hf_config_mark(doc, d9d_head_name(c->head), fused, more);
}
