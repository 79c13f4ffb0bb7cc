/* shard_work.c - makes units from inputs on several threads.
 *
 * Each thread reads a chunk, tokenises it and adds it to its unit when the chunk's ticket is due,
 * so units get their documents in input order.  The thread that ends a unit seals it while the
 * others continue with the next one.
 *
 *     thread 0   read 0 | tokenise 0      | add 0 | read 2 | tokenise 2 ...
 *     thread 1            read 1 | tokenise 1     | add 1  | seal unit | read 3 ...
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"
#include "data/build/shard_private.h"

enum {
    MAX_JOBS = 1024,
    MAX_TEXT_BYTES = 64 << 20,   /* text in memory; or one chunk if documents are larger */
    LARGE_CHUNK_BYTES = 16 << 20 /* the memory of larger chunks is freed after use */
};

/* The unit to which documents are added. */
struct current {
    d9di_shard_unit *unit;
    d9di_packer *packers[D9DI_MAX_SPLITS];
    size_t n_packers;
    int64_t labels; /* its documents' labels: -1 unknown, 0 none, 1 given */
};

struct unit_work {
    const d9di_shard_plan *plan;
    int jobs;
    d9di_shard_worker *workers;  /* [jobs] */
    d9di_document_chunk *chunks; /* [jobs] */

    pthread_mutex_t reading; /* guards the reader, the next input split and the next ticket */
    d9di_documents_reader *reader;
    size_t input_split;
    bool inside; /* an input split is begun */
    bool at_end;
    uint64_t next_ticket;

    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t changed;
    uint64_t next_to_add; /* the ticket whose chunk is added next */
    size_t in_flight;
    bool failed, progressed;
    d9d_err_copy error;
    uint64_t shards; /* shards made so far */

    struct current *current; /* the unit of the due ticket; NULL between units */
    d9d_progress progress;
    uint64_t consumed;
    int64_t tokens;
};

/* --- units --------------------------------------------------------------------------------- */

static void current_free(struct current *c)
{
    size_t i;

    if (!c)
        return;
    for (i = 0; i < c->n_packers; i++)
        d9di_packer_free(c->packers[i]);
    d9di_shard_unit_free(c->unit);
    free(c);
}

static d9d_status current_create(const d9di_shard_plan *p, const d9di_document_chunk *chunk,
                                 struct current **out)
{
    struct current *c = calloc(1, sizeof(*c));
    d9d_status st;

    if (!c)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a unit");
    c->labels = -1;
    D9D_TRY_OR(st, d9di_shard_unit_create(&p->unit, chunk->input_split, chunk->unit, &c->unit),
               out);
    for (; c->n_packers < p->splits.n; c->n_packers++)
        D9D_TRY_OR(st,
                   d9di_packer_create(c->unit, c->n_packers, &p->packer, &c->packers[c->n_packers]),
                   out);
    *out = c;
    c = NULL;
out:
    current_free(c);
    return st;
}

static d9d_status current_seal(struct current *c)
{
    size_t i;

    for (i = 0; i < c->n_packers; i++)
        D9D_TRY(d9di_packer_flush(c->packers[i]));
    return d9di_shard_unit_commit(c->unit);
}

/* --- from documents to samples ------------------------------------------------------------- */

/* Splits the document, which had `whole` tokens, into samples of at most `max_positions` positions
 * that cover it. */
static d9d_status split_document(d9di_packer *p, uint32_t key, const d9di_shard_document *d,
                                 size_t whole, int64_t max_positions)
{
    const size_t extra = d->labels ? 0 : 1; /* the last target is a token of its own */

    for (size_t at = 0; at + extra < d->n; at += (size_t)max_positions) {
        const size_t left = d->n - at - extra;
        const size_t length = left < (size_t)max_positions ? left : (size_t)max_positions;

        D9D_TRY(d9di_packer_add_part(p, key, d, whole, at, length + extra, (int64_t)length));
    }
    return D9D_OK;
}

static d9d_status check_labels(const struct unit_work *w, const d9di_document_chunk *c,
                               const d9di_document_record *doc)
{
    const d9d_shard_opts *opts = w->plan->opts;
    const d9di_input_split *input_split = &w->plan->input_splits.list.data[c->input_split];
    struct current *cur = w->current;

    if (cur->labels >= 0 && cur->labels != doc->has_labels)
        return D9D_FAIL(D9D_EFORMAT, "%s: line %lld: has %s, the documents before it have %s",
                        opts->inputs[doc->pos.source],
                        (long long)d9di_documents_line(opts, input_split, &doc->pos),
                        doc->has_labels ? "labels" : "no labels", cur->labels ? "some" : "none");
    cur->labels = doc->has_labels;
    return D9D_OK;
}

