/* chunks.c - see chunks.h. */
#include "ckpt/dir/chunks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "d9d/base/thread.h"

enum { READ_BLOCK = 1 << 19 };

struct read_worker {
    unsigned char *buf;
    d9d_hasher *hasher;
};

struct chunk_reading {
    d9di_chunks *c;
    struct read_worker *workers;
    bool *skip;           /* [n] a problem with the file is already known */
    size_t *said_at;      /* [n] the chunk that messages[f] is about, or SIZE_MAX */
    pthread_mutex_t lock; /* guards the messages and the progress */
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
        c->messages[f] = d9d_arena_printf(&c->arena, "%s has %" PRIu64 " bytes, %s says %" PRIu64,
                                          path, bytes, D9D_MANIFEST_NAME, file->bytes);
    else if (st == D9D_ENOTFOUND)
        c->messages[f] = d9d_arena_printf(&c->arena, "%s is missing", path);
    else
        c->messages[f] = d9d_arena_strdup(&c->arena, d9d_err_message());
    return c->messages[f] == NULL ? no_memory(c) : D9D_OK;
}

d9d_status d9di_chunks_check(d9di_chunks *c)
{
    size_t total = 0;

    c->messages = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*c->messages));
    c->first_chunk = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*c->first_chunk));
    c->bytes_before = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*c->bytes_before));
    if (c->messages == NULL || c->first_chunk == NULL || c->bytes_before == NULL)
        return no_memory(c);
    for (size_t f = 0; f < c->n; f++) {
        c->first_chunk[f] = total;
        c->bytes_before[f] = c->bytes;
        D9D_TRY(check_file(c, f));
        total += d9di_chunks_per_file(c->files[f].bytes);
        c->bytes += c->files[f].bytes;
    }
    c->first_chunk[c->n] = total;
    c->bytes_before[c->n] = c->bytes;
    return D9D_OK;
}

static uint64_t count_share_chunks(const d9di_chunks *c)
{
    uint64_t n = 0;

    for (size_t f = 0; f < c->n; f++)
        for (size_t i = 0; i < c->first_chunk[f + 1] - c->first_chunk[f]; i++)
            if (d9di_chunks_in_share(c, f, i))
                n += d9di_chunks_end_offset(c->files[f].bytes, i) - i * D9D_MANIFEST_CHUNK;
    return n;
}

/* --- reading -------------------------------------------------------------------------- */

/* The file of chunk i: the last file that begins at or before it. */
static size_t file_of_chunk(const d9di_chunks *c, size_t i)
{
    size_t lo = 0, hi = c->n;

    while (hi - lo > 1) {
        size_t mid = lo + (hi - lo) / 2;

        if (c->first_chunk[mid] <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static d9d_status read_block(struct chunk_reading *r, struct read_worker *w, const d9d_file *file,
                             size_t f, uint64_t at, size_t own)
{
    const d9di_chunks *c = r->c;
    uint64_t left = c->files[f].bytes - at;
    size_t ahead =
        left - own < D9DI_CHUNKS_LOOKAHEAD ? (size_t)(left - own) : D9DI_CHUNKS_LOOKAHEAD;

    D9D_TRY(d9d_file_read_at(file, w->buf, own + ahead, at));
    if (f < c->n_hashed)
        d9d_hasher_add(w->hasher, w->buf, own);
    if (c->visit != NULL)
        c->visit(c->arg, f, at, w->buf, own);
    (void)pthread_mutex_lock(&r->lock);
    d9d_progress_add(&r->progress, own);
    (void)pthread_mutex_unlock(&r->lock);
    return D9D_OK;
}

static d9d_status read_blocks(struct chunk_reading *r, struct read_worker *w, size_t f, size_t i)
{
    d9di_chunks *c = r->c;
    uint64_t chunk = i - c->first_chunk[f], end = d9di_chunks_end_offset(c->files[f].bytes, chunk);
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
    for (uint64_t at = chunk * D9D_MANIFEST_CHUNK; at < end; at += READ_BLOCK)
        D9D_TRY_OR(
            st,
            read_block(r, w, &file, f, at, end - at < READ_BLOCK ? (size_t)(end - at) : READ_BLOCK),
            out);
    if (f < c->n_hashed)
        c->hashes[i] = d9d_hasher_digest(w->hasher);
out:
    d9d_file_release(&file);
    d9d_arena_release(&a);
    return st;
}

/* Records the message about the first chunk of a file that could not be read. */
static d9d_status record_failure(struct chunk_reading *r, size_t f, size_t i)
{
    d9di_chunks *c = r->c;
    d9d_status st = D9D_OK;

    (void)pthread_mutex_lock(&r->lock);
    if (i < r->said_at[f]) {
        c->messages[f] = d9d_arena_strdup(&c->arena, d9d_err_message());
        r->said_at[f] = i;
        if (c->messages[f] == NULL)
            st = no_memory(c);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return st;
}

static d9d_status read_chunk(void *arg, int read_worker, size_t i)
{
    struct chunk_reading *r = arg;
    struct read_worker *w = &r->workers[read_worker];
    size_t f = file_of_chunk(r->c, i);
    d9d_status st;

    if (r->skip[f] || !d9di_chunks_in_share(r->c, f, i - r->c->first_chunk[f]))
        return D9D_OK;
    if (w->buf == NULL && (w->buf = malloc(READ_BLOCK + D9DI_CHUNKS_LOOKAHEAD)) == NULL)
        return no_memory(r->c);
    if (w->hasher == NULL)
        D9D_TRY(d9d_hasher_create(&w->hasher));
    st = read_blocks(r, w, f, i);
    return st == D9D_OK || st == D9D_ENOMEM ? st : record_failure(r, f, i);
}

static d9d_status init_reading(struct chunk_reading *r, int jobs)
{
    d9di_chunks *c = r->c;

    r->workers = d9d_arena_alloc(&c->arena, (size_t)jobs * sizeof(*r->workers));
    r->skip = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*r->skip));
    r->said_at = d9d_arena_alloc(&c->arena, (c->n + 1) * sizeof(*r->said_at));
    c->hashes = d9d_arena_alloc(&c->arena, (c->first_chunk[c->n_hashed] + 1) * sizeof(*c->hashes));
    if (r->workers == NULL || r->skip == NULL || r->said_at == NULL || c->hashes == NULL)
        return no_memory(c);
    for (size_t f = 0; f < c->n; f++) {
        r->skip[f] = c->messages[f] != NULL;
        r->said_at[f] = SIZE_MAX;
    }
    return D9D_OK;
}

d9d_status d9di_chunks_read(d9di_chunks *c, const char *what, int jobs, const d9d_log *log)
{
    struct chunk_reading r = {.c = c, .lock = PTHREAD_MUTEX_INITIALIZER};
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    d9d_status st;

    D9D_TRY(d9di_chunks_check(c));
    D9D_TRY(init_reading(&r, n));
    c->read = count_share_chunks(c);
    d9d_progress_start(&r.progress, log, what, "B", c->read);
    st = d9d_thread_run(n, c->first_chunk[c->n], read_chunk, &r);
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
