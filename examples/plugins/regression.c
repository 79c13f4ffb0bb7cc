/* regression.c - a regression by an MLP as a plugin: data, model and loss, without a kernel.
 *
 *     {"plugin": "libregression.so",
 *      "data": {"dataset": "surface", "source": {"name": "surface", "samples": 4096}},
 *      "model_provider": {"name": "mlp", "features": 3, "hidden_size": 32},
 *      "task": {"name": "regression"}, ...}
 *
 * The network and the mean squared error are composed of the operations of d9d/op/math.h and
 * d9d/op/loss.h, which have their gradients, run on every device and are planned.
 *
 * Samples are int32, so numbers are fixed-point: value v in [-4, 4) is the id (v + 4) SCALE.  A
 * sample is the features after a constant 1 (the bias of the first layer), and the label of its
 * last position is the value to predict.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <d9d/base/rng.h>
#include <d9d/op/loss.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { RANGE = 4, SCALE = 1 << 13, IDS = 2 * RANGE * SCALE, LAYERS_MAX = 16 };

static int32_t fixed_point(double v)
{
    return (int32_t)((v + RANGE) * SCALE);
}

/* The numbers that ids or labels stand for, float32. */
static d9d_status numbers(d9d_tape *t, const d9d_tensor *fixed, d9d_var **y)
{
    d9d_var *ids;

    D9D_TRY(d9d_tape_leaf(t, fixed, false, &ids));
    return d9d_op_affine(t, ids, 1.0f / SCALE, -RANGE, y);
}

/* --- the data: y = sin(2 a) + b c, of features in [-1, 1) ---------------------------------------
 */

enum { FEATURES = 3, POSITIONS = 1 + FEATURES };

typedef struct surface {
    int64_t samples, seed;
} surface;
static const d9d_key surface_keys[] = {
    D9D_KEY_INT(surface, samples, D9D_REQUIRED, 1, INT64_C(1) << 40, "how many points"),
    D9D_KEY_INT(surface, seed, "0", 0, INT64_C(1) << 53, "of the points"),
    D9D_KEY_END,
};
static const d9d_table surface_table =
    D9D_TABLE(surface, "surface", surface_keys, "points of a surface");

static d9d_status surface_info(void *self, d9d_dataset_info *out)
{
    const surface *s = self;

    out->samples = s->samples;
    out->longest = POSITIONS;
    out->vocab = IDS;
    out->hash.lo = (uint64_t)s->seed;
    return D9D_OK;
}

static d9d_status surface_sample(void *self, int64_t k, int64_t length, int32_t *ids,
                                 int32_t *labels)
{
    const surface *s = self;
    const d9d_rng r = {.seed = (uint64_t)s->seed, .stream = (uint64_t)k};
    double x[FEATURES];

    ids[0] = fixed_point(1);
    for (int64_t i = 0; i < FEATURES; i++) {
        x[i] = 2.0 * d9d_rng_u32(r, (uint64_t)i) / 4294967296.0 - 1;
        ids[1 + i] = fixed_point(x[i]);
    }
    for (int64_t i = 0; i < length; i++)
        labels[i] = i + 1 < length ? -100 : fixed_point(sin(2 * x[0]) + x[1] * x[2]);
    return D9D_OK;
}

static const d9d_dataset_kind surface_kind = {sizeof(surface_kind), &surface_table,
                                              .info = surface_info, .sample = surface_sample};

/* --- the model: linear, GELU, ..., linear to one number ------------------------------------------
 */

typedef struct mlp_section {
    d9d_model_section base;
    int64_t features, hidden_size, num_hidden_layers;
} mlp_section;
static const d9d_key mlp_keys[] = {
    D9D_MODEL_SECTION_KEYS,
    D9D_KEY_INT(mlp_section, features, D9D_REQUIRED, 1, 1 << 20, "numbers of a sample"),
    D9D_KEY_INT(mlp_section, hidden_size, D9D_REQUIRED, 1, 1 << 20, "width"),
    D9D_KEY_INT(mlp_section, num_hidden_layers, "2", 1, LAYERS_MAX, "layers before the last"),
    D9D_KEY_END,
};
static const d9d_table mlp_table = D9D_TABLE(mlp_section, "mlp", mlp_keys, "a perceptron");

typedef struct mlp {
    d9d_model base;
    d9d_module root;
    int64_t layers;
} mlp;

/* The matrix of a layer, which the model owns. */
static const char *layer_name(int64_t i)
{
    static const char *const names[LAYERS_MAX + 1] = {
        "layer_0",  "layer_1",  "layer_2",  "layer_3",  "layer_4",  "layer_5",
        "layer_6",  "layer_7",  "layer_8",  "layer_9",  "layer_10", "layer_11",
        "layer_12", "layer_13", "layer_14", "layer_15", "layer_16"};

    return names[i];
}

