/* block_init.h - declaration of parameters and the tensor-parallel output projection, shared inside
 * nn.
 */
#ifndef D9DI_NN_BLOCK_INIT_H
#define D9DI_NN_BLOCK_INIT_H

#include "d9d/nn/block.h"

/* Initialisation kind and scale: N(0, init_std), or U(+-1/sqrt(in)) if init_std is 0. */
d9d_init_kind d9di_block_init(const d9d_block_opts *opts, int64_t in, float *scale);

/* Declare n child modules in order. */
struct d9di_block_child {
    const char *name;
    d9d_module *module;
};
d9d_status d9di_block_children(d9d_module *m, const struct d9di_block_child *children, size_t n);

/* Declare how a parameter of a block is divided; does nothing in a block without groups, whose
 * ranks all compute the same. */
static inline void d9di_block_divide(d9d_param *p, const d9d_block_opts *opts,
                                     d9d_param_parallel parallel)
{
    if (opts->groups != NULL)
        p->spec.parallel = parallel;
}

/* The output projection of a block: x W^T over this rank's columns, reduce-scattered over the tp
 * ranks, plus a bias and `plus` unless they are NULL. */
d9d_status d9di_block_linear_reduce(d9d_block_linear *b, d9d_param *bias, d9d_tape *t, d9d_var *x,
                                    d9d_comm *tp, d9d_var *plus, d9d_var **y);

/* Numbers of all tokens of a tensor-parallel group, [...]: those of this rank's rows, a view. */
d9d_tensor d9di_block_tokens_of_rank(const d9d_tensor *x, d9d_comm *tp);

/* The end of a block whose output has dropout, in training: y = dropout(x), with `site` as in
 * d9d_op_dropout_opts, plus `plus` unless that is NULL. */
d9d_status d9di_block_dropout_add(d9d_tape *t, d9d_var *x, float p, const d9d_param *site,
                                  d9d_var *plus, d9d_var **y);

#endif /* D9DI_NN_BLOCK_INIT_H */
