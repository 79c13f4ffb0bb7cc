/* golden.h - a model against stored float64 vectors: logits, losses and gradients.
 *
 *     DIR/config.json, DIR/model.safetensors    the model, as transformers saves it
 *     DIR/golden.safetensors                    input_ids, labels [B, S] int32; logits [B, S, V],
 *                                               token_losses [B, S]; grad.NAME of the mean loss, by
 *                                               the names and in the forms of the files
 *                                               float32_apart [1]: how far another program's
 *                                               float32 is from these, or 0
 *     DIR/train.jsonl, DIR/train.json           for ten steps of AdamW: the same rows as samples;
 *                                               [{"step": 1, "loss": 4.9, "grad_norm": 2.1}, ...]
 *
 * The labels of a masked language model are those of masked tokens, and its rows are whole
 * documents.  A model with a prefix mask has the tokens before a row's first target as its prefix.
 *
 * Of an encoder without a head, golden.safetensors has instead packed documents, input_ids,
 * positions and segments, with hidden [B, S, H], the last hidden states, hidden_seed, a gradient of
 * them, and grad.NAME.
 *
 * Distances are relative, in the 2-norm.  The limit is 1e-5, or five times float32_apart where a
 * model amplifies rounding.  Gradients that are zero by mathematics are measured by all of them.
 */
#ifndef D9D_CERTIFY_GOLDEN_H
#define D9D_CERTIFY_GOLDEN_H

#include "d9d/model/provider.h"

#ifdef __cplusplus
extern "C" {
#endif

#define D9D_GOLDEN_LIMIT 1e-5

typedef struct d9d_golden_opts {
    const d9d_table *const *choices; /* of model_provider; NULL: d9d_model_choices */
    const char *device;              /* as for d9d_device_open(); NULL: "cpu" */
    double limit;                    /* 0: D9D_GOLDEN_LIMIT */
} d9d_golden_opts;

typedef struct d9d_golden_result {
    size_t n;         /* arrays that were compared */
    double outputs;   /* the distance of logits, or of an encoder's hidden states */
    double worst;     /* the largest distance */
    const char *name; /* of that array, in the caller's arena */
    double limit;     /* what the distance may be */
} d9d_golden_result;

/* Compare the model of a folder.  D9D_OK also if it is further away than the limit.  ENOTFOUND,
 * EFORMAT: the vectors lack an array, or one has another size; EVERIFY: memory of the device was
 * not given back. */
D9D_API D9D_MUST_USE d9d_status d9d_golden_compare(const char *dir, const d9d_golden_opts *opts,
                                                   d9d_arena *a, d9d_golden_result *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_CERTIFY_GOLDEN_H */
