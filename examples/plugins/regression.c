/* regression.c - an MLP as a plugin: data, model, losses and predictions, without a kernel.  Its
 * samples are arrays (d9d/data/dataset/field.h), of which ids know nothing.
 *
 *     {"plugin": "libregression.so",
 *      "data": {"dataset": "surface", "source": {"name": "surface", "samples": 4096}},
 *      "model_provider": {"name": "mlp", "features": 3, "hidden_size": 32},
 *      "task": {"name": "regression"}, ...}
 *
 * The network and the mean squared error are composed of the operations of d9d/op/math.h and
 * d9d/op/loss.h, which have their gradients, run on every device and are planned.
 *
 * The model asks for the field "x", [features] of each sample, and the task for "y", the number to
 * predict.  A sample has one position, whose id and label are 0, so that it counts as one target.
 * d9d-shard makes such datasets of files:
 *
 *     {"fields": [{"name": "x", "shape": [3]}, {"name": "y"}]}                   fields.json
 *     {"x": [0.1, -0.5, 0.25], "y": 0.07}                                        points.jsonl
 *
 *     d9d-shard --format arrays --fields fields.json --out points points.jsonl
 *
 * "activation" is "gelu" or "relu"; with "residual" a hidden layer adds to what it reads, which it
 * normalises first.  With {"name": "mlp", "features": 64, "outputs": 10} and {"name": "classes"}
 * the same network tells classes of images apart: "x" is then an array of 8 x 8 uint8, and
 * d9d-shard --label-key gives the class.  In d9d-infer the task "regression" writes a prediction a
 * line, beside "y".
 */
#include <math.h>
#include <stdlib.h>

#include <d9d/base/json.h>
#include <d9d/base/rng.h>
#include <d9d/op/loss.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { LAYERS_MAX = 16 };

/* --- the data: y = sin(2 a) + b c, of features in [-1, 1) ---------------------------------------
 */

enum { FEATURES = 3, X = 0, Y = 1 };
static const d9d_field surface_fields[] = {
    [X] = {.name = "x",
           .dtype = D9D_F32,
           .per = D9D_FIELD_PER_SAMPLE,
           .rank = 1,
           .shape = {FEATURES}},
    [Y] = {.name = "y", .dtype = D9D_F32, .per = D9D_FIELD_PER_SAMPLE},
};

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
    out->longest = 1;
    out->vocab = 1;
    out->hash.lo = (uint64_t)s->seed;
    out->fields = (d9d_field_list){surface_fields, 2};
    return D9D_OK;
}

static d9d_status surface_sample(void *self, int64_t k, int64_t length, int32_t *ids,
                                 int32_t *labels)
{
    (void)self;
    (void)k;
    (void)length;
    ids[0] = labels[0] = 0;
    return D9D_OK;
}

static d9d_status surface_values(void *self, int64_t k, int64_t length, void *const *values)
{
    const surface *s = self;
    const d9d_rng r = {.seed = (uint64_t)s->seed, .stream = (uint64_t)k};
    float *x = values[X], *y = values[Y];

    (void)length;
    for (int64_t i = 0; i < FEATURES; i++)
        x[i] = (float)(2.0 * d9d_rng_u32(r, (uint64_t)i) / 4294967296.0 - 1);
    *y = (float)(sin(2.0 * (double)x[0]) + (double)x[1] * (double)x[2]);
    return D9D_OK;
}

static const d9d_dataset_kind surface_kind = {sizeof(surface_kind), &surface_table,
                                              .info = surface_info, .sample = surface_sample,
                                              .fields = surface_values};

/* --- the model: linear, GELU, ..., linear to one number ------------------------------------------
 */

enum { GELU, RELU };
static const char *const activations[] = {[GELU] = "gelu", [RELU] = "relu", NULL};

typedef struct mlp_section {
    d9d_model_section base;
    int64_t features, hidden_size, num_hidden_layers, outputs;
    double input_scale;
    int activation;
    bool residual;
} mlp_section;
static const d9d_key mlp_keys[] = {
    D9D_MODEL_SECTION_KEYS,
    D9D_KEY_INT(mlp_section, features, D9D_REQUIRED, 1, 1 << 20, "numbers of a sample"),
    D9D_KEY_INT(mlp_section, hidden_size, D9D_REQUIRED, 1, 1 << 20, "width"),
    D9D_KEY_INT(mlp_section, num_hidden_layers, "2", 1, LAYERS_MAX, "layers before the last"),
    D9D_KEY_INT(mlp_section, outputs, "1", 1, 1 << 16, "numbers that it predicts"),
    D9D_KEY_REAL(mlp_section, input_scale, "1", -1e6, 1e6, "factor of the inputs"),
    D9D_KEY_ENUM(mlp_section, activation, "\"gelu\"", activations,
                 "behind each layer but the last"),
    D9D_KEY_BOOL(mlp_section, residual, "false", "layers between add to their inputs"),
    D9D_KEY_END,
};
static const d9d_table mlp_table = D9D_TABLE(mlp_section, "mlp", mlp_keys, "a perceptron");

