/* shard_sink.c - writes a plan's outputs as a model folder, chunk by chunk, resumable.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/dir/chunk_journal.h"
#include "ckpt/dir/direct_file.h"
#include "ckpt/dir/shard_layout.h"
#include "d9d/ckpt/dir/checkpoint.h"

struct chunk {
    d9d_hash hash;
    bool claimed; /* a journal lists it: its hash must still be checked */
    bool done;
};

struct sink_output { /* state of one output file */
    d9di_direct_file file;
    bool open;
    size_t left; /* chunks */
};

struct d9d_shard_sink {
    char *dir;
    uint64_t shard_bytes;
    d9d_arena arena;
    d9di_shard_layout layout;
    struct chunk *chunks;
    struct sink_output *outputs; /* [files] */
    pthread_mutex_t lock;        /* guards opening and closing of outputs */
    bool resume;
    d9d_hash key;
    const d9d_log *log;
    d9d_file journal;         /* not open without resume */
    d9d_bootstrap *bootstrap; /* NULL: a single process */
    int rank, size;
    size_t first, n_assigned; /* chunks of this rank */
};

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "shards: out of memory");
}

d9d_status d9d_shard_sink_create(const char *dir, uint64_t shard_bytes, d9d_shard_sink **out)
{
    d9d_shard_sink *s = calloc(1, sizeof(*s));

    if (s == NULL)
        return no_memory();
    *s = (d9d_shard_sink){.shard_bytes = shard_bytes,
                          .lock = PTHREAD_MUTEX_INITIALIZER,
                          .journal = {.fd = -1},
                          .size = 1};
    s->dir = d9d_arena_strdup(&s->arena, dir);
    if (s->dir == NULL) {
        d9d_shard_sink_free(s);
        return no_memory();
    }
    *out = s;
    return D9D_OK;
}

void d9d_shard_sink_free(d9d_shard_sink *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; s->outputs != NULL && i < s->layout.files.len; i++)
        if (s->outputs[i].open)
            d9di_direct_file_release(&s->outputs[i].file);
    d9d_file_release(&s->journal);
    d9di_shard_layout_release(&s->layout);
    d9d_arena_release(&s->arena);
    free(s);
}

d9d_status d9d_shard_sink_text(d9d_shard_sink *s, const char *name, const char *text, size_t n)
{
    return d9di_shard_layout_add_text(&s->layout, name, text, n);
}

d9d_status d9d_shard_sink_copy(d9d_shard_sink *s, const char *name, const char *path)
{
    return d9di_shard_layout_add_copy(&s->layout, name, path);
}

void d9d_shard_sink_resume(d9d_shard_sink *s, d9d_hash key, const d9d_log *log)
{
    s->resume = true;
    s->key = key;
    s->log = log;
}

void d9d_shard_sink_ranks(d9d_shard_sink *s, d9d_bootstrap *bootstrap)
{
    s->bootstrap = bootstrap;
    s->rank = d9d_bootstrap_rank(bootstrap);
    s->size = d9d_bootstrap_size(bootstrap);
}

/* --- resuming an earlier run ------------------------------------------------------------- */

/* Completes the caller's key with the sink's own parameters. */
static d9d_status add_layout_key(d9d_shard_sink *s)
{
    d9d_hasher *h;
    d9d_status st;

    D9D_TRY(d9d_hasher_create(&h));
    d9d_hasher_add(h, &s->key, sizeof(s->key));
    st = d9di_shard_layout_hash(&s->layout, h);
    s->key = d9d_hasher_digest(h);
    d9d_hasher_free(h);
    return st;
}

static void claim_chunk(void *arg, size_t chunk, d9d_hash hash)
{
    d9d_shard_sink *s = arg;

    if (!s->chunks[chunk].done)
        s->chunks[chunk] = (struct chunk){.hash = hash, .claimed = true};
}

/* Reads the journals of all ranks in `dir`.  *other: one has a different key. */
static d9d_status read_journals(d9d_shard_sink *s, d9d_fs_names *names, bool *other)
{
    *other = false;
    D9D_TRY(d9d_fs_list(s->dir, &s->arena, names));
    for (size_t i = 0; i < names->n; i++) {
        const char *path = d9d_fs_join(&s->arena, s->dir, names->name[i]);
        bool key_matches;

        if (path == NULL)
            return no_memory();
        if (!d9di_chunk_journal_is(names->name[i]))
            continue;
        D9D_TRY(d9di_chunk_journal_read(path, s->key, s->layout.n_chunks, &key_matches, claim_chunk,
                                        s));
        *other = *other || !key_matches;
    }
    return D9D_OK;
}

