/* stack.h - small language models made of blocks, and what transformers computes with the same
 * weights (tests/golden/README.md).
 *
 *     stack s;
 *     stack_open(&stacks[i], dev, NULL, &s);
 *     stack_learn(&s, false);                // losses and gradients
 *     stack_check(&s, 1e-5);                 // against tests/golden/blocks/NAME.safetensors
 *     stack_close(&s);
 *
 * With a mesh it is cut over its tp ranks, and each compares its parts.
 */
#ifndef D9D_TEST_STACK_H
#define D9D_TEST_STACK_H

#include "d9d/ckpt/safetensors/safetensors.h"
#include "d9d/comm/mesh.h"
#include "d9d/nn/block.h"

enum { STACK_LAYERS = 3 };

typedef struct stack_of {
    const char *name; /* of the golden file */
    d9d_block_attention_shape attention;
    d9d_block_mla_shape latent; /* with heads: in its place */
    int64_t window[STACK_LAYERS];
    d9d_block_moe_shape moe; /* no experts: an FFN */
    int64_t intermediate;    /* of that */
    bool zero_centred;       /* the norms of layers */
    d9d_block_rope rope;
} stack_of;
extern const stack_of stacks[];
extern const int n_stacks;

typedef struct stack_layer {
    d9d_module module;
    d9d_block_attention attn;
    d9d_block_mla latent;
    d9d_block_moe moe;
    d9d_block_ffn ffn;
    d9d_block_norm norm, ffn_norm;
} stack_layer;

typedef struct stack {
    const stack_of *of;
    d9d_device *dev;
    d9d_safetensors_file *want;
    d9d_module root;
    d9d_params params;
    d9d_arena arena;
    d9d_groups cut;
    d9d_block_vocab embed, head;
    d9d_block_norm norm;
    d9d_block_rope rope;
    stack_layer layer[STACK_LAYERS];
    int64_t rows, positions;
    float *loss;   /* [T] */
    float *logits; /* [T, V], of one rank alone */
} stack;

void stack_open(const stack_of *of, d9d_device *dev, d9d_mesh *mesh, stack *s);
void stack_close(stack *s);
/* Recomputed: each layer is under a checkpoint. */
void stack_learn(stack *s, bool recomputed);
/* Relative distances of losses, logits and every gradient in the 2-norm. */
void stack_check(const stack *s, double tolerance);

#endif /* D9D_TEST_STACK_H */
