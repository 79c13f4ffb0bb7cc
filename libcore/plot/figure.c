/* figure.c - charts laid out on a canvas. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/sanitize_text.h"
#include "d9d/plot/chart.h"
#include "plot/axis.h"
#include "plot/canvas.h"

static const d9di_canvas_colour white = {255, 255, 255}, ink = {31, 41, 55}, grey = {107, 114, 128},
                                faint = {229, 231, 235}, rule = {156, 163, 175};

/* Colours distinct for most eyes, colour-blind ones included; further series are dashed. */
static const d9di_canvas_colour palette[] = {{37, 99, 175},  {217, 95, 14},  {34, 139, 98},
                                             {184, 56, 128}, {124, 92, 191}, {161, 116, 20},
                                             {20, 150, 180}, {90, 90, 90}};
enum { N_PALETTE = sizeof(palette) / sizeof(palette[0]) };

enum { MARGIN = 20, TITLE_ROW = 30, LEGEND_ROW = 20, X_ROW = 22, X_LABEL_ROW = 20 };

static const double LABEL_SIZE = 11, NAME_SIZE = 12, TITLE_SIZE = 15, FIGURE_TITLE_SIZE = 18;
static const double CHAR_WIDTH = 0.64; /* of the font size: the width of a digit */

struct frame {
    double x, y, w, h;
};

static d9di_canvas_pen series_pen(size_t series)
{
    return (d9di_canvas_pen){palette[series % N_PALETTE], 1.8,
                             series < N_PALETTE ? 0 : 3.0 + 3.0 * (double)(series / N_PALETTE)};
}

/* --- legend -------------------------------------------------------------------- */

static double name_width(const char *name)
{
    return 26 + CHAR_WIDTH * NAME_SIZE * (double)d9d_text_width(name) + 16;
}

/* Rows that the legend takes; draws it from (x, y) if there is a canvas. */
static int draw_legend(d9di_canvas *c, const d9d_chart *chart, double x, double y, double w)
{
    const d9di_canvas_font font = {.colour = ink, .size = NAME_SIZE};
    double at = 0;
    int rows = 1;

    if (chart->n_series < 2)
        return 0;
    for (size_t i = 0; i < chart->n_series; i++) {
        const char *name = chart->series[i].name;
        const double wide = name_width(name);

        if (at > 0 && at + wide > w) {
            at = 0;
            rows++;
        }
        if (c != NULL) {
            const double base = y + LEGEND_ROW * rows - 6, left = x + at;
            const double swatch[] = {left, base - 4, left + 18, base - 4};
            d9di_canvas_pen pen = series_pen(i);

            pen.width = 2.6;
            d9di_canvas_line(c, swatch, 2, pen);
            d9di_canvas_text(c, left + 25, base, name, font);
        }
        at += wide;
    }
    return rows;
}

/* --- lines ---------------------------------------------------------------------- */

/* Points of one stretch without gaps.  Points that share a pixel column are reduced to the first,
 * lowest, highest and last, which looks the same. */
struct polyline {
    D9D_VEC(double) xy;
    double column;                 /* of the points below */
    double first, low, high, last; /* y */
    size_t n;                      /* points in this column */
    d9d_status st;
};

static void polyline_push(struct polyline *s, double x, double y)
{
    if (s->st == D9D_OK)
        s->st = D9D_VEC_PUSH(&s->xy, x);
    if (s->st == D9D_OK)
        s->st = D9D_VEC_PUSH(&s->xy, y);
}

static void polyline_flush_column(struct polyline *s)
{
    if (s->n == 0)
        return;
    polyline_push(s, s->column, s->first);
    if (s->n > 1 && s->low != s->first && s->low != s->last)
        polyline_push(s, s->column, s->low);
    if (s->n > 1 && s->high != s->first && s->high != s->last)
        polyline_push(s, s->column, s->high);
    if (s->n > 1 && s->last != s->first)
        polyline_push(s, s->column, s->last);
    s->n = 0;
}

static void polyline_add(struct polyline *s, double x, double y, bool thin)
{
    const double column = thin ? floor(x * 2) / 2 : x;

    if (s->n > 0 && column != s->column)
        polyline_flush_column(s);
    if (s->n++ == 0) {
        s->column = column;
        s->first = s->low = s->high = y;
    }
    s->low = fmin(s->low, y);
    s->high = fmax(s->high, y);
    s->last = y;
}

static void draw_polyline(d9di_canvas *c, struct polyline *s, d9di_canvas_pen pen)
{
    polyline_flush_column(s);
    if (s->st == D9D_OK && s->xy.len == 2)
        d9di_canvas_dot(c, s->xy.data[0], s->xy.data[1], 2.2, pen.colour);
    else if (s->st == D9D_OK)
        d9di_canvas_line(c, s->xy.data, s->xy.len / 2, pen);
    s->xy.len = 0;
}

static d9d_status draw_series(d9di_canvas *c, const d9d_chart_series *v, const struct frame *f,
                              const d9di_axis *ax, const d9di_axis *ay, d9di_canvas_pen pen)
{
    const bool thin = (double)v->n > 2 * f->w;
    struct polyline s = {.st = D9D_OK};

    for (size_t i = 0; i < v->n; i++) {
        const double x = d9di_axis_position(ax, v->x[i]), y = d9di_axis_position(ay, v->y[i]);

        if (isnan(x) || isnan(y))
            draw_polyline(c, &s, pen);
        else
            polyline_add(&s, f->x + x * f->w, f->y + (1 - y) * f->h, thin);
    }
    draw_polyline(c, &s, pen);
    D9D_VEC_RELEASE(&s.xy);
    return s.st;
}

