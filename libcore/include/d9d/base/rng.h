/* rng.h - counter-based random numbers: Philox 4x32-10.
 *
 * A number is a function of (seed, stream, index) and of nothing else: not of the
 * thread, the shard or what was drawn before.  A stream is a 64-bit id, such as
 * d9d_hash_u64() of a tensor's dotted name; the index is the element's number in
 * the whole (unsharded) tensor.
 *
 * Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011.
 * Key = (seed low, seed high); counter = (block low, block high, stream low,
 * stream high); element i is word i % 4 of block i / 4.
 */
#ifndef D9D_BASE_RNG_H
#define D9D_BASE_RNG_H

#include <stdint.h>

#include "d9d/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_rng {
    uint64_t seed, stream;
} d9d_rng;

/* One block of the cipher; the known-answer vectors are in the unit test. */
D9D_API void d9d_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

D9D_API uint32_t d9d_rng_u32(d9d_rng r, uint64_t index);
D9D_API uint64_t d9d_rng_u64(d9d_rng r, uint64_t index); /* words 2i and 2i+1 */
/* (u32 >> 8) * 2^-24: in [0, 1), exact in float. */
D9D_API float d9d_rng_uniform(d9d_rng r, uint64_t index);
/* Box-Muller on words a = 2i and b = 2i+1 in double, rounded once to float:
 * sqrt(-2 ln((a + 1) 2^-32)) cos(2 pi b 2^-32). */
D9D_API float d9d_rng_normal(d9d_rng r, uint64_t index);
D9D_API float d9d_rng_box_muller(uint32_t a, uint32_t b); /* Box-Muller of two words */
/* Unbiased in [0, n), n > 0: multiply-shift on u64 with rejection, in blocks that begin at block
 * number `index`, so that neighbouring indices never overlap.  It shares that block with
 * d9d_rng_u32() and the others: use a stream of its own. */
D9D_API uint64_t d9d_rng_below(d9d_rng r, uint64_t index, uint64_t n);

/* Position of `index` in a pseudo-random permutation of [0, n): a Feistel walk,
 * O(1) memory, a function of (r, index, n) alone.  n up to 2^62. */
D9D_API uint64_t d9d_rng_permute(d9d_rng r, uint64_t index, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_RNG_H */
