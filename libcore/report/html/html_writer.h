/* html_writer.h - writes HTML that is well-formed XML too, with everything from a run escaped.
 *
 * Calls return no status: the first error is kept in `st`.
 *
 *     d9di_html_writer w = {.out = &page};
 *
 *     d9di_html_put(&w, "<p class=\"%s\">", "note");       // markup of this library only
 *     d9di_html_text(&w, run->name);                       // text of any origin
 *     d9di_html_put(&w, "</p>\n");
 *     return w.st;
 */
#ifndef D9DI_REPORT_HTML_WRITER_H
#define D9DI_REPORT_HTML_WRITER_H

#include <stdbool.h>

#include "d9d/base/json.h"

typedef struct d9di_html_writer {
    d9d_buf *out;
    d9d_status st;
} d9di_html_writer;

/* Markup; arguments must be constants or numbers. */
void d9di_html_put(d9di_html_writer *w, const char *fmt, ...) D9D_PRINTF(2, 3);
/* Text in an element or a quoted attribute: & < > " ' are escaped, control characters and bytes
 * that are not UTF-8 become U+FFFD. */
void d9di_html_text(d9di_html_writer *w, const char *text);
/* At most `max` bytes of it, then an ellipsis. */
void d9di_html_text_head(d9di_html_writer *w, const char *text, size_t max);
/* A JSON string, and a number of six digits (null if it is not finite), inside <script>: no
 * character has a meaning in HTML. */
void d9di_html_json_text(d9di_html_writer *w, const char *text);
void d9di_html_json_number(d9di_html_writer *w, double v);

/* A number of an object; NaN if it has none of that name. */
double d9di_html_member(const json_t *obj, const char *key);

/* --- values for people ------------------------------------------------------------------------ */

typedef enum d9di_html_unit {
    D9DI_HTML_NUMBER,  /* 1,234,567; 0.0123 */
    D9DI_HTML_COUNT,   /* 1.23 M */
    D9DI_HTML_SECONDS, /* 3 h 25 min */
    D9DI_HTML_BYTES,   /* 43.8 GiB */
    D9DI_HTML_SHARE,   /* 0.412 as 41.2 % */
    D9DI_HTML_STEP     /* an integer; below 0: none */
} d9di_html_unit;

enum { D9DI_HTML_VALUE_SIZE = 48 };
/* Formats into `text`, which is returned; "–" for a value that is not there (NaN). */
const char *d9di_html_format(double v, d9di_html_unit unit, char text[D9DI_HTML_VALUE_SIZE]);
/* 2026-01-31 12:00:00 UTC; "–" for NaN. */
const char *d9di_html_format_time(double seconds, char text[D9DI_HTML_VALUE_SIZE]);

/* --- tables ----------------------------------------------------------------------------------- */

/* A table that scrolls by itself on a narrow screen.  `label` names it to a screen reader. */
void d9di_html_table_begin(d9di_html_writer *w, const char *label);
/* The row of headings; the first of `heads` is of the first column.  Ends with NULL. */
void d9di_html_table_heads(d9di_html_writer *w, const char *const *heads);
/* <tr> with the heading of a row. */
void d9di_html_row_begin(d9di_html_writer *w, const char *head);
void d9di_html_value(d9di_html_writer *w, double v, d9di_html_unit unit);
void d9di_html_words(d9di_html_writer *w, const char *text);
void d9di_html_row_end(d9di_html_writer *w);
void d9di_html_table_end(d9di_html_writer *w);

#endif /* D9DI_REPORT_HTML_WRITER_H */
