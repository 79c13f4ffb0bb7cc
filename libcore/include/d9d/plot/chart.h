/* chart.h - line charts: for the terminal, and as SVG, PNG and PDF.
 *
 *     const d9d_chart_series lr = {"lr", steps, rates, n};
 *     const d9d_chart chart = {.title = "learning rate", .x_label = "step",
 *                              .series = &lr, .n_series = 1};
 *     const d9d_figure figure = {.charts = &chart, .n = 1};
 *
 *     D9D_TRY(d9d_figure_write(&figure, "lr.svg"));
 *
 * x is ascending.  A value that is not finite, or not above 0 on a log axis, is a gap in its line.
 * Text is UTF-8; invalid bytes are shown as U+FFFD. SVG output is byte-identical on every machine:
 * numbers have two decimals, and the viewer chooses the fonts.  PNG and PDF are drawn by
 * cairo; ENOTSUP in a build without it.
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

/* Charts in rows of `columns`; `title`, if not NULL, stands above them. */
typedef struct d9d_figure {
    const char *title;
    const d9d_chart *charts;
    size_t n;
    size_t columns;       /* 0: one */
    double width, height; /* of one chart in pixels (points in a PDF); 0: 720 x 400 */
} d9d_figure;

typedef enum d9d_image_kind { D9D_IMAGE_SVG, D9D_IMAGE_PNG, D9D_IMAGE_PDF } d9d_image_kind;

/* The image kind by the file name's extension, .svg, .png or .pdf; else ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_image_kind_of(const char *path, d9d_image_kind *out);

/* Appends the complete image to `out`. */
D9D_API D9D_MUST_USE d9d_status d9d_figure_render(const d9d_figure *f, d9d_image_kind kind,
                                                  d9d_buf *out);
/* Writes the image in the format of the extension.  The file is replaced atomically. */
D9D_API D9D_MUST_USE d9d_status d9d_figure_write(const d9d_figure *f, const char *path);

/* The terminal: braille dots if UTF-8, else letters. */
typedef struct d9d_chart_text_style {
    int columns, rows; /* of the whole chart; at least 24 x 8 is used */
    bool utf8, colour;
} d9d_chart_text_style;

/* Appends the chart as lines of text. */
D9D_API D9D_MUST_USE d9d_status d9d_chart_text(const d9d_chart *c,
                                               const d9d_chart_text_style *style, d9d_buf *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLOT_CHART_H */