/* Removes the files of `names` that are not outputs; all files if nothing is kept. */
static d9d_status remove_foreign_files(d9d_shard_sink *s, const d9d_fs_names *names, bool all)
{
    d9d_map ours = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < s->layout.files.len; i++) {
        const char *name = s->layout.files.data[i].name;

        /* "a/b" implies the directory "a". */
        D9D_TRY_OR(st, d9d_map_put(&ours, name, strcspn(name, "/"), NULL), out);
    }
    for (size_t i = 0; i < names->n; i++) {
        const char *name = names->name[i], *path = d9d_fs_join(&s->arena, s->dir, name);

        if (path == NULL) {
            st = no_memory();
            goto out;
        }
        if (all || !(d9d_map_has(&ours, name, strlen(name)) || d9di_chunk_journal_is(name)))
            D9D_TRY_OR(st, d9d_fs_remove_tree(path), out);
    }
out:
    d9d_map_release(&ours);
    return st;
}

static void log_resumed(const d9d_shard_sink *s)
{
    uint64_t bytes = 0, at, n;
    size_t claimed = 0;

    for (size_t c = 0; c < s->layout.n_chunks; c++)
        if (s->chunks[c].claimed) {
            (void)d9di_shard_layout_find_chunk(&s->layout, c, &at, &n);
            bytes += n;
            claimed++;
        }
    if (claimed > 0)
        d9d_log_info(s->log,
                     "%s: going on with %zu of %zu chunks, %" PRIu64 " of %" PRIu64
                     " bytes, that an earlier run wrote; their hashes are checked",
                     s->dir, claimed, s->layout.n_chunks, bytes, s->layout.bytes);
}

/* Rank 0 for all ranks: removes everything except what the run resumes from. */
static d9d_status prepare_resume(d9d_shard_sink *s)
{
    d9d_fs_names names = {0};
    bool other;

    D9D_TRY(read_journals(s, &names, &other));
    if (other) {
        d9d_log_info(s->log, "%s: an earlier run made something else there; starting afresh",
                     s->dir);
        memset(s->chunks, 0, s->layout.n_chunks * sizeof(*s->chunks));
    }
    D9D_TRY(remove_foreign_files(s, &names, other));
    log_resumed(s);
    return D9D_OK;
}

static d9d_status open_journal(d9d_shard_sink *s)
{
    const char *path = d9di_chunk_journal_path(&s->arena, s->dir, s->rank);
    d9d_fs_names names = {0};
    bool other;

    if (path == NULL)
        return no_memory();
    if (s->rank > 0)
        D9D_TRY(read_journals(s, &names, &other));
    return d9di_chunk_journal_open(path, s->key, &s->journal);
}

/* --- beginning ------------------------------------------------------------------------------ */

/* Creates every file with its final length. */
static d9d_status create_files(d9d_shard_sink *s)
{
    for (size_t i = 0; i < s->layout.files.len; i++) {
        const d9di_shard_layout_file *l = &s->layout.files.data[i];
        const char *path = d9d_fs_join(&s->arena, s->dir, l->name);
        d9d_file f;
        d9d_status st;

        if (path == NULL)
            return no_memory();
        D9D_TRY(d9d_fs_make_parents(path));
        D9D_TRY(d9d_file_open_rw(path, &f));
        st = d9d_file_resize(&f, l->bytes);
        d9d_file_release(&f);
        D9D_TRY(st);
    }
    return D9D_OK;
}

static d9d_status plan_layout(d9d_shard_sink *s, const d9d_safetensors_tensor *outputs, size_t n)
{
    D9D_TRY(d9di_shard_layout_add_shards(&s->layout, s->dir, s->shard_bytes, outputs, n));
    s->chunks = d9d_arena_alloc(&s->arena, (s->layout.n_chunks + 1) * sizeof(*s->chunks));
    s->outputs = d9d_arena_alloc(&s->arena, (s->layout.files.len + 1) * sizeof(*s->outputs));
    if (s->chunks == NULL || s->outputs == NULL)
        return no_memory();
    return s->resume ? add_layout_key(s) : D9D_OK;
}

/* Rank 0 for all ranks, before they begin. */
static d9d_status prepare_dir(d9d_shard_sink *s)
{
    if (s->resume)
        D9D_TRY(prepare_resume(s));
    return create_files(s);
}

/* Assigns contiguous ranges of chunks to ranks, with about equal bytes. */
static uint64_t assign_chunks(d9d_shard_sink *s)
{
    const uint64_t each = s->layout.bytes / (uint64_t)s->size + 1;
    uint64_t before = 0, assigned = 0;

    for (size_t c = 0; c < s->layout.n_chunks; c++) {
        uint64_t at, n;
        const size_t file = d9di_shard_layout_find_chunk(&s->layout, c, &at, &n);

        if (before / each == (uint64_t)s->rank) {
            s->first = s->n_assigned++ == 0 ? c : s->first;
            s->outputs[file].left++;
            assigned += n;
        }
        before += n;
    }
    return assigned;
}

