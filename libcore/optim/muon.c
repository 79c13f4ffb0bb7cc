/* muon.c - Muon for the matrices of layers, and AdamW for the rest.  Formulas: d9d/optim/optim.h.
 */
#include <math.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "optim/adam.h"
#include "optim/matrix_exchange.h"
#include "optim/newton_schulz.h"
#include "optim/param_groups.h"

typedef struct muon_config {
    double lr, momentum, weight_decay, eps;
    bool nesterov;
    int64_t ns_steps;
    d9d_list ns_coefficients;
    int ns_dtype, adjust_lr_fn, weight_update, kind;
    d9di_optimizer_adam_config adamw;
    d9d_list groups;
    double layer_lr_decay;
} muon_config;

enum { ADJUST_ORIGINAL, ADJUST_MATCH_RMS_ADAMW };
static const char *const adjust_names[] = {
    [ADJUST_ORIGINAL] = "original", [ADJUST_MATCH_RMS_ADAMW] = "match_rms_adamw", NULL};

static const char *const ns_dtype_names[] = {"bfloat16", "float32", NULL};
static const char *const update_names[] = {"master", "nearest", NULL};

static const d9d_key adamw_keys[] = {
    D9D_KEY_REAL(d9di_optimizer_adam_config, lr, "null", 0, 1e6,
                 "learning rate before the schedule; null: Muon's, with adjust_lr_fn "
                 "match_rms_adamw",
                 .flags = D9D_NULLABLE | D9D_ABOVE_MIN | D9D_FLOAT32),
    D9DI_ADAM_MOMENT_KEYS,
    D9DI_ADAM_WEIGHT_UPDATE_KEY,
    D9D_KEY_END,
};
static const d9d_table adamw_table =
    D9D_TABLE(d9di_optimizer_adam_config, "muon_adamw", adamw_keys,
              "AdamW for what Muon does not update", .check = d9di_optimizer_adam_check);

static const d9d_key coefficient_elem = {
    .kind = D9D_KIND_REAL, .min = -1e6, .max = 1e6, .doc = "a coefficient"};

static const d9d_key muon_keys[] = {
    D9D_KEY_REAL(muon_config, lr, D9D_REQUIRED, 0, 1e6,
                 "learning rate of matrices before the schedule: as AdamW's with adjust_lr_fn "
                 "match_rms_adamw",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_REAL(muon_config, momentum, "0.95", 0, 1, "decay of the momentum",
                 .flags = D9D_BELOW_MAX | D9D_FLOAT32),
    D9D_KEY_BOOL(muon_config, nesterov, "true", "Nesterov momentum"),
    D9D_KEY_REAL(muon_config, weight_decay, "0.1", 0, 1e6, "weight decay of matrices",
                 .flags = D9D_FLOAT32),
    D9D_KEY_INT(muon_config, ns_steps, "5", 1, 99, "Newton-Schulz iterations"),
    D9D_KEY_LIST(muon_config, ns_coefficients, "[3.4445, -4.775, 2.0315]", &coefficient_elem,
                 "a, b, c of a Newton-Schulz iteration a X + (b A + c A A) X with A = X X'",
                 .min = 3, .max = 3),
    D9D_KEY_REAL(muon_config, eps, "1e-7", 0, 1, "least norm that a matrix is divided by",
                 .flags = D9D_ABOVE_MIN | D9D_FLOAT32),
    D9D_KEY_ENUM(muon_config, ns_dtype, "\"bfloat16\"", ns_dtype_names,
                 "type of the matrices in Newton-Schulz; sums are float32"),
    D9D_KEY_ENUM(muon_config, adjust_lr_fn, "\"original\"", adjust_names,
                 "factor of a matrix's learning rate: original, sqrt(max(1, rows / columns)); "
                 "match_rms_adamw, 0.2 sqrt(max(rows, columns)), for AdamW's rate and decay"),
    D9D_KEY_ENUM(muon_config, kind, "null", d9di_optimizer_kind_names,
                 "what updates a parameter; null: muon the matrices of layers but routers, adamw "
                 "all else",
                 .flags = D9D_NULLABLE),
    D9D_KEY_TABLE(muon_config, adamw, &adamw_table, "AdamW for what Muon does not update"),
    D9D_OPTIMIZER_GROUP_KEYS(muon_config),
    D9D_KEY_ENUM(muon_config, weight_update, "\"master\"", update_names, D9DI_WEIGHT_UPDATE_DOC),
    D9D_KEY_END,
};

static d9d_status muon_check(const void *value, const char *path)
{
    const muon_config *c = value;

    if (c->adjust_lr_fn == ADJUST_ORIGINAL && isnan(c->adamw.lr) && c->kind != D9DI_KIND_MUON)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: with adjust_lr_fn original AdamW needs a learning rate of its own: "
                        "set adamw.lr, or adjust_lr_fn match_rms_adamw",
                        path);
    return D9D_OK;
}

