/* text_rules.h - the rules of d9d_filter_rules(), and those that look at one text: Gopher's quality
 * and repetition, as datatrove computes them, to the last character. */
#ifndef D9DI_DATA_FILTER_TEXT_RULES_H
#define D9DI_DATA_FILTER_TEXT_RULES_H

#include "d9d/data/filter/filter.h"
#include "data/filter/hash_counter.h"
#include "data/filter/text_words.h"

/* Places of the rules that are no measures of a text; the measures lie between EMPTY and
 * CONTAMINATED. */
typedef enum d9di_text_rule {
    D9DI_TEXT_RULE_NONE = -1,
    D9DI_TEXT_RULE_UNREADABLE = 0,
    D9DI_TEXT_RULE_EMPTY = 1,
    D9DI_TEXT_RULE_CONTAMINATED = 25,
    D9DI_TEXT_RULE_EXACT,
    D9DI_TEXT_RULE_NEAR,
    D9DI_TEXT_RULES
} d9di_text_rule;

/* Scratch of one thread. */
typedef struct d9di_text_measures {
    const char *text;
    size_t n;
    double chars; /* of the text */
    d9di_text_words words;
    d9di_hash_counter counter;
} d9di_text_measures; /* zero-initialised may be used and released */

/* The thresholds [D9DI_TEXT_RULES]; 0: the rule is off.  `given` is "NAME=VALUE,...", or NULL. */
d9d_status d9di_text_rules_set(bool quality, bool repetition, const char *given,
                               double *thresholds);
/* The first rule that text[0, n), valid UTF-8, breaks, EMPTY or a measure; NONE: it keeps all. */
d9d_status d9di_text_rules_check(const double *thresholds, d9di_text_measures *m, const char *text,
                                 size_t n, int *rule);
void d9di_text_measures_release(d9di_text_measures *m);

#endif
