/* kernel_common.h - what the kernels of all backends share: argument checks, and subarrays. */
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

/* Length of a context-parallel chunk, in rows that cuDNN's attention supports. */
static inline int64_t d9di_attention_chunk_len(const d9d_attention_dims *n)
{
    return n->s == n->z ? n->s : n->s / n->chunks;
}

/* cuDNN attention is planned for eight lengths per power of two: the least that is at least n. */
enum { D9DI_ATTENTION_PLAN_MIN_LEN = 128 };
static inline int64_t d9di_attention_plan_len(int64_t n)
{
    int64_t step = D9DI_ATTENTION_PLAN_MIN_LEN / 8;

    while (n > 16 * step)
        step *= 2;
    return d9di_i64_max(D9DI_ATTENTION_PLAN_MIN_LEN, d9di_i64_round_up(n, step));
}
/* Without a list: true if chunks have exactly such a length. Others run as packed documents. */
static inline bool d9di_attention_plan_fits(const d9d_attention_dims *n)
{
    const int64_t len = d9di_attention_chunk_len(n);

    return d9di_attention_plan_len(len) == len;
}

/* Most scratch for scores, unless the options set it. */
#define D9DI_ATTENTION_MAX_SCORE_BYTES ((int64_t)4 << 30)

/* The Hopper backward stores dS in scratch for a part of a call at a time: `heads` key heads and
 * the query heads of their groups or, if one key head exceeds the scratch, chunk_queries of its B S
 * queries and chunk_keys of its B Z keys. There are query_chunks and key_chunks of these, and
 * n_parts in all. A dS block is the part of dS of key_rows keys and D9DI_DS_BLOCK_QUERIES queries
 * of a document; no part has more than ds_blocks. */
enum { D9DI_DS_BLOCK_QUERIES = 64, D9DI_DS_BLOCK_QUERY_ROWS = 128 };
typedef struct d9di_attention_bwd_parts {
    int64_t key_rows, ds_block_bytes;
    int64_t heads, chunk_queries, chunk_keys, query_chunks, key_chunks, n_parts;
    int64_t ds_blocks;
} d9di_attention_bwd_parts;
/* max_bytes: of dS; a part of D9DI_DS_BLOCK_QUERY_ROWS queries and as many keys may exceed it. sms:
 * blocks that run at a time, which chunks keep busy to the last where max_bytes allows it. */
d9di_attention_bwd_parts d9di_attention_bwd_parts_of(const d9d_attention_dims *n, int64_t max_bytes,
                                                     int64_t sms);

/* Ring attention. A part of the keys of whole rows as rows of these keys alone: chunk_end then
 * counts from the part's first key, and is above z where the diagonal of the chunk lies behind the
 * part, at most 0 where it lies before. False of what only a list or a prefix describes. */
bool d9di_attention_part_as_rows(const d9d_attention_dims *n, d9d_attention_dims *out);
/* How the queries of chunk i of such rows see the keys: none, all, under a causal mask (and a
 * window) with a key for each, or otherwise. */
typedef enum d9di_attention_chunk_mask {
    D9DI_CHUNK_HIDDEN,
    D9DI_CHUNK_FULL,
    D9DI_CHUNK_CAUSAL,
    D9DI_CHUNK_PARTIAL
} d9di_attention_chunk_mask;
d9di_attention_chunk_mask d9di_attention_chunk_mask_of(const d9d_attention_dims *rows, int64_t i);
/* True if no chunk sees them otherwise: cuDNN has a plan for each of the other masks. */
bool d9di_attention_part_is_blocks(const d9d_attention_dims *rows);
/* True if no tile of the Hopper backward has keys before a diagonal and behind the part. */
bool d9di_attention_part_is_tiles(const d9d_attention_dims *rows);

/* Rows of a panel of a symmetric product [m, m]; the columns of a panel end with its last row.  m:
 * one panel, since smaller ones keep a GPU less busy than they save. */
static inline int64_t d9di_gemm_symmetric_panel(int64_t m)
{
    return m < 1024 ? m : m < 4096 ? d9di_i64_round_up(m / 2, 128) : 1024;
}

/* EINVAL unless t is D9D_F32 or D9D_BF16. */
d9d_status d9di_args_check_float(const char *op, d9d_dtype t);
/* EINVAL unless keys and values in 8 bits have both scales, and are cached (`decode`). */
d9d_status d9di_args_check_attention_cache(const char *op, const d9d_attention_dims *n);
/* EINVAL unless so many arrays can be appended at a time. */
d9d_status d9di_args_check_kv_append_fp8(const char *op, int n);
d9d_status d9di_args_check_addends(int of);
d9d_status d9di_args_check_foreach(int count);
/* EINVAL unless the vocabulary has 1 to D9D_SAMPLE_MAX_VOCAB tokens, or more where no weights are
 * summed. */
