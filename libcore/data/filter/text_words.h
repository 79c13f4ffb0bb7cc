/* text_words.h - the words of a text, laid out so that an n-gram of them is a range of bytes. */
#ifndef D9DI_DATA_FILTER_TEXT_WORDS_H
#define D9DI_DATA_FILTER_TEXT_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/mem.h"

/* Where a word begins; one more entry is behind the last. */
struct d9di_text_word {
    uint32_t spaced, tight; /* in these buffers */
    uint32_t chars;         /* characters of the words before it */
};

typedef struct d9di_text_words {
    d9d_buf spaced, tight; /* the words, each with a space behind it, or none */
    D9D_VEC(struct d9di_text_word) at;
    size_t n;
} d9di_text_words; /* zero-initialised is empty; may be filled again */

/* Words between white space, as Python's str.split().  The text is valid UTF-8. */
d9d_status d9di_text_words_split(d9di_text_words *w, const char *text, size_t n);
/* Words of letters, digits and "_", in lower case; `tight` stays empty. */
d9d_status d9di_text_words_fold(d9di_text_words *w, const char *text, size_t n);
void d9di_text_words_release(d9di_text_words *w);

/* Hash of words [i, i + n), with spaces between them or without. */
uint64_t d9di_text_words_hash(const d9di_text_words *w, size_t i, size_t n);
uint64_t d9di_text_words_hash_tight(const d9di_text_words *w, size_t i, size_t n);

/* Characters of valid UTF-8. */
size_t d9di_text_words_chars(const char *text, size_t n);
/* White space of Python's str.split(), which has four separators more than Unicode. */
bool d9di_text_words_is_space(uint32_t c);

#endif
