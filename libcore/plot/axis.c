/* axis.c - ranges and ticks. */
#include "plot/axis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"

/* Bounds drawn values, so that the difference of two is finite. */
#define DRAWN_MAX 1e300

struct range {
    double lo, hi;
};

static bool is_drawable(double v, bool positive)
{
    return fabs(v) < DRAWN_MAX && (!positive || v > 0);
}

/* The range of the points that can be drawn; [0, 1], or [1, 10] on a log axis, without any. */
static struct range data_range(const d9d_chart *c, bool of_y)
{
    struct range r = {INFINITY, -INFINITY};

    for (size_t s = 0; s < c->n_series; s++)
        for (size_t i = 0; i < c->series[s].n; i++) {
            const double x = c->series[s].x[i], y = c->series[s].y[i], v = of_y ? y : x;

            if (!is_drawable(x, false) || !is_drawable(y, c->log_y))
                continue;
            r.lo = fmin(r.lo, v);
            r.hi = fmax(r.hi, v);
        }
    if (r.lo > r.hi)
        r = c->log_y && of_y ? (struct range){1, 10} : (struct range){0, 1};
    return r;
}

/* 1, 2 or 5 times a power of ten: the smallest step that gives at most `ticks` steps. */
static double round_step(double span, int ticks)
{
    const double raw = span / ticks, power = pow(10, floor(log10(raw)));
    const double m = raw / power;

    return power * (m <= 1 + 1e-9 ? 1 : m <= 2 + 1e-9 ? 2 : m <= 5 + 1e-9 ? 5 : 10);
}

static int decimals_for(double step)
{
    const int n = (int)ceil(-log10(step) - 1e-9);

    return n < 0 ? 0 : n < 9 ? n : 9;
}

/* "5e-4", "2.5e-4": mantissas without the trailing zeros that no tick needs. */
static void format_exponent(char out[D9DI_AXIS_LABEL_MAX], double v, double step)
{
    const int e = (int)floor(log10(fabs(v)) + 1e-9);
    char mantissa[D9DI_AXIS_LABEL_MAX];
    size_t n = (size_t)d9d_num_format(mantissa, sizeof(mantissa), "%.*f",
                                      decimals_for(step / pow(10, e)), v / pow(10, e));

    if (strchr(mantissa, '.') != NULL) {
        while (mantissa[n - 1] == '0')
            mantissa[--n] = '\0';
        if (mantissa[n - 1] == '.')
            mantissa[--n] = '\0';
    }
    (void)snprintf(out, D9DI_AXIS_LABEL_MAX, "%.16se%d", mantissa, e);
}

/* One scale for all labels of an axis: k, M, G for thousands; exponents for tiny values. */
static void format_label(char out[D9DI_AXIS_LABEL_MAX], double v, double largest, double step)
{
    static const struct {
        double from, unit;
        const char *suffix;
    } scales[] = {{1e15, 1e15, "P"}, {1e12, 1e12, "T"}, {1e9, 1e9, "G"},
                  {1e6, 1e6, "M"},   {1e4, 1e3, "k"},   {0, 1, ""}};
    size_t i = 0;

    if (v == 0) {
        (void)snprintf(out, D9DI_AXIS_LABEL_MAX, "0");
        return;
    }
    if (largest < 0.01 || largest >= 1e18) {
        format_exponent(out, v, step);
        return;
    }
    while (largest < scales[i].from)
        i++;
    (void)d9d_num_format(out, D9DI_AXIS_LABEL_MAX, "%.*f%s", decimals_for(step / scales[i].unit),
                         v / scales[i].unit, scales[i].suffix);
}

static void add_tick(d9di_axis *a, double v, double largest, double step)
{
    if (a->n == D9DI_AXIS_TICKS_MAX)
        return;
    a->tick[a->n] = v;
    format_label(a->label[a->n++], v, largest, step);
}

static void linear_ticks(d9di_axis *a, int ticks)
{
    const double step = round_step(a->hi - a->lo, ticks), largest = fmax(fabs(a->lo), fabs(a->hi));
    const double first = ceil(a->lo / step - 1e-9);

    for (int i = 0; i <= ticks + 1; i++) {
        const double v = (first + i) * step;

        if (v > a->hi + step * 1e-9)
            break;
        add_tick(a, fabs(v) < step * 1e-9 ? 0 : v, largest, step);
    }
}

/* Decades, or every second or third one if there are many; 1, 2 and 5 of each if there are few. */
static void log_ticks(d9di_axis *a, int ticks)
{
    const double lo = log10(a->lo), hi = log10(a->hi);
    const int every = (int)fmax(1, ceil((hi - lo) / ticks));
    static const double of_few[] = {1, 2, 5};
    const size_t n = hi - lo < 2.5 ? 3 : 1;

    for (int e = (int)floor(lo); e <= (int)ceil(hi); e++)
        for (size_t i = 0; i < n; i++) {
            const double v = of_few[i] * pow(10, e);

            if (e % every == 0 && v >= a->lo * (1 - 1e-9) && v <= a->hi * (1 + 1e-9))
                add_tick(a, v, v, v);
        }
}

void d9di_axis_x(const d9d_chart *c, int ticks, d9di_axis *out)
{
    const struct range r = data_range(c, false);
    const double pad = r.hi > r.lo ? 0 : fmax(0.5, fabs(r.lo) * 1e-6);

    *out = (d9di_axis){.lo = r.lo - pad, .hi = r.hi + pad};
    linear_ticks(out, ticks);
}

static void pad_log(struct range *r)
{
    const double factor = r->hi > r->lo * (1 + 1e-9) ? pow(r->hi / r->lo, 0.04) : 2;

    r->lo = fmax(r->lo / factor, 1e-300);
    r->hi = fmin(r->hi * factor, 1e300);
}

/* Adds a margin; extends the range to 0 if the values come near it. */
static void pad_linear(struct range *r)
{
    const double span = r->hi - r->lo, size = fmax(fabs(r->lo), fabs(r->hi));
    const bool from_zero = r->lo >= 0 && r->lo <= 0.3 * r->hi;
    const double pad = span > size * 1e-9 ? 0.05 * span : size > 0 ? 0.1 * size : 1;

    r->hi += pad;
    r->lo = from_zero && r->hi > 0 && size > 0 ? 0 : r->lo - pad;
}

void d9di_axis_y(const d9d_chart *c, int ticks, d9di_axis *out)
{
    struct range r = data_range(c, true);

    if (c->log_y)
        pad_log(&r);
    else
        pad_linear(&r);
    *out = (d9di_axis){.lo = r.lo, .hi = r.hi, .log = c->log_y};
    if (c->log_y)
        log_ticks(out, ticks);
    else
        linear_ticks(out, ticks);
}

double d9di_axis_position(const d9di_axis *a, double v)
{
    if (!is_drawable(v, a->log))
        return (double)NAN;
    if (a->log)
        return log(v / a->lo) / log(a->hi / a->lo);
    return (v - a->lo) / (a->hi - a->lo);
}

int d9di_axis_label_width(const d9di_axis *a)
{
    int widest = 0;

    for (int i = 0; i < a->n; i++)
        if ((int)strlen(a->label[i]) > widest)
            widest = (int)strlen(a->label[i]);
    return widest;
}
