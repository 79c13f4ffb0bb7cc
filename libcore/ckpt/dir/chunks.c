/* chunks.c - see chunks.h. */
#include "ckpt/dir/chunks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "d9d/base/thread.h"

enum { PIECE = 1 << 19 };

struct worker {
    unsigned char *buf;
    d9d_hasher *hasher;
};

struct reading {
    d9di_chunks *c;
    struct worker *workers;
    bool *skip;           /* of every file: it is known what is wrong */
    size_t *said_at;      /* of every file: the chunk that `said` is about, or SIZE_MAX */
    pthread_mutex_t lock; /* of what is said, and of the progress */
    d9d_progress progress;
};

static d9d_status no_memory(const d9di_chunks *c)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", c->dir);
}

/* --- before reading ----------------------------------------------------------------- */

static d9d_status check_file(d9di_chunks *c, size_t f)
{
    const d9d_manifest_file *file = &c->files[f];
    char *path = d9d_fs_join(&c->arena, c->dir, file->name);
    uint64_t bytes = 0;
    d9d_status st;

    if (path == NULL)
        return no_memory(c);
    st = d9d_fs_check_regular(path);
    if (st == D9D_OK)
        st = d9d_fs_size(path, &bytes);
    if (st == D9D_OK && bytes == file->bytes)
        return D9D_OK;
    if (st == D9D_OK)
        c->said[f] = d9d_arena_printf(&c->arena, "%s has %" PRIu64 " bytes, %s says %" PRIu64, path,
                                      bytes, D9D_MANIFEST_NAME, file->bytes);
    else if (st == D9D_ENOTFOUND)
        c->said[f] = d9d_arena_printf(&c->arena, "%s is missing", path);
    else
        c->said[f] = d9d_arena_strdup(&c->arena, d9d_err_message());
    return c->said[f] == NULL ? no_memory(c) : D9D_OK;
}

d9d_status d9di_chunks_check(d9di_chunks *c)
{
    size_t total = 0;

    c->said = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*c->said));
    c->first = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*c->first));
    c->before = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*c->before));
    if (c->said == NULL || c->first == NULL || c->before == NULL)
        return no_memory(c);
    for (size_t f = 0; f < c->n; f++) {
        c->first[f] = total;
        c->before[f] = c->bytes;
        D9D_TRY(check_file(c, f));
        total += d9di_chunk_count(c->files[f].bytes);
        c->bytes += c->files[f].bytes;
    }
    c->first[c->n] = total;
    c->before[c->n] = c->bytes;
    return D9D_OK;
}

static uint64_t count_here(const d9di_chunks *c)
{
    uint64_t n = 0;

    for (size_t f = 0; f < c->n; f++)
        for (size_t i = 0; i < c->first[f + 1] - c->first[f]; i++)
            if (d9di_chunk_is_here(c, f, i))
                n += d9di_chunk_end(c->files[f].bytes, i) - i * D9D_MANIFEST_CHUNK;
    return n;
}

/* --- reading -------------------------------------------------------------------------- */

