/* rope.c - rotary position embedding (RoPE): pairs of features rotate by position * inv_freq. (a,
 * b) -> (a cos - b sin, b cos + a sin); sign -1 rotates back. */
#include "cpu/math.h"
#include "cpu/norm.h"

enum { MAX_PAIRS = 512 }; /* pairs of a head that are rotated at a time */

D9DI_CLONES void d9di_cpu_rope_angles(float *co, float *si, const float *inv_freq, float position,
                                      float mscale, float sign, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s, c;

        d9di_cpu_sincosf(position * inv_freq[i], &s, &c);
        co[i] = c * mscale;
        si[i] = s * mscale * sign;
    }
}

D9DI_CLONES static void rotate_halves(float *restrict ya, float *restrict yb,
                                      const float *restrict xa, const float *restrict xb,
                                      const float *restrict co, const float *restrict si, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ya[i] = xa[i] * co[i] - xb[i] * si[i];
        yb[i] = xb[i] * co[i] + xa[i] * si[i];
    }
}

D9DI_CLONES static void rotate_interleaved(float *restrict y, const float *restrict x,
                                           const float *restrict co, const float *restrict si,
                                           int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        y[2 * i] = x[2 * i] * co[i] - x[2 * i + 1] * si[i];
        y[2 * i + 1] = x[2 * i + 1] * co[i] + x[2 * i] * si[i];
    }
}

void d9di_cpu_rope_rotate(bool interleaved, float *y, const float *x, const float *co,
                          const float *si, int64_t n)
{
    if (interleaved)
        rotate_interleaved(y, x, co, si, n);
    else
        rotate_halves(y, y + n, x, x + n, co, si, n);
}

/* Pairs [first, first + n) of a head: n each at ia and ib, or 2 n at ia (interleaved). */
typedef struct rope_args {
    d9d_dtype t;
    void *y;
    const void *x;
    bool interleaved;
} rope_args;

static void rotate_block(const rope_args *p, int64_t ia, int64_t ib, const float *co,
                         const float *si, int64_t n)
{
    float xa[2 * MAX_PAIRS], xb[MAX_PAIRS], ya[2 * MAX_PAIRS], yb[MAX_PAIRS];
    float *oa = d9di_cpu_write_ptr(p->t, p->y, ia, ya),
          *ob = d9di_cpu_write_ptr(p->t, p->y, ib, yb);

    if (p->interleaved) {
        rotate_interleaved(oa, d9di_cpu_read(p->t, p->x, ia, 2 * n, xa), co, si, n);
        d9di_cpu_write(p->t, p->y, ia, 2 * n, oa);
        return;
    }
    rotate_halves(oa, ob, d9di_cpu_read(p->t, p->x, ia, n, xa),
                  d9di_cpu_read(p->t, p->x, ib, n, xb), co, si, n);
    d9di_cpu_write(p->t, p->y, ia, n, oa);
    d9di_cpu_write(p->t, p->y, ib, n, ob);
}

d9d_status d9d_ref_rope(d9d_stream s, d9d_dtype t, void *y, const void *x, const int32_t *positions,
                        const float *inv_freq, int64_t m, int64_t heads, int64_t d, int64_t r,
                        bool interleaved, float mscale, float sign)
{
    const rope_args p = {.t = t, .y = y, .x = x, .interleaved = interleaved};

    (void)s;
    D9D_TRY(d9di_args_check_float("rope", t));
#pragma omp parallel for if (m * heads * d > D9DI_MIN_PARALLEL)
    for (int64_t i = 0; i < m; i++) {
        float co[MAX_PAIRS], si[MAX_PAIRS];

        for (int64_t f = 0; f < r / 2; f += MAX_PAIRS) {
            int64_t n = d9di_i64_min(r / 2 - f, MAX_PAIRS);

            d9di_cpu_rope_angles(co, si, inv_freq + f, (float)positions[i], mscale, sign, n);
            for (int64_t h = 0; h < heads; h++) {
                int64_t at = (i * heads + h) * d;

                if (interleaved)
                    rotate_block(&p, at + 2 * f, at, co, si, n);
                else
                    rotate_block(&p, at + f, at + r / 2 + f, co, si, n);
            }
        }
        for (int64_t h = 0; h < heads && r < d; h++) {
            int64_t at = (i * heads + h) * d + r;

            memcpy(d9di_elem_at(t, y, at), d9di_elem_cat(t, x, at),
                   (size_t)(d - r) * d9d_dtype_size(t));
        }
    }
    return D9D_OK;
}
