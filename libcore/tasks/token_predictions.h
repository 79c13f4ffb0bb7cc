/* token_predictions.h - what a language model predicts for each token, without its logits.
 *
 * Training computes losses of tokens without logits.  Where metrics want predictions, the head
 * multiplies the same rows once more, some at a time:
 *
 *     rows [n, H] --head--> logits [n, V] --> columns [n, 5] --> one array [T, 5]
 *                                        `--> host, where a metric wants the logits themselves
 *
 * So there are at most D9DI_TOKEN_PREDICTIONS_ELEMENTS logits at a time, and three arrays of them.
 * The cost is a third of the head's product in training, and some twelve passes over the logits.
 * Nothing is recorded, and the training does not change by a bit.
 *
 * Vocabulary parallel: every tp rank computes the same logits of the whole vocabulary, by an
 * all-reduce.
 */
#ifndef D9DI_TASKS_TOKEN_PREDICTIONS_H
#define D9DI_TASKS_TOKEN_PREDICTIONS_H

#include "d9d/metric/metric.h"
#include "d9d/nn/block.h"

#define D9DI_TOKEN_PREDICTIONS_ELEMENTS (INT64_C(1) << 26)

typedef struct d9di_token_predictions {
    const d9d_tensor *labels; /* [T] int32, or of that many elements */
    bool classes_alone; /* columns are [T, 1], D9D_METRIC_TOKEN_CLASS: one pass over the logits */
    int64_t chunk;      /* tokens at a time; 0: as many as have that many logits */
    /* Called with the logits [n, V] float32 of the tokens from `first`, valid during the call.
     * NULL: nobody wants them. */
    d9d_status (*logits)(void *arg, const d9d_tensor *logits, int64_t first);
    void *arg;
} d9di_token_predictions;

/* h [T/tp, H], the rows that the head multiplies, to columns [T, D9D_METRIC_TOKEN_COLUMNS] float32,
 * on all tp ranks; of ignored tokens loss and rank mean nothing.  The caller releases them. */
d9d_status d9di_token_predictions_make(const d9di_token_predictions *p, d9d_block_vocab *head,
                                       const d9d_tensor *h, d9d_tensor *columns);

#endif /* D9DI_TASKS_TOKEN_PREDICTIONS_H */
