/* chart.h - line charts: for the terminal, and as SVG, PNG and PDF.
 *
 *     const d9d_chart_series lr = {"lr", steps, rates, n};
 *     const d9d_chart chart = {.title = "learning rate", .x_label = "step",
 *                              .series = &lr, .n_series = 1};
 *     const d9d_figure figure = {.charts = &chart, .n = 1};
 *
 *     D9D_TRY(d9d_figure_write(&figure, "lr.svg"));
 *
 * Points follow each other in x; one that is not finite, or not above 0 on a log
 * axis, is a gap in its line.  Text is UTF-8; what is not is shown as U+FFFD.
 * An SVG has the same bytes everywhere: it is text with numbers of two decimals, and
 * leaves the fonts to its viewer.  PNG and PDF are drawn by cairo.
 */
#ifndef D9D_PLOT_CHART_H
#define D9D_PLOT_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "d9d/base/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_chart_series {
    const char *name; /* in the legend */
    const double *x, *y;
    size_t n;
} d9d_chart_series;

typedef struct d9d_chart {
    const char *title;
    const char *x_label; /* may be NULL */
    const d9d_chart_series *series;
    size_t n_series;
    bool log_y;
} d9d_chart;

/* Charts in rows of `columns`, under a title of their own when it is not NULL. */
typedef struct d9d_figure {
    const char *title;
    const d9d_chart *charts;
    size_t n;
    size_t columns;       /* 0: one */
    double width, height; /* of one chart in pixels (points in a PDF); 0: 720 x 400 */
} d9d_figure;

typedef enum d9d_image_kind { D9D_IMAGE_SVG, D9D_IMAGE_PNG, D9D_IMAGE_PDF } d9d_image_kind;

/* What a file's name ends in: .svg, .png or .pdf; else ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_image_kind_of(const char *path, d9d_image_kind *out);

/* Append the whole image to `out`. */
D9D_API D9D_MUST_USE d9d_status d9d_figure_render(const d9d_figure *f, d9d_image_kind kind,
                                                  d9d_buf *out);
/* By the name's ending; the file appears whole or not at all. */
D9D_API D9D_MUST_USE d9d_status d9d_figure_write(const d9d_figure *f, const char *path);

/* How a terminal is drawn on: braille dots in UTF-8, else letters. */
typedef struct d9d_chart_text_style {
    int columns, rows; /* of the whole chart; at least 24 x 8 are used */
    bool utf8, colour;
} d9d_chart_text_style;

/* Append the chart as lines of text. */
D9D_API D9D_MUST_USE d9d_status d9d_chart_text(const d9d_chart *c,
                                               const d9d_chart_text_style *style, d9d_buf *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLOT_CHART_H */
