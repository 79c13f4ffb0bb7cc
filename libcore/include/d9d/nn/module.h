/* module.h - named parameters in a tree, initialised late.
 *
 * A model is plain structs.  Each embeds a d9d_module and adds its parameters and its children
 * under local names.  Dotted names, traversal, allocation and initialisation follow from the tree.
 *
 *     struct swiglu { d9d_module module; d9d_param gate, up, down; };
 *
 *     d9d_module_init(&m->module);
 *     D9D_TRY(d9d_module_param(&m->module, "gate_proj.weight", &m->gate, D9D_BF16,
 *                              D9D_SHAPE(I, H), D9D_INIT_UNIFORM, 1 / sqrtf(H)));
 *     ...
 *     D9D_TRY(d9d_module_child(&layer->module, "mlp", &m->module));
 *
 * Then, on the root and in this order:
 *
 *     d9d_module_bind()         assigns every parameter its dotted name and id
 *     (a parallel plan shards parameters here: d9d/parallel/parallel_plan.h)
 *     d9d_module_materialise()  allocates this rank's shards, and gradients of trainable ones
 *     d9d_module_reset()        fills by Philox keyed by (seed, id, element), or a
 *                               checkpoint is streamed in
 *
 * The tree is always walked in the order of declaration.
 */
#ifndef D9D_NN_MODULE_H
#define D9D_NN_MODULE_H

#include "d9d/base/mem.h"
#include "d9d/tape/param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_module {
    D9D_VEC(struct d9d_module_entry) entries; /* parameters and children, as declared */
    d9d_arena names;                          /* of the entries; of the whole tree at the root */
    struct d9d_param_unit *unit; /* FSDP unit, d9d/nn/param_unit.h; NULL: not sharded */
} d9d_module;

struct d9d_module_entry {
    const char *name; /* "q_proj.weight", "self_attn" */
    d9d_param *param; /* one of the two is set */
    d9d_module *child;
};

D9D_API void d9d_module_init(d9d_module *m);
/* Declare a parameter that lives in the caller's struct, as long as the module. */
D9D_API D9D_MUST_USE d9d_status d9d_module_param(d9d_module *m, const char *name, d9d_param *p,
                                                 d9d_dtype t, d9d_shape shape, d9d_init_kind init,
                                                 float init_scale);
/* Declare a child.  In a dotted name ("model.layers.3") the prefixes "model" and "model.layers"
 * become modules too, which patterns can match.  Each is created with its first child, and its
 * place in the order is that child's. */
D9D_API D9D_MUST_USE d9d_status d9d_module_child(d9d_module *m, const char *name, d9d_module *c);
/* Take a parameter that has no memory yet out of the module that declares it. */
D9D_API void d9d_module_remove(d9d_module *m, const d9d_param *p);
/* Release the tensors of every parameter below, and the records. */
D9D_API void d9d_module_release(d9d_module *m);

/* Assign all names and ids; a duplicate dotted name is EINVAL.  Call once, on the root. */
D9D_API D9D_MUST_USE d9d_status d9d_module_bind(d9d_module *root);

/* Every parameter in order; stops at the first failure. */
typedef d9d_status (*d9d_module_param_fn)(void *arg, d9d_param *p);
D9D_API D9D_MUST_USE d9d_status d9d_module_each(d9d_module *root, d9d_module_param_fn fn,
                                                void *arg);
/* Every module in order, the root first with the name ""; may be called before names are bound. */
typedef d9d_status (*d9d_module_fn)(void *arg, const char *name, d9d_module *m);
D9D_API D9D_MUST_USE d9d_status d9d_module_walk(d9d_module *root, d9d_module_fn fn, void *arg);
/* By dotted name; NULL when absent. */
D9D_API d9d_param *d9d_module_find(d9d_module *root, const char *name);
/* All parameters as an array in the arena. */
typedef struct d9d_params {
    d9d_param **p;
    size_t n;
} d9d_params;
D9D_API D9D_MUST_USE d9d_status d9d_module_params(d9d_module *root, d9d_arena *a, d9d_params *out);

/* Before d9d_module_materialise(): gradients have memory from backward until they are cleared
 * (grad_on_demand), but for those in shards or buckets, of which FSDP decides.  `loose`: it may be
 * in larger blocks, as no forward comes while they are there, which might need what these waste. */
D9D_API void d9d_module_set_grads_on_demand(d9d_module *root, bool loose);
D9D_API D9D_MUST_USE d9d_status d9d_module_materialise(d9d_module *root, d9d_device *dev,
                                                       bool with_grads);
D9D_API D9D_MUST_USE d9d_status d9d_module_reset(d9d_module *root, uint64_t seed);
D9D_API D9D_MUST_USE d9d_status d9d_module_reset_param(d9d_param *p,
                                                       uint64_t seed); /* for one parameter */
/* Forget accumulated gradients (d9d_param_grad_clear()); nothing is written. */
D9D_API void d9d_module_clear_grads(d9d_module *root);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_MODULE_H */
