/* record.h - the structs of a tape, for the files that record it and run it backward. */
#ifndef D9D_TAPE_RECORD_H
#define D9D_TAPE_RECORD_H

#include "d9d/base/mem.h"
#include "d9d/tape/tape.h"

struct d9d_var {
    d9d_tensor value;   /* storage NULL once released */
    d9d_tensor grad;    /* of a leaf; that of others is dout of their producer */
    d9d_node *producer; /* NULL: a leaf, or made without recording */
    int output;         /* index among the producer's outputs */
    bool needs_grad;
    size_t number; /* in the tape's list */
};

typedef enum d9di_tape_recording {
    D9DI_RECORD_OFF,
    D9DI_RECORD_PROBE, /* off, but should_record() collects the halves that it would have recorded
                        */
    D9DI_RECORD_ON
} d9di_tape_recording;

/* What a tape has done since reset. */
typedef enum d9di_tape_phase {
    D9DI_PHASE_FORWARD,
    D9DI_PHASE_DGRAD_DONE,
    D9DI_PHASE_DONE
} d9di_tape_phase;

/* A wgrad half or hook that FULL deferred. */
typedef struct d9di_tape_deferred {
    d9d_node *node;
    d9d_status (*run)(d9d_node *n);
} d9di_tape_deferred;

enum { D9DI_TAPE_OWN_OPS = 64 };

/* A part of a forward whose saved arrays may be away; in its node's attributes. */
typedef struct d9di_tape_part {
    d9d_offload_group *group; /* NULL: backward has come to it */
    size_t number;            /* in the tape's list */
} d9di_tape_part;

struct d9d_tape {
    d9d_device *dev;
    d9d_arena arena; /* vars, nodes, attributes */
    D9D_VEC(d9d_var *) vars;
    D9D_VEC(d9d_node *) nodes;
    d9di_tape_recording recording;
    unsigned probed; /* d9d_node_need bits */
    bool weights_constant;
    d9di_tape_phase phase;
    bool can_defer_wgrad;
    D9D_VEC(d9di_tape_deferred) deferred; /* in order of deferral */
    bool hook_deferred;                   /* one of them is a hook */
    d9d_dropout_rng dropout_rng;          /* token.storage NULL: none */
    d9d_dropout_rng rows_rng;             /* of begin_rows(), likewise */
    d9d_token_weights token_weights;      /* weight.storage NULL: none */
    d9d_tensor prefix;                    /* storage NULL: none */
    d9d_tape_prefill prefill;             /* segments.storage NULL: none */
    const d9d_tape_offload *offload;      /* NULL: none */
    D9D_VEC(d9di_tape_part *) parts;
    bool is_recompute;
    bool is_reference;                    /* between begin_reference() and end_reference() */
    d9di_tape_recording before_reference; /* what recording was */
    int64_t launches; /* kernel launches of a simulated device when the last node was recorded */
    const d9d_node_ops *own[D9DI_TAPE_OWN_OPS]; /* of this library, as far as was asked */
};

/* d9d_tape_record() with the halves given. */
d9d_status d9di_tape_record(d9d_tape *t, const d9d_node_ops *ops, unsigned halves,
                            d9d_var *const *in, size_t n_in, d9d_var *const *out, size_t n_out,
                            size_t attr_size, d9d_node **node);

/* On a simulated device: ENOTSUP for a plugin's operation that has launched nothing since
 * `*launches`; sets *launches to the number now. */
d9d_status d9di_tape_check_simulated(d9d_tape *t, const d9d_node_ops *ops, int64_t *launches);

/* Release the tensors and attributes of a node that has run or never will. */
void d9di_node_release(d9d_node *n);

/* Where the gradient of a var is accumulated. */
static inline d9d_tensor *d9di_var_grad_slot(d9d_var *v)
{
    return v->producer != NULL ? &v->producer->dout[v->output] : &v->grad;
}

/* Drop the array, keep its type and shape. */
void d9di_var_release_value(d9d_var *v);

/* Accumulate a gradient of v; takes the reference over, also if it fails. */
d9d_status d9di_var_accumulate_grad(d9d_tape *t, d9d_var *v, d9d_tensor *grad);

/* Run the nodes backward; the roots have their gradients already. */
d9d_status d9di_tape_run_backward(d9d_tape *t, d9d_tape_backward_mode mode);

#endif /* D9D_TAPE_RECORD_H */
