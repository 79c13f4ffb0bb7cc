/* rope.c - frequencies of RoPE and their scaling.  See d9d/nn/rope.h.
 *
 * Operations and roundings are those of transformers' modeling_rope_utils.py: bounds in double,
 * what depends on a pair in float32.
 */
#include "d9d/nn/rope.h"

#include <math.h>
#include <stddef.h>

#define TWO_PI 6.283185307179586

const char *d9d_rope_kind_name(d9d_rope_kind kind)
{
    static const char *const words[] = {"plain", "linear", "ntk", "yarn", "llama3", "longrope"};

    return words[kind];
}

/* Of the frequency of a pair (longrope). */
static bool is_divisor(float x)
{
    return x > 0 && isfinite(x);
}

d9d_status d9d_rope_check(const char *where, const char *field, const d9d_rope_scaling *s)
{
    const bool yarn = s->kind == D9D_ROPE_YARN, listed = s->kind == D9D_ROPE_LONGROPE;
    const bool bounded = yarn || s->kind == D9D_ROPE_LLAMA3;
    const struct {
        const char *name, *range;
        double value;
        bool asked, fine;
    } rows[] = {
        {"factor", "at least 1", s->factor, s->kind != D9D_ROPE_PLAIN, s->factor >= 1},
        {"original_max_position_embeddings", listed ? "above 1" : "above 0", s->original,
         bounded || listed, s->original > (listed ? 1 : 0)},
        {yarn ? "beta_slow" : "low_freq_factor", "above 0", s->slow, bounded, s->slow > 0},
        {yarn ? "beta_fast" : "high_freq_factor",
         yarn ? "at least beta_slow" : "above low_freq_factor", s->fast, bounded,
         s->fast > s->slow || (yarn && s->fast == s->slow)},
        {"attention_factor", "at least 0", s->mscale, true, s->mscale >= 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].asked && !(rows[i].fine && isfinite(rows[i].value)))
            return D9D_FAIL(D9D_ECONFIG, "%s: %s.%s (%s): %.9g is not %s", where, field,
                            rows[i].name, d9d_rope_kind_name(s->kind), rows[i].value,
                            rows[i].range);
    for (int64_t i = 0; i < s->pairs && listed; i++)
        if (!is_divisor(s->short_factor[i]) || !is_divisor(s->long_factor[i]))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: %s: short_factor[%lld] is %g and long_factor[%lld] %g, and both "
                            "must be above 0 and finite in float32",
                            where, field, (long long)i, (double)s->short_factor[i], (long long)i,
                            (double)s->long_factor[i]);
    return D9D_OK;
}

float d9d_rope_mscale(const d9d_rope_scaling *s)
{
    if (s->mscale > 0)
        return (float)s->mscale;
    if (s->kind == D9D_ROPE_LONGROPE)
        return (float)sqrt(1 + log(s->factor) / log(s->original));
    return s->kind == D9D_ROPE_YARN ? (float)(0.1 * log(s->factor) + 1) : 1.0f;
}

/* Rounded once, as torch.pow() of float32. */
static float power(float x, float y)
{
    return (float)pow((double)x, (double)y);
}

static float clamp_unit(float v)
{
    return v < 0 ? 0 : v > 1 ? 1 : v;
}

/* The pair that makes so many turns over the original positions, as a real number. */
static double pair_at_turns(const d9d_rope_scaling *s, double turns, double base, int64_t features)
{
    return (double)features * log(s->original / (turns * TWO_PI)) / (2 * log(base));
}

/* Weight of pair i's unscaled frequency: 1 unscaled, 0 fully scaled. */
static float yarn_keep_share(const d9d_rope_scaling *s, double base, int64_t features, int64_t i)
{
    double low = pair_at_turns(s, s->fast, base, features),
           high = pair_at_turns(s, s->slow, base, features);

    if (s->whole) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < (double)features - 1 ? high : (double)features - 1;
    if (low == high)
        high += 0.001;
    return 1 - clamp_unit(((float)i - (float)low) / (float)(high - low));
}

/* torch divides a number by a tensor as it multiplies by the tensor's reciprocal. */
static float llama3_keep_share(const d9d_rope_scaling *s, float f)
{
    const float wavelength = (float)TWO_PI * (1 / f);

    return clamp_unit(((float)s->original * (1 / wavelength) - (float)s->slow) /
                      (float)(s->fast - s->slow));
}

double d9d_rope_base(const d9d_rope_scaling *s, double base, int64_t features)
{
    const double d = (double)features;

    return s->kind == D9D_ROPE_NTK ? base * pow(s->factor, d / (d - 2)) : base;
}

/* The frequency of pair i, which turns once in 2 pi `period` positions where it is unscaled. */
static float frequency(const d9d_rope_scaling *s, double base, int64_t features, int64_t i,
                       float period)
{
    const float own = 1 / period, factor = (float)s->factor;
    float keeps;

    switch (s->kind) {
    case D9D_ROPE_LINEAR: return own / factor;
    case D9D_ROPE_YARN:
        keeps = yarn_keep_share(s, base, features, i);
        return 1 / (factor * period) * (1 - keeps) + own * keeps;
    case D9D_ROPE_LLAMA3:
        keeps = llama3_keep_share(s, own);
        return keeps == 1 ? own : (1 - keeps) * own / factor + keeps * own;
    case D9D_ROPE_LONGROPE:
        return 1 / ((s->is_long ? s->long_factor : s->short_factor)[i] * period);
    default: return own;
    }
}

void d9d_rope_frequencies(const d9d_rope_scaling *s, double base, int64_t features, float *f)
{
    base = d9d_rope_base(s, base, features);
    for (int64_t i = 0; i < features / 2; i++)
        f[i] =
            frequency(s, base, features, i, power((float)base, (float)(2 * i) / (float)features));
}
