/* arrays.c - see arrays.h. */
#include "arrays.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

const d9d_dtype array_types[2] = {D9D_F32, D9D_BF16};
const int64_t array_sizes[8] = {0, 1, 3, 17, 33, 1024, 1025, 70001};

double array_get(d9d_dtype t, const void *x, int64_t i)
{
    return (double)(t == D9D_F32 ? ((const float *)x)[i]
                                 : d9d_bf16_to_f32(((const uint16_t *)x)[i]));
}

void array_set(d9d_dtype t, void *x, int64_t i, double v)
{
    if (t == D9D_F32)
        ((float *)x)[i] = (float)v;
    else
        ((uint16_t *)x)[i] = d9d_bf16_from_f32((float)v);
}

static void *bytes(d9d_dtype t, int64_t n)
{
    size_t size = (size_t)n * d9d_dtype_size(t);
    void *p = aligned_alloc(64, (size + 64) / 64 * 64);

    assert_non_null(p);
    return p;
}

void *array_random(d9d_dtype t, int64_t n, uint64_t seed, double scale)
{
    const d9d_rng r = {.seed = seed, .stream = 1};
    void *p = bytes(t, n);

    for (int64_t i = 0; i < n; i++)
        array_set(t, p, i, scale * (double)d9d_rng_normal(r, (uint64_t)i));
    return p;
}

void *array_poison(d9d_dtype t, int64_t n)
{
    void *p = bytes(t, n);

    memset(p, 0xff, (size_t)n * d9d_dtype_size(t));
    return p;
}

double *array_doubles(d9d_dtype t, const void *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof(*y) + 1);

    assert_non_null(y);
    for (int64_t i = 0; i < n; i++)
        y[i] = array_get(t, x, i);
    return y;
}

void array_close(const char *name, d9d_dtype t, const void *got, const double *want, int64_t n,
                 double tolerance)
{
    for (int64_t i = 0; i < n; i++) {
        double g = array_get(t, got, i), w = want[i], allowed = tolerance * (1.0 + fabs(w));

        if (t == D9D_BF16)
            allowed += fabs(w) / 256.0;
        if (!(fabs(g - w) <= allowed))
            fail_msg("%s[%lld] of %lld, %s: got %.9g, expected %.9g", name, (long long)i,
                     (long long)n, d9d_dtype_name(t), g, w);
    }
}

void array_same_for_threads(array_run run, void *arg, void *out, size_t bytes_out, const void *keep)
{
    const int threads[] = {1, 2, 3, 7};
    const size_t runs = getenv("D9D_TEST_ONCE") != NULL ? 1 : sizeof(threads) / sizeof(*threads);
    const int before = omp_get_max_threads();
    void *first = malloc(bytes_out + 1);

    assert_non_null(first);
    for (size_t i = 0; i < runs; i++) {
        if (keep != NULL)
            memcpy(out, keep, bytes_out);
        else
            memset(out, 0xff, bytes_out);
        omp_set_num_threads(threads[i]);
        run(arg);
        if (i == 0)
            memcpy(first, out, bytes_out);
        else if (memcmp(first, out, bytes_out) != 0)
            fail_msg("results differ between 1 and %d threads", threads[i]);
    }
    omp_set_num_threads(before);
    free(first);
}
