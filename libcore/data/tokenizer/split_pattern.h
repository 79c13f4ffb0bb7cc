/* split_pattern.h - the regular expressions of a tokenizer.json, run by PCRE2.
 *
 * The file's patterns are written for Oniguruma with Ruby's syntax.  What both
 * engines read alike passes through, what is merely spelled differently is
 * translated, and what would mean something else (\b, negated classes in classes, {n}+,
 * (?i) without a group ...) is ENOTSUP with its name.
 */
#ifndef D9DI_DATA_TOKENIZER_SPLIT_PATTERN_H
#define D9DI_DATA_TOKENIZER_SPLIT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"

typedef struct d9di_split_pattern d9di_split_pattern;

/* Compile; `where` begins sentences.  A literal pattern is found as it is. */
d9d_status d9di_split_pattern_create(const char *where, const char *src, size_t n, bool literal,
                                     d9di_split_pattern **out);
/* From {"Regex": ...} or {"String": ...}. */
d9d_status d9di_split_pattern_parse(const json_t *v, const char *where, d9di_split_pattern **out);
void d9di_split_pattern_free(d9di_split_pattern *p);

/* A literal is looked for in the text itself, an expression in the text's shadow: the same
 * bytes, except that characters whose category PCRE2 may not know are replaced by old ones
 * of the same category and width (unicode_tables.h).  *out is `text` when it has none. */
bool d9di_split_pattern_is_literal(const d9di_split_pattern *p);
d9d_status d9di_split_pattern_shadow(const char *text, size_t n, d9d_buf *buf, const char **out);

/* ENOTSUP where PCRE2, whose Unicode has this version, would take characters for others than HF. */
d9d_status d9di_split_pattern_check_unicode(const char *where, const char *version);

/* Oniguruma to PCRE2; appended to `out`. */
d9d_status d9di_split_pattern_translate(const char *where, const char *src, size_t n, d9d_buf *out);

/* What one thread needs to match. */
typedef struct d9di_split_pattern_matcher d9di_split_pattern_matcher;
d9d_status d9di_split_pattern_matcher_create(d9di_split_pattern_matcher **out);
void d9di_split_pattern_matcher_free(d9di_split_pattern_matcher *m);

/* Walks the matches of a pattern over text[0, n) as Oniguruma's find_iter does: no
 * empty match directly behind another match. */
typedef struct d9di_split_pattern_iter {
    const d9di_split_pattern *pattern;
    d9di_split_pattern_matcher *matcher;
    const char *text;
    size_t n, pos, last_end;
    bool matched;
} d9di_split_pattern_iter;

void d9di_split_pattern_iter_init(d9di_split_pattern_iter *s, const d9di_split_pattern *p,
                                  d9di_split_pattern_matcher *m, const char *text, size_t n);
/* The next match in *start, *end; *found false at the end. */
d9d_status d9di_split_pattern_iter_next(d9di_split_pattern_iter *s, size_t *start, size_t *end,
                                        bool *found);

#endif
