/* pretok.h - the "pre_tokenizer" of a tokenizer.json: splits text into pre-tokens that no merge
 * crosses.  Sequences are flattened to stages; stages after a ByteLevel see its alphabet. */
#ifndef D9DI_DATA_TOKENIZER_PRETOK_H
#define D9DI_DATA_TOKENIZER_PRETOK_H

#include "d9d/base/json.h"
#include "data/tokenizer/normalize.h"
#include "data/tokenizer/split_pattern.h"

typedef struct d9di_pretok d9di_pretok;

d9d_status d9di_pretok_parse(const json_t *v, const char *where, d9di_pretok **out);
void d9di_pretok_free(d9di_pretok *p);

/* True if it has a ByteLevel, so that tokens are spelled in the byte alphabet. */
bool d9di_pretok_is_bytelevel(const d9di_pretok *p);

/* A pre-token: a stretch of text, never empty. */
typedef struct d9di_pretoken {
    const char *text;
    size_t n;
} d9di_pretoken;

enum { D9DI_PRETOK_BATCH = 256 };

/* Buffers of one thread; zero-initialised is ready to use. */
typedef struct d9di_pretok_scratch {
    d9d_buf shadow, prefixed, prefixed_shadow, spelled;
    bool tracks_alignments;              /* alignments are tracked: */
    d9di_alignments alignments;          /* of the bytes of `prefixed`, */
    const char *rewritten;               /* which was rewritten from this text */
    d9di_split_pattern_matcher *matcher; /* borrowed */
    d9di_pretoken pretokens[D9DI_PRETOK_BATCH];
} d9di_pretok_scratch;
void d9di_pretok_scratch_release(d9di_pretok_scratch *s);

/* Calls fn for the pre-tokens of text[0, n), which may be the start of a whole text, in order and
 * in groups. fn may read from the first pre-token up to `end`. */
typedef d9d_status (*d9di_pretok_fn)(void *arg, const d9di_pretoken *pretokens, size_t n,
                                     const char *end);
d9d_status d9di_pretok_run(const d9di_pretok *p, d9di_pretok_scratch *s, const char *text, size_t n,
                           bool first, d9di_pretok_fn fn, void *arg);

#endif
