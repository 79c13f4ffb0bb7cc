/* layer_blocks.c - see layer_blocks.h. */
#include "model/layer_blocks.h"

void d9di_layer_cache_spec(const d9d_layer_blocks *b, d9d_block_cache_spec *out)
{
    *out = (d9d_block_cache_spec){0};
    if (b->attention != NULL)
        d9d_block_attention_cache_spec(b->attention, out);
    else if (b->mla != NULL)
        d9d_block_mla_cache_spec(b->mla, out);
    else if (b->gated_delta != NULL)
        d9d_block_gated_delta_cache_spec(b->gated_delta, out);
}

/* --- FLOP ------------------------------------------------------------------------------------ */

/* The sum over a layer's matrices. */
typedef struct matrix_sum {
    const d9d_block_moe *moe;
    double flops;
    bool before; /* something before the next one is trained */
} matrix_sum;

static d9d_status matrix_add(void *arg, d9d_param *p)
{
    matrix_sum *sum = arg;
    const bool stack = p->spec.shape.ndim == 3;

    if (p->spec.adaptable)
        sum->flops += d9d_model_matrix_flops(
            (double)d9d_shape_numel(&p->spec.shape) *
                (stack ? (double)sum->moe->shape.top_k / (double)sum->moe->shape.experts : 1),
            p->spec.trainable, sum->before);
    sum->before |= p->spec.trainable;
    return D9D_OK;
}

/* Twice the mean number of keys that a query of a sequence of s tokens sees.  Without a window it
 * is s, as the mean of 1 ... s is usually counted. */
static double keys_seen(int64_t window, int64_t s)
{
    const double w = (double)window;

    return window == 0 || window >= s ? (double)s : w * (2 * (double)s - w) / (double)s;
}

/* Multiply-adds that a token has with its keys, or with a recurrent state. */
static double mixer_products(const d9d_layer_blocks *b, int64_t s)
{
    if (b->attention != NULL) {
        const d9d_block_attention_shape *a = &b->attention->shape;

        return (double)(a->heads * a->head_dim) * keys_seen(a->window, s) *
               (a->bidirectional ? 2 : 1);
    }
    if (b->mla != NULL) {
        const d9d_block_mla_shape *a = &b->mla->shape;

        return (double)(a->heads * (a->nope_dim + a->rope_dim + a->v)) / 2 * keys_seen(0, s);
    }
    if (b->gated_delta != NULL) {
        const d9d_block_gated_delta_shape *a = &b->gated_delta->shape;

        return 3.0 * (double)(a->value_heads * a->key_dim * a->value_dim);
    }
    return 0;
}

/* Both operands of a mixer's products are made of what the layer trains, or of what is before. */
double d9di_layer_flops(d9d_decoder_layer *l, int64_t s, bool *before)
{
    matrix_sum sum = {.moe = l->blocks.moe, .before = *before};

    (void)!d9d_module_each(&l->module, matrix_add, &sum);
    *before = sum.before;
    return sum.flops + d9d_model_matrix_flops(mixer_products(&l->blocks, s), *before, *before);
}
