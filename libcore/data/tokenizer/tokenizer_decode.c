/* tokenizer_decode.c - ids to text: from a table of what each id writes. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer_parts.h"

/* --- the table ---------------------------------------------------------------------- */

static d9d_status keep_bytes(d9d_tokenizer *tok, uint32_t id, const char *bytes, size_t n,
                             bool special)
{
    char *copy = d9d_arena_alloc(&tok->arena, n + D9DI_TOKENIZER_SLACK);

    if (!copy)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", tok->vocab_size);
    memcpy(copy, bytes, n);
    tok->decoded[id] = (struct d9di_tokenizer_decoded){copy, (uint32_t)n, special};
    return D9D_OK;
}

/* An added token whose letters the decoder would take for single bytes is written as it is. */
static d9d_status set_decoded(d9d_tokenizer *tok, uint32_t id, const char *text, size_t n,
                              const struct d9di_tokenizer_added *added, d9d_buf *buf)
{
    buf->len = 0;
    D9D_TRY(d9d_buf_reserve(buf, 1));
    D9D_TRY(
        d9di_tokenizer_decoder_apply(&tok->decoder, text, n, D9DI_TOKENIZER_DECODER_INNER, buf));
    if (added && d9d_utf8_valid_up_to(buf->data, buf->len) != buf->len) {
        buf->len = 0;
        D9D_TRY(d9d_buf_append(buf, text, n));
    }
    if (tok->written)
        tok->written[id] = (struct d9di_tokenizer_written){text, (uint32_t)n};
    return keep_bytes(tok, id, buf->data, buf->len, added && added->special);
}

static d9d_status fill_tables(d9d_tokenizer *tok, d9d_buf *buf)
{
    const d9di_vocab *v = tok->model.vocab;
    size_t i;

    for (i = 0; i < v->n_tokens; i++)
        if (v->tokens[i].text)
            D9D_TRY(set_decoded(tok, (uint32_t)i, v->tokens[i].text, v->tokens[i].len, NULL, buf));
    for (i = 0; i < tok->added.len; i++) {
        const struct d9di_tokenizer_added *a = &tok->added.data[i];

        D9D_TRY(set_decoded(tok, a->id, a->text, a->len, a, buf));
    }
    return D9D_OK;
}

d9d_status d9di_tokenizer_index_decoded(d9d_tokenizer *tok, const char *name)
{
    d9d_buf buf = {0};
    d9d_status st;

    tok->vocab_size = tok->model.vocab->n_tokens;
    for (size_t i = 0; i < tok->added.len; i++)
        if (tok->added.data[i].id >= tok->vocab_size)
            tok->vocab_size = tok->added.data[i].id + 1;
    if (tok->vocab_size == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no tokens", name);
    tok->decoded = calloc(tok->vocab_size, sizeof(*tok->decoded));
    if (tok->decoder.by_place)
        tok->written = calloc(tok->vocab_size, sizeof(*tok->written));
    if (!tok->decoded || (tok->decoder.by_place && !tok->written))
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u tokens", name, tok->vocab_size);
    st = fill_tables(tok, &buf);
    d9d_buf_release(&buf);
    return st;
}

/* --- decoding ----------------------------------------------------------------------- */

static bool is_written(const d9d_tokenizer *tok, uint32_t id, unsigned flags)
{
    return !(flags & D9D_TOKENIZER_SKIP_SPECIAL) || !tok->decoded[id].special;
}

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

static d9d_status append_placed(const d9d_tokenizer *tok, uint32_t id, unsigned place, d9d_buf *out)
{
    const struct d9di_tokenizer_written *w = &tok->written[id];

    return d9di_tokenizer_decoder_apply(&tok->decoder, w->text, w->len, place, out);
}

static d9d_status check_ids(const d9d_tokenizer *tok, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= tok->vocab_size || !tok->decoded[ids[i]].bytes)
            return D9D_FAIL(D9D_EINVAL, "ids[%zu] is %u, which is no token; the vocabulary has %u",
                            i, ids[i], tok->vocab_size);
    return D9D_OK;
}

d9d_status d9d_tokenizer_decode(const d9d_tokenizer *tok, const uint32_t *ids, size_t n,
                                unsigned flags, d9d_buf *out)
{
    const size_t from = out->len;
    bool some = false;

    D9D_TRY(check_ids(tok, ids, n));
    while (n > 0 && !is_written(tok, ids[n - 1], flags)) /* ids[n - 1] is the last */
        n--;
    for (size_t i = 0; i < n; i++) {
        const unsigned place = (some ? 0 : D9DI_TOKENIZER_DECODER_FIRST) |
                               (i + 1 < n ? 0 : D9DI_TOKENIZER_DECODER_LAST);

        if (!is_written(tok, ids[i], flags))
            continue;
        if (tok->decoder.joins && some)
            D9D_TRY(d9d_buf_append(out, " ", 1));
        D9D_TRY(tok->written && place != D9DI_TOKENIZER_DECODER_INNER
                    ? append_placed(tok, ids[i], place, out)
                    : append_token(&tok->decoded[ids[i]], out));
        some = true;
    }
    D9D_TRY(d9di_tokenizer_decoder_apply_fused(&tok->decoder, from, out));
    return d9d_buf_append(out, "", 0); /* NUL-terminates */
}