static d9d_status layer_forward(d9d_block_linear *l, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    D9D_TRY(d9d_param_unit_unshard(&l->module, t));
    D9D_TRY(d9d_block_linear_forward(l, t, x, y));
    return d9d_param_unit_reshard(&l->module, t);
}

/* out->hidden: the predictions [B, 1]. */
static d9d_status mlp_forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in,
                              d9d_model_out *out)
{
    const mlp *m = (const mlp *)base;
    d9d_var *x;

    D9D_TRY(numbers(t, in->ids, &x));
    D9D_TRY(d9d_op_cast(t, x, base->dtype, &x));
    for (int64_t i = 0; i <= m->layers; i++) {
        if (i > 0)
            D9D_TRY(d9d_op_gelu(t, x, &x));
        D9D_TRY(layer_forward(d9d_model_find_linear(base, layer_name(i)), t, x, &x));
    }
    out->hidden = x;
    return D9D_OK;
}

static void mlp_free(d9d_model *base)
{
    d9d_module_release(&((mlp *)base)->root);
    free(base->units);
    free(base);
}

static const d9d_model_ops mlp_ops = {
    .size = sizeof(mlp_ops), .name = "mlp", .forward = mlp_forward, .free = mlp_free};

static d9d_status mlp_add_layers(mlp *m, const mlp_section *c, d9d_dtype dtype)
{
    for (int64_t i = 0; i <= m->layers; i++) {
        const int64_t in = i == 0 ? c->features + 1 : c->hidden_size;

        D9D_TRY(d9d_model_add_linear(&m->base, layer_name(i), dtype, 1 / sqrt((double)in), in,
                                     i == m->layers ? 1 : c->hidden_size));
    }
    return D9D_OK;
}

static d9d_status mlp_create(const void *config, d9d_stage stage, const d9d_model_opts *o,
                             d9d_model **out)
{
    const mlp_section *c = config;
    mlp *m = calloc(1, sizeof(*m));
    d9d_status st;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mlp: no memory");
    m->layers = c->num_hidden_layers;
    m->base = (d9d_model){.ops = &mlp_ops,
                          .module = &m->root,
                          .stage = stage,
                          .hidden = 1,
                          .vocab = IDS,
                          .layers = c->num_hidden_layers + 1,
                          .max_positions = c->features + 1,
                          .dtype = o->dtype};
    d9d_module_init(&m->root);
    st = mlp_add_layers(m, c, o->dtype);
    if (st == D9D_OK)
        *out = &m->base;
    else
        d9d_model_free(&m->base);
    return st;
}

static d9d_status mlp_read(const void *section, d9d_arena *a, const void **config)
{
    mlp_section *c = d9d_arena_alloc(a, sizeof(*c));

    if (c == NULL)
        return D9D_FAIL(D9D_ENOMEM, "mlp: no memory");
    *c = *(const mlp_section *)section;
    *config = c;
    return D9D_OK;
}

static const char *const types[] = {"mlp", NULL};
static const d9d_model_provider provider = {sizeof(provider), &mlp_table, .read = mlp_read,
                                            .create = mlp_create, .model_types = types};

/* --- the task: mean squared error of the positions that have a label -----------------------------
 */

typedef struct regression {
    double huber;
} regression;
static const d9d_key regression_keys[] = {
    D9D_KEY_REAL(regression, huber, "0", 0, 1e6, "errors beyond it count linearly; 0: none do"),
    D9D_KEY_END,
};
static const d9d_table regression_table =
    D9D_TABLE(regression, "regression", regression_keys, "numbers of samples");

static d9d_status regression_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                     d9d_model_out *out)
{
    const float delta = (float)((const regression *)self)->huber;
    d9d_model_in unlabelled = *in;
    d9d_var *labels, *target, *mask, *loss;

    unlabelled.labels = NULL;
    D9D_TRY(m->ops->forward(m, t, &unlabelled, out));
    D9D_TRY(d9d_tape_leaf(t, in->labels, false, &labels));
    D9D_TRY(d9d_op_ge(t, labels, 0.0f, &mask));
    D9D_TRY(numbers(t, in->labels, &target));
    D9D_TRY(delta > 0 ? d9d_op_huber(t, out->hidden, target, delta, &loss)
                      : d9d_op_mse(t, out->hidden, target, &loss));
    return d9d_op_mul(t, loss, mask, &out->loss);
}

static const d9d_train_task task = {
    .size = sizeof(task), .table = &regression_table, .forward = regression_forward};

static const d9d_model_provider *const models[] = {&provider, NULL};
static const d9d_train_task *const tasks[] = {&task, NULL};
static const d9d_dataset_kind *const datasets[] = {&surface_kind, NULL};
D9D_PLUGIN(.models = models, .train_tasks = tasks, .datasets = datasets);
