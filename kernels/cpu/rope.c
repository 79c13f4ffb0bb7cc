/* rope.c - rotary position embedding: pairs of features turn by position * inv_freq.
 * (a, b) -> (a cos - b sin, b cos + a sin); sign -1 turns back. */
#include "cpu/math.h"
#include "cpu/norm.h"

enum { MOST = 512 }; /* pairs of a head turned at once */

D9DI_CLONES void d9di_rope_angles(float *co, float *si, const float *inv_freq, float position,
                                  float mscale, float sign, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;

        d9di_sincosf(position * inv_freq[i], &s, &c);
        co[i] = c * mscale;
        si[i] = s * mscale * sign;
    }
}

D9DI_CLONES static void turn_half(float *restrict ya, float *restrict yb, const float *restrict xa,
                                  const float *restrict xb, const float *restrict co,
                                  const float *restrict si, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ya[i] = xa[i] * co[i] - xb[i] * si[i];
        yb[i] = xb[i] * co[i] + xa[i] * si[i];
    }
}

D9DI_CLONES static void turn_pairs(float *restrict y, const float *restrict x,
                                   const float *restrict co, const float *restrict si, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y[2 * i] = x[2 * i] * co[i] - x[2 * i + 1] * si[i];
        y[2 * i + 1] = x[2 * i + 1] * co[i] + x[2 * i] * si[i];
    }
}

void d9di_rope_turn(bool interleaved, float *y, const float *x, const float *co, const float *si,
                    int64_t n)
{
    if (interleaved)
        turn_pairs(y, x, co, si, n);
    else
        turn_half(y, y + n, x, x + n, co, si, n);
}

/* Where the pairs [first, first + n) of a head are: at ia and ib, n each, or 2 n at ia. */
typedef struct span {
    d9d_dtype t;
    void *y;
    const void *x;
    bool interleaved;
} span;

static void turn(const span *p, int64_t ia, int64_t ib, const float *co, const float *si, int64_t n)
{
    float xa[2 * MOST], xb[MOST], ya[2 * MOST], yb[MOST];
    float *oa = d9di_out(p->t, p->y, ia, ya), *ob = d9di_out(p->t, p->y, ib, yb);

    if (p->interleaved) {
        turn_pairs(oa, d9di_in(p->t, p->x, ia, 2 * n, xa), co, si, n);
        d9di_put(p->t, p->y, ia, 2 * n, oa);
        return;
    }
    turn_half(oa, ob, d9di_in(p->t, p->x, ia, n, xa), d9di_in(p->t, p->x, ib, n, xb), co, si, n);
    d9di_put(p->t, p->y, ia, n, oa);
    d9di_put(p->t, p->y, ib, n, ob);
}

d9d_status d9d_ref_rope(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *positions,
                        const float *inv_freq, int64_t m, int64_t heads, int64_t d, int64_t r,
                        bool interleaved, float mscale, float sign)
{
    const span p = {.t = t, .y = y, .x = x, .interleaved = interleaved};

    (void)s;
    D9D_TRY(d9di_check_float("rope", t));
#pragma omp parallel for if (m * heads * d > D9DI_SERIAL)
    for (int64_t i = 0; i < m; i++) {
        float co[MOST], si[MOST];

        for (int64_t f = 0; f < r / 2; f += MOST) {
            int64_t n = d9di_min(r / 2 - f, MOST);

            d9di_rope_angles(co, si, inv_freq + f, (float)positions[i], mscale, sign, n);
            for (int64_t h = 0; h < heads; h++) {
                int64_t at = (i * heads + h) * d;

                if (interleaved)
                    turn(&p, at + 2 * f, at, co, si, n);
                else
                    turn(&p, at + f, at + r / 2 + f, co, si, n);
            }
        }
        for (int64_t h = 0; h < heads && r < d; h++) {
            int64_t at = (i * heads + h) * d + r;

            memcpy(d9di_at(t, y, at), d9di_cat(t, x, at), (size_t)(d - r) * d9d_dtype_size(t));
        }
    }
    return D9D_OK;
}
