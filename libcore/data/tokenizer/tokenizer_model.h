/* tokenizer_model.h - the "model" of a tokenizer.json, which makes ids of pre-tokens: one of the
 * kinds BPE, WordPiece, WordLevel and Unigram, each a row of functions.
 *
 * Pre-tokens are text, or (`chars` false) bytes that the vocabulary spells in the byte alphabet. */
#ifndef D9DI_DATA_TOKENIZER_TOKENIZER_MODEL_H
#define D9DI_DATA_TOKENIZER_TOKENIZER_MODEL_H

#include <stdbool.h>

#include "d9d/base/json.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/pretok.h"
#include "data/tokenizer/vocab.h"

/* One kind.  A scratch belongs to one thread. */
typedef struct d9di_tokenizer_model_kind {
    const char *type;
    const char *keys; /* its members, separated by spaces */
    d9d_status (*create)(const json_t *m, const char *where, bool chars, void **out);
    void (*free)(void *model);
    const d9di_vocab *(*vocab)(const void *model);
    d9d_status (*scratch_create)(void **out);
    void (*scratch_free)(void *scratch);
    /* Appends the ids of some pre-tokens; bytes before `end` may be read.  `spans` is NULL, or gets
     * for each id the bytes of its pre-token that it stands for; there is then one pre-token. */
    d9d_status (*encode)(const void *model, void *scratch, const d9di_pretoken *pretokens, size_t n,
                         const char *end, d9d_token_ids *out, d9di_alignments *spans);
} d9di_tokenizer_model_kind;

typedef struct d9di_tokenizer_model {
    const d9di_tokenizer_model_kind *kind;
    void *of_kind;
    const d9di_vocab *vocab;
} d9di_tokenizer_model; /* embedded; zero-initialised may be released */

d9d_status d9di_tokenizer_model_init(const json_t *v, const char *where, bool chars,
                                     d9di_tokenizer_model *out);
void d9di_tokenizer_model_release(d9di_tokenizer_model *m);

/* What the kinds other than BPE share: each pre-token is encoded by itself. */
typedef d9d_status (*d9di_tokenizer_model_fn)(const void *model, void *scratch,
                                              const d9di_pretoken *pretoken, d9d_token_ids *out,
                                              d9di_alignments *spans);
/* Calls `fn` for each pre-token, which is spelled in the byte alphabet (in *spelled) first if not
 * `chars`. */
d9d_status d9di_tokenizer_model_each(const d9di_pretoken *pretokens, size_t n, bool chars,
                                     d9d_buf *spelled, d9di_tokenizer_model_fn fn,
                                     const void *model, void *scratch, d9d_token_ids *out,
                                     d9di_alignments *spans);
/* A scratch that is but a d9d_buf for the spelling. */
d9d_status d9di_tokenizer_model_buf_create(void **out);
void d9di_tokenizer_model_buf_free(void *scratch);
/* Appends an id, which stands for bytes [from, to). */
d9d_status d9di_tokenizer_model_push(uint32_t id, size_t from, size_t to, d9d_token_ids *out,
                                     d9di_alignments *spans);

extern const d9di_tokenizer_model_kind d9di_bpe_kind, d9di_wordpiece_kind, d9di_wordlevel_kind,
    d9di_unigram_kind;

#endif
