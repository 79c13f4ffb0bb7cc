/* adafactor.c - Adafactor, for float32 and bfloat16 weights.  Formulas: d9d/optim/optim.h.
 *
 * The second moment of a matrix is the product of a column of row means and a row of column means.
 * Each rank stores those of its shard.  A step adds the ranks' sums of squares in two all-reduces:
 * along rows and columns of the gradients, for the moments; then of the updates, for clipping. */
#include <math.h>

#include "optim/matrix_plan.h"

typedef struct adafactor_config {
    double lr, beta2_decay, eps1, eps2, clip_threshold, weight_decay;
    bool scale_parameter, relative_step;
    int weight_update;
    d9d_list groups;
    double layer_lr_decay;
} adafactor_config;

static const char *const update_names[] = {"master", "nearest", NULL};

static const d9d_key adafactor_keys[] = {
    D9D_KEY_REAL(adafactor_config, lr, D9D_REQUIRED, 0, 1e6,
                 "learning rate before the schedule; the largest with relative_step",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(adafactor_config, beta2_decay, "-0.8", -10, 0,
                 "step n weighs n to this power in the second moment"),
    D9D_KEY_REAL(adafactor_config, eps1, "1e-15", 0, 1,
                 "least root of the second moment, and least mean of it; torch: 1.2e-7",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(adafactor_config, eps2, "1e-3", 0, 1e6,
                 "least size of a parameter, with scale_parameter", .flags = D9D_FLOAT32),
    D9D_KEY_REAL(adafactor_config, clip_threshold, "1", 0, 1e6,
                 "an update with a larger root mean square is divided by it; torch: d",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(adafactor_config, weight_decay, "0", 0, 1e6, "weight decay", .flags = D9D_FLOAT32),
    D9D_KEY_BOOL(adafactor_config, scale_parameter, "false",
                 "multiply the learning rate by the parameter's root mean square; torch does"),
    D9D_KEY_BOOL(adafactor_config, relative_step, "false",
                 "the learning rate of step n is at most 1 / sqrt(n); torch's is"),
    D9D_OPTIMIZER_GROUP_KEYS(adafactor_config),
    D9D_KEY_ENUM(adafactor_config, weight_update, "\"master\"", update_names,
                 D9DI_WEIGHT_UPDATE_DOC),
    D9D_KEY_END,
};

extern const d9d_table d9di_optimizer_adafactor_table;
const d9d_table d9di_optimizer_adafactor_table =
    D9D_TABLE(adafactor_config, "adafactor", adafactor_keys,
              "Adafactor: a second moment of one number a row and a column; no first moment",
              .row = &d9di_optimizer_adafactor);

/* --- states ----------------------------------------------------------------------------------- */

enum { ROW_VAR, COL_VAR, VARIANCE };

static bool is_factored(const d9d_param *p)
{
    return p->spec.shape.ndim > 1;
}

static int state_reduced(const void *config, const d9d_param *p, int state)
{
    const int ndim = p->spec.shape.ndim;

    (void)config;
    if (is_factored(p) == (state == VARIANCE))
        return -1;
    return state == VARIANCE ? 0 : 1 << (ndim - 1 - (state == COL_VAR));
}

static d9d_dtype state_dtype(const void *config, const d9d_param *p)
{
    (void)config, (void)p;
    return D9D_F32;
}

static d9d_optimizer_weight_update weight_update(const void *config)
{
    return ((const adafactor_config *)config)->weight_update == 0 ? D9D_UPDATE_MASTER
                                                                  : D9D_UPDATE_NEAREST;
}

static d9d_status accepts(const d9d_param *p)
{
    if (p->spec.shape.ndim > 3)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer: Adafactor updates vectors, matrices and stacks of them, and "
                        "%s has %d dimensions; use adamw",
                        p->name, p->spec.shape.ndim);
    return D9D_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* The arrays of a step's updates, and the sums over ranks that they refer to. */
typedef struct step_arrays {
    const d9di_matrix_shards *shards;
    const d9d_optimizer_update *u;
    size_t n;
    d9d_adafactor_array *v; /* [n] */
    bool *counts;           /* [n]: this rank adds its shard to the sums */
    d9d_tensor sums, squares;
} step_arrays;

static d9d_adafactor_step step_constants(const adafactor_config *c, const d9d_optimizer_update *u)
{
    const double n = (double)u->step;

    return (d9d_adafactor_step){
        .lr = u->lr,
        .weight_decay = c->weight_decay,
        .relative_lr = c->relative_step ? fmin(u->lr, 1 / sqrt(n)) : u->lr,
        .one_minus_beta2 = pow(n, c->beta2_decay),
        .eps1 = c->eps1,
        .eps2 = c->eps2,
        .clip_threshold = c->clip_threshold,
        .scale_parameter = c->scale_parameter,
    };
}

/* Numbers of the sums of an update. */
static int64_t sums_numel(const d9d_param *p)
{
    const d9di_matrix_box whole = d9di_matrix_box_of_shape(&p->spec.shape, NULL);

    return whole.dim[0] * (whole.dim[1] + (is_factored(p) ? whole.dim[2] + 1 : 0));
}

/* The arrays of an update, whose sums begin at `sums`. */
static d9d_adafactor_array array_make(const d9d_optimizer_update *u,
                                      d9d_optimizer_weight_update update, float *sums,
                                      double *squares)
{
    const d9d_param *p = u->param;
    const d9di_matrix_box whole = d9di_matrix_box_of_shape(&p->spec.shape, NULL),
                          box = d9di_matrix_box_of_shape(&p->shard.shape, p->shard.offset);
    const int64_t rows = whole.dim[1], cols = whole.dim[2], first = box.first[0];
    d9d_adafactor_array a = {
        .p = d9d_tensor_data(&p->shard.data),
        .g = d9d_tensor_data(&p->shard.grad),
        .residual = d9di_optimizer_residual(u, update, VARIANCE + 1),
        .e = box.dim[0],
        .r = box.dim[1],
        .c = box.dim[2],
        .rows = rows,
        .cols = cols,
        .r0 = box.first[1],
        .c0 = box.first[2],
        .numel = (double)d9d_shape_numel(&p->spec.shape),
        .row = d9d_tensor_data(&u->state[is_factored(p) ? ROW_VAR : VARIANCE]),
        .row_sum = sums + first * rows,
        .squares = squares,
    };

    if (is_factored(p)) {
        a.col = d9d_tensor_data(&u->state[COL_VAR]);
        a.col_sum = sums + whole.dim[0] * rows + first * cols;
        a.mean = sums + whole.dim[0] * (rows + cols) + first;
    }
    return a;
}

static d9d_status zeros_alloc(d9d_device *dev, d9d_dtype t, int64_t n, d9d_tensor *out)
{
    D9D_TRY(d9d_tensor_alloc(dev, t, D9D_SHAPE(n), out));
    return dev->kernels->elementwise->fill(dev->stream, t, d9d_tensor_data(out), n, 0);
}

static d9d_status arrays_make(step_arrays *s, const adafactor_config *c, d9d_arena *a)
{
    int64_t numel = 0, at = 0;
    size_t param = 0;

    s->v = d9d_arena_alloc(a, s->n * sizeof(*s->v));
    s->counts = d9d_arena_alloc(a, s->n * sizeof(*s->counts));
    if (s->v == NULL || s->counts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "adafactor: no memory for the arrays of %zu parameters", s->n);
    for (size_t i = 0; i < s->n; i++)
        numel += sums_numel(s->u[i].param);
    D9D_TRY(zeros_alloc(s->shards->dev, D9D_F32, numel, &s->sums));
    D9D_TRY(zeros_alloc(s->shards->dev, D9D_F64, 2 * (int64_t)s->n, &s->squares));
    for (size_t i = 0; i < s->n; i++) {
        const d9d_param *p = s->u[i].param;

        s->v[i] = array_make(&s->u[i], weight_update(c), (float *)d9d_tensor_data(&s->sums) + at,
                             (double *)d9d_tensor_data(&s->squares) + 2 * i);
        D9D_TRY(d9di_matrix_shards_is_first_copy(s->shards, p, &param, &s->counts[i]));
        at += sums_numel(p);
    }
    return D9D_OK;
}

static d9d_status moments_update(step_arrays *s, const adafactor_config *c)
{
    const d9d_device *dev = s->shards->dev;
    const d9d_optim_kernels *k = dev->kernels->optim;

    for (size_t i = 0; i < s->n; i++)
        if (s->counts[i])
            D9D_TRY(k->adafactor_sums(dev->stream, s->u[i].scale, s->u[i].param->spec.grad_dtype,
                                      &s->v[i]));
    D9D_TRY(d9d_comm_all_reduce(s->shards->group, dev->stream, "squares of gradients", D9D_F32,
                                d9d_tensor_data(&s->sums), d9d_tensor_numel(&s->sums),
                                D9D_COMM_SUM));
    for (size_t i = 0; i < s->n; i++) {
        const d9d_adafactor_step step = step_constants(c, &s->u[i]);

        D9D_TRY(k->adafactor_moments(dev->stream, &step, s->u[i].scale, &s->v[i]));
    }
    return D9D_OK;
}

typedef d9d_status arrays_kernel(d9d_stream s, const d9d_adafactor_step *c, const float *scale,
                                 d9d_dtype t, d9d_dtype gt, const d9d_adafactor_array *a);

/* Runs a kernel for all arrays, or for those that count. */
static d9d_status arrays_run(step_arrays *s, const adafactor_config *c, arrays_kernel *kernel,
                             bool all)
{
    for (size_t i = 0; i < s->n; i++) {
        const d9d_param_spec *spec = &s->u[i].param->spec;
        const d9d_adafactor_step step = step_constants(c, &s->u[i]);

        if (all || s->counts[i])
            D9D_TRY(kernel(s->shards->dev->stream, &step, s->u[i].scale, spec->dtype,
                           spec->grad_dtype, &s->v[i]));
    }
    return D9D_OK;
}

static d9d_status weights_update(step_arrays *s, const adafactor_config *c)
{
    const d9d_device *dev = s->shards->dev;
    const d9d_optim_kernels *k = dev->kernels->optim;

    D9D_TRY(arrays_run(s, c, k->adafactor_squares, false));
    D9D_TRY(d9d_comm_all_reduce(s->shards->group, dev->stream, "squares of updates", D9D_F64,
                                d9d_tensor_data(&s->squares), d9d_tensor_numel(&s->squares),
                                D9D_COMM_SUM));
    return arrays_run(s, c, k->adafactor, true);
}

static d9d_status adafactor_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    step_arrays s = {.shards = u->self, .u = u, .n = n};
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, arrays_make(&s, config, &a), out);
    D9D_TRY_OR(st, moments_update(&s, config), out);
    st = weights_update(&s, config);
out:
    d9d_tensor_release(&s.sums);
    d9d_tensor_release(&s.squares);
    d9d_arena_release(&a);
    return st;
}

const d9d_optimizer_kind d9di_optimizer_adafactor = {
    .size = sizeof(d9d_optimizer_kind),
    .table = &d9di_optimizer_adafactor_table,
    .states = {"row_var", "col_var", "variance", NULL},
    .state_dtype = state_dtype,
    .state_reduced = state_reduced,
    .accepts = accepts,
    .update_list = adafactor_update,
    .weight_update = weight_update,
    .open = d9di_matrix_shards_open,
    .close = d9di_matrix_shards_close};
