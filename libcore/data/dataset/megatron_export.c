/* megatron_export.c - exports a dataset as Megatron-LM's token files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data/dataset/dataset_private.h"
#include "data/dataset/megatron_format.h"
#include "data/io/out_file.h"

enum { NARROW_BELOW = 65500 }; /* Megatron-LM's own rule for u16 ids */

struct export
{
    d9d_dataset *ds;
    d9di_out_file bin, idx;
    bool narrow;
    int64_t offset; /* bytes written to the .bin so far */
    d9d_progress progress;
};

/* Writes a segment of n tokens. */
typedef d9d_status (*segment_fn)(struct export *e, const d9d_sample *s, size_t from, uint32_t n);

static d9d_status write_ids(struct export *e, const d9di_dataset_tokens *t, uint32_t n)
{
    const bool wide = e->ds->manifest.wide;
    const uint16_t *narrow = t->tokens;
    const uint32_t *tokens = t->tokens;
    uint32_t i;

    if (!wide && e->narrow)
        return d9di_out_file_write(&e->bin, narrow, n * sizeof(*narrow));
    for (i = 0; i < n; i++) {
        const uint32_t v = wide ? tokens[i] : narrow[i];

        D9D_TRY(d9di_out_file_write(&e->bin, &v, e->narrow ? 2 : 4));
    }
    return D9D_OK;
}

static d9d_status write_tokens(struct export *e, const d9d_sample *s, size_t from, uint32_t n)
{
    d9di_dataset_tokens t;
    d9d_status st;

    D9D_TRY(d9di_dataset_tokens_read(e->ds, s, from, n, &t));
    st = write_ids(e, &t, n);
    d9di_dataset_tokens_release(&t);
    d9d_progress_add(&e->progress, n);
    D9D_TRY(st);
    return d9di_sample_check_not_truncated(e->ds, s);
}

static d9d_status write_length(struct export *e, const d9d_sample *s, size_t from, uint32_t n)
{
    (void)s;
    (void)from;
    return d9di_out_file_write(&e->idx, &n, sizeof(n));
}

static d9d_status write_pointer(struct export *e, const d9d_sample *s, size_t from, uint32_t n)
{
    (void)s;
    (void)from;
    D9D_TRY(d9di_out_file_write(&e->idx, &e->offset, sizeof(e->offset)));
    e->offset += (int64_t)n * (e->narrow ? 2 : 4);
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

    D9D_TRY(each_segment(e, write_tokens, &n));
    h.sequences = n;
    h.bounds = n + 1;
    D9D_TRY(d9di_out_file_write(&e->idx, &h, sizeof(h)));
    D9D_TRY(each_segment(e, write_length, &n));
    D9D_TRY(each_segment(e, write_pointer, &n));
    for (i = 0; i <= n; i++)
        D9D_TRY(d9di_out_file_write(&e->idx, &i, sizeof(i)));
    D9D_TRY(d9di_out_file_close(&e->bin));
    return d9di_out_file_close(&e->idx);
}

/* --- the two files ------------------------------------------------------------------------- */

struct pair {
    char *path[2], *partial[2]; /* paths of the .bin and the .idx */
    bool is_made[2];
    int held[2]; /* descriptors that lock the partial files until they are renamed; -1: none */
};

static d9d_status make_paths(const char *out, struct pair *p)
{
    static const char *const ends[] = {".bin", ".idx"};

    for (int i = 0; i < 2; i++) {
        if (asprintf(&p->path[i], "%s%s", out, ends[i]) < 0)
            p->path[i] = NULL;
        if (asprintf(&p->partial[i], "%s%s.partial", out, ends[i]) < 0)
            p->partial[i] = NULL;
        if (!p->path[i] || !p->partial[i])
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory", out);
    }
    return D9D_OK;
}

static void pair_release(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->is_made[i])
            remove(p->partial[i]);
        if (p->held[i] >= 0)
            (void)close(p->held[i]);
        free(p->path[i]);
        free(p->partial[i]);
    }
}

/* Checks that the outputs do not exist, or may be replaced: only regular files and links may.
 * Dangling links exist too. */
