/* wordpiece.c - WordPiece: the longest token first, from the left.
 *
 * Tokens behind the first have a prefix ("##"); two tries hold the tokens by what they match:
 *
 *     first     "play"           any token
 *     later     "ing"            tokens with the prefix, without it
 *
 * A pre-token that has no such parts, or too many characters, is the unknown token. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer_model.h"
#include "data/tokenizer/trie.h"

struct wordpiece {
    d9di_vocab vocab;
    d9di_trie first, later;
    uint32_t unk; /* D9DI_NO_ID: the vocabulary lacks it */
    int64_t max_chars;
    bool chars;
};

static void wordpiece_free(void *model)
{
    struct wordpiece *w = model;

    d9di_vocab_release(&w->vocab);
    d9di_trie_release(&w->first);
    d9di_trie_release(&w->later);
    free(w);
}

/* A trie of the tokens that begin with `prefix`, without it. */
static d9d_status build_trie(const d9di_vocab *v, const char *prefix, d9di_trie *out)
{
    struct d9di_trie_key *keys = malloc(((size_t)v->n_tokens + 1) * sizeof(*keys));
    const size_t skip = strlen(prefix);
    size_t n = 0;
    d9d_status st;

    if (!keys)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %u tokens", v->n_tokens);
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        const struct d9di_vocab_token *t = &v->tokens[id];

        if (t->text && t->len > skip && memcmp(t->text, prefix, skip) == 0)
            keys[n++] = (struct d9di_trie_key){t->text + skip, t->len - (uint32_t)skip, id, false};
    }
    st = d9di_trie_build(out, keys, n);
    free(keys);
    return st;
}

static d9d_status wordpiece_load(struct wordpiece *w, const json_t *m, const char *where)
{
    const char *unk, *prefix;
    json_t *vocab;

    D9D_TRY(d9d_json_get_str(m, where, "unk_token", &unk));
    D9D_TRY(d9d_json_get_str(m, where, "continuing_subword_prefix", &prefix));
    D9D_TRY(d9d_json_get_i64(m, where, "max_input_chars_per_word", 0, INT64_MAX, &w->max_chars));
    D9D_TRY(d9d_json_get_obj(m, where, "vocab", &vocab));
    D9D_TRY(d9di_vocab_load(vocab, where, &w->vocab));
    w->unk = d9di_vocab_find(&w->vocab, unk, strlen(unk));
    D9D_TRY(build_trie(&w->vocab, "", &w->first));
    return build_trie(&w->vocab, prefix, &w->later);
}

static d9d_status wordpiece_create(const json_t *m, const char *where, bool chars, void **out)
{
    struct wordpiece *w = calloc(1, sizeof(*w));
    d9d_status st;

    if (!w)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    w->chars = chars;
    st = wordpiece_load(w, m, where);
    if (st != D9D_OK) {
        wordpiece_free(w);
        return st;
    }
    *out = w;
    return D9D_OK;
}

static const d9di_vocab *wordpiece_vocab(const void *model)
{
    return &((const struct wordpiece *)model)->vocab;
}

/* The longest token at the start of text[0, n), and its length; D9DI_NO_ID: none. */
static uint32_t find_longest(const d9di_trie *trie, const char *text, size_t n, size_t *len)
{
    uint32_t base = trie->root, id = D9DI_NO_ID;

    for (size_t i = 0; i < n; i++) {
        const uint64_t entry = d9di_trie_entry(trie, base, (unsigned char)text[i]);

        if (!d9di_trie_has_label(entry, (unsigned char)text[i]))
            break;
        if (d9di_trie_value(entry) != D9DI_TRIE_NONE) {
            id = d9di_trie_value(entry);
            *len = i + 1;
        }
        base = d9di_trie_base(entry);
    }
    return id;
}

static bool is_too_long(const struct wordpiece *w, const d9di_pretoken *pretoken)
{
    int64_t chars = 0;

    if ((int64_t)pretoken->n <= w->max_chars)
        return false;
    for (size_t i = 0; i < pretoken->n && chars <= w->max_chars; i++)
        chars += ((unsigned char)pretoken->text[i] & 0xc0) != 0x80;
    return chars > w->max_chars;
}

static d9d_status encode_unknown(const struct wordpiece *w, const d9di_pretoken *pretoken,
                                 d9d_token_ids *out, d9di_alignments *spans)
{
    if (w->unk == D9DI_NO_ID)
        return D9D_FAIL(D9D_EFORMAT, "\"%.*s\" has no tokens, and the vocabulary lacks unk_token",
                        (int)(pretoken->n < 80 ? pretoken->n : 80), pretoken->text);
    return d9di_tokenizer_model_push(w->unk, 0, pretoken->n, out, spans);
}

static d9d_status encode_pretoken(const void *model, void *scratch, const d9di_pretoken *pretoken,
                                  d9d_token_ids *out, d9di_alignments *spans)
{
    const struct wordpiece *w = model;
    const size_t before = out->len, spans_before = spans ? spans->len : 0;
    size_t at = 0, len = 0;

    (void)scratch;
    if (is_too_long(w, pretoken))
        return encode_unknown(w, pretoken, out, spans);
    while (at < pretoken->n) {
        const uint32_t id = find_longest(at == 0 ? &w->first : &w->later, pretoken->text + at,
                                         pretoken->n - at, &len);

        if (id == D9DI_NO_ID) {
            out->len = before;
            if (spans)
                spans->len = spans_before;
            return encode_unknown(w, pretoken, out, spans);
        }
        D9D_TRY(d9di_tokenizer_model_push(id, at, at + len, out, spans));
        at += len;
    }
    return D9D_OK;
}

static d9d_status wordpiece_encode(const void *model, void *scratch, const d9di_pretoken *pretokens,
                                   size_t n, const char *end, d9d_token_ids *out,
                                   d9di_alignments *spans)
{
    (void)end;
    return d9di_tokenizer_model_each(pretokens, n, ((const struct wordpiece *)model)->chars,
                                     scratch, encode_pretoken, model, scratch, out, spans);
}

const d9di_tokenizer_model_kind d9di_wordpiece_kind = {
    .type = "WordPiece",
    .keys = "vocab unk_token continuing_subword_prefix max_input_chars_per_word",
    .create = wordpiece_create,
    .free = wordpiece_free,
    .vocab = wordpiece_vocab,
    .scratch_create = d9di_tokenizer_model_buf_create,
    .scratch_free = d9di_tokenizer_model_buf_free,
    .encode = wordpiece_encode,
};
