/* html_values.c - own histograms, texts and pictures: the newest of each name. */
#include "report/html/html_page.h"

enum { MAX_TEXT_BYTES = 2000 };

static void put_value(d9di_html_writer *w, const char *name, const json_t *line)
{
    const char *content = json_string_value(json_object_get(line, "content"));
    const char *file = json_string_value(json_object_get(line, "file"));
    const json_t *counts = json_object_get(line, "counts");
    char text[D9DI_HTML_VALUE_SIZE];

    d9di_html_row_begin(w, name);
    d9di_html_words(w, d9di_html_format(d9di_html_member(line, "step"), D9DI_HTML_STEP, text));
    d9di_html_put(w, "<td>");
    if (content != NULL || file != NULL)
        d9di_html_text_head(w, content != NULL ? content : file, MAX_TEXT_BYTES);
    for (size_t i = 0; i < json_array_size(counts); i++) {
        d9di_html_put(w, "%s", i > 0 ? ", " : "");
        d9di_html_json_number(w, json_number_value(json_array_get(counts, i)));
    }
    d9di_html_put(w, "</td>");
    d9di_html_row_end(w);
}

void d9di_html_write_values(d9di_html_page *p)
{
    static const char *const heads[] = {"name", "step", "text, counts or file", NULL};
    const char *name;
    json_t *line;

    for (size_t k = 0; k < p->n; k++) {
        if (json_object_size(p->runs[k].reader->own) == 0)
            continue;
        d9di_html_run_heading(p, k);
        d9di_html_table_begin(&p->w, "The newest own histograms, texts and pictures");
        d9di_html_table_heads(&p->w, heads);
        json_object_foreach(p->runs[k].reader->own, name, line) put_value(&p->w, name, line);
        d9di_html_table_end(&p->w);
    }
}
