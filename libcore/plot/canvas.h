/* canvas.h - the drawing primitives of a chart, on SVG, PNG or PDF.
 *
 * y grows downwards; units are pixels.  Drawing calls return no status: the first error is stored,
 * and finish() returns it.
 */
#ifndef D9DI_PLOT_CANVAS_H
#define D9DI_PLOT_CANVAS_H

#include "d9d/plot/chart.h"

typedef struct d9di_canvas_colour {
    unsigned char r, g, b;
} d9di_canvas_colour;

typedef enum d9di_canvas_anchor {
    D9DI_CANVAS_ANCHOR_START,
    D9DI_CANVAS_ANCHOR_MIDDLE,
    D9DI_CANVAS_ANCHOR_END
} d9di_canvas_anchor;

typedef struct d9di_canvas_pen {
    d9di_canvas_colour colour;
    double width;
    double dash; /* length of dashes and gaps; 0: none */
} d9di_canvas_pen;

typedef struct d9di_canvas_font {
    d9di_canvas_colour colour;
    double size;
    bool bold;
    d9di_canvas_anchor anchor;
} d9di_canvas_font;

typedef struct d9di_canvas d9di_canvas;

d9d_status d9di_canvas_create(d9d_image_kind kind, double width, double height, d9di_canvas **out);

void d9di_canvas_rect(d9di_canvas *c, double x, double y, double w, double h,
                      d9di_canvas_colour fill);
/* xy: n pairs. */
void d9di_canvas_line(d9di_canvas *c, const double *xy, size_t n, d9di_canvas_pen pen);
void d9di_canvas_dot(d9di_canvas *c, double x, double y, double radius, d9di_canvas_colour fill);
/* (x, y) is on the baseline. */
void d9di_canvas_text(d9di_canvas *c, double x, double y, const char *text, d9di_canvas_font font);

/* Appends the image to `out`.  Frees the canvas in any case. */
d9d_status d9di_canvas_finish(d9di_canvas *c, d9d_buf *out);

/* --- operations of a kind of canvas ------------------------------------------- */

typedef struct d9di_canvas_ops {
    void (*rect)(d9di_canvas *c, double x, double y, double w, double h, d9di_canvas_colour fill);
    void (*line)(d9di_canvas *c, const double *xy, size_t n, d9di_canvas_pen pen);
    void (*dot)(d9di_canvas *c, double x, double y, double radius, d9di_canvas_colour fill);
    void (*text)(d9di_canvas *c, double x, double y, const char *text, d9di_canvas_font font);
    void (*finish)(d9di_canvas *c);  /* completes c->bytes */
    void (*release)(d9di_canvas *c); /* frees everything except the bytes */
} d9di_canvas_ops;

struct d9di_canvas {
    const d9di_canvas_ops *ops;
    d9d_image_kind kind;
    double width, height;
    d9d_buf bytes;
    d9d_status st; /* the first error */
    void *cairo;
};

d9d_status d9di_canvas_svg(d9di_canvas *c);
d9d_status d9di_canvas_cairo(d9di_canvas *c);

#endif /* D9DI_PLOT_CANVAS_H */
