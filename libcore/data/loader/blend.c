/* blend.c - computes one period of draws.  See d9d/data/loader/blend.h. */
#include "d9d/data/loader/blend.h"
#include "d9d/base/num_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PERIOD = 1 << 20, DECIMALS = 6 }; /* longest period; digits of exact weights */

struct d9d_blend {
    size_t n;
    int64_t period;
    int64_t *weight; /* [n] W: draws of each source per period */
    struct slot {
        uint32_t number; /* index among the source's draws in this period */
        uint8_t source;
    } * slot; /* [period] */
};

/* --- integer weights ----------------------------------------------------------- */

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* W = w * scale if all are integers and their sum, in lowest terms, is small enough; otherwise
 * 0. */
static int64_t scale_exactly(const double *w, size_t n, double scale, int64_t *out)
{
    int64_t sum = 0, common = 0;

    for (size_t i = 0; i < n; i++) {
        const double v = w[i] * scale;

        if (v > 0x1p40 || fabs(v - rint(v)) > 1e-9 * v || rint(v) < 1)
            return 0;
        out[i] = (int64_t)rint(v);
        sum += out[i];
        common = gcd(out[i], common);
    }
    for (size_t i = 0; i < n; i++)
        out[i] /= common;
    return sum / common <= MAX_PERIOD ? sum / common : 0;
}

/* Rounds by largest remainders: the sum is exactly MOST, and no share becomes 0. */
static int64_t scale_rounded(const double *w, size_t n, int64_t *out)
{
    double total = 0, before = 0;
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        total += w[i];
    for (size_t i = 0; i < n; i++) {
        const double end = before + w[i] / total * MAX_PERIOD;
        const int64_t share = (int64_t)(rint(end) - rint(before));

        out[i] = share > 1 ? share : 1;
        sum += out[i];
        before = end;
    }
    return sum;
}

static int64_t integer_weights(const double *w, size_t n, int64_t *out)
{
    double scale = 1;

    for (int digits = 0; digits <= DECIMALS; digits++, scale *= 10) {
        const int64_t sum = scale_exactly(w, n, scale, out);

        if (sum > 0)
            return sum;
    }
    return scale_rounded(w, n, out);
}

/* --- the period ----------------------------------------------------------------------------- */

static void build_period(d9d_blend *b)
{
    uint32_t given[D9D_BLEND_SOURCES] = {0};

    for (int64_t t = 0; t < b->period; t++) {
        int64_t first = INT64_MAX;
        size_t chosen = 0;

        for (size_t i = 0; i < b->n; i++) {
            const int64_t w = b->weight[i], j = given[i];
            const int64_t end = ((j + 1) * b->period + w - 1) / w;

            if (j * b->period / w <= t && end < first) {
                first = end;
                chosen = i;
            }
        }
        b->slot[t] = (struct slot){given[chosen]++, (uint8_t)chosen};
    }
}

static d9d_status check_weights(const double *w, size_t n)
{
    if (n < 1 || n > D9D_BLEND_SOURCES)
        return D9D_FAIL(D9D_ECONFIG, "a blend of %zu dataset%s; it takes from 1 to %d", n,
                        D9D_PLURAL(n), D9D_BLEND_SOURCES);
    for (size_t i = 0; i < n; i++)
        if (!(w[i] > 0) || !isfinite(w[i]))
            return D9D_FAIL(D9D_ECONFIG, "weight %zu of a blend is %g; it must be above 0", i,
                            w[i]);
    return D9D_OK;
}

d9d_status d9d_blend_create(const double *weights, size_t n, d9d_blend **out)
{
    d9d_blend *b;

    D9D_TRY(check_weights(weights, n));
    b = calloc(1, sizeof(*b));
    if (b != NULL) {
        b->n = n;
        b->weight = calloc(n, sizeof(*b->weight));
    }
    if (b != NULL && b->weight != NULL) {
        b->period = integer_weights(weights, n, b->weight);
        b->slot = calloc((size_t)b->period, sizeof(*b->slot));
    }
    if (b == NULL || b->slot == NULL) {
        d9d_blend_free(b);
        return D9D_FAIL(D9D_ENOMEM, "no memory for a blend of %zu datasets", n);
    }
    build_period(b);
    *out = b;
    return D9D_OK;
}

void d9d_blend_free(d9d_blend *b)
{
    if (b == NULL)
        return;
    free(b->weight);
    free(b->slot);
    free(b);
}

d9d_blend_ref d9d_blend_at(const d9d_blend *b, int64_t k)
{
    const struct slot *s = &b->slot[k % b->period];

    return (d9d_blend_ref){s->source, k / b->period * b->weight[s->source] + s->number};
}

int64_t d9d_blend_find(const d9d_blend *b, int32_t source, int64_t number)
{
    const int64_t w = b->weight[source], limit = INT64_C(1) << 62;
    int64_t t = 0;

    if (number / w >= limit / b->period)
        return limit;
    while (b->slot[t].source != source || b->slot[t].number != number % w)
        t++;
    return number / w * b->period + t;
}
