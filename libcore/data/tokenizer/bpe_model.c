/* bpe_model.c - BPE among the kinds of models, and which bytes its ids stand for. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/tokenizer_model.h"
#include "data/tokenizer/utf8.h"

enum { LOG2_CACHE_SLOTS = 18, LOG2_CACHE_MAX = 20 }; /* of a thread: 12 to 64 MiB */

/* --- alignment of ids ---------------------------------------------------------------- */

/* Width of the first character, or byte, which may begin no token. */
static size_t first_char_width(const d9di_bpe *b, const char *text)
{
    return b->chars ? d9di_utf8_width((unsigned char)text[0]) : 1;
}

static bool is_unknown(const d9di_bpe *b, const char *text, size_t n)
{
    const size_t w = first_char_width(b, text);

    return w <= n && (b->chars ? d9di_vocab_find(&b->vocab, text, w)
                               : b->byte_id[(unsigned char)*text]) == D9DI_NO_ID;
}

static size_t unknown_width(const d9di_bpe *b, const char *text, size_t n)
{
    size_t w = first_char_width(b, text);

    while (b->fuse_unk && w < n && is_unknown(b, text + w, n - w))
        w += first_char_width(b, text + w);
    return w;
}

/* What a token stands for, without prefix and suffix. */
static void strip_affixes(const d9di_bpe *b, const char **text, size_t *len)
{
    const size_t prefix = strlen(b->prefix), suffix = strlen(b->suffix);

    if (prefix > 0 && *len > prefix && memcmp(*text, b->prefix, prefix) == 0) {
        *text += prefix;
        *len -= prefix;
    }
    if (suffix > 0 && *len > suffix && memcmp(*text + *len - suffix, b->suffix, suffix) == 0)
        *len -= suffix;
}

/* Number of bytes of text[0, n) that `id` covers, where the text is encoded to `id` and what
 * follows.  *skip: bytes before them that no token covers. */
static size_t count_token_bytes(const d9di_bpe *b, const char *text, size_t n, uint32_t id,
                                size_t *skip)
{
    const struct d9di_vocab_token *t = &b->vocab.tokens[id];
    const char *of = b->chars ? t->text : b->bytes + b->byte_offset[id];
    size_t len = b->chars ? t->len : b->byte_offset[id + 1] - b->byte_offset[id], at = 0;

    if (b->affixed)
        strip_affixes(b, &of, &len);
    for (*skip = 0; at < n; at += first_char_width(b, text + at)) {
        *skip = at;
        if (len <= n - at && memcmp(text + at, of, len) == 0)
            return len;
        if (b->chars && b->byte_fallback && id == b->byte_id[(unsigned char)text[at]])
            return 1;
        if (id == b->unk)
            return unknown_width(b, text + at, n - at);
    }
    *skip = 0; /* inside: a merge of bytes */
    return n;
}

static d9d_status trace_ids(const d9di_bpe *b, const d9di_pretoken *pretoken, const uint32_t *ids,
                            size_t n, d9di_alignments *spans)
{
    size_t at = 0, skip;

    for (size_t i = 0; i < n; i++) {
        const size_t w = count_token_bytes(b, pretoken->text + at, pretoken->n - at, ids[i], &skip);
        const size_t from = w > 0 ? at + skip : pretoken->n - 1;

        D9D_TRY(D9D_VEC_PUSH(
            spans, ((d9di_alignment){(uint32_t)from, (uint32_t)(w > 0 ? from + w : from + 1)})));
        at += skip + w;
    }
    return D9D_OK;
}

/* --- the kind -------------------------------------------------------------------------- */

static void bpe_free(void *model)
{
    d9di_bpe_release(model);
    free(model);
}

static d9d_status bpe_create(const json_t *m, const char *where, bool chars, void **out)
{
    d9di_bpe *b = malloc(sizeof(*b));
    d9d_status st;

    if (!b)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    st = d9di_bpe_init(m, where, chars, b);
    if (st != D9D_OK) {
        free(b);
        return st;
    }
    *out = b;
    return D9D_OK;
}

static const d9di_vocab *bpe_vocab(const void *model)
{
    return &((const d9di_bpe *)model)->vocab;
}

static void bpe_scratch_free(void *scratch)
{
    if (scratch)
        d9di_bpe_scratch_release(scratch);
    free(scratch);
}

static d9d_status bpe_scratch_create(void **out)
{
    d9di_bpe_scratch *s = malloc(sizeof(*s));
    d9d_status st;

    if (!s)
        return D9D_FAIL(D9D_ENOMEM, "no memory to tokenise with");
    st = d9di_bpe_scratch_init(s, LOG2_CACHE_SLOTS, LOG2_CACHE_MAX);
    if (st != D9D_OK) {
        bpe_scratch_free(s);
        return st;
    }
    *out = s;
    return D9D_OK;
}

static d9d_status bpe_encode(const void *model, void *scratch, const d9di_pretoken *pretokens,
                             size_t n, const char *end, d9d_token_ids *out, d9di_alignments *spans)
{
    const size_t before = out->len;

    D9D_TRY(d9di_bpe_encode(model, scratch, pretokens, n, end, out));
    return spans ? trace_ids(model, pretokens, out->data + before, out->len - before, spans)
                 : D9D_OK;
}

const d9di_tokenizer_model_kind d9di_bpe_kind = {
    .type = "BPE",
    .keys = "dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
            "ignore_merges vocab merges",
    .create = bpe_create,
    .free = bpe_free,
    .vocab = bpe_vocab,
    .scratch_create = bpe_scratch_create,
    .scratch_free = bpe_scratch_free,
    .encode = bpe_encode,
};
