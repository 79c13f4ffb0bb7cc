/* shard_special.c - encodes the text of a document, or its pair of texts, with the special tokens
 * of the tokenizer's post_processor around them.
 *
 * A document that is truncated loses tokens of its texts, not the special ones, as in HF; of a pair
 * the longer text loses first ("longest_first"). */
#include <string.h>

#include "data/build/shard_private.h"

/* --- the tokenizer's special tokens --------------------------------------------------------- */

bool d9di_shard_has_texts(const d9d_shard_opts *opts)
{
    for (size_t i = 0; i < opts->n_inputs; i++) {
        const d9d_shard_format f = d9di_documents_format(opts, i);

        if (f == D9D_SHARD_JSONL || f == D9D_SHARD_TEXT)
            return true;
    }
    return false;
}

/* True if a text that is encoded with special tokens ends with this one. */
static d9d_status ends_with(const d9d_tokenizer *tok, uint32_t id, bool *out)
{
    const d9d_token_ids none = {0};
    d9d_token_ids ids = {0};
    d9d_status st = d9d_tokenizer_add_special(tok, &none, NULL, &ids);

    *out = ids.len > 0 && ids.data[ids.len - 1] == id;
    D9D_VEC_RELEASE(&ids);
    return st;
}

static d9d_status count_special(d9di_shard_tokenizer *t, bool pair)
{
    const d9d_shard_opts *opts = t->opts;
    const int64_t most = d9di_shard_max_document(opts) + (opts->label_key ? 0 : 1);
    d9d_err_copy why;
    d9d_status st = d9d_tokenizer_count_special(t->tok, pair, &t->n_special);

    if (st != D9D_OK) {
        d9d_err_save(&why, st);
        return D9D_FAIL(D9D_ECONFIG, "%s; without special tokens: --add-special-tokens no",
                        why.text);
    }
    if (d9di_shard_resolve_overflow(opts) == D9D_SHARD_OVERFLOW_TRUNCATE &&
        (int64_t)t->n_special >= most)
        return D9D_FAIL(D9D_ECONFIG,
                        "a sample of %lld tokens has none left for a text beside the tokenizer's "
                        "%zu special ones; raise --max-length, or --add-special-tokens no",
                        (long long)most, t->n_special);
    return D9D_OK;
}

d9d_status d9di_shard_special_plan(d9di_shard_tokenizer *t)
{
    const bool pair = t->opts->text_pair_key != NULL;
    bool twice = false;

    t->adds_special =
        t->opts->add_special != D9D_SHARD_ADD_SPECIAL_NO && d9di_shard_has_texts(t->opts);
    if (!t->adds_special)
        return D9D_OK;
    D9D_TRY(count_special(t, pair));
    if (t->has_eos)
        D9D_TRY(ends_with(t->tok, t->eos, &twice));
    t->has_eos = t->has_eos && !twice;
    return D9D_OK;
}

/* --- a document ------------------------------------------------------------------------------ */

/* Truncates two texts to `limit` tokens in all, the longer one first: tokenizers' LongestFirst. */
static void truncate_pair(d9d_token_ids *a, d9d_token_ids *b, size_t limit)
{
    const bool swap = a->len > b->len;
    size_t few = swap ? b->len : a->len, many;

    many = few > limit ? few : limit - few > few ? limit - few : few;
    if (few + many > limit) {
        few = limit / 2;
        many = few + limit % 2;
    }
    if (a->len > (swap ? many : few))
        a->len = swap ? many : few;
    if (b->len > (swap ? few : many))
        b->len = swap ? few : many;
}

/* Truncates the texts where the document would be. */
static size_t cut_texts(const d9di_shard_tokenizer *t, d9d_token_ids texts[2])
{
    const size_t all = texts[0].len + texts[1].len,
                 most = (size_t)d9di_shard_max_document(t->opts) + (t->opts->label_key ? 0 : 1),
                 limit = most > t->n_special ? most - t->n_special : 0;

    if (d9di_shard_resolve_overflow(t->opts) != D9D_SHARD_OVERFLOW_TRUNCATE || all <= limit)
        return 0;
    if (t->opts->text_pair_key)
        truncate_pair(&texts[0], &texts[1], limit);
    else
        texts[0].len = limit;
    return all - texts[0].len - texts[1].len;
}

static d9d_status append_ids(d9d_token_ids *out, const d9d_token_ids *ids)
{
    D9D_TRY(D9D_VEC_RESERVE(out, ids->len));
    if (ids->len > 0)
        memcpy(out->data + out->len, ids->data, ids->len * sizeof(*ids->data));
    out->len += ids->len;
    return D9D_OK;
}

d9d_status d9di_shard_encode_texts(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                   const d9d_buf *text, const d9d_buf *pair, d9d_token_ids *out,
                                   d9di_document_record *doc)
{
    const d9d_buf *const from[] = {text, pair};
    d9d_token_ids *ids = w->texts;

    if (!t->adds_special && !pair)
        return d9d_tokenizer_encode(t->tok, w->scratch, text->len > 0 ? text->data : "", text->len,
                                    out);
    ids[0].len = ids[1].len = 0;
    for (int i = 0; i < 2 && from[i]; i++)
        D9D_TRY(d9d_tokenizer_encode(t->tok, w->scratch, from[i]->len > 0 ? from[i]->data : "",
                                     from[i]->len, &ids[i]));
    if (ids[0].len + ids[1].len == 0) /* nothing stands around no text */
        return D9D_OK;
    doc->twice = t->adds_special && d9d_tokenizer_has_special(t->tok, ids[0].data, ids[0].len);
    doc->cut = cut_texts(t, ids);
    if (t->adds_special)
        return d9d_tokenizer_add_special(t->tok, &ids[0], pair ? &ids[1] : NULL, out);
    D9D_TRY(append_ids(out, &ids[0]));
    return append_ids(out, &ids[1]);
}
