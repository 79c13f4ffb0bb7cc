/* manifest.c - see d9d/ckpt/manifest.h. */
#include "d9d/ckpt/manifest.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"

struct d9d_manifest {
    d9d_arena arena;
    const char *dir, *path;
    json_t *root;
    d9d_manifest_file *files;
    size_t n;
};

static d9d_status no_memory(const char *dir)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
}

static uint64_t chunk_count(uint64_t bytes)
{
    return bytes / D9D_MANIFEST_CHUNK + (bytes % D9D_MANIFEST_CHUNK != 0);
}

static uint64_t chunk_bytes(uint64_t bytes, uint64_t chunk)
{
    uint64_t left = bytes - chunk * D9D_MANIFEST_CHUNK;

    return left < D9D_MANIFEST_CHUNK ? left : D9D_MANIFEST_CHUNK;
}

/* --- hashing on threads ------------------------------------------------------------ */

/* One chunk of one file. */
struct item {
    size_t file;
    uint64_t chunk;
};

struct hashing {
    const char *dir;
    d9d_manifest_file *files;
    size_t n;
    D9D_VEC(struct item) items;
    uint64_t total;
    d9d_hash *got;        /* of every item */
    char **said;          /* what is wrong with every file, or NULL */
    d9d_file *open;       /* of every file */
    unsigned char **buf;  /* of every worker */
    pthread_mutex_t lock; /* of the progress */
    d9d_progress progress;
    d9d_arena arena;
};

static d9d_status hash_item(void *arg, int worker, size_t i)
{
    struct hashing *h = arg;
    const struct item *it = &h->items.data[i];
    uint64_t n = chunk_bytes(h->files[it->file].bytes, it->chunk);

    if (h->open[it->file].fd < 0)
        return D9D_OK; /* said to be missing */
    if (h->buf[worker] == NULL && (h->buf[worker] = malloc(D9D_MANIFEST_CHUNK)) == NULL)
        return no_memory(h->dir);
    D9D_TRY(
        d9d_file_read_at(&h->open[it->file], h->buf[worker], n, it->chunk * D9D_MANIFEST_CHUNK));
    h->got[i] = d9d_hash_bytes(h->buf[worker], n);
    pthread_mutex_lock(&h->lock);
    d9d_progress_add(&h->progress, n);
    pthread_mutex_unlock(&h->lock);
    return D9D_OK;
}

static d9d_status list_items(struct hashing *h)
{
    for (size_t f = 0; f < h->n; f++) {
        h->total += h->files[f].bytes;
        for (uint64_t c = 0; c < chunk_count(h->files[f].bytes); c++)
            D9D_TRY(D9D_VEC_PUSH(&h->items, (struct item){f, c}));
    }
    h->got = d9d_arena_alloc(&h->arena, (h->items.len + 1) * sizeof(*h->got));
    h->said = d9d_arena_alloc(&h->arena, (h->n + 1) * sizeof(*h->said));
    h->open = d9d_arena_alloc(&h->arena, (h->n + 1) * sizeof(*h->open));
    if (h->got == NULL || h->said == NULL || h->open == NULL)
        return no_memory(h->dir);
    for (size_t f = 0; f < h->n; f++)
        h->open[f].fd = -1;
    return D9D_OK;
}

/* Open file f when it is there and has its size; else say what is wrong. */
static d9d_status open_file(struct hashing *h, size_t f)
{
    const d9d_manifest_file *file = &h->files[f];
    char *path = d9d_fs_join(&h->arena, h->dir, file->name);
    uint64_t bytes;

    if (path == NULL)
        return no_memory(h->dir);
    if (!d9d_fs_exists(path)) {
        h->said[f] = d9d_arena_printf(&h->arena, "%s is missing", path);
        return h->said[f] == NULL ? no_memory(h->dir) : D9D_OK;
    }
    D9D_TRY(d9d_fs_size(path, &bytes));
    if (bytes != file->bytes) {
        h->said[f] = d9d_arena_printf(&h->arena, "%s has %" PRIu64 " bytes, %s says %" PRIu64, path,
                                      bytes, D9D_MANIFEST_NAME, file->bytes);
        return h->said[f] == NULL ? no_memory(h->dir) : D9D_OK;
    }
    return d9d_file_open(path, &h->open[f]);
}

