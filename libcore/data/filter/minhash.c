/* minhash.c - see minhash.h. */
#include "data/filter/minhash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/data/filter/filter.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define CLONES
#endif

/* --- bands and rows ------------------------------------------------------------------ */

/* Simpson's rule for the probability to share a band, or its complement, over [from, upto]. */
static double integrate(double from, double upto, double bands, double rows, bool complement)
{
    enum { STEPS = 256 };
    const double h = (upto - from) / STEPS;
    double sum = 0;

    for (int i = 0; i <= STEPS; i++) {
        const double s = from + h * i, none = pow(1 - pow(s, rows), bands);
        const double weight = i == 0 || i == STEPS ? 1 : i % 2 ? 4 : 2;

        sum += weight * (complement ? none : 1 - none);
    }
    return sum * h / 3;
}

void d9d_filter_bands(double similarity, int64_t num_perm, int64_t *bands, int64_t *rows)
{
    double least = INFINITY;

    for (int64_t b = 1; b <= num_perm; b++)
        for (int64_t r = 1; r <= num_perm / b; r++) {
            const double error = 0.5 * integrate(0, similarity, (double)b, (double)r, false) +
                                 0.5 * integrate(similarity, 1, (double)b, (double)r, true);

            if (error < least) {
                least = error;
                *bands = b;
                *rows = r;
            }
        }
}

/* --- signatures ---------------------------------------------------------------------- */

/* SplitMix64 (Steele et al. 2014). */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

d9d_status d9di_minhash_init(d9di_minhash *m, size_t bands, size_t rows, size_t ngram,
                             uint64_t seed)
{
    *m = (d9di_minhash){.n = bands * rows, .bands = bands, .rows = rows, .ngram = ngram};
    m->a = calloc(m->n, sizeof(*m->a));
    m->b = calloc(m->n, sizeof(*m->b));
    if (!m->a || !m->b)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu hashes", m->n);
    for (size_t k = 0; k < m->n; k++) {
        m->a[k] = next_random(&seed) | 1;
        m->b[k] = next_random(&seed);
    }
    return D9D_OK;
}

void d9di_minhash_release(d9di_minhash *m)
{
    free(m->a);
    free(m->b);
    *m = (d9di_minhash){0};
}

CLONES static void take_minima(const uint64_t *restrict a, const uint64_t *restrict b, size_t n,
                               uint32_t x, uint32_t *restrict least)
{
    for (size_t k = 0; k < n; k++) {
        const uint32_t h = (uint32_t)((a[k] * x + b[k]) >> 32);

        least[k] = h < least[k] ? h : least[k];
    }
}

void d9di_minhash_sign(const d9di_minhash *m, const d9di_text_words *w, uint32_t *signature)
{
    const size_t ngram = w->n < m->ngram ? w->n : m->ngram;

    memset(signature, 0xff, m->n * sizeof(*signature));
    for (size_t i = 0; i + ngram <= w->n; i++)
        take_minima(m->a, m->b, m->n, (uint32_t)d9di_text_words_hash(w, i, ngram), signature);
}

void d9di_minhash_keys(const d9di_minhash *m, const uint32_t *signature, uint64_t *keys)
{
    for (size_t i = 0; i < m->bands; i++) {
        const uint64_t key = d9d_hash_u64(signature + i * m->rows, m->rows * sizeof(*signature));

        keys[i] = key ? key : 1;
    }
}
