/* contamination.h - the n-grams of words that evaluations have, and texts that have one of them. */
#ifndef D9DI_DATA_FILTER_CONTAMINATION_H
#define D9DI_DATA_FILTER_CONTAMINATION_H

#include "data/filter/text_words.h"

typedef struct d9di_contamination {
    uint64_t *slots; /* hashes, open addressing; 0: free */
    size_t n_slots, n;
    size_t ngram;
    int64_t texts, too_short; /* read; with fewer words, of which nothing is found */
} d9di_contamination;         /* zero-initialised may be released */

/* Reads the evaluations: of JSON lines and of an array of objects every string in them, of tables
 * every row, of other files every line. */
d9d_status d9di_contamination_read(const char *const *paths, size_t n_paths, size_t ngram,
                                   d9di_contamination *out);
bool d9di_contamination_find(const d9di_contamination *c, const d9di_text_words *w);
void d9di_contamination_release(d9di_contamination *c);

#endif
