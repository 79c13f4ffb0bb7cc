/* shard_tokens.c - documents of a chunk to ids. */
#include <stdio.h>
#include <string.h>

#include "data/megatron.h"
#include "data/shard_private.h"

static const char *name_of(const d9di_tokenise *t, const d9di_text_document *doc)
{
    const char *name = t->how->inputs[doc->place.source];

    return strcmp(name, "-") == 0 ? "standard input" : name;
}

/* What is wrong at byte `at` of the document. */
static d9d_status fail_at(const d9di_tokenise *t, const d9di_text_chunk *c,
                          const d9di_text_document *doc, size_t at, const char *what)
{
    const char *text = c->text.data ? c->text.data + doc->at : "";
    long long line = d9di_line_of(t->how, &t->pieces->list.data[c->piece], &doc->place);
    size_t i;

    for (i = 0; i < at && i < doc->len; i++)
        line += text[i] == '\n';
    return D9D_FAIL(D9D_EFORMAT, "%s: line %lld, byte %lld: %s", name_of(t, doc), line,
                    (long long)doc->place.byte + (long long)at, what);
}

static d9d_status check_utf8(const d9di_tokenise *t, const d9di_text_chunk *c,
                             const d9di_text_document *doc)
{
    const char *text = c->text.data ? c->text.data + doc->at : "";
    const size_t valid = d9d_utf8_valid_up_to(text, doc->len);
    char what[40];

    if (valid == doc->len)
        return D9D_OK;
    snprintf(what, sizeof(what), "0x%02x is not valid UTF-8", (unsigned char)text[valid]);
    return fail_at(t, c, doc, valid, what);
}

static d9d_status encode(const d9di_tokenise *t, d9d_tokenizer_scratch *s, d9di_text_chunk *c,
                         const d9di_text_document *doc, const char *text, size_t n)
{
    const d9d_status st = d9d_tokenizer_encode(t->tok, s, n ? text : "", n, &c->ids);
    d9d_err_copy why;

    if (st != D9D_EFORMAT)
        return st;
    d9d_err_save(&why, st);
    return D9D_FAIL(st, "%s: line %lld: %s", name_of(t, doc),
                    (long long)d9di_line_of(t->how, &t->pieces->list.data[c->piece], &doc->place),
                    why.text);
}

/* A function for each format.  What is wrong with a line is in *error. */
typedef d9d_status (*tokenise_fn)(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                                  d9di_text_document *doc, const char *raw,
                                  d9di_jsonl_error *error);

static d9d_status text_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                           d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    (void)error;
    return encode(t, w->scratch, c, doc, raw, doc->len);
}

static d9d_status jsonl_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                            d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    w->text.len = 0;
    D9D_TRY(d9di_jsonl_text(raw, doc->len, t->how->text_key ? t->how->text_key : "text", &w->text,
                            error));
    return encode(t, w->scratch, c, doc, w->text.data, w->text.len);
}

static d9d_status given_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                            d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    (void)w;
    return d9di_jsonl_tokens(raw, doc->len, t->vocab, &c->ids, &c->labels, &doc->has_labels, error);
}

static d9d_status chat_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                           d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    const bool by_turns = d9di_overflow_of(t->how) == D9D_OVERFLOW_TRUNCATE;

    D9D_TRY(d9di_jsonl_messages(raw, doc->len, &w->messages, error));
    doc->has_labels = true;
    return d9di_chat_encode(t->chat, w->scratch, &w->messages,
                            by_turns ? d9di_longest_document(t->how) : 0, &w->rendering, &c->ids,
                            &c->labels, &doc->lost, error);
}

static d9d_status megatron_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                               d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    int64_t bad = 0;
    d9d_status st;

    (void)w;
    (void)error;
    st = d9di_megatron_ids(raw, doc->len, t->vocab, &c->ids, &bad);
    return st != D9D_EFORMAT ? st
                             : D9D_FAIL(st, "%s: document %lld: the id %lld is not from 0 to %lld",
                                        name_of(t, doc), (long long)doc->place.line - 1,
                                        (long long)bad, (long long)t->vocab - 1);
}

static const tokenise_fn formats[] = {
    [D9D_SHARD_JSONL] = jsonl_ids,       [D9D_SHARD_TEXT] = text_ids,
    [D9D_SHARD_TOKENS] = given_ids,      [D9D_SHARD_CHAT] = chat_ids,
    [D9D_SHARD_MEGATRON] = megatron_ids,
};

static d9d_status tokenise(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                           d9di_text_document *doc)
{
    const d9d_shard_format format = d9di_format_of(t->how, (size_t)doc->place.source);
    const char *raw = c->text.data ? c->text.data + doc->at : "";
    d9di_jsonl_error error = {0, ""};
    d9d_status st;

    if (format != D9D_SHARD_MEGATRON)
        D9D_TRY(check_utf8(t, c, doc));
    st = formats[format](t, w, c, doc, raw, &error);
    return st == D9D_EFORMAT && error.what[0] ? fail_at(t, c, doc, error.at, error.what) : st;
}

/* The class of a document as the label of its last token. */
static d9d_status add_class(const d9di_tokenise *t, d9di_text_chunk *c, d9di_text_document *doc,
                            size_t n)
{
    const char *raw = c->text.data ? c->text.data + doc->at : "";
    d9di_jsonl_error error = {0, ""};
    int32_t label;
    d9d_status st = d9di_jsonl_label(raw, doc->len, t->how->label_key, t->vocab, &label, &error);

    if (st == D9D_OK && doc->has_labels)
        return fail_at(t, c, doc, 0, "labels are given, and a class besides");
    if (st != D9D_OK)
        return st == D9D_EFORMAT && error.what[0] ? fail_at(t, c, doc, error.at, error.what) : st;
    doc->has_labels = true;
    for (size_t i = 0; i < n; i++)
        D9D_TRY(D9D_VEC_PUSH(&c->labels, i + 1 < n ? -100 : label));
    return D9D_OK;
}

d9d_status d9di_tokenise_chunk(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c)
{
    size_t i;

    for (i = 0; i < c->docs.len; i++) {
        d9di_text_document *doc = &c->docs.data[i];
        const size_t before = c->ids.len;

        D9D_TRY(tokenise(t, w, c, doc));
        if (doc->has_labels && t->has_eos)
            return fail_at(t, c, doc, 0, "labels are given, so no token can be appended");
        if (t->has_eos)
            D9D_TRY(D9D_VEC_PUSH(&c->ids, t->eos));
        doc->n_ids = c->ids.len - before;
        if (t->how->label_key)
            D9D_TRY(add_class(t, c, doc, doc->n_ids));
    }
    return D9D_OK;
}
