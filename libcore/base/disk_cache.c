/* disk_cache.c - see d9d/base/disk_cache.h.
 *
 * A file, in the byte order of its host:
 *
 *     magic [8], check u64, size of the environment u64, its bytes
 *     entries: size of the key u64, size of the value u64, key, value
 *
 * `check` is the hash of everything behind it.
 */
#include "d9d/base/disk_cache.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/hash.h"
#include "d9d/base/thread.h"

enum { MAX_BYTES = 64 << 20 };

static const char magic[8] = "d9dcch1";

typedef struct header {
    char magic[sizeof(magic)];
    uint64_t check;
} header;

typedef struct entry {
    const void *value;
    size_t size;
    bool used; /* put or got by this process */
} entry;

/* --- entries ---------------------------------------------------------------------------------- */

/* The entry of a key, made if it is new; NULL: no memory. */
static entry *entry_get(d9d_disk_cache *c, const void *key, size_t n)
{
    entry *e = d9d_map_get(&c->entries, key, n);

    if (e != NULL)
        return e;
    e = d9d_arena_alloc(&c->arena, sizeof(*e));
    return e != NULL && d9d_map_put(&c->entries, key, n, e) == D9D_OK ? e : NULL;
}

static void entry_set(d9d_disk_cache *c, entry *e, const void *value, size_t size)
{
    const void *const copy = d9d_arena_strndup(&c->arena, value, size);

    if (copy == NULL)
        return;
    e->value = copy;
    e->size = size;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* What is left of a file. */
typedef struct cursor {
    const char *at;
    size_t left;
} cursor;

static const char *cursor_take(cursor *p, uint64_t n)
{
    const char *const at = p->at;

    if (n > p->left)
        return NULL;
    p->at += n;
    p->left -= (size_t)n;
    return at;
}

static bool take_size(cursor *p, uint64_t *out)
{
    const char *const at = cursor_take(p, sizeof(*out));

    if (at != NULL)
        memcpy(out, at, sizeof(*out));
    return at != NULL;
}

static bool is_own(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid();
}

/* Leaves `p` at the first entry. */
static bool check_file(const d9d_disk_cache *c, cursor *p)
{
    const char *const head = cursor_take(p, sizeof(header));
    const char *environment;
    uint64_t n;
    header h;

    if (head == NULL)
        return false;
    memcpy(&h, head, sizeof(h));
    if (memcmp(h.magic, magic, sizeof(magic)) != 0 || h.check != d9d_hash_u64(p->at, p->left) ||
        !take_size(p, &n))
        return false;
    environment = cursor_take(p, n);
    return environment != NULL && n == strlen(c->environment) &&
           memcmp(environment, c->environment, (size_t)n) == 0;
}

/* Adds entries that are not there. */
static void add_entries(d9d_disk_cache *c, cursor *p)
{
    uint64_t key_size, size;
    const char *key, *value;
    entry *e;

    while (take_size(p, &key_size) && take_size(p, &size)) {
        key = cursor_take(p, key_size);
        value = cursor_take(p, size);
        if (key == NULL || value == NULL)
            return;
        e = entry_get(c, key, (size_t)key_size);
        if (e != NULL && e->value == NULL)
            entry_set(c, e, value, (size_t)size);
    }
}

static void merge_file(d9d_disk_cache *c)
{
    d9d_buf file = {0};
    cursor p;

    if (c->path == NULL || !is_own(c->path))
        return;
    if (d9d_fs_read(c->path, MAX_BYTES, &file) == D9D_OK) {
        p = (cursor){file.data, file.len};
        if (check_file(c, &p))
            add_entries(c, &p);
    }
    d9d_buf_release(&file);
}

static void read_once(d9d_disk_cache *c)
{
    if (!c->is_read)
        merge_file(c);
    c->is_read = true;
}

/* --- writing ---------------------------------------------------------------------------------- */

static d9d_status append_size(d9d_buf *b, uint64_t n)
{
    return d9d_buf_append(b, &n, sizeof(n));
}

static d9d_status append_entry(d9d_buf *b, const struct d9d_map_entry *of)
{
    const entry *e = of->value;

    D9D_TRY(append_size(b, of->key_len));
    D9D_TRY(append_size(b, e->size));
    D9D_TRY(d9d_buf_append(b, of->key, of->key_len));
    return d9d_buf_append(b, e->value, e->size);
}

static d9d_status append_file(const d9d_disk_cache *c, bool used_only, d9d_buf *b)
{
    header h = {.check = 0};

    memcpy(h.magic, magic, sizeof(magic));
    D9D_TRY(d9d_buf_append(b, &h, sizeof(h)));
    D9D_TRY(append_size(b, strlen(c->environment)));
    D9D_TRY(d9d_buf_append(b, c->environment, strlen(c->environment)));
    for (size_t i = 0; i < c->entries.len; i++) {
        const entry *e = c->entries.entries[i].value;

        if (e->value != NULL && (e->used || !used_only))
            D9D_TRY(append_entry(b, &c->entries.entries[i]));
    }
    h.check = d9d_hash_u64(b->data + sizeof(h), b->len - sizeof(h));
    memcpy(b->data, &h, sizeof(h));
    return D9D_OK;
}

static d9d_status write_file(const d9d_disk_cache *c, d9d_buf *b)
{
    D9D_TRY(append_file(c, false, b));
    if (b->len > MAX_BYTES) {
        b->len = 0;
        D9D_TRY(append_file(c, true, b));
    }
    D9D_TRY(d9d_fs_make_parents(c->path));
    return d9d_fs_write_atomic(c->path, b->data, b->len);
}

void d9d_disk_cache_flush(d9d_disk_cache *c)
{
    d9d_buf file = {0};

    if (!c->changed || c->read_only || c->path == NULL)
        return;
    c->changed = false; /* a file that cannot be written is not tried again and again */
    merge_file(c);
    (void)!write_file(c, &file);
    d9d_buf_release(&file);
}

void d9d_disk_cache_flush_idle(d9d_disk_cache *c, double seconds)
{
    if (c->changed && (double)(d9d_clock_ns() - c->put_ns) >= seconds * 1e9)
        d9d_disk_cache_flush(c);
}

/* --- the map ---------------------------------------------------------------------------------- */

const void *d9d_disk_cache_get(d9d_disk_cache *c, const void *key, size_t n, size_t *size)
{
    entry *e;

    read_once(c);
    e = d9d_map_get(&c->entries, key, n);
    if (e == NULL || e->value == NULL)
        return NULL;
    e->used = true;
    *size = e->size;
    return e->value;
}

void d9d_disk_cache_put(d9d_disk_cache *c, const void *key, size_t n, const void *value,
                        size_t size)
{
    entry *const e = entry_get(c, key, n);

    if (e == NULL)
        return;
    entry_set(c, e, value, size);
    e->used = true;
    c->changed = true;
    c->put_ns = d9d_clock_ns();
}

void d9d_disk_cache_open(d9d_disk_cache *c, const char *dir, const char *name,
                         const char *environment, bool read_only)
{
    char hex[D9D_HASH_HEX];

    *c = (d9d_disk_cache){.read_only = read_only};
    c->environment = d9d_arena_strdup(&c->arena, environment);
    if (dir == NULL || c->environment == NULL)
        return;
    d9d_hash_hex(d9d_hash_bytes(environment, strlen(environment)), hex);
    c->path = d9d_arena_printf(&c->arena, "%s/%s-%.16s.cache", dir, name, hex);
}

void d9d_disk_cache_close(d9d_disk_cache *c)
{
    d9d_disk_cache_flush(c);
    d9d_map_release(&c->entries);
    d9d_arena_release(&c->arena);
    *c = (d9d_disk_cache){0};
}
