/* test_golden_ops.c - outputs and gradients of ops against PyTorch, for every case of ops.json: in
 * float32 to its rounding, in bfloat16 to half as much again as PyTorch's own bfloat16 (bf16.json).
 *
 * A table row names the golden tensors of an op's inputs, parameters and output; dX is the gradient
 * of X. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/op/loss.h"
#include "d9d/op/op.h"
#include "support/moe.h"
#include "support/unit_device.h"
#include "support/vectors.h"

enum { MAX = 4, CONSTANTS = 4 };

/* Squares of the distances of one tensor over the cases. */
typedef struct tally {
    char *tensor;
    double sum;
    int n;
} tally;

enum { TALLIES = 8, FEW = 16 }; /* fewer numbers do not count */

typedef struct fixture {
    const struct golden_op *op;
    d9d_dtype dtype;
    tally *tallies;   /* [TALLIES] of bfloat16 */
    const char *name; /* of the case */
    const json_t *options;
    d9d_safetensors_file *file;
    d9d_device *dev;
    d9d_tape *tape;
    d9d_var *in[MAX];
    d9d_param storage[MAX], *param[MAX];
    d9d_tensor constant[CONSTANTS]; /* what a run read besides */
    int n_constant;
} fixture;

typedef struct golden_op {
    const char *op, *in[MAX], *param[MAX], *out;
    d9d_status (*run)(fixture *f, d9d_var **y);
    bool float32; /* alone: bfloat16 rounds to other choices */
    double
        on_a_gpu; /* what is tolerated there of elements that round to another side; 0: nothing */
} golden_op;

/* --- golden tensors on the device ----------------------------------------------------------- */

static const char *name_of(const fixture *f, const char *prefix, const char *tensor, char out[64])
{
    (void)snprintf(out, 64, "%s.%s%s", f->name, prefix, tensor);
    return out;
}

/* As float32 or int32, which it is in the file, or rounded to bfloat16. */
static d9d_tensor read_as(const fixture *f, d9d_dtype as, const char *prefix, const char *tensor)
{
    char name[64];
    const d9d_safetensors_tensor *t = vectors_find(f->file, name_of(f, prefix, tensor, name));
    const d9d_dtype is = t->dtype == D9D_F32 ? as : D9D_I32;
    d9d_shape shape = {.ndim = t->ndim};
    d9d_tensor out;
    void *host;
    size_t n;

    memcpy(shape.dim, t->shape, sizeof(shape.dim));
    host = is == D9D_I32 ? (void *)vectors_i32(f->file, name, &n) : vectors_f32(f->file, name, &n);
    for (size_t i = 0; i < n && is == D9D_BF16; i++)
        ((uint16_t *)host)[i] = d9d_bf16_from_f32(((const float *)host)[i]);
    assert_ok(d9d_tensor_from_host(f->dev, is, shape, host, &out));
    free(host);
    return out;
}

static d9d_tensor read_tensor(const fixture *f, const char *prefix, const char *tensor)
{
    return read_as(f, D9D_F32, prefix, tensor);
}

/* One that lives as long as the case. */
static const d9d_tensor *constant(fixture *f, d9d_tensor x)
{
    assert_true(f->n_constant < CONSTANTS);
    f->constant[f->n_constant] = x;
    return &f->constant[f->n_constant++];
}

/* By the name that bf16.json has: "dx". */
static void tally_add(const fixture *f, const char *prefix, const char *tensor, double distance)
{
    char name[64];
    tally *t = f->tallies;

    (void)snprintf(name, sizeof(name), "%s%s", prefix, tensor);
    while (t->tensor != NULL && strcmp(t->tensor, name) != 0)
        t++;
    assert_true(t < f->tallies + TALLIES - 1);
    if (t->tensor == NULL)
        t->tensor = strdup(name);
    t->sum += distance * distance;
    t->n++;
}

