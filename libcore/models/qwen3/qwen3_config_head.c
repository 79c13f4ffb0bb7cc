/* qwen3_config_head.c - reads head, labels and router from config.json.
 */
#include "models/qwen3/qwen3_config_parts.h"

#include <inttypes.h>
#include <string.h>

/* Classes of transformers by suffix: trainers prepend words. */
static const struct {
    const char *end;
    d9d_head_kind head;
} head_classes[] = {
    {"ForCausalLM", D9D_HEAD_CAUSAL_LM},
    {"ForSequenceClassification", D9D_HEAD_CLASSIFICATION},
    {"Qwen3Model", D9D_HEAD_EMBEDDING},
    {"Qwen3MoeModel", D9D_HEAD_EMBEDDING},
};
enum { N_CLASSES = sizeof(head_classes) / sizeof(head_classes[0]) };

static d9d_status head_of_class(const d9di_hf_reader *r, d9d_qwen3_config *c)
{
    const json_t *list = d9di_hf_member(r->doc, "architectures"), *first = json_array_get(list, 0);
    const char *name = json_string_value(first);

    c->head_unknown = list == NULL || (json_is_array(list) && first == NULL);
    if (c->head_unknown)
        return D9D_OK;
    for (size_t i = 0; i < N_CLASSES && name != NULL; i++) {
        size_t n = strlen(name), k = strlen(head_classes[i].end);

        if (n >= k && strcmp(name + n - k, head_classes[i].end) == 0) {
            c->head = head_classes[i].head;
            return D9D_OK;
        }
    }
    return d9di_hf_refuse(r, "architectures", list);
}

/* Router options that HuggingFace's format cannot express, from the member "d9d"; rates and
 * coefficients are not part of a model. */
static d9d_status router_of_mark(const d9di_hf_reader *r, d9d_block_router *out)
{
    const json_t *mark = json_object_get(r->doc, "d9d");
    const d9di_hf_reader router = {d9di_hf_member(mark, "router"), r->where, r->moe};
    const json_t *score = d9di_hf_member(router.doc, "score");
    const char *word = json_string_value(score);

    if (router.doc == NULL)
        return D9D_OK;
    if (score != NULL && (word == NULL || strcmp(word, "sigmoid") != 0))
        return d9di_hf_refuse(&router, "d9d.router.score", score);
    out->score = score != NULL ? D9D_SCORE_SIGMOID : D9D_SCORE_SOFTMAX;
    D9D_TRY(d9di_hf_i64(&router, "groups", 1, &out->groups));
    D9D_TRY(d9di_hf_i64(&router, "top_groups", 1, &out->top_groups));
    D9D_TRY(d9di_hf_f64(&router, router.doc, "scale", 1, &out->scale));
    D9D_TRY(d9di_hf_bool(&router, D9D_ROUTER_BIAS, &out->expert_bias));
    if (!d9d_block_router_is_custom(out)) /* nothing to record */
        *out = (d9d_block_router){0};
    return D9D_OK;
}

/* Read the head from the member "d9d", which overrides the class. */
static d9d_status head_of_mark(const d9di_hf_reader *r, d9d_qwen3_config *c)
{
    const d9di_hf_reader mark = {json_object_get(r->doc, "d9d"), r->where, r->moe};
    const json_t *head = d9di_hf_member(mark.doc, "head");
    const char *word = json_string_value(head);

    D9D_TRY(d9di_hf_i64(&mark, "embedding_dim", 0, &c->embedding_dim));
    D9D_TRY(d9di_hf_bool(&mark, "prefixed", &c->prefixed));
    for (int h = 0; word != NULL && h < D9D_HEAD_COUNT; h++)
        if (strcmp(word, d9d_head_name((d9d_head_kind)h)) == 0) {
            c->head = (d9d_head_kind)h;
            c->head_unknown = false;
            return D9D_OK;
        }
    return head == NULL ? D9D_OK : d9di_hf_refuse(&mark, "d9d.head", head);
}

/* Two labels by default, as in transformers. */
static d9d_status read_labels(const d9di_hf_reader *r, d9d_qwen3_config *c)
{
    const json_t *names = d9di_hf_member(r->doc, "id2label");
    int64_t n;

    if (names != NULL && !json_is_object(names))
        return D9D_FAIL(D9D_ECONFIG, "%s: id2label must be an object", r->where);
    n = names != NULL ? (int64_t)json_object_size(names) : 2;
    D9D_TRY(d9di_hf_i64(r, "num_labels", n, &c->labels));
    if (names != NULL && c->labels != n)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: num_labels is %" PRId64 " and id2label has %" PRId64 " labels",
                        r->where, c->labels, n);
    return D9D_OK;
}

d9d_status d9di_qwen3_config_head(const d9di_hf_reader *r, d9d_qwen3_config *c)
{
    D9D_TRY(head_of_class(r, c));
    D9D_TRY(head_of_mark(r, c));
    D9D_TRY(router_of_mark(r, &c->router));
    return read_labels(r, c);
}
