/* family_tied.c - the head that files of a tied model may have beside the embedding.  See
 * d9d/model/family/family.h.
 *
 * It must be a copy: transformers takes one that differs for a head of its own, whatever
 * tie_word_embeddings says, and here the embedding is the head.
 */
#include <string.h>

#include "model/family/family_parts.h"

enum { ELEMENTS = 1 << 18 }; /* compared at a time */
enum { SAMPLES = 64, SAMPLE_ELEMENTS = 1 << 12 };

/* The two tensors, by number in the source. */
typedef struct tied_pair {
    const d9d_tensor_source *src;
    size_t head, embed;
    bool sampled; /* compare SAMPLES parts of SAMPLE_ELEMENTS, evenly spaced */
} tied_pair;

static const d9d_safetensors_tensor *tensor_at(const d9d_tensor_source *src, size_t i)
{
    return src->at(src->self, i);
}

/* The embedding's name in the source, if it has one vocabulary. */
static const char *embed_name(const d9d_family_config *c, const d9d_tensor_source *src,
                              d9d_arena *a)
{
    const d9d_hf_parts *parts = c->family->parts != NULL ? c->family->parts : &d9d_hf_parts_default;
    const d9d_hf_prefixes *as = d9d_hf_prefixes_of(parts, src);
    const char *name = d9d_family_layout(src) == D9D_LAYOUT_D9D
                           ? d9d_arena_printf(a, "%s.token_embedding.%s", d9d_hf_own_names.embed,
                                              c->splits[0].name)
                           : d9d_hf_name_as(parts, as, parts->hf.embed, a);

    return name != NULL ? d9d_arena_printf(a, "%s.weight", name) : NULL;
}

/* False: the source lacks one, or it is not known here. */
static bool pair_find(const d9d_family_config *c, const char *embed, tied_pair *p)
{
    const d9d_tensor_source *src = p->src;

    p->head = p->embed = src->n;
    for (size_t i = 0; i < src->n; i++) {
        const char *name = tensor_at(src, i)->name;

        if (strcmp(name, embed) == 0)
            p->embed = i;
        else if (d9di_family_is_lm_head(c, name))
            p->head = i;
    }
    return p->head < src->n && p->embed < src->n;
}

/* Elements [at, at + n) as float32, rounded to `type`, the narrower one. */
static d9d_status elements_read(const tied_pair *p, size_t i, d9d_dtype type, int64_t at, int64_t n,
                                void *bytes, float *out)
{
    const d9d_dtype own = tensor_at(p->src, i)->dtype;
    const uint64_t size = d9d_dtype_size(own);

    D9D_TRY(p->src->read(p->src->self, i, (uint64_t)at * size, bytes, (uint64_t)n * size));
    d9d_tensor_elements_to_f32(own, bytes, n, out);
    for (int64_t k = 0; k < n && type == D9D_BF16; k++)
        out[k] = d9d_bf16_to_f32(d9d_bf16_from_f32(out[k]));
    return D9D_OK;
}

static d9d_status pair_compare(const tied_pair *p, int64_t numel, void *buffer)
{
    const d9d_safetensors_tensor *head = tensor_at(p->src, p->head),
                                 *embed = tensor_at(p->src, p->embed);
    const d9d_dtype type = head->dtype == D9D_BF16 || embed->dtype == D9D_BF16 ? D9D_BF16 : D9D_F32;
    const int64_t most = p->sampled ? SAMPLE_ELEMENTS : ELEMENTS;
    const int64_t step = p->sampled && numel / SAMPLES > most ? numel / SAMPLES : most;
    float *a = buffer, *b = a + ELEMENTS;

    for (int64_t at = 0; at < numel; at += step) {
        const int64_t n = numel - at < most ? numel - at : most;

        D9D_TRY(elements_read(p, p->head, type, at, n, b + ELEMENTS, a));
        D9D_TRY(elements_read(p, p->embed, type, at, n, b + ELEMENTS, b));
        if (memcmp(a, b, (size_t)n * sizeof(*a)) != 0)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: tensor %s is not %s, and tie_word_embeddings says that they are "
                            "one: set it to false, or take the tensor away",
                            p->src->path(p->src->self, p->head), head->name, embed->name);
    }
    return D9D_OK;
}

static bool is_comparable(const d9d_safetensors_tensor *t)
{
    return t->bytes > 0 && (t->dtype == D9D_F32 || t->dtype == D9D_BF16 || t->dtype == D9D_F16);
}

/* Shapes and types that cannot be are the mapper's to tell. */
static d9d_status pair_check(const tied_pair *p)
{
    const d9d_safetensors_tensor *head = tensor_at(p->src, p->head),
                                 *embed = tensor_at(p->src, p->embed);
    void *buffer;
    d9d_status st;

    if (!is_comparable(head) || !is_comparable(embed) || head->ndim != 2 || embed->ndim != 2 ||
        head->shape[0] != embed->shape[0] || head->shape[1] != embed->shape[1])
        return D9D_OK;
    buffer = malloc(3 * ELEMENTS * sizeof(float));
    if (buffer == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", head->name);
    st = pair_compare(p, head->shape[0] * head->shape[1], buffer);
    free(buffer);
    return st;
}

d9d_status d9d_family_check_tied(const void *config, const d9d_tensor_source *src, bool sampled)
{
    const d9d_family_config *c = config;
    const d9d_family_dims *dims = c->dims;
    tied_pair p = {.src = src, .sampled = sampled};
    d9d_arena a = {0};
    const char *embed;
    d9d_status st = D9D_OK;

    if (!dims->tie_word_embeddings || !d9d_head_is_lm(c->head) || c->n_splits != 1)
        return D9D_OK;
    embed = embed_name(c, src, &a);
    if (embed == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: the name of its embedding", c->family->name);
    else if (pair_find(c, embed, &p))
        st = pair_check(&p);
    d9d_arena_release(&a);
    return st;
}
