/* filter.c - the run of d9d_filter_run().
 *
 * The first pass reads rounds of chunks, judges each on a thread, and adds the results in order;
 * then duplicates are found, and the second pass writes. */
#include "d9d/data/filter/filter.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"
#include "data/filter/filter_private.h"

#define UNIT_BYTES INT64_MAX / 4 /* an input is one unit */
enum { CHUNKS_PER_JOB = 2, MAX_PERM = 4096, MAX_NGRAM = 100 };

/* --- options --------------------------------------------------------------------------------- */

static int64_t value_or(int64_t value, int64_t otherwise)
{
    return value > 0 ? value : otherwise;
}

static d9d_status check_inputs(const d9d_filter_opts *o)
{
    if (o->n_inputs == 0)
        return D9D_FAIL(D9D_ECONFIG, "no inputs");
    for (size_t i = 0; i < o->n_inputs; i++)
        D9D_TRY(d9d_outdir_check_disjoint(o->out, o->inputs[i]));
    for (size_t i = 0; i < o->n_evaluations; i++)
        D9D_TRY(d9d_outdir_check_disjoint(o->out, o->evaluations[i]));
    return D9D_OK;
}

/* Standard input and pipes can be read once only. */
static d9d_status check_files(const d9di_filter *f)
{
    for (size_t i = 0; i < f->opts->n_inputs; i++) {
        const char *name = f->opts->inputs[i];

        if (!f->splits.stats[i][0].is_file)
            return D9D_FAIL(D9D_ECONFIG, "%s: inputs are read twice, so they must be files",
                            strcmp(name, "-") == 0 ? "standard input" : name);
    }
    return D9D_OK;
}

static d9d_status check_similarity(const d9d_filter_opts *o)
{
    const int64_t n = value_or(o->num_perm, 256);

    if (o->similarity == 0)
        return o->bands || o->rows || o->num_perm || o->ngram
                   ? D9D_FAIL(D9D_ECONFIG, "--num-perm, --bands, --rows and --ngram are for "
                                           "--near-duplicates")
                   : D9D_OK;
    if (!(o->similarity > 0 && o->similarity < 1))
        return D9D_FAIL(D9D_ECONFIG, "--near-duplicates %g: must be above 0 and below 1",
                        o->similarity);
    if (n > MAX_PERM || o->ngram > MAX_NGRAM)
        return D9D_FAIL(D9D_ECONFIG,
                        "%lld hashes of shingles of %lld words: at most %d and %d words",
                        (long long)n, (long long)value_or(o->ngram, 5), MAX_PERM, MAX_NGRAM);
    if ((o->bands > 0) != (o->rows > 0) || o->bands < 0 || o->rows < 0)
        return D9D_FAIL(D9D_ECONFIG, "give both --bands and --rows, or neither");
    if (o->bands > 0 && o->bands > n / o->rows)
        return D9D_FAIL(D9D_ECONFIG, "%lld bands of %lld rows are more than %lld hashes",
                        (long long)o->bands, (long long)o->rows, (long long)n);
    return D9D_OK;
}

static d9d_status check_options(const d9d_filter_opts *o)
{
    if (!o->quality && !o->repetition && o->n_evaluations == 0 && !o->exact && o->similarity == 0)
        return D9D_FAIL(D9D_ECONFIG, "nothing to filter by: --exact-duplicates, --near-duplicates, "
                                     "--gopher-quality, --gopher-repetition or --decontaminate");
    D9D_TRY(check_inputs(o));
    if (o->lines && o->format != D9D_SHARD_TEXT)
        return D9D_FAIL(D9D_ECONFIG, "--lines is for --format text");
    return check_similarity(o);
}

static d9d_status open_minhash(d9di_filter *f)
{
    const d9d_filter_opts *o = f->opts;
    int64_t bands = o->bands, rows = o->rows;

    if (o->similarity == 0)
        return D9D_OK;
    if (bands == 0)
        d9d_filter_bands(o->similarity, value_or(o->num_perm, 256), &bands, &rows);
    f->report->bands = bands;
    f->report->rows = rows;
    return d9di_minhash_init(&f->minhash, (size_t)bands, (size_t)rows,
                             (size_t)value_or(o->ngram, 5), (uint64_t)o->seed);
}

