/* dataset_index.c - see dataset_index.h. */
#include "data/dataset/dataset_index.h"

#include <endian.h>
#include <errno.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "data/dataset/lmdb_file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are stored as they are");

enum { COMMIT_BYTES = 4 << 20, MAX_SEGMENTS = 1 << 20 };

/* A stored record, followed by its segments if there are several. */
struct stored_record {
    uint32_t shard, bucket;
    uint64_t offset;
    uint32_t stored, n_segments;
};
_Static_assert(sizeof(struct stored_record) == 24, "the layout is a promise");

static d9d_status fail_lmdb(int rc, const char *path, const char *what)
{
    return D9D_FAIL(rc == ENOMEM                   ? D9D_ENOMEM
                    : rc > 0 || rc == MDB_MAP_FULL ? D9D_EIO
                                                   : D9D_EFORMAT,
                    "%s: cannot %s: %s", path, what, mdb_strerror(rc));
}

/* --- writing ------------------------------------------------------------------------- */

struct d9di_dataset_index_writer {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi samples, summary;
    char *work, *path;
    d9d_buf value;
    size_t in_txn; /* bytes */
};

static d9d_status txn_begin(d9di_dataset_index_writer *w)
{
    const int rc = mdb_txn_begin(w->env, NULL, 0, &w->txn);

    return rc ? fail_lmdb(rc, w->work, "begin a transaction") : D9D_OK;
}

static d9d_status txn_commit(d9di_dataset_index_writer *w)
{
    const int rc = mdb_txn_commit(w->txn);

    w->txn = NULL;
    w->in_txn = 0;
    return rc ? fail_lmdb(rc, w->work, "commit") : D9D_OK;
}

/* Map size for the records with LMDB's overhead; at worst pages are half full. */
static size_t map_size(uint64_t records, uint64_t segments)
{
    const uint64_t bytes = (records * 64 + segments * 4) * 3 + (UINT64_C(16) << 20);

    return (size_t)((bytes + 0xfffff) & ~UINT64_C(0xfffff));
}

static d9d_status open_work(d9di_dataset_index_writer *w, size_t size)
{
    int rc;

    if ((rc = mdb_env_create(&w->env)) || (rc = mdb_env_set_maxdbs(w->env, 2)) ||
        (rc = mdb_env_set_mapsize(w->env, size)) ||
        (rc = mdb_env_open(w->env, w->work, MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOSYNC, 0666)))
        return fail_lmdb(rc, w->work, "create the index");
    D9D_TRY(txn_begin(w));
    if ((rc = mdb_dbi_open(w->txn, "samples", MDB_CREATE, &w->samples)) ||
        (rc = mdb_dbi_open(w->txn, "summary", MDB_CREATE, &w->summary)))
        return fail_lmdb(rc, w->work, "create the index");
    return D9D_OK;
}

d9d_status d9di_dataset_index_create(const char *dir, const char *path, uint64_t records,
                                     uint64_t segments, d9di_dataset_index_writer **out)
{
    d9di_dataset_index_writer *w = calloc(1, sizeof(*w));
    d9d_status st;

    if (!w || asprintf(&w->work, "%s/index.work", dir) < 0 || !(w->path = strdup(path))) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
        goto out;
    }
    unlink(w->work); /* left by an interrupted run */
    unlink(w->path);
    D9D_TRY_OR(st, open_work(w, map_size(records, segments)), out);
    *out = w;
    w = NULL;
out:
    d9di_dataset_index_abandon(w);
    return st;
}

d9d_status d9di_dataset_index_put(d9di_dataset_index_writer *w, uint64_t number,
                                  const d9di_dataset_index_record *r)
{
    const struct stored_record s = {r->shard, r->bucket, r->offset, r->stored, r->n_segments};
    const uint64_t be = htobe64(number);
    uint64_t key_bytes = be;
    MDB_val key = {sizeof(key_bytes), &key_bytes}, value;
    int rc;

    w->value.len = 0;
    D9D_TRY(d9d_buf_append(&w->value, &s, sizeof(s)));
    if (r->n_segments > 1)
        D9D_TRY(d9d_buf_append(&w->value, r->segments, r->n_segments * sizeof(uint32_t)));
    value = (MDB_val){w->value.len, w->value.data};
    rc = mdb_put(w->txn, w->samples, &key, &value, MDB_APPEND);
    if (rc)
        return fail_lmdb(rc, w->work, "add a record");
    w->in_txn += sizeof(key_bytes) + w->value.len;
    if (w->in_txn < COMMIT_BYTES)
        return D9D_OK;
    D9D_TRY(txn_commit(w));
    return txn_begin(w);
}

d9d_status d9di_dataset_index_put_summary(d9di_dataset_index_writer *w, const char *split,
                                          const char *json, size_t n)
{
    d9d_buf copy = {0};
    MDB_val key, value;
    d9d_status st;
    int rc;

    D9D_TRY(d9d_buf_append(&copy, split, strlen(split)));
    D9D_TRY_OR(st, d9d_buf_append(&copy, json, n), out);
    key = (MDB_val){copy.len - n, copy.data};
    value = (MDB_val){n, copy.data + key.mv_size};
    rc = mdb_put(w->txn, w->summary, &key, &value, 0);
    st = rc ? fail_lmdb(rc, w->work, "add a summary") : D9D_OK;
out:
    d9d_buf_release(&copy);
    return st;
}

