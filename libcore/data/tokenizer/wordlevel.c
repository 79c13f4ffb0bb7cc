/* wordlevel.c - WordLevel: a pre-token is a token, or the unknown one. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/tokenizer_model.h"

struct wordlevel {
    d9di_vocab vocab;
    uint32_t unk; /* D9DI_NO_ID: the vocabulary lacks it */
    bool chars;
};

static void wordlevel_free(void *model)
{
    struct wordlevel *w = model;

    d9di_vocab_release(&w->vocab);
    free(w);
}

static d9d_status wordlevel_load(struct wordlevel *w, const json_t *m, const char *where)
{
    const char *unk;
    json_t *vocab;

    D9D_TRY(d9d_json_get_str(m, where, "unk_token", &unk));
    D9D_TRY(d9d_json_get_obj(m, where, "vocab", &vocab));
    D9D_TRY(d9di_vocab_load(vocab, where, &w->vocab));
    w->unk = d9di_vocab_find(&w->vocab, unk, strlen(unk));
    return D9D_OK;
}

static d9d_status wordlevel_create(const json_t *m, const char *where, bool chars, void **out)
{
    struct wordlevel *w = calloc(1, sizeof(*w));
    d9d_status st;

    if (!w)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    w->chars = chars;
    st = wordlevel_load(w, m, where);
    if (st != D9D_OK) {
        wordlevel_free(w);
        return st;
    }
    *out = w;
    return D9D_OK;
}

static const d9di_vocab *wordlevel_vocab(const void *model)
{
    return &((const struct wordlevel *)model)->vocab;
}

static d9d_status encode_pretoken(const void *model, void *scratch, const d9di_pretoken *pretoken,
                                  d9d_token_ids *out, d9di_alignments *spans)
{
    const struct wordlevel *w = model;
    uint32_t id = d9di_vocab_find(&w->vocab, pretoken->text, pretoken->n);

    (void)scratch;
    if (id == D9DI_NO_ID)
        id = w->unk;
    if (id == D9DI_NO_ID)
        return D9D_FAIL(D9D_EFORMAT, "\"%.*s\" is no token, and the vocabulary lacks unk_token",
                        (int)(pretoken->n < 80 ? pretoken->n : 80), pretoken->text);
    return d9di_tokenizer_model_push(id, 0, pretoken->n, out, spans);
}

static d9d_status wordlevel_encode(const void *model, void *scratch, const d9di_pretoken *pretokens,
                                   size_t n, const char *end, d9d_token_ids *out,
                                   d9di_alignments *spans)
{
    (void)end;
    return d9di_tokenizer_model_each(pretokens, n, ((const struct wordlevel *)model)->chars,
                                     scratch, encode_pretoken, model, scratch, out, spans);
}

const d9di_tokenizer_model_kind d9di_wordlevel_kind = {
    .type = "WordLevel",
    .keys = "vocab unk_token",
    .create = wordlevel_create,
    .free = wordlevel_free,
    .vocab = wordlevel_vocab,
    .scratch_create = d9di_tokenizer_model_buf_create,
    .scratch_free = d9di_tokenizer_model_buf_free,
    .encode = wordlevel_encode,
};
