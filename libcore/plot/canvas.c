/* canvas.c - what all kinds of canvas share. */
#include "plot/canvas.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "d9d/base/sanitize_text.h"

static const struct {
    const char *suffix;
    d9d_status (*open)(d9di_canvas *c);
} kinds[] = {
    [D9D_IMAGE_SVG] = {".svg", d9di_canvas_svg},
    [D9D_IMAGE_PNG] = {".png", d9di_canvas_cairo},
    [D9D_IMAGE_PDF] = {".pdf", d9di_canvas_cairo},
};

d9d_status d9d_image_kind_of(const char *path, d9d_image_kind *out)
{
    const size_t n = strlen(path);

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (n > 4 && strcasecmp(path + n - 4, kinds[i].suffix) == 0) {
            *out = (d9d_image_kind)i;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_ECONFIG, "%s: an image ends in .svg, .png or .pdf", path);
}

d9d_status d9di_canvas_create(d9d_image_kind kind, double width, double height, d9di_canvas **out)
{
    d9di_canvas *c = calloc(1, sizeof(*c));
    d9d_status st;

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for an image");
    c->kind = kind;
    c->width = width;
    c->height = height;
    st = kinds[kind].open(c);
    if (st != D9D_OK) {
        d9d_buf_release(&c->bytes);
        free(c);
        return st;
    }
    *out = c;
    return D9D_OK;
}

void d9di_canvas_rect(d9di_canvas *c, double x, double y, double w, double h,
                      d9di_canvas_colour fill)
{
    c->ops->rect(c, x, y, w, h, fill);
}

void d9di_canvas_line(d9di_canvas *c, const double *xy, size_t n, d9di_canvas_pen pen)
{
    if (n > 1)
        c->ops->line(c, xy, n, pen);
}

void d9di_canvas_dot(d9di_canvas *c, double x, double y, double radius, d9di_canvas_colour fill)
{
    c->ops->dot(c, x, y, radius, fill);
}

void d9di_canvas_text(d9di_canvas *c, double x, double y, const char *text, d9di_canvas_font font)
{
    d9d_buf b = {0};
    d9d_status st = d9d_text_sanitize(&b, text);

    if (st != D9D_OK)
        c->st = st;
    else if (b.len > 0)
        c->ops->text(c, x, y, b.data, font);
    d9d_buf_release(&b);
}

d9d_status d9di_canvas_finish(d9di_canvas *c, d9d_buf *out)
{
    d9d_status st;

    c->ops->finish(c);
    st = c->st;
    if (st == D9D_OK)
        st = d9d_buf_append(out, c->bytes.data, c->bytes.len);
    if (c->ops->release != NULL)
        c->ops->release(c);
    d9d_buf_release(&c->bytes);
    free(c);
    return st;
}