d9d_status d9di_dataset_index_finish(d9di_dataset_index_writer *w)
{
    d9d_status st;

    D9D_TRY_OR(st, txn_commit(w), out);
    mdb_env_close(w->env);
    w->env = NULL;
    if (rename(w->work, w->path) != 0)
        st = D9D_FAIL(D9D_EIO, "%s: cannot be renamed: %s", w->work, strerror(errno));
out:
    d9di_dataset_index_abandon(w);
    return st;
}

void d9di_dataset_index_abandon(d9di_dataset_index_writer *w)
{
    if (!w)
        return;
    if (w->txn)
        mdb_txn_abort(w->txn);
    if (w->env)
        mdb_env_close(w->env);
    if (w->work)
        unlink(w->work);
    d9d_buf_release(&w->value);
    free(w->work);
    free(w->path);
    free(w);
}

/* --- reading -------------------------------------------------------------------------- */

struct d9di_dataset_index {
    d9di_lmdb db;
    d9di_lmdb_tree samples, summary;
    char *path;
    void *map; /* NULL: the bytes are borrowed */
    size_t bytes;
    D9D_VEC(uint32_t) segments;
};

static d9d_status open_trees(d9di_dataset_index *ix, const void *p, size_t n, uint64_t records)
{
    D9D_TRY(d9di_lmdb_open(ix->path, p, n, &ix->db));
    D9D_TRY(d9di_lmdb_find_tree(&ix->db, "samples", &ix->samples));
    D9D_TRY(d9di_lmdb_find_tree(&ix->db, "summary", &ix->summary));
    if (ix->samples.entries != records)
        return D9D_FAIL(D9D_EFORMAT, "%s: has %llu records, the manifest says %llu", ix->path,
                        (unsigned long long)ix->samples.entries, (unsigned long long)records);
    return D9D_OK;
}

static d9d_status map_file(d9di_dataset_index *ix)
{
    d9d_file file = {.fd = -1};
    uint64_t bytes = 0;
    d9d_status st;

    D9D_TRY(d9d_fs_size(ix->path, &bytes));
    D9D_TRY(d9d_file_open(ix->path, &file));
    ix->map = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, file.fd, 0) : MAP_FAILED;
    st = ix->map != MAP_FAILED ? D9D_OK
                               : D9D_FAIL(D9D_EIO, "%s: cannot map %llu bytes: %s", ix->path,
                                          (unsigned long long)bytes, strerror(errno));
    ix->map = st == D9D_OK ? ix->map : NULL;
    ix->bytes = (size_t)bytes;
    d9d_file_release(&file);
    return st;
}

/* Opens the bytes at `p`; if that is NULL, the file. */
static d9d_status open_index(const char *path, const void *p, size_t n, uint64_t records,
                             d9di_dataset_index **out)
{
    d9di_dataset_index *ix = calloc(1, sizeof(*ix));
    d9d_status st = D9D_OK;

    if (!ix || !(ix->path = strdup(path)))
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    else if (!p)
        st = map_file(ix);
    if (st == D9D_OK)
        st = open_trees(ix, p ? p : ix->map, p ? n : ix->bytes, records);
    if (st != D9D_OK) {
        d9di_dataset_index_close(ix);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = ix;
    return D9D_OK;
}

d9d_status d9di_dataset_index_open(const char *path, uint64_t records, d9di_dataset_index **out)
{
    return open_index(path, NULL, 0, records, out);
}

d9d_status d9di_dataset_index_open_bytes(const char *name, const void *p, size_t n,
                                         uint64_t records, d9di_dataset_index **out)
{
    return open_index(name, p, n, records, out);
}

d9d_status d9di_dataset_index_get(d9di_dataset_index *ix, uint64_t number,
                                  d9di_dataset_index_record *out)
{
    const uint64_t key = htobe64(number);
    struct stored_record s;
    const void *value;
    size_t bytes, want;

    D9D_TRY(d9di_lmdb_get(&ix->db, &ix->samples, &key, sizeof(key), &value, &bytes));
    if (value == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no record of sample %llu", ix->path,
                        (unsigned long long)number);
    memset(&s, 0, sizeof(s));
    if (bytes >= sizeof(s))
        memcpy(&s, value, sizeof(s));
    want = sizeof(s) + (s.n_segments > 1 ? s.n_segments * sizeof(uint32_t) : 0);
    if (s.n_segments < 1 || s.n_segments > MAX_SEGMENTS || bytes != want)
        return D9D_FAIL(D9D_EFORMAT, "%s: sample %llu: its record has %zu bytes for %u segments",
                        ix->path, (unsigned long long)number, bytes, s.n_segments);
    ix->segments.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&ix->segments, s.n_segments));
    if (s.n_segments == 1)
        ix->segments.data[0] = s.stored;
    else
        memcpy(ix->segments.data, (const char *)value + sizeof(s), want - sizeof(s));
    *out = (d9di_dataset_index_record){s.shard,  s.bucket,     s.offset,
                                       s.stored, s.n_segments, ix->segments.data};
    return D9D_OK;
}

d9d_status d9di_dataset_index_get_summary(d9di_dataset_index *ix, const char *split,
                                          const char **json, size_t *n)
{
    const void *value;

    D9D_TRY(d9di_lmdb_get(&ix->db, &ix->summary, split, strlen(split), &value, n));
    if (value == NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: has no summary of the split \"%s\"", ix->path, split);
    *json = value;
    return D9D_OK;
}

void d9di_dataset_index_close(d9di_dataset_index *ix)
{
    if (!ix)
        return;
    if (ix->map)
        munmap(ix->map, ix->bytes);
    D9D_VEC_RELEASE(&ix->segments);
    free(ix->path);
    free(ix);
}
