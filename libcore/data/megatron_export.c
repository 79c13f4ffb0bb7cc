/* megatron_export.c - a dataset as Megatron-LM's token files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset_private.h"
#include "data/megatron_format.h"
#include "data/out_file.h"

enum { NARROW_BELOW = 65500 }; /* as Megatron-LM chooses */

struct export
{
    d9d_dataset *ds;
    d9di_out_file bin, idx;
    bool narrow;
    int64_t at; /* bytes of the .bin so far */
    d9d_progress progress;
};

/* What is written for a segment of n tokens. */
typedef d9d_status (*segment_fn)(struct export *e, const d9d_sample *s, size_t from, uint32_t n);

static d9d_status put_ids(struct export *e, const d9di_tokens *t, uint32_t n)
{
    const bool wide = e->ds->manifest.wide;
    const uint16_t *narrow = t->tokens;
    const uint32_t *tokens = t->tokens;
    uint32_t i;

    if (!wide && e->narrow)
        return d9di_out_put(&e->bin, narrow, n * sizeof(*narrow));
    for (i = 0; i < n; i++) {
        const uint32_t v = wide ? tokens[i] : narrow[i];

        D9D_TRY(d9di_out_put(&e->bin, &v, e->narrow ? 2 : 4));
    }
    return D9D_OK;
}

static d9d_status put_tokens(struct export *e, const d9d_sample *s, size_t from, uint32_t n)
{
    d9di_tokens t;
    d9d_status st;

    D9D_TRY(d9di_tokens_read(e->ds, s, from, n, &t));
    st = put_ids(e, &t, n);
    d9di_tokens_release(&t);
    d9d_progress_add(&e->progress, n);
    D9D_TRY(st);
    return d9di_sample_check_uncut(e->ds, s);
}

static d9d_status put_length(struct export *e, const d9d_sample *s, size_t from, uint32_t n)
{
    (void)s;
    (void)from;
    return d9di_out_put(&e->idx, &n, sizeof(n));
}

static d9d_status put_pointer(struct export *e, const d9d_sample *s, size_t from, uint32_t n)
{
    (void)s;
    (void)from;
    D9D_TRY(d9di_out_put(&e->idx, &e->at, sizeof(e->at)));
    e->at += (int64_t)n * (e->narrow ? 2 : 4);
    return D9D_OK;
}

static d9d_status each_segment(struct export *e, segment_fn fn, uint64_t *count)
{
    int64_t k;

    *count = 0;
    for (k = 0; k < d9d_dataset_count(e->ds); k++) {
        size_t from = 0;
        uint32_t i;
        d9d_sample s;

        D9D_TRY(d9d_dataset_sample(e->ds, k, &s));
        for (i = 0; i < s.n_segments; i++, (*count)++) {
            D9D_TRY(fn(e, &s, from, s.segments[i]));
            from += s.segments[i];
        }
    }
    return D9D_OK;
}

static d9d_status write_all(struct export *e)
{
    struct d9di_megatron_header h = {.magic = D9DI_MEGATRON_MAGIC,
                                     .version = 1,
                                     .type = e->narrow ? D9DI_MEGATRON_U16 : D9DI_MEGATRON_I32};
    uint64_t i, n;

    D9D_TRY(each_segment(e, put_tokens, &n));
    h.sequences = n;
    h.bounds = n + 1;
    D9D_TRY(d9di_out_put(&e->idx, &h, sizeof(h)));
    D9D_TRY(each_segment(e, put_length, &n));
    D9D_TRY(each_segment(e, put_pointer, &n));
    for (i = 0; i <= n; i++)
        D9D_TRY(d9di_out_put(&e->idx, &i, sizeof(i)));
    D9D_TRY(d9di_out_close(&e->bin));
    return d9di_out_close(&e->idx);
}

static d9d_status make_files(struct export *e, const char *out, const d9d_log *log)
{
    static const char *const ends[] = {".bin", ".idx"};
    d9di_out_file *const files[] = {&e->bin, &e->idx};
    char *tmp[2] = {NULL, NULL}, *path = NULL;
    d9d_status st = D9D_OK;
    int i;

    for (i = 0; i < 2 && st == D9D_OK; i++) {
        if (asprintf(&tmp[i], "%s%s.partial", out, ends[i]) < 0) {
            tmp[i] = NULL;
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", out);
        } else {
            st = d9di_out_create(files[i], tmp[i]);
        }
    }
    d9d_progress_start(&e->progress, log, "export", "tokens", 0);
    if (st == D9D_OK)
        st = write_all(e);
    if (st == D9D_OK)
        d9d_progress_end(&e->progress);
    for (i = 0; i < 2; i++) {
        if (st == D9D_OK && asprintf(&path, "%s%s", out, ends[i]) < 0) {
            path = NULL;
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", out);
        }
        if (st == D9D_OK && rename(tmp[i], path) != 0)
            st = D9D_FAIL(D9D_EIO, "%s: cannot be renamed: %m", tmp[i]);
        if (st != D9D_OK && tmp[i])
            remove(tmp[i]);
        free(tmp[i]);
        free(path);
        path = NULL;
    }
    return st;
}

d9d_status d9d_dataset_export_megatron(const char *dir, const char *split, const char *out,
                                       const d9d_log *log)
{
    struct export e = {.at = 0};
    d9d_status st;

    D9D_TRY(d9d_dataset_open(dir, split, &e.ds));
    e.narrow = d9d_dataset_vocab(e.ds) < NARROW_BELOW;
    if (e.ds->manifest.labels)
        st = D9D_FAIL(D9D_ECONFIG, "%s: has labels, and Megatron's files have no room for them",
                      dir);
    else
        st = make_files(&e, out, log);
    d9di_out_release(&e.bin);
    d9di_out_release(&e.idx);
    d9d_dataset_close(e.ds);
    return st;
}