/* Counts positions [from, n) of a document as lost. */
static void count_lost(d9di_dataset_documents *d, const int32_t *labels, size_t from, size_t n)
{
    for (size_t i = from; i < n; i++)
        d->targets_lost += !labels || labels[i] != -100;
}

static d9d_status add_document(const struct unit_work *w, const d9di_document_chunk *c,
                               const d9di_document_record *doc, const uint32_t *ids,
                               int32_t *labels, const char *fields)
{
    const d9d_shard_opts *opts = w->plan->opts;
    const int64_t max_positions = d9di_shard_max_document(opts);
    const size_t extra = doc->has_labels ? 0 : 1;
    d9di_dataset_documents *documents = &d9di_shard_unit_get_state(w->current->unit)->documents;
    size_t n = doc->n_ids, split;
    d9di_shard_document kept;
    uint32_t key;

    documents->read++;
    if (doc->skipped) {
        documents->skipped[doc->reason]++;
        return D9D_OK;
    }
    documents->turns_lost += doc->truncation.turns;
    documents->targets_lost += doc->truncation.targets;
    if (doc->truncation.dropped) {
        documents->dropped++;
        return D9D_OK;
    }
    if (n <= extra) {
        documents->empty++;
        documents->untrained += doc->untrained;
        return D9D_OK;
    }
    D9D_TRY(check_labels(w, c, doc));
    documents->special_twice += doc->twice;
    documents->truncated += doc->truncation.turns > 0 || doc->cut > 0;
    if (!opts->label_key)
        documents->targets_lost += (int64_t)doc->cut;
    if ((int64_t)(n - extra) > max_positions) {
        switch (d9di_shard_resolve_overflow(opts)) {
        case D9D_SHARD_OVERFLOW_DROP:
            documents->dropped++;
            count_lost(documents, labels, 0, n - extra);
            return D9D_OK;
        case D9D_SHARD_OVERFLOW_TRUNCATE:
            documents->truncated += doc->cut == 0;
            if (!opts->label_key)
                count_lost(documents, labels, (size_t)max_positions, n - extra);
            n = (size_t)max_positions + extra;
            if (labels != NULL && opts->label_key)
                labels[n - 1] = labels[doc->n_ids - 1];
            break;
        case D9D_SHARD_OVERFLOW_BY_FORMAT:
        case D9D_SHARD_OVERFLOW_SPLIT: documents->split++; break;
        }
    }
    documents->kept++;
    kept = (d9di_shard_document){ids, labels, n, fields, doc->fields, doc->part, doc->n_parts};
    d9di_shard_pick_split(&w->plan->splits, opts->seed, &kept, &split, &key);
    if (doc->n_parts > 0)
        return d9di_packer_add(w->current->packers[split], key, &kept, (int64_t)n);
    return split_document(w->current->packers[split], key, &kept, doc->n_ids, max_positions);
}

static d9d_status add_chunk(struct unit_work *w, const d9di_document_chunk *c)
{
    const uint32_t *ids = c->ids.data;
    int32_t *labels = c->labels.data;
    const char *fields = c->fields.data;
    d9di_shard_unit_state *state;
    size_t i;

    if (!w->current)
        D9D_TRY(current_create(w->plan, c, &w->current));
    for (i = 0; i < c->docs.len; i++) {
        const d9di_document_record *doc = &c->docs.data[i];

        D9D_TRY(add_document(w, c, doc, ids, doc->has_labels ? labels : NULL, fields));
        fields += doc->fields;
        ids += doc->n_ids;
        labels += doc->has_labels ? doc->n_ids : 0;
    }
    state = d9di_shard_unit_get_state(w->current->unit);
    state->last = c->last;
    state->next = c->next;
    for (i = 0; i < c->source_ends.len; i++)
        D9D_TRY(D9D_VEC_PUSH(&state->source_ends, c->source_ends.data[i]));
    for (i = 0; i < c->skipped.len; i++)
        D9D_TRY(d9di_skipped_add(&state->skipped, &c->skipped.data[i]));
    state->lines_read = c->lines_read;
    w->tokens += (int64_t)c->ids.len;
    return D9D_OK;
}

/* --- the next chunk ------------------------------------------------------------------------ */

