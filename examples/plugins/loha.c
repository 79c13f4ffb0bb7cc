/* loha.c - a method of fine-tuning with a forward, a merge and files of its own: Hadamard products
 * of two low-rank matrices (LoHa), as peft has them.
 *
 *     {"plugin": "libloha.so",
 *      "peft": {"kind": "loha", "module_name_pattern": "all-linear", "params": {"r": 8, "alpha":
 * 16}},
 *      ...}
 *
 *     y = x (W + alpha / r * (A1 B1) * (A2 B2))^T + b      A [out, r], B [r, in]; * by element
 *
 * r^2 is the rank that the change of W may have.  B2 begins with zeros, so that nothing changes.
 * The files are those of peft's LoHaConfig:
 *
 *     d9d-map --plugin ./libloha.so --adapter run/adapter SRC DST
 *
 * Hyeon-Woo et al., "FedPara", 2022.  Yeh et al., "LyCORIS", 2024.
 */
#include <d9d/op/math.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { A1, B1, A2, B2 };

/* --- forward -----------------------------------------------------------------------------------
 */

/* *y = A B of parameters a and a + 1: [n, in]. */
static d9d_status product(const d9d_op_adapter *l, int a, d9d_var **y)
{
    const d9d_op_matmul_opts plain = {false, false};
    d9d_var *up, *down;

    D9D_TRY(d9d_op_adapter_param(l, a, &up));
    D9D_TRY(d9d_op_adapter_param(l, a + 1, &down));
    return d9d_op_matmul(l->tape, up, down, &plain, y);
}

static d9d_status forward(const d9d_op_adapter *l, d9d_var *x, d9d_var **y)
{
    const d9d_op_matmul_opts by_rows = {.trans_b = true};
    d9d_var *first, *second, *more;

    D9D_TRY(d9d_op_adapter_base(l, x, D9D_OP_ADAPTER_ALL, y));
    D9D_TRY(product(l, A1, &first));
    D9D_TRY(product(l, A2, &second));
    D9D_TRY(d9d_op_mul(l->tape, first, second, &more));
    D9D_TRY(d9d_op_scale(l->tape, more, l->adapter->scale, &more));
    D9D_TRY(d9d_op_matmul(l->tape, x, more, &by_rows, &more));
    return d9d_op_add(l->tape, *y, more, y);
}

/* --- merge -------------------------------------------------------------------------------------
 */

static float element(const d9d_adapter_arrays *a, int up, int64_t row, int64_t column)
{
    float sum = 0;

    for (int64_t k = 0; k < a->r; k++)
        sum += a->v[up][row * a->r + k] * a->v[up + 1][k * a->in + column];
    return sum;
}

static d9d_status merge(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    for (int64_t j = 0; j < a->in; j++)
        w[j] += a->scale * element(a, A1, row, j) * element(a, A2, row, j);
    return D9D_OK;
}

/* --- the kind ----------------------------------------------------------------------------------
 */

#define BY_OUTPUT                                                                                  \
    {                                                                                              \
        D9D_ADAPTER_OUT, D9D_ADAPTER_RANK                                                          \
    }
#define BY_INPUT                                                                                   \
    {                                                                                              \
        D9D_ADAPTER_RANK, D9D_ADAPTER_IN                                                           \
    }
static const d9d_adapter_files files = {
    .peft_type = "LOHA",
    .rank = "r",
    .alpha = "alpha",
    .fields = "{\"rank_dropout\": 0.0, \"module_dropout\": 0.0, \"init_weights\": true}",
    .needs = "{\"use_effective_conv2d\": false}",
};
static const d9d_adapter_kind loha = {
    .size = sizeof(d9d_adapter_kind),
    .name = "loha",
    .params = {[A1] = {.name = "hada_w1_a", .dim = BY_OUTPUT, .init = D9D_INIT_UNIFORM},
               [B1] = {.name = "hada_w1_b", .dim = BY_INPUT, .init = D9D_INIT_UNIFORM},
               [A2] = {.name = "hada_w2_a", .dim = BY_OUTPUT, .init = D9D_INIT_UNIFORM},
               [B2] = {.name = "hada_w2_b", .dim = BY_INPUT, .init = D9D_INIT_ZEROS}},
    .forward = forward,
    .merge = merge,
    .files = &files,
};

/* --- the method --------------------------------------------------------------------------------
 */

typedef struct section {
    d9d_peft_target target; /* first */
    d9d_peft_params params;
} section;
static const d9d_key keys[] = {
    D9D_PEFT_TARGET_KEYS(section),
    D9D_KEY_TABLE(section, params, &d9d_peft_rank_table, "rank and scale"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "loha", keys, "products of low-rank matrices");

static d9d_status adapt(const void *self, const char *name, const d9d_param *w,
                        const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    (void)w;
    *kind = &loha;
    return d9d_peft_params_opts(&((const section *)self)->params, name, opts);
}

static const d9d_peft_method method = {
    .size = sizeof(d9d_peft_method), .table = &table, .adapt = adapt, .kind = &loha};
static const d9d_peft_method *const methods[] = {&method, NULL};
D9D_PLUGIN(.peft_methods = methods);
