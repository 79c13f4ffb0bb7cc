/* shard_tokens.c - tokenises the documents of a chunk. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/build/shard_private.h"
#include "data/dataset/megatron.h"
#include "data/io/csv.h"
#include "data/io/framing.h"
#include "data/io/preference_layout.h"

static const char *source_name(const d9di_shard_tokenizer *t, const d9di_document_record *doc)
{
    const char *name = t->opts->inputs[doc->pos.source];

    return strcmp(name, "-") == 0 ? "standard input" : name;
}

static bool is_tokens(const d9di_shard_tokenizer *t, const d9di_document_record *doc)
{
    return d9di_documents_format(t->opts, (size_t)doc->pos.source) == D9D_SHARD_MEGATRON;
}

/* Counts the line ends of the document before byte `at`. */
static int64_t lines_before(const d9di_document_chunk *c, const d9di_document_record *doc,
                            size_t at)
{
    const char *text = c->text.data ? c->text.data + doc->offset : "";

    return d9di_framing_count_lines(text, at < doc->len ? at : doc->len);
}

/* Fails with an error at byte `at` of the document. */
static d9d_status fail_at(const d9di_shard_tokenizer *t, const d9di_document_chunk *c,
                          const d9di_document_record *doc, size_t at, const char *what)
{
    if (is_tokens(t, doc))
        return D9D_FAIL(D9D_EFORMAT, "%s: document %lld: %s", source_name(t, doc),
                        (long long)doc->pos.line - 1, what);
    return D9D_FAIL(
        D9D_EFORMAT, "%s: line %lld, byte %lld: %s", source_name(t, doc),
        (long long)(d9di_documents_line(t->opts, &t->input_splits->list.data[c->input_split],
                                        &doc->pos) +
                    lines_before(c, doc, at)),
        (long long)doc->pos.byte + (long long)at, what);
}

static d9d_status check_utf8(const char *text, size_t n, d9di_jsonl_error *error)
{
    const size_t valid = d9d_utf8_valid_up_to(text, n);

    if (valid == n)
        return D9D_OK;
    error->offset = valid;
    error->reason = D9D_SHARD_BAD_UTF8;
    snprintf(error->message, sizeof(error->message), "0x%02x is not valid UTF-8",
             (unsigned char)text[valid]);
    return D9D_EFORMAT;
}

/* One function per format, of a record raw[0, n).  *error describes a bad record, unless the
 * tokenizer recorded the error. */
typedef d9d_status (*tokenize_fn)(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                  d9di_document_chunk *c, d9di_document_record *doc,
                                  const char *raw, size_t n, d9di_jsonl_error *error);

static d9d_status tokenize_text(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                d9di_document_chunk *c, d9di_document_record *doc, const char *raw,
                                size_t n, d9di_jsonl_error *error)
{
    const d9d_buf text = {.data = (char *)(uintptr_t)raw, .len = n}; /* is read only */

    (void)error;
    return d9di_shard_encode_texts(t, w, &text, NULL, &c->ids, doc);
}

static d9d_status tokenize_jsonl(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                 d9di_document_chunk *c, d9di_document_record *doc, const char *raw,
                                 size_t n, d9di_jsonl_error *error)
{
    const d9d_shard_opts *opts = t->opts;

    w->text.len = w->pair.len = 0;
    D9D_TRY(d9di_jsonl_get_text(raw, n, opts->text_key ? opts->text_key : "text", &w->text, error));
    if (opts->text_pair_key)
        D9D_TRY(d9di_jsonl_get_text(raw, n, opts->text_pair_key, &w->pair, error));
    return d9di_shard_encode_texts(t, w, &w->text, opts->text_pair_key ? &w->pair : NULL, &c->ids,
                                   doc);
}

static d9d_status read_given_ids(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                 d9di_document_chunk *c, d9di_document_record *doc, const char *raw,
                                 size_t n, d9di_jsonl_error *error)
{
    (void)w;
    return d9di_jsonl_get_tokens(raw, n, t->vocab, &c->ids, &c->labels, &doc->has_labels, error);
}

