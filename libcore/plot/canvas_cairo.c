/* canvas_cairo.c - PNG (at 2x resolution, for sharp text) and PDF with cairo, where the build found
 * it. */
#include "plot/canvas.h"

#ifndef D9D_CAIRO

d9d_status d9di_canvas_cairo(d9di_canvas *c)
{
    (void)c;
    return D9D_FAIL(D9D_ENOTSUP, "PNG and PDF images need cairo, which was not there when this was "
                                 "built: choose a name that ends in .svg");
}

#else

#include <cairo-pdf.h>
#include <cairo.h>

static const double PNG_SCALE = 2;

static void set_colour(cairo_t *cr, d9di_canvas_colour c)
{
    cairo_set_source_rgb(cr, c.r / 255.0, c.g / 255.0, c.b / 255.0);
}

static void draw_rect(d9di_canvas *c, double x, double y, double w, double h,
                      d9di_canvas_colour fill)
{
    set_colour(c->cairo, fill);
    cairo_rectangle(c->cairo, x, y, w, h);
    cairo_fill(c->cairo);
}

static void draw_line(d9di_canvas *c, const double *xy, size_t n, d9di_canvas_pen pen)
{
    cairo_t *cr = c->cairo;

    set_colour(cr, pen.colour);
    cairo_set_line_width(cr, pen.width);
    cairo_set_dash(cr, &pen.dash, pen.dash > 0 ? 1 : 0, 0);
    cairo_set_line_join(cr, CAIRO_LINE_JOIN_ROUND);
    cairo_set_line_cap(cr, n > 2 ? CAIRO_LINE_CAP_ROUND : CAIRO_LINE_CAP_BUTT);
    cairo_move_to(cr, xy[0], xy[1]);
    for (size_t i = 1; i < n; i++)
        cairo_line_to(cr, xy[2 * i], xy[2 * i + 1]);
    cairo_stroke(cr);
}

static void draw_dot(d9di_canvas *c, double x, double y, double radius, d9di_canvas_colour fill)
{
    set_colour(c->cairo, fill);
    cairo_arc(c->cairo, x, y, radius, 0, 6.283185307179586);
    cairo_fill(c->cairo);
}

static void draw_text(d9di_canvas *c, double x, double y, const char *text, d9di_canvas_font font)
{
    static const double before[] = {[D9DI_CANVAS_ANCHOR_START] = 0,
                                    [D9DI_CANVAS_ANCHOR_MIDDLE] = 0.5,
                                    [D9DI_CANVAS_ANCHOR_END] = 1};
    cairo_t *cr = c->cairo;
    cairo_text_extents_t e;

    set_colour(cr, font.colour);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           font.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr, font.size);
    cairo_text_extents(cr, text, &e);
    cairo_move_to(cr, x - before[font.anchor] * e.x_advance, y);
    cairo_show_text(cr, text);
}

static cairo_status_t append_png_bytes(void *arg, const unsigned char *data, unsigned int n)
{
    d9di_canvas *c = arg;

    if (c->st == D9D_OK)
        c->st = d9d_buf_append(&c->bytes, data, n);
    return c->st == D9D_OK ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static d9d_status check_cairo(cairo_status_t st)
{
    if (st == CAIRO_STATUS_SUCCESS)
        return D9D_OK;
    return D9D_FAIL(st == CAIRO_STATUS_NO_MEMORY ? D9D_ENOMEM : D9D_EIO, "image: %s",
                    cairo_status_to_string(st));
}

static void draw_finish(d9di_canvas *c)
{
    cairo_surface_t *surface = cairo_get_target(c->cairo);
    d9d_status st = check_cairo(cairo_status(c->cairo));

    if (st == D9D_OK && c->kind == D9D_IMAGE_PNG)
        st = check_cairo(cairo_surface_write_to_png_stream(surface, append_png_bytes, c));
    cairo_surface_finish(surface);
    if (st == D9D_OK && c->st == D9D_OK)
        st = check_cairo(cairo_surface_status(surface));
    if (c->st == D9D_OK)
        c->st = st;
}

static void draw_release(d9di_canvas *c)
{
    cairo_destroy(c->cairo);
}

static cairo_surface_t *create_surface(d9di_canvas *c)
{
    cairo_surface_t *s;

    if (c->kind == D9D_IMAGE_PNG)
        return cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)(c->width * PNG_SCALE),
                                          (int)(c->height * PNG_SCALE));
    s = cairo_pdf_surface_create_for_stream(append_png_bytes, c, c->width, c->height);
    /* No date, so that equal charts give equal files. */
    cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_CREATE_DATE, "");
    return s;
}

d9d_status d9di_canvas_cairo(d9di_canvas *c)
{
    static const d9di_canvas_ops ops = {.rect = draw_rect,
                                        .line = draw_line,
                                        .dot = draw_dot,
                                        .text = draw_text,
                                        .finish = draw_finish,
                                        .release = draw_release};
    cairo_surface_t *surface = create_surface(c);
    cairo_t *cr = cairo_create(surface);
    const d9d_status st = check_cairo(cairo_status(cr));

    cairo_surface_destroy(surface);
    if (st != D9D_OK) {
        cairo_destroy(cr);
        return st;
    }
    if (c->kind == D9D_IMAGE_PNG)
        cairo_scale(cr, PNG_SCALE, PNG_SCALE);
    c->ops = &ops;
    c->cairo = cr;
    return D9D_OK;
}

#endif /* D9D_CAIRO */
