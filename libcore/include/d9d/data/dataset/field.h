/* field.h - named tensors of a sample, besides its ids and labels.
 *
 *     {"name": "weight", "dtype": "F32", "per": "target"}                    a number a target
 *     {"name": "image", "dtype": "U8", "per": "sample", "shape": [28, 28]}   an array a document
 *     {"name": "boxes", "dtype": "F32", "per": "sample", "shape": [4], "ragged": true}
 *
 * A dataset declares its fields; every document has a value of each.
 *
 *     per token     a row per stored token: an input.  Position i of a sample has that of token i
 *     per target    a row per stored token, which belongs to the token as a target.  Where the
 *                   target is the next token, position i has the row of token i + 1
 *     per sample    one array a document, and where a document is cut, of each of its parts;
 *                   ragged: any number of rows of that shape
 *
 * In fields-NNNNN.bin the documents of a shard stand one behind the other.  Each has the values of
 * all fields, in the order of their declaration, little endian; every field begins at a multiple
 * of 8 bytes, and a ragged one with the number of its rows, u64.  documents-NNNNN.bin says where:
 * for each document its first token in the shard, and its first byte, both u64.
 */
#ifndef D9D_DATA_DATASET_FIELD_H
#define D9D_DATA_DATASET_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_FIELD_DIMS = 4, D9D_FIELDS_MAX = 16, D9D_FIELD_NAME_MAX = 63 };

typedef enum d9d_field_per {
    D9D_FIELD_PER_TOKEN,
    D9D_FIELD_PER_TARGET,
    D9D_FIELD_PER_SAMPLE
} d9d_field_per;

/* Where a ragged field is padded to the longest of a batch; NONE: all must have the same rows. */
typedef enum d9d_field_padding {
    D9D_FIELD_PADDING_RIGHT,
    D9D_FIELD_PADDING_LEFT,
    D9D_FIELD_PADDING_NONE
} d9d_field_padding;

/* "token", "target", "sample"; "right", "left", "none": NULL-ended. */
D9D_API extern const char *const d9d_field_per_names[], *const d9d_field_padding_names[];

/* The smallest and the largest of integers, of which D9D_FIELD_IGNORED is none. */
typedef struct d9d_field_range {
    bool known; /* false: there are none, or nobody has looked */
    int64_t min, max;
} d9d_field_range;
enum { D9D_FIELD_IGNORED = -100 }; /* an ignored class */

typedef struct d9d_field {
    const char *name;
    d9d_dtype dtype; /* F32, I64, I32 or U8 */
    d9d_field_per per;
    int rank;                      /* dimensions of a row, from 0 to D9D_FIELD_DIMS */
    int64_t shape[D9D_FIELD_DIMS]; /* [rank] of the row of a token or sample */
    bool ragged;                   /* per sample only: any number of rows */
    d9d_field_padding padding;     /* of ragged fields */
    double pad;                    /* the value of padding */
    bool allow_nan;                /* NaN and infinities are values */
    int64_t longest;               /* ragged: most rows of a document */
    d9d_field_range range;         /* of integers, over all splits */
} d9d_field;

/* Borrowed. */
typedef struct d9d_field_list {
    const d9d_field *v;
    size_t n;
} d9d_field_list;

/* Elements and bytes of a row. */
D9D_API int64_t d9d_field_elements(const d9d_field *f);
D9D_API size_t d9d_field_bytes(const d9d_field *f);
/* NULL: there is none. */
D9D_API const d9d_field *d9d_field_find(d9d_field_list list, const char *name);
/* Checks names, types, shapes and padding of a declaration, which `where` names.  ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_field_list_check(d9d_field_list list, const char *where);

/* True if none of the n numbers of a row of F32 is NaN, which stands for null: a text without all
 * its values counts for nothing. */
D9D_API bool d9d_field_row_is_present(const float *row, int64_t n);

/* The values of a document in fields-NNNNN.bin. */
typedef struct d9d_field_values {
    const void *data[D9D_FIELDS_MAX]; /* rows of each field */
    int64_t rows[D9D_FIELDS_MAX];
} d9d_field_values;
/* Finds the values in the `bytes` bytes of a document of `tokens` stored tokens, of which none is
 * trusted.  EFORMAT. */
D9D_API D9D_MUST_USE d9d_status d9d_field_values_find(d9d_field_list list, const void *document,
                                                      size_t bytes, int64_t tokens,
                                                      const char *where, d9d_field_values *out);

/* What somebody wants of every dataset of a stream. */
typedef struct d9d_field_request {
    const char *name;
    d9d_field_per per;
    d9d_dtype dtype;   /* F32 or I32: U8 becomes either, I32 becomes F32 */
    int64_t elements;  /* of a row; 0: any shape */
    bool spread;       /* per target: a field per sample is good too, repeated at its targets */
    bool classes;      /* I32: padding is -100, an ignored class, whatever the dataset says */
    bool drops_labels; /* F32 per target: a row with a NaN is for no target: that has no label, and
                          the row is 0 */
    int64_t limit;     /* I32: values are below it, and a dataset that is known to have another is
                          refused; 0: any */
    const char *where; /* who asks, for messages: "task.loss_weights" */
} d9d_field_request;

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_DATASET_FIELD_H */