static d9d_status sink_begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                             size_t *n_items, uint64_t *bytes)
{
    d9d_shard_sink *s = self;
    d9d_status st = plan_layout(s, outputs, n);

    if (st == D9D_OK && s->rank == 0)
        st = prepare_dir(s);
    D9D_TRY(s->bootstrap != NULL ? d9d_bootstrap_agree_status(s->bootstrap, st) : st);
    if (s->resume)
        D9D_TRY(open_journal(s));
    *bytes = assign_chunks(s);
    *n_items = s->n_assigned;
    return D9D_OK;
}

/* --- a chunk ------------------------------------------------------------------------------- */

/* Returns the output file; the first caller opens it. */
static d9d_status open_output(d9d_shard_sink *s, size_t file)
{
    struct sink_output *o = &s->outputs[file];
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    pthread_mutex_lock(&s->lock);
    if (!o->open) {
        const char *path = d9d_fs_join(&a, s->dir, s->layout.files.data[file].name);

        st = path == NULL ? no_memory() : d9di_direct_file_open(path, &o->file);
        o->open = st == D9D_OK;
    }
    pthread_mutex_unlock(&s->lock);
    d9d_arena_release(&a);
    return st;
}

/* Counts a finished chunk.  The last one syncs and closes the file; no one opens it afterwards.
 * Each rank must sync itself, because the committing rank cannot sync for another host. */
static d9d_status release_output(d9d_shard_sink *s, size_t file)
{
    struct sink_output *o = &s->outputs[file];
    bool last;

    pthread_mutex_lock(&s->lock);
    last = --o->left == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last)
        return D9D_OK;
    D9D_TRY(d9d_file_sync(&o->file.file));
    o->open = false;
    return d9di_direct_file_close(&o->file);
}

static d9d_status copy_extent(const d9di_shard_layout_extent *p, uint64_t at, void *dst, uint64_t n)
{
    d9d_file f;
    d9d_status st;

    D9D_TRY(d9d_file_open(p->path, &f));
    st = d9d_file_read_at(&f, dst, n, at);
    d9d_file_release(&f);
    return st;
}

/* Assembles n bytes at offset `at` of a file into `dst`; with dst NULL only prefetches them. */
static d9d_status assemble_bytes(const d9di_shard_layout_file *f, uint64_t at, uint64_t n,
                                 unsigned char *dst, d9d_map_reader *reader)
{
    const uint64_t end = at + n;

    for (size_t i = d9di_shard_layout_find_extent(f, at);
         i < f->n_extents && f->extents[i].offset < end; i++) {
        const d9di_shard_layout_extent *p = &f->extents[i];
        const uint64_t from = (p->offset > at ? p->offset : at) - p->offset;
        const uint64_t to = (p->offset + p->bytes < end ? p->offset + p->bytes : end) - p->offset;
        unsigned char *here = dst != NULL ? dst + (p->offset + from - at) : NULL;

        if (here == NULL && p->text == NULL && p->path == NULL)
            d9d_map_prefetch(reader, p->output, from, to - from);
        else if (here != NULL && p->text != NULL)
            memcpy(here, p->text + from, to - from);
        else if (here != NULL && p->path != NULL)
            D9D_TRY(copy_extent(p, from, here, to - from));
        else if (here != NULL)
            D9D_TRY(d9d_map_read(reader, p->output, from, here, to - from));
    }
    return D9D_OK;
}

/* Prefetches the chunk that a thread will reach next. */
static void prefetch_chunk(const d9d_shard_sink *s, size_t chunk, d9d_map_reader *reader)
{
    const size_t ahead = chunk + (size_t)d9d_map_reader_jobs(reader);
    uint64_t at, n;
    size_t file;

    if (ahead >= s->first + s->n_assigned || s->chunks[ahead].claimed)
        return;
    file = d9di_shard_layout_find_chunk(&s->layout, ahead, &at, &n);
    (void)assemble_bytes(&s->layout.files.data[file], at, n, NULL, reader);
}

static d9d_status write_chunk(d9d_shard_sink *s, size_t chunk, size_t file, uint64_t at, uint64_t n,
                              void *buf, d9d_map_reader *reader)
{
    const d9di_shard_layout_file *f = &s->layout.files.data[file];

    prefetch_chunk(s, chunk, reader);
    D9D_TRY(assemble_bytes(f, at, n, buf, reader));
    s->chunks[chunk].hash = d9d_hash_bytes(buf, n);
    D9D_TRY(d9di_direct_file_write(&s->outputs[file].file, buf, n, at));
    return s->journal.fd < 0 ? D9D_OK
                             : d9di_chunk_journal_put(&s->journal, chunk, s->chunks[chunk].hash);
}