static void compare(const fixture *f, const char *prefix, const char *tensor, const d9d_tensor *got)
{
    char name[64];
    float *want, *have;
    double distance, limit; /* of the relative L2 error in float32 */
    size_t n;

    want = vectors_f32(f->file, name_of(f, prefix, tensor, name), &n);
    assert_int_equal(d9d_tensor_numel(got), n);
    have = malloc(sizeof(*have) * (n + 1));
    assert_non_null(have);
    assert_ok(d9d_tensor_to_f32(got, have));
    distance = vectors_distance(have, want, n, 1e-30);
    if (vectors_norm(want, n) == 0)
        distance = vectors_norm(have, n);
    limit =
        f->dtype == D9D_BF16 ? INFINITY : unit_device_tolerance(1e-5, fmax(1e-4, f->op->on_a_gpu));
    if (f->dtype == D9D_BF16 && n >= FEW && vectors_norm(want, n) > 0)
        tally_add(f, prefix, tensor, distance);
    if (!(distance <= limit))
        fail_msg("%s: %s is %g away, %g is tolerated", f->op->op, name, distance, limit);
    free(want);
    free(have);
}

/* --- the ops ------------------------------------------------------------------------------- */

static double number(const fixture *f, const char *key, double otherwise)
{
    const json_t *v = json_object_get(f->options, key);

    return v != NULL ? json_number_value(v) : otherwise;
}

static bool flag(const fixture *f, const char *key, bool otherwise)
{
    const json_t *v = json_object_get(f->options, key);

    return v != NULL ? json_is_true(v) : otherwise;
}

static d9d_status run_rms_norm(fixture *f, d9d_var **y)
{
    return d9d_op_rms_norm(f->tape, f->in[0], f->param[0], (float)number(f, "eps", 0),
                           flag(f, "zero_centered", false), y);
}

static d9d_status run_rope(fixture *f, d9d_var **y)
{
    const char *style = json_string_value(json_object_get(f->options, "style"));
    const d9d_tensor *positions = constant(f, read_tensor(f, "", "position_ids"));
    const int64_t features =
        (int64_t)number(f, "rope_dim", (double)d9d_var_tensor(f->in[0])->shape.dim[3]);
    float freq[64];
    d9d_tensor inv;

    for (int64_t i = 0; i < features / 2; i++)
        freq[i] = (float)pow(number(f, "base", 0), -2.0 * (double)i / (double)features);
    D9D_TRY(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(features / 2), freq, &inv));
    return d9d_op_rope(f->tape, f->in[0], positions, constant(f, inv),
                       strcmp(style, "half") == 0 ? D9D_ROPE_HALF : D9D_ROPE_INTERLEAVED, 1, y);
}

static d9d_status run_sdpa(fixture *f, d9d_var **y)
{
    const double d = (double)d9d_var_tensor(f->in[0])->shape.dim[3];
    const d9d_op_attention_opts opts = {.scale = (float)(1 / sqrt(d)),
                                        .causal = flag(f, "causal", true)};

    return d9d_op_attention(f->tape, f->in[0], f->in[1], f->in[2], &opts, y);
}

static d9d_status run_silu_mul(fixture *f, d9d_var **y)
{
    return d9d_op_glu(f->tape, &(d9d_glu){0}, f->in[0], f->in[1], y);
}

static void same_choice(fixture *f, const d9d_tensor *expert)
{
    char name[64];
    size_t n;
    int32_t *want = vectors_i32(f->file, name_of(f, "", "indices", name), &n);
    float *got = malloc(sizeof(*got) * (n + 1));

    assert_non_null(got);
    assert_ok(d9d_tensor_to_f32(expert, got));
    for (size_t i = 0; i < n; i++)
        assert_int_equal((int32_t)got[i], want[i]);
    free(want);
    free(got);
}

static d9d_status run_router(fixture *f, d9d_var **y)
{
    const bool biased = flag(f, "bias", false);
    const d9d_tensor *bias = biased ? constant(f, read_tensor(f, "", "expert_bias")) : NULL;
    d9d_routing r;
    d9d_var *logits;

    D9D_TRY(d9d_op_linear(f->tape, f->in[0], f->param[0], &logits));
    D9D_TRY(d9d_op_router(f->tape, logits,
                          &(d9d_op_router_opts){.k = (int)number(f, "top_k", 0),
                                                .renormalise = flag(f, "renormalize", false),
                                                .bias = bias},
                          y, &r));
    same_choice(f, &r.expert);
    d9d_routing_release(&r);
    return D9D_OK;
}

/* DeepSeek-V3's router, and the losses for balance, whose gradients come with that of the weights.
 */