static d9d_status open_filter(d9di_filter *f, const d9d_log *log)
{
    const d9d_filter_opts *o = f->opts;
    const int64_t ngram = value_or(o->evaluation_ngram, 13);

    D9D_TRY(check_options(o));
    f->reading = (d9d_shard_opts){
        .inputs = o->inputs, .n_inputs = o->n_inputs, .format = o->format, .lines = o->lines};
    D9D_TRY(d9di_text_rules_set(o->quality, o->repetition, o->thresholds, f->thresholds));
    D9D_TRY(open_minhash(f));
    D9D_TRY(d9di_input_splits_make(&f->reading, UNIT_BYTES, &f->splits));
    D9D_TRY(check_files(f));
    D9D_TRY(d9di_contamination_read(o->evaluations, o->n_evaluations, (size_t)ngram,
                                    &f->contamination));
    if (o->n_evaluations > 0)
        d9d_log_info(log,
                     "%zu n-grams of %lld words from %lld text%s of evaluations; %lld texts have "
                     "fewer words and find nothing",
                     f->contamination.n, (long long)ngram, (long long)f->contamination.texts,
                     D9D_PLURAL(f->contamination.texts), (long long)f->contamination.too_short);
    if (o->n_evaluations > 0 && f->contamination.n == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: has no text of %lld words", o->evaluations[0],
                        (long long)ngram);
    return D9D_OK;
}

/* --- the first pass -------------------------------------------------------------------------- */

struct round {
    const d9di_filter *f;
    d9di_filter_worker *workers; /* [jobs] */
    d9di_filter_chunk *chunks;   /* [size] */
    size_t jobs, size, n;        /* n: chunks that were read */
    d9di_documents_reader *reader;
    size_t split;
    bool inside;
};

/* Reads the next chunks; none at the end. */
static d9d_status read_round(struct round *r)
{
    const size_t splits = r->f->splits.list.len;

    for (r->n = 0; r->n < r->size && (r->inside || r->split < splits); r->n++) {
        d9di_document_chunk *c = &r->chunks[r->n].documents;

        if (!r->inside)
            d9di_documents_seek(r->reader, r->split, 0, NULL);
        r->inside = true;
        if (c->text.cap > (size_t)16 * D9DI_CHUNK_BYTES)
            d9di_document_chunk_release(c);
        D9D_TRY(d9di_documents_read(r->reader, c));
        r->inside = !c->last;
        r->split += c->last;
    }
    return D9D_OK;
}

static d9d_status judge_item(void *arg, int worker, size_t item)
{
    struct round *r = arg;

    return d9di_filter_judge_chunk(r->f, &r->workers[worker], &r->chunks[item]);
}

static d9d_status add_chunk(d9di_filter *f, const d9di_filter_chunk *c)
{
    const size_t bands = f->minhash.bands;
    size_t k = 0;

    for (size_t i = 0; i < c->rules.len; i++) {
        D9D_TRY(D9D_VEC_PUSH(&f->rules, c->rules.data[i]));
        f->report->read_bytes += (int64_t)c->documents.docs.data[i].len;
        if (c->rules.data[i] != D9DI_TEXT_RULE_NONE)
            continue;
        if (f->opts->exact || bands > 0)
            D9D_TRY(d9di_duplicates_add(&f->duplicates, c->hashes.data[k],
                                        bands > 0 ? c->keys.data + k * bands : NULL));
        k++;
    }
    return D9D_OK;
}

static d9d_status run_rounds(d9di_filter *f, struct round *r, const d9d_log *log)
{
    d9d_progress progress;

    d9d_progress_start(&progress, log, "filter", "B", (uint64_t)f->splits.bytes);
    for (;;) {
        D9D_TRY(read_round(r));
        if (r->n == 0)
            break;
        D9D_TRY(d9d_thread_run((int)r->jobs, r->n, judge_item, r));
        for (size_t i = 0; i < r->n; i++)
            D9D_TRY(add_chunk(f, &r->chunks[i]));
        d9d_progress_note(&progress, "%zu document%s", f->rules.len, D9D_PLURAL(f->rules.len));
        d9d_progress_add(&progress, d9di_documents_consumed(r->reader) - progress.done);
    }
    d9d_progress_end(&progress);
    return D9D_OK;
}

static d9d_status judge_all(d9di_filter *f, const d9d_log *log)
{
    const size_t jobs = (size_t)value_or(f->opts->jobs, d9d_thread_cpus());
    struct round r = {.f = f, .jobs = jobs, .size = jobs * CHUNKS_PER_JOB};
    d9d_status st = D9D_OK;

    r.workers = calloc(r.jobs, sizeof(*r.workers));
    r.chunks = calloc(r.size, sizeof(*r.chunks));
    if (!r.workers || !r.chunks)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for %zu threads", jobs);
    if (st == D9D_OK)
        st = d9di_documents_open(&f->reading, &f->splits, UNIT_BYTES, &r.reader);
    if (st == D9D_OK)
        st = run_rounds(f, &r, log);
    if (r.reader)
        d9di_documents_close(r.reader);
    for (size_t i = 0; r.workers && i < r.jobs; i++)
        d9di_filter_worker_release(&r.workers[i]);
    for (size_t i = 0; r.chunks && i < r.size; i++)
        d9di_filter_chunk_release(&r.chunks[i]);
    free(r.workers);
    free(r.chunks);
    return st;
}

