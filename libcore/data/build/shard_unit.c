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
    d9di_out_file tokens, labels, records, segments;
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
    if (s)
        s->hash = d9di_out_file_hash(&u->tokens);
    if (s && u->state.labels == 1)
        s->labels_hash = d9di_out_file_hash(&u->labels);
    return D9D_OK;
}

static d9d_status begin_shard(d9di_shard_unit *u)
{
    const d9di_shard_unit_state *s = &u->state;
    char end[32];

    D9D_TRY(close_shard(u));
    snprintf(end, sizeof(end), ".tokens-%03zu", s->shards.len);
    D9D_TRY(create_file(u, end, &u->tokens));
    snprintf(end, sizeof(end), ".labels-%03zu", s->shards.len);
    if (s->labels == 1)
        D9D_TRY(create_file(u, end, &u->labels));
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

static d9d_status write_record(d9di_shard_unit *u, size_t split, uint32_t key, size_t n,
                               const uint32_t *segments, size_t n_segments)
{
    const int64_t length = (int64_t)n - (u->state.labels ? 0 : (int64_t)n_segments);
    const struct d9di_shard_unit_record r = {
        .split = (uint32_t)split,
        .shard = (uint32_t)u->state.shards.len - 1,
        .bucket = d9di_dataset_length_bucket(u->opts.edges, u->opts.n_edges, length),
        .stored = (uint32_t)n,
        .offset = (uint64_t)current_shard(u)->tokens,
        .n_segments = (uint32_t)n_segments,
        .key = key,
    };

    D9D_TRY(d9di_out_file_write(&u->records, &r, sizeof(r)));
    if (n_segments > 1) {
        D9D_TRY(d9di_out_file_write(&u->segments, segments, n_segments * sizeof(*segments)));
        u->state.segments += (int64_t)n_segments;
    }
    u->state.samples++;
    d9di_shard_split_stats_add(&u->state.split[split], length, (int64_t)n_segments);
    return D9D_OK;
}

d9d_status d9di_shard_unit_add(d9di_shard_unit *u, size_t split, uint32_t key,
                               const uint32_t *tokens, const int32_t *labels, size_t n,
                               const uint32_t *segments, size_t n_segments)
{
    const uint64_t elem = u->opts.wide ? 4 : 2;
    const struct d9di_shard_unit_shard *s = current_shard(u);

    u->state.labels = labels ? 1 : 0;
    if (!s || (s->tokens > 0 && ((uint64_t)s->tokens + n) * elem > u->opts.shard_bytes))
        D9D_TRY(begin_shard(u));
    if (u->opts.find_bound)
        update_bound(u, tokens, labels, n);
    D9D_TRY(write_tokens(u, tokens, n));
    if (labels)
        D9D_TRY(d9di_out_file_write(&u->labels, labels, n * sizeof(*labels)));
    D9D_TRY(write_record(u, split, key, n, segments, n_segments));
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
