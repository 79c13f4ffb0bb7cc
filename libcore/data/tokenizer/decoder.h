/* decoder.h - the "decoder" of a tokenizer.json: converts tokens to output bytes.
 *
 * Its steps up to a Fuse (or a ByteLevel, which fuses too) treat each token by itself, some of them
 * the first or the last one otherwise; the steps behind treat the text of all:
 *
 *     tokens -> Replace, ByteFallback -> Fuse -> Strip -> text */
#ifndef D9DI_DATA_TOKENIZER_DECODER_H
#define D9DI_DATA_TOKENIZER_DECODER_H

#include <stdbool.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"

/* A place among the tokens that are decoded together; INNER is neither the first nor the last. */
enum {
    D9DI_TOKENIZER_DECODER_INNER = 0,
    D9DI_TOKENIZER_DECODER_FIRST = 1,
    D9DI_TOKENIZER_DECODER_LAST = 2
};

typedef struct d9di_tokenizer_decoder_step {
    /* Appends what text[0, n), a token at this place, becomes. */
    d9d_status (*apply)(const struct d9di_tokenizer_decoder_step *step, const char *text, size_t n,
                        unsigned place, d9d_buf *out);
    d9d_buf from, to; /* what is replaced or stripped, and by what */
    size_t start, stop;
    bool flag; /* its meaning is the step's */
} d9di_tokenizer_decoder_step;

typedef struct d9di_tokenizer_decoder {
    D9D_VEC(d9di_tokenizer_decoder_step) steps;
    size_t n_single; /* the steps before that number treat single tokens, */
    bool fused;      /* which ends with a Fuse */
    bool by_place;   /* one of them distinguishes places */
    bool joins;      /* no decoder: tokens are joined as spelled in the file, separated by spaces */
} d9di_tokenizer_decoder; /* embedded; zero-initialised means no decoder, and may be released */

/* `v` may be NULL or null. */
d9d_status d9di_tokenizer_decoder_parse(const json_t *v, const char *where,
                                        d9di_tokenizer_decoder *out);
void d9di_tokenizer_decoder_release(d9di_tokenizer_decoder *d);

/* Appends what the token text[0, n) at this place becomes. */
d9d_status d9di_tokenizer_decoder_apply(const d9di_tokenizer_decoder *d, const char *text, size_t n,
                                        unsigned place, d9d_buf *out);
/* Applies the steps behind a Fuse to data[from, len). */
d9d_status d9di_tokenizer_decoder_apply_fused(const d9di_tokenizer_decoder *d, size_t from,
                                              d9d_buf *text);

#endif