static d9d_status hash_files(struct hashing *h, int jobs, const d9d_log *log)
{
    int n = jobs > 0 ? jobs : d9d_thread_cpus();
    d9d_status st;

    D9D_TRY(list_items(h));
    for (size_t f = 0; f < h->n; f++)
        D9D_TRY(open_file(h, f));
    h->buf = d9d_arena_alloc(&h->arena, (size_t)n * sizeof(*h->buf));
    if (h->buf == NULL)
        return no_memory(h->dir);
    d9d_progress_start(&h->progress, log, "hash", "B", h->total);
    st = d9d_thread_run(n, h->items.len, hash_item, h);
    if (st == D9D_OK)
        d9d_progress_end(&h->progress);
    for (int i = 0; i < n; i++)
        free(h->buf[i]);
    return st;
}

static void hashing_release(struct hashing *h)
{
    for (size_t f = 0; h->open != NULL && f < h->n; f++)
        d9d_file_release(&h->open[f]);
    D9D_VEC_RELEASE(&h->items);
    d9d_arena_release(&h->arena);
}

/* --- writing -------------------------------------------------------------------------- */

static const char *const own_members[] = {"schema", "chunk_bytes", "files", "xxh3"};

static d9d_status put_extra(d9d_buf *b, const json_t *extra)
{
    const char *key;
    json_t *value;

    if (extra == NULL)
        return D9D_OK;
    /* Jansson's iteration takes a mutable object and changes nothing. */
    json_object_foreach((json_t *)(uintptr_t)extra, key, value)
    {
        for (size_t i = 0; i < sizeof(own_members) / sizeof(own_members[0]); i++)
            if (strcmp(key, own_members[i]) == 0)
                return D9D_FAIL(D9D_EINVAL, "manifest: member \"%s\" is its own", key);
        D9D_TRY(d9d_buf_printf(b, "  "));
        D9D_TRY(d9d_json_put_str(b, key, strlen(key)));
        D9D_TRY(d9d_buf_printf(b, ": "));
        D9D_TRY(d9d_json_put(b, value, -1));
        D9D_TRY(d9d_buf_printf(b, ",\n"));
    }
    return D9D_OK;
}

static d9d_status put_files(d9d_buf *b, const d9d_manifest_file *files, size_t n)
{
    char hex[D9D_HASH_HEX];

    D9D_TRY(d9d_buf_printf(b, "  \"files\": ["));
    for (size_t f = 0; f < n; f++) {
        D9D_TRY(d9d_buf_printf(b, "%s\n    {\"name\": ", f > 0 ? "," : ""));
        D9D_TRY(d9d_json_put_str(b, files[f].name, strlen(files[f].name)));
        D9D_TRY(d9d_buf_printf(b, ", \"bytes\": %" PRIu64 ", \"chunks\": [", files[f].bytes));
        for (size_t c = 0; c < files[f].n_chunks; c++) {
            d9d_hash_hex(files[f].chunks[c], hex);
            D9D_TRY(d9d_buf_printf(b, "%s\"%s\"", c > 0 ? ", " : "", hex));
        }
        D9D_TRY(d9d_buf_printf(b, "]}"));
    }
    return d9d_buf_printf(b, "\n  ]\n}\n");
}

static d9d_status put_manifest(d9d_buf *b, const d9d_manifest_file *files, size_t n,
                               const json_t *extra)
{
    D9D_TRY(d9d_buf_printf(b, "{\n  \"schema\": \"d9d.checkpoint.v1\",\n"));
    D9D_TRY(put_extra(b, extra));
    D9D_TRY(d9d_buf_printf(b, "  \"chunk_bytes\": %llu,\n", D9D_MANIFEST_CHUNK));
    D9D_TRY(put_files(b, files, n));
    return d9d_json_seal(b);
}

d9d_status d9d_manifest_put(const char *dir, const json_t *extra, const d9d_manifest_file *files,
                            size_t n)
{
    d9d_arena a = {0};
    d9d_buf text = {0};
    char *path = d9d_fs_join(&a, dir, D9D_MANIFEST_NAME);
    d9d_status st;

    if (path == NULL) {
        st = no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, put_manifest(&text, files, n, extra), out);
    if (text.len > D9D_MANIFEST_MAX) {
        st = D9D_FAIL(D9D_EINVAL, "%s: would have %zu bytes, at most %llu are read", path, text.len,
                      D9D_MANIFEST_MAX);
        goto out;
    }
    st = d9d_fs_write_atomic(path, text.data, text.len);
out:
    d9d_arena_release(&a);
    d9d_buf_release(&text);
    return st;
}

