/* dataset_verify.c - checks every byte of a dataset, and then its records with their labels and
 * fields. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"
#include "data/dataset/dataset_private.h"

enum { READ_BYTES = 1 << 20 };

/* --- files --------------------------------------------------------------------------------- */

struct files {
    const d9d_dataset *ds;
    pthread_mutex_t lock; /* guards the progress */
    d9d_progress progress;
};

/* Element type of a file. */
enum kind { BYTES, NARROW, WIDE, LABELS };

static enum kind element_kind(const d9di_dataset_manifest *m, const char *name)
{
    if (strncmp(name, "tokens-", 7) == 0)
        return m->wide ? WIDE : NARROW;
    return m->labels && strncmp(name, "labels-", 7) == 0 ? LABELS : BYTES;
}

/* The first of n elements that is not a valid id or label; n if all are valid. */
static size_t find_invalid(enum kind kind, const void *p, size_t n, int64_t vocab)
{
    const uint16_t *narrow = p;
    const uint32_t *wide = p;
    const int32_t *labels = p;
    size_t i = 0;

    switch (kind) {
    case NARROW:
        while (i < n && narrow[i] < vocab)
            i++;
        return i;
    case WIDE:
        while (i < n && wide[i] < vocab)
            i++;
        return i;
    case LABELS:
        while (i < n && ((labels[i] >= 0 && labels[i] < vocab) || labels[i] == -100))
            i++;
        return i;
    case BYTES: break;
    }
    return n;
}

static d9d_status check_block(const struct files *w, const d9di_dataset_file *f, const void *p,
                              size_t bytes, uint64_t at)
{
    static const size_t sizes[] = {[BYTES] = 1, [NARROW] = 2, [WIDE] = 4, [LABELS] = 4};
    const d9di_dataset_manifest *m = &w->ds->manifest;
    const enum kind kind = element_kind(m, f->name);
    const size_t n = bytes / sizes[kind], bad = find_invalid(kind, p, n, m->vocab_size);

    if (bad == n)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s/%s: the %s at %llu is outside the vocabulary of %lld",
                    w->ds->dir, f->name, kind == LABELS ? "label" : "id",
                    (unsigned long long)(at / sizes[kind] + bad), (long long)m->vocab_size);
}

static d9d_status read_file(struct files *w, const d9di_dataset_file *f, const d9d_file *file,
                            d9d_hasher *hasher, void *block)
{
    d9d_status values = D9D_OK; /* reported only if the hash is right */
    d9d_err_copy why;
    d9d_hash hash;
    uint64_t at;

    for (at = 0; at < (uint64_t)f->bytes; at += READ_BYTES) {
        const uint64_t left = (uint64_t)f->bytes - at;
        const size_t n = left < READ_BYTES ? (size_t)left : READ_BYTES;

        D9D_TRY(d9d_file_read_at(file, block, n, at));
        d9d_hasher_add(hasher, block, n);
        if (values == D9D_OK && (values = check_block(w, f, block, n, at)) != D9D_OK)
            d9d_err_save(&why, values);
        pthread_mutex_lock(&w->lock);
        d9d_progress_add(&w->progress, n);
        pthread_mutex_unlock(&w->lock);
    }
    hash = d9d_hasher_digest(hasher);
    D9D_TRY(d9di_dataset_check_file(w->ds, f, (uint64_t)f->bytes, &hash));
    return values == D9D_OK ? D9D_OK : d9d_err_restore(&why);
}

/* Checks one file.  Opening has already checked sizes and the hash of the index. */
static d9d_status check_one_file(void *arg, int worker, size_t item)
{
    struct files *w = arg;
    const d9di_dataset_file *f = &w->ds->manifest.files[item];
    d9d_file file = {.fd = -1};
    d9d_hasher *hasher = NULL;
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, w->ds->dir, f->name);
    void *block = malloc(READ_BYTES);
    d9d_status st = D9D_OK;

    (void)worker;
    if (strcmp(f->name, "index.lmdb") == 0)
        goto out;
    if (!path || !block) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory to read %s", w->ds->dir, f->name);
        goto out;
    }
    D9D_TRY_OR(st, d9d_hasher_create(&hasher), out);
    D9D_TRY_OR(st, d9d_file_open(path, &file), out);
    st = read_file(w, f, &file, hasher, block);
out:
    d9d_file_release(&file);
    d9d_hasher_free(hasher);
    free(block);
    d9d_arena_release(&a);
    return st;
}

static d9d_status check_files(const d9d_dataset *ds, const d9d_log *log)
{
    struct files w = {.ds = ds, .lock = PTHREAD_MUTEX_INITIALIZER};
    uint64_t total = 0;
    d9d_status st;
    size_t i;

    for (i = 0; i < ds->manifest.n_files; i++)
        if (strcmp(ds->manifest.files[i].name, "index.lmdb") != 0)
            total += (uint64_t)ds->manifest.files[i].bytes;
    d9d_progress_start(&w.progress, log, "verify", "B", total);
    st = d9d_thread_run(0, ds->manifest.n_files, check_one_file, &w);
    if (st == D9D_OK)
        d9d_progress_end(&w.progress);
    pthread_mutex_destroy(&w.lock);
    return st;
}

/* --- records ------------------------------------------------------------------------------- */

/* True if the values are those that the manifest says, as far as it does. */
static bool is_in_range(const d9d_field_range *range, const d9d_field *f, const void *data,
                        int64_t rows)
{
    d9d_field_range r = *range;

    if (r.known)
        d9di_field_range_add(&r, f, data, rows);
    return r.min == range->min && r.max == range->max;
}

