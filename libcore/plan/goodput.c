/* goodput.c - see d9d/plan/goodput.h. */
#include "d9d/plan/goodput.h"

#include <math.h>

double d9d_goodput_fraction(const d9d_goodput_costs *c, double period_s)
{
    const double hidden_s = fmax(c->save_s - c->blocked_s, 0), m = c->mtbf_s;

    return period_s /
           (m * exp((c->restart_s + hidden_s) / m) * expm1((period_s + c->blocked_s) / m));
}

/* The fraction has one maximum: golden section, over the logarithm of the period. */
double d9d_goodput_best_period(const d9d_goodput_costs *c, double min_s)
{
    const double ratio = (sqrt(5) - 1) / 2, least_s = fmax(fmax(min_s, c->save_s), 1e-3);
    double from = log(least_s), to = log(fmax(least_s, 10 * c->mtbf_s));

    while (to - from > 1e-6) {
        const double a = to - ratio * (to - from), b = from + ratio * (to - from);

        if (d9d_goodput_fraction(c, exp(a)) >= d9d_goodput_fraction(c, exp(b)))
            to = b;
        else
            from = a;
    }
    return exp(from);
}
