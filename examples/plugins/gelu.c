/* gelu.c - a custom operation, and a model that uses it, as a plugin.
 *
 *     {"plugin": "libgelu.so", "model_provider": {"name": "gelu", "hf_config": "config.json"}}
 *
 * The operation is y = w * gelu(x): tanh GELU with a trained gain w per feature.  Three kernels
 * compute forward, dgrad and wgrad.  Only they touch arrays, and they are launched with their cost,
 * so `d9d-train --plan` can plan the model like any other.
 */
#include <math.h>

#include <d9d/tasks/plugin.h>

/* --- kernels: the only functions that read and write arrays; N features, M rows ----------------
 */

typedef struct arrays {
    const d9d_tensor *x, *w, *dy, *out; /* x, dy [M, N]; w [N]; out is y, dx, or dw */
    float beta;                         /* dw = beta dw + ... */
} arrays;

static float get(const d9d_tensor *t, int64_t i)
{
    const void *p = d9d_tensor_data(t);

    return t->dtype == D9D_F32 ? ((const float *)p)[i] : d9d_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void set(const d9d_tensor *t, int64_t i, float v)
{
    void *p = d9d_tensor_data(t);

    if (t->dtype == D9D_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = d9d_bf16_from_f32(v);
}

/* gelu(x) and its derivative: x s(u) with u = k (x + 0.044715 x^3) and s = (1 + tanh) / 2. */
static double gelu(double x, double *derivative)
{
    const double k = 0.7978845608028654, th = tanh(k * (x + 0.044715 * x * x * x));

    *derivative = 0.5 * (1 + th) + 0.5 * x * (1 - th * th) * k * (1 + 3 * 0.044715 * x * x);
    return 0.5 * x * (1 + th);
}

static d9d_status forward_cpu(d9d_stream s, void *args)
{
    const arrays *a = args;
    const int64_t N = a->w->shape.dim[0], all = d9d_shape_numel(&a->x->shape);
    double derivative;

    (void)s;
    for (int64_t i = 0; i < all; i++)
        set(a->out, i, (float)(get(a->w, i % N) * gelu(get(a->x, i), &derivative)));
    return D9D_OK;
}

static d9d_status input_cpu(d9d_stream s, void *args)
{
    const arrays *a = args;
    const int64_t N = a->w->shape.dim[0], all = d9d_shape_numel(&a->x->shape);
    double derivative;

    (void)s;
    for (int64_t i = 0; i < all; i++) {
        (void)gelu(get(a->x, i), &derivative);
        set(a->out, i, (float)(get(a->dy, i) * get(a->w, i % N) * derivative));
    }
    return D9D_OK;
}

/* Sums rows in order, so the result is deterministic. */
static d9d_status weight_cpu(d9d_stream s, void *args)
{
    const arrays *a = args;
    const int64_t N = a->out->shape.dim[0], all = d9d_shape_numel(&a->x->shape);

    (void)s;
    for (int64_t n = 0; n < N; n++) {
        double sum = a->beta != 0 ? get(a->out, n) : 0, derivative;

        for (int64_t i = n; i < all; i += N)
            sum += get(a->dy, i) * gelu(get(a->x, i), &derivative);
        set(a->out, n, (float)sum);
    }
    return D9D_OK;
}

/* A GPU kernel would be set in .cuda.  Without it the operation is rejected on GPUs, also by a
 * plan. */
static const d9d_device_kernel forward_kernel = {sizeof(forward_kernel), "gelu", forward_cpu, NULL};
static const d9d_device_kernel input_kernel = {sizeof(input_kernel), "gelu", input_cpu, NULL};
static const d9d_device_kernel weight_kernel = {sizeof(weight_kernel), "gelu", weight_cpu, NULL};

/* Launches a kernel that reads or writes `moved` arrays of x's size, with about 20 operations per
 * element. */
static d9d_status launch(d9d_tape *t, const d9d_device_kernel *kernel, arrays *a, double moved)
{
    const double n = (double)d9d_shape_numel(&a->x->shape);
    const d9d_device_kernel_cost cost = {a->x->dtype, 20 * n,
                                         moved * n * (double)d9d_dtype_size(a->x->dtype)};

    return d9d_device_launch(d9d_tape_device(t), kernel, a, cost);
}

/* --- the operation: shapes, memory, saved tensors ----------------------------------
 */

/* saved: x, w */
static d9d_status gelu_input(d9d_node *n)
{
    d9d_tensor dx;
    arrays a = {.x = &n->saved[0], .w = &n->saved[1], .dy = &n->dout[0], .out = &dx};
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(d9d_tape_device(n->tape), a.x->dtype, a.x->shape, &dx));
    st = launch(n->tape, &input_kernel, &a, 3);
    if (st == D9D_OK)
        return d9d_node_accumulate_grad(n, 0, &dx); /* takes ownership of dx */
    d9d_tensor_release(&dx);
    return st;
}

static d9d_status gelu_weight(d9d_node *n)
{
    d9d_param *w = n->param[0];
    arrays a = {.x = &n->saved[0], .dy = &n->dout[0], .out = &w->local.grad};

    a.beta = d9d_param_grad_beta(&w->local);
    return launch(n->tape, &weight_kernel, &a, 2);
}

static const d9d_node_ops gelu_ops = {.name = "gelu", .dgrad = gelu_input, .wgrad = gelu_weight};

/* x [..., N], w [N] of the same dtype; y has the shape of x. */
static d9d_status op_gelu(d9d_tape *t, d9d_var *x, d9d_param *w, d9d_var **y)
{
    const d9d_tensor *tx = d9d_var_tensor(x);
    arrays a = {.x = tx, .w = &w->local.data};
    d9d_node *n;
    d9d_var *out;

    if (tx->shape.ndim < 1 || w->local.data.shape.ndim != 1 || tx->dtype != w->local.data.dtype ||
        tx->shape.dim[tx->shape.ndim - 1] != w->local.data.shape.dim[0])
        return D9D_FAIL(D9D_EINVAL, "gelu: x [..., N] and %s [N] do not fit", w->name);
    D9D_TRY(d9d_tape_output(t, tx->dtype, tx->shape, &out));
    a.out = d9d_var_tensor(out);
    D9D_TRY(launch(t, &forward_kernel, &a, 2));
    if (d9d_tape_should_record(t, &x, 1, &w, 1)) {
        D9D_TRY(d9d_tape_record(t, &gelu_ops, &x, 1, &out, 1, &w, 1, 0, &n));
        (void)d9d_node_save(n, tx, D9D_NEED_BOTH);
        (void)d9d_node_save(n, &w->local.data, D9D_NEED_DGRAD);
    }
    *y = out;
    return D9D_OK;
}

/* --- a model that uses it
 * -----------------------------------------------------------------------------
 */

typedef struct dims {
    int64_t hidden_size, num_hidden_layers, num_attention_heads, vocab_size;
    int64_t max_position_embeddings;
} dims;
#define DIM(name) D9D_KEY_INT(dims, name, D9D_REQUIRED, 1, 1 << 20, #name)
static const d9d_key dims_keys[] = {
    DIM(hidden_size), DIM(num_hidden_layers),       DIM(num_attention_heads),
    DIM(vocab_size),  DIM(max_position_embeddings), D9D_KEY_END};
static const d9d_table dims_table = D9D_TABLE(dims, "gelu_config", dims_keys, "GELU with a gain");
static const char *const types[] = {"gelu", NULL};

typedef struct layer {
    d9d_decoder_layer base;
    d9d_block_norm norm, ffn_norm;
    d9d_block_attention attn;
    d9d_block_linear up, down;
    d9d_module act;
    d9d_param gain;
} layer;

static d9d_status layer_init(d9d_decoder_layer *base, const d9d_block_opts *opts)
{
    const dims *c = base->config;
    const int64_t H = c->hidden_size, A = c->num_attention_heads;
    const d9d_block_attention_shape attention = {
        .hidden = H, .heads = A, .kv_heads = A, .head_dim = H / A, .rope = base->rope};
    layer *l = (layer *)base;

    D9D_BLOCK_ADD(&base->module, "norm", norm, &l->norm, opts, H, 1e-6f, false);
    D9D_BLOCK_ADD(&base->module, "attn", attention, &l->attn, opts, &attention);
    D9D_BLOCK_ADD(&base->module, "ffn_norm", norm, &l->ffn_norm, opts, H, 1e-6f, false);
    D9D_BLOCK_ADD(&base->module, "up", linear, &l->up, opts, H, 4 * H);
    d9d_module_init(&l->act);
    D9D_TRY(d9d_module_param(&l->act, "gain", &l->gain, opts->dtype, D9D_SHAPE(4 * H),
                             D9D_INIT_ONES, 0));
    D9D_TRY(d9d_module_child(&base->module, "act", &l->act));
    D9D_BLOCK_ADD(&base->module, "down", linear, &l->down, opts, 4 * H, H);
    return D9D_OK;
}

static d9d_status attend(d9d_decoder_layer *base, d9d_tape *t, const d9d_model_layer_in *in,
                         d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->norm, t, in->x, &h));
    return d9d_block_attention_forward(&l->attn, t, h, in->positions, in->segments, in->cache,
                                       in->x, y);
}

