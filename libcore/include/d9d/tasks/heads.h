/* heads.h - several named heads on one model.
 *
 *     "task": {"name": "heads", "heads": [
 *         {"name": "text", "kind": "causal_lm"},
 *         {"name": "topic", "kind": "classification", "outputs": 3, "label": "topic", "weight":
 * 0.5, "classifier_dropout": 0.1, "metrics": [{"name": "accuracy", "problem": "multiclass",
 *          "num_classes": 3}]},
 *         {"name": "tags", "kind": "token_classification", "outputs": 9, "label": "tags"},
 *         {"name": "score", "kind": "regression", "outputs": 1, "label": "score"}]}       d9d-train
 *
 *     "task": {"name": "heads", "output": "out.jsonl", "heads": [
 *         {"name": "topic", "kind": "classification", "outputs": 3}]}                     d9d-infer
 *
 * Each head has a matrix heads.NAME.weight [outputs, H], and with "bias" heads.NAME.bias [outputs].
 * A causal_lm head is the model's own, under the model's names.
 *
 *     kind                  is applied to              label, a field of the samples        loss
 *     causal_lm             every position             none: the next token        cross_entropy
 *     token_classification  every position             a class of each token       cross_entropy
 *     classification        the pooled text            a class; null: the text's   cross_entropy
 *                                                      a probability of each    soft_cross_entropy
 *                                                      0 or 1 of each output                 bce
 *     regression            the pooled text            outputs numbers              mse, l1, huber
 *     embedding             the pooled text            none: texts 2k and 2k + 1         info_nce
 *
 * A negative class has no loss.  Of regression, bce and info_nce a text's loss is the mean over its
 * outputs.  The loss of a step is
 *
 *     sum over heads of weight_h (sum of head h's losses / number of its targets)
 *
 * where both sums are over the global batch.  It does not depend on the mesh, on micro-batches or
 * on other heads: a head with few targets has the weight that its section says.  loss_weights
 * names a field with a number of each target, which multiplies its loss and is not counted.  A text
 * or target whose value or weight is NaN (null) counts for nothing.
 *
 * Records have NAME.loss, the mean loss of head NAME without its weight, and NAME.METRIC for each
 * metric of its section.
 *
 * Texts are whole, with their last token, in training and inference.  A causal_lm head has no
 * target at that one.
 *
 * Inference computes the heads that it lists, of whatever heads the checkpoint has, and writes a
 * line for each text (heads of tokens have their own tasks):
 *
 *     {"sample": 0, "topic": {"label": 2, "prediction": [0.1, 0.2, 0.7]}, "score": [3.5]}
 *
 * A classification that was trained with bce says so, "loss": "bce".  Its classes have a
 * probability each, and a text those above 1/2: {"labels": [0, 2], "prediction": [0.9, 0.2, 0.7]}.
 * Metrics of a head compare these with its `label`, or with the texts' classes; the summary has
 * them.
 */
#ifndef D9D_TASKS_HEADS_H
#define D9D_TASKS_HEADS_H

#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_HEADS_MAX = 16 };

typedef enum d9d_heads_kind {
    D9D_HEADS_CAUSAL_LM,
    D9D_HEADS_TOKEN_CLASSIFICATION,
    D9D_HEADS_CLASSIFICATION,
    D9D_HEADS_REGRESSION,
    D9D_HEADS_EMBEDDING
} d9d_heads_kind;

typedef enum d9d_heads_loss {
    D9D_HEADS_CROSS_ENTROPY,
    D9D_HEADS_SOFT_CROSS_ENTROPY,
    D9D_HEADS_BCE,
    D9D_HEADS_MSE,
    D9D_HEADS_L1,
    D9D_HEADS_HUBER,
    D9D_HEADS_INFO_NCE
} d9d_heads_loss;

/* One head; in inference, only name, kind, outputs, bias, loss, and for metrics label. */
typedef struct d9d_heads_head_section {
    const char *name;
    int kind;        /* d9d_heads_kind */
    int64_t outputs; /* D9D_INT_NULL: of an embedding no matrix */
    bool bias;
    const char *label;        /* NULL: see the table above */
    int loss;                 /* d9d_heads_loss; -1: the first of its kind */
    double weight;            /* of its mean loss */
    const char *loss_weights; /* NULL: none */
    double classifier_dropout, label_smoothing, temperature;
    d9d_list metrics; /* d9d_union */
} d9d_heads_head_section;

typedef struct d9d_heads_section {
    d9d_job_output_section output; /* of inference */
    int pooling;                   /* index into d9d_pooling_names */
    d9d_list heads;                /* d9d_heads_head_section */
} d9d_heads_section;

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_HEADS_H */
