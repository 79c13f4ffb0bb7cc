/* dataset_verify.c - every byte and every record of a dataset. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "data/dataset_private.h"

static d9d_status check_one_file(void *arg, int worker, size_t item)
{
    const d9d_dataset *ds = arg;

    (void)worker;
    return d9di_dataset_check_file(ds, &ds->manifest.files[item], true);
}

/* What a walk over the samples of a split adds up to. */
struct walk {
    d9d_dataset *ds;
    d9d_progress *progress;
    int32_t *out[3]; /* ids, labels, positions */
    size_t room;
    int64_t tokens;
};

static d9d_status make_room(struct walk *w, size_t n)
{
    int i;

    if (n <= w->room)
        return D9D_OK;
    for (i = 0; i < 3; i++) {
        int32_t *p = realloc(w->out[i], n * sizeof(*p));

        if (!p)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a sample of %zu positions", w->ds->dir,
                            n);
        w->out[i] = p;
    }
    w->room = n;
    return D9D_OK;
}

static d9d_status check_split(struct walk *w, const d9di_split *split)
{
    const d9di_manifest *m = &w->ds->manifest;
    int64_t positions = 0, longest = 0, k;

    for (k = 0; k < split->samples; k++) {
        uint32_t bucket;
        d9d_sample s;

        D9D_TRY(d9di_dataset_sample(w->ds, split->first + k, &s));
        D9D_TRY(make_room(w, (size_t)s.length));
        D9D_TRY(d9d_sample_expand(w->ds, &s, w->out[0], w->out[1], w->out[2], NULL));
        bucket = d9di_bucket_of(m->edges, m->n_edges, s.length);
        if (s.bucket != bucket)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: sample %lld is in bucket %u, its length %lld is of %u", w->ds->dir,
                            (long long)s.number, s.bucket, (long long)s.length, bucket);
        positions += s.length;
        longest = s.length > longest ? s.length : longest;
        w->tokens += s.stored;
        d9d_progress_add(w->progress, 1);
    }
    if (positions != split->positions || longest != split->longest)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: the split \"%s\" has %lld positions, the longest sample %lld; the "
                        "manifest says %lld and %lld",
                        w->ds->dir, split->name, (long long)positions, (long long)longest,
                        (long long)split->positions, (long long)split->longest);
    return D9D_OK;
}

static d9d_status check_samples(d9d_dataset *ds, const d9d_log *log)
{
    d9d_progress progress;
    struct walk w = {.ds = ds, .progress = &progress};
    d9d_status st = D9D_OK;
    size_t i;

    d9d_progress_start(&progress, log, "verify", "samples", (uint64_t)ds->manifest.samples);
    for (i = 0; i < ds->manifest.n_splits && st == D9D_OK; i++)
        st = check_split(&w, &ds->manifest.splits[i]);
    if (st == D9D_OK)
        d9d_progress_end(&progress);
    if (st == D9D_OK && w.tokens != ds->manifest.tokens)
        st = D9D_FAIL(D9D_EFORMAT, "%s: samples have %lld tokens, the shards %lld", ds->dir,
                      (long long)w.tokens, (long long)ds->manifest.tokens);
    for (i = 0; i < 3; i++)
        free(w.out[i]);
    return st;
}

d9d_status d9d_dataset_verify(const char *dir, const d9d_log *log)
{
    d9d_dataset *ds;
    d9d_status st;

    D9D_TRY(d9d_dataset_open(dir, NULL, &ds));
    D9D_TRY_OR(st, d9d_thread_run(0, ds->manifest.n_files, check_one_file, ds), out);
    st = check_samples(ds, log);
out:
    d9d_dataset_close(ds);
    return st == D9D_EFORMAT ? D9D_FAIL(D9D_EVERIFY, "%s", d9d_err_message()) : st;
}
