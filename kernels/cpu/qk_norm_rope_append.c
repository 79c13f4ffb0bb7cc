/* qk_norm_rope_append.c - QK norm, RoPE and KV-cache append of several arrays (decode); see
 * norm_rope.c. */
#include "cpu/common.h"

/* normed: room for a row, normed over all heads. */
static d9d_status token_append(d9d_stream s, const d9d_qk_norm_rope_dims *d,
                               const d9d_qk_norm_rope_heads *h, int64_t i, void *normed)
{
    const int64_t row = h->row_index != NULL ? h->row_index[i] : i, size = h->heads * d->d;
    d9d_qk_norm_rope_dims one = *d;
    const void *x;
    float inv;
    void *y;

    if (row < 0)
        return D9D_OK;
    one.m = 1;
    one.heads = h->heads;
    one.positions += d->positions != NULL ? i : 0;
    y = d9di_elem_at(d->t, h->y, row * size);
    x = d9di_elem_cat(d->t, h->x, i * size);
    one.r = h->rotates ? d->r : 0;
    if (h->w != NULL && h->all_heads) {
        D9D_TRY(d9d_ref_rms_norm(s, d->t, normed, &inv, x, h->w, 1, size, d->eps, d->zero_centred));
        x = normed;
    } else if (h->w != NULL)
        return d9d_ref_norm_rope(s, &one, y, NULL, x, h->w);
    if (h->rotates)
        return d9d_ref_rope(s, d->t, y, x, one.positions, d->inv_freq, 1, h->heads, d->d, d->r,
                            d->interleaved, d->mscale, 1.0f);
    memcpy(y, x, (size_t)size * d9d_dtype_size(d->t));
    return D9D_OK;
}

d9d_status d9d_ref_qk_norm_rope_append(d9d_stream s, const d9d_qk_norm_rope_dims *d, int n,
                                       const d9d_qk_norm_rope_heads *list)
{
    int64_t longest = 1;
    float *normed;
    d9d_status st = D9D_OK;

    D9D_TRY(d9di_args_check_float("qk_norm_rope_append", d->t));
    for (int j = 0; j < n; j++)
        longest = d9di_i64_max(longest, list[j].heads * d->d);
    if ((normed = d9di_cpu_scratch_alloc("qk_norm_rope_append", longest)) == NULL)
        return D9D_ENOMEM;
    for (int j = 0; j < n; j++)
        for (int64_t i = 0; i < d->m && st == D9D_OK; i++)
            st = token_append(s, d, &list[j], i, normed);
    free(normed);
    return st;
}
