/* canvas_svg.c - SVG as text, with two decimals and no fonts: byte-identical on every machine. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "plot/canvas.h"

static void svg_printf(d9di_canvas *c, const char *fmt, ...) D9D_PRINTF(2, 3);
static void svg_printf(d9di_canvas *c, const char *fmt, ...)
{
    va_list ap;

    if (c->st != D9D_OK)
        return;
    va_start(ap, fmt);
    c->st = d9d_buf_vprintf(&c->bytes, fmt, ap);
    va_end(ap);
}

struct number_text {
    char text[32];
};

/* At most two decimals, without trailing zeros. */
static struct number_text format_number(double v)
{
    struct number_text n;
    size_t len = (size_t)d9d_num_format(n.text, sizeof(n.text), "%.2f", v);

    while (len > 1 && n.text[len - 1] == '0')
        n.text[--len] = '\0';
    if (n.text[len - 1] == '.')
        n.text[--len] = '\0';
    if (strcmp(n.text, "-0") == 0)
        memcpy(n.text, "0", 2);
    return n;
}

static void svg_rect(d9di_canvas *c, double x, double y, double w, double h, d9di_canvas_colour f)
{
    svg_printf(c, "<rect x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" fill=\"#%02x%02x%02x\"/>\n",
               format_number(x).text, format_number(y).text, format_number(w).text,
               format_number(h).text, f.r, f.g, f.b);
}

static void svg_line(d9di_canvas *c, const double *xy, size_t n, d9di_canvas_pen pen)
{
    svg_printf(c, "<polyline fill=\"none\" stroke=\"#%02x%02x%02x\" stroke-width=\"%s\"",
               pen.colour.r, pen.colour.g, pen.colour.b, format_number(pen.width).text);
    if (pen.dash > 0)
        svg_printf(c, " stroke-dasharray=\"%s\"", format_number(pen.dash).text);
    if (n > 2)
        svg_printf(c, " stroke-linejoin=\"round\" stroke-linecap=\"round\"");
    svg_printf(c, " points=\"");
    for (size_t i = 0; i < n; i++)
        svg_printf(c, "%s%s,%s", i > 0 ? " " : "", format_number(xy[2 * i]).text,
                   format_number(xy[2 * i + 1]).text);
    svg_printf(c, "\"/>\n");
}

static void svg_dot(d9di_canvas *c, double x, double y, double r, d9di_canvas_colour f)
{
    svg_printf(c, "<circle cx=\"%s\" cy=\"%s\" r=\"%s\" fill=\"#%02x%02x%02x\"/>\n",
               format_number(x).text, format_number(y).text, format_number(r).text, f.r, f.g, f.b);
}

static void svg_put_escaped(d9di_canvas *c, const char *text)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '&': svg_printf(c, "&amp;"); break;
        case '<': svg_printf(c, "&lt;"); break;
        case '>': svg_printf(c, "&gt;"); break;
        default: svg_printf(c, "%c", *text);
        }
}

static void svg_text(d9di_canvas *c, double x, double y, const char *text, d9di_canvas_font font)
{
    static const char *const anchors[] = {[D9DI_CANVAS_ANCHOR_START] = "",
                                          [D9DI_CANVAS_ANCHOR_MIDDLE] = " text-anchor=\"middle\"",
                                          [D9DI_CANVAS_ANCHOR_END] = " text-anchor=\"end\""};

    svg_printf(c, "<text x=\"%s\" y=\"%s\" font-size=\"%s\" fill=\"#%02x%02x%02x\"%s%s>",
               format_number(x).text, format_number(y).text, format_number(font.size).text,
               font.colour.r, font.colour.g, font.colour.b,
               font.bold ? " font-weight=\"bold\"" : "", anchors[font.anchor]);
    svg_put_escaped(c, text);
    svg_printf(c, "</text>\n");
}

static void svg_finish(d9di_canvas *c)
{
    svg_printf(c, "</g>\n</svg>\n");
}

d9d_status d9di_canvas_svg(d9di_canvas *c)
{
    static const d9di_canvas_ops ops = {
        .rect = svg_rect, .line = svg_line, .dot = svg_dot, .text = svg_text, .finish = svg_finish};
    const struct number_text w = format_number(c->width), h = format_number(c->height);

    c->ops = &ops;
    svg_printf(c,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\""
               " viewBox=\"0 0 %s %s\">\n<g font-family=\"DejaVu Sans, Verdana, sans-serif\">\n",
               w.text, h.text, w.text, h.text);
    return c->st;
}