/* Skips the finished units of the input split; *done if all are finished. */
static void begin_input_split(struct unit_work *w, bool *done)
{
    const d9di_shard_plan *p = w->plan;
    d9di_document_pos from = {0, 0, 0};
    int64_t unit = 0, last = 0;
    d9di_shard_unit_state s;

    for (; p->repeatable && !last &&
           d9di_shard_unit_state_read(&p->unit, (int64_t)w->input_split, unit, &s) == D9D_OK;
         unit++) {
        from = s.next;
        last = s.last;
        d9di_shard_unit_state_release(&s);
    }
    if (unit > 0) {
        pthread_mutex_lock(&w->lock);
        w->progressed = true;
        pthread_mutex_unlock(&w->lock);
    }
    *done = last;
    if (!last)
        d9di_documents_seek(w->reader, w->input_split, unit, unit > 0 ? &from : NULL);
}

/* Reads a chunk; *found is false at the end of the last input split. */
static d9d_status read_chunk(struct unit_work *w, d9di_document_chunk *c, bool *found)
{
    const size_t n = w->plan->input_splits.list.len;

    for (; !w->inside && w->input_split < n; w->input_split += !w->inside) {
        bool done = true;

        if (d9di_shard_plan_has_split(w->plan, w->input_split))
            begin_input_split(w, &done);
        w->inside = !done;
    }
    *found = w->inside;
    if (!w->inside)
        return D9D_OK;
    if (c->text.cap > LARGE_CHUNK_BYTES)
        d9di_document_chunk_release(c);
    D9D_TRY(d9di_documents_read(w->reader, c));
    if (c->last) {
        w->inside = false;
        w->input_split++;
    }
    return D9D_OK;
}

/* --- threads ------------------------------------------------------------------------------- */

/* Stops all threads; the first failure is reported. */
static void fail_locked(struct unit_work *w, d9d_status st)
{
    if (!w->failed)
        d9d_err_save(&w->error, st);
    w->failed = true;
    pthread_cond_broadcast(&w->changed);
}

/* Waits until there is memory for another chunk; false after a failure. */
static bool wait_for_memory(struct unit_work *w)
{
    bool go;

    pthread_mutex_lock(&w->lock);
    while (!w->failed && w->in_flight > MAX_TEXT_BYTES)
        pthread_cond_wait(&w->changed, &w->lock);
    go = !w->failed;
    pthread_mutex_unlock(&w->lock);
    return go;
}

/* Reads a chunk and takes its ticket; false at the end or after a failure.  *st is the read error,
 * which is reported when the ticket is due. */
static bool claim_chunk(struct unit_work *w, d9di_document_chunk *c, uint64_t *ticket,
                        d9d_status *st)
{
    bool found = false;

    pthread_mutex_lock(&w->reading);
    if (!w->at_end && wait_for_memory(w)) {
        *st = read_chunk(w, c, &found);
        found = found || *st != D9D_OK;
        w->at_end = !found || *st != D9D_OK;
        *ticket = w->next_ticket;
        w->next_ticket += found;
    }
    if (found) {
        pthread_mutex_lock(&w->lock);
        w->in_flight += c->text.len;
        w->consumed = d9di_documents_consumed(w->reader);
        pthread_mutex_unlock(&w->lock);
    }
    pthread_mutex_unlock(&w->reading);
    return found;
}

/* Adds the chunk when its ticket is due; *ended is its unit if that must be sealed.  False after a
 * failure. */
static bool submit_chunk(struct unit_work *w, const d9di_document_chunk *c, uint64_t ticket,
                         d9d_status st, struct current **ended)
{
    bool go;

    *ended = NULL;
    pthread_mutex_lock(&w->lock);
    while (!w->failed && w->next_to_add != ticket)
        pthread_cond_wait(&w->changed, &w->lock);
    go = !w->failed;
    pthread_mutex_unlock(&w->lock);
    if (!go)
        return false;
    if (st == D9D_OK)
        st = add_chunk(w, c); /* no lock needed: only the due ticket uses it */
    if (st == D9D_OK && c->ends) {
        *ended = w->current;
        w->current = NULL;
    }
    pthread_mutex_lock(&w->lock);
    if (st != D9D_OK)
        fail_locked(w, st);
    d9d_progress_note(&w->progress, "%lld token%s", (long long)w->tokens, D9D_PLURAL(w->tokens));
    if (w->consumed > w->progress.done)
        d9d_progress_add(&w->progress, w->consumed - w->progress.done);
    w->in_flight -= c->text.len;
    w->next_to_add++;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return st == D9D_OK;
}

/* Fails if a dataset cannot have this many shards. */
static d9d_status check_shards(uint64_t n)
{
    return n <= D9DI_MAX_SHARDS
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "more than %d files of tokens, which is the most that a dataset has; a "
                          "larger --shard-size or --unit-size makes fewer",
                          D9DI_MAX_SHARDS);
}

