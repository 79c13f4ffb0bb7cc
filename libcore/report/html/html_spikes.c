/* html_spikes.c - steps whose loss stands out, and the documents that made them. */
#include <math.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "report/html/html_page.h"

enum { MAX_SPIKES = 60, MAX_DOCUMENTS = 5, MAX_TEXT_BYTES = 200 };

static void put_document(d9di_html_writer *w, const json_t *x)
{
    const char *text = json_string_value(json_object_get(x, "text"));
    const char *dataset = json_string_value(json_object_get(x, "dataset"));
    const char *split = json_string_value(json_object_get(x, "split"));

    d9di_html_put(w, "<li>sample %lld, document %lld",
                  (long long)json_integer_value(json_object_get(x, "sample")),
                  (long long)json_integer_value(json_object_get(x, "document")));
    if (dataset != NULL) {
        d9di_html_put(w, " of ");
        d9di_html_text_head(w, dataset, MAX_TEXT_BYTES);
        d9di_html_put(w, ", ");
        d9di_html_text_head(w, split != NULL ? split : "", MAX_TEXT_BYTES);
    }
    d9di_html_put(w, ": %lld tokens, loss ",
                  (long long)json_integer_value(json_object_get(x, "tokens")));
    d9di_html_json_number(w, d9di_html_member(x, "mean_loss"));
    d9di_html_put(w, "; the step without it ");
    d9di_html_json_number(w, d9di_html_member(x, "without"));
    if (text != NULL) {
        d9di_html_put(w, "<q>");
        d9di_html_text_head(w, text, MAX_TEXT_BYTES);
        d9di_html_put(w, "</q>");
    }
    d9di_html_put(w, "</li>\n");
}

static void put_documents(d9di_html_writer *w, const json_t *documents)
{
    const size_t n = json_array_size(documents);

    d9di_html_put(w, "<td>");
    if (n > 0)
        d9di_html_put(w, "<ol class=\"documents\">\n");
    for (size_t i = 0; i < n && i < MAX_DOCUMENTS; i++)
        put_document(w, json_array_get(documents, i));
    if (n > 0)
        d9di_html_put(w, "</ol>");
    d9di_html_put(w, "</td>");
}

static void put_spike(d9di_html_writer *w, const json_t *x, bool with_documents)
{
    char text[D9DI_HTML_VALUE_SIZE], many[D9DI_HTML_VALUE_SIZE + 16];
    const char *step = d9di_html_format(d9di_html_member(x, "step"), D9DI_HTML_STEP, text);

    if (json_integer_value(json_object_get(x, "records")) > 1) {
        (void)d9d_num_format(many, sizeof(many), "from %s on", step);
        step = many;
    }
    d9di_html_row_begin(w, step);
    if (json_is_null(json_object_get(x, "value")))
        d9di_html_words(w, "not finite");
    else
        d9di_html_value(w, d9di_html_member(x, "value"), D9DI_HTML_NUMBER);
    d9di_html_value(w, d9di_html_member(x, "usual"), D9DI_HTML_NUMBER);
    d9di_html_value(w, d9di_html_member(x, "deviations"), D9DI_HTML_NUMBER);
    if (with_documents)
        put_documents(w, json_object_get(x, "documents"));
    d9di_html_row_end(w);
}

/* True if at least MAX_SPIKES others are higher; those that are not finite are the highest. */
static bool is_left_out(const json_t *list, size_t at)
{
    const double d = d9di_html_member(json_array_get(list, at), "deviations");
    size_t higher = 0;

    for (size_t i = 0; i < json_array_size(list) && higher < MAX_SPIKES && !isnan(d); i++) {
        const double other = d9di_html_member(json_array_get(list, i), "deviations");

        higher += isnan(other) || other > d || (other == d && i < at);
    }
    return isnan(d) ? at >= MAX_SPIKES : higher >= MAX_SPIKES;
}

static bool has_documents(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_object_get(json_array_get(list, i), "documents") != NULL)
            return true;
    return false;
}

static void put_spikes(d9di_html_writer *w, const json_t *list)
{
    const size_t n = json_array_size(list);
    const bool with_documents = has_documents(list);
    const char *const heads[] = {"step",
                                 "loss",
                                 "usual",
                                 "deviations",
                                 with_documents ? "documents that raised it most" : NULL,
                                 NULL};

    d9di_html_put(w, "<p>The loss of %zu step%s stands out.%s</p>\n", n, D9D_PLURAL(n),
                  n > MAX_SPIKES ? " The highest of them:" : "");
    d9di_html_table_begin(w, "Spikes of the loss");
    d9di_html_table_heads(w, heads);
    for (size_t i = 0; i < n && w->st == D9D_OK; i++)
        if (n <= MAX_SPIKES || !is_left_out(list, i))
            put_spike(w, json_array_get(list, i), with_documents);
    d9di_html_table_end(w);
}

void d9di_html_write_spikes(d9di_html_page *p)
{
    for (size_t k = 0; k < p->n; k++) {
        if (json_array_size(p->runs[k].spikes) == 0)
            continue;
        d9di_html_run_heading(p, k);
        put_spikes(&p->w, p->runs[k].spikes);
    }
}