/* Every regular file of the directory but the manifest. */
static d9d_status list_files(struct hashing *h)
{
    d9d_fs_names names = {0};

    D9D_TRY(d9d_fs_list(h->dir, &h->arena, &names));
    h->files = d9d_arena_alloc(&h->arena, (names.n + 1) * sizeof(*h->files));
    if (h->files == NULL)
        return no_memory(h->dir);
    for (size_t i = 0; i < names.n; i++) {
        char *path = d9d_fs_join(&h->arena, h->dir, names.name[i]);
        d9d_manifest_file *f = &h->files[h->n];

        if (path == NULL)
            return no_memory(h->dir);
        if (d9d_fs_is_dir(path) || strcmp(names.name[i], D9D_MANIFEST_NAME) == 0)
            continue;
        f->name = names.name[i];
        D9D_TRY(d9d_fs_size(path, &f->bytes));
        h->n++;
    }
    return D9D_OK;
}

d9d_status d9d_manifest_write(const char *dir, const json_t *extra, int jobs, const d9d_log *log)
{
    struct hashing h = {.dir = dir, .lock = PTHREAD_MUTEX_INITIALIZER};
    size_t i = 0;
    d9d_status st;

    D9D_TRY_OR(st, list_files(&h), out);
    D9D_TRY_OR(st, hash_files(&h, jobs, log), out);
    for (size_t f = 0; f < h.n; f++) {
        if (h.said[f] != NULL) { /* it changed under us */
            st = D9D_FAIL(D9D_EIO, "%s", h.said[f]);
            goto out;
        }
        h.files[f].chunks = &h.got[i];
        h.files[f].n_chunks = chunk_count(h.files[f].bytes);
        i += h.files[f].n_chunks;
    }
    st = d9d_manifest_put(dir, extra, h.files, h.n);
out:
    hashing_release(&h);
    return st;
}

/* --- reading ---------------------------------------------------------------------------- */

static d9d_status read_chunks(d9d_manifest *m, const json_t *list, const char *where,
                              d9d_manifest_file *f)
{
    if (json_array_size(list) != chunk_count(f->bytes))
        return D9D_FAIL(D9D_EFORMAT, "%s: %zu chunks for %" PRIu64 " bytes", where,
                        json_array_size(list), f->bytes);
    f->n_chunks = json_array_size(list);
    f->chunks = d9d_arena_alloc(&m->arena, (f->n_chunks + 1) * sizeof(*f->chunks));
    if (f->chunks == NULL)
        return no_memory(m->dir);
    for (size_t i = 0; i < f->n_chunks; i++) {
        const char *hex = json_string_value(json_array_get(list, i));

        if (hex == NULL)
            return D9D_FAIL(D9D_EFORMAT, "%s: chunks[%zu] must be a string", where, i);
        D9D_TRY(d9d_hash_parse(hex, &f->chunks[i]));
    }
    return D9D_OK;
}

static d9d_status read_file(d9d_manifest *m, const json_t *entry, size_t i, d9d_map *seen)
{
    d9d_manifest_file *f = &m->files[i];
    const char *where = d9d_arena_printf(&m->arena, "%s: files[%zu]", m->path, i), *name;
    json_t *chunks;
    int64_t bytes;

    if (where == NULL)
        return no_memory(m->dir);
    D9D_TRY(d9d_json_get_str(entry, where, "name", &name));
    D9D_TRY(d9d_fs_check_name(name, strlen(name), where));
    if (d9d_map_has(seen, name, strlen(name)) || strcmp(name, D9D_MANIFEST_NAME) == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s is listed twice or lists itself", where, name);
    D9D_TRY(d9d_map_put(seen, name, strlen(name), NULL));
    D9D_TRY(d9d_json_get_i64(entry, where, "bytes", 0, INT64_MAX, &bytes));
    D9D_TRY(d9d_json_get_arr(entry, where, "chunks", &chunks));
    f->name = name;
    f->bytes = (uint64_t)bytes;
    return read_chunks(m, chunks, where, f);
}

static d9d_status read_root(d9d_manifest *m)
{
    d9d_map seen = {0};
    json_t *files;
    int64_t chunk;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_json_check_schema(m->root, m->path, "checkpoint", 1));
    D9D_TRY(d9d_json_get_i64(m->root, m->path, "chunk_bytes", D9D_MANIFEST_CHUNK,
                             D9D_MANIFEST_CHUNK, &chunk));
    D9D_TRY(d9d_json_get_arr(m->root, m->path, "files", &files));
    m->n = json_array_size(files);
    m->files = d9d_arena_alloc(&m->arena, (m->n + 1) * sizeof(*m->files));
    if (m->files == NULL)
        return no_memory(m->dir);
    for (size_t i = 0; i < m->n && st == D9D_OK; i++)
        st = read_file(m, json_array_get(files, i), i, &seen);
    d9d_map_release(&seen);
    return st;
}

