/* verify.c - checks a checkpoint directory.  See d9d/ckpt/dir/checkpoint.h. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/dir/chunks.h"
#include "ckpt/dir/list_recursive.h"
#include "ckpt/mapper/dtype_convert.h"
#include "ckpt/mapper/map_graph.h"
#include "ckpt/safetensors/st_file.h"
#include "d9d/base/num_format.h"
#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/manifest.h"

/* Header and findings of one safetensors file. */
struct file_header {
    d9d_safetensors_file *st; /* NULL: not a safetensors file, or its header is invalid */
    uint64_t *bad;            /* [tensors] the first non-finite element, or UINT64_MAX */
};

struct verify {
    const char *dir;
    const d9d_checkpoint_verify_opts *opt;
    d9d_checkpoint_verify_report report;
    d9d_arena arena;
    d9d_fs_names names; /* names in the directory */
    d9d_manifest *manifest;
    d9d_manifest_file *files;  /* files to read: those of the manifest, then the others */
    struct file_header *heads; /* [files] */
    size_t n;
    pthread_mutex_t lock; /* guards `bad` */
};

static d9d_status no_memory(const struct verify *v)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", v->dir);
}

static void report_finding(void *arg, const char *sentence)
{
    struct verify *v = arg;

    v->report.findings++;
    if (v->opt->on_finding != NULL)
        v->opt->on_finding(v->opt->arg, sentence);
}

/* Turns a failure caused by the directory into a finding; other failures are returned. */
static d9d_status report_failure(struct verify *v, d9d_status st)
{
    if (st == D9D_OK || st == D9D_ENOMEM)
        return st;
    report_finding(v, d9d_err_message());
    return D9D_OK;
}

static bool is_safetensors(const char *name)
{
    size_t n = strlen(name), k = sizeof(".safetensors") - 1;

    return n > k && strcmp(name + n - k, ".safetensors") == 0;
}

static bool file_exists(const struct verify *v, const char *name)
{
    for (size_t i = 0; i < v->names.n; i++)
        if (strcmp(v->names.name[i], name) == 0)
            return true;
    return false;
}

/* --- which files ---------------------------------------------------------------------- */

static d9d_status read_manifest(struct verify *v)
{
    if (!file_exists(v, D9D_MANIFEST_NAME) && v->opt->no_manifest)
        return D9D_OK;
    v->report.hashed = true;
    return report_failure(v, d9d_manifest_open(v->dir, &v->manifest));
}

static bool is_listed(const struct verify *v, const char *name)
{
    return v->manifest != NULL && d9d_manifest_find(v->manifest, name) != NULL;
}

/* Where a manifest is damaged, files in directories are read too: they may be those of parts. */
static bool is_beside(const struct verify *v, const char *name)
{
    return strchr(name, '/') == NULL || (v->report.hashed && v->manifest == NULL);
}

/* Lists the manifest's files, then safetensors files that it does not list. */
static d9d_status list_files(struct verify *v)
{
    size_t listed = v->manifest != NULL ? d9d_manifest_count(v->manifest) : 0;

    v->files = d9d_arena_alloc(&v->arena, (listed + v->names.n + 1) * sizeof(*v->files));
    v->heads = d9d_arena_alloc(&v->arena, (listed + v->names.n + 1) * sizeof(*v->heads));
    if (v->files == NULL || v->heads == NULL)
        return no_memory(v);
    for (; v->n < listed; v->n++)
        v->files[v->n] = *d9d_manifest_at(v->manifest, v->n);
    for (size_t i = 0; i < v->names.n; i++)
        if (is_safetensors(v->names.name[i]) && !is_listed(v, v->names.name[i]) &&
            is_beside(v, v->names.name[i]))
            v->files[v->n++].name = v->names.name[i];
    return D9D_OK;
}

/* --- headers ------------------------------------------------------------------------ */

static d9d_status open_header(struct verify *v, size_t i, const char *path)
{
    struct file_header *h = &v->heads[i];
    size_t n;

    D9D_TRY(d9d_safetensors_open(path, &h->st));
    d9di_safetensors_close_fd(h->st);
    n = d9d_safetensors_count(h->st);
    h->bad = d9d_arena_alloc(&v->arena, (n + 1) * sizeof(*h->bad));
    if (h->bad == NULL)
        return no_memory(v);
    for (size_t k = 0; k < n; k++)
        h->bad[k] = UINT64_MAX;
    v->report.tensors += n;
    return d9d_fs_size(path, &v->files[i].bytes);
}

static d9d_status open_headers(struct verify *v)
{
    size_t n = 0, listed = v->manifest != NULL ? d9d_manifest_count(v->manifest) : 0;

    for (size_t i = 0; i < v->n; i++) {
        const char *name = v->files[i].name;
        uint64_t bytes = v->files[i].bytes;
        char *path = d9d_fs_join(&v->arena, v->dir, name);

        if (path == NULL)
            return no_memory(v);
        if (!is_safetensors(name))
            continue;
        n++;
        if (i >= listed || file_exists(v, name)) /* otherwise reported as missing */
            D9D_TRY(report_failure(v, open_header(v, i, path)));
        if (i < listed)
            v->files[i].bytes = bytes;
    }
    if (n == 0)
        return D9D_FAIL(D9D_ENOTFOUND, "%s: no safetensors file is there", v->dir);
    return D9D_OK;
}

/* Checks the index against the headers, if all of them can be read. */
static d9d_status check_index(struct verify *v)
{
    d9d_checkpoint *c = NULL;
    d9d_status st;

    if (v->report.findings > 0 ||
        (v->manifest != NULL && !file_exists(v, D9D_CHECKPOINT_INDEX_NAME)))
        return D9D_OK;
    st = d9d_checkpoint_open(v->dir, &c);
    d9d_checkpoint_close(c);
    return report_failure(v, st);
}

