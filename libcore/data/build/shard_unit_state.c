/* shard_unit_state.c - converts a unit's state between struct and JSON. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/build/shard_unit_private.h"

#define FIELD(member)                                                                              \
    {                                                                                              \
#member, offsetof(d9di_shard_unit_state, member)                                           \
    }

/* All numbers except those in lists. */
static const struct field {
    const char *name;
    size_t offset;
} fields[] = {
    FIELD(input_split),
    FIELD(unit),
    FIELD(last),
    FIELD(next.source),
    FIELD(next.byte),
    FIELD(next.line),
    FIELD(documents.read),
    FIELD(documents.kept),
    FIELD(documents.empty),
    FIELD(documents.untrained),
    FIELD(documents.dropped),
    FIELD(documents.split),
    FIELD(documents.truncated),
    FIELD(documents.turns_lost),
    FIELD(documents.targets_lost),
    FIELD(documents.special_twice),
    FIELD(samples),
    FIELD(segments),
    FIELD(tokens),
    FIELD(bound),
    FIELD(labels),
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };
enum { SPLIT_NUMBERS = sizeof(d9di_shard_split_stats) / sizeof(int64_t) };

void d9di_shard_unit_state_release(d9di_shard_unit_state *s)
{
    D9D_VEC_RELEASE(&s->shards);
    D9D_VEC_RELEASE(&s->source_ends);
    D9D_VEC_RELEASE(&s->skipped);
}

/* --- writing ---------------------------------------------------------------------------------- */

static json_t *hash_json(d9d_hash h)
{
    char hex[D9D_HASH_HEX];

    d9d_hash_hex(h, hex);
    return json_string(hex);
}

static json_t *shard_json(const d9di_shard_unit_opts *opts, const struct d9di_shard_unit_shard *x)
{
    json_t *v = json_pack("{s:I, s:o, s:o}", "tokens", (json_int_t)x->tokens, "hash",
                          hash_json(x->hash), "labels_hash", hash_json(x->labels_hash));

    if (opts->fields.n == 0)
        return v;
    d9d_json_set(&v, "documents", json_integer(x->documents));
    d9d_json_set(&v, "fields_bytes", json_integer(x->fields_bytes));
    d9d_json_set(&v, "documents_hash", hash_json(x->documents_hash));
    d9d_json_set(&v, "fields_hash", hash_json(x->fields_hash));
    return v;
}

/* The longest rows of each field. */
static json_t *longest_json(const d9di_shard_unit_opts *opts, const d9di_shard_unit_state *s)
{
    json_t *v = json_array();

    for (size_t i = 0; i < opts->fields.n; i++)
        d9d_json_add(&v, json_integer(s->longest[i]));
    return v;
}

/* Of each split those of each field, then of the labels. */
static json_t *ranges_json(const d9di_shard_unit_opts *opts, const d9di_shard_unit_state *s)
{
    json_t *v = json_array();

    for (size_t k = 0; k < opts->n_splits; k++) {
        for (size_t i = 0; i < opts->fields.n; i++)
            d9d_json_add(&v, d9di_field_range_json(&s->ranges[k].field[i]));
        d9d_json_add(&v, d9di_field_range_json(&s->ranges[k].label));
    }
    return v;
}

static json_t *lists_json(const d9di_shard_unit_opts *opts, const d9di_shard_unit_state *s)
{
    const int64_t *numbers = (const int64_t *)s->split;
    json_t *splits = json_array(), *shards = json_array(), *ended = json_array();
    json_t *counts = d9di_skipped_counts_json(s->documents.skipped);
    json_t *records = d9di_skipped_list_json(&s->skipped);
    size_t i;

    for (i = 0; i < opts->n_splits * SPLIT_NUMBERS; i++)
        d9d_json_add(&splits, json_integer(numbers[i]));
    for (i = 0; i < s->shards.len; i++) {
        const struct d9di_shard_unit_shard *x = &s->shards.data[i];

        d9d_json_add(&shards, shard_json(opts, x));
    }
    for (i = 0; i < s->source_ends.len; i++)
        d9d_json_add(&ended,
                     json_pack("{s:I, s:I}", "source", (json_int_t)s->source_ends.data[i].source,
                               "bytes", (json_int_t)s->source_ends.data[i].bytes));
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:I, s:I}, s:o, s:o}", "schema",
                     "d9d.unit.v2", "job", hash_json(opts->job), "records_hash",
                     hash_json(s->records_hash), "segments_hash", hash_json(s->segments_hash),
                     "splits", splits, "shards", shards, "ended", ended, "passed", "source",
                     (json_int_t)s->lines_read.source, "lines", (json_int_t)s->lines_read.lines,
                     "skipped_counts", counts, "skipped", records);
}

