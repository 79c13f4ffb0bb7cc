/* manifest.c - see d9d/ckpt/dir/manifest.h. */
#include "d9d/ckpt/dir/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dir/chunks.h"
#include "ckpt/dir/list_recursive.h"
#include "d9d/base/num_format.h"

/* A directory with a manifest of its own. */
typedef struct manifest_part {
    const char *dir;
    uint64_t bytes, before; /* of its files; of those of the parts before it */
    d9d_manifest *opened;   /* NULL: not yet */
} manifest_part;

struct d9d_manifest {
    d9d_arena arena;
    const char *dir, *path;
    json_t *root;
    d9d_manifest_file *files;
    size_t n;
    d9d_map by_name; /* of files */
    manifest_part *parts;
    size_t n_parts;
    uint64_t part_bytes; /* of the files of all parts */
};

#define PARTS_KEY "parts"
enum { PLAIN_SCHEMA = 1, PARTS_SCHEMA = 2 };

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
    const bool parts = json_object_get(extra, PARTS_KEY) != NULL;

    D9D_TRY(d9d_buf_printf(b, "{\n  \"schema\": \"d9d.checkpoint.v%d\",\n",
                           parts ? PARTS_SCHEMA : PLAIN_SCHEMA));
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

d9d_status d9d_manifest_file_of_text(const char *name, const char *text, size_t n, d9d_arena *a,
                                     d9d_manifest_file *out)
{
    d9d_manifest_file f = {.name = name, .bytes = n, .n_chunks = d9di_chunks_per_file(n)};

    f.chunks = d9d_arena_alloc(a, (f.n_chunks + 1) * sizeof(*f.chunks));
    if (f.chunks == NULL)
        return no_memory(name);
    for (size_t i = 0; i < f.n_chunks; i++) {
        const uint64_t at = i * D9D_MANIFEST_CHUNK;

        f.chunks[i] = d9d_hash_bytes(text + at, d9di_chunks_end_offset(n, i) - at);
    }
    *out = f;
    return D9D_OK;
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

static d9d_status check_schema(const d9d_manifest *m)
{
    const bool parts = json_object_get(m->root, PARTS_KEY) != NULL;

    return d9d_json_check_schema(m->root, m->path, "checkpoint",
                                 parts ? PARTS_SCHEMA : PLAIN_SCHEMA);
}

static d9d_status read_part(d9d_manifest *m, const json_t *entry, size_t i)
{
    manifest_part *p = &m->parts[i];
    const char *where = d9d_arena_printf(&m->arena, "%s: %s[%zu]", m->path, PARTS_KEY, i), *name;
    int64_t bytes;

    if (where == NULL)
        return no_memory(m->dir);
    D9D_TRY(d9d_json_get_str(entry, where, "dir", &p->dir));
    D9D_TRY(d9d_json_get_i64(entry, where, "bytes", 0, INT64_MAX, &bytes));
    name = d9d_arena_printf(&m->arena, "%s/%s", p->dir, D9D_MANIFEST_NAME);
    if (name == NULL)
        return no_memory(m->dir);
    if (strchr(p->dir, '/') != NULL || d9d_manifest_find(m, name) == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is not among its files", where, name);
    p->bytes = (uint64_t)bytes;
    p->before = m->part_bytes;
    if (!d9d_checked_add_u64(m->part_bytes, p->bytes, &m->part_bytes))
        return D9D_FAIL(D9D_EFORMAT, "%s: the bytes of all parts overflow", where);
    return D9D_OK;
}

static d9d_status read_parts(d9d_manifest *m)
{
    json_t *list;

    if (json_object_get(m->root, PARTS_KEY) == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_get_arr(m->root, m->path, PARTS_KEY, &list));
    m->parts = d9d_arena_alloc(&m->arena, (json_array_size(list) + 1) * sizeof(*m->parts));
    if (m->parts == NULL)
        return no_memory(m->dir);
    for (; m->n_parts < json_array_size(list); m->n_parts++)
        D9D_TRY(read_part(m, json_array_get(list, m->n_parts), m->n_parts));
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
    D9D_TRY_OR(st, check_schema(m), out);
    D9D_TRY_OR(st, d9d_json_checksum_verify(m->path, text, n), out);
    D9D_TRY_OR(st, read_root(m), out);
    D9D_TRY_OR(st, read_parts(m), out);
    *out = m;
    m = NULL;
out:
    d9d_manifest_close(m);
    return st;
}

static d9d_status read_text(const char *dir, d9d_buf *text)
{
    d9d_arena a = {0};
    char *path = d9d_fs_join(&a, dir, D9D_MANIFEST_NAME);
    d9d_status st = path != NULL ? d9d_fs_check_regular(path) : no_memory(dir);

    if (st == D9D_OK)
        st = d9d_fs_read(path, D9D_MANIFEST_MAX, text);
    d9d_arena_release(&a);
    return st;
}

static const char *text_data(const d9d_buf *text)
{
    return text->data != NULL ? text->data : "";
}

d9d_status d9d_manifest_open_root(const char *dir, d9d_manifest **out)
{
    d9d_buf text = {0};
    d9d_status st = read_text(dir, &text);

    if (st == D9D_OK)
        st = d9d_manifest_parse(dir, text_data(&text), text.len, out);
    d9d_buf_release(&text);
    return st;
}

static bool file_equal(const d9d_manifest_file *a, const d9d_manifest_file *b)
{
    return a->bytes == b->bytes &&
           memcmp(a->chunks, b->chunks, a->n_chunks * sizeof(*a->chunks)) == 0;
}

/* Reads the manifest of a part, which must be the one that the root names. */
static d9d_status open_part(const d9d_manifest *m, const manifest_part *part, d9d_manifest **out)
{
    d9d_arena a = {0};
    d9d_buf text = {0};
    const char *dir = d9d_fs_join(&a, m->dir, part->dir);
    const char *name = d9d_arena_printf(&a, "%s/%s", part->dir, D9D_MANIFEST_NAME);
    d9d_manifest_file found;
    d9d_status st;

    if (dir == NULL || name == NULL) {
        st = no_memory(m->dir);
        goto out;
    }
    D9D_TRY_OR(st, read_text(dir, &text), out);
    D9D_TRY_OR(st, d9d_manifest_file_of_text(name, text_data(&text), text.len, &a, &found), out);
    if (!file_equal(&found, d9d_manifest_find(m, name))) {
        st = D9D_FAIL(D9D_EVERIFY, "%s/%s: is not the one that %s names", m->dir, name, m->path);
        goto out;
    }
    D9D_TRY_OR(st, d9d_manifest_parse(dir, text_data(&text), text.len, out), out);
    if ((*out)->n_parts == 0)
        goto out;
    d9d_manifest_close(*out);
    st = D9D_FAIL(D9D_EFORMAT, "%s/%s: a part has no parts", m->dir, name);
out:
    d9d_arena_release(&a);
    d9d_buf_release(&text);
    return st;
}

/* Opens the parts, and appends their files to the root's. */
static d9d_status open_parts(d9d_manifest *m)
{
    size_t n = m->n;
    d9d_manifest_file *files;

    for (size_t i = 0; i < m->n_parts; i++) {
        D9D_TRY(open_part(m, &m->parts[i], &m->parts[i].opened));
        n += m->parts[i].opened->n;
    }
    if (m->n_parts == 0)
        return D9D_OK;
    files = d9d_arena_alloc(&m->arena, (n + 1) * sizeof(*files));
    if (files == NULL)
        return no_memory(m->dir);
    memcpy(files, m->files, m->n * sizeof(*files));
    m->files = files;
    d9d_map_release(&m->by_name);
    for (size_t i = 0; i < m->n; i++)
        D9D_TRY(d9d_map_put(&m->by_name, files[i].name, strlen(files[i].name), &files[i]));
    for (size_t i = 0; i < m->n_parts; i++)
        for (size_t k = 0; k < m->parts[i].opened->n; k++) {
            d9d_manifest_file *f = &files[m->n];

            *f = m->parts[i].opened->files[k];
            f->name = d9d_arena_printf(&m->arena, "%s/%s", m->parts[i].dir, f->name);
            if (f->name == NULL)
                return no_memory(m->dir);
            D9D_TRY(d9d_map_put(&m->by_name, f->name, strlen(f->name), f));
            m->n++;
        }
    return D9D_OK;
}

d9d_status d9d_manifest_open(const char *dir, d9d_manifest **out)
{
    d9d_manifest *m;
    d9d_status st;

    D9D_TRY(d9d_manifest_open_root(dir, &m));
    st = open_parts(m);
    if (st == D9D_OK)
        *out = m;
    else
        d9d_manifest_close(m);
    return st;
}

void d9d_manifest_close(d9d_manifest *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->n_parts; i++)
        d9d_manifest_close(m->parts[i].opened);
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

/* The part that a file is in; NULL: none. */
static manifest_part *find_part(d9d_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        const size_t n = strlen(m->parts[i].dir);

        if (strncmp(m->parts[i].dir, name, n) == 0 && name[n] == '/')
            return &m->parts[i];
    }
    return NULL;
}

d9d_status d9d_manifest_check_size(d9d_manifest *m, const char *name)
{
    const d9d_manifest_file *file = d9d_manifest_find(m, name);
    manifest_part *part = file == NULL ? find_part(m, name) : NULL;
    const d9d_manifest *of = m;

    if (part != NULL && part->opened == NULL)
        D9D_TRY(open_part(m, part, &part->opened));
    if (part != NULL && part->opened != NULL) {
        of = part->opened;
        file = d9d_manifest_find(of, name + strlen(part->dir) + 1);
    }
    if (file == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: \"%s\" is not among its files", m->path, name);
    return check_sizes(of, file, 1);
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

/* What a check of a share is about. */
typedef struct share_check {
    size_t share, n_shares;
    int jobs;
    const d9d_log *log;
    void (*found)(void *arg, const char *sentence);
    void *arg;
    size_t findings;
    uint64_t bytes;
} share_check;

static void report_message(share_check *s, const char *sentence)
{
    s->findings++;
    if (s->found != NULL)
        s->found(s->arg, sentence);
}

/* Checks the share of files that begin at byte `base` of `total`; total 0: they are all. */
static d9d_status check_share(share_check *s, const d9d_manifest *m, uint64_t base, uint64_t total)
{
    d9di_chunks c = init_chunks(m);
    d9d_status st;

    c.share = s->share;
    c.n_shares = s->n_shares;
    c.base = base;
    c.total = total;
    st = d9di_chunks_read(&c, "hash", s->jobs, s->log);
    if (st == D9D_OK)
        s->findings += d9di_manifest_report(m, &c, s->found, s->arg);
    s->bytes += c.read;
    d9di_chunks_release(&c);
    return st;
}

static uint64_t bytes_of_files(const d9d_manifest *m)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < m->n; i++)
        bytes += m->files[i].bytes;
    return bytes;
}

