/* optim.h - the updates of the optimizers, and the scale of the gradients before them.
 *
 *     grad_scale(): gradient clipping  ->  *scale  ->  adam(), lion(), sgd(), muon_momentum() or
 *                                                      adafactor_sums()
 *
 * An update first multiplies the gradient by *scale (device, float32), and does nothing if that is
 * NaN. The rules of every entry and the shape letters are in table.h. Kernels: kernels/cuda/optim.
 */
#ifndef D9D_KERNELS_OPTIM_H
#define D9D_KERNELS_OPTIM_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/dtype.h"
#include "d9d/base/rng.h"
#include "d9d/base/status.h"
#include "d9d/kernels/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Constants of Adam for one step; see d9d/optim/optim.h for the formulas. They are double, so that
 * 1 - beta and 1 - lr*wd are rounded once, as in PyTorch. */
typedef struct d9d_adam_step {
    double lr, beta1, beta2, eps, weight_decay;
    double bias_correction1, bias_correction2; /* 1 - beta^step */
    bool decoupled;                            /* AdamW: p *= 1 - lr*wd; else g += wd*p */
    bool amsgrad, maximize;
} d9d_adam_step;

/* Constants of Lion: p *= 1 - lr*wd; p -= lr sign(b1 m + (1-b1) g); m = b2 m + (1-b2) g. */
typedef struct d9d_lion_step {
    double lr, beta1, beta2, weight_decay;
} d9d_lion_step;

/* Constants of schedule-free AdamW for one step; see d9d/optim/optim.h for the formulas. */
typedef struct d9d_schedule_free_step {
    double lr, beta1, beta2, eps, weight_decay;
    double bias_correction2; /* 1 - beta2^step */
    double weight;           /* of z in the average */
    bool first;              /* z = y before the step */
} d9d_schedule_free_step;

/* Constants of a step towards each other: p = (1 - to_state) p + to_state m, and
 * m = (1 - to_weights) m + to_weights p, with p as it was. */
typedef struct d9d_average_step {
    double to_state, to_weights;
} d9d_average_step;

/* Constants of Muon for one step: see muon_momentum() and muon(). */
typedef struct d9d_muon_step {
    double lr, weight_decay, momentum;
    double adjusted_lr; /* of the orthogonalized update */
    bool nesterov;
} d9d_muon_step;

/* Master weights: a bfloat16 weight and its residual are a float32 master weight, to the bit. The
 * weight is the master rounded to nearest, ties away from zero, and
 *
 *     master bits = (weight bits << 16) + residual,    residual int16
 *
 * A weight that is NaN has the residual 0. Residuals of zero make the masters equal to the weights.
 */

/* States in 8 bits: m of int8, v of uint8, and a bfloat16 scale of each for every block of so many
 * elements of a row (the last dimension), whose last block may be shorter. The codes are those of
 * kernels/common/state_blocks.h. */
enum { D9D_STATE_BLOCK = 32 };

/* A parameter, its gradient and its optimizer state: m of adam and lion, v of adam, vmax of adam
 * with amsgrad. residual [n]: the parameter is bfloat16 and its master weight is updated; NULL: the
 * parameter itself is. */
typedef struct d9d_optim_arrays {
    void *p;
    const void *g;
    void *m, *v, *vmax;
    int64_t n;
    int16_t *residual;
    uint16_t *m_scale, *v_scale; /* of states in 8 bits: bfloat16, [rows, blocks of a row] */
} d9d_optim_arrays;

/* Constants of Adafactor for one step; see d9d/optim/optim.h for the formulas. */
typedef struct d9d_adafactor_step {
    double lr, weight_decay;
    double relative_lr;     /* of the update: lr, or less with a relative step */
    double one_minus_beta2; /* weight of this step's squares in the second moment */
    double eps1, eps2, clip_threshold;
    bool scale_parameter;
} d9d_adafactor_step;