/* Positions without ids of their own: all are 0, and so are the labels unless a class is given. */
static d9d_status read_arrays(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                              d9di_document_chunk *c, d9di_document_record *doc, const char *raw,
                              size_t n, d9di_jsonl_error *error)
{
    int64_t tokens;

    (void)raw;
    (void)n;
    D9D_TRY(d9di_shard_fields_tokens(t->fields, &w->values, &tokens, error));
    doc->has_labels = t->opts->label_key == NULL;
    for (int64_t i = 0; i < tokens; i++) {
        D9D_TRY(D9D_VEC_PUSH(&c->ids, 0));
        if (doc->has_labels)
            D9D_TRY(D9D_VEC_PUSH(&c->labels, 0));
    }
    return D9D_OK;
}

static d9d_status tokenize_chat(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                d9di_document_chunk *c, d9di_document_record *doc, const char *raw,
                                size_t n, d9di_jsonl_error *error)
{
    const bool by_turns = d9di_shard_resolve_overflow(t->opts) == D9D_SHARD_OVERFLOW_TRUNCATE;
    const d9di_chat_reader reader = d9di_chat_get_reader(t->chat);
    json_t *chat;
    d9d_status st;

    D9D_TRY(d9di_jsonl_get_chat(raw, n, &reader, &chat, error));
    doc->has_labels = true;
    error->reason = D9D_SHARD_BAD_CHAT;
    st =
        d9di_chat_encode(t->chat, w->scratch, chat, by_turns ? d9di_shard_max_document(t->opts) : 0,
                         &w->rendering, &c->ids, &c->labels, &doc->truncation);
    doc->untrained = st == D9D_OK && w->rendering.loss_spans.len == 0;
    json_decref(chat);
    return st;
}

/* --- records of answers ------------------------------------------------------------------ */

/* One document of a record; chat NULL: an absent answer, the id 0 without a target. */
static d9d_status add_answer(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                             d9di_document_chunk *c, d9di_document_record *doc, const json_t *chat,
                             d9di_jsonl_error *error)
{
    const size_t before = c->ids.len;

    error->reason = D9D_SHARD_BAD_CHAT;
    if (chat != NULL) {
        D9D_TRY(
            d9di_chat_encode_whole(t->chat, w->scratch, chat, &w->rendering, &c->ids, &c->labels));
        if (c->ids.len == before) {
            snprintf(error->message, sizeof(error->message), "an answer has no target");
            return D9D_EFORMAT;
        }
    } else {
        D9D_TRY(D9D_VEC_PUSH(&c->ids, 0));
        D9D_TRY(D9D_VEC_PUSH(&c->labels, -100));
    }
    doc->part[doc->n_parts++] = (uint32_t)(c->ids.len - before);
    return D9D_OK;
}

static d9d_status add_answers(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                              d9di_document_chunk *c, d9di_document_record *doc,
                              const json_t *const *chat, size_t n, d9di_jsonl_error *error)
{
    doc->has_labels = true;
    doc->n_parts = 0;
    for (size_t i = 0; i < n; i++)
        D9D_TRY(add_answer(t, w, c, doc, chat[i], error));
    return D9D_OK;
}

static d9d_status tokenize_pair(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                d9di_document_chunk *c, d9di_document_record *doc, const char *raw,
                                size_t n, d9di_jsonl_error *error)
{
    const d9di_chat_reader reader = d9di_chat_get_reader(t->chat);
    d9di_answer_pair p;
    d9d_status st;

    D9D_TRY(d9di_answer_pair_read(raw, n, &reader, &p, error));
    st = add_answers(t, w, c, doc, (const json_t *const[]){p.chosen, p.rejected}, 2, error);
    d9di_answer_pair_release(&p);
    return st;
}

/* The prompt of this record with the answer of the one before it in the chunk, whose first record
 * takes the last one's; *out NULL where that is no record. */
