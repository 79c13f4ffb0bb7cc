/* plan_lengths.h - the sequence lengths of a job, from its datasets. */
#ifndef D9DI_PLAN_PLAN_LENGTHS_H
#define D9DI_PLAN_PLAN_LENGTHS_H

#include "engine/evaluate.h"

typedef struct d9di_plan_data {
    d9di_task task;
    d9di_evaluations evaluations;
    d9di_run_data data; /* without datasets if a length is given */
    int64_t length;     /* the given length; 0: none */
    int64_t document;   /* mean positions of packed documents; 0: not packed */
    int64_t steps;      /* of the run; -1: unknown */
    int64_t evaluated_rows, evaluated_longest; /* of the largest evaluation batch; 0: none */
    int64_t evaluated_batches;                 /* upper bound over all ranks, for that evaluation */
    int64_t virtual_tokens;                    /* that begin each sequence */
    d9d_arena arena;
} d9di_plan_data;

typedef struct d9di_plan_lengths {
    int64_t longest, mean; /* positions with padding: of the longest sequence; mean of a batch */
    double tokens;         /* of a sequence, without padding */
} d9di_plan_lengths;

/* Opens the data.  With `length` above 0 no datasets are needed.  Applies the checks of training
 * that do not depend on the mesh and the batch sizes. */
d9d_status d9di_plan_data_open(const d9d_train_config *c, int64_t length, d9di_plan_data *out);
void d9di_plan_data_release(d9di_plan_data *d);

/* Measures sequences in one rank's micro-batches of this many. */
d9d_status d9di_plan_lengths_measure(const d9di_plan_data *d, int64_t rows, d9di_plan_lengths *out);
/* Positions padded for the ranks of a mesh. */
int64_t d9di_plan_lengths_round(int64_t positions, const d9d_train_config *c);
d9di_plan_lengths d9di_plan_lengths_pad(const d9di_plan_lengths *r, const d9d_train_config *c);

#endif /* D9DI_PLAN_PLAN_LENGTHS_H */
