/* arrays.h - random arrays for kernel tests, conversion to double, and comparison. */
#ifndef D9D_TEST_ARRAYS_H
#define D9D_TEST_ARRAYS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "d9d/kernels/table.h"

/* The types that every kernel takes. */
extern const d9d_dtype array_types[2];
/* Sizes around the edges of vectors and blocks. */
extern const int64_t array_sizes[8];

/* n elements; freed by the caller.  Random: normal numbers times `scale`, a function of `seed`.
 * Poisoned: NaN everywhere, so that an element that is not written shows. */
void *array_random(d9d_dtype t, int64_t n, uint64_t seed, double scale);
void *array_poison(d9d_dtype t, int64_t n);
double array_get(d9d_dtype t, const void *x, int64_t i);
double *array_doubles(d9d_dtype t, const void *x, int64_t n); /* all, freed by the caller */
void array_set(d9d_dtype t, void *x, int64_t i, double v);

/* |got - want| <= tolerance * (1 + |want|) for all i, and for bfloat16 half a unit in the last
 * place more; the failure names the array and the first element that is off. */
void array_close(const char *name, d9d_dtype t, const void *got, const double *want, int64_t n,
                 double tolerance);

/* Run a kernel call with 1, 2, 3 and 7 threads; `out` (bytes long) is poisoned before each run
 * unless `keep`, which is then what it starts with; all runs must give the same bits.  Where
 * D9D_TEST_ONCE is set there is one run. */
typedef void (*array_run)(void *arg);
void array_same_for_threads(array_run run, void *arg, void *out, size_t bytes, const void *keep);

#endif /* D9D_TEST_ARRAYS_H */
