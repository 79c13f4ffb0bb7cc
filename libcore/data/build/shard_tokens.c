/* shard_tokens.c - documents of a chunk to ids. */
#include <stdio.h>
#include <string.h>

#include "data/build/shard_private.h"
#include "data/dataset/megatron.h"

static const char *name_of(const d9di_tokenise *t, const d9di_text_document *doc)
{
    const char *name = t->how->inputs[doc->place.source];

    return strcmp(name, "-") == 0 ? "standard input" : name;
}

static bool is_tokens(const d9di_tokenise *t, const d9di_text_document *doc)
{
    return d9di_format_of(t->how, (size_t)doc->place.source) == D9D_SHARD_MEGATRON;
}

/* Ends of lines of the document before byte `at`. */
static int64_t lines_before(const d9di_text_chunk *c, const d9di_text_document *doc, size_t at)
{
    const char *text = c->text.data ? c->text.data + doc->at : "";
    int64_t n = 0;

    for (size_t i = 0; i < at && i < doc->len; i++)
        n += text[i] == '\n';
    return n;
}

/* What is wrong at byte `at` of the document. */
static d9d_status fail_at(const d9di_tokenise *t, const d9di_text_chunk *c,
                          const d9di_text_document *doc, size_t at, const char *what)
{
    if (is_tokens(t, doc))
        return D9D_FAIL(D9D_EFORMAT, "%s: document %lld: %s", name_of(t, doc),
                        (long long)doc->place.line - 1, what);
    return D9D_FAIL(D9D_EFORMAT, "%s: line %lld, byte %lld: %s", name_of(t, doc),
                    (long long)(d9di_line_of(t->how, &t->pieces->list.data[c->piece], &doc->place) +
                                lines_before(c, doc, at)),
                    (long long)doc->place.byte + (long long)at, what);
}

static d9d_status check_utf8(const char *text, size_t n, d9di_jsonl_error *error)
{
    const size_t valid = d9d_utf8_valid_up_to(text, n);

    if (valid == n)
        return D9D_OK;
    error->at = valid;
    error->reason = D9D_BAD_UTF8;
    snprintf(error->what, sizeof(error->what), "0x%02x is not valid UTF-8",
             (unsigned char)text[valid]);
    return D9D_EFORMAT;
}

static d9d_status encode(const d9di_tokenise *t, d9d_tokenizer_scratch *s, d9di_text_chunk *c,
                         const char *text, size_t n)
{
    return d9d_tokenizer_encode(t->tok, s, n ? text : "", n, &c->ids);
}

/* A function for each format.  What is wrong with a record is in *error, unless the tokenizer says
 * it. */
typedef d9d_status (*tokenise_fn)(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                                  d9di_text_document *doc, const char *raw,
                                  d9di_jsonl_error *error);

static d9d_status text_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                           d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    (void)error;
    return encode(t, w->scratch, c, raw, doc->len);
}

static d9d_status jsonl_ids(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                            d9di_text_document *doc, const char *raw, d9di_jsonl_error *error)
{
    w->text.len = 0;
    D9D_TRY(d9di_jsonl_text(raw, doc->len, t->how->text_key ? t->how->text_key : "text", &w->text,
                            error));
    return encode(t, w->scratch, c, w->text.data, w->text.len);
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
    const d9d_status st = d9di_megatron_ids(raw, doc->len, t->vocab, &c->ids, &bad);

    (void)w;
    if (st == D9D_EFORMAT) {
        error->reason = D9D_BAD_VALUE;
        snprintf(error->what, sizeof(error->what), "the id %lld is not from 0 to %lld",
                 (long long)bad, (long long)t->vocab - 1);
    }
    return st;
}

static const tokenise_fn formats[] = {
    [D9D_SHARD_JSONL] = jsonl_ids,       [D9D_SHARD_TEXT] = text_ids,
    [D9D_SHARD_TOKENS] = given_ids,      [D9D_SHARD_CHAT] = chat_ids,
    [D9D_SHARD_MEGATRON] = megatron_ids,
};

