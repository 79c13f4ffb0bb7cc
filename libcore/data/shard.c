/* shard.c - a run from inputs to a dataset directory. */
#include "d9d/data/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/base/thread.h"
#include "data/bpe.h"
#include "data/journal.h"
#include "data/shard_private.h"

enum {
    BLOCK_CHUNKS = 16,
    CHUNKS_A_JOB = 2,
    MAX_JOBS = 1024,
    BATCH_BYTES = 64 << 20,      /* of text in memory, or one chunk where documents are large */
    LARGE_CHUNK_BYTES = 16 << 20 /* memory of chunks above it is not kept */
};
#define DEFAULT_SHARD_BYTES INT64_C(1000000000)

struct worker {
    d9d_tokenizer_scratch *scratch; /* NULL without a tokenizer */
    d9d_buf text;
};

struct run {
    const d9d_shard_how *how;
    const d9d_log *log;
    d9di_shares shares;
    d9d_tokenizer *tok;
    d9di_tokenise tokenise;
    int jobs;
    struct worker *workers; /* [jobs] */
    d9di_chunk *chunks;     /* [n_chunks] */
    size_t n_chunks;

    d9d_outdir dir;
    int lock;   /* descriptor of the directory */
    bool owned; /* the directory is locked */
    d9d_hash job;
    bool repeatable;
    d9di_documents_reader *reader;
    d9di_sink *store;
    d9di_packer *packers[D9DI_MAX_SPLITS];
    d9di_documents documents;
    d9d_progress progress;
    d9di_journal journal;
    bool has_journal;
};

/* --- from documents to samples ---------------------------------------------------------------- */

static int64_t longest_document(const struct run *r)
{
    if (r->how->max_length > 0)
        return r->how->max_length;
    return r->how->pack > 0 ? r->how->pack : D9DI_MAX_LENGTH - 1;
}

/* Samples of at most `most` positions that cover the document. */
static d9d_status cut_document(d9di_packer *p, const uint32_t *ids, const int32_t *labels, size_t n,
                               int64_t most)
{
    const size_t extra = labels ? 0 : 1; /* the last target is a token of its own */
    size_t at;

    for (at = 0; at + extra < n; at += (size_t)most) {
        const size_t left = n - at - extra;
        const size_t length = left < (size_t)most ? left : (size_t)most;

        D9D_TRY(d9di_packer_add(p, ids + at, labels ? labels + at : NULL, length + extra,
                                (int64_t)length));
    }
    return D9D_OK;
}

static d9d_status check_labels(const struct run *r, const d9di_document *doc)
{
    const int64_t before = d9di_sink_at(r->store)->labels;

    if (before < 0 || before == doc->has_labels)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: line %lld: has %s, the documents before it have %s",
                    r->how->inputs[doc->place.source], (long long)doc->place.line,
                    doc->has_labels ? "labels" : "no labels", before ? "some" : "none");
}

static d9d_status add_document(struct run *r, const d9di_document *doc, const uint32_t *ids,
                               const int32_t *labels)
{
    const int64_t most = longest_document(r);
    const size_t extra = doc->has_labels ? 0 : 1;
    const int64_t number = r->documents.read++;
    size_t n = doc->n_ids;
    d9di_packer *p;

    if (n <= extra) {
        r->documents.empty++;
        return D9D_OK;
    }
    D9D_TRY(check_labels(r, doc));
    p = r->packers[d9di_shares_pick(&r->shares, r->how->seed, number)];
    if ((int64_t)(n - extra) > most) {
        switch (r->how->overflow) {
        case D9D_OVERFLOW_DROP: r->documents.dropped++; return D9D_OK;
        case D9D_OVERFLOW_TRUNCATE:
            r->documents.truncated++;
            n = (size_t)most + extra;
            break;
        case D9D_OVERFLOW_SPLIT: r->documents.split++; break;
        }
    }
    r->documents.kept++;
    return cut_document(p, ids, labels, n, most);
}