typedef struct mlp {
    d9d_model base;
    d9d_module root;
    d9d_block_layer_norm norm[LAYERS_MAX];
    mlp_section c;
    d9d_field_request x;
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

static const char *norm_name(int64_t i)
{
    static const char *const names[LAYERS_MAX] = {
        NULL,     "norm_1", "norm_2",  "norm_3",  "norm_4",  "norm_5",  "norm_6",  "norm_7",
        "norm_8", "norm_9", "norm_10", "norm_11", "norm_12", "norm_13", "norm_14", "norm_15"};

    return names[i];
}

/* W x + b + plus, which may be NULL */
static d9d_status layer_forward(d9d_model *m, int64_t i, d9d_tape *t, d9d_var *x, d9d_var *plus,
                                d9d_var **y)
{
    d9d_block_linear *l = d9d_model_find_linear(m, layer_name(i));
    d9d_param *bias = d9d_model_find_bias(m, layer_name(i));

    D9D_TRY(d9d_param_unit_unshard(&l->module, t));
    D9D_TRY(d9d_op_linear_bias(t, x, &l->weight, bias, plus, y));
    return d9d_param_unit_reshard(&l->module, t);
}

static bool is_residual(const mlp_section *c, int64_t i)
{
    return c->residual && i > 0 && i < c->num_hidden_layers;
}

/* W norm(x) + b + x */
static d9d_status residual_forward(mlp *m, int64_t i, d9d_tape *t, d9d_var *x, d9d_var **y)
{
    d9d_block_layer_norm *norm = &m->norm[i];
    d9d_var *z;

    D9D_TRY(d9d_param_unit_unshard(&norm->module, t));
    D9D_TRY(d9d_block_layer_norm_forward(norm, t, x, &z));
    D9D_TRY(d9d_param_unit_reshard(&norm->module, t));
    return layer_forward(&m->base, i, t, z, x, y);
}

/* out->hidden: the predictions [B, outputs]. */
static d9d_status mlp_forward(d9d_model *base, d9d_tape *t, const d9d_model_in *in,
                              d9d_model_out *out)
{
    mlp *m = (mlp *)base;
    const d9d_model_field *given = d9d_model_find_field(in, m->x.name);
    d9d_var *x;

    D9D_TRY(d9d_tape_leaf(t, &given->value, false, &x));
    D9D_TRY(d9d_op_reshape(t, x, D9D_SHAPE(given->value.shape.dim[0], m->c.features), &x));
    D9D_TRY(d9d_op_affine(t, x, (float)m->c.input_scale, 0, &x));
    D9D_TRY(d9d_op_cast(t, x, base->dtype, &x));
    for (int64_t i = 0; i <= m->c.num_hidden_layers; i++) {
        if (i > 0 && !m->c.residual)
            D9D_TRY(m->c.activation == RELU ? d9d_op_relu(t, x, &x) : d9d_op_gelu(t, x, &x));
        D9D_TRY(is_residual(&m->c, i) ? residual_forward(m, i, t, x, &x)
                                      : layer_forward(base, i, t, x, NULL, &x));
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
    const d9d_block_opts opts = {.dtype = dtype};

    for (int64_t i = 0; i <= c->num_hidden_layers; i++) {
        const int64_t in = i == 0 ? c->features : c->hidden_size;

        if (is_residual(c, i)) {
            D9D_TRY(d9d_block_layer_norm_init(&m->norm[i], &opts, in, 1e-5F, D9D_LAYER_NORM_BIAS));
            D9D_TRY(d9d_model_add_unit(&m->base, norm_name(i), &m->norm[i].module));
        }
        D9D_TRY(d9d_model_add_linear(&m->base, layer_name(i), dtype, 1 / sqrt((double)in), in,
                                     i == c->num_hidden_layers ? c->outputs : c->hidden_size));
        D9D_TRY(d9d_model_add_bias(&m->base, layer_name(i)));
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
    m->c = *c;
    m->x = (d9d_field_request){.name = "x",
                               .per = D9D_FIELD_PER_SAMPLE,
                               .dtype = D9D_F32,
                               .elements = c->features,
                               .where = "model_provider.features"};
    m->base = (d9d_model){.ops = &mlp_ops,
                          .module = &m->root,
                          .stage = stage,
                          .hidden = c->outputs,
                          .vocab = 1 << 16, /* classes of data are of no account */
                          .layers = c->num_hidden_layers + 1,
                          .max_positions = 1,
                          .fields = &m->x,
                          .n_fields = 1,
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

/* --- the task: mean squared error, the sample's field "y" is the target --------------------------
 */

typedef struct regression {
    double huber;
} regression;
typedef struct predictions {
    d9d_job_output_section output;
    d9d_model_columns values; /* while a batch is computed */
} predictions;
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
    d9d_var *prediction, *labels, *target, *mask, *loss;

    D9D_TRY(m->ops->forward(m, t, in, out));
    D9D_TRY(d9d_op_reshape(t, out->hidden, in->labels->shape, &prediction));
    D9D_TRY(d9d_tape_leaf(t, &d9d_model_find_field(in, "y")->value, false, &target));
    D9D_TRY(d9d_op_reshape(t, target, in->labels->shape, &target));
    D9D_TRY(d9d_tape_leaf(t, in->labels, false, &labels));
    D9D_TRY(d9d_op_ge(t, labels, 0, &mask));
    D9D_TRY(delta > 0 ? d9d_op_huber(t, prediction, target, delta, &loss)
                      : d9d_op_mse(t, prediction, target, &loss));
    return d9d_op_mul(t, loss, mask, &out->loss);
}

/* In inference: the prediction of each sample. */
static d9d_status predict(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    d9d_model_columns *values = &((predictions *)self)->values;

    D9D_TRY(m->ops->forward(m, t, in, out));
    *values = (d9d_model_columns){.v = out->hidden};
    out->values = values;
    out->n_values = 1;
    return D9D_OK;
}

/* {"sample": 0, "prediction": 0.5, "target": 0.48} */
static d9d_status prediction_row(const void *config, const d9d_infer_task_row *x, d9d_buf *line)
{
    const d9d_batch_field *y = d9d_batch_find_field(x->batch, "y");

    (void)config;
    D9D_TRY(d9d_buf_printf(line, "{\"sample\": %lld, \"prediction\": ", (long long)x->sample));
    D9D_TRY(d9d_json_put_f64(line, (double)x->values[0]));
    D9D_TRY(d9d_buf_printf(line, ", \"target\": "));
    D9D_TRY(d9d_json_put_f64(line, (double)((const float *)y->data)[x->seq]));
    return d9d_buf_append(line, "}\n", 2);
}

static const d9d_field_request *regression_fields(void *self, size_t *n)
{
    static const d9d_field_request y = {
        .name = "y", .per = D9D_FIELD_PER_SAMPLE, .dtype = D9D_F32, .elements = 1, .where = "task"};

    (void)self;
    *n = 1;
    return &y;
}

static const d9d_train_task task = {.size = sizeof(task),
                                    .table = &regression_table,
                                    .forward = regression_forward,
                                    .fields = regression_fields};

static const d9d_key prediction_keys[] = {
    D9D_KEY_STR(d9d_job_output_section, output, D9D_REQUIRED, "JSONL file to write", .min = 1),
    D9D_KEY_END,
};
static const d9d_table prediction_table =
    D9D_TABLE(predictions, "regression", prediction_keys, "numbers of samples");
static const d9d_train_task body = {
    .size = sizeof(body), .forward = predict, .fields = regression_fields};
static const d9d_infer_task_kind prediction = {
    .size = sizeof(prediction), .table = &prediction_table, .row = prediction_row, .body = &body};

/* --- the task: classes of samples, which are their labels ----------------------------------------
 */

static const d9d_key classes_keys[] = {D9D_KEY_END};
static const d9d_table classes_table = {.name = "classes",
                                        .keys = classes_keys,
                                        .bytes = {sizeof(d9d_table), sizeof(d9d_key)},
                                        .doc = "classes of samples"};

static d9d_status classes_forward(void *self, d9d_model *m, d9d_tape *t, const d9d_model_in *in,
                                  d9d_model_out *out)
{
    d9d_tensor labels = d9d_tensor_reshape(in->labels, D9D_SHAPE(d9d_tensor_numel(in->labels)));
    d9d_status st;

    (void)self;
    st = m->ops->forward(m, t, in, out);
    out->logits = out->hidden;
    if (st == D9D_OK)
        st = d9d_op_cross_entropy(t, out->logits, &labels, 0, &out->loss);
    d9d_tensor_release(&labels);
    return st;
}

static const d9d_train_task classes = {
    .size = sizeof(classes), .table = &classes_table, .forward = classes_forward};

static const d9d_model_provider *const models[] = {&provider, NULL};
static const d9d_train_task *const tasks[] = {&task, &classes, NULL};
static const d9d_infer_task_kind *const infer_tasks[] = {&prediction, NULL};
static const d9d_dataset_kind *const datasets[] = {&surface_kind, NULL};
D9D_PLUGIN(.models = models, .train_tasks = tasks, .infer_tasks = infer_tasks,
           .datasets = datasets);
