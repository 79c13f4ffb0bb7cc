/* kernel_common.h - what the kernels of all backends share: checks, and boxes inside whole
 * arrays. */
#ifndef D9D_KERNEL_COMMON_H
#define D9D_KERNEL_COMMON_H

#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define D9DI_HOST_DEVICE __host__ __device__
#else
#define D9DI_HOST_DEVICE
#endif

D9DI_HOST_DEVICE static inline int64_t d9di_i64_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
D9DI_HOST_DEVICE static inline int64_t d9di_i64_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
D9DI_HOST_DEVICE static inline int64_t d9di_i64_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
D9DI_HOST_DEVICE static inline int64_t d9di_i64_round_up(int64_t a, int64_t to)
{
    return d9di_i64_ceil_div(a, to) * to;
}

/* Queries of a row that follow each other, of rows that cuDNN's attention takes. */
static inline int64_t d9di_attention_chunk_len(const d9d_attention_dims *n)
{
    return n->s == n->z ? n->s : n->s / n->chunks;
}

/* The lengths for which it is planned, of which there are eight from a power of two to the next:
 * the least that n fits in. */
enum { D9DI_ATTENTION_PLAN_MIN_LEN = 128 };
static inline int64_t d9di_attention_plan_len(int64_t n)
{
    int64_t step = D9DI_ATTENTION_PLAN_MIN_LEN / 8;

    while (n > 16 * step)
        step *= 2;
    return d9di_i64_max(D9DI_ATTENTION_PLAN_MIN_LEN, d9di_i64_round_up(n, step));
}
/* Rows without a list: is a piece of such a length?  Others are done as documents. */
static inline bool d9di_attention_plan_fits(const d9d_attention_dims *n)
{
    const int64_t piece = d9di_attention_chunk_len(n);

    return d9di_attention_plan_len(piece) == piece;
}

/* The most scratch for gradients of scores, where the options do not say. */
#define D9DI_ATTENTION_MAX_SCORE_BYTES ((int64_t)4 << 30)

/* Units of the gradients of scores that the gradient on Hopper has, if each row, or each piece of
 * one, is one document: of so many queries and keys, of which some see each other. */
enum { D9DI_DS_BLOCK_QUERIES = 64, D9DI_DS_BLOCK_KEYS = 128, D9DI_DS_BLOCK_BYTES = 64 * 128 * 2 };
static inline int64_t d9di_attention_ds_blocks(const d9d_attention_dims *n)
{
    const int64_t pieces = d9di_i64_max(1, n->chunks), size = n->s / pieces;
    const int64_t wide =
        n->window > 0 ? (n->window + D9DI_DS_BLOCK_KEYS - 1) / D9DI_DS_BLOCK_QUERIES + 2 : size;
    int64_t units = 0;

    for (int64_t p = 0; p < pieces; p++) {
        const int64_t end = n->chunks > 0 ? n->chunk_end[p] : n->z;

        for (int64_t key = 0; key < end; key += D9DI_DS_BLOCK_KEYS) {
            const int64_t first = d9di_i64_max(0, key - (end - size)) / D9DI_DS_BLOCK_QUERIES;

            units += d9di_i64_max(
                0, d9di_i64_min(wide, d9di_i64_ceil_div(size, D9DI_DS_BLOCK_QUERIES) - first));
        }
    }
    return n->b * n->a * units;
}

/* EINVAL unless t is D9D_F32 or D9D_BF16. */
d9d_status d9di_args_check_float(const char *op, d9d_dtype t);
d9d_status d9di_args_check_addends(int of);

/* Tokens that linear_cross_entropy_fwd_bwd takes at a time, for scratch of `empty` bytes and `each`
 * for a token; where ranks have parts, the same on all of them. */
int64_t d9di_linear_cross_entropy_tokens(const d9d_linear_cross_entropy_dims *n, int64_t empty,
                                         double each);
/* And unless that many experts can be chosen, of groups that can be. */
d9d_status d9di_args_check_router(const char *op, const d9d_router_dims *n);

/* gemms by a table's gemm. */
d9d_status d9di_gemm_each(const d9d_kernels *k, d9d_stream s, int n, const d9d_gemm *g,
                          const void *a, const void *const *b, void *const *c);

/* gated_gemm and gated_gemm_din by the products and the SwiGLU of a table. */
d9d_status d9di_gemm_swiglu_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_swiglu_dims *n,
                                  void *y, void *gate, void *up, const void *x, const void *w_gate,
                                  const void *w_up);
d9d_status d9di_gemm_swiglu_bwd_parts(const d9d_kernels *k, d9d_stream s,
                                      const d9d_gemm_swiglu_dims *n, void *dgate, void *dup,
                                      const void *dout, const void *w, const void *gate,
                                      const void *up);

/* Element i of an array of type t, float32 or bfloat16. */
static inline void *d9di_elem_at(d9d_dtype t, void *x, int64_t i)
{
    return (char *)x + i * (t == D9D_F32 ? 4 : 2);
}
static inline const void *d9di_elem_cat(d9d_dtype t, const void *x, int64_t i)
{
    return (const char *)x + i * (t == D9D_F32 ? 4 : 2);
}

/* A box inside a whole array, as runs of elements that are neighbours in both. */
typedef struct d9di_subarray {
    int64_t run, n_runs; /* elements of a run; runs */
    int ndim;            /* dimensions above the run */
    int64_t box[D9D_MAX_DIMS], start[D9D_MAX_DIMS], stride[D9D_MAX_DIMS];
    int64_t first; /* index of the first element within the run dimension */
} d9di_subarray;
d9di_subarray d9di_subarray_make(int ndim, const int64_t *box, const int64_t *start,
                                 const int64_t *whole);

/* Index in the whole of the first element of run i. */
D9DI_HOST_DEVICE static inline int64_t d9di_subarray_index(const d9di_subarray *b, int64_t i)
{
    int64_t index = b->first;

    for (int d = b->ndim - 1; d >= 0; d--) {
        index += (b->start[d] + i % b->box[d]) * b->stride[d];
        i /= b->box[d];
    }
    return index;
}

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNEL_COMMON_H */
