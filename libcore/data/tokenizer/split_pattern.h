/* split_pattern.h - the regular expressions of a tokenizer.json, run by PCRE2.
 *
 * The file's patterns use Oniguruma's Ruby syntax.  Syntax that both engines share passes through,
 * and mere spelling differences are translated.  Anything that would change its meaning (\b,
 * negated classes in classes, {n}+, (?i) without a group ...) is ENOTSUP with its name.
 */
#ifndef D9DI_DATA_TOKENIZER_SPLIT_PATTERN_H
#define D9DI_DATA_TOKENIZER_SPLIT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"

typedef struct d9di_split_pattern d9di_split_pattern;

/* Compiles a pattern; messages begin with `where`.  A literal pattern is searched as it is. */
d9d_status d9di_split_pattern_create(const char *where, const char *src, size_t n, bool literal,
                                     d9di_split_pattern **out);
/* Reads {"Regex": ...} or {"String": ...}. */
d9d_status d9di_split_pattern_parse(const json_t *v, const char *where, d9di_split_pattern **out);
void d9di_split_pattern_free(d9di_split_pattern *p);

/* A literal is searched in the text itself, a regular expression in the text's shadow.  The shadow
 * has the same bytes, except that characters unknown to PCRE2 are replaced by older ones of the
 * same category and width (unicode_tables.h).  *out is `text` if no character is replaced. */
bool d9di_split_pattern_is_literal(const d9di_split_pattern *p);
d9d_status d9di_split_pattern_shadow(const char *text, size_t n, d9d_buf *buf, const char **out);

/* ENOTSUP if PCRE2 with this Unicode version would classify characters differently from HF. */
d9d_status d9di_split_pattern_check_unicode(const char *where, const char *version);

/* Translates an Oniguruma pattern to PCRE2, appended to `out`. */
d9d_status d9di_split_pattern_translate(const char *where, const char *src, size_t n, d9d_buf *out);

/* The match buffers of one thread. */
typedef struct d9di_split_pattern_matcher d9di_split_pattern_matcher;
d9d_status d9di_split_pattern_matcher_create(d9di_split_pattern_matcher **out);
void d9di_split_pattern_matcher_free(d9di_split_pattern_matcher *m);

/* Iterates over the matches of a pattern in text[0, n) as Oniguruma's find_iter does: no empty
 * match directly after another match. */
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
