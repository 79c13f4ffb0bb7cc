/* batch_fields.h - the named tensors of a loader's batches. */
#ifndef D9DI_DATA_LOADER_BATCH_FIELDS_H
#define D9DI_DATA_LOADER_BATCH_FIELDS_H

#include "d9d/data/loader/loader.h"

/* What batches carry: requests, and the field of each in every dataset. */
typedef struct d9di_loader_fields {
    d9d_arena arena;
    d9d_field_request *requests; /* [n] */
    const d9d_field **field;     /* [n] the first dataset's */
    size_t *index;               /* [sources, n] in each dataset's list */
    size_t n;
} d9di_loader_fields; /* zero-initialised: none */

d9d_status d9di_loader_fields_set(d9di_loader_fields *f, const d9d_loader_source *sources,
                                  size_t n_sources, const d9d_field_request *requests, size_t n);
/* EMISMATCH: a value is not below its request's limit, or a label none of the classes; 0: any. */
d9d_status d9di_loader_fields_check_values(const d9di_loader_fields *f,
                                           const d9d_loader_source *sources, size_t n_sources,
                                           int64_t classes);
void d9di_loader_fields_release(d9di_loader_fields *f);

struct d9di_batch_fields_row {
    const d9d_dataset *ds; /* NULL: skipped */
    int32_t source;
    const d9d_sample *sample;
    d9d_sample_fields *values;
};

/* Reusable memory of a batch's fields, and the samples that are being put into them. */
typedef struct d9di_batch_fields {
    D9D_VEC(struct d9di_batch_fields_row) rows;
    d9d_buf data[D9D_FIELDS_MAX];
    D9D_VEC(int32_t) counts[D9D_FIELDS_MAX];
    d9d_batch_field list[D9D_FIELDS_MAX];
} d9di_batch_fields;
/* Adds the next sequence's sample, which stays the caller's. */
d9d_status d9di_batch_fields_add(d9di_batch_fields *to, const d9d_dataset *ds, int32_t source,
                                 const d9d_sample *sample);
/* Makes the fields of the batch, whose sequences were added; then clear. */
d9d_status d9di_batch_fields_fill(const d9di_loader_fields *f, d9d_batch *b, d9di_batch_fields *to);
/* Takes the labels away that requests drop; returns their number. */
int64_t d9di_batch_fields_drop_labels(const d9di_loader_fields *f, const d9d_batch *b,
                                      d9di_batch_fields *from, int32_t *labels);
void d9di_batch_fields_clear(d9di_batch_fields *to);
void d9di_batch_fields_release(d9di_batch_fields *to);

d9d_status d9di_batch_fields_plan(const d9di_loader_fields *f, const d9d_field_request *requests,
                                  size_t n, d9d_arena *a, d9d_batch *b);

#endif
