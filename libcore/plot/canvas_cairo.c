/* canvas_cairo.c - PNG (at 2x resolution, for sharp text) and PDF with cairo, where the build found
 * its headers.  The library is loaded with dlopen for the first such image. */
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
#include <dlfcn.h>
#include <stdlib.h>

#define LIBRARY "libcairo.so.2"

#define CAIRO_FUNCTIONS(X)                                                                         \
    X(cairo_set_source_rgb)                                                                        \
    X(cairo_rectangle)                                                                             \
    X(cairo_fill)                                                                                  \
    X(cairo_set_line_width)                                                                        \
    X(cairo_set_dash)                                                                              \
    X(cairo_set_line_join)                                                                         \
    X(cairo_set_line_cap)                                                                          \
    X(cairo_move_to)                                                                               \
    X(cairo_line_to)                                                                               \
    X(cairo_stroke)                                                                                \
    X(cairo_arc)                                                                                   \
    X(cairo_text_extents)                                                                          \
    X(cairo_select_font_face)                                                                      \
    X(cairo_set_font_size)                                                                         \
    X(cairo_show_text)                                                                             \
    X(cairo_status)                                                                                \
    X(cairo_status_to_string)                                                                      \
    X(cairo_get_target)                                                                            \
    X(cairo_surface_write_to_png_stream)                                                           \
    X(cairo_surface_finish)                                                                        \
    X(cairo_surface_status)                                                                        \
    X(cairo_destroy)                                                                               \
    X(cairo_image_surface_create)                                                                  \
    X(cairo_pdf_surface_create_for_stream)                                                         \
    X(cairo_pdf_surface_set_metadata)                                                              \
    X(cairo_create)                                                                                \
    X(cairo_surface_destroy)                                                                       \
    X(cairo_scale)

struct cairo {
#define X(f) __typeof__(&f) f;
    CAIRO_FUNCTIONS(X)
#undef X
    void *library;
    cairo_t *context;
};

static const double PNG_SCALE = 2;

static void set_colour(const struct cairo *k, d9di_canvas_colour c)
{
    k->cairo_set_source_rgb(k->context, c.r / 255.0, c.g / 255.0, c.b / 255.0);
}

static void draw_rect(d9di_canvas *c, double x, double y, double w, double h,
                      d9di_canvas_colour fill)
{
    const struct cairo *k = c->cairo;

    set_colour(k, fill);
    k->cairo_rectangle(k->context, x, y, w, h);
    k->cairo_fill(k->context);
}

static void draw_line(d9di_canvas *c, const double *xy, size_t n, d9di_canvas_pen pen)
{
    const struct cairo *k = c->cairo;
    cairo_t *cr = k->context;

    set_colour(k, pen.colour);
    k->cairo_set_line_width(cr, pen.width);
    k->cairo_set_dash(cr, &pen.dash, pen.dash > 0 ? 1 : 0, 0);
    k->cairo_set_line_join(cr, CAIRO_LINE_JOIN_ROUND);
    k->cairo_set_line_cap(cr, n > 2 ? CAIRO_LINE_CAP_ROUND : CAIRO_LINE_CAP_BUTT);
    k->cairo_move_to(cr, xy[0], xy[1]);
    for (size_t i = 1; i < n; i++)
        k->cairo_line_to(cr, xy[2 * i], xy[2 * i + 1]);
    k->cairo_stroke(cr);
}

static void draw_dot(d9di_canvas *c, double x, double y, double radius, d9di_canvas_colour fill)
{
    const struct cairo *k = c->cairo;

    set_colour(k, fill);
    k->cairo_arc(k->context, x, y, radius, 0, 6.283185307179586);
    k->cairo_fill(k->context);
}

static void draw_text(d9di_canvas *c, double x, double y, const char *text, d9di_canvas_font font)
{
    static const double before[] = {[D9DI_CANVAS_ANCHOR_START] = 0,
                                    [D9DI_CANVAS_ANCHOR_MIDDLE] = 0.5,
                                    [D9DI_CANVAS_ANCHOR_END] = 1};
    const struct cairo *k = c->cairo;
    cairo_t *cr = k->context;
    cairo_text_extents_t e;

    set_colour(k, font.colour);
    k->cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                              font.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    k->cairo_set_font_size(cr, font.size);
    k->cairo_text_extents(cr, text, &e);
    k->cairo_move_to(cr, x - before[font.anchor] * e.x_advance, y);
    k->cairo_show_text(cr, text);
}