/* The ids of a document, and its class where there is one.  EFORMAT for a bad record, which *error
 * describes. */
static d9d_status read_record(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                              d9di_text_document *doc, int32_t *label, d9di_jsonl_error *error)
{
    const d9d_shard_format format = d9di_format_of(t->how, (size_t)doc->place.source);
    const char *raw = c->text.data ? c->text.data + doc->at : "";
    d9d_status st;

    if (format != D9D_SHARD_MEGATRON)
        D9D_TRY(check_utf8(raw, doc->len, error));
    st = formats[format](t, w, c, doc, raw, error);
    if (st == D9D_EFORMAT && !error->what[0]) {
        d9d_err_copy why;

        d9d_err_save(&why, st);
        error->reason = D9D_BAD_TEXT;
        snprintf(error->what, sizeof(error->what), "%.300s", why.text);
    }
    return st == D9D_OK && t->how->label_key
               ? d9di_jsonl_label(raw, doc->len, t->how->label_key, t->vocab, label, error)
               : st;
}

/* Leave a bad record out: lines are those of the piece, as nobody knows the others yet. */
static d9d_status skip(const d9di_tokenise *t, d9di_text_chunk *c, d9di_text_document *doc,
                       size_t ids, size_t labels, const d9di_jsonl_error *error)
{
    const bool tokens = is_tokens(t, doc);
    d9di_skipped s = {.source = doc->place.source,
                      .line = tokens ? 0 : doc->place.line + lines_before(c, doc, error->at),
                      .byte = tokens ? 0 : doc->place.byte + (int64_t)error->at,
                      .document = tokens ? doc->place.line - 1 : -1,
                      .reason = error->reason};

    snprintf(s.error, sizeof(s.error), "%s", error->what);
    c->ids.len = ids;
    c->labels.len = labels;
    doc->n_ids = 0;
    doc->has_labels = false;
    doc->lost = (d9di_chat_lost){0};
    doc->skipped = true;
    doc->reason = error->reason;
    return d9di_skipped_note(&c->skipped, &s);
}

/* The class of a document as the label of its last token. */
static d9d_status add_class(d9di_text_chunk *c, d9di_text_document *doc, int32_t label)
{
    doc->has_labels = true;
    for (size_t i = 0; i < doc->n_ids; i++)
        D9D_TRY(D9D_VEC_PUSH(&c->labels, i + 1 < doc->n_ids ? -100 : label));
    return D9D_OK;
}

static d9d_status tokenise(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c,
                           d9di_text_document *doc)
{
    const size_t ids = c->ids.len, labels = c->labels.len;
    d9di_jsonl_error error = {.what = ""};
    int32_t label = 0;
    const d9d_status st = read_record(t, w, c, doc, &label, &error);

    if (st == D9D_EFORMAT && t->how->on_error == D9D_ON_ERROR_SKIP)
        return skip(t, c, doc, ids, labels, &error);
    if (st != D9D_OK)
        return st == D9D_EFORMAT ? fail_at(t, c, doc, error.at, error.what) : st;
    if (doc->has_labels && t->has_eos)
        return fail_at(t, c, doc, 0, "labels are given, so no token can be appended");
    if (doc->has_labels && t->how->label_key)
        return fail_at(t, c, doc, 0, "labels are given, and a class besides");
    if (t->has_eos)
        D9D_TRY(D9D_VEC_PUSH(&c->ids, t->eos));
    doc->n_ids = c->ids.len - ids;
    return t->how->label_key ? add_class(c, doc, label) : D9D_OK;
}

d9d_status d9di_tokenise_chunk(const d9di_tokenise *t, d9di_worker *w, d9di_text_chunk *c)
{
    for (size_t i = 0; i < c->docs.len; i++)
        D9D_TRY(tokenise(t, w, c, &c->docs.data[i]));
    return D9D_OK;
}