/* Checks the share of a part.  A part that cannot be opened is a finding. */
static d9d_status check_part(share_check *s, const d9d_manifest *m, const manifest_part *part)
{
    d9d_manifest *of;
    d9d_status st = open_part(m, part, &of);

    if (st != D9D_OK && st != D9D_ENOMEM)
        report_message(s, d9d_err_message());
    if (st != D9D_OK)
        return st == D9D_ENOMEM ? st : D9D_OK;
    if (bytes_of_files(of) == part->bytes)
        st = check_share(s, of, part->before, m->part_bytes);
    else
        st = D9D_FAIL(D9D_EFORMAT, "%s: has %" PRIu64 " bytes of files, %s says %" PRIu64, of->path,
                      bytes_of_files(of), m->path, part->bytes);
    d9d_manifest_close(of);
    return st;
}

/* True if bytes of the part are in the share. */
static bool part_in_share(const share_check *s, const d9d_manifest *m, const manifest_part *part)
{
    const unsigned __int128 first = (unsigned __int128)part->before * s->n_shares;
    const unsigned __int128 end = (unsigned __int128)(part->before + part->bytes) * s->n_shares;

    return m->part_bytes == 0 || (first < (unsigned __int128)(s->share + 1) * m->part_bytes &&
                                  end > (unsigned __int128)s->share * m->part_bytes);
}

d9d_status d9d_manifest_check_share(const d9d_manifest *m, size_t share, size_t n_shares, int jobs,
                                    const d9d_log *log,
                                    void (*found)(void *arg, const char *sentence), void *arg,
                                    uint64_t *bytes)
{
    share_check s = {share, n_shares, jobs, log, found, arg, 0, 0};

    if (m->n_parts == 0)
        D9D_TRY(check_share(&s, m, 0, 0));
    for (size_t i = 0; i < m->n_parts; i++)
        if (part_in_share(&s, m, &m->parts[i]))
            D9D_TRY(check_part(&s, m, &m->parts[i]));
    *bytes = s.bytes;
    return s.findings == 0
               ? D9D_OK
               : D9D_FAIL(D9D_EVERIFY, "%s: %zu file%s or chunks are not as %s says", m->dir,
                          s.findings, D9D_PLURAL(s.findings), D9D_MANIFEST_NAME);
}

d9d_status d9d_manifest_check(const d9d_manifest *m, int jobs, const d9d_log *log,
                              void (*found)(void *arg, const char *sentence), void *arg)
{
    uint64_t bytes;

    return d9d_manifest_check_share(m, 0, 1, jobs, log, found, arg, &bytes);
}
