/* megatron.c - reads Megatron-LM's token files. */
#include "data/dataset/megatron.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "data/dataset/megatron_format.h"

struct d9di_megatron {
    d9d_file bin, idx;
    uint64_t bin_bytes;
    int type;
    uint64_t sequences, bounds;
    uint64_t lengths_at, pointers_at, documents_at; /* offsets in the .idx file */
};

const size_t d9di_megatron_sizes[D9DI_MEGATRON_TYPES] = {
    [1] = 1, [2] = 1, [3] = 2, [4] = 4, [5] = 8, [8] = 2};

/* --- opening ------------------------------------------------------------------------------- */

/* Makes both NAME.bin and NAME.idx from either. */
static d9d_status name_pair(const char *path, char *names[2])
{
    const size_t n = strlen(path);

    names[0] = names[1] = NULL;
    if (n < 5 || (strcmp(path + n - 4, ".bin") != 0 && strcmp(path + n - 4, ".idx") != 0))
        return D9D_FAIL(D9D_ECONFIG, "%s: a Megatron input is NAME.bin, with NAME.idx beside it",
                        path);
    names[0] = strdup(path);
    names[1] = strdup(path);
    if (!names[0] || !names[1])
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    memcpy(names[0] + n - 4, ".bin", 4);
    memcpy(names[1] + n - 4, ".idx", 4);
    return D9D_OK;
}

static d9d_status open_pair(d9di_megatron *m, char *const names[2], uint64_t *idx_bytes)
{
    D9D_TRY(d9d_fs_size(names[0], &m->bin_bytes));
    D9D_TRY(d9d_file_open(names[0], &m->bin));
    D9D_TRY(d9d_fs_size(names[1], idx_bytes));
    return d9d_file_open(names[1], &m->idx);
}

static d9d_status check_pair(char *const names[2], const d9di_input_stat *seen)
{
    D9D_TRY(d9di_input_stream_check(names[0], &seen[0]));
    return d9di_input_stream_check(names[1], &seen[1]);
}

d9d_status d9di_megatron_stat(const char *path, d9di_input_stat seen[2])
{
    char *names[2];
    d9d_status st = name_pair(path, names);

    for (int i = 0; i < 2 && st == D9D_OK; i++)
        st = d9di_input_stream_stat(names[i], &seen[i]);
    free(names[0]);
    free(names[1]);
    return st;
}

d9d_status d9di_megatron_check(const char *path, const d9di_input_stat seen[2])
{
    char *names[2];
    d9d_status st = name_pair(path, names);

    if (st == D9D_OK)
        st = check_pair(names, seen);
    free(names[0]);
    free(names[1]);
    return st;
}

static d9d_status read_header(d9di_megatron *m, uint64_t bytes)
{
    struct d9di_megatron_header h;
    uint64_t want;

    D9D_TRY(d9d_file_read_at(&m->idx, &h, sizeof(h), 0));
    if (memcmp(h.magic, D9DI_MEGATRON_MAGIC, sizeof(h.magic)) != 0 || h.version != 1)
        return D9D_FAIL(D9D_EFORMAT, "%s: is no Megatron index of version 1", m->idx.path);
    if (h.type >= D9DI_MEGATRON_TYPES || d9di_megatron_sizes[h.type] == 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: tokens are of type %d, which is no integer type",
                        m->idx.path, h.type);
    m->type = h.type;
    m->sequences = h.sequences;
    m->bounds = h.bounds;
    m->lengths_at = sizeof(h);
    if (h.sequences > bytes || h.bounds > bytes || h.bounds == 0)
        want = UINT64_MAX;
    else
        want = sizeof(h) + h.sequences * 12 + h.bounds * 8;
    if (bytes < want) /* what follows, such as modes, is ignored */
        return D9D_FAIL(D9D_EFORMAT, "%s: has %llu bytes for %llu sequences and %llu bounds",
                        m->idx.path, (unsigned long long)bytes, (unsigned long long)h.sequences,
                        (unsigned long long)h.bounds);
    m->pointers_at = m->lengths_at + h.sequences * 4;
    m->documents_at = m->pointers_at + h.sequences * 8;
    return D9D_OK;
}

