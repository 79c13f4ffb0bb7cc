/* filter_write.c - the second pass: writes what is kept, and says of the rest why, with examples.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "data/filter/filter_private.h"

/* --- which documents are examples ------------------------------------------------------------ */

/* A document that the report names: an example, or the one that an example repeats. */
struct place {
    size_t document, of; /* of: what it repeats; itself if nothing */
    bool is_example;
    json_t *at; /* {"source": ..., "line": ...}, when it was read */
};

struct writer {
    d9di_filter *f;
    d9di_out_file *out;
    d9di_filter_worker worker;
    d9d_buf line;
    struct place places[2 * D9DI_FILTER_EXAMPLES * D9DI_TEXT_RULES];
    size_t n_places;
    size_t document; /* the next one */
};

static struct place *find_place(struct writer *w, size_t document)
{
    for (size_t i = 0; i < w->n_places; i++)
        if (w->places[i].document == document)
            return &w->places[i];
    return NULL;
}

static struct place *add_place(struct writer *w, size_t document)
{
    struct place *p = find_place(w, document);

    if (p)
        return p;
    p = &w->places[w->n_places++];
    *p = (struct place){.document = document, .of = document};
    return p;
}

/* Finds the documents that examples repeat, whose numbers count those with hashes only. */
static void find_originals(struct writer *w, const size_t *originals, size_t n)
{
    const d9di_filter *f = w->f;

    for (size_t i = 0, k = 0; i < f->rules.len; i++) {
        const int8_t rule = f->rules.data[i];

        if (rule != D9DI_TEXT_RULE_NONE && rule < D9DI_TEXT_RULE_EXACT)
            continue;
        for (size_t p = 0; p < n; p++)
            if (w->places[p].is_example && originals[p] == k) {
                w->places[p].of = i;
                (void)add_place(w, i);
            }
        k++;
    }
}

static void choose_examples(struct writer *w)
{
    const d9di_filter *f = w->f;
    size_t originals[D9DI_FILTER_EXAMPLES * D9DI_TEXT_RULES];
    int chosen[D9DI_TEXT_RULES] = {0};

    for (size_t i = 0, k = 0; i < f->rules.len; i++) {
        const int8_t rule = f->rules.data[i];
        const bool hashed = rule == D9DI_TEXT_RULE_NONE || rule >= D9DI_TEXT_RULE_EXACT;

        if (rule != D9DI_TEXT_RULE_NONE && chosen[rule] < D9DI_FILTER_EXAMPLES) {
            chosen[rule]++;
            originals[w->n_places] =
                rule >= D9DI_TEXT_RULE_EXACT ? f->duplicates.first[k] : SIZE_MAX;
            add_place(w, i)->is_example = true;
        }
        k += hashed;
    }
    find_originals(w, originals, w->n_places);
}

/* --- examples -------------------------------------------------------------------------------- */

static json_t *place_json(const d9di_filter *f, const d9di_document_chunk *c,
                          const d9di_document_record *doc)
{
    return json_pack("{s:o, s:I}", "source", d9d_json_str(f->opts->inputs[doc->pos.source]), "line",
                     (json_int_t)d9di_documents_line(
                         &f->reading, &f->splits.list.data[c->input_split], &doc->pos));
}

/* The first bytes of a text, whole characters. */
static json_t *excerpt_json(const d9d_buf *text)
{
    size_t n = text->len < D9DI_FILTER_EXCERPT ? text->len : D9DI_FILTER_EXCERPT;

    while (n > 0 && n < text->len && ((unsigned char)text->data[n] & 0xc0) == 0x80)
        n--;
    return json_stringn(n > 0 ? text->data : "", n);
}

static d9d_status note_place(struct writer *w, const d9di_document_chunk *c,
                             const d9di_document_record *doc, struct place *p)
{
    d9di_filter *f = w->f;
    const int8_t rule = f->rules.data[p->document];
    struct place *of = find_place(w, p->of);
    json_t *example, *list;
    const char *name;
    size_t unused;

    p->at = place_json(f, c, doc);
    if (!p->is_example || !p->at)
        return p->at ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for an example");
    name = d9d_filter_rules(&unused)[rule].name;
    example = json_deep_copy(p->at);
    d9d_json_set(&example, "text", excerpt_json(&w->worker.text));
    if (p->of != p->document)
        d9d_json_set(&example, "duplicate_of", of && of->at ? json_incref(of->at) : json_null());
    list = json_object_get(f->examples, name);
    if (!list) {
        d9d_json_set(&f->examples, name, json_array());
        list = json_object_get(f->examples, name);
    }
    return example && list && json_array_append_new(list, example) == 0
               ? D9D_OK
               : D9D_FAIL(D9D_ENOMEM, "no memory for an example");
}

