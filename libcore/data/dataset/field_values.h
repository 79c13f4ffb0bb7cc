/* field_values.h - fields in a manifest and in working files. */
#ifndef D9DI_DATA_DATASET_FIELD_VALUES_H
#define D9DI_DATA_DATASET_FIELD_VALUES_H

#include "d9d/base/json.h"
#include "d9d/base/mem.h"
#include "d9d/data/dataset/field.h"

/* An entry of documents-NNNNN.bin. */
struct d9di_field_document {
    uint64_t token, byte;
};

/* Finds the document that begins at `token` among the n of a shard, whose values end at `bytes`.
 * *size: bytes of its values.  EFORMAT if there is none. */
d9d_status d9di_field_document_find(const struct d9di_field_document *documents, size_t n,
                                    uint64_t bytes, uint64_t token, const char *where,
                                    size_t *index, size_t *size);

/* Appends the values of one field of a document: `rows` rows, padded to a multiple of 8. */
d9d_status d9di_field_append(const d9d_field *f, const void *data, int64_t rows, d9d_buf *out);
/* Appends the values of tokens [from, from + n) of a document of `tokens` tokens. */
d9d_status d9di_field_slice(d9d_field_list list, const void *document, size_t bytes, int64_t tokens,
                            int64_t from, int64_t n, d9d_buf *out);
/* The index of the first element that is NaN or infinite; -1: none. */
int64_t d9di_field_find_nonfinite(const d9d_field *f, const void *data, int64_t rows);

/* Extends a range by the integers of `rows` rows, or of an array; a field of reals has none. */
void d9di_field_range_add(d9d_field_range *r, const d9d_field *f, const void *data, int64_t rows);
void d9di_field_range_add_i32(d9d_field_range *r, const int32_t *v, size_t n);
void d9di_field_range_merge(d9d_field_range *r, const d9d_field_range *other);
/* Those of every field and of the labels. */
typedef struct d9di_field_ranges {
    d9d_field_range field[D9D_FIELDS_MAX], label;
} d9di_field_ranges;
void d9di_field_ranges_merge(d9di_field_ranges *to, const d9di_field_ranges *from);
/* [min, max], or null; and back, where absent is null too. */
json_t *d9di_field_range_json(const d9d_field_range *r);
d9d_status d9di_field_range_parse(const json_t *v, const char *where, d9d_field_range *out);

/* The list as JSON, and back; its memory is the arena's. */
json_t *d9di_field_list_json(d9d_field_list list);
d9d_status d9di_field_list_parse(const json_t *list, const char *where, d9d_arena *a,
                                 d9d_field_list *out);

#endif