static cairo_status_t append_png_bytes(void *arg, const unsigned char *data, unsigned int n)
{
    d9di_canvas *c = arg;

    if (c->st == D9D_OK)
        c->st = d9d_buf_append(&c->bytes, data, n);
    return c->st == D9D_OK ? CAIRO_STATUS_SUCCESS : CAIRO_STATUS_WRITE_ERROR;
}

static d9d_status check_cairo(const struct cairo *k, cairo_status_t st)
{
    if (st == CAIRO_STATUS_SUCCESS)
        return D9D_OK;
    return D9D_FAIL(st == CAIRO_STATUS_NO_MEMORY ? D9D_ENOMEM : D9D_EIO, "image: %s",
                    k->cairo_status_to_string(st));
}

static void draw_finish(d9di_canvas *c)
{
    const struct cairo *k = c->cairo;
    cairo_surface_t *surface = k->cairo_get_target(k->context);
    d9d_status st = check_cairo(k, k->cairo_status(k->context));

    if (st == D9D_OK && c->kind == D9D_IMAGE_PNG)
        st = check_cairo(k, k->cairo_surface_write_to_png_stream(surface, append_png_bytes, c));
    k->cairo_surface_finish(surface);
    if (st == D9D_OK && c->st == D9D_OK)
        st = check_cairo(k, k->cairo_surface_status(surface));
    if (c->st == D9D_OK)
        c->st = st;
}

static void draw_release(d9di_canvas *c)
{
    struct cairo *k = c->cairo;

    k->cairo_destroy(k->context);
    free(k);
}

static cairo_surface_t *create_surface(const struct cairo *k, d9di_canvas *c)
{
    cairo_surface_t *s;

    if (c->kind == D9D_IMAGE_PNG)
        return k->cairo_image_surface_create(CAIRO_FORMAT_RGB24, (int)(c->width * PNG_SCALE),
                                             (int)(c->height * PNG_SCALE));
    s = k->cairo_pdf_surface_create_for_stream(append_png_bytes, c, c->width, c->height);
    /* No date, so that equal charts give equal files. */
    k->cairo_pdf_surface_set_metadata(s, CAIRO_PDF_METADATA_CREATE_DATE, "");
    return s;
}

static d9d_status create_context(struct cairo *k, d9di_canvas *c)
{
    cairo_surface_t *surface = create_surface(k, c);

    k->context = k->cairo_create(surface);
    k->cairo_surface_destroy(surface);
    if (c->kind == D9D_IMAGE_PNG)
        k->cairo_scale(k->context, PNG_SCALE, PNG_SCALE);
    return check_cairo(k, k->cairo_status(k->context));
}

/* The library stays loaded: fontconfig keeps what it has read. */
static d9d_status load_library(struct cairo *k)
{
    static const char *const places[] = {LIBRARY, D9D_CAIRO_LIB "/" LIBRARY};

    for (size_t i = 0; i < sizeof(places) / sizeof(*places) && k->library == NULL; i++)
        k->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (k->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "PNG and PDF images need cairo, and %s is neither on the library path nor "
                        "in %s: install cairo, or choose a name that ends in .svg",
                        LIBRARY, D9D_CAIRO_LIB);
#define X(f)                                                                                       \
    *(void **)&k->f = dlsym(k->library, #f);                                                       \
    if (k->f == NULL)                                                                              \
        return D9D_FAIL(D9D_ENOTSUP, "%s has no function %s: it is too old", LIBRARY, #f);
    CAIRO_FUNCTIONS(X)
#undef X
    return D9D_OK;
}

d9d_status d9di_canvas_cairo(d9di_canvas *c)
{
    static const d9di_canvas_ops ops = {.rect = draw_rect,
                                        .line = draw_line,
                                        .dot = draw_dot,
                                        .text = draw_text,
                                        .finish = draw_finish,
                                        .release = draw_release};
    struct cairo *k = calloc(1, sizeof(*k));
    d9d_status st = k == NULL ? D9D_FAIL(D9D_ENOMEM, "no memory for an image") : load_library(k);

    if (st == D9D_OK) {
        st = create_context(k, c);
        if (st != D9D_OK)
            k->cairo_destroy(k->context);
    }
    if (st != D9D_OK) {
        free(k);
        return st;
    }
    c->ops = &ops;
    c->cairo = k;
    return D9D_OK;
}

#endif /* D9D_CAIRO */
