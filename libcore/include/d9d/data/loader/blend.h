/* blend.h - weighted mixing of datasets: which source provides draw k.
 *
 * Draw k is the j(k)-th sample of source s(k); both are functions of the weights and k alone.
 * After any number n of draws, a source with share w of the weights has provided more than n w - 1
 * and fewer than n w + 1 of them:
 *
 *     weights 3 1 1    0 1 0 2 0 | 0 1 0 2 0 | ...
 *
 * The weights are scaled to integers W with sum D, and the sequence repeats after D draws.  Within
 * a period, source i's draw j must be placed in [floor(j D / W), ceil((j + 1) D / W)).  Among the
 * draws whose interval has begun, the one with the earliest end is next (Baruah, Cohen, Plaxton,
 * Varvel, "Proportionate progress: a notion of fairness in resource allocation", 1996).
 *
 * Weights with up to six decimals whose sum, in lowest terms, is at most 2^20 are exact.  Others
 * are rounded to 2^-20 of their sum, but never to 0.
 */
#ifndef D9D_DATA_LOADER_BLEND_H
#define D9D_DATA_LOADER_BLEND_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_BLEND_SOURCES = 256 }; /* maximal number of sources */

typedef struct d9d_blend d9d_blend;

/* ECONFIG: no source, too many sources, or a weight that is not a positive number. */
D9D_API D9D_MUST_USE d9d_status d9d_blend_create(const double *weights, size_t n, d9d_blend **out);
D9D_API void d9d_blend_free(d9d_blend *b);

typedef struct d9d_blend_ref {
    int32_t source;
    int64_t number; /* index among the draws of this source, from 0 */
} d9d_blend_ref;
/* Draw k >= 0. */
D9D_API d9d_blend_ref d9d_blend_at(const d9d_blend *b, int64_t k);
/* The k at which `source` provides its draw `number`; at most 2^62. */
D9D_API int64_t d9d_blend_find(const d9d_blend *b, int32_t source, int64_t number);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_BLEND_H */
