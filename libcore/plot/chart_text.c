/* chart_text.c - line charts in a terminal. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/sanitize_text.h"
#include "d9d/plot/chart.h"
#include "plot/axis.h"

enum { COLUMNS_MIN = 24, COLUMNS_MAX = 400, ROWS_MIN = 8, ROWS_MAX = 200 };

/* The plot area in characters.  A character has sx by sy dots; `dots` holds braille bits, `owner`
 * the series drawn last, plus one. */
struct dot_grid {
    int w, h, sx, sy;
    unsigned char *dots, *owner;
    const d9d_chart_text_style *style;
};

static const char series_marks[] = "*+ox#@%&";
static const int colours[] = {34, 33, 32, 35, 36, 31, 94, 90}; /* SGR foreground colours */
enum { N_MARKS = sizeof(series_marks) - 1 };

/* --- dots ------------------------------------------------------------------- */

static void set_dot(struct dot_grid *g, int x, int y, size_t series)
{
    static const unsigned char bit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const int glyph = y / g->sy * g->w + x / g->sx;

    if (x < 0 || y < 0 || x >= g->w * g->sx || y >= g->h * g->sy)
        return;
    g->dots[glyph] |= g->sx == 2 ? bit[y % 4][x % 2] : 1;
    g->owner[glyph] = (unsigned char)(series % N_MARKS + 1);
}

/* Bresenham's line. */
static void draw_line(struct dot_grid *g, int x0, int y0, int x1, int y1, size_t series)
{
    const int dx = abs(x1 - x0), dy = -abs(y1 - y0), sx = x0 < x1 ? 1 : -1, sy = y0 < y1 ? 1 : -1;
    int err = dx + dy;

    for (;;) {
        const int e2 = 2 * err;

        set_dot(g, x0, y0, series);
        if (x0 == x1 && y0 == y1)
            return;
        if (e2 >= dy) {
            err += dy;
            x0 += sx;
        }
        if (e2 <= dx) {
            err += dx;
            y0 += sy;
        }
    }
}

static void draw_series(struct dot_grid *g, const d9d_chart_series *s, size_t index,
                        const d9di_axis *ax, const d9di_axis *ay)
{
    int px = 0, py = 0;
    bool joined = false;

    for (size_t i = 0; i < s->n; i++) {
        const double x = d9di_axis_position(ax, s->x[i]), y = d9di_axis_position(ay, s->y[i]);
        int ix, iy;

        if (isnan(x) || isnan(y)) {
            joined = false;
            continue;
        }
        ix = (int)lround(x * (g->w * g->sx - 1));
        iy = (int)lround((1 - y) * (g->h * g->sy - 1));
        if (joined)
            draw_line(g, px, py, ix, iy, index);
        else
            set_dot(g, ix, iy, index);
        px = ix;
        py = iy;
        joined = true;
    }
}

/* --- lines of text ------------------------------------------------------------- */

static d9d_status append_coloured(d9d_buf *b, const d9d_chart_text_style *s, size_t series,
                                  const char *text)
{
    if (!s->colour)
        return d9d_buf_printf(b, "%s", text);
    return d9d_buf_printf(b, "\033[%dm%s\033[0m", colours[series % N_MARKS], text);
}

static d9d_status append_glyph(d9d_buf *b, const struct dot_grid *g, int glyph)
{
    const unsigned dots = g->dots[glyph];
    char text[4] = {0};

    if (dots == 0)
        return d9d_buf_append(b, " ", 1);
    if (g->sx == 2) { /* U+2800 plus the dots, in UTF-8 */
        text[0] = (char)0xe2;
        text[1] = (char)(0xa0 | dots >> 6);
        text[2] = (char)(0x80 | (dots & 0x3f));
    } else {
        text[0] = series_marks[g->owner[glyph] - 1];
    }
    return append_coloured(b, g->style, (size_t)g->owner[glyph] - 1, text);
}

/* The tick of a text row, or -1; a tick goes to the nearest row. */
static int tick_of_row(const d9di_axis *ay, int row, int rows)
{
    for (int i = 0; i < ay->n; i++)
        if ((int)lround((1 - d9di_axis_position(ay, ay->tick[i])) * (rows - 1)) == row)
            return i;
    return -1;
}

/* Removes trailing blanks. */
static void trim_line(d9d_buf *b)
{
    while (b->len > 0 && b->data[b->len - 1] == ' ')
        b->data[--b->len] = '\0';
}

static d9d_status append_plot(d9d_buf *b, const struct dot_grid *g, const d9di_axis *ay, int labels)
{
    for (int row = 0; row < g->h; row++) {
        const int tick = tick_of_row(ay, row, g->h);

        D9D_TRY(d9d_buf_printf(b, "%*s %s", labels, tick >= 0 ? ay->label[tick] : "",
                               !g->style->utf8 ? (tick >= 0 ? "+" : "|")
                               : tick >= 0     ? "┤"
                                               : "│"));
        for (int x = 0; x < g->w; x++)
            D9D_TRY(append_glyph(b, g, row * g->w + x));
        trim_line(b);
        D9D_TRY(d9d_buf_append(b, "\n", 1));
    }
    return D9D_OK;
}