/* --- numbers ---------------------------------------------------------------------------- */

/* The first tensor that ends after `at`. */
static size_t tensor_at(const d9d_safetensors_file *st, uint64_t at)
{
    size_t lo = 0, hi = d9d_safetensors_count(st);

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const d9d_safetensors_tensor *t = d9d_safetensors_at(st, mid);

        if (t->offset + t->bytes <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Checks the elements of a tensor that begin in the `own` bytes at `at`. */
static void check_finite(struct verify *v, const d9d_safetensors_tensor *t, uint64_t *bad,
                         uint64_t at, const unsigned char *p, size_t own)
{
    const uint64_t width = d9d_dtype_size(t->dtype), end = t->offset + t->bytes;
    const uint64_t from = at > t->offset ? (at - t->offset + width - 1) / width : 0;
    const uint64_t to = ((at + own < end ? at + own : end) - t->offset + width - 1) / width;
    uint64_t i;

    if (to <= from)
        return;
    i = d9di_cast_first_nonfinite(p + (t->offset + from * width - at), t->dtype,
                                  (size_t)(to - from));
    if (i == to - from)
        return;
    (void)pthread_mutex_lock(&v->lock);
    if (from + i < *bad)
        *bad = from + i;
    (void)pthread_mutex_unlock(&v->lock);
}

static void visit_bytes(void *arg, size_t f, uint64_t at, const unsigned char *p, size_t own)
{
    struct verify *v = arg;
    const struct file_header *h = &v->heads[f];

    if (h->st == NULL)
        return;
    for (size_t k = tensor_at(h->st, at); k < d9d_safetensors_count(h->st); k++) {
        const d9d_safetensors_tensor *t = d9d_safetensors_at(h->st, k);

        if (t->offset >= at + own)
            return;
        check_finite(v, t, &h->bad[k], at, p, own);
    }
}

/* Reports one finding per tensor: its first non-finite element. */
static void report_nonfinite(struct verify *v, const struct file_header *h)
{
    for (size_t k = 0; h->st != NULL && k < d9d_safetensors_count(h->st); k++) {
        char text[1024];

        if (h->bad[k] == UINT64_MAX)
            continue;
        (void)d9d_num_format(
            text, sizeof(text), "%s: tensor %.400s: element %" PRIu64 " is not finite",
            d9d_safetensors_path(h->st), d9d_safetensors_at(h->st, k)->name, h->bad[k]);
        report_finding(v, text);
    }
}

/* --- files that the manifest does not list
 * -----------------------------------------------------------
 */

/* Hidden files, such as NFS's .nfs files, are never part of a checkpoint. */
static bool is_hidden(const char *path)
{
    const char *slash = strrchr(path, '/');

    return (slash != NULL ? slash[1] : path[0]) == '.';
}

static d9d_status report_unlisted(struct verify *v)
{
    for (size_t i = 0; i < v->names.n; i++) {
        const char *name = v->names.name[i];
        char *text;

        if (is_hidden(name) || is_listed(v, name) || strcmp(name, D9D_MANIFEST_NAME) == 0)
            continue;
        text = d9d_arena_printf(&v->arena, "%s/%s is not listed in %s", v->dir, name,
                                D9D_MANIFEST_NAME);
        if (text == NULL)
            return no_memory(v);
        report_finding(v, text);
    }
    return D9D_OK;
}

/* --- the whole check
 * ---------------------------------------------------------------------------------
 */

/* Reads every byte once, for hashes and numbers. */
static d9d_status read_files(struct verify *v)
{
    d9di_chunks c = {.dir = v->dir, .files = v->files, .n = v->n, .visit = visit_bytes, .arg = v};
    d9d_status st;

    c.n_hashed = v->manifest != NULL ? d9d_manifest_count(v->manifest) : 0;
    D9D_TRY_OR(st, d9di_chunks_read(&c, "verify", v->opt->jobs, v->opt->log), out);
    v->report.files = v->n;
    v->report.bytes = c.bytes;
    for (size_t i = 0; i < v->n; i++)
        report_nonfinite(v, &v->heads[i]);
    if (v->manifest != NULL) {
        D9D_TRY_OR(st, report_unlisted(v), out);
        (void)d9di_manifest_report(v->manifest, &c, report_finding, v);
    }
    for (size_t i = c.n_hashed; i < v->n; i++)
        if (c.messages[i] != NULL && v->heads[i].st != NULL)
            report_finding(v, c.messages[i]);
out:
    d9di_chunks_release(&c);
    return st;
}

d9d_status d9d_checkpoint_verify(const char *dir, const d9d_checkpoint_verify_opts *opt,
                                 d9d_checkpoint_verify_report *report)
{
    struct verify v = {.dir = dir, .opt = opt, .lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_status st;

    D9D_TRY_OR(st, d9di_list_recursive(dir, &v.arena, &v.names), out);
    D9D_TRY_OR(st, read_manifest(&v), out);
    D9D_TRY_OR(st, list_files(&v), out);
    D9D_TRY_OR(st, open_headers(&v), out);
    D9D_TRY_OR(st, check_index(&v), out);
    D9D_TRY_OR(st, read_files(&v), out);
    if (v.report.findings > 0)
        st = D9D_FAIL(D9D_EVERIFY, "%s: %" PRIu64 " findings", dir, v.report.findings);
    if (report != NULL)
        *report = v.report;
out:
    for (size_t i = 0; i < v.n; i++)
        d9d_safetensors_close(v.heads[i].st);
    d9d_manifest_close(v.manifest);
    d9d_arena_release(&v.arena);
    return st;
}
