/* host_reduce.c - sums and maxima over the arrays of several ranks, on the host.  See
 * comm/comm_private.h. */
#include "comm/comm_private.h"

enum { BLOCK = 1024 }; /* elements of the accumulator, which fits the L1 cache */

/* Reduce a block of one part into the accumulator: first value, sum or maximum.  NaN propagates
 * from either side. */
#define REDUCER(name, T, ACC, LOAD, STORE)                                                         \
    static void first_##name(ACC *acc, const T *x, int64_t n)                                      \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                            \
            acc[i] = LOAD(x[i]);                                                                   \
    }                                                                                              \
    static void sum_##name(ACC *acc, const T *x, int64_t n)                                        \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++)                                                            \
            acc[i] += LOAD(x[i]);                                                                  \
    }                                                                                              \
    static void max_##name(ACC *acc, const T *x, int64_t n)                                        \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const ACC v = LOAD(x[i]);                                                              \
                                                                                                   \
            acc[i] = v > acc[i] || v != v ? v : acc[i];                                            \
        }                                                                                          \
    }                                                                                              \
    static void reduce_##name(d9d_comm_op op, void *dst, const void *parts, int n_parts,           \
                              int64_t stride, int64_t n)                                           \
    {                                                                                              \
        T *y = dst;                                                                                \
        const T *x = parts;                                                                        \
        ACC acc[BLOCK];                                                                            \
                                                                                                   \
        for (int64_t at = 0; at < n; at += BLOCK) {                                                \
            const int64_t m = n - at < BLOCK ? n - at : BLOCK;                                     \
                                                                                                   \
            first_##name(acc, x + at, m);                                                          \
            for (int p = 1; p < n_parts; p++)                                                      \
                (op == D9D_COMM_MAX ? max_##name : sum_##name)(acc, x + p * stride + at, m);       \
            for (int64_t i = 0; i < m; i++)                                                        \
                y[at + i] = STORE(acc[i]);                                                         \
        }                                                                                          \
    }

#define SAME(x) (x)
#define I32(x)  (int32_t)(uint32_t)(x) /* sums wrap */
REDUCER(f32, float, float, SAME, SAME)
REDUCER(bf16, uint16_t, float, d9d_bf16_to_f32, d9d_bf16_from_f32)
REDUCER(f64, double, double, SAME, SAME)
REDUCER(i32, int32_t, int64_t, SAME, I32)
/* int64 is summed as unsigned, so that it wraps. */
static void reduce_i64(d9d_comm_op op, void *dst, const void *parts, int n_parts, int64_t stride,
                       int64_t n)
{
    int64_t *y = dst;
    const int64_t *x = parts;

    for (int64_t i = 0; i < n; i++) {
        int64_t acc = x[i];

        for (int p = 1; p < n_parts; p++) {
            const int64_t v = x[p * stride + i];

            acc = op == D9D_COMM_SUM ? (int64_t)((uint64_t)acc + (uint64_t)v) : v > acc ? v : acc;
        }
        y[i] = acc;
    }
}

static const struct {
    void (*reduce)(d9d_comm_op op, void *dst, const void *parts, int n_parts, int64_t stride,
                   int64_t n);
} types[D9D_DTYPE_COUNT] = {
    [D9D_F32] = {reduce_f32}, [D9D_BF16] = {reduce_bf16}, [D9D_F64] = {reduce_f64},
    [D9D_I32] = {reduce_i32}, [D9D_I64] = {reduce_i64},
};

bool d9di_host_reduce_supports(d9d_dtype t)
{
    return (unsigned)t < D9D_DTYPE_COUNT && types[t].reduce != NULL;
}

void d9di_host_reduce(d9d_dtype t, d9d_comm_op op, void *dst, const void *parts, int n_parts,
                      int64_t stride, int64_t n)
{
    types[t].reduce(op, dst, parts, n_parts, stride, n);
}