d9d_status d9di_args_check_sample_tokens(const d9d_sample_tokens_args *a);
/* EINVAL unless the function, the types and the number of dimensions are possible. */
d9d_status d9di_args_check_pointwise(const d9d_pointwise_dims *d);
d9d_status d9di_args_check_reduce_axis(const char *op, const d9d_reduce_axis_dims *d);

/* A long axis of few results is reduced in parts of `rows`, whose results in scratch of m * parts *
 * n floats are then reduced. Sizes alone decide. */
enum { D9DI_REDUCE_MIN_ROWS = 1024, D9DI_REDUCE_MANY_RESULTS = 1 << 16 };
typedef struct d9di_reduce_parts {
    int64_t parts, rows;
} d9di_reduce_parts;
static inline d9di_reduce_parts d9di_reduce_parts_of(const d9d_reduce_axis_dims *d)
{
    const int64_t results = d9di_i64_max(1, d->m * d->n);
    int64_t parts = d9di_i64_min(d->r / D9DI_REDUCE_MIN_ROWS, D9DI_REDUCE_MANY_RESULTS / results);

    if (parts < 2 || d->offset != NULL)
        return (d9di_reduce_parts){1, d->r};
    parts = d9di_i64_ceil_div(d->r, d9di_i64_ceil_div(d->r, parts));
    return (d9di_reduce_parts){parts, d9di_i64_ceil_div(d->r, parts)};
}

/* Tokens per block of linear_cross_entropy_fwd_bwd, for scratch of `empty` bytes plus `each` per
 * token; with vocabulary parallelism the same on all ranks. */
int64_t d9di_linear_cross_entropy_tokens(const d9d_linear_cross_entropy_dims *n, int64_t empty,
                                         double each);
/* EINVAL unless t is float and that many experts and groups can be chosen. */
d9d_status d9di_args_check_router(const char *op, const d9d_router_dims *n);

/* gemm->multi() as a loop over a table's gemm->dense(). */
d9d_status d9di_gemm_each(const d9d_kernels *k, d9d_stream s, int n, const d9d_gemm *g,
                          const void *a, const void *const *b, void *const *c);

/* EINVAL unless t is float and the unit can be computed, with a gate if `gated`. */
d9d_status d9di_args_check_glu(const char *op, d9d_dtype t, const d9d_glu *f, bool gated);

/* gemm->glu() and gemm->glu_bwd() from a table's GEMM, bias and GLU entries. */
d9d_status d9di_gemm_glu_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                               void *y, void *gate, void *up, const void *x, const void *w_gate,
                               const void *w_up);
/* Their end: biases of gate and up, unless the products have added them, and the unit. */
d9d_status d9di_glu_finish(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                           bool biased, void *y, void *gate, void *up);
d9d_status d9di_gemm_glu_bwd_parts(const d9d_kernels *k, d9d_stream s, const d9d_gemm_glu_dims *n,
                                   void *dgate, void *dup, const void *dout, const void *w,
                                   const void *gate, const void *up);

/* moe->experts() from a table's permute, GLU, grouped GEMM, bias and unpermute entries. */
d9d_status d9di_experts_parts(const d9d_kernels *k, d9d_stream s, const d9d_experts_args *a,
                              void *y);

/* Element i of an array of type t, float32 or bfloat16. */
static inline void *d9di_elem_at(d9d_dtype t, void *x, int64_t i)
{
    return (char *)x + i * (t == D9D_F32 ? 4 : 2);
}
static inline const void *d9di_elem_cat(d9d_dtype t, const void *x, int64_t i)
{
    return (const char *)x + i * (t == D9D_F32 ? 4 : 2);
}

/* A box within a whole array, as runs of elements that are contiguous in both. */
typedef struct d9di_subarray {
    int64_t run, n_runs; /* elements per run; number of runs */
    int ndim;            /* dimensions above the run */
    int64_t box[D9D_MAX_DIMS], start[D9D_MAX_DIMS], stride[D9D_MAX_DIMS];
    int64_t first; /* index of the first element along the run dimension */
} d9di_subarray;
d9di_subarray d9di_subarray_make(int ndim, const int64_t *box, const int64_t *start,
                                 const int64_t *whole);
/* The same with a run for each row: dimensions do not merge. */
d9di_subarray d9di_subarray_make_rows(int ndim, const int64_t *box, const int64_t *start,
                                      const int64_t *whole);

/* Index in the whole array of the first element of run i. */
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
