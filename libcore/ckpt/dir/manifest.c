/* manifest.c - see d9d/ckpt/dir/manifest.h. */
#include "d9d/ckpt/dir/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dir/chunks.h"
#include "ckpt/dir/list_recursive.h"

struct d9d_manifest {
    d9d_arena arena;
    const char *dir, *path;
    json_t *root;
    d9d_manifest_file *files;
    size_t n;
    d9d_map by_name; /* of files */
};

static d9d_status no_memory(const char *dir)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", dir);
}

/* --- writing -------------------------------------------------------------------------- */

static const char *const reserved_members[] = {"schema", "chunk_bytes", "files", "xxh3"};

static d9d_status put_extra(d9d_buf *b, const json_t *extra)
{
    const char *key;
    json_t *value;

    if (extra == NULL)
        return D9D_OK;
    /* Jansson's iteration takes a mutable object and changes nothing. */
    json_object_foreach((json_t *)(uintptr_t)extra, key, value)
    {
        for (size_t i = 0; i < sizeof(reserved_members) / sizeof(reserved_members[0]); i++)
            if (strcmp(key, reserved_members[i]) == 0)
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

d9d_status d9d_manifest_text(const json_t *extra, const d9d_manifest_file *files, size_t n,
                             d9d_buf *b)
{
    D9D_TRY(d9d_buf_printf(b, "{\n  \"schema\": \"d9d.checkpoint.v1\",\n"));
    D9D_TRY(put_extra(b, extra));
    D9D_TRY(d9d_buf_printf(b, "  \"chunk_bytes\": %llu,\n", D9D_MANIFEST_CHUNK));
    D9D_TRY(put_files(b, files, n));
    return d9d_json_checksum_append(b);
}

d9d_status d9d_manifest_write_hashed(const char *dir, const json_t *extra,
                                     const d9d_manifest_file *files, size_t n)
{
    d9d_arena a = {0};
    d9d_buf text = {0};
    char *path = d9d_fs_join(&a, dir, D9D_MANIFEST_NAME);
    d9d_status st;

    if (path == NULL) {
        st = no_memory(dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_manifest_text(extra, files, n, &text), out);
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

/* Lists every file of the directory except the manifest. */
static d9d_status list_files(d9di_chunks *c, d9d_manifest_file **out)
{
    d9d_fs_names names = {0};
    d9d_manifest_file *files;

    D9D_TRY(d9di_list_recursive(c->dir, &c->arena, &names));
    files = d9d_arena_alloc(&c->arena, (names.n + 1) * sizeof(*files));
    if (files == NULL)
        return no_memory(c->dir);
    for (size_t i = 0; i < names.n; i++) {
        char *path = d9d_fs_join(&c->arena, c->dir, names.name[i]);

        if (path == NULL)
            return no_memory(c->dir);
        if (strcmp(names.name[i], D9D_MANIFEST_NAME) == 0)
            continue;
        files[c->n].name = names.name[i];
        D9D_TRY(d9d_fs_size(path, &files[c->n].bytes));
        c->n++;
    }
    c->files = files;
    c->n_hashed = c->n;
    *out = files;
    return D9D_OK;
}

static d9d_status hash_files(d9di_chunks *c, int jobs, const d9d_log *log, d9d_manifest_file **out)
{
    d9d_manifest_file *files = NULL;

    D9D_TRY(list_files(c, &files));
    D9D_TRY(d9di_chunks_read(c, "hash", jobs, log));
    for (size_t f = 0; f < c->n; f++) {
        if (c->messages[f] != NULL) /* the file changed while it was read */
            return D9D_FAIL(D9D_EIO, "%s", c->messages[f]);
        files[f].chunks = &c->hashes[c->first_chunk[f]];
        files[f].n_chunks = c->first_chunk[f + 1] - c->first_chunk[f];
    }
    *out = files;
    return D9D_OK;
}

d9d_status d9d_manifest_write(const char *dir, const json_t *extra, int jobs, const d9d_log *log)
{
    d9di_chunks c = {.dir = dir};
    d9d_manifest_file *files = NULL;
    d9d_status st;

    st = hash_files(&c, jobs, log, &files);
    if (st == D9D_OK)
        st = d9d_manifest_write_hashed(dir, extra, files, c.n);
    d9di_chunks_release(&c);
    return st;
}

/* --- reading ---------------------------------------------------------------------------- */

static d9d_status read_chunks(d9d_manifest *m, const json_t *list, const char *where,
                              d9d_manifest_file *f)
{
    if (json_array_size(list) != d9di_chunks_per_file(f->bytes))
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

static d9d_status read_file(d9d_manifest *m, const json_t *entry, size_t i)
{
    d9d_manifest_file *f = &m->files[i];
    const char *where = d9d_arena_printf(&m->arena, "%s: files[%zu]", m->path, i), *name;
    json_t *chunks;
    int64_t bytes;

    if (where == NULL)
        return no_memory(m->dir);
    D9D_TRY(d9d_json_get_str(entry, where, "name", &name));
    D9D_TRY(d9di_list_recursive_check_path(name, where));
    if (d9d_map_has(&m->by_name, name, strlen(name)) || strcmp(name, D9D_MANIFEST_NAME) == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s is listed twice or lists itself", where, name);
    D9D_TRY(d9d_map_put(&m->by_name, name, strlen(name), f));
    D9D_TRY(d9d_json_get_i64(entry, where, "bytes", 0, INT64_MAX, &bytes));
    D9D_TRY(d9d_json_get_arr(entry, where, "chunks", &chunks));
    f->name = name;
    f->bytes = (uint64_t)bytes;
    return read_chunks(m, chunks, where, f);
}

static d9d_status read_root(d9d_manifest *m)
{
    json_t *files;
    int64_t chunk;

    D9D_TRY(d9d_json_get_i64(m->root, m->path, "chunk_bytes", D9D_MANIFEST_CHUNK,
                             D9D_MANIFEST_CHUNK, &chunk));
    D9D_TRY(d9d_json_get_arr(m->root, m->path, "files", &files));
    m->n = json_array_size(files);
    m->files = d9d_arena_alloc(&m->arena, (m->n + 1) * sizeof(*m->files));
    if (m->files == NULL)
        return no_memory(m->dir);
    for (size_t i = 0; i < m->n; i++)
        D9D_TRY(read_file(m, json_array_get(files, i), i));
    return D9D_OK;
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
    D9D_TRY_OR(st, d9d_json_check_schema(m->root, m->path, "checkpoint", 1), out);
    D9D_TRY_OR(st, d9d_json_checksum_verify(m->path, text, n), out);
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
    d9d_map_release(&m->by_name);
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
    return d9d_map_get(&m->by_name, name, strlen(name));
}

/* --- checking ------------------------------------------------------------------------------ */

static d9di_chunks init_chunks(const d9d_manifest *m)
{
    return (d9di_chunks){.dir = m->dir, .files = m->files, .n = m->n, .n_hashed = m->n};
}

static d9d_status check_sizes(const d9d_manifest *m, const d9d_manifest_file *files, size_t n)
{
    d9di_chunks c = {.dir = m->dir, .files = files, .n = n};
    d9d_status st = d9di_chunks_check(&c);

    for (size_t f = 0; f < n && st == D9D_OK; f++)
        if (c.messages[f] != NULL)
            st = D9D_FAIL(D9D_EVERIFY, "%s", c.messages[f]);
    d9di_chunks_release(&c);
    return st;
}

d9d_status d9d_manifest_check_sizes(const d9d_manifest *m)
{
    return check_sizes(m, m->files, m->n);
}

d9d_status d9d_manifest_check_size(const d9d_manifest *m, const d9d_manifest_file *file)
{
    return check_sizes(m, file, 1);
}

/* Reports the changed chunks of one file that exists with its size. */
static size_t report_chunks(const d9di_chunks *c, size_t f, const d9d_manifest_file *file,
                            void (*found)(void *arg, const char *sentence), void *arg)
{
    const d9d_hash *got = &c->hashes[c->first_chunk[f]];
    char text[512];
    size_t n = 0;

    for (size_t i = 0; i < file->n_chunks; i++) {
        if (!d9di_chunks_in_share(c, f, i) || d9d_hash_equal(got[i], file->chunks[i]))
            continue;
        (void)snprintf(text, sizeof(text),
                       "%s/%s: bytes %" PRIu64 " to %" PRIu64 " are not those that were written",
                       c->dir, file->name, (uint64_t)(i * D9D_MANIFEST_CHUNK),
                       d9di_chunks_end_offset(file->bytes, i));
        n++;
        if (found != NULL)
            found(arg, text);
    }
    return n;
}

size_t d9di_manifest_report(const d9d_manifest *m, const d9di_chunks *c,
                            void (*found)(void *arg, const char *sentence), void *arg)
{
    size_t n = 0;

    for (size_t f = 0; f < m->n; f++) {
        if (c->messages[f] == NULL) {
            n += report_chunks(c, f, &m->files[f], found, arg);
            continue;
        }
        n++;
        if (found != NULL)
            found(arg, c->messages[f]);
    }
    return n;
}

d9d_status d9d_manifest_check_share(const d9d_manifest *m, size_t part, size_t parts, int jobs,
                                    const d9d_log *log,
                                    void (*found)(void *arg, const char *sentence), void *arg,
                                    uint64_t *bytes)
{
    d9di_chunks c = init_chunks(m);
    size_t n;
    d9d_status st;

    c.share = part;
    c.n_shares = parts;
    D9D_TRY_OR(st, d9di_chunks_read(&c, "hash", jobs, log), out);
    n = d9di_manifest_report(m, &c, found, arg);
    if (n > 0)
        st = D9D_FAIL(D9D_EVERIFY, "%s: %zu files or chunks are not as %s says", m->dir, n,
                      D9D_MANIFEST_NAME);
out:
    *bytes = c.read;
    d9di_chunks_release(&c);
    return st;
}

d9d_status d9d_manifest_check(const d9d_manifest *m, int jobs, const d9d_log *log,
                              void (*found)(void *arg, const char *sentence), void *arg)
{
    uint64_t bytes;

    return d9d_manifest_check_share(m, 0, 1, jobs, log, found, arg, &bytes);
}