/* Checks the hash of a chunk that a journal lists. */
static bool verify_chunk(d9d_shard_sink *s, size_t chunk, size_t file, uint64_t at, uint64_t n,
                         void *buf)
{
    return s->chunks[chunk].claimed &&
           d9di_direct_file_read(&s->outputs[file].file, buf, n, at) == D9D_OK &&
           d9d_hash_equal(d9d_hash_bytes(buf, n), s->chunks[chunk].hash);
}

static d9d_status sink_fill(void *self, size_t item, d9d_map_reader *reader)
{
    d9d_shard_sink *s = self;
    const size_t chunk = s->first + item;
    uint64_t at, n;
    const size_t file = d9di_shard_layout_find_chunk(&s->layout, chunk, &at, &n);
    void *buf;

    D9D_TRY(d9d_map_reader_scratch(reader, n, &buf));
    D9D_TRY(open_output(s, file));
    if (!verify_chunk(s, chunk, file, at, n, buf))
        D9D_TRY(write_chunk(s, chunk, file, at, n, buf, reader));
    s->chunks[chunk].done = true;
    d9d_map_reader_add_progress(reader, n);
    return release_output(s, file);
}

d9d_tensor_sink d9d_shard_sink_tensor_sink(d9d_shard_sink *s)
{
    return (d9d_tensor_sink){s, sink_begin, sink_fill};
}

/* --- the end ---------------------------------------------------------------------------------- */

d9d_status d9d_shard_sink_end(d9d_shard_sink *s)
{
    for (size_t c = s->first; c < s->first + s->n_assigned; c++)
        if (!s->chunks[c].done)
            return D9D_FAIL(D9D_EINVAL, "%s: chunk %zu of %zu was not written", s->dir, c,
                            s->layout.n_chunks);
    return s->journal.fd < 0 ? D9D_OK : d9d_file_close(&s->journal);
}

/* Reads the journals of the other ranks. */
static d9d_status merge_journals(d9d_shard_sink *s)
{
    d9d_fs_names names = {0};
    bool other;

    D9D_TRY(read_journals(s, &names, &other));
    for (size_t c = 0; c < s->layout.n_chunks; c++)
        if (!s->chunks[c].done && !s->chunks[c].claimed)
            return D9D_FAIL(D9D_EIO, "%s: chunk %zu of %zu is in no rank's journal", s->dir, c,
                            s->layout.n_chunks);
    return D9D_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const d9d_manifest_file *)a)->name, ((const d9d_manifest_file *)b)->name);
}

static d9d_status remove_journals(d9d_shard_sink *s, const d9d_fs_names *names)
{
    for (size_t i = 0; i < names->n; i++) {
        const char *path = d9d_fs_join(&s->arena, s->dir, names->name[i]);

        if (path == NULL)
            return no_memory();
        if (d9di_chunk_journal_is(names->name[i]))
            D9D_TRY(d9d_fs_remove_tree(path));
    }
    return D9D_OK;
}

static d9d_status list_manifest_files(d9d_shard_sink *s, d9d_manifest_file **out)
{
    d9d_hash *hashes = d9d_arena_alloc(&s->arena, (s->layout.n_chunks + 1) * sizeof(*hashes));
    d9d_manifest_file *files =
        d9d_arena_alloc(&s->arena, (s->layout.files.len + 1) * sizeof(*files));

    if (files == NULL || hashes == NULL)
        return no_memory();
    for (size_t c = 0; c < s->layout.n_chunks; c++)
        hashes[c] = s->chunks[c].hash;
    for (size_t i = 0; i < s->layout.files.len; i++) {
        const d9di_shard_layout_file *f = &s->layout.files.data[i];

        files[i] = (d9d_manifest_file){f->name, f->bytes, f->n_chunks, hashes + f->first_chunk};
    }
    qsort(files, s->layout.files.len, sizeof(*files), compare_names);
    *out = files;
    return D9D_OK;
}

d9d_status d9d_shard_sink_manifest(d9d_shard_sink *s, const json_t *extra)
{
    d9d_manifest_file *files = NULL;
    d9d_fs_names names = {0};

    if (s->size > 1)
        D9D_TRY(merge_journals(s));
    D9D_TRY(list_manifest_files(s, &files));
    D9D_TRY(d9d_manifest_write_hashed(s->dir, extra, files, s->layout.files.len));
    D9D_TRY(d9d_fs_list(s->dir, &s->arena, &names));
    return remove_journals(s, &names);
}
