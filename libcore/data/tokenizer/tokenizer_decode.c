/* tokenizer_decode.c - ids to text: from a table of what each id writes. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer_parts.h"

/* --- the table ---------------------------------------------------------------------- */

/* An added token whose letters the decoder would take for single bytes is written as it is. */
static d9d_status set_decoded(d9d_tokenizer *tok, uint32_t id, const char *text, size_t n,
                              const struct d9di_tokenizer_added *added, uint32_t *at_of)
{
    d9d_buf *bytes = &tok->decoded_bytes;
    const size_t at = bytes->len;

    D9D_TRY(
        d9di_tokenizer_decoder_apply(&tok->decoder, text, n, D9DI_TOKENIZER_DECODER_INNER, bytes));
    if (added && d9d_utf8_valid_up_to(bytes->data + at, bytes->len - at) != bytes->len - at) {
        bytes->len = at;
        D9D_TRY(d9d_buf_append(bytes, text, n));
    }
    if (bytes->len > UINT32_MAX)
        return D9D_FAIL(D9D_ENOTSUP, "decoder: the texts of %u tokens have more than %u bytes",
                        tok->vocab_size, UINT32_MAX);
    if (tok->written)
        tok->written[id] = (struct d9di_tokenizer_written){text, (uint32_t)n};
    at_of[id] = (uint32_t)at;
    tok->decoded[id] =
        (struct d9di_tokenizer_decoded){text, (uint32_t)(bytes->len - at), added && added->special};
    return D9D_OK;
}

/* at_of: the places of the bytes of ids. */
static d9d_status fill_tables(d9d_tokenizer *tok, uint32_t *at_of)
{
    const d9di_vocab *v = tok->model.vocab;
    size_t i;

    D9D_TRY(d9d_buf_reserve(&tok->decoded_bytes, 1));
    for (i = 0; i < v->n_tokens; i++)
        if (v->tokens[i].text)
            D9D_TRY(
                set_decoded(tok, (uint32_t)i, v->tokens[i].text, v->tokens[i].len, NULL, at_of));
    for (i = 0; i < tok->added.len; i++) {
        const struct d9di_tokenizer_added *a = &tok->added.data[i];

        D9D_TRY(set_decoded(tok, a->id, a->text, a->len, a, at_of));
    }
    D9D_TRY(d9d_buf_reserve(&tok->decoded_bytes, D9DI_TOKENIZER_SLACK));
    memset(tok->decoded_bytes.data + tok->decoded_bytes.len, 0, D9DI_TOKENIZER_SLACK);
    for (i = 0; i < tok->vocab_size; i++)
        if (tok->decoded[i].bytes)
            tok->decoded[i].bytes = tok->decoded_bytes.data + at_of[i];
    return D9D_OK;
}

d9d_status d9di_tokenizer_index_decoded(d9d_tokenizer *tok, const char *name)
{
    uint32_t *at_of;
    d9d_status st;

    tok->vocab_size = tok->model.vocab->n_tokens;
    for (size_t i = 0; i < tok->added.len; i++)
        if (tok->added.data[i].id >= tok->vocab_size)
            tok->vocab_size = tok->added.data[i].id + 1;
    if (tok->vocab_size == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no tokens", name);
    at_of = calloc(tok->vocab_size, sizeof(*at_of));
    tok->decoded = calloc(tok->vocab_size, sizeof(*tok->decoded));
    if (tok->decoder.by_place)
        tok->written = calloc(tok->vocab_size, sizeof(*tok->written));
    if (!at_of || !tok->decoded || (tok->decoder.by_place && !tok->written))
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", name, tok->vocab_size);
    else
        st = fill_tables(tok, at_of);
    free(at_of);
    return st;
}

/* --- decoding ----------------------------------------------------------------------- */

/* Appends the bytes of an id: usually the whole token, in one copy of fixed size. */
static inline d9d_status append_token(const struct d9di_tokenizer_decoded *d, d9d_buf *out)
{
    if (out->cap - out->len <= (size_t)d->len + D9DI_TOKENIZER_SLACK)
        D9D_TRY(d9d_buf_reserve(out, (size_t)d->len + D9DI_TOKENIZER_SLACK));
    memcpy(out->data + out->len, d->bytes, D9DI_TOKENIZER_SLACK);
    if (d->len > D9DI_TOKENIZER_SLACK)
        memcpy(out->data + out->len + D9DI_TOKENIZER_SLACK, d->bytes + D9DI_TOKENIZER_SLACK,
               d->len - D9DI_TOKENIZER_SLACK);
    out->len += d->len;
    return D9D_OK;
}

/* The number of ids up to the last one that is written. */
static size_t count_written(const d9d_tokenizer *tok, const uint32_t *ids, size_t n,
                            bool skip_special)
{
    while (skip_special && n > 0 && ids[n - 1] < tok->vocab_size &&
           tok->decoded[ids[n - 1]].special)
        n--;
    return n;
}

/* Appends the first or last token, or one inside. */
static d9d_status append_placed(const d9d_tokenizer *tok, uint32_t id, unsigned place, d9d_buf *out)
{
    const struct d9di_tokenizer_written *w = &tok->written[id];

    if (place == D9DI_TOKENIZER_DECODER_INNER)
        return append_token(&tok->decoded[id], out);
    return d9di_tokenizer_decoder_apply(&tok->decoder, w->text, w->len, place, out);
}

bool d9d_tokenizer_is_special(const d9d_tokenizer *tok, uint32_t id)
{
    return id < tok->vocab_size && tok->decoded[id].special;
}

d9d_status d9d_tokenizer_decode(const d9d_tokenizer *tok, const uint32_t *ids, size_t n,
                                unsigned flags, d9d_buf *out)
{
    const bool skip_special = flags & D9D_TOKENIZER_SKIP_SPECIAL;
    const bool joins = tok->decoder.joins, by_place = tok->written != NULL;
    const struct d9di_tokenizer_decoded *decoded = tok->decoded;
    const uint32_t vocab_size = tok->vocab_size;
    const size_t from = out->len, last = count_written(tok, ids, n, skip_special);
    bool some = false;

    for (size_t i = 0; i < n; i++) {
        const struct d9di_tokenizer_decoded *d = &decoded[ids[i] < vocab_size ? ids[i] : 0];

        if (ids[i] >= vocab_size || !d->bytes)
            return D9D_FAIL(D9D_EINVAL, "ids[%zu] is %u, which is no token; the vocabulary has %u",
                            i, ids[i], vocab_size);
        if (d->special && skip_special)
            continue;
        if (joins && some)
            D9D_TRY(d9d_buf_append(out, " ", 1));
        if (by_place)
            D9D_TRY(append_placed(tok, ids[i],
                                  (some ? 0 : D9DI_TOKENIZER_DECODER_FIRST) |
                                      (i + 1 < last ? 0 : D9DI_TOKENIZER_DECODER_LAST),
                                  out));
        else
            D9D_TRY(append_token(d, out));
        some = true;
    }
    D9D_TRY(d9di_tokenizer_decoder_apply_fused(&tok->decoder, from, out));
    return d9d_buf_append(out, "", 0); /* NUL-terminates */
}
