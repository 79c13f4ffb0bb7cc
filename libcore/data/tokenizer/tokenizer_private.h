/* tokenizer_private.h - encoding with zones and alignments, for chat templates. */
#ifndef D9DI_DATA_TOKENIZER_TOKENIZER_PRIVATE_H
#define D9DI_DATA_TOKENIZER_TOKENIZER_PRIVATE_H

#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/normalize.h"

/* A zone of a text, from the end of the previous one to byte `end`. */
typedef struct d9di_tokenizer_zone {
    size_t end;
    bool added; /* added tokens entirely inside it are tokens; otherwise they are text */
} d9di_tokenizer_zone;

/* Like d9d_tokenizer_encode() for text[0, n) below 4 GiB, which the zones tile.  Also appends the
 * byte span of each token.  A prepended character is aligned with the character after it. */
d9d_status d9di_tokenizer_encode_zones(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                       const char *text, size_t n, const d9di_tokenizer_zone *zones,
                                       size_t n_zones, d9d_token_ids *out, d9di_alignments *spans);

/* True if this is the text of an added token. */
bool d9di_tokenizer_has_added(const d9d_tokenizer *tok, const char *text, size_t n);

#endif
