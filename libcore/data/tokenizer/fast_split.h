/* fast_split.h - the patterns that published tokenizers split at, matched without PCRE2.
 *
 * They all look for the same things, in the same order:
 *
 *     's 't 're ...        a contraction
 *     [prefix]letters      one character before them: a space, or any that is no letter or number
 *     numbers              one, up to three, or any count with a space before
 *     [ ]others            all else but white space, and ends of lines behind in most
 *     white space          up to the last end of line; or all but its last character, which may be
 *                          the prefix of what follows
 *
 * so a pattern is a row of a table, and the next match is found by the class of a character or
 * two.  Every character is in some match, hence the text is cut, never skipped. */
#ifndef D9DI_DATA_TOKENIZER_FAST_SPLIT_H
#define D9DI_DATA_TOKENIZER_FAST_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

typedef struct d9di_fast_split d9di_fast_split;

/* *out is NULL when the pattern is not among the known ones. */
d9d_status d9di_fast_split_create(const char *pattern, size_t n, d9di_fast_split **out);
void d9di_fast_split_free(d9di_fast_split *s);

/* The ends of the next matches in text[0, n), valid UTF-8, from `at` on; at most `max` of them.
 * How many; 0 when at is n. */
size_t d9di_fast_split_find(const d9di_fast_split *s, const char *text, size_t n, size_t at,
                            size_t *ends, size_t max);

/* The known patterns, for tests: NULL behind the last. */
const char *d9di_fast_split_pattern(size_t i);

#endif
