/* qwen3_names.h - the table of Qwen3's tensors, and iteration over one stage.
 */
#ifndef D9DI_MODELS_QWEN3_QWEN3_NAMES_H
#define D9DI_MODELS_QWEN3_QWEN3_NAMES_H

#include "d9d/ckpt/safetensors/safetensors.h"
#include "d9d/models/qwen3/qwen3.h"

enum { D9DI_QWEN3_NAME_MAX = 160 }; /* bytes of an expanded name */

/* A tensor or a family of tensors.  Patterns have {l} layer, {v} vocabulary split, {e} expert;
 * shapes are letters: V split size, H hidden, Q A*D, K K*D, D head size, I dense FFN,
 * E experts, N expert FFN, S shared expert FFN, C labels, P embedding features, 1. */
typedef struct d9di_qwen3_row {
    enum {
        D9DI_FIRST, /* first stage, for each vocabulary split */
        D9DI_EVERY, /* each layer */
        D9DI_DENSE, /* each layer with a dense FFN */
        D9DI_MOE,   /* each mixture */
        D9DI_SHARED,
        D9DI_SHARED_GATE,
        D9DI_LAST,    /* last stage */
        D9DI_LM_HEAD, /* last stage of a language model, for each vocabulary split */
        D9DI_SCORE,
        D9DI_PROJECTION
    } where;
    const char *d9d, *d9d_shape;
    const char *hf, *hf_shape; /* NULL: none; with {e}: one of E tensors that are stacked */
    const char *fused;         /* for an expert matrix: its tensor in the fused layout */
    bool norm;
} d9di_qwen3_row;

/* One tensor in the suite's layout. */
typedef struct d9di_qwen3_tensor {
    const d9di_qwen3_row *row;
    bool again;    /* the last stage's copy of a tied embedding, used as the head */
    int64_t layer; /* 0 outside layers */
    const d9d_block_vocab_split *split; /* NULL outside the vocabulary */
} d9di_qwen3_tensor;

/* Call fn for all tensors of a stage, in order; stops at the first failure. */
typedef d9d_status (*d9di_qwen3_fn)(void *arg, const d9di_qwen3_tensor *t);
d9d_status d9di_qwen3_each(const d9d_qwen3_config *c, d9d_stage stage, d9di_qwen3_fn fn, void *arg);

/* Expand a pattern with this tensor's numbers. */
void d9di_qwen3_name(const d9di_qwen3_tensor *t, const char *pattern, int64_t expert,
                     char out[D9DI_QWEN3_NAME_MAX]);
/* Expand the letters of a shape; returns the number of dimensions. */
int d9di_qwen3_shape(const d9d_qwen3_config *c, const d9di_qwen3_tensor *t, const char *letters,
                     int64_t shape[D9D_MAX_DIMS]);

#endif /* D9DI_MODELS_QWEN3_QWEN3_NAMES_H */