static d9d_status run_even_router(fixture *f, d9d_var **y)
{
    const json_t *groups = json_object_get(f->options, "groups");
    d9d_tensor sums = {0}, losses = read_tensor(f, "d", "losses");
    d9d_token_weights shares = {.weight = *constant(f, read_tensor(f, "", "weight"))};
    double counted[2 + 32] = {0};
    float c[2], got[2];
    d9d_routing r;
    d9d_var *logits;

    assert_ok(d9d_tensor_to_f32(&losses, c));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F64, D9D_SHAPE(34), counted, &sums));
    d9d_tape_set_token_weights(f->tape, &shares);
    D9D_TRY(d9d_op_linear(f->tape, f->in[0], f->param[0], &logits));
    D9D_TRY(d9d_op_router(
        f->tape, logits,
        &(d9d_op_router_opts){.k = (int)number(f, "top_k", 0),
                              .renormalise = flag(f, "renormalize", true),
                              .sigmoid = flag(f, "sigmoid", false),
                              .groups = (int)json_integer_value(json_array_get(groups, 0)),
                              .top_groups = (int)json_integer_value(json_array_get(groups, 1)),
                              .scale = (float)number(f, "scale", 1),
                              .bias = constant(f, read_tensor(f, "", "expert_bias")),
                              .aux = c[0],
                              .z = c[1],
                              .counted = &sums},
        y, &r));
    same_choice(f, &r.expert);
    assert_ok(d9d_device_download(f->dev, counted, d9d_tensor_data(&sums), sizeof(counted)));
    d9d_tensor_release(&sums);
    d9d_tensor_release(&losses);
    losses = read_tensor(f, "", "losses");
    assert_ok(d9d_tensor_to_f32(&losses, got));
    for (int i = 0; i < 2 && f->dtype == D9D_F32; i++)
        if (c[i] != 0)
            assert_float_equal(counted[i] / (double)got[i], 1, unit_device_tolerance(1e-5, 1e-4));
    d9d_tensor_release(&losses);
    d9d_routing_release(&r);
    return D9D_OK;
}

static d9d_status run_cross_entropy(fixture *f, d9d_var **y)
{
    return d9d_op_linear_cross_entropy(f->tape, f->in[0], f->param, 1,
                                       constant(f, read_tensor(f, "", "labels")),
                                       &(d9d_op_vocab_opts){.ignore = -100}, y);
}

static d9d_status run_grouped_swiglu(fixture *f, d9d_var **y)
{
    const d9d_tensor *expert = constant(f, read_tensor(f, "", "indices"));
    d9d_var *rows, *both[2], *h;
    d9d_routing r;

    D9D_TRY(moe_route(expert, f->param[0]->shard.shape.dim[0], &r));
    assert_ok(d9d_op_permute(f->tape, f->in[0], &r, &rows));
    assert_ok(d9d_op_grouped_linear(f->tape, rows, f->param, 2, &r, both));
    assert_ok(d9d_op_glu(f->tape, &(d9d_glu){0}, both[0], both[1], &h));
    assert_ok(d9d_op_grouped_linear(f->tape, h, &f->param[2], 1, &r, &h));
    assert_ok(d9d_op_unpermute(f->tape, h, f->in[1], &r, NULL, y));
    d9d_routing_release(&r);
    return D9D_OK;
}

static const d9d_quantised_recipe fp8_recipes[] = {
    {D9D_SCALE_ROWWISE, D9D_F8_E4M3, D9D_F8_E4M3, false},
    {D9D_SCALE_ROWWISE, D9D_F8_E4M3, D9D_F8_E5M2, false},
    {D9D_SCALE_TENSORWISE, D9D_F8_E4M3, D9D_F8_E4M3, false},
};

static d9d_status run_fp8_experts(fixture *f, d9d_var **y)
{
    const char *recipe = json_string_value(json_object_get(f->options, "recipe")),
               *grads = json_string_value(json_object_get(f->options, "grad_format"));
    const bool by_row = recipe == NULL || strcmp(recipe, "rowwise") == 0,
               coarse = grads != NULL && strcmp(grads, "e5m2") == 0;

    for (int i = 0; i < MAX && f->param[i] != NULL; i++)
        f->param[i]->fp8.recipe = &fp8_recipes[!by_row ? 2 : coarse ? 1 : 0];
    return run_grouped_swiglu(f, y);
}

