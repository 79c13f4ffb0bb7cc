/* fd_run.h - one forward and backward pass of an fd_case, which fd.c repeats in many variants. */
#ifndef D9D_FD_RUN_H
#define D9D_FD_RUN_H

#include "fd.h"

enum { FD_ARRAYS = 2 * FD_MAX }; /* inputs, then parameters */

/* Numbers on the host: of the arrays, of their gradients, of the output. */
typedef struct fd_numbers {
    size_t n; /* arrays */
    int64_t len[FD_ARRAYS];
    float *x[FD_ARRAYS]; /* NULL: a gradient that is absent */
    int64_t out_len;
    float *out; /* the output, or its gradient */
} fd_numbers;

typedef enum fd_wrap { FD_PLAIN, FD_CHECKPOINT, FD_NESTED, FD_WRAPS } fd_wrap;

/* How to run. */
typedef struct fd_opts {
    d9d_dtype dtype, grad_dtype; /* both 0 are float32 */
    fd_wrap wrap;
    bool halves;    /* input, then weight */
    int frozen;     /* array + 1 that wants no gradient; 0: none */
    int times;      /* backward passes that add up; 0: 1 */
    uint64_t limit; /* of device memory above what the environment has; 0: none */
} fd_opts;

void fd_env_open(fd_env *e, const fd_case *c);
void fd_env_close(fd_env *e);

/* Random arrays (bfloat16 numbers, so that both types run on the same) and output gradient. */
void fd_numbers_draw(fd_env *e, fd_numbers *x);
void fd_numbers_free(fd_numbers *x);

/* The output with recording off. */
void fd_forward(fd_env *e, const fd_numbers *x, const fd_opts *opts, fd_numbers *out);
/* Output and gradients.  A failure leaves `out` empty; either way no device memory is left. */
d9d_status fd_backward(fd_env *e, const fd_numbers *x, const fd_opts *opts, fd_numbers *out);

/* Bytes that a recorded float32 node keeps when every var has been released. */
uint64_t fd_kept(fd_env *e, const fd_numbers *x);

#endif /* D9D_FD_RUN_H */