static d9d_status add_chunk(struct run *r, const d9di_chunk *c)
{
    const uint32_t *ids = c->ids.data;
    const int32_t *labels = c->labels.data;
    size_t i;

    for (i = 0; i < c->docs.len; i++) {
        const d9di_document *doc = &c->docs.data[i];

        D9D_TRY(add_document(r, doc, ids, doc->has_labels ? labels : NULL));
        ids += doc->n_ids;
        labels += doc->has_labels ? doc->n_ids : 0;
    }
    return D9D_OK;
}

/* --- blocks ------------------------------------------------------------------------------------
 */

static d9d_status tokenise_one(void *arg, int worker, size_t item)
{
    struct run *r = arg;
    struct worker *w = &r->workers[worker];

    return d9di_tokenise_chunk(&r->tokenise, w->scratch, &w->text, &r->chunks[item]);
}

/* Read up to `most` chunks, fewer when they are large. */
static d9d_status read_chunks(struct run *r, size_t most, size_t *filled, bool *end)
{
    size_t bytes = 0;

    for (*filled = 0; *filled < most && bytes < BATCH_BYTES; (*filled)++) {
        d9di_chunk *c = &r->chunks[*filled];

        if (c->text.cap > LARGE_CHUNK_BYTES)
            d9di_chunk_release(c);
        D9D_TRY(d9di_documents_read(r->reader, c));
        *end = c->docs.len == 0;
        if (*end)
            break;
        bytes += c->text.len;
    }
    return D9D_OK;
}

/* Read, tokenise and store some chunks, at most `most`. */
static d9d_status run_batch(struct run *r, size_t most, size_t *filled, bool *end)
{
    const uint64_t before = d9di_documents_consumed(r->reader);
    size_t i;

    D9D_TRY(read_chunks(r, most, filled, end));
    D9D_TRY(d9d_thread_run(r->jobs, *filled, tokenise_one, r));
    for (i = 0; i < *filled; i++)
        D9D_TRY(add_chunk(r, &r->chunks[i]));
    d9d_progress_note(&r->progress, "%lld tokens", (long long)d9di_sink_at(r->store)->tokens);
    d9d_progress_add(&r->progress, d9di_documents_consumed(r->reader) - before);
    return D9D_OK;
}

static d9d_status write_journal(struct run *r)
{
    size_t i;

    if (!r->repeatable)
        return D9D_OK;
    D9D_TRY(d9di_sink_sync(r->store));
    r->journal.place = d9di_documents_at(r->reader);
    r->journal.documents = r->documents;
    r->journal.store = *d9di_sink_at(r->store);
    for (i = 0; i < r->how->n_inputs; i++)
        r->journal.source_bytes[i] = d9di_documents_bytes(r->reader, i);
    D9D_TRY(d9di_journal_write(r->dir.tmp, &r->journal));
    r->has_journal = true;
    return D9D_OK;
}

/* Packs are closed at the end of a block, so that a run can go on there. */
static d9d_status run_block(struct run *r, bool *end)
{
    size_t chunks = 0, i;

    do {
        const size_t left = BLOCK_CHUNKS - chunks;
        size_t filled;

        D9D_TRY(run_batch(r, left < r->n_chunks ? left : r->n_chunks, &filled, end));
        chunks += filled;
    } while (!*end && chunks < BLOCK_CHUNKS);
    for (i = 0; i < r->shares.n; i++)
        D9D_TRY(d9di_packer_flush(r->packers[i]));
    return *end ? D9D_OK : write_journal(r);
}

/* --- the working directory ----------------------------------------------------------------------
 */

