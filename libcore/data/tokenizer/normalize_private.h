/* normalize_private.h - the steps of a normaliser, which normalize_*.c have. */
#ifndef D9DI_DATA_TOKENIZER_NORMALIZE_PRIVATE_H
#define D9DI_DATA_TOKENIZER_NORMALIZE_PRIVATE_H

#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/normalize.h"

struct d9di_normalizer_step {
    /* Writes the result to `out`, and whether anything changed. */
    d9d_status (*apply)(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                        const char *text, size_t n, d9d_buf *out, bool *changed);
    int form;        /* utf8proc options */
    uint64_t *plain; /* bit set: characters below MAX_PLAIN that are normalised in every context */
    d9di_split_pattern *pattern;
    d9d_buf content;
    bool strips_left, strips_right;
    uint32_t (*map)(uint32_t c); /* what a character becomes; D9DI_NORMALIZER_DROP: nothing */
    d9di_charsmap charsmap;
};

enum { D9DI_NORMALIZER_MAX_STEPS = 64 };

#define D9DI_NORMALIZER_DROP UINT32_MAX

struct d9di_normalizer {
    D9D_VEC(struct d9di_normalizer_step) steps;
};

/* Appends a step, whose parts it takes over. */
d9d_status d9di_normalizer_add(d9di_normalizer *nz, const char *where,
                               struct d9di_normalizer_step step);
/* Appends a step that puts text into a Unicode form: "NFC", "NFD", "NFKC", "NFKD". */
d9d_status d9di_normalizer_add_form(d9di_normalizer *nz, const char *where, const char *form);
/* Appends a step that maps each character. */
d9d_status d9di_normalizer_add_map(d9di_normalizer *nz, const char *where,
                                   uint32_t (*map)(uint32_t c));
d9d_status d9di_normalizer_add_lowercase(d9di_normalizer *nz, const char *where);

/* --- what steps write ---------------------------------------------------------------- *
 *
 * Each byte that a step writes comes from a range of the bytes that it reads.  The functions below
 * write, and record this alignment if it is tracked.
 */

/* Records that the last n bytes written come from bytes [from, to) of the input; from none, if the
 * text is empty. */
d9d_status d9di_normalizer_trace(d9di_normalizer_scratch *s, size_t n, size_t from, size_t to);
/* Copies bytes [from, to) of the text. */
d9d_status d9di_normalizer_copy(d9di_normalizer_scratch *s, const char *text, size_t from,
                                size_t to, d9d_buf *out);
/* Writes `with` in place of bytes [from, to). */
d9d_status d9di_normalizer_replace(d9di_normalizer_scratch *s, const d9d_buf *with, size_t from,
                                   size_t to, d9d_buf *out);
/* Inserts `what` between two of n bytes; its alignment is the byte after it, or else the byte
 * before it. */
d9d_status d9di_normalizer_insert(d9di_normalizer_scratch *s, const d9d_buf *what, size_t at,
                                  size_t n, d9d_buf *out);

/* --- parsers of the components, rows of normalize.c ------------------------------------ */

#define D9DI_NORMALIZER_PARSERS(X)                                                                 \
    X(form)                                                                                        \
    X(lowercase)                                                                                   \
    X(prepend) X(replace) X(strip) X(strip_accents) X(bert) X(nmt) X(precompiled) X(bytelevel)
#define D9DI_NORMALIZER_PARSER(name)                                                               \
    d9d_status d9di_normalizer_parse_##name(const json_t *v, const char *where, void *into);
D9DI_NORMALIZER_PARSERS(D9DI_NORMALIZER_PARSER)

#endif
