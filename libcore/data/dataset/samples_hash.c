/* samples_hash.c - what a dataset's samples are, as one hash.  See data/dataset/dataset_manifest.h.
 */
#include <string.h>

#include "data/dataset/dataset_manifest.h"

static d9d_status put_format(const d9di_dataset_manifest *m, d9d_buf *out)
{
    char tokenizer[D9D_HASH_HEX] = "none";

    if (m->has_tokenizer)
        d9d_hash_hex(m->tokenizer_hash, tokenizer);
    return d9d_buf_printf(
        out, "d9d.samples.v1 wide=%d labels=%d packed=%d record=%lld tokenizer=%s\n", m->wide,
        m->labels, m->recipe.pack > 0, (long long)m->recipe.record_documents, tokenizer);
}

static d9d_status put_splits(const d9di_dataset_manifest *m, d9d_buf *out)
{
    for (size_t i = 0; i < m->n_splits; i++)
        D9D_TRY(d9d_buf_printf(out, "split %zu:%s %lld %lld\n", strlen(m->splits[i].name),
                               m->splits[i].name, (long long)m->splits[i].first,
                               (long long)m->splits[i].samples));
    for (size_t i = 0; i < m->n_edges; i++)
        D9D_TRY(d9d_buf_printf(out, "edge %lld\n", (long long)m->edges[i]));
    return D9D_OK;
}

/* What of a declaration decides values, their shapes or the padding of a batch. */
static d9d_status put_fields(const d9di_dataset_manifest *m, d9d_buf *out)
{
    for (size_t i = 0; i < m->fields.n; i++) {
        const d9d_field *f = &m->fields.v[i];

        D9D_TRY(d9d_buf_printf(out, "field %zu:%s %s %s ragged=%d padding=%d pad=%.17g shape",
                               strlen(f->name), f->name, d9d_dtype_safetensors(f->dtype),
                               d9d_field_per_names[f->per], f->ragged, (int)f->padding, f->pad));
        for (int k = 0; k < f->rank; k++)
            D9D_TRY(d9d_buf_printf(out, " %lld", (long long)f->shape[k]));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return D9D_OK;
}

/* "tokens-00000.bin", but not the tokenizer's files or the list of bad records. */
static bool has_samples(const char *name)
{
    static const char *const heads[] = {"index.lmdb", "tokens-", "labels-", "fields-",
                                        "documents-"};

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

static d9d_status put_files(const d9di_dataset_manifest *m, d9d_buf *out)
{
    for (size_t i = 0; i < m->n_files; i++) {
        char hex[D9D_HASH_HEX];

        if (!has_samples(m->files[i].name))
            continue;
        d9d_hash_hex(m->files[i].hash, hex);
        D9D_TRY(d9d_buf_printf(out, "file %s %s\n", m->files[i].name, hex));
    }
    return D9D_OK;
}

d9d_status d9di_dataset_manifest_samples_hash(const d9di_dataset_manifest *m, d9d_hash *out)
{
    static d9d_status (*const parts[])(const d9di_dataset_manifest *m, d9d_buf *out) = {
        put_format, put_splits, put_fields, put_files};
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && st == D9D_OK; i++)
        st = parts[i](m, &text);
    if (st == D9D_OK)
        *out = d9d_hash_bytes(text.data, text.len);
    d9d_buf_release(&text);
    return st;
}
