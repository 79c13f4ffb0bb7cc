/* decoder.h - the "decoder" of a tokenizer.json: converts a token's text to output bytes.
 *
 * Each token is decoded by itself, except for what is stripped from the start of the whole text. */
#ifndef D9DI_DATA_TOKENIZER_DECODER_H
#define D9DI_DATA_TOKENIZER_DECODER_H

#include <stdbool.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"

struct d9di_tokenizer_decoder_replace {
    d9d_buf from, to;
};

typedef struct d9di_tokenizer_decoder {
    D9D_VEC(struct d9di_tokenizer_decoder_replace) replaces;
    bool joins; /* no decoder: tokens are joined as spelled in the file, separated by spaces */
    bool byte_fallback; /* <0x41> is a byte */
    bool fused;         /* later components apply to the whole text */
    char strip;         /* strips up to this many of this character from the start */
    size_t strip_count;
} d9di_tokenizer_decoder; /* embedded; zero-initialised means no decoder, and may be released */

/* `v` may be NULL or null. */
d9d_status d9di_tokenizer_decoder_parse(const json_t *v, const char *where,
                                        d9di_tokenizer_decoder *out);
void d9di_tokenizer_decoder_release(d9di_tokenizer_decoder *d);

/* Appends the decoded `text`. */
d9d_status d9di_tokenizer_decoder_apply(const d9di_tokenizer_decoder *d, const char *text, size_t n,
                                        d9d_buf *out);

#endif