/* --- duplicates ------------------------------------------------------------------------------ */

/* Notes the rule of each duplicate. */
static d9d_status find_duplicates(d9di_filter *f)
{
    const d9di_duplicates *d = &f->duplicates;

    if (d->n == 0)
        return D9D_OK;
    D9D_TRY(d9di_duplicates_find(&f->duplicates));
    for (size_t i = 0, k = 0; i < f->rules.len; i++) {
        if (f->rules.data[i] != D9DI_TEXT_RULE_NONE)
            continue;
        if (d->first[k] != k)
            f->rules.data[i] = d->exact[k] ? D9DI_TEXT_RULE_EXACT : D9DI_TEXT_RULE_NEAR;
        k++;
    }
    return D9D_OK;
}

static void count_rules(const d9di_filter *f)
{
    d9d_filter_report *r = f->report;

    r->read = (int64_t)f->rules.len;
    for (size_t i = 0; i < f->rules.len; i++)
        if (f->rules.data[i] == D9DI_TEXT_RULE_NONE)
            r->kept++;
        else
            r->removed[f->rules.data[i]]++;
}

/* --- the run --------------------------------------------------------------------------------- */

static bool is_complete(const char *dir)
{
    return d9d_fs_head_has(dir, "report.json", "\"d9d.filter.v1\"");
}

static const d9d_outdir_kind output_kind = {.label = "filtered corpus", .is_complete = is_complete};

static d9d_status filter_into(d9di_filter *f, const d9d_log *log, d9d_outdir *dir)
{
    d9di_out_file out = {.open = false};
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir->tmp, "documents.jsonl");
    d9d_status st;

    D9D_TRY_OR(st, path ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir->tmp), out);
    D9D_TRY_OR(st, d9di_duplicates_open(&f->duplicates, dir->tmp, f->opts->exact, f->minhash.bands),
               out);
    D9D_TRY_OR(st, judge_all(f, log), out);
    D9D_TRY_OR(st, find_duplicates(f), out);
    count_rules(f);
    if (f->report->kept == 0) {
        st = D9D_FAIL(D9D_EFORMAT, "none of %lld document%s is kept", (long long)f->report->read,
                      D9D_PLURAL(f->report->read));
        goto out;
    }
    D9D_TRY_OR(st, d9di_out_file_create(&out, path), out);
    D9D_TRY_OR(st, d9di_filter_write(f, log, &out), out);
    D9D_TRY_OR(st, d9di_out_file_close(&out), out);
    D9D_TRY_OR(st, d9di_filter_write_report(f, dir->tmp), out);
    d9di_duplicates_release(&f->duplicates);
    st = d9d_outdir_commit(dir);
out:
    d9di_out_file_release(&out);
    d9d_arena_release(&a);
    return st;
}

static void log_result(const d9di_filter *f, const d9d_log *log)
{
    const d9d_filter_report *r = f->report;
    size_t n;
    const d9d_filter_rule *rules = d9d_filter_rules(&n);

    d9d_log_info(log, "%s: %lld of %lld document%s kept, %.1f of %.1f MB", f->opts->out,
                 (long long)r->kept, (long long)r->read, D9D_PLURAL(r->read),
                 (double)r->kept_bytes * 1e-6, (double)r->read_bytes * 1e-6);
    for (size_t i = 0; i < n; i++)
        if (r->removed[i] > 0)
            d9d_log_info(log, "%-28s %12lld removed, %5.2f %%: %s", rules[i].name,
                         (long long)r->removed[i], 100.0 * (double)r->removed[i] / (double)r->read,
                         rules[i].what);
}

d9d_status d9d_filter_run(const d9d_filter_opts *opts, const d9d_log *log, d9d_filter_report *out)
{
    d9di_filter f = {.opts = opts, .report = out};
    d9d_outdir dir = {0};
    d9d_status st;

    *out = (d9d_filter_report){.read = 0};
    D9D_TRY_OR(st, open_filter(&f, log), out);
    D9D_TRY_OR(
        st, d9d_outdir_begin(&dir, opts->out, opts->replace ? D9D_OUTDIR_REPLACE : 0, &output_kind),
        out);
    D9D_TRY_OR(st, filter_into(&f, log, &dir), out);
    log_result(&f, log);
out:
    d9di_duplicates_release(&f.duplicates);
    d9d_outdir_release(&dir);
    d9di_contamination_release(&f.contamination);
    d9di_minhash_release(&f.minhash);
    d9di_input_splits_release(&f.splits);
    D9D_VEC_RELEASE(&f.rules);
    json_decref(f.examples);
    return st;
}
