/* head.h - the head of a model: language model, causal or masked, classification or embedding.
 */
#ifndef D9D_MODEL_HEAD_H
#define D9D_MODEL_HEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In HuggingFace's terms: ...ForCausalLM, ...ForSequenceClassification, a base model, which has no
 * head or, here, a projection, and ...ForMaskedLM. */
typedef enum d9d_head_kind {
    D9D_HEAD_CAUSAL_LM,
    D9D_HEAD_CLASSIFICATION,
    D9D_HEAD_EMBEDDING,
    D9D_HEAD_MASKED_LM,
    D9D_HEAD_COUNT
} d9d_head_kind;

/* "causal_lm", "classification", "embedding", "masked_lm". */
D9D_API const char *d9d_head_name(d9d_head_kind kind);

/* A language model's head is part of the model, which computes losses of tokens with it. */
static inline bool d9d_head_is_lm(d9d_head_kind kind)
{
    return kind == D9D_HEAD_CAUSAL_LM || kind == D9D_HEAD_MASKED_LM;
}

/* The head that a task needs.  A model computes its own language-model head.  The other heads are
 * matrices that a task adds (d9d_model_add_linear()), with these names in the suite's layout:
 *
 *     cls_head.score.weight [labels, H]       embedding_head.projection.weight [features, H]
 */
typedef struct d9d_head {
    d9d_head_kind kind;
    int64_t size; /* number of labels, or of features of an embedding's projection; 0: from the
                     model's configuration */
} d9d_head;
#define D9D_HEAD_SCORE      "cls_head.score"
#define D9D_HEAD_PROJECTION "embedding_head.projection"
/* Named heads (d9d/tasks/heads.h) are D9D_HEAD_NAMED NAME.  A checkpoint may have any number of
 * them, whatever the model's own head is; those that a task does not name are not read. */
#define D9D_HEAD_NAMED "heads."

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_HEAD_H */
