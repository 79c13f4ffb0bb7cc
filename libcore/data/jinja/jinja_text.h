/* jinja_text.h - what Python does to strings. */
#ifndef D9DI_DATA_JINJA_JINJA_TEXT_H
#define D9DI_DATA_JINJA_JINJA_TEXT_H

#include "data/jinja/jinja_run.h"

bool d9di_jinja_is_space(uint32_t c);
/* Characters of s, and the byte at which character i begins; i is at most their number. */
size_t d9di_jinja_chars(const d9di_jinja_value *s);
size_t d9di_jinja_offset(const d9di_jinja_value *s, size_t i);

enum { D9DI_JINJA_LEFT = 1, D9DI_JINJA_RIGHT = 2 };
/* s without these characters at its ends; chars NULL: white space. */
d9di_jinja_value d9di_jinja_strip(const d9di_jinja_value *s, const d9di_jinja_value *chars,
                                  int sides);

typedef enum d9di_jinja_case {
    D9DI_JINJA_LOWER,
    D9DI_JINJA_UPPER,
    D9DI_JINJA_TITLE,      /* str.title() */
    D9DI_JINJA_CAPITALIZE, /* first character, the rest in lower case */
} d9di_jinja_case;
d9d_status d9di_jinja_put_case(d9di_jinja_run *r, const d9di_jinja_value *s, d9di_jinja_case into);
d9d_status d9di_jinja_to_case(d9di_jinja_run *r, const d9di_jinja_value *s, d9di_jinja_case into,
                              d9di_jinja_value *out);

d9d_status d9di_jinja_replace(d9di_jinja_run *r, const d9di_jinja_value *s,
                              const d9di_jinja_value *from, const d9di_jinja_value *to,
                              int64_t count, d9di_jinja_value *out);
d9d_status d9di_jinja_split(d9di_jinja_run *r, const d9di_jinja_value *s,
                            const d9di_jinja_value *sep, int64_t max, bool from_right,
                            d9di_jinja_value *out);
d9d_status d9di_jinja_split_lines(d9di_jinja_run *r, const d9di_jinja_value *s, bool keep_ends,
                                  d9di_jinja_value *out);
d9d_status d9di_jinja_join(d9di_jinja_run *r, const d9di_jinja_value *sep,
                           const d9di_jinja_value *items, d9di_jinja_value *out);
/* str.format() */
d9d_status d9di_jinja_format(const d9di_jinja_call *c, d9di_jinja_value *out);
/* `format % args` of a str. */
d9d_status d9di_jinja_percent(d9di_jinja_run *r, const d9di_jinja_value *format,
                              const d9di_jinja_value *args, d9di_jinja_value *out);
/* Appends s with & < > " and ' as HTML writes them. */
d9d_status d9di_jinja_put_escaped(d9di_jinja_run *r, const d9di_jinja_value *s);

/* int(text, base) and float(text) of Python: false if it raises ValueError.  *big: the integer does
 * not fit. */
bool d9di_jinja_parse_int(const d9di_jinja_value *s, int base, int64_t *out, bool *big);
bool d9di_jinja_parse_float(const d9di_jinja_value *s, double *out);

#endif