/* --- documents ------------------------------------------------------------------------------- */

/* Writes a document as one line: the object as it was, whose line ends stand between its members.
 */
static d9d_status write_document(struct writer *w, const d9di_document_record *doc, const char *raw,
                                 size_t n)
{
    w->line.len = 0;
    if (d9di_documents_format(&w->f->reading, (size_t)doc->pos.source) == D9D_SHARD_TEXT) {
        D9D_TRY(d9d_buf_append(&w->line, "{\"text\": ", 9));
        D9D_TRY(d9d_json_put_str(&w->line, raw, n));
        D9D_TRY(d9d_buf_append(&w->line, "}", 1));
    } else {
        D9D_TRY(d9d_buf_append(&w->line, raw, n));
        for (size_t i = 0; i < n; i++)
            if (w->line.data[i] == '\n' || w->line.data[i] == '\r')
                w->line.data[i] = ' ';
    }
    D9D_TRY(d9d_buf_append(&w->line, "\n", 1));
    return d9di_out_file_write(w->out, w->line.data, w->line.len);
}

static d9d_status write_one(struct writer *w, const d9di_document_chunk *c,
                            const d9di_document_record *doc)
{
    d9di_filter *f = w->f;
    const size_t k = w->document++;
    struct place *p = find_place(w, k);
    const bool kept = k < f->rules.len && f->rules.data[k] == D9DI_TEXT_RULE_NONE;
    const char *raw = c->text.data ? c->text.data + doc->offset : "";
    size_t n = doc->len;
    bool readable;

    if (k >= f->rules.len)
        return D9D_FAIL(D9D_EIO, "%s: has more documents than when it was read first",
                        f->opts->inputs[doc->pos.source]);
    if (p || (kept && doc->separator))
        D9D_TRY(d9di_filter_get_text(f, &w->worker, c, doc, &raw, &n, &readable));
    if (p)
        D9D_TRY(note_place(w, c, doc, p));
    if (!kept)
        return D9D_OK;
    f->report->kept_bytes += (int64_t)doc->len;
    return write_document(w, doc, raw, n);
}

static d9d_status write_split(struct writer *w, d9di_documents_reader *r, size_t split,
                              d9d_progress *progress)
{
    d9di_document_chunk c = {.last = false};
    d9d_status st = D9D_OK;

    d9di_documents_seek(r, split, 0, NULL);
    while (!c.last && st == D9D_OK) {
        st = d9di_documents_read(r, &c);
        for (size_t i = 0; i < c.docs.len && st == D9D_OK; i++)
            st = write_one(w, &c, &c.docs.data[i]);
        d9d_progress_add(progress, d9di_documents_consumed(r) - progress->done);
    }
    d9di_document_chunk_release(&c);
    return st;
}

static d9d_status write_splits(struct writer *w, d9di_documents_reader *r, const d9d_log *log)
{
    const d9di_filter *f = w->f;
    d9d_progress progress;

    d9d_progress_start(&progress, log, "write", "B", (uint64_t)f->splits.bytes);
    for (size_t i = 0; i < f->splits.list.len; i++) {
        D9D_TRY(d9di_input_split_check(&f->reading, &f->splits, i));
        D9D_TRY(write_split(w, r, i, &progress));
    }
    d9d_progress_end(&progress);
    if (w->document != f->rules.len)
        return D9D_FAIL(D9D_EIO, "the inputs have %zu document%s, and had %zu when read first",
                        w->document, D9D_PLURAL(w->document), f->rules.len);
    return D9D_OK;
}