static d9d_status read_mismatch(const d9di_document_chunk *c, const d9di_document_record *doc,
                                const char *raw, size_t n, json_t **out)
{
    const size_t at = (size_t)(doc - c->docs.data), all = c->docs.len;
    const d9di_document_record *other = &c->docs.data[(at + all - 1) % all];
    d9di_jsonl_error error = {.message = ""};
    const char *text = c->text.data + other->offset;
    d9d_status st;

    *out = NULL;
    if (other == doc || d9d_utf8_valid_up_to(text, other->len) != other->len)
        return D9D_OK;
    st = d9di_answer_pair_read_mismatch(raw, n, text, other->len, out, &error);
    return st == D9D_EFORMAT ? D9D_OK : st;
}

static d9d_status tokenize_unpaired(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                    d9di_document_chunk *c, d9di_document_record *doc,
                                    const char *raw, size_t n, d9di_jsonl_error *error)
{
    const d9di_chat_reader reader = d9di_chat_get_reader(t->chat);
    d9di_answer_pair p;
    json_t *mismatch;
    d9d_status st;

    D9D_TRY(d9di_answer_pair_read_unpaired(raw, n, &reader, &p, error));
    st = read_mismatch(c, doc, raw, n, &mismatch);
    if (st == D9D_OK)
        st = add_answers(t, w, c, doc,
                         (const json_t *const[]){p.chosen, p.rejected, mismatch, NULL}, 4, error);
    json_decref(mismatch);
    d9di_answer_pair_release(&p);
    return st;
}

static d9d_status read_megatron_ids(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                    d9di_document_chunk *c, d9di_document_record *doc,
                                    const char *raw, size_t n, d9di_jsonl_error *error)
{
    int64_t bad = 0;
    const d9d_status st = d9di_megatron_ids(raw, n, t->vocab, &c->ids, &bad);

    (void)w;
    (void)doc;
    if (st == D9D_EFORMAT) {
        error->reason = D9D_SHARD_BAD_VALUE;
        snprintf(error->message, sizeof(error->message), "the id %lld is not from 0 to %lld",
                 (long long)bad, (long long)t->vocab - 1);
    }
    return st;
}

static const tokenize_fn formats[] = {
    [D9D_SHARD_JSONL] = tokenize_jsonl,       [D9D_SHARD_TEXT] = tokenize_text,
    [D9D_SHARD_TOKENS] = read_given_ids,      [D9D_SHARD_CHAT] = tokenize_chat,
    [D9D_SHARD_MEGATRON] = read_megatron_ids, [D9D_SHARD_ARRAYS] = read_arrays,
    [D9D_SHARD_PREFERENCE] = tokenize_pair,   [D9D_SHARD_UNPAIRED] = tokenize_unpaired,
};

/* Makes the object of a table's row, *raw and *n, in the worker's buffer. */
static d9d_status convert_row(const d9di_document_record *doc, d9d_buf *out, const char **raw,
                              size_t *n, d9di_jsonl_error *error)
{
    out->len = 0;
    D9D_TRY(d9di_csv_row_to_json(doc->separator, *raw - doc->header, doc->header, *raw, *n, out,
                                 error));
    *raw = out->data;
    *n = out->len;
    return D9D_OK;
}

/* Computes the ids of a record, its fields, and its class if it has one. */
static d9d_status tokenize_record(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                  d9di_document_chunk *c, d9di_document_record *doc,
                                  const char *raw, size_t n, int32_t *label,
                                  d9di_jsonl_error *error)
{
    const d9d_shard_format format = d9di_documents_format(t->opts, (size_t)doc->pos.source);
    const size_t ids = c->ids.len, fields = c->fields.len;

    if (t->fields->list.n > 0)
        D9D_TRY(d9di_shard_fields_read(t->fields, raw, n, &w->values, error));
    error->reason = D9D_SHARD_BAD_TEXT;
    D9D_TRY(formats[format](t, w, c, doc, raw, n, error));
    if (t->fields->list.n > 0)
        D9D_TRY(d9di_shard_fields_append(t->fields, &w->values, (int64_t)(c->ids.len - ids),
                                         &c->fields, error));
    doc->fields = c->fields.len - fields;
    return t->opts->label_key
               ? d9di_jsonl_get_label(raw, n, t->opts->label_key, t->vocab, label, error)
               : D9D_OK;
}