/* A mixture whose experts have a capacity. */
static d9d_status run_capacity_experts(fixture *f, d9d_var **y)
{
    enum { ROUTER, GATE, UP, DOWN };
    const d9d_token_weights weights = {.weight = *constant(f, read_tensor(f, "", "weight"))};
    const d9d_op_ffn_weights w = {
        .gate = f->param[GATE], .up = f->param[UP], .down = f->param[DOWN]};
    d9d_var *logits, *prob;
    d9d_routing r;
    d9d_status st;

    d9d_tape_set_token_weights(f->tape, &weights);
    D9D_TRY(d9d_op_linear(f->tape, f->in[0], f->param[ROUTER], &logits));
    D9D_TRY(d9d_op_router(f->tape, logits,
                          &(d9d_op_router_opts){.k = (int)number(f, "top_k", 0),
                                                .renormalise = true,
                                                .capacity = number(f, "factor", 0)},
                          &prob, &r));
    same_choice(f, &r.expert);
    st = d9d_op_routing_trim(f->tape, &r);
    if (st == D9D_OK)
        st = d9d_op_experts(f->tape, f->in[0], prob, &w, &r, NULL, y);
    d9d_routing_release(&r);
    return st;
}

/* --- losses, each by its word ---------------------------------------------------------------- */

typedef struct loss_row {
    const char *kind;
    d9d_status (*run)(fixture *f, d9d_var *a, d9d_var *b, d9d_var **y);
} loss_row;

#define LOSS(name, ...)                                                                            \
    static d9d_status loss_##name(fixture *f, d9d_var *a, d9d_var *b, d9d_var **y)                 \
    {                                                                                              \
        (void)a, (void)b;                                                                          \
        __VA_ARGS__                                                                                \
    }
LOSS(mse, return d9d_op_mse(f->tape, a, b, y);)
LOSS(l1, return d9d_op_l1(f->tape, a, b, y);)
LOSS(huber, return d9d_op_huber(f->tape, a, b, (float)number(f, "delta", 1), y);)
LOSS(bce_with_logits, return d9d_op_bce_with_logits(f->tape, a, b, y);)
LOSS(kl_div, D9D_TRY(d9d_op_log_softmax(f->tape, a, &a)); D9D_TRY(d9d_op_softmax(f->tape, b, &b));
     D9D_TRY(d9d_op_kl_div(f->tape, a, b, y)); return d9d_op_sum(f->tape, *y, -1, y);)
LOSS(soft_cross_entropy, D9D_TRY(d9d_op_softmax(f->tape, b, &b));
     return d9d_op_soft_cross_entropy(f->tape, a, b, y);)
LOSS(dpo, D9D_TRY(d9d_op_sub(f->tape, a, b, y)); D9D_TRY(d9d_op_sum(f->tape, *y, -1, y));
     D9D_TRY(d9d_op_affine(f->tape, *y, 0.1f, 0, y)); D9D_TRY(d9d_op_log_sigmoid(f->tape, *y, y));
     return d9d_op_affine(f->tape, *y, -1, 0, y);)
LOSS(clipped, d9d_var *bound; D9D_TRY(d9d_op_exp_sub(f->tape, a, b, y));
     D9D_TRY(d9d_op_clamp(f->tape, *y, 0.8f, 1.2f, &bound)); D9D_TRY(d9d_op_mul(f->tape, *y, b, y));
     D9D_TRY(d9d_op_mul(f->tape, bound, b, &bound)); D9D_TRY(d9d_op_minimum(f->tape, *y, bound, y));
     return d9d_op_affine(f->tape, *y, -1, 0, y);)
LOSS(attention, D9D_TRY(d9d_op_matmul(f->tape, a, b, &(d9d_op_matmul_opts){.trans_b = true}, y));
     D9D_TRY(d9d_op_softmax(f->tape, *y, y));
     return d9d_op_matmul(f->tape, *y, b, &(d9d_op_matmul_opts){0}, y);)