d9d_status d9di_shard_unit_state_write(const d9di_shard_unit_opts *opts,
                                       const d9di_shard_unit_state *s)
{
    json_t *root = lists_json(opts, s);
    d9d_buf text = {0};
    char *path = NULL;
    int bad = 0;
    d9d_status st;
    size_t i;

    if (opts->fields.n > 0)
        d9d_json_set(&root, "longest", longest_json(opts, s));
    if (s->ranged)
        d9d_json_set(&root, "ranges", ranges_json(opts, s));
    for (i = 0; i < N_FIELDS; i++)
        bad |= json_object_set_new(
            root, fields[i].name,
            json_integer(*(const int64_t *)((const char *)s + fields[i].offset)));
    if (bad != 0) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for what a unit has", opts->dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_json_put(&text, root, 1), out);
    D9D_TRY_OR(st, d9d_buf_append(&text, "\n", 1), out);
    D9D_TRY_OR(st, d9d_json_checksum_append(&text), out);
    D9D_TRY_OR(st, d9di_shard_unit_path(opts->dir, s->input_split, s->unit, ".json", &path), out);
    st = d9d_fs_write_atomic(path, text.data, text.len);
out:
    free(path);
    d9d_buf_release(&text);
    json_decref(root);
    return st;
}

/* --- reading ---------------------------------------------------------------------------------- */

static d9d_status get_hash(const json_t *v, const char *where, const char *key, d9d_hash *out)
{
    const char *hex;

    D9D_TRY(d9d_json_get_str(v, where, key, &hex));
    return d9d_hash_parse(hex, out);
}

static d9d_status read_splits(const json_t *root, const char *where,
                              const d9di_shard_unit_opts *opts, d9di_shard_unit_state *s)
{
    int64_t *numbers = (int64_t *)s->split, samples = 0;
    json_t *list;
    size_t i;

    D9D_TRY(d9d_json_get_arr(root, where, "splits", &list));
    if (json_array_size(list) != opts->n_splits * SPLIT_NUMBERS)
        return D9D_FAIL(D9D_EFORMAT, "%s: splits: has %zu numbers, must have %zu", where,
                        json_array_size(list), opts->n_splits * SPLIT_NUMBERS);
    for (i = 0; i < json_array_size(list); i++) {
        numbers[i] = json_integer_value(json_array_get(list, i));
        if (numbers[i] < 0 || numbers[i] > INT64_MAX / 65536)
            return D9D_FAIL(D9D_EFORMAT, "%s: splits[%zu]: is %lld", where, i,
                            (long long)numbers[i]);
    }
    for (i = 0; i < opts->n_splits; i++)
        samples += s->split[i].samples;
    if (samples != s->samples)
        return D9D_FAIL(D9D_EFORMAT, "%s: splits have %lld sample%s, the unit %lld", where,
                        (long long)samples, D9D_PLURAL(samples), (long long)s->samples);
    return D9D_OK;
}

static d9d_status read_shard(const json_t *v, const char *where, bool has_fields,
                             struct d9di_shard_unit_shard *x)
{
    *x = (struct d9di_shard_unit_shard){.tokens = 0};
    D9D_TRY(d9d_json_get_i64(v, where, "tokens", 1, INT64_MAX / 65536, &x->tokens));
    D9D_TRY(get_hash(v, where, "hash", &x->hash));
    D9D_TRY(get_hash(v, where, "labels_hash", &x->labels_hash));
    if (!has_fields)
        return D9D_OK;
    D9D_TRY(d9d_json_get_i64(v, where, "documents", 1, INT64_MAX / 65536, &x->documents));
    D9D_TRY(d9d_json_get_i64(v, where, "fields_bytes", 1, INT64_MAX / 65536, &x->fields_bytes));
    D9D_TRY(get_hash(v, where, "documents_hash", &x->documents_hash));
    return get_hash(v, where, "fields_hash", &x->fields_hash);
}

static d9d_status read_longest(const json_t *root, const char *where, size_t n,
                               d9di_shard_unit_state *s)
{
    json_t *list;

    if (n == 0)
        return D9D_OK;
    D9D_TRY(d9d_json_get_arr(root, where, "longest", &list));
    if (json_array_size(list) != n)
        return D9D_FAIL(D9D_EFORMAT, "%s: longest: has %zu numbers, must have %zu", where,
                        json_array_size(list), n);
    for (size_t i = 0; i < n; i++)
        s->longest[i] = json_integer_value(json_array_get(list, i));
    return D9D_OK;
}

/* Units of older versions have none. */
static d9d_status read_ranges(const json_t *root, const char *where,
                              const d9di_shard_unit_opts *opts, d9di_shard_unit_state *s)
{
    const json_t *list = json_object_get(root, "ranges");
    const size_t n = opts->fields.n, all = opts->n_splits * (n + 1);

    s->ranged = json_array_size(list) == all;
    for (size_t i = 0; s->ranged && i < all; i++) {
        d9di_field_ranges *r = &s->ranges[i / (n + 1)];

        D9D_TRY(d9di_field_range_parse(json_array_get(list, i), where,
                                       i % (n + 1) < n ? &r->field[i % (n + 1)] : &r->label));
    }
    return D9D_OK;
}

