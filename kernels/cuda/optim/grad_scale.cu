/* grad_scale.cu - gradient clipping: a step's loss, gradient norm, and the factor for the
 * gradients. One thread: the sum is in the order of the micro-batches, as on the CPU. */
#include "cuda/common/common.cuh"

static __global__ void grad_scale_kernel(float *scale, double *report, const double *loss,
                                         int64_t n, const double *weight, const double *squares,
                                         double max_norm)
{
    const double mean = 1.0 / *weight, norm = fabs(mean) * sqrt(*squares);
    double sum = 0.0, clip = 1.0;

    for (int64_t i = 0; i < n; i++)
        sum += loss[i];
    if (max_norm > 0.0)
        clip = fmin(1.0, max_norm / (norm + 1e-6));
    report[0] = sum;
    report[1] = norm;
    *scale = isfinite(sum) && isfinite(norm) && !isnan(*scale) ? (float)(mean * clip) : NAN;
}

d9d_status d9d_k_grad_scale(d9d_stream s, float *scale, double *report, const double *loss,
                            int64_t n, const double *weight, const double *squares, double max_norm)
{
    grad_scale_kernel<<<1, 1, 0, d9di_cuda_stream(s)>>>(scale, report, loss, n, weight, squares,
                                                        max_norm);
    return d9di_cuda_check_launch("grad_scale");
}