static int tick_column(const d9di_axis *ax, int i, int w)
{
    return (int)lround(d9di_axis_position(ax, ax->tick[i]) * (w - 1));
}

static bool is_tick_column(const d9di_axis *ax, int column, int w)
{
    for (int i = 0; i < ax->n; i++)
        if (tick_column(ax, i, w) == column)
            return true;
    return false;
}

/* The axis line with its marks, then the labels, centred below as far as they fit. */
static d9d_status append_x_axis(d9d_buf *b, const struct dot_grid *g, const d9di_axis *ax,
                                int labels, const char *x_label)
{
    const bool u = g->style->utf8;
    char line[COLUMNS_MAX + 2 * D9DI_AXIS_LABEL_MAX];
    int end = 0;

    D9D_TRY(d9d_buf_printf(b, "%*s %s", labels, "", u ? "└" : "+"));
    for (int x = 0; x < g->w; x++)
        D9D_TRY(d9d_buf_printf(b, "%s",
                               is_tick_column(ax, x, g->w) ? (u ? "┬" : "+") : (u ? "─" : "-")));
    memset(line, ' ', sizeof(line));
    for (int i = 0; i < ax->n; i++) {
        const int n = (int)strlen(ax->label[i]);
        int at = labels + 2 + tick_column(ax, i, g->w) - n / 2;

        if (at + n > labels + 2 + g->w)
            at = labels + 2 + g->w - n;
        if (at < 0 || (end > 0 && at < end + 1))
            continue;
        memcpy(line + at, ax->label[i], (size_t)n);
        end = at + n;
    }
    D9D_TRY(d9d_buf_printf(b, "\n%.*s\n", end, line));
    if (x_label != NULL)
        D9D_TRY(d9d_buf_printf(b, "%*s\n", labels + 2 + g->w, x_label));
    return D9D_OK;
}

static d9d_status append_legend(d9d_buf *b, const d9d_chart *c, const struct dot_grid *g)
{
    const int width = g->style->columns;
    int at = 0;

    for (size_t i = 0; i < c->n_series; i++) {
        const char mark[2] = {series_marks[i % N_MARKS], '\0'};
        const int n = d9d_text_width(c->series[i].name) + 5;

        if (at > 0 && at + n > width) {
            D9D_TRY(d9d_buf_append(b, "\n", 1));
            at = 0;
        }
        D9D_TRY(d9d_buf_append(b, "  ", 2));
        D9D_TRY(append_coloured(b, g->style, i, g->sx == 2 ? "━━" : mark));
        D9D_TRY(d9d_buf_append(b, " ", 1));
        D9D_TRY(d9d_text_sanitize(b, c->series[i].name));
        at += n;
    }
    return d9d_buf_append(b, "\n", 1);
}

/* --- the chart ------------------------------------------------------------------- */

static int clamp_int(int v, int lo, int hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

static d9d_status append_chart(const d9d_chart *c, struct dot_grid *g, const d9di_axis *ay,
                               int labels, d9d_buf *out)
{
    d9di_axis ax;

    d9di_axis_x(c, g->w / 10 > 2 ? g->w / 10 : 2, &ax);
    for (size_t i = 0; i < c->n_series; i++)
        draw_series(g, &c->series[i], i, &ax, ay);
    D9D_TRY(d9d_buf_printf(out, "%s", g->style->colour ? "\033[1m" : ""));
    D9D_TRY(d9d_text_sanitize(out, c->title));
    D9D_TRY(d9d_buf_printf(out, "%s\n", g->style->colour ? "\033[0m" : ""));
    if (c->n_series > 1)
        D9D_TRY(append_legend(out, c, g));
    D9D_TRY(append_plot(out, g, ay, labels));
    return append_x_axis(out, g, &ax, labels, c->x_label);
}

d9d_status d9d_chart_text(const d9d_chart *c, const d9d_chart_text_style *style, d9d_buf *out)
{
    const int columns = clamp_int(style->columns, COLUMNS_MIN, COLUMNS_MAX);
    const int rows = clamp_int(style->rows, ROWS_MIN, ROWS_MAX);
    /* Without colour, dots cannot tell series apart. */
    const bool braille = style->utf8 && (style->colour || c->n_series < 2);
    struct dot_grid g = {.sx = braille ? 2 : 1, .sy = braille ? 4 : 1, .style = style};
    d9d_arena a = {0};
    d9d_status st;
    d9di_axis ay;
    int labels;

    g.h = rows - 3 - (c->x_label != NULL) - (c->n_series > 1);
    d9di_axis_y(c, clamp_int(g.h / 2, 2, 8), &ay);
    labels = d9di_axis_label_width(&ay);
    g.w = clamp_int(columns - labels - 2, 8, COLUMNS_MAX);
    g.dots = d9d_arena_alloc(&a, (size_t)g.w * (size_t)g.h);
    g.owner = d9d_arena_alloc(&a, (size_t)g.w * (size_t)g.h);
    if (g.dots == NULL || g.owner == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "no memory for a chart of %d by %d", g.w, g.h);
    else
        st = append_chart(c, &g, &ay, labels, out);
    d9d_arena_release(&a);
    return st;
}