static d9d_status ffn(d9d_decoder_layer *base, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    layer *l = (layer *)base;
    d9d_var *h;

    D9D_TRY(d9d_block_norm_forward(&l->ffn_norm, t, x, &h));
    D9D_TRY(d9d_block_linear_forward(&l->up, t, h, &h));
    D9D_TRY(op_gelu(t, h, &l->gain, &h));
    D9D_TRY(d9d_block_linear_forward(&l->down, t, h, &h));
    return d9d_op_add(t, x, h, y);
}

static const d9d_decoder_kind kind = {sizeof(kind),       .name = "gelu",    .layer = sizeof(layer),
                                      .init = layer_init, .forward = attend, .ffn = ffn};

static d9d_status create(const void *config, d9d_stage stage, const d9d_model_opts *o,
                         d9d_model **out)
{
    const dims *c = config;
    const d9d_decoder_shape shape = {
        .layers = c->num_hidden_layers,
        .hidden = c->hidden_size,
        .vocab = c->vocab_size,
        .max_positions = c->max_position_embeddings,
        .norm_eps = 1e-6,
        .rope = {.base = 1e4, .features = c->hidden_size / c->num_attention_heads},
    };

    if (c->hidden_size % (2 * c->num_attention_heads) != 0)
        return D9D_FAIL(D9D_ECONFIG, "gelu: its heads do not divide its features");
    return d9d_decoder_create(&kind, &shape, config, stage, o, out);
}

static const d9d_key keys[] = {D9D_MODEL_SECTION_KEYS, D9D_KEY_END};
static const d9d_table table = D9D_TABLE(d9d_model_section, "gelu", keys, "GELU with a gain");
static const d9d_model_provider provider = {sizeof(provider), &table,         .dims = &dims_table,
                                            .create = create, .stages = true, .model_types = types};
static const d9d_model_provider *const models[] = {&provider, NULL};
D9D_PLUGIN(.models = models);
