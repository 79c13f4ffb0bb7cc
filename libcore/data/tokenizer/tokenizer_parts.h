/* tokenizer_parts.h - what a tokenizer has: tokenizer_load.c makes it, tokenizer.c encodes with it,
 * tokenizer_decode.c decodes. */
#ifndef D9DI_DATA_TOKENIZER_TOKENIZER_PARTS_H
#define D9DI_DATA_TOKENIZER_TOKENIZER_PARTS_H

#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/decoder.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/post_process.h"
#include "data/tokenizer/pretok.h"
#include "data/tokenizer/tokenizer_model.h"

enum { D9DI_TOKENIZER_SLACK = 16 };

/* An added token, by the text that is searched and decoded: normalised if the token is. */
struct d9di_tokenizer_added {
    const char *text;
    size_t len;
    uint32_t id;
    bool special;
};

/* The bytes that decoding writes for an id between others; they are in decoded_bytes. */
struct d9di_tokenizer_decoded {
    const char *bytes; /* NULL: unused id */
    uint32_t len;
    bool special;
};

/* The text of an id, before decoding. */
struct d9di_tokenizer_written {
    const char *text;
    uint32_t len;
};

struct d9d_tokenizer {
    d9d_hash hash;
    d9di_tokenizer_model model;
    d9di_normalizer *normalizer;
    d9di_pretok *pretok;
    d9di_tokenizer_decoder decoder;
    d9di_post_processor post_processor;
    d9di_added_tokens raw, normalized; /* added tokens, by the text in which they are searched */
    D9D_VEC(struct d9di_tokenizer_added) added;
    struct d9di_tokenizer_decoded *decoded; /* by id */
    d9d_buf decoded_bytes;                  /* D9DI_TOKENIZER_SLACK bytes more are readable */
    struct d9di_tokenizer_written *written; /* by id; NULL where decoding needs none */
    d9d_map by_content;                     /* token text to index + 1 */
    d9d_arena arena;
    uint32_t vocab_size;
    const char *ignored; /* ignored parts of the file */
};

/* Fills `decoded` and `written`; the other parts are there. */
d9d_status d9di_tokenizer_index_decoded(d9d_tokenizer *tok, const char *name);

#endif