/* EFORMAT for a bad record, which *error describes; of a row, whose object nobody sees, its start.
 */
static d9d_status read_record(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                              d9di_document_chunk *c, d9di_document_record *doc, int32_t *label,
                              d9di_jsonl_error *error)
{
    const char *raw = c->text.data ? c->text.data + doc->offset : "";
    size_t n = doc->len;
    d9d_status st;

    if (!is_tokens(t, doc))
        D9D_TRY(check_utf8(raw, n, error));
    if (doc->separator)
        D9D_TRY(convert_row(doc, &w->row, &raw, &n, error));
    st = tokenize_record(t, w, c, doc, raw, n, label, error);
    if (doc->separator)
        error->offset = 0;
    if (st == D9D_EFORMAT && !error->message[0]) {
        d9d_err_copy why;

        d9d_err_save(&why, st);
        (void)d9d_num_format(error->message, sizeof(error->message), "%.300s", why.text);
    }
    return st;
}

/* Records a skipped bad record.  Line numbers count in the input split, since those in the source
 * are not known yet. */
static d9d_status skip_record(const d9di_shard_tokenizer *t, d9di_document_chunk *c,
                              d9di_document_record *doc, size_t ids, size_t labels, size_t fields,
                              const d9di_jsonl_error *error)
{
    const bool tokens = is_tokens(t, doc);
    d9di_skipped s = {.source = doc->pos.source,
                      .line = tokens ? 0 : doc->pos.line + lines_before(c, doc, error->offset),
                      .byte = tokens ? 0 : doc->pos.byte + (int64_t)error->offset,
                      .document = tokens ? doc->pos.line - 1 : -1,
                      .reason = error->reason};

    snprintf(s.error, sizeof(s.error), "%s", error->message);
    c->ids.len = ids;
    c->labels.len = labels;
    c->fields.len = fields;
    doc->n_ids = doc->fields = doc->n_parts = 0;
    doc->has_labels = false;
    doc->truncation = (d9di_chat_truncation){0};
    doc->cut = 0;
    doc->twice = false;
    doc->skipped = true;
    doc->reason = error->reason;
    return d9di_skipped_add(&c->skipped, &s);
}

/* Sets the class of a document as the label of its last token. */
static d9d_status add_class(d9di_document_chunk *c, d9di_document_record *doc, int32_t label)
{
    doc->has_labels = true;
    for (size_t i = 0; i < doc->n_ids; i++)
        D9D_TRY(D9D_VEC_PUSH(&c->labels, i + 1 < doc->n_ids ? -100 : label));
    return D9D_OK;
}

static d9d_status tokenize_document(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                    d9di_document_chunk *c, d9di_document_record *doc)
{
    const size_t ids = c->ids.len, labels = c->labels.len, fields = c->fields.len;
    d9di_jsonl_error error = {.message = ""};
    int32_t label = 0;
    const d9d_status st = read_record(t, w, c, doc, &label, &error);

    if (st == D9D_EFORMAT && t->opts->on_error == D9D_SHARD_ON_ERROR_SKIP)
        return skip_record(t, c, doc, ids, labels, fields, &error);
    if (st != D9D_OK)
        return st == D9D_EFORMAT ? fail_at(t, c, doc, error.offset, error.message) : st;
    if (doc->has_labels && t->has_eos)
        return fail_at(t, c, doc, 0, "labels are given, so no token can be appended");
    if (doc->has_labels && t->opts->label_key)
        return fail_at(t, c, doc, 0, "labels are given, and a class besides");
    if (t->has_eos && doc->cut == 0) /* a truncated document has no end */
        D9D_TRY(D9D_VEC_PUSH(&c->ids, t->eos));
    doc->n_ids = c->ids.len - ids;
    return t->opts->label_key ? add_class(c, doc, label) : D9D_OK;
}

d9d_status d9di_shard_tokenize_chunk(const d9di_shard_tokenizer *t, d9di_shard_worker *w,
                                     d9di_document_chunk *c)
{
    for (size_t i = 0; i < c->docs.len; i++)
        D9D_TRY(tokenize_document(t, w, c, &c->docs.data[i]));
    return D9D_OK;
}
