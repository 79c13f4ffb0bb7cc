/* tokenizer_special.c - special tokens around a text: applies what post_process.c parsed. */
#include <string.h>

#include "data/tokenizer/tokenizer_parts.h"

typedef d9di_post_process_template post_template;

static const post_template *template_of(const d9d_tokenizer *tok, bool pair)
{
    return pair ? &tok->post_processor.pair : &tok->post_processor.single;
}

static d9d_status check_usable(const post_template *t)
{
    return t->unusable ? D9D_FAIL(D9D_ENOTSUP, "%s", t->unusable) : D9D_OK;
}

d9d_status d9d_tokenizer_count_special(const d9d_tokenizer *tok, bool pair, size_t *out)
{
    const post_template *t = template_of(tok, pair);

    D9D_TRY(check_usable(t));
    *out = t->n_special;
    return D9D_OK;
}

static d9d_status append_ids(d9d_token_ids *out, const uint32_t *ids, size_t n)
{
    D9D_TRY(D9D_VEC_RESERVE(out, n));
    if (n > 0)
        memcpy(out->data + out->len, ids, n * sizeof(*ids));
    out->len += n;
    return D9D_OK;
}

d9d_status d9d_tokenizer_add_special(const d9d_tokenizer *tok, const d9d_token_ids *text,
                                     const d9d_token_ids *pair, d9d_token_ids *out)
{
    const post_template *t = template_of(tok, pair != NULL);

    D9D_TRY(check_usable(t));
    for (size_t i = 0; i < t->items.len; i++) {
        const int32_t item = t->items.data[i];
        const d9d_token_ids *ids = item == D9DI_POST_PROCESS_TEXT ? text : pair;

        if (item >= 0)
            D9D_TRY(D9D_VEC_PUSH(out, (uint32_t)item));
        else if (ids != NULL)
            D9D_TRY(append_ids(out, ids->data, ids->len));
    }
    return D9D_OK;
}

bool d9d_tokenizer_has_special(const d9d_tokenizer *tok, const uint32_t *ids, size_t n)
{
    const post_template *t = &tok->post_processor.single;
    size_t i = 0;

    while (i < t->items.len && t->items.data[i] >= 0) {
        if (i == n || ids[i] != (uint32_t)t->items.data[i])
            return false;
        i++;
    }
    return i > 0 && i < t->items.len;
}

d9d_status d9d_tokenizer_print_special(const d9d_tokenizer *tok, bool pair, d9d_buf *out)
{
    const post_template *t = template_of(tok, pair);

    D9D_TRY(check_usable(t));
    for (size_t i = 0; i < t->items.len; i++) {
        const int32_t item = t->items.data[i];
        const uint32_t id = (uint32_t)item;

        D9D_TRY(d9d_buf_append(out, " ", i > 0));
        D9D_TRY(item >= 0 ? d9d_tokenizer_decode(tok, &id, 1, 0, out)
                          : d9d_buf_append(out, item == D9DI_POST_PROCESS_TEXT ? "$A" : "$B", 2));
    }
    return D9D_OK;
}