extern const d9d_table d9di_optimizer_muon_table;
const d9d_table d9di_optimizer_muon_table =
    D9D_TABLE(muon_config, "muon", muon_keys,
              "Muon: orthogonalized momentum for the matrices of layers, AdamW for all else",
              .check = muon_check, .row = &d9di_optimizer_muon);

/* --- what updates a parameter ----------------------------------------------------------------- */

/* A matrix of a linear layer inside the model: no embedding, head, router or vector. */
static bool is_layer_matrix(const d9d_param *p)
{
    const d9d_shape *s = &p->spec.shape;

    return p->spec.adaptable && !p->spec.from_task && d9d_param_layer_of(p->name) >= 0 &&
           strstr(p->name, ".router.") == NULL && (s->ndim == 2 || s->ndim == 3) &&
           s->dim[s->ndim - 1] > 1 && s->dim[s->ndim - 2] > 1;
}

static d9d_status muon_choose(const void *config, const d9d_param *p, d9d_optimizer_choice *out)
{
    const muon_config *c = config;
    const int ndim = p->spec.shape.ndim;

    if (c->kind == D9DI_KIND_MUON && ndim != 2 && ndim != 3)
        return D9D_FAIL(D9D_ECONFIG,
                        "optimizer: Muon updates matrices and stacks of them, and %s has %d "
                        "dimension%s; give its group the kind adamw",
                        p->name, ndim, D9D_PLURAL(ndim));
    if (c->kind == D9DI_KIND_MUON || (c->kind < 0 && is_layer_matrix(p)))
        return D9D_OK;
    *out = (d9d_optimizer_choice){&d9di_optimizer_adamw, &c->adamw,
                                  isnan(c->adamw.lr) ? 1 : c->adamw.lr / c->lr};
    return D9D_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Rows and columns of the linear layer's matrix; a stack has it transposed. */
static double lr_ratio(const muon_config *c, const d9di_matrix_class *of)
{
    const double rows = (double)(of->stacked ? of->cols : of->rows),
                 cols = (double)(of->stacked ? of->rows : of->cols);

    return c->adjust_lr_fn == ADJUST_ORIGINAL ? sqrt(fmax(1, rows / cols))
                                              : 0.2 * sqrt(fmax(rows, cols));
}

static d9d_muon_step step_constants(const muon_config *c, const d9di_matrix_class *of)
{
    return (d9d_muon_step){
        .lr = of->u->lr,
        .weight_decay = c->weight_decay,
        .momentum = c->momentum,
        .adjusted_lr = of->u->lr * lr_ratio(c, of),
        .nesterov = c->nesterov,
    };
}

static d9di_newton_schulz_opts newton_schulz_opts(const muon_config *c)
{
    const double *k = c->ns_coefficients.items;

    return (d9di_newton_schulz_opts){.steps = c->ns_steps,
                                     .a = (float)k[0],
                                     .b = (float)k[1],
                                     .c = (float)k[2],
                                     .eps = (float)c->eps};
}

static void *elements_from(const d9d_tensor *t, int64_t i)
{
    char *data = d9d_tensor_data(t);

    return data != NULL ? data + (size_t)i * d9d_dtype_size(t->dtype) : NULL;
}

/* The arrays of a slice before Newton-Schulz, whose output is its data, and after it. */
static d9d_optim_arrays momentum_arrays(const d9d_optimizer_update *u, const d9di_matrix_slice *s)
{
    return (d9d_optim_arrays){.p = s->data,
                              .g = elements_from(&u->param->shard.grad, s->first),
                              .m = elements_from(&u->state[0], s->first),
                              .n = s->n};
}

static d9d_optim_arrays weight_arrays(const d9d_optimizer_update *u, const d9di_matrix_slice *s,
                                      d9d_optimizer_weight_update update)
{
    return (d9d_optim_arrays){
        .p = elements_from(&u->param->shard.data, s->first),
        .g = s->data,
        .n = s->n,
        .residual = update == D9D_UPDATE_MASTER ? elements_from(&u->state[1], s->first) : NULL,
    };
}

static d9d_optimizer_weight_update muon_weight_update(const void *config)
{
    return ((const muon_config *)config)->weight_update == 0 ? D9D_UPDATE_MASTER
                                                             : D9D_UPDATE_NEAREST;
}

/* One round: momentum, orthogonalized matrices, weights. */
static d9d_status round_update(const muon_config *c, const d9di_matrix_class *of,
                               const d9d_optimizer_update *u, d9di_matrix_round *r,
                               d9d_optim_arrays *list)
{
    const d9d_optim_kernels *k = u->dev->kernels->optim;
    const d9d_muon_step step = step_constants(c, of);
    const d9di_newton_schulz_opts opts = newton_schulz_opts(c);
    const d9d_param_spec *spec = &of->u->param->spec;
    const int64_t n = (int64_t)r->n_slices;

    for (size_t i = 0; i < r->n_slices; i++)
        list[i] = momentum_arrays(&u[r->slices[i].update], &r->slices[i]);
    D9D_TRY(k->muon_momentum(u->dev->stream, &step, u->scale, r->whole.dtype, spec->grad_dtype,
                             list, n));
    D9D_TRY(d9di_matrix_round_gather(r));
    D9D_TRY(d9di_newton_schulz(r->dev, &opts, &r->whole));
    D9D_TRY(d9di_matrix_round_scatter(r));
    for (size_t i = 0; i < r->n_slices; i++)
        list[i] = weight_arrays(&u[r->slices[i].update], &r->slices[i], muon_weight_update(c));
    return k->muon(u->dev->stream, &step, u->scale, spec->dtype, r->whole.dtype, list, n);
}

static d9d_status round_run(const muon_config *c, const d9di_matrix_plan *plan,
                            const d9di_matrix_class *of, size_t k, const d9d_optimizer_update *u,
                            d9d_arena *a)
{
    const d9d_dtype t = c->ns_dtype == 0 ? D9D_BF16 : D9D_F32;
    d9d_optim_arrays *list;
    d9di_matrix_round r;
    d9d_status st;

    D9D_TRY(d9di_matrix_round_open(plan, of, k, t, a, &r));
    list = d9d_arena_alloc(a, (r.n_slices + 1) * sizeof(*list));
    st = list != NULL
             ? round_update(c, of, u, &r, list)
             : D9D_FAIL(D9D_ENOMEM, "muon: no memory for a list of %zu slices", r.n_slices);
    d9di_matrix_round_close(&r);
    return st;
}

static d9d_status muon_update(const void *config, const d9d_optimizer_update *u, size_t n)
{
    d9di_matrix_plan plan;
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_matrix_plan_make(u->self, u, n, &a, &plan), out);
    for (size_t i = 0; i < plan.n_classes; i++)
        for (size_t k = 0; k < plan.classes[i].n_rounds; k++)
            D9D_TRY_OR(st, round_run(config, &plan, &plan.classes[i], k, u, &a), out);
out:
    d9d_arena_release(&a);
    return st;
}

/* Of its own parameters; the others are AdamW's states. */
static int muon_states(const void *config)
{
    (void)config;
    return 1;
}

static d9d_dtype muon_dtype(const void *config, const d9d_param *p)
{
    (void)config, (void)p;
    return D9D_F32;
}

const d9d_optimizer_kind d9di_optimizer_muon = {
    .size = sizeof(d9d_optimizer_kind),
    .table = &d9di_optimizer_muon_table,
    .states = {"momentum_buffer", "exp_avg", "exp_avg_sq", NULL},
    .n_states = muon_states,
    .state_dtype = muon_dtype,
    .update_list = muon_update,
    .weight_update = muon_weight_update,
    .choose = muon_choose,
    .open = d9di_matrix_shards_open,
    .close = d9di_matrix_shards_close};
