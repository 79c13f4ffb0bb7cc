/* html_charts.h - which charts a page has, and their data. */
#ifndef D9DI_REPORT_HTML_CHARTS_H
#define D9DI_REPORT_HTML_CHARTS_H

#include "d9d/report/run_reader.h"
#include "report/html/html_writer.h"

/* A column of a run. */
typedef struct d9di_html_series {
    size_t run;
    const d9d_run_reader_column *column;
    bool evaluation;
} d9di_html_series;

/* Several columns in one frame: of all runs, and training beside evaluations. */
typedef struct d9di_html_chart {
    const char *title;
    const char *section; /* id of the section that shows it */
    const char *unit;    /* the word for report.js: "number", "count", "ms", "bytes", "share" */
    bool log;            /* begins with a logarithmic scale */
    bool smooth;         /* noisy: a smoothed line is drawn over it */
    D9D_VEC(d9di_html_series) series;
} d9di_html_chart;

typedef struct d9di_html_charts {
    D9D_VEC(d9di_html_chart) list;
} d9di_html_charts; /* zero-initialised: empty */

/* The charts of all columns of the runs, in the order of the table in html_charts.c. */
d9d_status d9di_html_charts_collect(const d9d_run_reader_list *r, d9di_html_charts *out);
void d9di_html_charts_release(d9di_html_charts *c);

/* Appends the frames of a section, with a table of figures each, for report.js to draw in. */
void d9di_html_charts_put(d9di_html_writer *w, const d9di_html_charts *c, const char *section,
                          const d9d_run_reader_list *r, const char *const *labels);
/* Appends the members "axes" and "charts" of the page's data. */
void d9di_html_charts_put_data(d9di_html_writer *w, const d9di_html_charts *c,
                               const d9d_run_reader_list *r);

#endif /* D9DI_REPORT_HTML_CHARTS_H */
