/* journal.c - see journal.h. */
#include "data/journal.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/json.h"

/* --- the job ---------------------------------------------------------------------------------- */

static d9d_status put_input(d9d_buf *b, const char *path, bool *repeatable)
{
    struct stat s;

    D9D_TRY(d9d_buf_append(b, path, strlen(path) + 1));
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode)) {
        *repeatable = false; /* what is wrong with it is said when it is opened */
        return D9D_OK;
    }
    return d9d_buf_printf(b, " %lld %lld.%09ld\n", (long long)s.st_size,
                          (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

d9d_status d9di_journal_job(const d9d_shard_how *how, const d9d_hash *tokenizer, d9d_hash *out,
                            bool *repeatable)
{
    d9d_buf b = {0};
    d9d_status st;
    size_t i;

    *repeatable = true;
    D9D_TRY_OR(st,
               d9d_buf_printf(&b, "%s %016llx%016llx %d %d %s|%s %lld %d %lld %lld %s %lld\n",
                              D9D_VERSION, (unsigned long long)tokenizer->hi,
                              (unsigned long long)tokenizer->lo, (int)how->format, how->lines,
                              how->text_key ? how->text_key : "",
                              how->append_eos ? how->append_eos : "", (long long)how->max_length,
                              (int)how->overflow, (long long)how->pack, (long long)how->seed,
                              how->split ? how->split : "", (long long)how->shard_bytes),
               out);
    for (i = 0; i < how->n_edges; i++)
        D9D_TRY_OR(st, d9d_buf_printf(&b, "%lld,", (long long)how->edges[i]), out);
    for (i = 0; i < how->n_inputs; i++)
        D9D_TRY_OR(st, put_input(&b, how->inputs[i], repeatable), out);
    *out = d9d_hash_bytes(b.data, b.len);
out:
    d9d_buf_release(&b);
    return st;
}

/* --- text --------------------------------------------------------------------------------------
 */

#define FIELD(member)                                                                              \
    {                                                                                              \
#member, offsetof(d9di_journal, member)                                                    \
    }

/* Every number of the journal but those of splits and sources. */
static const struct field {
    const char *name;
    size_t offset;
} fields[] = {
    FIELD(place.source),      FIELD(place.byte),          FIELD(place.line),
    FIELD(documents.read),    FIELD(documents.kept),      FIELD(documents.empty),
    FIELD(documents.dropped), FIELD(documents.truncated), FIELD(documents.split),
    FIELD(store.shard),       FIELD(store.shard_tokens),  FIELD(store.tokens),
    FIELD(store.bound),       FIELD(store.labels),
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

/* A split's state is numbers throughout. */
enum { SPLIT_NUMBERS = sizeof(d9di_split_state) / sizeof(int64_t) };

static json_t *numbers_json(const int64_t *v, size_t n)
{
    json_t *list = json_array();
    size_t i;

    for (i = 0; i < n; i++)
        json_array_append_new(list, json_integer(v[i]));
    return list;
}

static d9d_status numbers_read(const json_t *root, const char *where, const char *key, int64_t *v,
                               size_t n)
{
    json_t *list;
    size_t i;

    D9D_TRY(d9d_json_get_arr(root, where, key, &list));
    if (json_array_size(list) != n)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s: has %zu numbers, must have %zu", where, key,
                        json_array_size(list), n);
    for (i = 0; i < n; i++) {
        v[i] = json_integer_value(json_array_get(list, i));
        if (v[i] < 0)
            return D9D_FAIL(D9D_EFORMAT, "%s: %s[%zu]: is %lld", where, key, i, (long long)v[i]);
    }
    return D9D_OK;
}

d9d_status d9di_journal_write(const char *dir, const d9di_journal *j)
{
    json_t *root = json_object();
    char hex[D9D_HASH_HEX], *path = NULL;
    d9d_buf text = {0};
    d9d_status st;
    size_t i;

    d9d_hash_hex(j->job, hex);
    json_object_set_new(root, "schema", json_string("d9d.journal.v1"));
    json_object_set_new(root, "job", json_string(hex));
    for (i = 0; i < N_FIELDS; i++)
        json_object_set_new(root, fields[i].name,
                            json_integer(*(const int64_t *)((const char *)j + fields[i].offset)));
    json_object_set_new(
        root, "splits",
        numbers_json((const int64_t *)j->store.split, D9DI_MAX_SPLITS * (size_t)SPLIT_NUMBERS));
    json_object_set_new(root, "sources", numbers_json(j->source_bytes, j->n_sources));
    D9D_TRY_OR(st, d9d_json_put(&text, root, 1), out);
    if (asprintf(&path, "%s/journal.json", dir) < 0) {
        path = NULL;
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
        goto out;
    }
    st = d9d_fs_write_atomic(path, text.data, text.len);
out:
    free(path);
    d9d_buf_release(&text);
    json_decref(root);
    return st;
}

static d9d_status read_all(const json_t *root, const char *where, d9di_journal *j)
{
    const char *hex;
    d9d_hash job;
    size_t i;

    D9D_TRY(d9d_json_check_schema(root, where, "journal", 1));
    D9D_TRY(d9d_json_get_str(root, where, "job", &hex));
    D9D_TRY(d9d_hash_parse(hex, &job));
    if (!d9d_hash_equal(job, j->job))
        return D9D_FAIL(D9D_EMISMATCH, "%s: is of other inputs or options", where);
    for (i = 0; i < N_FIELDS; i++)
        D9D_TRY(d9d_json_get_i64(root, where, fields[i].name, -1, INT64_MAX,
                                 (int64_t *)(void *)((char *)j + fields[i].offset)));
    D9D_TRY(numbers_read(root, where, "splits", (int64_t *)j->store.split,
                         D9DI_MAX_SPLITS * (size_t)SPLIT_NUMBERS));
    if (j->place.source < 0 || j->place.source > (int64_t)j->n_sources)
        return D9D_FAIL(D9D_EFORMAT, "%s: is at input %lld of %zu", where,
                        (long long)j->place.source, j->n_sources);
    return numbers_read(root, where, "sources", j->source_bytes, j->n_sources);
}

d9d_status d9di_journal_read(const char *dir, d9di_journal *j, bool *found)
{
    json_t *root = NULL;
    char *path = NULL;

    *found = false;
    if (asprintf(&path, "%s/journal.json", dir) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    *found = d9d_json_read(path, UINT64_C(64) << 20, &root) == D9D_OK &&
             read_all(root, path, j) == D9D_OK;
    json_decref(root);
    free(path);
    return D9D_OK;
}
