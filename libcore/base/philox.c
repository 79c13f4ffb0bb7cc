/* philox.c - Philox 4x32-10 and draws from it.  See d9d/base/rng.h. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "d9d/base/rng.h"

enum { ROUNDS = 10 };

/* Salmon et al. 2011, table 2 and section 3.3: multipliers and Weyl increments. */
static const uint32_t MUL0 = 0xD2511F53, MUL1 = 0xCD9E8D57;
static const uint32_t WEYL0 = 0x9E3779B9, WEYL1 = 0xBB67AE85;

void d9d_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t p0 = (uint64_t)MUL0 * c0, p1 = (uint64_t)MUL1 * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += WEYL0;
        k1 += WEYL1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void split_u64(uint64_t v, uint32_t half[2])
{
    half[0] = (uint32_t)v;
    half[1] = (uint32_t)(v >> 32);
}

static uint64_t join_u64(const uint32_t half[2])
{
    return (uint64_t)half[1] << 32 | half[0];
}

static void philox_block(d9d_rng r, uint64_t number, uint32_t out[4])
{
    uint32_t counter[4], key[2];

    split_u64(number, counter);
    split_u64(r.stream, counter + 2);
    split_u64(r.seed, key);
    d9d_philox(counter, key, out);
}

uint32_t d9d_rng_u32(d9d_rng r, uint64_t index)
{
    uint32_t words[4];

    philox_block(r, index / 4, words);
    return words[index % 4];
}

uint64_t d9d_rng_u64(d9d_rng r, uint64_t index)
{
    uint32_t words[4];

    philox_block(r, index / 2, words);
    return join_u64(words + 2 * (index % 2));
}

float d9d_rng_uniform(d9d_rng r, uint64_t index)
{
    return (float)(d9d_rng_u32(r, index) >> 8) * 0x1p-24f;
}

float d9d_rng_box_muller(uint32_t a, uint32_t b)
{
    const double tau = 6.283185307179586476925286766559;
    const double u = ((double)a + 1.0) * 0x1p-32; /* (0, 1] */
    const double v = (double)b * 0x1p-32;         /* [0, 1) */

    return (float)(sqrt(-2.0 * log(u)) * cos(tau * v));
}

float d9d_rng_normal(d9d_rng r, uint64_t index)
{
    const uint64_t w = d9d_rng_u64(r, index);

    return d9d_rng_box_muller((uint32_t)w, (uint32_t)(w >> 32));
}

/* Lemire, "Fast random integer generation in an interval", 2019.  The u64s tried are the halves of
 * block `index`, then of the block whose counter is that block's output, and so on.  The cipher is
 * a bijection, so the first steps of two indices never meet. */
uint64_t d9d_rng_below(d9d_rng r, uint64_t index, uint64_t n)
{
    const uint64_t reject = n > 0 ? (0 - n) % n : 0;
    uint32_t words[4], key[2];

    assert(n > 0);
    split_u64(r.seed, key);
    philox_block(r, index, words);
    for (;;) {
        for (int half = 0; half < 4; half += 2) {
            const unsigned __int128 m = (unsigned __int128)join_u64(words + half) * n;

            if ((uint64_t)m >= reject)
                return (uint64_t)(m >> 64);
        }
        d9d_philox(words, key, words);
    }
}

enum { FEISTEL_ROUNDS = 8 };

/* One pass of the network over 2 * bits bits.  `walk` is a key and half a counter
 * made from (seed, stream, n). */
static uint64_t feistel(const uint32_t walk[4], unsigned bits, uint64_t v)
{
    const uint32_t mask = (uint32_t)((UINT64_C(1) << bits) - 1);
    uint32_t left = (uint32_t)(v >> bits), right = (uint32_t)v & mask;

    for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
        const uint32_t counter[4] = {right, round, walk[2], walk[3]};
        uint32_t words[4], next;

        d9d_philox(counter, walk, words);
        next = left ^ (words[0] & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << bits | right;
}

/* The network permutes [0, 4^bits), at most four times as large as [0, n): walk
 * along the cycle of `index` until it is back inside. */
uint64_t d9d_rng_permute(d9d_rng r, uint64_t index, uint64_t n)
{
    uint32_t counter[4], key[2], walk[4];
    unsigned bits = 1;

    assert(index < n && n <= UINT64_C(1) << 62);
    split_u64(n, counter);
    split_u64(r.stream, counter + 2);
    split_u64(r.seed, key);
    d9d_philox(counter, key, walk);
    while (UINT64_C(1) << 2 * bits < n)
        bits++;
    do
        index = feistel(walk, bits, index);
    while (index >= n);
    return index;
}
