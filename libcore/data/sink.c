/* sink.c - see sink.h. */
#include "data/sink.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/dataset_private.h"
#include "data/sink_private.h"

enum { WRITE_BYTES = 1 << 20 };

/* --- files that are written through a buffer ------------------------------------------------- */

/* Open behind the first `at` bytes, which must be there. */
static d9d_status out_open(struct d9di_out *o, const char *dir, const char *name, int64_t at)
{
    char *path = NULL;
    uint64_t has = 0;
    d9d_status st;

    if (asprintf(&path, "%s/%s", dir, name) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    if (at > 0)
        D9D_TRY_OR(st, d9d_fs_size(path, &has), out);
    if (has < (uint64_t)at) {
        st = D9D_FAIL(D9D_EFORMAT, "%s: has %llu bytes, must have %lld", path,
                      (unsigned long long)has, (long long)at);
        goto out;
    }
    st = d9d_file_append(path, (uint64_t)at, &o->file);
    o->open = st == D9D_OK;
out:
    free(path);
    return st;
}

static d9d_status out_flush(struct d9di_out *o)
{
    if (o->open && o->buf.len > 0)
        D9D_TRY(d9d_file_write(&o->file, o->buf.data, o->buf.len));
    o->buf.len = 0;
    return D9D_OK;
}

static d9d_status out_put(struct d9di_out *o, const void *p, size_t n)
{
    D9D_TRY(d9d_buf_append(&o->buf, p, n));
    return o->buf.len >= WRITE_BYTES ? out_flush(o) : D9D_OK;
}

static d9d_status out_sync(struct d9di_out *o)
{
    D9D_TRY(out_flush(o));
    return o->open ? d9d_file_sync(&o->file) : D9D_OK;
}

static d9d_status out_close(struct d9di_out *o)
{
    D9D_TRY(out_flush(o));
    if (o->open)
        D9D_TRY(d9d_file_close(&o->file));
    o->open = false;
    return D9D_OK;
}

static void out_release(struct d9di_out *o)
{
    if (o->open)
        d9d_file_release(&o->file);
    o->open = false;
    d9d_buf_release(&o->buf);
}

/* --- opening ---------------------------------------------------------------------------------- */

static d9d_status open_shard(d9di_sink *s, int64_t shard, int64_t tokens)
{
    char name[32];

    snprintf(name, sizeof(name), "tokens-%05lld.bin", (long long)shard);
    D9D_TRY(out_open(&s->tokens, s->how.dir, name, tokens * (s->how.wide ? 4 : 2)));
    if (s->state.labels != 1)
        return D9D_OK;
    snprintf(name, sizeof(name), "labels-%05lld.bin", (long long)shard);
    return out_open(&s->labels, s->how.dir, name, tokens * 4);
}

static d9d_status open_spools(d9di_sink *s)
{
    size_t i;

    for (i = 0; i < s->how.n_splits; i++) {
        const d9di_split_state *split = &s->state.split[i];
        char name[48];

        snprintf(name, sizeof(name), "spool-%zu.records", i);
        D9D_TRY(out_open(&s->records[i], s->how.dir, name,
                         split->samples * (int64_t)sizeof(struct d9di_spooled)));
        snprintf(name, sizeof(name), "spool-%zu.segments", i);
        D9D_TRY(out_open(&s->segments[i], s->how.dir, name, split->segments * 4));
    }
    return D9D_OK;
}

static d9d_status open_all(d9di_sink *s)
{
    D9D_TRY(open_spools(s));
    return s->state.shard < 0 ? D9D_OK : open_shard(s, s->state.shard, s->state.shard_tokens);
}

d9d_status d9di_sink_open(const d9di_sink_how *how, const d9di_sink_state *from, d9di_sink **out)
{
    d9di_sink *s = calloc(1, sizeof(*s));
    d9d_status st;

    if (!s)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", how->dir);
    s->how = *how;
    s->state = (d9di_sink_state){.shard = -1, .labels = -1};
    if (from)
        s->state = *from;
    st = open_all(s);
    if (st != D9D_OK) {
        d9di_sink_close(s);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = s;
    return D9D_OK;
}

void d9di_sink_close(d9di_sink *s)
{
    size_t i;

    if (!s)
        return;
    out_release(&s->tokens);
    out_release(&s->labels);
    for (i = 0; i < D9DI_MAX_SPLITS; i++) {
        out_release(&s->records[i]);
        out_release(&s->segments[i]);
    }
    free(s);
}

/* --- adding ------------------------------------------------------------------------------------
 */

static d9d_status next_shard(d9di_sink *s)
{
    D9D_TRY(out_sync(&s->tokens));
    D9D_TRY(out_sync(&s->labels));
    D9D_TRY(out_close(&s->tokens));
    D9D_TRY(out_close(&s->labels));
    s->state.shard++;
    s->state.shard_tokens = 0;
    return open_shard(s, s->state.shard, 0);
}

static void note_bound(d9di_sink *s, const uint32_t *tokens, const int32_t *labels, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (tokens[i] >= s->state.bound)
            s->state.bound = (int64_t)tokens[i] + 1;
        if (labels && labels[i] >= s->state.bound)
            s->state.bound = (int64_t)labels[i] + 1;
    }
}

static d9d_status put_tokens(d9di_sink *s, const uint32_t *tokens, size_t n)
{
    size_t i;

    if (s->how.wide)
        return out_put(&s->tokens, tokens, n * sizeof(*tokens));
    D9D_TRY(d9d_buf_reserve(&s->tokens.buf, n * sizeof(uint16_t)));
    for (i = 0; i < n; i++) {
        const uint16_t t = (uint16_t)tokens[i];

        memcpy(s->tokens.buf.data + s->tokens.buf.len, &t, sizeof(t));
        s->tokens.buf.len += sizeof(t);
    }
    return out_put(&s->tokens, NULL, 0);
}

static d9d_status spool(d9di_sink *s, size_t split, size_t n, const uint32_t *segments,
                        size_t n_segments)
{
    const int64_t length = (int64_t)n - (s->state.labels ? 0 : (int64_t)n_segments);
    d9di_split_state *st = &s->state.split[split];
    const struct d9di_spooled r = {
        .shard = (uint32_t)s->state.shard,
        .bucket = d9di_bucket_of(s->how.edges, s->how.n_edges, length),
        .offset = (uint64_t)s->state.shard_tokens,
        .stored = (uint32_t)n,
        .n_segments = (uint32_t)n_segments,
        .segments_at = (uint64_t)st->segments,
    };

    D9D_TRY(out_put(&s->records[split], &r, sizeof(r)));
    D9D_TRY(out_put(&s->segments[split], segments, n_segments * sizeof(*segments)));
    st->samples++;
    st->segments += (int64_t)n_segments;
    st->positions += length;
    st->longest = length > st->longest ? length : st->longest;
    st->lengths[63 - __builtin_clzll((unsigned long long)length)]++;
    return D9D_OK;
}

d9d_status d9di_sink_add(d9di_sink *s, size_t split, const uint32_t *tokens, const int32_t *labels,
                         size_t n, const uint32_t *segments, size_t n_segments)
{
    const uint64_t elem = s->how.wide ? 4 : 2;

    s->state.labels = labels ? 1 : 0;
    if (s->state.shard < 0 || (s->state.shard_tokens > 0 &&
                               ((uint64_t)s->state.shard_tokens + n) * elem > s->how.shard_bytes))
        D9D_TRY(next_shard(s));
    note_bound(s, tokens, labels, n);
    D9D_TRY(put_tokens(s, tokens, n));
    if (labels)
        D9D_TRY(out_put(&s->labels, labels, n * sizeof(*labels)));
    D9D_TRY(spool(s, split, n, segments, n_segments));
    s->state.shard_tokens += (int64_t)n;
    s->state.tokens += (int64_t)n;
    return D9D_OK;
}

const d9di_sink_state *d9di_sink_at(const d9di_sink *s)
{
    return &s->state;
}

d9d_status d9di_sink_sync(d9di_sink *s)
{
    size_t i;

    D9D_TRY(out_sync(&s->tokens));
    D9D_TRY(out_sync(&s->labels));
    for (i = 0; i < s->how.n_splits; i++) {
        D9D_TRY(out_sync(&s->records[i]));
        D9D_TRY(out_sync(&s->segments[i]));
    }
    return d9d_fs_sync_dir(s->how.dir);
}
