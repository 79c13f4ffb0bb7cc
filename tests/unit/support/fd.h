/* fd.h - checks an op by finite differences, and everything else that every op promises, from one
 * description of it.
 *
 *     static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
 *                           d9d_var **out, size_t n_out)
 *     {
 *         fd_env *e = self;
 *         return d9d_op_linear(t, in[0], e->param[0], out);
 *     }
 *     fd_check(&(fd_case){.name = "linear", .run = run, .in = {FD(3, 5)},
 *                         .param = {FD(7, 5)}, .saved = {3 * 5}});
 *
 * fd_check() draws inputs and an output gradient, and checks, in float32:
 *   - every gradient against central differences of the forward;
 *   - input then weight backward against the full one, bit for bit;
 *   - the same under one checkpoint and under two nested ones, in both ways;
 *   - with each input and parameter frozen in turn: the others' bits stay, its gradient is absent;
 *   - a second backward adds; gradients may be bfloat16;
 *   - what the recorded node keeps alive, and that nothing is left after a reset;
 *   - with recording off: the same output, nothing saved;
 *   - memory that ends at any point: EOOM, and a tape that can be freed;
 * and the bfloat16 op against the float32 one on the same numbers.  Where D9D_TEST_ONCE is set the
 * last and the sums of gradients alone, which run every kernel of the op and all of its types.
 */
#ifndef D9D_FD_H
#define D9D_FD_H

#include <stdbool.h>

#include "d9d/op/op.h"

enum { FD_MAX = D9D_NODE_MAX };

typedef struct fd_array {
    d9d_shape shape;
    float scale;       /* standard deviation of its numbers; 0: 1 */
    const float *host; /* its numbers, where they must not be random */
    bool float32;      /* float32 also where the op is bfloat16 */
} fd_array;

#define FD(...)                                                                                    \
    {                                                                                              \
        .shape = D9D_SHAPE(__VA_ARGS__)                                                            \
    } /* random numbers at unit scale */

/* An array that is no var: ids, positions, frequencies. */
typedef struct fd_constant {
    d9d_dtype dtype;
    d9d_shape shape;
    const void *host; /* NULL: there is none */
} fd_constant;

typedef struct fd_case {
    const char *name;
    d9d_tape_forward_fn run;            /* self is an fd_env; one output */
    fd_array in[FD_MAX], param[FD_MAX]; /* the first without dimensions ends the list */
    fd_constant constant[FD_MAX];       /* the first without host ends the list */
    const void *arg;
    int64_t saved[FD_MAX]; /* elements of 4 bytes in each array that a float32 node keeps, besides
                             constants and parameters; -1: an empty array; 0 ends the list */
    float tolerance_bf16;  /* relative L2 error; 0: 0.01 */
} fd_case;

/* What a forward function sees. */
typedef struct fd_env {
    const fd_case *of;
    d9d_device *dev;
    d9d_param storage[FD_MAX], *param[FD_MAX];
    size_t n_in, n_param;
    d9d_tensor constant[FD_MAX];
} fd_env;

void fd_check(const fd_case *c);

/* The check of gradients alone: the largest error, in units of what is tolerated.  Above 1 is a
 * failure; this is how the harness is tested itself. */
double fd_gradient_error(const fd_case *c);

#endif /* D9D_FD_H */
