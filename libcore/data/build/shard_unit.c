/* shard_unit.c - see shard_unit.h. */
#include "data/build/shard_unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/build/shard_unit_private.h"
#include "data/dataset/dataset_private.h"
#include "data/io/out_file.h"

/* --- a unit -------------------------------------------------------------------------------- */

struct d9di_shard_unit {
    d9di_shard_unit_opts opts;
    d9di_shard_unit_state state;
    d9di_out_file tokens, labels, fields, documents, records, segments;
};

d9d_status d9di_shard_unit_path(const char *dir, int64_t input_split, int64_t unit, const char *end,
                                char **out)
{
    if (asprintf(out, "%s/unit-%05lld-%04lld%s", dir, (long long)input_split, (long long)unit,
                 end) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    return D9D_OK;
}

static d9d_status create_file(const d9di_shard_unit *u, const char *end, d9di_out_file *out)
{
    char *path = NULL;
    d9d_status st;

    D9D_TRY(d9di_shard_unit_path(u->opts.dir, u->state.input_split, u->state.unit, end, &path));
    st = d9di_out_file_create(out, path);
    free(path);
    return st;
}

d9d_status d9di_shard_unit_create(const d9di_shard_unit_opts *opts, int64_t input_split,
                                  int64_t unit, d9di_shard_unit **out)
{
    d9di_shard_unit *u = calloc(1, sizeof(*u));
    d9d_status st;

    if (!u)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", opts->dir);
    u->opts = *opts;
    u->state.input_split = input_split;
    u->state.unit = unit;
    u->state.labels = -1;
    u->state.ranged = true;
    D9D_TRY_OR(st, create_file(u, ".records", &u->records), out);
    D9D_TRY_OR(st, create_file(u, ".segments", &u->segments), out);
    *out = u;
    u = NULL;
out:
    d9di_shard_unit_free(u);
    return st;
}

void d9di_shard_unit_free(d9di_shard_unit *u)
{
    if (!u)
        return;
    d9di_out_file_release(&u->tokens);
    d9di_out_file_release(&u->labels);
    d9di_out_file_release(&u->fields);
    d9di_out_file_release(&u->documents);
    d9di_out_file_release(&u->records);
    d9di_out_file_release(&u->segments);
    d9di_shard_unit_state_release(&u->state);
    free(u);
}

d9di_shard_unit_state *d9di_shard_unit_get_state(d9di_shard_unit *u)
{
    return &u->state;
}

/* --- adding -------------------------------------------------------------------------------- */

static struct d9di_shard_unit_shard *current_shard(d9di_shard_unit *u)
{
    return u->state.shards.len ? &u->state.shards.data[u->state.shards.len - 1] : NULL;
}

static d9d_status close_shard(d9di_shard_unit *u)
{
    struct d9di_shard_unit_shard *s = current_shard(u);

    D9D_TRY(d9di_out_file_close(&u->tokens));
    D9D_TRY(d9di_out_file_close(&u->labels));
    D9D_TRY(d9di_out_file_close(&u->fields));
    D9D_TRY(d9di_out_file_close(&u->documents));
    if (s && u->opts.fields.n > 0) {
        s->fields_hash = d9di_out_file_hash(&u->fields);
        s->documents_hash = d9di_out_file_hash(&u->documents);
    }
    if (s)
        s->hash = d9di_out_file_hash(&u->tokens);
    if (s && u->state.labels == 1)
        s->labels_hash = d9di_out_file_hash(&u->labels);
    return D9D_OK;
}

static d9d_status begin_shard(d9di_shard_unit *u)
{
    const struct {
        const char *kind;
        bool has;
        d9di_out_file *file;
    } files[] = {{"tokens", true, &u->tokens},
                 {"labels", u->state.labels == 1, &u->labels},
                 {"fields", u->opts.fields.n > 0, &u->fields},
                 {"documents", u->opts.fields.n > 0, &u->documents}};

    D9D_TRY(close_shard(u));
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char end[32];

        (void)snprintf(end, sizeof(end), ".%s-%03zu", files[i].kind, u->state.shards.len);
        if (files[i].has)
            D9D_TRY(create_file(u, end, files[i].file));
    }
    return D9D_VEC_PUSH(&u->state.shards, (struct d9di_shard_unit_shard){.tokens = 0});
}

static void update_bound(d9di_shard_unit *u, const uint32_t *tokens, const int32_t *labels,
                         size_t n)
{
    uint32_t max_id = 0;
    size_t i;

    for (i = 0; i < n; i++)
        max_id = tokens[i] > max_id ? tokens[i] : max_id;
    for (i = 0; labels && i < n; i++)
        if (labels[i] > (int32_t)max_id)
            max_id = (uint32_t)labels[i];
    if (n > 0 && (int64_t)max_id >= u->state.bound)
        u->state.bound = (int64_t)max_id + 1;
}

static d9d_status write_tokens(d9di_shard_unit *u, const uint32_t *tokens, size_t n)
{
    uint16_t *narrow;
    size_t i;

    if (u->opts.wide)
        return d9di_out_file_write(&u->tokens, tokens, n * sizeof(*tokens));
    D9D_TRY(d9d_buf_reserve(&u->tokens.buf, n * sizeof(*narrow)));
    narrow = (uint16_t *)(void *)(u->tokens.buf.data +
                                  u->tokens.buf.len); /* the length is even, so this is aligned */
    for (i = 0; i < n; i++)
        narrow[i] = (uint16_t)tokens[i];
    u->tokens.buf.len += n * sizeof(*narrow);
    return d9di_out_file_flush_if_full(&u->tokens);
}