static d9d_status check_names(const struct pair *p, bool replace)
{
    struct stat s;

    for (int i = 0; i < 2; i++) {
        if (lstat(p->path[i], &s) != 0)
            continue;
        if (!S_ISREG(s.st_mode) && !S_ISLNK(s.st_mode))
            return D9D_FAIL(D9D_ECONFIG, "%s: is there already and is not a regular file",
                            p->path[i]);
        if (!replace)
            return D9D_FAIL(D9D_ECONFIG, "%s: is there already; --force replaces it", p->path[i]);
    }
    return D9D_OK;
}

/* Locks the file, since two exports to one name would corrupt each other. */
static d9d_status lock_file(d9d_file *f)
{
    const bool locked_out = flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat s, named;

    if (locked_out || fstat(f->fd, &s) != 0 || lstat(f->path, &named) != 0 ||
        s.st_dev != named.st_dev || s.st_ino != named.st_ino)
        return D9D_FAIL(D9D_EIO,
                        "%s: another process is writing it; wait for its end, or name another",
                        f->path);
    if (s.st_nlink > 1)
        return D9D_FAIL(D9D_ECONFIG, "%s: is there already and has another name besides", f->path);
    return d9d_file_resize(f, 0);
}

static d9d_status open_partial(const char *path, d9d_file *out)
{
    d9d_file f;
    d9d_status st;

    D9D_TRY(d9d_file_open_rw(path, &f));
    st = lock_file(&f);
    if (st == D9D_OK)
        *out = f;
    else
        d9d_file_release(&f);
    return st;
}

/* Creates a partial file, reusing one of a killed export.  Anything but a regular file is not
 * ours. */
static d9d_status create_partial(struct pair *p, int i, d9di_out_file *out)
{
    struct stat s;

    if (lstat(p->partial[i], &s) == 0 && !S_ISREG(s.st_mode))
        return D9D_FAIL(D9D_ECONFIG, "%s: is there already and is not a regular file",
                        p->partial[i]);
    D9D_TRY(d9di_out_file_create_with(out, p->partial[i], open_partial));
    p->is_made[i] = true;
    p->held[i] = fcntl(out->file.fd, F_DUPFD_CLOEXEC, 0);
    return p->held[i] >= 0 ? D9D_OK : D9D_FAIL(D9D_EIO, "%s: cannot be held: %m", p->partial[i]);
}

/* Removes the old index first: a .bin without index is not used, but one with a wrong index would
 * be. */
static d9d_status rename_files(struct pair *p, bool replace)
{
    D9D_TRY(check_names(p, replace)); /* no one else created them meanwhile */
    if (replace && unlink(p->path[1]) != 0 && errno != ENOENT)
        return D9D_FAIL(D9D_EIO, "%s: cannot be removed: %m", p->path[1]);
    for (int i = 0; i < 2; i++) {
        if (rename(p->partial[i], p->path[i]) != 0)
            return D9D_FAIL(D9D_EIO, "%s: cannot be renamed: %m", p->partial[i]);
        p->is_made[i] = false;
    }
    return D9D_OK;
}

static d9d_status write_files(struct export *e, struct pair *p, bool replace, const d9d_log *log)
{
    d9di_out_file *const files[] = {&e->bin, &e->idx};

    D9D_TRY(check_names(p, replace));
    for (int i = 0; i < 2; i++)
        D9D_TRY(create_partial(p, i, files[i]));
    d9d_progress_start(&e->progress, log, "export", "tokens", 0);
    D9D_TRY(write_all(e));
    d9d_progress_end(&e->progress);
    return rename_files(p, replace);
}

d9d_status d9d_dataset_export_megatron(const char *dir, const char *split, const char *out,
                                       bool replace, const d9d_log *log)
{
    struct export e = {.offset = 0};
    struct pair p = {.held = {-1, -1}};
    d9d_status st;

    D9D_TRY(d9d_dataset_open(dir, split, &e.ds));
    e.narrow = d9d_dataset_vocab(e.ds) < NARROW_BELOW;
    if (e.ds->manifest.fields.n > 0)
        st = D9D_FAIL(D9D_ECONFIG, "%s: has fields, which the files of Megatron-LM cannot hold",
                      dir);
    else if (e.ds->manifest.labels)
        st = D9D_FAIL(D9D_ECONFIG, "%s: has labels, which the files of Megatron-LM cannot hold",
                      dir);
    else if ((st = make_paths(out, &p)) == D9D_OK)
        st = write_files(&e, &p, replace, log);
    pair_release(&p);
    d9di_out_file_release(&e.bin);
    d9di_out_file_release(&e.idx);
    d9d_dataset_close(e.ds);
    return st;
}