d9d_status d9d_manifest_parse(const char *dir, const char *text, size_t n, d9d_manifest **out)
{
    d9d_manifest *m = calloc(1, sizeof(*m));
    d9d_status st;

    if (m == NULL)
        return no_memory(dir);
    m->dir = d9d_arena_strdup(&m->arena, dir);
    m->path = d9d_fs_join(&m->arena, dir, D9D_MANIFEST_NAME);
    if (m->dir == NULL || m->path == NULL) {
        st = no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_json_parse(m->path, text, n, &m->root), out);
    D9D_TRY_OR(st, d9d_json_check_seal(m->path, text, n), out);
    D9D_TRY_OR(st, read_root(m), out);
    *out = m;
    m = NULL;
out:
    d9d_manifest_close(m);
    return st;
}

d9d_status d9d_manifest_open(const char *dir, d9d_manifest **out)
{
    d9d_arena a = {0};
    d9d_buf text = {0};
    char *path = d9d_fs_join(&a, dir, D9D_MANIFEST_NAME);
    d9d_status st;

    if (path == NULL) {
        st = no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_fs_check_regular(path), out);
    D9D_TRY_OR(st, d9d_fs_read(path, D9D_MANIFEST_MAX, &text), out);
    st = d9d_manifest_parse(dir, text.data != NULL ? text.data : "", text.len, out);
out:
    d9d_arena_release(&a);
    d9d_buf_release(&text);
    return st;
}

void d9d_manifest_close(d9d_manifest *m)
{
    if (m == NULL)
        return;
    json_decref(m->root);
    d9d_arena_release(&m->arena);
    free(m);
}

const json_t *d9d_manifest_root(const d9d_manifest *m)
{
    return m->root;
}
size_t d9d_manifest_count(const d9d_manifest *m)
{
    return m->n;
}
const d9d_manifest_file *d9d_manifest_at(const d9d_manifest *m, size_t i)
{
    return &m->files[i];
}

const d9d_manifest_file *d9d_manifest_find(const d9d_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->files[i].name, name) == 0)
            return &m->files[i];
    return NULL;
}

/* --- checking ------------------------------------------------------------------------------ */

d9d_status d9d_manifest_check_sizes(const d9d_manifest *m)
{
    struct hashing h = {.dir = m->dir, .files = m->files, .n = m->n};
    d9d_status st;

    D9D_TRY_OR(st, list_items(&h), out);
    for (size_t f = 0; f < m->n; f++) {
        D9D_TRY_OR(st, open_file(&h, f), out);
        d9d_file_release(&h.open[f]);
        if (h.said[f] != NULL) {
            st = D9D_FAIL(D9D_EVERIFY, "%s", h.said[f]);
            goto out;
        }
    }
out:
    hashing_release(&h);
    return st;
}

static d9d_status report(const struct hashing *h, void (*found)(void *arg, const char *sentence),
                         void *arg)
{
    char text[512];
    size_t n = 0, i = 0;

    for (size_t f = 0; f < h->n; f++) {
        const d9d_manifest_file *file = &h->files[f];

        n += h->said[f] != NULL;
        if (h->said[f] != NULL && found != NULL)
            found(arg, h->said[f]);
        for (uint64_t c = 0; c < chunk_count(file->bytes); c++, i++) {
            if (h->said[f] != NULL || d9d_hash_equal(h->got[i], file->chunks[c]))
                continue;
            (void)snprintf(
                text, sizeof(text), "%s/%s: bytes %llu to %llu are not those that were written",
                h->dir, file->name, (unsigned long long)(c * D9D_MANIFEST_CHUNK),
                (unsigned long long)(c * D9D_MANIFEST_CHUNK + chunk_bytes(file->bytes, c)));
            n++;
            if (found != NULL)
                found(arg, text);
        }
    }
    if (n > 0)
        return D9D_FAIL(D9D_EVERIFY, "%s: %zu files or chunks are not as %s says", h->dir, n,
                        D9D_MANIFEST_NAME);
    return D9D_OK;
}

d9d_status d9d_manifest_check(const d9d_manifest *m, int jobs, const d9d_log *log,
                              void (*found)(void *arg, const char *sentence), void *arg)
{
    struct hashing h = {
        .dir = m->dir, .files = m->files, .n = m->n, .lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_status st;

    D9D_TRY_OR(st, hash_files(&h, jobs, log), out);
    st = report(&h, found, arg);
out:
    hashing_release(&h);
    return st;
}
