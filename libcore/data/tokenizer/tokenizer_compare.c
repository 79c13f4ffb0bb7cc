/* tokenizer_compare.c - whether two tokenizers mean the same by an id. */
#include <string.h>

#include "data/tokenizer/tokenizer_parts.h"

/* The token of the vocabulary proper; NULL for an unused id and for an added token. */
static const struct d9di_vocab_token *ordinary_token(const d9d_tokenizer *tok, uint32_t id)
{
    const d9di_vocab *v = tok->model.vocab;
    const struct d9di_vocab_token *t = id < v->n_tokens ? &v->tokens[id] : NULL;

    if (t == NULL || t->text == NULL)
        return NULL;
    for (size_t i = 0; i < tok->added.len; i++)
        if (tok->added.data[i].id == id)
            return NULL;
    return t;
}

/* Most ids are alike; added tokens are looked for where they are not. */
static bool is_same_token(const d9d_tokenizer *a, const d9d_tokenizer *b, uint32_t id)
{
    const d9di_vocab *v = a->model.vocab, *w = b->model.vocab;

    return id < v->n_tokens && id < w->n_tokens && v->tokens[id].text != NULL &&
           w->tokens[id].text != NULL && v->tokens[id].len == w->tokens[id].len &&
           memcmp(v->tokens[id].text, w->tokens[id].text, v->tokens[id].len) == 0;
}

d9d_status d9d_tokenizer_check_same_ids(const d9d_tokenizer *a, const char *name_a,
                                        const d9d_tokenizer *b, const char *name_b)
{
    const uint32_t n = a->vocab_size < b->vocab_size ? a->vocab_size : b->vocab_size;

    for (uint32_t id = 0; id < n; id++) {
        const struct d9di_vocab_token *s, *t;

        if (is_same_token(a, b, id))
            continue;
        s = ordinary_token(a, id);
        t = ordinary_token(b, id);
        if (s != NULL && t != NULL)
            return D9D_FAIL(D9D_EMISMATCH,
                            "%s: its id %u is the token \"%.64s\", and in %s \"%.64s\"; ids of one "
                            "tokenizer mean nothing to a model of the other",
                            name_a, id, s->text, name_b, t->text);
    }
    return D9D_OK;
}