/* Chunk `i` belongs to the last file that begins at or before it. */
static size_t file_of(const d9di_chunks *c, size_t i)
{
    size_t lo = 0, hi = c->n;

    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;

        if (c->first[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static d9d_status read_piece(struct reading *r, struct worker *w, const d9d_file *file, size_t f,
                             uint64_t at, size_t own)
{
    const d9di_chunks *c = r->c;
    uint64_t left = c->files[f].bytes - at;
    size_t ahead = left - own < D9DI_AHEAD ? (size_t)(left - own) : D9DI_AHEAD;

    D9D_TRY(d9d_file_read_at(file, w->buf, own + ahead, at));
    if (f < c->n_hashed)
        d9d_hasher_add(w->hasher, w->buf, own);
    if (c->see != NULL)
        c->see(c->arg, f, at, w->buf, own);
    (void)pthread_mutex_lock(&r->lock);
    d9d_progress_add(&r->progress, own);
    (void)pthread_mutex_unlock(&r->lock);
    return D9D_OK;
}

static d9d_status read_pieces(struct reading *r, struct worker *w, size_t f, size_t i)
{
    d9di_chunks *c = r->c;
    uint64_t chunk = i - c->first[f], end = d9di_chunk_end(c->files[f].bytes, chunk);
    d9d_arena a = {0};
    d9d_file file = {.fd = -1};
    char *path = d9d_fs_join(&a, c->dir, c->files[f].name);
    d9d_status st;

    if (path == NULL) {
        st = no_memory(c);
        goto out;
    }
    D9D_TRY_OR(st, d9d_file_open(path, &file), out);
    d9d_hasher_reset(w->hasher);
    for (uint64_t at = chunk * D9D_MANIFEST_CHUNK; at < end; at += PIECE)
        D9D_TRY_OR(
            st, read_piece(r, w, &file, f, at, end - at < PIECE ? (size_t)(end - at) : PIECE), out);
    if (f < c->n_hashed)
        c->got[i] = d9d_hasher_digest(w->hasher);
out:
    d9d_file_release(&file);
    d9d_arena_release(&a);
    return st;
}

/* Keep the sentence about the first chunk of a file that could not be read. */
static d9d_status keep_failure(struct reading *r, size_t f, size_t i)
{
    d9di_chunks *c = r->c;
    d9d_status st = D9D_OK;

    (void)pthread_mutex_lock(&r->lock);
    if (i < r->said_at[f]) {
        c->said[f] = d9d_arena_strdup(&c->arena, d9d_err_message());
        r->said_at[f] = i;
        if (c->said[f] == NULL)
            st = no_memory(c);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return st;
}

static d9d_status read_chunk(void *arg, int worker, size_t i)
{
    struct reading *r = arg;
    struct worker *w = &r->workers[worker];
    size_t f = file_of(r->c, i);
    d9d_status st;

    if (r->skip[f] || !d9di_chunk_is_here(r->c, f, i - r->c->first[f]))
        return D9D_OK;
    if (w->buf == NULL && (w->buf = malloc(PIECE + D9DI_AHEAD)) == NULL)
        return no_memory(r->c);
    if (w->hasher == NULL)
        D9D_TRY(d9d_hasher_create(&w->hasher));
    st = read_pieces(r, w, f, i);
    return st == D9D_OK || st == D9D_ENOMEM ? st : keep_failure(r, f, i);
}

static d9d_status prepare(struct reading *r, int jobs)
{
    d9di_chunks *c = r->c;

    r->workers = d9d_arena_alloc(&c->arena, (size_t)jobs * sizeof(*r->workers));
    r->skip = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*r->skip));
    r->said_at = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*r->said_at));
    c->got = d9d_arena_alloc(&c->arena, (c->first[c->n_hashed] + 1) * sizeof(*c->got));
    if (r->workers == NULL || r->skip == NULL || r->said_at == NULL || c->got == NULL)
        return no_memory(c);
    for (size_t f = 0; f < c->n; f++) {
        r->skip[f] = c->said[f] != NULL;
        r->said_at[f] = SIZE_MAX;
    }
    return D9D_OK;
}

d9d_status d9di_chunks_read(d9di_chunks *c, const char *what, int jobs, const d9d_log *log)
{
    struct reading r = {.c = c, .lock = PTHREAD_MUTEX_INITIALIZER};
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    d9d_status st;

    D9D_TRY(d9di_chunks_check(c));
    D9D_TRY(prepare(&r, n));
    c->read = count_here(c);
    d9d_progress_start(&r.progress, log, what, "B", c->read);
    st = d9d_thread_run(n, c->first[c->n], read_chunk, &r);
    if (st == D9D_OK)
        d9d_progress_end(&r.progress);
    for (int i = 0; i < n; i++) {
        free(r.workers[i].buf);
        d9d_hasher_free(r.workers[i].hasher);
    }
    return st;
}

void d9di_chunks_release(d9di_chunks *c)
{
    d9d_arena_release(&c->arena);
}