LOSS(softmax, return d9d_op_softmax(f->tape, a, y);)
LOSS(log_softmax, return d9d_op_log_softmax(f->tape, a, y);)
LOSS(logsumexp, return d9d_op_logsumexp(f->tape, a, 0, y);)
LOSS(max, return d9d_op_max(f->tape, a, -1, y);)
LOSS(mean, return d9d_op_mean(f->tape, a, D9D_DIM_ALL, y);)
LOSS(gelu, return d9d_op_gelu(f->tape, a, y);)
LOSS(gelu_tanh, return d9d_op_gelu_tanh(f->tape, a, y);)
LOSS(silu, return d9d_op_silu(f->tape, a, y);)
LOSS(cross_entropy,
     return d9d_op_cross_entropy(f->tape, a, constant(f, read_tensor(f, "", "labels")),
                                 (float)number(f, "label_smoothing", 0), y);)
#undef LOSS

static d9d_status run_loss(fixture *f, d9d_var **y)
{
#define ROW(name)                                                                                  \
    {                                                                                              \
#name, loss_##name                                                                         \
    }
    static const loss_row rows[] = {ROW(mse),           ROW(l1),
                                    ROW(huber),         ROW(bce_with_logits),
                                    ROW(kl_div),        ROW(dpo),
                                    ROW(clipped),       ROW(softmax),
                                    ROW(log_softmax),   ROW(logsumexp),
                                    ROW(max),           ROW(mean),
                                    ROW(gelu),          ROW(gelu_tanh),
                                    ROW(silu),          ROW(attention),
                                    ROW(cross_entropy), ROW(soft_cross_entropy)};
#undef ROW
    const char *kind = json_string_value(json_object_get(f->options, "kind"));

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strcmp(rows[i].kind, kind) == 0)
            return rows[i].run(f, f->in[0], f->in[1], y);
    fail_msg("the loss %s has no row here", kind);
    return D9D_EINVAL;
}

static const golden_op ops[] = {
    {"rms_norm", {"x"}, {"w"}, "y", run_rms_norm, false, 0},
    {"rope", {"x"}, {NULL}, "y", run_rope, false, 0},
    {"sdpa", {"q", "k", "v"}, {NULL}, "out", run_sdpa, false, 0},
    {"silu_mul", {"x", "y"}, {NULL}, "out", run_silu_mul, false, 0},
    {"router", {"x"}, {"gate"}, "probs", run_router, false, 0},
    {"even_router", {"x"}, {"gate"}, "probs", run_even_router, true, 0},
    {"linear_cross_entropy", {"hidden"}, {"weight"}, "losses", run_cross_entropy, false, 0},
    {"grouped_swiglu", {"x", "probs"}, {"gate", "up", "down"}, "y", run_grouped_swiglu, false, 0},
    {"losses", {"a", "b"}, {NULL}, "y", run_loss, true, 0},
    {"row_losses", {"a"}, {NULL}, "y", run_loss, true, 0},
    {"fp8_experts", {"x", "probs"}, {"gate", "up", "down"}, "y", run_fp8_experts, true, 0.02},
    {"capacity_experts",
     {"x"},
     {"router", "gate", "up", "down"},
     "y",
     run_capacity_experts,
     true,
     0},
};

/* --- a case -------------------------------------------------------------------------------- */

static void case_open(fixture *f)
{
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_tape_create(f->dev, &f->tape));
    for (int i = 0; i < MAX && f->op->in[i] != NULL; i++) {
        const bool is_prob = strcmp(f->op->in[i], "probs") == 0; /* always float32 */
        d9d_tensor x = read_as(f, is_prob ? D9D_F32 : f->dtype, "", f->op->in[i]);

        assert_ok(d9d_tape_leaf(f->tape, &x, true, &f->in[i]));
        d9d_tensor_release(&x);
    }
    for (int i = 0; i < MAX && f->op->param[i] != NULL; i++) {
        d9d_param *p = f->param[i] = &f->storage[i];

        *p = (d9d_param){.name = f->op->param[i], .spec.trainable = true};
        p->local.data = read_as(f, f->dtype, "", f->op->param[i]);
        p->shard.shape = p->spec.shape = p->local.data.shape;
        assert_ok(d9d_tensor_alloc(f->dev, D9D_F32, p->shard.shape, &p->local.grad));
    }
}

