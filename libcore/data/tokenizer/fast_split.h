/* fast_split.h - hand-written matchers for the split patterns of published tokenizers, without
 * PCRE2.
 *
 * All patterns match the same alternatives, in the same order:
 *
 *     's 't 're ...        a contraction
 *     [prefix]letters      one character before them: a space, or any that is no letter or number
 *     numbers              one, up to three, or any count with a space before
 *     [ ]others            all else but white space, and ends of lines behind in most
 *     white space          up to the last end of line; or all but its last character, which may be
 *                          the prefix of what follows
 *
 * So a pattern is a table row, and the class of one or two characters determines the next match.
 * Every character is in some match, so the text is partitioned without gaps. */
#ifndef D9DI_DATA_TOKENIZER_FAST_SPLIT_H
#define D9DI_DATA_TOKENIZER_FAST_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

typedef struct d9di_fast_split d9di_fast_split;

/* *out is NULL when the pattern is not among the known ones. */
d9d_status d9di_fast_split_create(const char *pattern, size_t n, d9di_fast_split **out);
void d9di_fast_split_free(d9di_fast_split *s);

/* Finds the ends of up to `max` matches in text[0, n), valid UTF-8, from `at` on.  Returns their
 * number; 0 if at is n. */
size_t d9di_fast_split_find(const d9di_fast_split *s, const char *text, size_t n, size_t at,
                            size_t *ends, size_t max);

/* The known patterns, for tests; NULL past the last. */
const char *d9di_fast_split_pattern(size_t i);

#endif
