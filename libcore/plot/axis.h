/* axis.h - ranges, ticks at round numbers, and their labels. */
#ifndef D9DI_PLOT_AXIS_H
#define D9DI_PLOT_AXIS_H

#include "d9d/plot/chart.h"

enum { D9DI_AXIS_TICKS_MAX = 32, D9DI_AXIS_LABEL_MAX = 24 };

typedef struct d9di_axis {
    double lo, hi; /* lo < hi; both above 0 when log */
    bool log;
    int n;
    double tick[D9DI_AXIS_TICKS_MAX];
    char label[D9DI_AXIS_TICKS_MAX][D9DI_AXIS_LABEL_MAX];
} d9di_axis;

/* The axes that hold every point of the chart, with about `ticks` ticks. */
void d9di_axis_x(const d9d_chart *c, int ticks, d9di_axis *out);
void d9di_axis_y(const d9d_chart *c, int ticks, d9di_axis *out);

/* The position of v, 0 at lo and 1 at hi; NaN if it cannot be drawn. */
double d9di_axis_position(const d9di_axis *a, double v);

/* Width of the widest label in characters. */
int d9di_axis_label_width(const d9di_axis *a);

#endif /* D9DI_PLOT_AXIS_H */