d9d_status d9di_filter_write(d9di_filter *f, const d9d_log *log, d9di_out_file *out)
{
    struct writer *w = calloc(1, sizeof(*w));
    d9di_documents_reader *r = NULL;
    d9d_status st;

    if (!w || !(f->examples = json_object()))
        D9D_TRY_OR(st, D9D_FAIL(D9D_ENOMEM, "no memory to write with"), out);
    w->f = f;
    w->out = out;
    choose_examples(w);
    D9D_TRY_OR(st, d9di_documents_open(&f->reading, &f->splits, INT64_MAX / 4, &r), out);
    st = write_splits(w, r, log);
out:
    if (r)
        d9di_documents_close(r);
    for (size_t i = 0; w && i < w->n_places; i++)
        json_decref(w->places[i].at);
    if (w) {
        d9di_filter_worker_release(&w->worker);
        d9d_buf_release(&w->line);
    }
    free(w);
    return st;
}

/* --- the report ------------------------------------------------------------------------------ */

static json_t *strings_json(const char *const *texts, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        d9d_json_add(&list, d9d_json_str(texts[i]));
    return list;
}

static bool is_asked_for(const d9di_filter *f, size_t rule)
{
    switch ((int)rule) {
    case D9DI_TEXT_RULE_UNREADABLE:
    case D9DI_TEXT_RULE_EMPTY: return true;
    case D9DI_TEXT_RULE_CONTAMINATED: return f->contamination.n > 0;
    case D9DI_TEXT_RULE_EXACT: return f->opts->exact;
    case D9DI_TEXT_RULE_NEAR: return f->minhash.bands > 0;
    default: return f->thresholds[rule] > 0;
    }
}

static json_t *rule_json(const d9di_filter *f, size_t i, const char *name)
{
    json_t *examples = json_object_get(f->examples, name);

    return json_pack("{s:s, s:o, s:I, s:o}", "rule", name, "threshold",
                     f->thresholds[i] > 0 ? json_real(f->thresholds[i]) : json_null(), "removed",
                     (json_int_t)f->report->removed[i], "examples",
                     examples ? json_incref(examples) : json_array());
}

/* The rules that were asked for: threshold, how many documents each removed, examples. */
static json_t *rules_json(const d9di_filter *f)
{
    json_t *list = json_array();
    size_t n;
    const d9d_filter_rule *rules = d9d_filter_rules(&n);

    for (size_t i = 0; i < n; i++)
        if (is_asked_for(f, i))
            d9d_json_add(&list, rule_json(f, i, rules[i].name));
    return list;
}

static json_t *minhash_json(const d9di_filter *f)
{
    const d9di_minhash *m = &f->minhash;

    if (m->bands == 0)
        return json_null();
    return json_pack("{s:f, s:I, s:I, s:I, s:I}", "threshold", f->opts->similarity, "bands",
                     (json_int_t)m->bands, "rows", (json_int_t)m->rows, "ngram",
                     (json_int_t)m->ngram, "seed", (json_int_t)f->opts->seed);
}

static json_t *contamination_json(const d9di_filter *f)
{
    const d9di_contamination *c = &f->contamination;

    if (c->n == 0)
        return json_null();
    return json_pack("{s:o, s:I, s:I, s:I, s:I}", "evaluations",
                     strings_json(f->opts->evaluations, f->opts->n_evaluations), "ngram",
                     (json_int_t)c->ngram, "ngrams", (json_int_t)c->n, "texts",
                     (json_int_t)c->texts, "too_short", (json_int_t)c->too_short);
}

d9d_status d9di_filter_write_report(const d9di_filter *f, const char *dir)
{
    const d9d_filter_report *r = f->report;
    json_t *root = json_pack(
        "{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "schema", "d9d.filter.v1", "version",
        D9D_VERSION, "sources", strings_json(f->opts->inputs, f->opts->n_inputs), "read",
        (json_int_t)r->read, "kept", (json_int_t)r->kept, "read_bytes", (json_int_t)r->read_bytes,
        "kept_bytes", (json_int_t)r->kept_bytes, "rules", rules_json(f), "minhash", minhash_json(f),
        "contamination", contamination_json(f));
    d9d_buf text = {0};
    d9d_status st;

    if (!root)
        return D9D_FAIL(D9D_ENOMEM, "report.json: no memory");
    D9D_TRY_OR(st, d9d_json_put(&text, root, 2), out);
    D9D_TRY_OR(st, d9d_buf_append(&text, "\n", 1), out);
    st = d9d_fs_write_in(dir, "report.json", text.data, text.len);
out:
    d9d_buf_release(&text);
    json_decref(root);
    return st;
}
