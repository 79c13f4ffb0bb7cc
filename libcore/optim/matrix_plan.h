/* matrix_plan.h - which rank computes with which whole matrix.
 *
 * The slices of a matrix are on the ranks of a pipeline stage, as FSDP, tensor and expert
 * parallelism divide it, and may have copies.  Each matrix has one owner, which computes with all
 * of it (matrix_exchange.h): a rank that has a whole copy if there is one, else a rank that has a
 * slice, so that little is sent; matrices of one shape are divided evenly.  A stack of experts
 * [E, rows, columns] is E matrices.  Matrices of one class are computed together, in rounds of
 * limited memory.  All of it follows from the placement of the parameters alone.
 */
#ifndef D9DI_OPTIM_MATRIX_PLAN_H
#define D9DI_OPTIM_MATRIX_PLAN_H

#include "optim/optimizer.h"

/* What a rank stores of a parameter, as a stack: of matrices, rows and columns. */
typedef struct d9di_matrix_box {
    int64_t first[3], dim[3];
} d9di_matrix_box;

/* A box of a parameter as a stack: a vector is one matrix of a column.  `first` NULL: of the whole.
 */
d9di_matrix_box d9di_matrix_box_of_shape(const d9d_shape *shape, const int64_t *first);

/* What each rank of a group stores of each parameter of one to three dimensions. */
typedef struct d9di_matrix_shards {
    d9d_device *dev;
    d9d_comm *group;
    int ranks, rank;
    const d9d_params *params;
    d9di_matrix_box *boxes; /* [ranks, params] */
    int *first_copy;        /* [ranks, params]: the first rank with the same box */
    d9d_arena arena;
} d9di_matrix_shards;

/* Collective over the group. */
d9d_status d9di_matrix_shards_create(const d9d_optimizer_open_opts *opts, d9di_matrix_shards **out);
void d9di_matrix_shards_free(d9di_matrix_shards *s);
/* The same as open() and close() of a kind of optimizer. */
d9d_status d9di_matrix_shards_open(const d9d_optimizer_open_opts *opts, void **self);
void d9di_matrix_shards_close(void *self);
/* Is this rank the first of those that store the same shard of a parameter, which is looked for
 * from *at on? */
d9d_status d9di_matrix_shards_is_first_copy(const d9di_matrix_shards *s, const d9d_param *p,
                                            size_t *at, bool *out);

typedef struct d9di_matrix {
    size_t update; /* of its parameter */
    size_t param;  /* index in the shards' params */
    int64_t index; /* in the stack */
    int owner;
    int64_t place; /* among its owner's matrices of the class */
} d9di_matrix;

/* Matrices of one shape, whose parameters have the types and the rate of `u`. */
typedef struct d9di_matrix_class {
    const d9d_optimizer_update *u;
    bool stacked;
    int64_t rows, cols;
    d9di_matrix *matrices;
    size_t n;
    int64_t per_round; /* most matrices of an owner in a round */
    size_t n_rounds;
} d9di_matrix_class;

typedef struct d9di_matrix_plan {
    const d9di_matrix_shards *shards;
    d9di_matrix_class *classes;
    size_t n_classes;
} d9di_matrix_plan;

/* The matrices of n updates.  All ranks of the group have the same updates in the same order. */
d9d_status d9di_matrix_plan_make(const d9di_matrix_shards *s, const d9d_optimizer_update *u,
                                 size_t n, d9d_arena *a, d9di_matrix_plan *out);

/* The box of a matrix's parameter on a rank, and whether it has a part of this matrix. */
const d9di_matrix_box *d9di_matrix_box_of(const d9di_matrix_shards *s, const d9di_matrix *m,
                                          int rank, bool *has_part);
/* The rank that sends what `rank` has of the matrix to the owner: the owner itself, if it has a
 * copy, else the first that has one. */
int d9di_matrix_sender(const d9di_matrix_shards *s, const d9di_matrix *m, int rank);

#endif /* D9DI_OPTIM_MATRIX_PLAN_H */
