/* latent_append.c - rotated queries and the cache rows of new tokens, of multi-head latent
 * attention.
 */
#include "cpu/norm.h"

/* The R features at element x to those at element y. */
static d9d_status features_rotate(d9d_stream s, const d9d_latent_append_args *a, int64_t token,
                                  void *y, int64_t at, const void *x, int64_t from)
{
    return d9d_ref_rope(s, a->t, d9di_elem_at(a->t, y, at), d9di_elem_cat(a->t, x, from),
                        a->positions + token, a->inv_freq, 1, 1, a->r, a->r, a->interleaved,
                        a->mscale, 1.0f);
}

d9d_status d9d_ref_latent_append(d9d_stream s, const d9d_latent_append_args *a)
{
    const int64_t wide = a->c + a->r;
    float inv;

    D9D_TRY(d9di_args_check_float("latent_append", a->t));
    for (int64_t i = 0; i < a->m; i++) {
        const int64_t row = a->row_index[i] * wide;

        for (int64_t h = i * a->heads; h < (i + 1) * a->heads; h++)
            D9D_TRY(features_rotate(s, a, i, a->query, h * wide + a->c, a->q,
                                    (h + 1) * a->q_cols - a->r));
        if (row < 0)
            continue;
        D9D_TRY(d9d_ref_rms_norm(s, a->t, d9di_elem_at(a->t, a->cache, row), &inv,
                                 d9di_elem_cat(a->t, a->latent, i * a->c), a->w, 1, a->c, a->eps,
                                 false));
        D9D_TRY(features_rotate(s, a, i, a->cache, row + a->c, a->key, i * a->r));
    }
    return D9D_OK;
}