void d9di_shard_split_stats_add(d9di_shard_split_stats *s, int64_t length, int64_t n_segments)
{
    s->samples++;
    s->segments += n_segments;
    s->positions += length;
    s->longest = length > s->longest ? length : s->longest;
    s->lengths[63 - __builtin_clzll((unsigned long long)length)]++;
}

static void count_field(d9di_shard_unit *u, size_t split, size_t k, const void *data, int64_t rows)
{
    const d9d_field *f = &u->opts.fields.v[k];

    if (f->ragged && rows > u->state.longest[k])
        u->state.longest[k] = rows;
    d9di_field_range_add(&u->state.ranges[split].field[k], f, data, rows);
}

/* Writes the values of the sample's documents, and where they are. */
static d9d_status write_fields(d9di_shard_unit *u, const d9di_shard_sample *s)
{
    struct d9di_shard_unit_shard *to = current_shard(u);
    struct d9di_field_document at = {(uint64_t)to->tokens, (uint64_t)to->fields_bytes};
    const char *from = s->all.fields;

    for (size_t i = 0; i < s->n_segments && u->opts.fields.n > 0; i++) {
        d9d_field_values v;

        D9D_TRY(d9d_field_values_find(u->opts.fields, from, s->fields[i], s->segments[i],
                                      u->opts.dir, &v));
        for (size_t k = 0; k < u->opts.fields.n; k++)
            count_field(u, s->split, k, v.data[k], v.rows[k]);
        D9D_TRY(d9di_out_file_write(&u->documents, &at, sizeof(at)));
        D9D_TRY(d9di_out_file_write(&u->fields, from, s->fields[i]));
        at.token += s->segments[i];
        at.byte += s->fields[i];
        from += s->fields[i];
        to->documents++;
    }
    to->fields_bytes = (int64_t)at.byte;
    return D9D_OK;
}

static d9d_status write_record(d9di_shard_unit *u, const d9di_shard_sample *s)
{
    const size_t n = s->all.n, n_segments = s->n_segments;
    const int64_t length = (int64_t)n - (u->state.labels ? 0 : (int64_t)n_segments);
    const struct d9di_shard_unit_record r = {
        .split = (uint32_t)s->split,
        .shard = (uint32_t)u->state.shards.len - 1,
        .bucket = d9di_dataset_length_bucket(u->opts.edges, u->opts.n_edges, length),
        .stored = (uint32_t)n,
        .offset = (uint64_t)current_shard(u)->tokens,
        .n_segments = (uint32_t)n_segments,
        .key = s->key,
    };

    D9D_TRY(d9di_out_file_write(&u->records, &r, sizeof(r)));
    if (n_segments > 1) {
        D9D_TRY(d9di_out_file_write(&u->segments, s->segments, n_segments * sizeof(*s->segments)));
        u->state.segments += (int64_t)n_segments;
    }
    u->state.samples++;
    d9di_shard_split_stats_add(&u->state.split[s->split], length, (int64_t)n_segments);
    return D9D_OK;
}

/* True if the document would make the shard larger than it may be. */
static bool overflows_shard(const d9di_shard_unit *u, const struct d9di_shard_unit_shard *s,
                            const d9di_shard_document *d)
{
    const uint64_t elem = u->opts.wide ? 4 : 2;

    return s->tokens > 0 && (((uint64_t)s->tokens + d->n) * elem > u->opts.shard_bytes ||
                             (uint64_t)s->fields_bytes + d->fields_bytes > u->opts.shard_bytes);
}

d9d_status d9di_shard_unit_add(d9di_shard_unit *u, const d9di_shard_sample *sample)
{
    const uint32_t *tokens = sample->all.tokens;
    const int32_t *labels = sample->all.labels;
    const size_t n = sample->all.n;

    u->state.labels = labels ? 1 : 0;
    if (!current_shard(u) || overflows_shard(u, current_shard(u), &sample->all))
        D9D_TRY(begin_shard(u));
    if (u->opts.find_bound)
        update_bound(u, tokens, labels, n);
    D9D_TRY(write_tokens(u, tokens, n));
    if (labels) {
        d9di_field_range_add_i32(&u->state.ranges[sample->split].label, labels, n);
        D9D_TRY(d9di_out_file_write(&u->labels, labels, n * sizeof(*labels)));
    }
    D9D_TRY(write_fields(u, sample));
    D9D_TRY(write_record(u, sample));
    current_shard(u)->tokens += (int64_t)n;
    u->state.tokens += (int64_t)n;
    return D9D_OK;
}

d9d_status d9di_shard_unit_commit(d9di_shard_unit *u)
{
    D9D_TRY(close_shard(u));
    D9D_TRY(d9di_out_file_close(&u->records));
    D9D_TRY(d9di_out_file_close(&u->segments));
    u->state.records_hash = d9di_out_file_hash(&u->records);
    u->state.segments_hash = d9di_out_file_hash(&u->segments);
    return d9di_shard_unit_state_write(&u->opts, &u->state);
}

d9d_status d9di_shard_unit_check_file(const char *path, d9d_hash want)
{
    char have[D9D_HASH_HEX], sealed[D9D_HASH_HEX];
    uint64_t bytes;
    d9d_hash hash;

    D9D_TRY(d9d_hash_file(path, &hash, &bytes));
    if (d9d_hash_equal(hash, want))
        return D9D_OK;
    d9d_hash_hex(hash, have);
    d9d_hash_hex(want, sealed);
    return D9D_FAIL(D9D_EFORMAT, "%s: its hash is %s, it was written with %s", path, have, sealed);
}
