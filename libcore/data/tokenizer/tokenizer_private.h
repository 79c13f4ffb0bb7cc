/* tokenizer_private.h - encoding with origins and alignments, for chat templates. */
#ifndef D9DI_DATA_TOKENIZER_TOKENIZER_PRIVATE_H
#define D9DI_DATA_TOKENIZER_TOKENIZER_PRIVATE_H

#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/normalize.h"

/* Like d9d_tokenizer_encode() for text[0, n) below 4 GiB.  is_data[i] says that byte i was written
 * by a user: a special token is text where such a byte is part of it, unless that is a letter, a
 * digit or "_", as the role within <|user|>.  NULL: no byte was.  Also appends the byte span of
 * each token.  A prepended character is aligned with the character after it. */
d9d_status d9di_tokenizer_encode_data(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                      const char *text, size_t n, const char *is_data,
                                      d9d_token_ids *out, d9di_alignments *spans);

#endif
