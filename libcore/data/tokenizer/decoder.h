/* decoder.h - the "decoder" of a tokenizer.json: what the text of a token stands for.
 *
 * Each token is decoded by itself, but for what is taken off the front of the whole. */
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
    bool joins;         /* there is none: tokens are joined as the file has them, by blanks */
    bool byte_fallback; /* <0x41> is a byte */
    bool fused;         /* what follows in the file is about the whole text */
    char strip;         /* up to this many of this character are taken off the front */
    size_t strip_count;
} d9di_tokenizer_decoder; /* embedded; zero-initialised is none, and may be released */

/* `v` may be NULL or null. */
d9d_status d9di_tokenizer_decoder_parse(const json_t *v, const char *where,
                                        d9di_tokenizer_decoder *out);
void d9di_tokenizer_decoder_release(d9di_tokenizer_decoder *d);

/* Append what `text` stands for. */
d9d_status d9di_tokenizer_decoder_apply(const d9di_tokenizer_decoder *d, const char *text, size_t n,
                                        d9d_buf *out);

#endif
