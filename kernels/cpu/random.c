/* random.c - arrays filled by the counter-based generator of d9d/base/rng.h. */
#include "cpu/common.h"

enum { LANES = 64 }; /* cipher blocks processed together */

/* d9d_philox() on LANES consecutive blocks; the loop over lanes vectorises. */
D9DI_CLONES static void philox_lanes(uint32_t out[LANES * 4], d9d_rng r, uint64_t block)
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    uint32_t k0 = (uint32_t)r.seed, k1 = (uint32_t)(r.seed >> 32);

    for (int i = 0; i < LANES; i++) {
        c0[i] = (uint32_t)(block + (uint64_t)i);
        c1[i] = (uint32_t)((block + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)r.stream;
        c3[i] = (uint32_t)(r.stream >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < LANES; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];

            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        out[4 * i] = c0[i];
        out[4 * i + 1] = c1[i];
        out[4 * i + 2] = c2[i];
        out[4 * i + 3] = c3[i];
    }
}

void d9di_cpu_random_bits(uint32_t *out, d9d_rng r, uint64_t index, int64_t n)
{
    uint32_t words[LANES * 4];
    int64_t done = 0;

    while (done < n) {
        uint64_t at = index + (uint64_t)done;
        int64_t skip = (int64_t)(at % 4), c = d9di_i64_min(n - done, LANES * 4 - skip);

        philox_lanes(words, r, at / 4);
        memcpy(out + done, words + skip, (size_t)c * sizeof(*out));
        done += c;
    }
}

/* At most D9DI_BLOCK elements, of d9d_rng_normal() or of 2 d9d_rng_uniform() - 1, scaled. */
static void block_draw(float *y, d9d_init_kind kind, float scale, d9d_rng r, uint64_t index,
                       int64_t n)
{
    uint32_t w[2 * D9DI_BLOCK] = {0};

    if (kind == D9D_INIT_NORMAL) {
        d9di_cpu_random_bits(w, r, 2 * index, 2 * n);
        for (int64_t i = 0; i < n; i++)
            y[i] = scale * d9d_rng_box_muller(w[2 * i], w[2 * i + 1]);
    } else {
        d9di_cpu_random_bits(w, r, index, n);
        for (int64_t i = 0; i < n; i++)
            y[i] = scale * (2.0f * ((float)(w[i] >> 8) * 0x1p-24f) - 1.0f);
    }
}

d9d_status d9d_ref_random(d9d_stream s, d9d_dtype t, void *y, d9d_init_kind kind, float scale,
                          d9d_rng r, int ndim, const int64_t *box, const int64_t *start,
                          const int64_t *whole)
{
    d9di_subarray b = d9di_subarray_make(ndim, box, start, whole);
    int64_t per_run = d9di_i64_ceil_div(b.run, D9DI_BLOCK);

    D9D_TRY(d9di_args_check_float("random", t));
    if (kind == D9D_INIT_ZEROS || kind == D9D_INIT_ONES)
        return d9d_ref_fill(s, t, y, b.run * b.n_runs, kind == D9D_INIT_ONES ? 1.0f : 0.0f);
#pragma omp parallel for if (b.run * b.n_runs > D9DI_BLOCK)
    for (int64_t i = 0; i < b.n_runs * per_run; i++) {
        int64_t run = i / per_run, at = i % per_run * D9DI_BLOCK;
        int64_t c = d9di_i64_min(b.run - at, D9DI_BLOCK);
        float buf[D9DI_BLOCK];

        block_draw(buf, kind, scale, r, (uint64_t)(d9di_subarray_index(&b, run) + at), c);
        d9di_cpu_store(t, y, run * b.run + at, c, buf);
    }
    return D9D_OK;
}
