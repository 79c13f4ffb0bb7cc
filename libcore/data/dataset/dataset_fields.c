/* dataset_fields.c - reads the fields of a sample. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/data/dataset/dataset_kind.h"
#include "data/dataset/dataset_private.h"

struct d9d_sample_fields {
    void *read[2];             /* owned bytes of the two files, or of a synthetic sample */
    size_t n;                  /* segments */
    d9d_field_values values[]; /* [n] */
};

static d9d_status fields_create(const d9d_dataset *ds, size_t n, d9d_sample_fields **out)
{
    d9d_sample_fields *f = calloc(1, sizeof(*f) + n * sizeof(f->values[0]));

    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for the fields of %zu documents", ds->dir, n);
    f->n = n;
    *out = f;
    return D9D_OK;
}

void d9d_sample_fields_close(d9d_sample_fields *f)
{
    if (f == NULL)
        return;
    free(f->read[0]);
    free(f->read[1]);
    free(f);
}

const d9d_field_values *d9d_sample_fields_get(const d9d_sample_fields *f, size_t segment)
{
    return &f->values[segment];
}

/* The sample's documents stand one behind the other. */
static d9d_status read_documents(const d9d_dataset *ds, const d9d_sample *s, d9d_sample_fields *f)
{
    const struct d9di_dataset_map *fields = &ds->fields[s->shard], *list = &ds->documents[s->shard];
    const size_t n = list->bytes / sizeof(struct d9di_field_document);
    const void *p;
    const struct d9di_field_document *documents;
    uint64_t token = s->offset;
    size_t first, i, size;

    D9D_TRY(d9di_dataset_map_get(list, 0, list->bytes, &f->read[0], &p));
    documents = p;
    D9D_TRY(
        d9di_field_document_find(documents, n, fields->bytes, token, list->path, &first, &size));
    if (f->n > n - first)
        return D9D_FAIL(D9D_EFORMAT, "%s: ends in the documents of sample %lld", list->path,
                        (long long)s->number);
    /* All bytes from the first document on: of a mapped file that costs nothing. */
    size = fields->data != NULL || first + f->n == n
               ? fields->bytes - documents[first].byte
               : documents[first + f->n].byte - documents[first].byte;
    if (size > fields->bytes - documents[first].byte)
        return D9D_FAIL(D9D_EFORMAT, "%s: documents are out of order at token %llu", list->path,
                        (unsigned long long)token);
    D9D_TRY(d9di_dataset_map_get(fields, documents[first].byte, size, &f->read[1], &p));
    for (size_t k = 0; k < f->n; k++) {
        const uint32_t stored = s->segments[k];
        const uint64_t begin = documents[first].byte;

        D9D_TRY(
            d9di_field_document_find(documents, n, fields->bytes, token, list->path, &i, &size));
        if (i != first + k || documents[i].byte < begin)
            return D9D_FAIL(D9D_EFORMAT, "%s: documents are out of order at token %llu", list->path,
                            (unsigned long long)token);
        D9D_TRY(d9d_field_values_find(ds->manifest.fields,
                                      (const char *)p + (documents[i].byte - begin), size, stored,
                                      fields->path, &f->values[k]));
        token += stored;
    }
    return D9D_OK;
}

static d9d_status synthesize(const d9d_dataset *ds, const d9d_sample *s, d9d_sample_fields *f)
{
    const d9d_field_list list = ds->manifest.fields;
    void *values[D9D_FIELDS_MAX];
    uint64_t bytes[D9D_FIELDS_MAX], total = 0;
    char *p;

    for (size_t i = 0; i < list.n; i++) {
        f->values[0].rows[i] = list.v[i].per == D9D_FIELD_PER_SAMPLE ? 1 : s->length;
        if (!d9d_checked_mul_u64((uint64_t)f->values[0].rows[i], d9d_field_bytes(&list.v[i]),
                                 &bytes[i]) ||
            !d9d_checked_add_u64(total, (bytes[i] + 7) / 8 * 8, &total))
            return D9D_FAIL(D9D_ENOMEM, "%s: the fields of %lld positions", ds->dir,
                            (long long)s->length);
    }
    p = f->read[0] = calloc(1, total + 1);
    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %llu bytes of fields", ds->dir,
                        (unsigned long long)total);
    for (size_t i = 0; i < list.n; p += (bytes[i] + 7) / 8 * 8, i++)
        f->values[0].data[i] = values[i] = p;
    D9D_TRY(D9D_PLUGIN_CALL(ds->kind->table->name, ds->kind, fields, ds->self, s->number, s->length,
                            values));
    for (size_t i = 0; i < list.n; i++) {
        const int64_t bad = list.v[i].allow_nan ? -1
                                                : d9di_field_find_nonfinite(&list.v[i], values[i],
                                                                            f->values[0].rows[i]);

        if (bad >= 0)
            return D9D_FAIL(D9D_EINVAL,
                            "%s: sample %lld: element %lld of the field \"%s\" is NaN or infinite",
                            ds->dir, (long long)s->number, (long long)bad, list.v[i].name);
    }
    return D9D_OK;
}

d9d_status d9d_sample_fields_open(const d9d_dataset *ds, const d9d_sample *s,
                                  d9d_sample_fields **out)
{
    d9d_sample_fields *f = NULL;
    d9d_status st;

    D9D_TRY(fields_create(ds, ds->kind != NULL ? 1 : s->n_segments, &f));
    if (ds->kind != NULL) {
        st = synthesize(ds, s, f);
    } else {
        st = read_documents(ds, s, f);
        if (st == D9D_OK)
            st = d9di_sample_check_not_truncated(ds, s);
    }
    if (st == D9D_OK)
        *out = f;
    else
        d9d_sample_fields_close(f);
    return st;
}
