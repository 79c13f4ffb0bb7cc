/* post_process.h - a post_processor: the special tokens around a text or a pair of texts.
 *
 * Each processor makes a list of sequences from a list of sequences, at first [$A] or [$A, $B]:
 *
 *     BertProcessing       the first becomes cls $1 sep, each other one $2 sep
 *     RobertaProcessing    the first becomes cls $1 sep, each other one sep $2 sep
 *     TemplateProcessing   each item of `single` (of one sequence) or `pair` (of two)
 *     ByteLevel            none changes, only offsets
 *     Sequence             its processors, one behind the other
 *
 * HF tells the first two by their members: only RoBERTa's has both flags, whatever `type` says.
 *
 * No text is needed for that, so parsing runs the processors, and what is left is one template for
 * a text and one for a pair.  A file that HF reads and fails with later is read here too; its
 * template says why it cannot be used. */
#ifndef D9DI_DATA_TOKENIZER_POST_PROCESS_H
#define D9DI_DATA_TOKENIZER_POST_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"
#include "d9d/base/status.h"

enum { D9DI_POST_PROCESS_TEXT = -1, D9DI_POST_PROCESS_PAIR = -2 }; /* the others are ids */

typedef D9D_VEC(int32_t) d9di_post_process_items;

typedef struct d9di_post_process_template {
    d9di_post_process_items items;
    D9D_VEC(size_t) ends; /* of the sequences */
    size_t n_special;     /* items that are ids */
    const char *unusable; /* why; NULL: it can be used.  In the arena of the parser */
} d9di_post_process_template;

typedef struct d9di_post_processor {
    d9di_post_process_template single, pair;
} d9di_post_processor; /* zero-initialised may be released */

/* Parses v; NULL or null: no special tokens.  Ids must be below `vocab`. */
d9d_status d9di_post_processor_parse(const json_t *v, const char *where, uint32_t vocab,
                                     d9d_arena *a, d9di_post_processor *out);
void d9di_post_processor_release(d9di_post_processor *p);

#endif
