/* glu.cu - gated linear units: y = a(gate) up, and activations y = a(x). See d9d_glu.
 *
 *     dup = dy a        dgate = dy up a'
 */
#include "cuda/elementwise/glu.cuh"

/* Evaluates an expression with A the activation and GATED whether there is an up. */
#define BY_ACTIVATION(act, gated, A, GATED, ...)                                                   \
    ((act) == D9D_ACT_GELU        ? BY_GATED(gated, D9D_ACT_GELU, A, GATED, __VA_ARGS__)           \
     : (act) == D9D_ACT_GELU_TANH ? BY_GATED(gated, D9D_ACT_GELU_TANH, A, GATED, __VA_ARGS__)      \
     : (act) == D9D_ACT_HARDTANH  ? BY_GATED(gated, D9D_ACT_HARDTANH, A, GATED, __VA_ARGS__)       \
     : (act) == D9D_ACT_SWIGLU_OAI                                                                 \
         ? [&] { constexpr int A = D9D_ACT_SWIGLU_OAI; constexpr bool GATED = true;                \
                 return __VA_ARGS__; }()                                                           \
         : BY_GATED(gated, D9D_ACT_SILU, A, GATED, __VA_ARGS__))
#define BY_GATED(gated, act, A, GATED, ...)                                                        \
    ((gated) ? [&] { constexpr int A = act; constexpr bool GATED = true; return __VA_ARGS__; }()   \
             : [&] { constexpr int A = act; constexpr bool GATED = false; return __VA_ARGS__; }())

/* a(g) and its derivative. */
template <int A, class T>
static __device__ __forceinline__ void act_bwd_of(float &a, float &da, float g, float alpha)
{
    if (A == D9D_ACT_HARDTANH) {
        a = g;
        da = 1.0f;
    } else if (A == D9D_ACT_GELU) {
        const float p = normcdff(g);

        a = g * p;
        da = p + g * 0.398942280f * expf(-0.5f * g * g);
    } else if (A == D9D_ACT_GELU_TANH) {
        const float s = silu_bwd_of<T>(1.0f, gelu_tanh_arg(g));

        a = g * s;
        da = s * (1.0f + g * (1.0f - s) * (2.0f * 0.797884561f * (1.0f + 0.134145f * g * g)));
    } else {
        const float x = A == D9D_ACT_SWIGLU_OAI ? alpha * g : g, s = silu_bwd_of<T>(1.0f, x);

        a = g * s;
        da = s * (1.0f + x * (1.0f - s));
    }
}

/* Is the gate clamped, so that it has no gradient? */
template <int A> static __device__ __forceinline__ bool gate_is_clamped(float g, float limit)
{
    return (A == D9D_ACT_HARDTANH && g < -limit) ||
           ((A == D9D_ACT_HARDTANH || A == D9D_ACT_SWIGLU_OAI) && g > limit);
}

template <int A, bool GATED, class T>
static __global__ void glu_kernel(T *y, const T *gate, const T *up, int64_t n, float alpha,
                                  float limit)
{
    pdl_launch_dependents();
    pdl_wait();
    D9DI_EACH8 (i, n) {
        float g[8], u[8];

        load8(g, gate + i, n - i);
        if (GATED)
            load8(u, up + i, n - i);
        for (int j = 0; j < 8; j++) {
            const float a = act_of<A, T>(gate_of<A>(g[j], limit), alpha);

            u[j] = GATED ? up_of<A>(u[j], limit) * a : a;
        }
        store8(y + i, u, n - i);
    }
}

template <int A, bool GATED, class T>
static __global__ void glu_bwd_kernel(T *dgate, T *dup, const T *dy, const T *gate, const T *up,
                                      int64_t n, float alpha, float limit)
{
    D9DI_EACH8 (i, n) {
        float d[8], g[8], u[8];

        load8(d, dy + i, n - i);
        load8(g, gate + i, n - i);
        if (GATED)
            load8(u, up + i, n - i);
        for (int j = 0; j < 8; j++) {
            const bool clamped = A == D9D_ACT_SWIGLU_OAI;
            const float dd = GATED ? d[j] * up_of<A>(u[j], limit) : d[j];
            float a, da;

            act_bwd_of<A, T>(a, da, gate_of<A>(g[j], limit), alpha);
            u[j] = clamped && fabsf(u[j]) > limit ? 0.0f : d[j] * a;
            g[j] = gate_is_clamped<A>(g[j], limit) ? 0.0f : dd * da;
        }
        store8(dgate + i, g, n - i);
        if (GATED)
            store8(dup + i, u, n - i);
    }
}

template <int A, bool GATED, class T>
static d9d_status launch_glu(d9d_stream s, const d9d_glu *f, void *y, const void *gate,
                             const void *up, int64_t n)
{
    return pdl_launch(s, "glu", glu_kernel<A, GATED, T>, grid_for(s, n / 8), THREADS, (T *)y,
                      (const T *)gate, (const T *)up, n, f->alpha, f->limit);
}

template <int A, bool GATED, class T>
static d9d_status launch_bwd(d9d_stream s, const d9d_glu *f, void *dgate, void *dup, const void *dy,
                             const void *gate, const void *up, int64_t n)
{
    glu_bwd_kernel<A, GATED, T><<<grid_for(s, n / 8), THREADS, 0, d9di_cuda_stream(s)>>>(
        (T *)dgate, (T *)dup, (const T *)dy, (const T *)gate, (const T *)up, n, f->alpha, f->limit);
    return d9di_cuda_check_launch("glu_bwd");
}

d9d_status d9d_k_glu(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *y, const void *gate,
                     const void *up, int64_t n)
{
    D9D_TRY(d9di_args_check_glu("glu", t, f, up != NULL));
    return n == 0
               ? D9D_OK
               : D9DI_DISPATCH_DTYPE(t, T,
                                     BY_ACTIVATION(f->act, up != NULL, A, GATED,
                                                   launch_glu<A, GATED, T>(s, f, y, gate, up, n)));
}

d9d_status d9d_k_glu_bwd(d9d_stream s, const d9d_glu *f, d9d_dtype t, void *dgate, void *dup,
                         const void *dy, const void *gate, const void *up, int64_t n)
{
    D9D_TRY(d9di_args_check_glu("glu_bwd", t, f, up != NULL));
    return n == 0 ? D9D_OK
                  : D9DI_DISPATCH_DTYPE(
                        t, T,
                        BY_ACTIVATION(f->act, up != NULL, A, GATED,
                                      launch_bwd<A, GATED, T>(s, f, dgate, dup, dy, gate, up, n)));
}
