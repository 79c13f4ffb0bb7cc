/* canvas_svg.c - SVG as text, with two decimals and no fonts: the same bytes anywhere. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "plot/canvas.h"

static void put(d9di_canvas *c, const char *fmt, ...) D9D_PRINTF(2, 3);
static void put(d9di_canvas *c, const char *fmt, ...)
{
    va_list ap;

    if (c->st != D9D_OK)
        return;
    va_start(ap, fmt);
    c->st = d9d_buf_vprintf(&c->bytes, fmt, ap);
    va_end(ap);
}

struct number {
    char text[32];
};

/* At most two decimals, none that are zero. */
static struct number num(double v)
{
    struct number n;
    size_t len = (size_t)d9d_point_format(n.text, sizeof(n.text), "%.2f", v);

    while (len > 1 && n.text[len - 1] == '0')
        n.text[--len] = '\0';
    if (n.text[len - 1] == '.')
        n.text[--len] = '\0';
    if (strcmp(n.text, "-0") == 0)
        memcpy(n.text, "0", 2);
    return n;
}

static void svg_rect(d9di_canvas *c, double x, double y, double w, double h, d9di_colour f)
{
    put(c, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"#%02x%02x%02x\"/>\n",
        num(x).text, num(y).text, num(w).text, num(h).text, f.r, f.g, f.b);
}

static void svg_line(d9di_canvas *c, const double *xy, size_t n, d9di_pen pen)
{
    put(c, "<polyline fill=\"none\" stroke=\"#%02x%02x%02x\" stroke-width=\"%s\"", pen.colour.r,
        pen.colour.g, pen.colour.b, num(pen.width).text);
    if (pen.dash > 0)
        put(c, " stroke-dasharray=\"%s\"", num(pen.dash).text);
    if (n > 2)
        put(c, " stroke-linejoin=\"round\" stroke-linecap=\"round\"");
    put(c, " points=\"");
    for (size_t i = 0; i < n; i++)
        put(c, "%s%s,%s", i > 0 ? " " : "", num(xy[2 * i]).text, num(xy[2 * i + 1]).text);
    put(c, "\"/>\n");
}

static void svg_dot(d9di_canvas *c, double x, double y, double r, d9di_colour f)
{
    put(c, "<circle cx=\"%s\" cy=\"%s\" r=\"%s\" fill=\"#%02x%02x%02x\"/>\n", num(x).text,
        num(y).text, num(r).text, f.r, f.g, f.b);
}

static void put_escaped(d9di_canvas *c, const char *text)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '&': put(c, "&amp;"); break;
        case '<': put(c, "&lt;"); break;
        case '>': put(c, "&gt;"); break;
        default: put(c, "%c", *text);
        }
}

static void svg_text(d9di_canvas *c, double x, double y, const char *text, d9di_font font)
{
    static const char *const anchors[] = {[D9DI_START] = "",
                                          [D9DI_MIDDLE] = " text-anchor=\"middle\"",
                                          [D9DI_END] = " text-anchor=\"end\""};

    put(c, "<text x=\"%s\" y=\"%s\" font-size=\"%s\" fill=\"#%02x%02x%02x\"%s%s>", num(x).text,
        num(y).text, num(font.size).text, font.colour.r, font.colour.g, font.colour.b,
        font.bold ? " font-weight=\"bold\"" : "", anchors[font.anchor]);
    put_escaped(c, text);
    put(c, "</text>\n");
}

static void svg_finish(d9di_canvas *c)
{
    put(c, "</g>\n</svg>\n");
}

d9d_status d9di_canvas_svg(d9di_canvas *c)
{
    static const d9di_canvas_ops ops = {
        .rect = svg_rect, .line = svg_line, .dot = svg_dot, .text = svg_text, .finish = svg_finish};
    const struct number w = num(c->width), h = num(c->height);

    c->ops = &ops;
    put(c,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\""
        " viewBox=\"0 0 %s %s\">\n<g font-family=\"DejaVu Sans, Verdana, sans-serif\">\n",
        w.text, h.text, w.text, h.text);
    return c->st;
}
