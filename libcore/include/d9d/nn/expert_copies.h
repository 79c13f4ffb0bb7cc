/* expert_copies.h - copies of a mixture's experts on other ranks of its expert-parallel group.
 *
 *     D9D_TRY(d9d_expert_copies_create(moe, dev, group, slots));
 *     D9D_TRY(d9d_expert_copies_place(moe, dev, expert));       // anew where loads have changed
 *     each step:
 *         d9d_expert_copies_expire(moe);                        // the weights have changed
 *         forward and backward: the first forward fetches the copies' weights
 *         D9D_TRY(d9d_expert_copies_reduce(moe, dev));          // after the last backward
 *
 * Every rank has the same number of slots; a slot has the copy of one expert, or is empty.  Owners
 * send weights to copies once a step, and copies their gradients back, which owners add to their
 * own in the order of ranks, before those are reduced over other groups.  A copy is no parameter of
 * the model: optimizers, norms and checkpoints do not see it.
 *
 * Copies are used where a tape has lanes (d9d_op_route_copies()), in training; other forwards
 * dispatch to owners.
 */
#ifndef D9D_NN_EXPERT_COPIES_H
#define D9D_NN_EXPERT_COPIES_H

#include "d9d/nn/block.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_EXPERT_PARAMS = 6 }; /* weights and biases of gate, up and down */

struct d9d_expert_copies {
    d9d_comm *group;                   /* the ranks over which experts are divided, in order */
    int64_t slots;                     /* of a rank */
    int64_t n;                         /* copies on all ranks; 0: none, and nothing is sent */
    int32_t *expert;                   /* [ranks, slots], of a rank ascending; -1 behind the last */
    bool is_fresh;                     /* the copies have the owners' weights */
    d9d_tensor table, number;          /* of d9d_op_route_copies() and d9d_op_split_copies() */
    d9d_param copy[D9D_EXPERT_PARAMS]; /* [slots, ...]; without a name: the block has none */
};

/* Bytes of a block's copies on a rank.  A step brings the weights and takes the gradients back. */
typedef struct d9d_expert_copies_size {
    uint64_t weights, gradients;
} d9d_expert_copies_size;
D9D_API d9d_expert_copies_size d9d_expert_copies_bytes(const d9d_block_moe *b, int64_t slots);
/* Slots of a block with memory, all empty; at most as many as a rank has experts. */
D9D_API D9D_MUST_USE d9d_status d9d_expert_copies_create(d9d_block_moe *b, d9d_device *dev,
                                                         d9d_comm *group, int64_t slots);
D9D_API void d9d_expert_copies_free(d9d_block_moe *b);
/* Between two steps: which expert each slot has, as in `expert` above.  All ranks call it alike. */
D9D_API D9D_MUST_USE d9d_status d9d_expert_copies_place(d9d_block_moe *b, d9d_device *dev,
                                                        const int32_t *expert);
D9D_API void d9d_expert_copies_expire(d9d_block_moe *b);
/* The weights of this rank's copies, unless they are fresh; the owners' must be unsharded.
 * Collective over the group. */
D9D_API D9D_MUST_USE d9d_status d9d_expert_copies_fetch(d9d_block_moe *b, d9d_device *dev);
/* Adds the copies' gradients to the owners', and clears them.  Collective over the group. */
D9D_API D9D_MUST_USE d9d_status d9d_expert_copies_reduce(d9d_block_moe *b, d9d_device *dev);

/* The ops' weights of a block's copies. */
D9D_API d9d_op_ffn_weights d9d_expert_copies_weights(d9d_block_moe *b);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_EXPERT_COPIES_H */