d9d_status d9di_megatron_open(const char *path, const d9di_input_stat *seen, d9di_megatron **out)
{
    d9di_megatron *m = calloc(1, sizeof(*m));
    char *names[2] = {NULL, NULL};
    uint64_t bytes = 0;
    d9d_status st;

    if (!m)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    m->bin.fd = m->idx.fd = -1;
    D9D_TRY_OR(st, name_pair(path, names), out);
    D9D_TRY_OR(st, open_pair(m, names, &bytes), out);
    if (seen)
        D9D_TRY_OR(st, check_pair(names, seen), out);
    D9D_TRY_OR(st, read_header(m, bytes), out);
    *out = m;
    m = NULL;
out:
    free(names[0]);
    free(names[1]);
    d9di_megatron_close(m);
    return st;
}

void d9di_megatron_close(d9di_megatron *m)
{
    if (!m)
        return;
    d9d_file_release(&m->bin);
    d9d_file_release(&m->idx);
    free(m);
}

int64_t d9di_megatron_documents(const d9di_megatron *m)
{
    return (int64_t)m->bounds - 1;
}

/* --- documents ----------------------------------------------------------------------------- */

static d9d_status read_sequence(const d9di_megatron *m, uint64_t s, size_t max_bytes, d9d_buf *out)
{
    const uint64_t size = d9di_megatron_sizes[m->type];
    int64_t at;
    int32_t n;
    uint64_t end;

    D9D_TRY(d9d_file_read_at(&m->idx, &n, sizeof(n), m->lengths_at + s * 4));
    D9D_TRY(d9d_file_read_at(&m->idx, &at, sizeof(at), m->pointers_at + s * 8));
    if (n < 0 || at < 0 || !d9d_checked_add_u64((uint64_t)at, (uint64_t)n * size, &end) ||
        end > m->bin_bytes)
        return D9D_FAIL(D9D_EFORMAT, "%s: sequence %llu: %d tokens at byte %lld of %llu",
                        m->idx.path, (unsigned long long)s, n, (long long)at,
                        (unsigned long long)m->bin_bytes);
    if ((uint64_t)n * size > max_bytes)
        return D9D_FAIL(D9D_EFORMAT, "%s: sequence %llu: a document of more than %zu bytes",
                        m->idx.path, (unsigned long long)s, max_bytes);
    D9D_TRY(d9d_buf_reserve(out, (size_t)n * size));
    D9D_TRY(d9d_file_read_at(&m->bin, out->data + out->len, (size_t)n * size, (uint64_t)at));
    out->len += (size_t)n * size;
    return D9D_OK;
}

d9d_status d9di_megatron_read(d9di_megatron *m, int64_t d, size_t max_bytes, d9d_buf *out)
{
    const char type = (char)m->type;
    const size_t before = out->len + 1;
    int64_t range[2], s;

    D9D_TRY(d9d_file_read_at(&m->idx, range, sizeof(range), m->documents_at + (uint64_t)d * 8));
    if (range[0] < 0 || range[1] < range[0] || (uint64_t)range[1] > m->sequences)
        return D9D_FAIL(D9D_EFORMAT, "%s: document %lld: sequences %lld to %lld of %llu",
                        m->idx.path, (long long)d, (long long)range[0], (long long)range[1],
                        (unsigned long long)m->sequences);
    D9D_TRY(d9d_buf_append(out, &type, 1));
    for (s = range[0]; s < range[1]; s++)
        D9D_TRY(read_sequence(m, (uint64_t)s, max_bytes - (out->len - before), out));
    return D9D_OK;
}

static int64_t read_element(int type, const char *p)
{
    uint64_t v = 0;

    memcpy(&v, p, d9di_megatron_sizes[type]);
    switch (type) {
    case 2: return (int8_t)v;
    case 3: return (int16_t)v;
    case 4: return (int32_t)v;
    default: return (int64_t)v;
    }
}

d9d_status d9di_megatron_ids(const char *raw, size_t n, uint32_t vocab, d9d_token_ids *ids,
                             int64_t *bad)
{
    const int type = (unsigned char)raw[0];
    const size_t size = d9di_megatron_sizes[type];
    size_t i;

    D9D_TRY(D9D_VEC_RESERVE(ids, (n - 1) / size));
    for (i = 1; i < n; i += size) {
        const int64_t v = read_element(type, raw + i);

        if (v < 0 || v >= (int64_t)vocab) {
            *bad = v;
            return D9D_EFORMAT;
        }
        ids->data[ids->len++] = (uint32_t)v;
    }
    return D9D_OK;
}
