/* filter_judge.c - what is known of a document without the others: its text, the rules that it
 * keeps, its hash and its bands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/data/tokenizer/tokenizer.h"
#include "data/filter/filter_private.h"
#include "data/io/csv.h"
#include "data/io/jsonl.h"

/* --- the text -------------------------------------------------------------------------------- */

static d9d_status fail_at(const d9di_filter *f, const d9di_document_chunk *c,
                          const d9di_document_record *doc, const d9di_jsonl_error *error)
{
    return D9D_FAIL(D9D_EFORMAT,
                    "%s: line %lld: byte %zu: %s; --on-error skip leaves such records out",
                    f->opts->inputs[doc->pos.source],
                    (long long)d9di_documents_line(&f->reading,
                                                   &f->splits.list.data[c->input_split], &doc->pos),
                    error->offset, error->message);
}

static d9d_status read_text(const d9di_filter *f, d9di_filter_worker *w,
                            const d9di_document_record *doc, const char **raw, size_t *n,
                            d9di_jsonl_error *error)
{
    const size_t valid = d9d_utf8_valid_up_to(*raw, *n);

    w->text.len = w->row.len = 0;
    if (valid != *n) {
        error->offset = valid;
        snprintf(error->message, sizeof(error->message), "is not valid UTF-8");
        return D9D_EFORMAT;
    }
    if (d9di_documents_format(&f->reading, (size_t)doc->pos.source) == D9D_SHARD_TEXT)
        return d9d_buf_append(&w->text, *raw, *n);
    if (doc->separator) {
        D9D_TRY(d9di_csv_row_to_json(doc->separator, *raw - doc->header, doc->header, *raw, *n,
                                     &w->row, error));
        *raw = w->row.data;
        *n = w->row.len;
    }
    return d9di_jsonl_get_text(*raw, *n, f->opts->text_key ? f->opts->text_key : "text", &w->text,
                               error);
}

d9d_status d9di_filter_get_text(const d9di_filter *f, d9di_filter_worker *w,
                                const d9di_document_chunk *c, const d9di_document_record *doc,
                                const char **raw, size_t *n, bool *readable)
{
    d9di_jsonl_error error = {.message = ""};
    d9d_status st;

    *raw = c->text.data ? c->text.data + doc->offset : "";
    *n = doc->len;
    st = read_text(f, w, doc, raw, n, &error);
    *readable = st == D9D_OK;
    if (st != D9D_EFORMAT)
        return st;
    return f->opts->on_error == D9D_SHARD_ON_ERROR_SKIP ? D9D_OK : fail_at(f, c, doc, &error);
}

/* --- judging --------------------------------------------------------------------------------- */

static d9d_status append_keys(const d9di_filter *f, d9di_filter_worker *w, d9di_filter_chunk *c)
{
    const d9di_minhash *m = &f->minhash;
    uint64_t *keys;

    if (m->bands == 0)
        return D9D_OK;
    if (!w->signature && !(w->signature = calloc(m->n, sizeof(*w->signature))))
        return D9D_FAIL(D9D_ENOMEM, "no memory for a signature of %zu hashes", m->n);
    D9D_TRY(D9D_VEC_RESERVE(&c->keys, m->bands));
    keys = c->keys.data + c->keys.len;
    memset(keys, 0, m->bands * sizeof(*keys));
    if (w->words.n > 0) {
        d9di_minhash_sign(m, &w->words, w->signature);
        d9di_minhash_keys(m, w->signature, keys);
    }
    c->keys.len += m->bands;
    return D9D_OK;
}

static d9d_status judge_document(const d9di_filter *f, d9di_filter_worker *w, d9di_filter_chunk *c,
                                 const d9di_document_record *doc, int *rule)
{
    const char *raw, *text;
    bool readable;
    size_t n;

    *rule = D9DI_TEXT_RULE_UNREADABLE;
    D9D_TRY(d9di_filter_get_text(f, w, &c->documents, doc, &raw, &n, &readable));
    if (!readable)
        return D9D_OK;
    text = w->text.len > 0 ? w->text.data : "";
    D9D_TRY(d9di_text_rules_check(f->thresholds, &w->measures, text, w->text.len, rule));
    if (*rule != D9DI_TEXT_RULE_NONE)
        return D9D_OK;
    if (f->contamination.n > 0 || f->minhash.bands > 0)
        D9D_TRY(d9di_text_words_fold(&w->words, text, w->text.len));
    if (d9di_contamination_find(&f->contamination, &w->words)) {
        *rule = D9DI_TEXT_RULE_CONTAMINATED;
        return D9D_OK;
    }
    D9D_TRY(D9D_VEC_PUSH(&c->hashes, d9d_hash_bytes(text, w->text.len)));
    return append_keys(f, w, c);
}

d9d_status d9di_filter_judge_chunk(const d9di_filter *f, d9di_filter_worker *w,
                                   d9di_filter_chunk *c)
{
    c->rules.len = c->hashes.len = c->keys.len = 0;
    for (size_t i = 0; i < c->documents.docs.len; i++) {
        int rule;

        D9D_TRY(judge_document(f, w, c, &c->documents.docs.data[i], &rule));
        D9D_TRY(D9D_VEC_PUSH(&c->rules, (int8_t)rule));
    }
    return D9D_OK;
}

void d9di_filter_worker_release(d9di_filter_worker *w)
{
    d9d_buf_release(&w->text);
    d9d_buf_release(&w->row);
    d9di_text_measures_release(&w->measures);
    d9di_text_words_release(&w->words);
    free(w->signature);
}

void d9di_filter_chunk_release(d9di_filter_chunk *c)
{
    d9di_document_chunk_release(&c->documents);
    D9D_VEC_RELEASE(&c->rules);
    D9D_VEC_RELEASE(&c->hashes);
    D9D_VEC_RELEASE(&c->keys);
}