static void case_close(fixture *f)
{
    d9d_tape_free(f->tape);
    for (int i = 0; i < MAX; i++) {
        d9d_param_forget_quantised(&f->storage[i]);
        d9d_tensor_release(&f->storage[i].local.data);
        d9d_tensor_release(&f->storage[i].local.grad);
    }
    for (int i = 0; i < CONSTANTS; i++)
        d9d_tensor_release(&f->constant[i]);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
}

static void check_case(fixture *f)
{
    d9d_tensor seed, g;
    d9d_var *y;

    case_open(f);
    assert_ok(f->op->run(f, &y));
    seed = read_as(f, d9d_var_tensor(y)->dtype, "d", f->op->out);
    compare(f, "", f->op->out, d9d_var_tensor(y));
    assert_ok(d9d_tape_backward(f->tape, &y, &seed, 1, D9D_BACKWARD_FULL));
    d9d_tensor_release(&seed);
    for (int i = 0; i < MAX && f->op->in[i] != NULL; i++) {
        d9d_var_grad(f->in[i], &g);
        compare(f, "d", f->op->in[i], &g);
        d9d_tensor_release(&g);
    }
    for (int i = 0; i < MAX && f->op->param[i] != NULL; i++) {
        assert_true(f->param[i]->local.has_grad);
        compare(f, "d", f->op->param[i], &f->param[i]->local.grad);
    }
    case_close(f);
}

/* Every case of an op but those of which bf16.json says that they hang on a rounding. */
static int check_op(const golden_op *op, d9d_dtype t, const json_t *cases, const json_t *skipped,
                    tally *tallies)
{
    d9d_safetensors_file *file;
    char path[64];
    int n = 0;

    (void)snprintf(path, sizeof(path), "%s.safetensors", op->op);
    assert_ok(d9d_safetensors_open(vectors_path("ops", path), &file));
    for (void *at = json_object_iter((json_t *)(uintptr_t)cases); at != NULL;
         at = json_object_iter_next((json_t *)(uintptr_t)cases, at)) {
        const char *name = json_object_iter_key(at);
        bool skip = false;

        for (size_t i = 0; i < json_array_size(skipped); i++)
            skip = skip || strcmp(json_string_value(json_array_get(skipped, i)), name) == 0;
        if (skip)
            continue;
        check_case(&(fixture){.op = op,
                              .dtype = t,
                              .tallies = tallies,
                              .name = name,
                              .options = json_object_iter_value(at),
                              .file = file});
        n++;
    }
    d9d_safetensors_close(file);
    return n;
}

static void values_equal_pytorch(void **state)
{
    json_t *all;
    int cases = 0;

    (void)state;
    assert_ok(d9d_json_read(vectors_path("ops", "ops.json"), 1 << 20, &all));
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        cases += check_op(&ops[i], D9D_F32, json_object_get(all, ops[i].op), NULL, NULL);
    assert_true(cases >= 30);
    json_decref(all);
}

static void bfloat16_is_as_good_as_pytorchs(void **state)
{
    json_t *all, *theirs;

    (void)state;
    assert_ok(d9d_json_read(vectors_path("ops", "ops.json"), 1 << 20, &all));
    assert_ok(d9d_json_read(vectors_path(".", "bf16.json"), 1 << 20, &theirs));
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        const json_t *far = json_object_get(json_object_get(theirs, "ops"), ops[i].op);
        tally tallies[TALLIES] = {{0}};

        if (ops[i].float32)
            continue;
        (void)check_op(&ops[i], D9D_BF16, json_object_get(all, ops[i].op),
                       json_object_get(far, "skipped"), tallies);
        assert_non_null(tallies[0].tensor);
        for (tally *t = tallies; t->tensor != NULL; t++) {
            const double ours = sqrt(t->sum / t->n);
            const double limit = 1.5 * json_real_value(json_object_get(far, t->tensor));

            if (!(ours <= limit))
                fail_msg("%s: %s is %.3g away, %.3g is tolerated", ops[i].op, t->tensor, ours,
                         limit);
            free(t->tensor);
        }
    }
    json_decref(all);
    json_decref(theirs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_pytorch),
        cmocka_unit_test(bfloat16_is_as_good_as_pytorchs),
    };

    return cmocka_run_group_tests_name("golden_ops", tests, NULL, NULL);
}
