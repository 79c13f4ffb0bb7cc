/* document_index.c - see engine/document_index.h. */
#include "engine/document_index.h"

#include "d9d/base/mem.h"
#include "d9d/data/loader/pooling.h"
#include "d9d/model/model.h"

/* The arrays on the host. */
typedef struct document_arrays {
    int64_t n, width; /* documents; documents of a record */
    int32_t *offset, *labels;
    float *targets, *counts, *records;
} document_arrays;

static d9d_status arrays_alloc(int64_t n, int64_t width, d9d_arena *a, document_arrays *out)
{
    const size_t count = (size_t)n;

    *out = (document_arrays){.n = n,
                             .width = width,
                             .offset = d9d_arena_alloc(a, (count + 1) * sizeof(int32_t)),
                             .labels = d9d_arena_alloc(a, count * sizeof(int32_t)),
                             .targets = d9d_arena_alloc(a, count * sizeof(float)),
                             .counts = d9d_arena_alloc(a, count * sizeof(float)),
                             .records = d9d_arena_alloc(a, count * sizeof(float))};
    if (out->offset == NULL || out->labels == NULL || out->targets == NULL || out->counts == NULL ||
        out->records == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a list of %lld documents", (long long)n);
    return D9D_OK;
}

static void arrays_fill(const d9d_batch *b, bool counts, document_arrays *out)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    int64_t i = 0;

    for (; d9d_batch_next_document(b, &d); i++) {
        const int64_t targets = d9d_batch_count_targets(b, &d);

        out->offset[i] = (int32_t)(i == 0 ? 0 : d.seq * b->length + d.first);
        out->targets[i] = targets > 0 ? (float)targets : 1.0f;
        out->counts[i] = counts && targets > 0 ? 1.0f : 0.0f;
    }
    for (; i < out->n; i++) {
        out->offset[i] = (int32_t)(b->seqs * b->length);
        out->targets[i] = 1.0f;
        out->counts[i] = 0.0f;
    }
    out->offset[out->n] = (int32_t)(b->seqs * b->length);
    for (i = 0; i < out->n / out->width; i++) {
        const float *present = out->counts + i * out->width;

        out->records[i] = out->width == 2 ? present[0] * present[1] : present[0] + present[1];
        out->labels[i] = out->records[i] > 0 ? (int32_t)i : D9D_IGNORE_INDEX;
    }
}

static d9d_status arrays_upload(d9d_device *dev, const document_arrays *h,
                                d9d_op_document_index *out)
{
    const struct {
        d9d_dtype dtype;
        d9d_shape shape;
        const void *host;
        d9d_tensor *device;
    } rows[] = {{D9D_I32, D9D_SHAPE(h->n + 1), h->offset, &out->offset},
                {D9D_F32, D9D_SHAPE(h->n, 1), h->targets, &out->targets},
                {D9D_F32, D9D_SHAPE(h->n, 1), h->counts, &out->counts},
                {D9D_F32, D9D_SHAPE(h->n / h->width, 1), h->records, &out->records},
                {D9D_I32, D9D_SHAPE(h->n / h->width), h->labels, &out->labels}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        D9D_TRY(
            d9d_tensor_from_host(dev, rows[i].dtype, rows[i].shape, rows[i].host, rows[i].device));
    return D9D_OK;
}

d9d_status d9di_document_index_make(d9d_device *dev, const d9d_batch *b, int64_t width, bool counts,
                                    d9d_op_document_index *out)
{
    const int64_t n = (d9d_batch_count_documents(b) + width - 1) / width * width;
    d9d_arena a = {0};
    document_arrays h;
    d9d_status st;

    D9D_TRY_OR(st, arrays_alloc(n > 0 ? n : width, width, &a, &h), out);
    arrays_fill(b, counts, &h);
    st = arrays_upload(dev, &h, out);
out:
    d9d_arena_release(&a);
    return st;
}
