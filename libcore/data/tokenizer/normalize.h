/* normalize.h - the "normalizer" of a tokenizer.json. */
#ifndef D9DI_DATA_TOKENIZER_NORMALIZE_H
#define D9DI_DATA_TOKENIZER_NORMALIZE_H

#include "d9d/base/json.h"
#include "data/tokenizer/split_pattern.h"

typedef struct d9di_normalizer d9di_normalizer;

/* Parses a normaliser.  If `v` is NULL or null, it does nothing. */
d9d_status d9di_normalizer_parse(const json_t *v, const char *where, d9di_normalizer **out);
void d9di_normalizer_free(d9di_normalizer *nz);

/* Alignment of a byte of a rewritten text: bytes [from, to) of the text before. */
typedef struct d9di_alignment {
    uint32_t from, to;
} d9di_alignment;
typedef D9D_VEC(d9di_alignment) d9di_alignments;

/* Buffers of one thread; zero-initialised is ready to use. */
typedef struct d9di_normalizer_scratch {
    d9d_buf text[2], shadow;
    bool tracks_alignments;        /* alignments are tracked; texts must be shorter than 4 GiB */
    d9di_alignments alignments[2]; /* of text[0] and text[1] */
    const d9di_alignment *input;   /* of the text that a step reads; NULL: the original text */
    d9di_alignments *output;       /* of the text that it writes */
    bool starts_later;             /* the last text begins behind the start of the original one */
    D9D_VEC(int32_t) chars;
    D9D_VEC(int32_t) marks;
    d9di_split_pattern_matcher *matcher; /* borrowed */
} d9di_normalizer_scratch;
void d9di_normalizer_scratch_release(d9di_normalizer_scratch *s);

/* Normalises a text.  *out is `text` itself if it is normalised already; otherwise it is in the
 * scratch until the next call.  If alignments are tracked, `input` has one for each byte of *out;
 * NULL: *out is `text`. */
d9d_status d9di_normalizer_apply(const d9di_normalizer *nz, d9di_normalizer_scratch *s,
                                 const char *text, size_t n, const char **out, size_t *out_n);

#endif