/* Checks the fields of a sample's documents. */
static d9d_status check_fields(const d9d_dataset *ds, const d9di_dataset_split *split,
                               const d9d_sample *s)
{
    const d9d_field_list list = ds->manifest.fields;
    d9d_sample_fields *f;
    d9d_status st = D9D_OK;

    if (list.n == 0)
        return D9D_OK;
    D9D_TRY(d9d_sample_fields_open(ds, s, &f));
    for (size_t k = 0; k < s->n_segments * list.n && st == D9D_OK; k++) {
        const size_t i = k % list.n;
        const d9d_field_values *v = d9d_sample_fields_get(f, k / list.n);
        const d9d_field_range *range = d9di_dataset_field_range(ds, split, i);
        const int64_t bad = list.v[i].allow_nan
                                ? -1
                                : d9di_field_find_nonfinite(&list.v[i], v->data[i], v->rows[i]);

        if (bad >= 0)
            st = D9D_FAIL(D9D_EFORMAT,
                          "%s: sample %lld: element %lld of the field \"%s\" is NaN or infinite",
                          ds->dir, (long long)s->number, (long long)bad, list.v[i].name);
        else if (!is_in_range(range, &list.v[i], v->data[i], v->rows[i]))
            st =
                D9D_FAIL(D9D_EFORMAT,
                         "%s: sample %lld: the field \"%s\" has values outside %lld to %lld, which "
                         "the manifest says",
                         ds->dir, (long long)s->number, list.v[i].name, (long long)range->min,
                         (long long)range->max);
        else if (list.v[i].ragged && v->rows[i] > list.v[i].longest)
            st = D9D_FAIL(D9D_EFORMAT,
                          "%s: sample %lld: the field \"%s\" has %lld row%s, the manifest says at "
                          "most %lld",
                          ds->dir, (long long)s->number, list.v[i].name, (long long)v->rows[i],
                          D9D_PLURAL(v->rows[i]), (long long)list.v[i].longest);
    }
    d9d_sample_fields_close(f);
    return st;
}

/* Checks that a sample's labels are in their range, as far as the manifest says one. */
static d9d_status check_labels(const d9d_dataset *ds, const d9di_dataset_split *split,
                               const d9d_sample *s)
{
    const d9d_field_range *range = d9di_dataset_label_range(ds, split);
    d9d_field_range r = *range;
    d9di_dataset_tokens t;

    if (!ds->manifest.labels || !range->known)
        return D9D_OK;
    D9D_TRY(d9di_dataset_tokens_read(ds, s, 0, s->stored, &t));
    d9di_field_range_add_i32(&r, t.labels, s->stored);
    d9di_dataset_tokens_release(&t);
    if (r.min == range->min && r.max == range->max)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT,
                    "%s: sample %lld: there are labels outside %lld to %lld, which the manifest "
                    "says",
                    ds->dir, (long long)s->number, (long long)range->min, (long long)range->max);
}

static d9d_status check_split(d9d_dataset *ds, const d9di_dataset_split *split, int64_t *tokens)
{
    const d9di_dataset_manifest *m = &ds->manifest;
    int64_t positions = 0, longest = 0, k;

    for (k = 0; k < split->samples; k++) {
        uint32_t bucket;
        d9d_sample s;

        D9D_TRY(d9di_dataset_sample(ds, split->first + k, &s));
        bucket = d9di_dataset_length_bucket(m->edges, m->n_edges, s.length);
        if (s.bucket != bucket)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: sample %lld is in bucket %u, its length %lld is of %u", ds->dir,
                            (long long)s.number, s.bucket, (long long)s.length, bucket);
        D9D_TRY(check_fields(ds, split, &s));
        D9D_TRY(check_labels(ds, split, &s));
        positions += s.length;
        longest = s.length > longest ? s.length : longest;
        *tokens += s.stored;
    }
    if (positions != split->positions || longest != split->longest)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: the split \"%s\" has %lld positions, the longest sample %lld; the "
                        "manifest says %lld and %lld",
                        ds->dir, split->name, (long long)positions, (long long)longest,
                        (long long)split->positions, (long long)split->longest);
    return D9D_OK;
}

static d9d_status check_samples(d9d_dataset *ds)
{
    int64_t tokens = 0;
    size_t i;

    for (i = 0; i < ds->manifest.n_splits; i++)
        D9D_TRY(check_split(ds, &ds->manifest.splits[i], &tokens));
    if (tokens != ds->manifest.tokens)
        return D9D_FAIL(D9D_EFORMAT, "%s: samples have %lld tokens, the shards %lld", ds->dir,
                        (long long)tokens, (long long)ds->manifest.tokens);
    return D9D_OK;
}

d9d_status d9d_dataset_verify(const char *dir, const d9d_log *log)
{
    d9d_dataset *ds;
    d9d_status st;

    st = d9d_dataset_open(dir, NULL, &ds);
    if (st == D9D_ENOTFOUND && d9d_fs_is_dir(dir)) /* a missing file is damage */
        return D9D_FAIL(D9D_EVERIFY, "%s", d9d_err_message());
    D9D_TRY(st);
    st = check_files(ds, log);
    if (st == D9D_OK)
        st = check_samples(ds);
    d9d_dataset_close(ds);
    return st == D9D_EFORMAT ? D9D_FAIL(D9D_EVERIFY, "%s", d9d_err_message()) : st;
}
