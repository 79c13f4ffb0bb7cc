/* stage_tensor.h - what a pipeline stage hands to the next: a tuple of named tensors.
 *
 *     stage k  --[ hidden | memory | mask ]-->  stage k + 1        values
 *              <-[ hidden | memory |      ]--                      gradients
 *
 * A declaration says how a tensor's shape follows from the micro-batch, which all ranks of a
 * pipeline know.  So no message carries shapes, and each end knows what the other one sends.
 *
 *     {.name = "hidden", .per = D9D_STAGE_PER_HIDDEN, .rank = 1, .shape = {H}}
 *     {.name = "memory", .per = D9D_STAGE_PER_DOCUMENT, .field = "image", .rank = 2,
 *      .shape = {M, H}}
 *     {.name = "count", .per = D9D_STAGE_PER_SEQUENCE, .dtype = D9D_I32, .constant = true}
 *
 *     per            dimensions before `shape`
 *     HIDDEN         [B, S], with tensor-parallel ranks [B S / tp]: as hidden states
 *     TOKEN          [B, S]: this rank's positions, on each tensor-parallel rank
 *     SEQUENCE       [B]: the rows of the micro-batch
 *     DOCUMENT       [N]: the first dimension of a field per sample
 *     RAGGED         [N, R]: the first two of a ragged one, padded to the longest
 *     MICRO_BATCH    none
 *
 * A constant has no gradient: masks, ids, statistics.  Of other tensors the gradient travels back,
 * and is zeros where the later stages do not read the tensor.
 */
#ifndef D9D_PIPE_STAGE_TENSOR_H
#define D9D_PIPE_STAGE_TENSOR_H

#include "d9d/tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_STAGE_TENSORS_MAX = 8, D9D_STAGE_TENSOR_DIMS = 4 };

typedef enum d9d_stage_per {
    D9D_STAGE_PER_HIDDEN,
    D9D_STAGE_PER_TOKEN,
    D9D_STAGE_PER_SEQUENCE,
    D9D_STAGE_PER_DOCUMENT,
    D9D_STAGE_PER_RAGGED,
    D9D_STAGE_PER_MICRO_BATCH
} d9d_stage_per;

/* A declaration. */
typedef struct d9d_stage_spec {
    const char *name;
    d9d_stage_per per;
    const char *field; /* DOCUMENT and RAGGED: its name; others NULL */
    d9d_dtype dtype;   /* F32 or BF16; of a constant I32 or I64 too */
    int rank;          /* dimensions of `shape`; MICRO_BATCH has one or more */
    int64_t shape[D9D_STAGE_TENSOR_DIMS];
    bool constant; /* no gradient */
} d9d_stage_spec;

/* The same of one micro-batch. */
typedef struct d9d_stage_tensor {
    const char *name;
    d9d_dtype dtype;
    d9d_shape shape;
    bool constant;
} d9d_stage_tensor;

/* Checks n declarations, which `where` makes: names, dtypes, shapes, and that one has a gradient.
 * ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_specs_check(const d9d_stage_spec *specs, size_t n,
                                                      const char *where);

/* What stage `from` gives must be what the next one takes; x NULL: it gives nothing.  EMISMATCH
 * names both. */
D9D_API D9D_MUST_USE d9d_status d9d_stage_tensor_check(const d9d_stage_tensor *taken,
                                                       const d9d_tensor *x, int from);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_STAGE_TENSOR_H */