static d9d_status lock_dir(struct run *r)
{
    r->lock = open(r->dir.tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->lock < 0)
        return D9D_FAIL(D9D_EIO, "%s: cannot open: %s", r->dir.tmp, strerror(errno));
    if (flock(r->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return D9D_FAIL(D9D_EIO, "%s: another d9d-shard is writing it", r->dir.tmp);
    r->owned = true;
    return D9D_OK;
}

static d9d_status clear_dir(const char *dir)
{
    d9d_arena arena = {0};
    d9d_fs_names names;
    d9d_status st;
    size_t i;

    D9D_TRY_OR(st, d9d_fs_list(dir, &arena, &names), out);
    for (i = 0; i < names.n && st == D9D_OK; i++) {
        const char *path = d9d_fs_join(&arena, dir, names.name[i]);

        st = path ? d9d_fs_remove_tree(path) : D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    }
out:
    d9d_arena_release(&arena);
    return st;
}

static d9d_status start_over(struct run *r, const d9di_sink_how *store)
{
    D9D_TRY(clear_dir(r->dir.tmp));
    memset(&r->documents, 0, sizeof(r->documents));
    D9D_TRY(d9di_sink_open(store, NULL, &r->store));
    return d9di_documents_open(r->how, NULL, &r->reader);
}

static d9d_status go_on(struct run *r, const d9di_sink_how *store)
{
    size_t i;

    D9D_TRY(d9di_sink_open(store, &r->journal.store, &r->store));
    D9D_TRY(d9di_documents_open(r->how, &r->journal.place, &r->reader));
    r->documents = r->journal.documents;
    for (i = 0; i < r->how->n_inputs; i++)
        d9di_documents_set_bytes(r->reader, i, r->journal.source_bytes[i]);
    r->has_journal = true;
    d9d_log_info(r->log, "going on behind document %lld", (long long)r->documents.read);
    return D9D_OK;
}

static d9d_status open_work(struct run *r)
{
    const d9di_sink_how store = {
        .dir = r->dir.tmp,
        .wide = r->tokenise.vocab > 65536,
        .shard_bytes = (uint64_t)(r->how->shard_bytes ? r->how->shard_bytes : DEFAULT_SHARD_BYTES),
        .edges = r->how->edges,
        .n_edges = r->how->n_edges,
        .n_splits = r->shares.n};
    bool found = false;
    size_t i;

    D9D_TRY(lock_dir(r));
    r->journal.job = r->job;
    r->journal.n_sources = r->how->n_inputs;
    r->journal.source_bytes = calloc(r->how->n_inputs, sizeof(int64_t));
    if (!r->journal.source_bytes)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu inputs", r->how->n_inputs);
    if (r->repeatable)
        D9D_TRY(d9di_journal_read(r->dir.tmp, &r->journal, &found));
    if (!found || go_on(r, &store) != D9D_OK) {
        d9di_sink_close(r->store);
        r->store = NULL;
        D9D_TRY(start_over(r, &store));
    }
    for (i = 0; i < r->shares.n; i++)
        D9D_TRY(d9di_packer_create(r->store, i, r->how->pack, &r->packers[i]));
    return D9D_OK;
}

/* --- the end
 * -------------------------------------------------------------------------------------- */

/* The tokenizer's file, and those that HF keeps beside it. */
static d9d_status copy_tokenizer(const struct run *r)
{
    static const char *const beside[] = {"tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "chat_template.jinja"};
    const char *from = r->how->tokenizer, *slash = from ? strrchr(from, '/') : NULL;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;
    size_t i;

    for (i = 0; from && i < sizeof(beside) / sizeof(beside[0]) + 1 && st == D9D_OK; i++) {
        const char *name = i == 0 ? "tokenizer.json" : beside[i - 1];
        const char *src =
            i == 0
                ? from
                : d9d_arena_printf(&a, "%.*s%s", slash ? (int)(slash - from) + 1 : 0, from, name);
        const char *dst = d9d_fs_join(&a, r->dir.tmp, name);

        if (!src || !dst) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", from);
            break;
        }
        if (i > 0 && !d9d_fs_exists(src))
            continue;
        st = d9d_fs_remove_tree(dst); /* of a run that was interrupted here */
        if (st == D9D_OK)
            st = d9d_fs_copy(src, dst);
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status fill_manifest(const struct run *r, d9di_manifest *m)
{
    static const char *const overflow[] = {"split", "truncate", "drop"};
    size_t i;

    m->vocab_size = r->tok ? r->tokenise.vocab : d9di_sink_at(r->store)->bound;
    m->has_tokenizer = r->tok != NULL;
    if (r->tok)
        m->tokenizer_hash = d9d_tokenizer_hash(r->tok);
    m->recipe = (d9di_recipe){overflow[r->how->overflow], r->how->max_length, r->how->pack,
                              r->how->seed, r->how->append_eos};
    m->documents = r->documents;
    m->n_edges = r->how->n_edges;
    m->n_sources = r->how->n_inputs;
    m->n_splits = r->shares.n;
    m->edges = d9d_arena_alloc(&m->arena, (m->n_edges + 1) * sizeof(*m->edges));
    m->sources = d9d_arena_alloc(&m->arena, m->n_sources * sizeof(*m->sources));
    m->splits = d9d_arena_alloc(&m->arena, m->n_splits * sizeof(*m->splits));
    if (!m->edges || !m->sources || !m->splits)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a manifest of %zu inputs", m->n_sources);
    for (i = 0; i < m->n_edges; i++)
        m->edges[i] = r->how->edges[i];
    for (i = 0; i < m->n_sources; i++)
        m->sources[i] = (d9di_source){r->how->inputs[i], d9di_documents_bytes(r->reader, i)};
    for (i = 0; i < m->n_splits; i++)
        m->splits[i].name = r->shares.split[i].name;
    return D9D_OK;
}

static d9d_status write_manifest(const struct run *r, const d9di_manifest *m)
{
    d9d_buf text = {0};
    char *path = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9di_manifest_print(m, &text), out);
    if (asprintf(&path, "%s/manifest.json", r->dir.tmp) < 0) {
        path = NULL;
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", r->dir.tmp);
        goto out;
    }
    D9D_TRY_OR(st, d9d_fs_write_atomic(path, text.data, text.len), out);
    free(path);
    if (asprintf(&path, "%s/journal.json", r->dir.tmp) < 0) {
        path = NULL;
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", r->dir.tmp);
        goto out;
    }
    st = d9d_fs_remove_tree(path);
out:
    free(path);
    d9d_buf_release(&text);
    return st;
}

static void warn_empty_splits(const struct run *r, const d9di_manifest *m)
{
    size_t i;

    for (i = 0; i < m->n_splits; i++)
        if (m->splits[i].samples == 0)
            d9d_log_warn(r->log,
                         "the split \"%s\" has no samples: none of %lld documents fell in it",
                         m->splits[i].name, (long long)r->documents.read);
}

static void say_result(const struct run *r, const d9di_manifest *m)
{
    const d9di_documents *d = &m->documents;

    d9d_log_info(r->log, "%s: %lld samples, %lld tokens in %u shards from %lld documents",
                 r->how->out, (long long)m->samples, (long long)m->tokens, m->n_shards,
                 (long long)d->read);
    if (d->empty || d->dropped || d->truncated || d->split)
        d9d_log_info(r->log,
                     "%lld documents too short to have a target, %lld dropped, %lld truncated, "
                     "%lld split",
                     (long long)d->empty, (long long)d->dropped, (long long)d->truncated,
                     (long long)d->split);
    warn_empty_splits(r, m);
}

static d9d_status finish(struct run *r, d9d_shard_report *out)
{
    d9di_manifest m = {0};
    d9d_status st;

    if (d9di_sink_at(r->store)->tokens == 0)
        return D9D_FAIL(
            D9D_EFORMAT,
            "no samples: of %lld documents in %zu inputs %lld are too short and %lld too long",
            (long long)r->documents.read, r->how->n_inputs, (long long)r->documents.empty,
            (long long)r->documents.dropped);
    D9D_TRY(copy_tokenizer(r));
    D9D_TRY_OR(st, fill_manifest(r, &m), out);
    D9D_TRY_OR(st, d9di_sink_finish(r->store, r->how->seed, r->log, &m), out);
    D9D_TRY_OR(st, write_manifest(r, &m), out);
    D9D_TRY_OR(st, d9d_outdir_commit(&r->dir), out);
    say_result(r, &m);
    *out = (d9d_shard_report){.documents = m.documents.read,
                              .too_short = m.documents.empty,
                              .dropped = m.documents.dropped,
                              .truncated = m.documents.truncated,
                              .split = m.documents.split,
                              .samples = m.samples,
                              .tokens = m.tokens,
                              .positions = m.positions,
                              .shards = m.n_shards};
out:
    d9di_manifest_release(&m);
    return st;
}

/* --- the run
 * --------------------------------------------------------------------------------------- */

static d9d_status load_tokenizer(struct run *r)
{
    const d9d_shard_how *how = r->how;

    r->tokenise = (d9di_tokenise){.how = how, .vocab = D9DI_MAX_VOCAB};
    if (!how->tokenizer)
        return D9D_OK;
    D9D_TRY(d9d_tokenizer_load(how->tokenizer, &r->tok));
    r->tokenise.tok = r->tok;
    r->tokenise.vocab = d9d_tokenizer_vocab_size(r->tok);
    r->tokenise.has_eos = how->append_eos != NULL;
    if (how->append_eos &&
        !d9d_tokenizer_find(r->tok, how->append_eos, strlen(how->append_eos), &r->tokenise.eos))
        return D9D_FAIL(D9D_ECONFIG, "%s: has no token \"%s\"", how->tokenizer, how->append_eos);
    return D9D_OK;
}

static d9d_status make_workers(struct run *r)
{
    int i;

    r->jobs = r->how->jobs > 0 ? r->how->jobs : d9d_thread_cpus();
    r->jobs = r->jobs < MAX_JOBS ? r->jobs : MAX_JOBS;
    r->n_chunks = (size_t)r->jobs * CHUNKS_A_JOB;
    r->workers = calloc((size_t)r->jobs, sizeof(*r->workers));
    r->chunks = calloc(r->n_chunks, sizeof(*r->chunks));
    if (!r->workers || !r->chunks)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %d jobs", r->jobs);
    for (i = 0; r->tok && i < r->jobs; i++)
        D9D_TRY(d9d_tokenizer_scratch_create(r->tok, &r->workers[i].scratch));
    return D9D_OK;
}

/* Bytes of all inputs as far as they are files; 0 when one is not. */
static uint64_t total_bytes(const d9d_shard_how *how)
{
    uint64_t total = 0;
    size_t i;

    for (i = 0; i < how->n_inputs; i++) {
        struct stat s;

        if (stat(how->inputs[i], &s) != 0 || !S_ISREG(s.st_mode))
            return 0;
        total += (uint64_t)s.st_size;
    }
    return total;
}

static d9d_status run_all(struct run *r, d9d_shard_report *out)
{
    const unsigned flags = D9D_OUTDIR_KEEP | (r->how->replace ? D9D_OUTDIR_REPLACE : 0);
    d9d_hash tokenizer = {0, 0};
    bool end = false;

    D9D_TRY(d9di_shard_check(r->how, &r->shares));
    D9D_TRY(load_tokenizer(r));
    D9D_TRY(make_workers(r));
    if (r->tok)
        tokenizer = d9d_tokenizer_hash(r->tok);
    D9D_TRY(d9di_journal_job(r->how, &tokenizer, &r->job, &r->repeatable));
    D9D_TRY(d9d_outdir_begin(&r->dir, r->how->out, flags));
    D9D_TRY(open_work(r));
    d9d_progress_start(&r->progress, r->log, "shard", "B", total_bytes(r->how));
    while (!end)
        D9D_TRY(run_block(r, &end));
    d9d_progress_end(&r->progress);
    return finish(r, out);
}

static void release_run(struct run *r)
{
    size_t i;
    int w;

    for (i = 0; i < D9DI_MAX_SPLITS; i++)
        d9di_packer_free(r->packers[i]);
    for (i = 0; r->chunks && i < r->n_chunks; i++)
        d9di_chunk_release(&r->chunks[i]);
    for (w = 0; r->workers && w < r->jobs; w++) {
        d9d_tokenizer_scratch_free(r->workers[w].scratch);
        d9d_buf_release(&r->workers[w].text);
    }
    free(r->chunks);
    free(r->workers);
    free(r->journal.source_bytes);
    d9di_documents_close(r->reader);
    d9di_sink_close(r->store);
    d9d_tokenizer_free(r->tok);
    if (r->lock >= 0)
        close(r->lock);
    /* Without a journal there is nothing to go on from. */
    r->dir.keep = r->has_journal || !r->owned;
    d9d_outdir_release(&r->dir);
}

d9d_status d9d_shard_run(const d9d_shard_how *how, const d9d_log *log, d9d_shard_report *out)
{
    struct run r = {.how = how, .log = log, .lock = -1};
    const d9d_status st = run_all(&r, out);

    release_run(&r);
    return st;
}
