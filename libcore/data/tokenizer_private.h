/* tokenizer_private.h - what chat templates need of a tokenizer. */
#ifndef D9DI_DATA_TOKENIZER_PRIVATE_H
#define D9DI_DATA_TOKENIZER_PRIVATE_H

#include "d9d/data/tokenizer.h"
#include "data/added.h"

/* Cut the text at every added token. */
d9d_status d9di_tokenizer_split(const d9d_tokenizer *tok, const char *text, size_t n,
                                d9di_added_fn fn, void *arg);
/* As d9d_tokenizer_encode(), but added tokens are text like any other. */
d9d_status d9di_tokenizer_encode_text(const d9d_tokenizer *tok, d9d_tokenizer_scratch *s,
                                      const char *text, size_t n, d9d_ids *out);

#endif
