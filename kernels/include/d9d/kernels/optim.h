/* optim.h - the updates of the optimizers, and the scale of the gradients before them.
 *
 *     grad_scale(): gradient clipping  ->  *scale  ->  adam(), lion(), sgd() or muon_momentum()
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

/* A parameter, its gradient and its optimizer state: m of adam and lion, v of adam, vmax of adam
 * with amsgrad. residual [n]: the parameter is bfloat16 and its master weight is updated; NULL: the
 * parameter itself is. */
typedef struct d9d_optim_arrays {
    void *p;
    const void *g;
    void *m, *v, *vmax;
    int64_t n;
    int16_t *residual;
} d9d_optim_arrays;

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
     * whole array. float32 arrays draw none, nor do parameters with residuals. */
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
    X(optim, muon_momentum, muon_momentum)                                                         \
    X(optim, muon_normalize, muon_normalize)                                                       \
    X(optim, muon, muon)                                                                           \
    X(optim, sgd, sgd)

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_OPTIM_H */