/* --- one chart -------------------------------------------------------------------- */

static void draw_axes(d9di_canvas *c, const struct frame *f, const d9di_axis *ax,
                      const d9di_axis *ay)
{
    const d9di_canvas_font left = {
        .colour = grey, .size = LABEL_SIZE, .anchor = D9DI_CANVAS_ANCHOR_END};
    const d9di_canvas_font below = {
        .colour = grey, .size = LABEL_SIZE, .anchor = D9DI_CANVAS_ANCHOR_MIDDLE};
    const double bottom = f->y + f->h;
    const double base[] = {f->x, bottom, f->x + f->w, bottom};

    for (int i = 0; i < ay->n; i++) {
        const double y = bottom - d9di_axis_position(ay, ay->tick[i]) * f->h;
        const double line[] = {f->x, y, f->x + f->w, y};

        d9di_canvas_line(c, line, 2, (d9di_canvas_pen){faint, 1, 0});
        d9di_canvas_text(c, f->x - 8, y + LABEL_SIZE * 0.35, ay->label[i], left);
    }
    d9di_canvas_line(c, base, 2, (d9di_canvas_pen){rule, 1, 0});
    for (int i = 0; i < ax->n; i++) {
        const double x = f->x + d9di_axis_position(ax, ax->tick[i]) * f->w;
        const double mark[] = {x, bottom, x, bottom + 5};

        d9di_canvas_line(c, mark, 2, (d9di_canvas_pen){rule, 1, 0});
        d9di_canvas_text(c, x, bottom + 18, ax->label[i], below);
    }
}

static d9d_status draw_chart(d9di_canvas *c, const d9d_chart *chart, const struct frame *whole)
{
    const d9di_canvas_font title = {.colour = ink, .size = TITLE_SIZE, .bold = true};
    const d9di_canvas_font name = {
        .colour = grey, .size = LABEL_SIZE, .anchor = D9DI_CANVAS_ANCHOR_END};
    const double below = X_ROW + (chart->x_label != NULL ? X_LABEL_ROW : 0);
    const double x = whole->x + MARGIN, w = whole->w - 2 * MARGIN;
    const int rows = draw_legend(NULL, chart, x, 0, w);
    const double top = whole->y + MARGIN + TITLE_ROW + LEGEND_ROW * rows;
    struct frame f = {x, top, w, whole->y + whole->h - MARGIN - below - top};
    d9di_axis ax, ay;
    double labels;

    d9di_axis_y(chart, (int)fmax(2, f.h / 34), &ay);
    labels = CHAR_WIDTH * LABEL_SIZE * d9di_axis_label_width(&ay) + 10;
    f.x += labels;
    f.w -= labels;
    d9di_axis_x(chart, (int)fmax(2, f.w / 80), &ax);
    d9di_canvas_text(c, x, whole->y + MARGIN + TITLE_SIZE, chart->title, title);
    (void)draw_legend(c, chart, x, whole->y + MARGIN + TITLE_ROW - 6, w);
    draw_axes(c, &f, &ax, &ay);
    for (size_t i = 0; i < chart->n_series; i++)
        D9D_TRY(draw_series(c, &chart->series[i], &f, &ax, &ay, series_pen(i)));
    if (chart->x_label != NULL)
        d9di_canvas_text(c, f.x + f.w, f.y + f.h + X_ROW + 14, chart->x_label, name);
    return D9D_OK;
}

/* --- the figure --------------------------------------------------------------------- */

static d9d_status draw_figure(d9di_canvas *c, const d9d_figure *f, size_t columns, double head)
{
    const double w = c->width / (double)columns;
    const double h = (c->height - head) / (double)((f->n + columns - 1) / columns);
    const d9di_canvas_font title = {.colour = ink, .size = FIGURE_TITLE_SIZE, .bold = true};

    d9di_canvas_rect(c, 0, 0, c->width, c->height, white);
    if (f->title != NULL)
        d9di_canvas_text(c, MARGIN, head - 2, f->title, title);
    for (size_t i = 0; i < f->n; i++) {
        const struct frame frame = {w * (double)(i % columns), head + h * (double)(i / columns), w,
                                    h};

        D9D_TRY(draw_chart(c, &f->charts[i], &frame));
    }
    return D9D_OK;
}

d9d_status d9d_figure_render(const d9d_figure *f, d9d_image_kind kind, d9d_buf *out)
{
    const size_t columns = f->columns > 0 ? f->columns : 1, rows = (f->n + columns - 1) / columns;
    const double w = f->width > 0 ? f->width : 720, h = f->height > 0 ? f->height : 400;
    const double head = f->title != NULL ? MARGIN + FIGURE_TITLE_SIZE : 0;
    d9di_canvas *c;
    d9d_status drawn, st;

    D9D_TRY(d9di_canvas_create(kind, w * (double)columns, head + h * (double)(rows > 0 ? rows : 1),
                               &c));
    drawn = draw_figure(c, f, columns, head);
    st = d9di_canvas_finish(c, out);
    return drawn != D9D_OK ? drawn : st;
}

d9d_status d9d_figure_write(const d9d_figure *f, const char *path)
{
    d9d_buf image = {0};
    d9d_image_kind kind;
    d9d_status st;

    D9D_TRY(d9d_image_kind_of(path, &kind));
    st = d9d_figure_render(f, kind, &image);
    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, image.data, image.len);
    d9d_buf_release(&image);
    return st;
}