static d9d_status read_lists(const json_t *root, const char *where,
                             const d9di_shard_unit_opts *opts, d9di_shard_unit_state *s)
{
    json_t *list;
    size_t i;

    D9D_TRY(d9d_json_get_arr(root, where, "shards", &list));
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        struct d9di_shard_unit_shard x;

        D9D_TRY(read_shard(v, where, opts->fields.n > 0, &x));
        D9D_TRY(D9D_VEC_PUSH(&s->shards, x));
    }
    D9D_TRY(d9d_json_get_arr(root, where, "ended", &list));
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        struct d9di_document_source_end x;

        D9D_TRY(d9d_json_get_i64(v, where, "source", 0, INT64_MAX, &x.source));
        D9D_TRY(d9d_json_get_i64(v, where, "bytes", 0, INT64_MAX, &x.bytes));
        D9D_TRY(D9D_VEC_PUSH(&s->source_ends, x));
    }
    return D9D_OK;
}

d9d_status d9di_shard_unit_check_sum(const json_t *root, const char *where, const char *name,
                                     const d9d_buf *text)
{
    const char *schema;

    D9D_TRY(d9d_json_get_str(root, where, "schema", &schema));
    if (strlen(schema) > 3 && strcmp(schema + strlen(schema) - 3, ".v1") == 0)
        return d9d_json_check_schema(root, where, name, 1);
    D9D_TRY(d9d_json_check_schema(root, where, name, 2));
    return d9d_json_checksum_verify(where, text->data, text->len);
}

/* Reads the hashes of the spools; v1 had none. */
static d9d_status read_hashes(const json_t *root, const char *where, d9di_shard_unit_state *s)
{
    s->hashed = json_object_get(root, "records_hash") != NULL;
    if (!s->hashed)
        return D9D_OK;
    D9D_TRY(get_hash(root, where, "records_hash", &s->records_hash));
    return get_hash(root, where, "segments_hash", &s->segments_hash);
}

/* Reads the bad records; units of 0.1 have none. */
static d9d_status read_skipped(const json_t *root, const char *where, d9di_shard_unit_state *s)
{
    const json_t *passed = json_object_get(root, "passed");

    if (!passed)
        return D9D_OK;
    D9D_TRY(d9d_json_get_i64(passed, where, "source", 0, INT64_MAX, &s->lines_read.source));
    D9D_TRY(d9d_json_get_i64(passed, where, "lines", 0, INT64_MAX / 65536, &s->lines_read.lines));
    D9D_TRY(d9di_skipped_counts_parse(json_object_get(root, "skipped_counts"), where,
                                      s->documents.skipped));
    return d9di_skipped_list_parse(json_object_get(root, "skipped"), where, &s->skipped);
}

static d9d_status read_state(const json_t *root, const char *where, const d9d_buf *text,
                             const d9di_shard_unit_opts *opts, d9di_shard_unit_state *s)
{
    d9d_hash job;
    size_t i;

    D9D_TRY(d9di_shard_unit_check_sum(root, where, "unit", text));
    D9D_TRY(read_hashes(root, where, s));
    D9D_TRY(get_hash(root, where, "job", &job));
    if (!d9d_hash_equal(job, opts->job))
        return D9D_FAIL(D9D_EMISMATCH, "%s: is of other inputs or options", where);
    for (i = 0; i < N_FIELDS; i++)
        D9D_TRY(d9d_json_get_i64(root, where, fields[i].name, -1, INT64_MAX / 65536,
                                 (int64_t *)(void *)((char *)s + fields[i].offset)));
    D9D_TRY(read_splits(root, where, opts, s));
    D9D_TRY(read_skipped(root, where, s));
    D9D_TRY(read_longest(root, where, opts->fields.n, s));
    D9D_TRY(read_ranges(root, where, opts, s));
    return read_lists(root, where, opts, s);
}

d9d_status d9di_shard_unit_state_read(const d9di_shard_unit_opts *opts, int64_t input_split,
                                      int64_t unit, d9di_shard_unit_state *out)
{
    d9d_buf text = {0};
    json_t *root = NULL;
    char *path = NULL;
    d9d_status st;

    memset(out, 0, sizeof(*out));
    D9D_TRY(d9di_shard_unit_path(opts->dir, input_split, unit, ".json", &path));
    D9D_TRY_OR(st, d9d_fs_read(path, UINT64_C(64) << 20, &text), out);
    D9D_TRY_OR(st, d9d_json_parse(path, text.data ? text.data : "", text.len, &root), out);
    D9D_TRY_OR(st, read_state(root, path, &text, opts, out), out);
    if (out->input_split != input_split || out->unit != unit || out->samples < 0 ||
        out->segments < 0)
        st = D9D_FAIL(D9D_EFORMAT, "%s: says that it is unit %lld of input split %lld", path,
                      (long long)out->unit, (long long)out->input_split);
out:
    free(path);
    d9d_buf_release(&text);
    json_decref(root);
    if (st != D9D_OK)
        d9di_shard_unit_state_release(out);
    return st;
}
