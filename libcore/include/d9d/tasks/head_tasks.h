/* head_tasks.h - tasks over whole texts: classes, embeddings, hidden states.
 *
 *     "task": {"name": "classification", "num_labels": 3}                            d9d-train
 *     "task": {"name": "embedding", "temperature": 0.05}                             d9d-train
 *     "task": {"name": "classification", "output": "classes.jsonl"}                  d9d-infer
 *     "task": {"name": "embedding", "output": "texts.npy", "pooling": "mean"}        d9d-infer
 *     "task": {"name": "hidden_states", "output": "states.npy", "layers": [0, -1]}   d9d-infer
 *
 * A text's hidden states become one row (d9d/data/loader/pooling.h): that of its last position,
 * which is what HuggingFace's ...ForSequenceClassification takes, their mean, or the first one.
 * Texts are taken whole, with the last token, which a language model has for a target alone.
 *
 *     classification   score [labels, H] over the row; trained by cross-entropy against the text's
 *                      label, the mean over the texts of the global batch that have one
 *     embedding        the row, projected where there is a projection [features, H], normalised;
 *                      trained on pairs, samples 2k and 2k + 1: each first text is to find its
 *                      second among the second ones of its micro-batch by cosine (InfoNCE), the
 *                      mean over the pairs of the global batch
 *     hidden_states    rows of the embedding's output and of each layer's, before the final norm
 *
 * A micro-batch is the same microbatch_size consecutive samples on any mesh, so the loss of pairs
 * does not depend on the mesh either; it does on microbatch_size, which says how many others there
 * are, and gradients that are accumulated over more micro-batches add none.
 *
 * The head takes the place of the model's own: a checkpoint of another head is a source, its head
 * is left, and the new one begins at random, N(0, 0.02), until a checkpoint has it.  It lies with
 * the last stage, and is saved, exported and adapted (peft) as the model's own parameters are:
 * HuggingFace's score.weight is cls_head.score.weight here.
 *
 * These are rows of the tables that plugins fill (d9d/tasks/task.h).
 */
#ifndef D9D_TASKS_HEAD_TASKS_H
#define D9D_TASKS_HEAD_TASKS_H

#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The section of any of them; what one has no key for stays at 0. */
typedef struct d9d_head_task_section {
    d9d_job_output_section output; /* of inference */
    int64_t num_labels;            /* D9D_INT_NULL: the model's */
    int64_t embedding_dim;         /* D9D_INT_NULL: the model's, or no projection */
    int pooling;                   /* d9d_pooling_names */
    bool normalize;
    double temperature; /* of pairs */
    d9d_list layers;    /* int64_t */
} d9d_head_task_section;

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_HEAD_TASKS_H */
