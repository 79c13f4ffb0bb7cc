/* charsmap.h - SentencePiece's table of replacements ("precompiled_charsmap").
 *
 * The file has it as base64:
 *
 *     size of the trie (uint32) | trie, a double array of uint32 | texts, each ended by a NUL
 *
 * The trie maps a string to the offset of its replacement. */
#ifndef D9DI_DATA_TOKENIZER_CHARSMAP_H
#define D9DI_DATA_TOKENIZER_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/mem.h"

typedef struct d9di_charsmap {
    uint32_t *trie;
    size_t n_units;
    char *texts; /* n_texts bytes, and a NUL */
    size_t n_texts;
    bool ascii[128]; /* characters that are replaced */
} d9di_charsmap;     /* zero-initialised may be released */

d9d_status d9di_charsmap_init(const char *base64, size_t n, const char *where, d9di_charsmap *out);
void d9di_charsmap_release(d9di_charsmap *m);

/* What the shortest key that begins text[0, n) is replaced by; NULL if there is none. */
const char *d9di_charsmap_find(const d9di_charsmap *m, const char *text, size_t n);

#endif