static void commit_unit(struct unit_work *w, struct current *c)
{
    d9d_status st = current_seal(c);
    const uint64_t n = d9di_shard_unit_get_state(c->unit)->shards.len;

    current_free(c);
    pthread_mutex_lock(&w->lock);
    w->shards += n;
    if (st == D9D_OK)
        st = check_shards(w->shards);
    if (st == D9D_OK)
        w->progressed = true;
    else
        fail_locked(w, st);
    pthread_mutex_unlock(&w->lock);
}

static d9d_status unit_work(void *arg, int unused, size_t worker)
{
    struct unit_work *w = arg;
    d9di_document_chunk *c = &w->chunks[worker];
    d9d_status st = D9D_OK;
    struct current *ended;
    uint64_t ticket = 0;

    (void)unused;
    while (claim_chunk(w, c, &ticket, &st)) {
        if (st == D9D_OK)
            st = d9di_shard_tokenize_chunk(&w->plan->tokenizer, &w->workers[worker], c);
        if (!submit_chunk(w, c, ticket, st, &ended))
            break;
        if (ended)
            commit_unit(w, ended);
    }
    return D9D_OK;
}

/* --- the whole run
 * ---------------------------------------------------------------------------------
 */

static d9d_status make_workers(struct unit_work *w)
{
    const d9d_tokenizer *tok = w->plan->tokenizer.tok;
    const int64_t jobs = w->plan->opts->jobs > 0 ? w->plan->opts->jobs : d9d_thread_cpus();
    int i;

    w->jobs = jobs < MAX_JOBS ? (int)jobs : MAX_JOBS;
    w->workers = calloc((size_t)w->jobs, sizeof(*w->workers));
    w->chunks = calloc((size_t)w->jobs, sizeof(*w->chunks));
    if (!w->workers || !w->chunks)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %d jobs", w->jobs);
    for (i = 0; tok && i < w->jobs; i++)
        D9D_TRY(d9d_tokenizer_scratch_create(tok, &w->workers[i].scratch));
    return d9di_documents_open(w->plan->opts, &w->plan->input_splits, w->plan->unit_bytes,
                               &w->reader);
}

static void release_work(struct unit_work *w)
{
    int i;

    for (i = 0; w->chunks && w->workers && i < w->jobs; i++) {
        d9di_document_chunk_release(&w->chunks[i]);
        d9d_tokenizer_scratch_free(w->workers[i].scratch);
        d9d_buf_release(&w->workers[i].text);
        d9d_buf_release(&w->workers[i].pair);
        D9D_VEC_RELEASE(&w->workers[i].texts[0]);
        D9D_VEC_RELEASE(&w->workers[i].texts[1]);
        d9d_buf_release(&w->workers[i].row);
        d9di_shard_field_values_release(&w->workers[i].values);
        d9di_chat_rendering_release(&w->workers[i].rendering);
    }
    free(w->chunks);
    free(w->workers);
    current_free(w->current);
    d9di_documents_close(w->reader);
    pthread_mutex_destroy(&w->reading);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
}

/* Total bytes to read; 0 if unknown. */
static uint64_t total_bytes(const d9di_shard_plan *p)
{
    uint64_t total = 0;
    size_t i;

    for (i = 0; i < p->input_splits.list.len; i++) {
        d9di_shard_unit_state s;

        if (!d9di_shard_plan_has_split(p, i))
            continue;
        if (p->repeatable && d9di_shard_unit_state_read(&p->unit, (int64_t)i, 0, &s) == D9D_OK) {
            const bool whole = s.last;

            d9di_shard_unit_state_release(&s);
            if (whole)
                continue;
        }
        total += (uint64_t)p->input_splits.list.data[i].bytes;
    }
    return p->repeatable ? total : 0;
}

d9d_status d9di_shard_make_units(const d9di_shard_plan *p, const d9d_log *log, bool *progressed)
{
    struct unit_work w = {.plan = p};
    d9d_status st;

    pthread_mutex_init(&w.reading, NULL);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.changed, NULL);
    D9D_TRY_OR(st, make_workers(&w), out);
    d9d_progress_start(&w.progress, log, "shard", "B", total_bytes(p));
    D9D_TRY_OR(st, d9d_thread_run(w.jobs, (size_t)w.jobs, unit_work, &w), out);
    st = w.failed ? d9d_err_restore(&w.error) : D9D_OK;
    if (st == D9D_OK)
        d9d_progress_end(&w.progress);
out:
    *progressed = w.progressed;
    release_work(&w);
    return st;
}
