/* plan_lengths.h - how long the rows of a job are, as far as its data say. */
#ifndef D9DI_PLAN_PLAN_LENGTHS_H
#define D9DI_PLAN_PLAN_LENGTHS_H

#include "engine/evaluate.h"

typedef struct d9di_plan_data {
    d9di_task task;
    d9di_evaluations evaluations;
    d9di_run_data data; /* without datasets where a length was given */
    int64_t length;     /* that was given; 0: none */
    int64_t document;   /* mean positions of packed documents; 0: rows are not packed */
    int64_t steps;      /* of the run; -1: nobody said */
    int64_t evaluated_rows, evaluated_longest; /* of the largest batch of an evaluation; 0: none */
    int64_t evaluated_batches;                 /* of that evaluation, on all ranks, at most */
    d9d_arena arena;
} d9di_plan_data;

typedef struct d9di_plan_lengths {
    int64_t longest, mean; /* positions of a row, padding and all: of the longest, of a batch */
    double tokens;         /* of a row, without padding */
} d9di_plan_lengths;

/* `length` above 0 does without the data.  What training refuses of the configuration, whatever the
 * mesh and the sizes of batches, is refused. */
d9d_status d9di_plan_data_open(const d9d_train_config *c, int64_t length, d9di_plan_data *out);
void d9di_plan_data_release(d9di_plan_data *d);

/* Rows in micro-batches of so many, of one rank. */
d9d_status d9di_plan_lengths_measure(const d9di_plan_data *d, int64_t rows, d9di_plan_lengths *out);
/* Positions, and rows, padded for the ranks of a mesh. */
int64_t d9di_plan_lengths_round(int64_t positions, const d9d_train_config *c);
d9di_plan_lengths d9di_plan_lengths_pad(const d9di_plan_lengths *r, const d9d_train_config *c);

#endif /* D9DI_PLAN_PLAN_LENGTHS_H */