/* A parameter of Adafactor: the box [e, r, c] that this rank stores of the matrices [E, rows,
 * cols], from row r0 and column c0 on. A vector of n is a matrix [n, 1] without `col`.
 *
 *     row [e, r], col [e, c]          states: the second moment's factors; of a vector itself
 *     row_sum [e, rows]               sums of squared gradients along a row and along a column of
 *     col_sum [e, cols]               the whole matrices
 *     mean [e]                        the mean of row over all rows of a matrix
 *     squares [2]                     sums of the squares of the update and of p, over the whole
 *                                     parameter */
typedef struct d9d_adafactor_array {
    void *p;
    const void *g;
    int16_t *residual; /* as in d9d_optim_arrays */
    int64_t e, r, c, rows, cols, r0, c0;
    double numel; /* of the whole parameter */
    float *row, *col;
    float *row_sum, *col_sum, *mean;
    double *squares;
} d9d_adafactor_array;

typedef struct d9d_sgd_step {
    double lr, momentum, dampening, weight_decay;
    bool nesterov, maximize, first; /* first: momentum buffer = gradient */
} d9d_sgd_step;

typedef struct d9d_optim_kernels {
    /* Gradient clipping and the step's report. With mean = 1 / *weight:
     *
     *     report[0] = sum of loss[n]
     *     report[1] = |mean| sqrt(*squares)                          the gradient norm
     *     *scale = mean min(1, max_norm / (report[1] + 1e-6))        as torch's clip_grad_norm_
     *
     * *scale = mean unless max_norm > 0. If either report is not finite, *scale becomes NaN and
     * stays so. */
    d9d_status (*grad_scale)(d9d_stream s, float *scale, double *report, const double *loss,
                             int64_t n, const double *weight, const double *squares,
                             double max_norm);
    /* Parameters of type t, gradients of gt; m, v (and vmax with amsgrad) of st, each rounded to
     * nearest. Either all arrays of a list have residuals, or none. */
    d9d_status (*adam)(d9d_stream s, const d9d_adam_step *c, const float *scale, d9d_dtype t,
                       d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count);
    /* The same for one parameter, without amsgrad, with stochastic rounding to bfloat16. Element i
     * of the box draws its 16 bits from streams r, r+42, r+67 (parameter, m, v) at its index in the
     * whole array. float32 arrays draw none, nor do parameters with residuals.
     *
     * st may be D9D_I8, for states in 8 bits. The box then begins and ends with blocks. An element
     * draws 32 bits from the stream r+42: the low 16 for m, the others for v. */
    d9d_status (*adam_stochastic)(d9d_stream s, const d9d_adam_step *c, const float *scale,
                                  d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                  const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                  const int64_t *box, const int64_t *start, const int64_t *whole);
    /* As adam() and adam_stochastic(), with the state m alone. */
    d9d_status (*lion)(d9d_stream s, const d9d_lion_step *c, const float *scale, d9d_dtype t,
                       d9d_dtype gt, d9d_dtype st, const d9d_optim_arrays *list, int64_t count);
    d9d_status (*lion_stochastic)(d9d_stream s, const d9d_lion_step *c, const float *scale,
                                  d9d_dtype t, d9d_dtype gt, d9d_dtype st,
                                  const d9d_optim_arrays *a, d9d_rng r, int ndim,
                                  const int64_t *box, const int64_t *start, const int64_t *whole);
    /* p is y; m is z and v the second moment, both of st, which is float32.
     *
     *     z = y if first;  v = b2 v + (1-b2) g^2;  u = g / (sqrt(v / bias_correction2) + eps) + wd
     * y y = y + weight (z - y) + lr (b1 (1 - weight) - 1) u;  z = z - lr u */
    d9d_status (*schedule_free)(d9d_stream s, const d9d_schedule_free_step *c, const float *scale,
                                d9d_dtype t, d9d_dtype gt, const d9d_optim_arrays *list,
                                int64_t count);
    /* The moving average m of weights p, or p that becomes m: to_state 1 gives the bits of m.  g is
     * not read.  NaN in *scale changes nothing.  average_stochastic() rounds m stochastically, as
     * adam_stochastic() does, and requires to_state 0. */
    d9d_status (*average)(d9d_stream s, const d9d_average_step *c, const float *scale, d9d_dtype t,
                          d9d_dtype st, const d9d_optim_arrays *list, int64_t count);
    d9d_status (*average_stochastic)(d9d_stream s, const d9d_average_step *c, const float *scale,
                                     d9d_dtype t, d9d_dtype st, const d9d_optim_arrays *a,
                                     d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                                     const int64_t *whole);
    /* Muon before Newton-Schulz. The array p, of type ut, receives the update u; it is an output
     * alone. m is float32.
     *
     *     m = momentum m + (1 - momentum) g
     *     u = (1 - momentum) g + momentum m if nesterov, else m */
    d9d_status (*muon_momentum)(d9d_stream s, const d9d_muon_step *c, const float *scale,
                                d9d_dtype ut, d9d_dtype gt, const d9d_optim_arrays *list,
                                int64_t count);
    /* x[i] /= max(sqrt(squares[i]), eps) for each of `count` arrays of n elements, x [count, n]. */
    d9d_status (*muon_normalize)(d9d_stream s, d9d_dtype t, void *x, const double *squares,
                                 int64_t count, int64_t n, float eps);
    /* Muon after Newton-Schulz, for the orthogonalized update g: p = (1 - lr wd) p - adjusted_lr g.
     * *scale is no factor of g. */
    d9d_status (*muon)(d9d_stream s, const d9d_muon_step *c, const float *scale, d9d_dtype t,
                       d9d_dtype gt, const d9d_optim_arrays *list, int64_t count);
    /* Adafactor in four calls, between which the ranks' sums are added:
     *
     *     adafactor_sums()     -> row_sum, col_sum, mean      all-reduce
     *     adafactor_moments()  -> row, col, mean
     *     adafactor_squares()  -> squares                     all-reduce
     *     adafactor()          -> p
     *
     * sums: of the box alone, at its place; mean receives the sum of row before the step, from
     * the box with c0 = 0, else nothing is written there. */
    d9d_status (*adafactor_sums)(d9d_stream s, const float *scale, d9d_dtype gt,
                                 const d9d_adafactor_array *a);
    d9d_status (*adafactor_moments)(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                    const d9d_adafactor_array *a);
    d9d_status (*adafactor_squares)(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                    d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a);
    d9d_status (*adafactor)(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                            d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a);
    /* momentum NULL: without momentum; residual as in d9d_optim_arrays. */
    d9d_status (*sgd)(d9d_stream s, const d9d_sgd_step *c, d9d_dtype t, void *p, int16_t *residual,
                      d9d_dtype gt, const void *g, const float *scale, d9d_dtype st, void *momentum,
                      int64_t n);
} d9d_optim_kernels;

/* Every entry as X(family, member, op); its functions are d9d_ref_<op> and d9d_k_<op>. */
#define D9D_OPTIM_KERNELS(X)                                                                       \
    X(optim, grad_scale, grad_scale)                                                               \
    X(optim, adam, adam)                                                                           \
    X(optim, adam_stochastic, adam_stochastic)                                                     \
    X(optim, lion, lion)                                                                           \
    X(optim, lion_stochastic, lion_stochastic)                                                     \
    X(optim, schedule_free, schedule_free)                                                         \
    X(optim, average, average)                                                                     \
    X(optim, average_stochastic, average_stochastic)                                               \
    X(optim, muon_momentum, muon_momentum)                                                         \
    X(optim, muon_normalize, muon_normalize)                                                       \
    X(optim, muon, muon)                                                                           \
    X(optim, adafactor_sums, adafactor_sums)                                                       \
    X(optim, adafactor_moments, adafactor_moments)                                                 \
    X(optim, adafactor_squares, adafactor_squares)                                                 \
    X(optim, adafactor, adafactor)                                                                 \
    X(optim, sgd, sgd)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_OPTIM_H */
