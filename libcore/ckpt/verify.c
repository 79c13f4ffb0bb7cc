/* verify.c - is a checkpoint directory what it should be?  See d9d/ckpt/checkpoint.h. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/map_graph.h"
#include "ckpt/pieces.h"
#include "ckpt/recast.h"
#include "d9d/base/thread.h"
#include "d9d/ckpt/checkpoint.h"
#include "d9d/ckpt/manifest.h"

struct tensor {
    const d9d_st_file *file;
    const d9d_st_tensor *t;
};

struct verify {
    const char *dir;
    d9d_verify_fn found;
    void *arg;
    d9d_verify_report report;
    d9d_arena arena;
    D9D_VEC(d9d_st_file *) files;
    D9D_VEC(struct tensor) tensors; /* of floating types */
    d9di_pieces pieces;
    uint64_t *bad; /* of every piece: its first element that is not finite, or its n */
    unsigned char **buf;
    pthread_mutex_t lock;
    d9d_progress progress;
};

static void find(void *arg, const char *sentence)
{
    struct verify *v = arg;

    v->report.findings++;
    if (v->found != NULL)
        v->found(v->arg, sentence);
}

static bool is_safetensors(const char *name)
{
    size_t n = strlen(name), k = sizeof(".safetensors") - 1;

    return n > k && strcmp(name + n - k, ".safetensors") == 0;
}

/* --- headers ------------------------------------------------------------------------ */

static d9d_status open_file(struct verify *v, const char *path)
{
    d9d_st_file *f;
    d9d_status st;

    D9D_TRY(D9D_VEC_RESERVE(&v->files, 1));
    st = d9d_st_open(path, &f);
    if (st == D9D_EFORMAT) {
        find(v, d9d_err_message());
        return D9D_OK;
    }
    D9D_TRY(st);
    v->files.data[v->files.len++] = f;
    v->report.files++;
    v->report.tensors += d9d_st_count(f);
    for (size_t i = 0; i < d9d_st_count(f); i++) {
        const d9d_st_tensor *t = d9d_st_at(f, i);

        v->report.bytes += t->bytes;
        if (!d9di_is_float(t->dtype))
            continue;
        D9D_TRY(D9D_VEC_PUSH(&v->tensors, (struct tensor){f, t}));
        D9D_TRY(
            d9di_pieces_add(&v->pieces, v->tensors.len - 1, t->bytes / d9d_dtype_size(t->dtype)));
    }
    return D9D_OK;
}

static d9d_status open_files(struct verify *v, const d9d_fs_names *names)
{
    size_t n = 0;

    for (size_t i = 0; i < names->n; i++) {
        char *path = d9d_fs_join(&v->arena, v->dir, names->name[i]);

        if (path == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", v->dir);
        if (!is_safetensors(names->name[i]))
            continue;
        n++;
        D9D_TRY(open_file(v, path));
    }
    if (n == 0)
        return D9D_FAIL(D9D_ENOTFOUND, "%s: no safetensors file is there", v->dir);
    return D9D_OK;
}

/* The index agrees with the headers, where there is one and all headers can be read. */
static d9d_status check_directory(struct verify *v, const d9d_fs_names *names)
{
    d9d_checkpoint *c = NULL;
    d9d_status st = D9D_OK;

    if (v->report.findings > 0)
        return D9D_OK;
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->name[i], D9D_INDEX_NAME) == 0)
            st = d9d_checkpoint_open(v->dir, &c);
    d9d_checkpoint_close(c);
    if (st != D9D_EFORMAT && st != D9D_ENOTFOUND)
        return st;
    find(v, d9d_err_message());
    return D9D_OK;
}

/* --- numbers ---------------------------------------------------------------------------- */

