/* head_tasks.h - tasks over whole texts: classification, embedding, hidden states.
 *
 *     "task": {"name": "classification", "num_labels": 3}                            d9d-train
 *     "task": {"name": "embedding", "temperature": 0.05}                             d9d-train
 *     "task": {"name": "classification", "output": "classes.jsonl"}                  d9d-infer
 *     "task": {"name": "embedding", "output": "texts.npy", "pooling": "mean"}        d9d-infer
 *     "task": {"name": "hidden_states", "output": "states.npy", "layers": [0, -1]}   d9d-infer
 *
 * Pooling (d9d/data/loader/pooling.h) reduces a text's hidden states to one vector: the last
 * position's, as in HuggingFace's ...ForSequenceClassification, the mean, or the first position's.
 * A text is used whole, including the last token, which in language modelling is only a target.
 *
 *     classification   score [labels, H] applied to the vector.  Loss: cross-entropy against the
 *                      text's label, averaged over the labelled texts of the global batch; or
 *                      against the probabilities in a field of the samples (soft labels).
 *                      classifier_dropout drops elements of the vector in training
 *     embedding        the vector, optionally projected by [features, H], then L2-normalised.
 *                      Trained on pairs, samples 2k and 2k + 1, with InfoNCE: each first text must
 *                      find its second among the second texts of its micro-batch by cosine
 *                      similarity.  Loss: the mean over the pairs of the global batch
 *     hidden_states    vectors of the embedding's output and of each layer's output, before the
 *                      final norm
 *
 * A micro-batch is the same microbatch_size consecutive samples on any mesh, so the loss of pairs
 * does not depend on the mesh.  It does depend on microbatch_size, the number of in-batch
 * negatives; gradient accumulation over more micro-batches adds no negatives.
 *
 * The task's head replaces the model's own.  A source checkpoint with another head is accepted
 * without its head; the new head starts from N(0, 0.02) unless the checkpoint has it.  It belongs
 * to the last stage.  It is saved, exported and adapted (peft) like the model's parameters:
 * HuggingFace's score.weight is cls_head.score.weight here.
 *
 * The tasks are rows of the same tables that plugins fill (d9d/tasks/task.h).
 */
#ifndef D9D_TASKS_HEAD_TASKS_H
#define D9D_TASKS_HEAD_TASKS_H

#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The section of any of these tasks; keys that a task does not have stay 0. */
typedef struct d9d_head_task_section {
    d9d_job_output_section output; /* of an inference task */
    int64_t num_labels;            /* D9D_INT_NULL: as in the model's configuration */
    int64_t embedding_dim; /* D9D_INT_NULL: as in the model's configuration, or no projection */
    int pooling;           /* index into d9d_pooling_names; -1: null */
    bool normalize;
    double temperature;      /* of InfoNCE */
    d9d_list layers;         /* int64_t */
    const char *soft_labels; /* field with the classes' probabilities of a text; NULL: its label */
    double classifier_dropout; /* of the pooled vector, in training */
} d9d_head_task_section;

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_HEAD_TASKS_H */
