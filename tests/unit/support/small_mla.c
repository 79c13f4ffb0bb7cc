/* small_mla.c - see small_models.h. */
#include "d9d/model/decoder_model.h"
#include "small_models.h"

enum { HIDDEN = 24 };

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm norm, ffn_norm;
    d9d_block_mla attn;
    d9d_block_ffn ffn;
} layer;

static d9d_status init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const d9d_block_mla_shape shape = {.hidden = HIDDEN,
                                       .heads = 4,
                                       .q_rank = 14,
                                       .kv_rank = 9,
                                       .nope_dim = 6,
                                       .rope_dim = 4,
                                       .v = 7,
                                       .rope = base->rope,
                                       .norm_eps = 1e-6f};
    layer *l = (layer *)base;

    D9D_BLOCK_ADD(&base->module, "attn", mla, &l->attn, opts, &shape);
    D9D_BLOCK_ADD(&base->module, "ffn", ffn, &l->ffn, opts,
                  &(d9d_block_ffn_shape){.hidden = HIDDEN, .intermediate = 30});
    D9D_BLOCK_ADD(&base->module, "norm", norm, &l->norm, opts, HIDDEN, 1e-6f, false);
    D9D_BLOCK_ADD(&base->module, "ffn_norm", norm, &l->ffn_norm, opts, HIDDEN, 1e-6f, false);
    return D9D_OK;
}

static d9d_status forward(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                          d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h, *x;

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in->x, &h));
    D9D_TRY(
        d9d_block_mla_forward(&l->attn, t, h, in->positions, in->segments, in->cache, in->x, &x));
    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    return d9d_block_ffn_forward(&l->ffn, t, h, x, y);
}

static void cache_spec(const d9d_decoder_layer *base, d9d_block_cache_spec *out)
{
    d9d_block_mla_cache_spec(&((const layer *)base)->attn, out);
}

d9d_status small_latent_create(d9d_dtype t, int64_t vocab, int64_t positions, d9d_model **out)
{
    static const d9d_decoder_kind kind = {sizeof(kind),           .name = "latent",
                                          .layer = sizeof(layer), .init = init,
                                          .forward = forward,     .cache_spec = cache_spec};
    const d9d_model_opts options = {.dtype = t};
    const d9d_decoder_shape shape = {
        .layers = 2,
        .hidden = HIDDEN,
        .vocab = vocab,
        .max_positions = positions,
        .init_std = 0.2,
        .norm_eps = 1e-6,
        .rope = {.base = 100, .features = 4, .style = D9D_ROPE_INTERLEAVED}};

    return d9d_decoder_create(&kind, &shape, NULL, D9D_WHOLE_MODEL, &options, out);
}