static d9d_status check_piece(void *arg, int worker, size_t i)
{
    struct verify *v = arg;
    const d9di_piece *p = &v->pieces.data[i];
    const struct tensor *t = &v->tensors.data[p->tensor];
    size_t width = d9d_dtype_size(t->t->dtype);

    if (v->buf[worker] == NULL && (v->buf[worker] = malloc(D9DI_PIECE * sizeof(double))) == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", v->dir);
    D9D_TRY(d9d_st_read(t->file, t->t, p->at * width, v->buf[worker], p->n * width));
    v->bad[i] = d9di_first_nonfinite(v->buf[worker], t->t->dtype, p->n);
    pthread_mutex_lock(&v->lock);
    d9d_progress_add(&v->progress, p->n * width);
    pthread_mutex_unlock(&v->lock);
    return D9D_OK;
}

static void say_nonfinite(struct verify *v, size_t i)
{
    const d9di_piece *p = &v->pieces.data[i];
    const struct tensor *t = &v->tensors.data[p->tensor];
    char text[1024];

    (void)snprintf(text, sizeof(text), "%s: tensor %.400s: element %" PRIu64 " is not finite",
                   d9d_st_path(t->file), t->t->name, p->at + v->bad[i]);
    find(v, text);
}

/* One finding a tensor: its first element that is not finite. */
static d9d_status check_numbers(struct verify *v, int jobs, const d9d_log *log)
{
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    size_t said = SIZE_MAX;
    d9d_status st;

    v->bad = d9d_arena_alloc(&v->arena, (v->pieces.len + 1) * sizeof(*v->bad));
    v->buf = d9d_arena_alloc(&v->arena, (size_t)n * sizeof(*v->buf));
    if (v->bad == NULL || v->buf == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", v->dir);
    d9d_progress_start(&v->progress, log, "verify", "B", v->report.bytes);
    st = d9d_thread_run(n, v->pieces.len, check_piece, v);
    for (int i = 0; i < n; i++)
        free(v->buf[i]);
    D9D_TRY(st);
    d9d_progress_end(&v->progress);
    for (size_t i = 0; i < v->pieces.len; i++) {
        const d9di_piece *p = &v->pieces.data[i];

        if (v->bad[i] == p->n || p->tensor == said)
            continue;
        say_nonfinite(v, i);
        said = p->tensor;
    }
    return D9D_OK;
}

/* --- hashes -------------------------------------------------------------------------------- */

static d9d_status check_strays(struct verify *v, const d9d_manifest *m, const d9d_fs_names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        char *text;

        if (!is_safetensors(names->name[i]) || d9d_manifest_find(m, names->name[i]) != NULL)
            continue;
        text = d9d_arena_printf(&v->arena, "%s/%s is not listed in %s", v->dir, names->name[i],
                                D9D_MANIFEST_NAME);
        if (text == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", v->dir);
        find(v, text);
    }
    return D9D_OK;
}

static d9d_status check_hashes(struct verify *v, const d9d_fs_names *names, int jobs,
                               const d9d_log *log)
{
    d9d_manifest *m = NULL;
    d9d_status st = d9d_manifest_open(v->dir, &m);

    if (st == D9D_ENOTFOUND)
        return D9D_OK;
    v->report.hashed = true;
    if (st == D9D_EFORMAT) {
        find(v, d9d_err_message());
        return D9D_OK;
    }
    D9D_TRY(st);
    D9D_TRY_OR(st, check_strays(v, m, names), out);
    st = d9d_manifest_check(m, jobs, log, find, v);
    if (st == D9D_EVERIFY) /* said one by one */
        st = D9D_OK;
out:
    d9d_manifest_close(m);
    return st;
}

d9d_status d9d_checkpoint_verify(const char *dir, int jobs, const d9d_log *log, d9d_verify_fn found,
                                 void *arg, d9d_verify_report *report)
{
    struct verify v = {.dir = dir, .found = found, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_fs_names names = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_list(dir, &v.arena, &names), out);
    D9D_TRY_OR(st, open_files(&v, &names), out);
    D9D_TRY_OR(st, check_directory(&v, &names), out);
    D9D_TRY_OR(st, check_numbers(&v, jobs, log), out);
    D9D_TRY_OR(st, check_hashes(&v, &names, jobs, log), out);
    if (v.report.findings > 0)
        st = D9D_FAIL(D9D_EVERIFY, "%s: %" PRIu64 " findings", dir, v.report.findings);
    if (report != NULL)
        *report = v.report;
out:
    for (size_t i = 0; i < v.files.len; i++)
        d9d_st_close(v.files.data[i]);
    D9D_VEC_RELEASE(&v.files);
    D9D_VEC_RELEASE(&v.tensors);
    D9D_VEC_RELEASE(&v.pieces);
    d9d_arena_release(&v.arena);
    return st;
}
