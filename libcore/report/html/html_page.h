/* html_page.h - the page that is being made, and its sections. */
#ifndef D9DI_REPORT_HTML_PAGE_H
#define D9DI_REPORT_HTML_PAGE_H

#include "d9d/report/html.h"
#include "report/html/html_charts.h"
#include "report/html/html_writer.h"

typedef struct d9di_html_run {
    const d9d_run_reader *reader;
    const char *label;                /* the run's name; its path where two have one name */
    json_t *config, *manifest, *plan; /* NULL: there is none */
    json_t *spikes;                   /* of its loss, as report.h has them; NULL: no loss */
    const char *flight;               /* what the flight recorder says; NULL: nothing */
} d9di_html_run;

typedef struct d9di_html_page {
    d9d_arena arena;
    const d9d_run_reader_list *list;
    d9di_html_run *runs;
    size_t n;
    d9di_html_charts charts;
    d9di_html_writer w;
} d9di_html_page;

/* Each appends the body of its section to p->w; nothing if the runs have nothing for it. */
void d9di_html_write_summary(d9di_html_page *p);
void d9di_html_write_time(d9di_html_page *p);
void d9di_html_write_plan(d9di_html_page *p);
void d9di_html_write_experts(d9di_html_page *p);
void d9di_html_write_pipeline(d9di_html_page *p);
void d9di_html_write_restarts(d9di_html_page *p);
void d9di_html_write_spikes(d9di_html_page *p);
void d9di_html_write_values(d9di_html_page *p);
void d9di_html_write_config(d9di_html_page *p);

/* The heading above what belongs to one of several runs. */
void d9di_html_run_heading(d9di_html_page *p, size_t run);

#endif /* D9DI_REPORT_HTML_PAGE_H */
