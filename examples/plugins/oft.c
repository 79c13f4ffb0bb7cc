/* oft.c - a method of fine-tuning whose parameters are cut into blocks: orthogonal fine-tuning
 * (OFT) as peft has it, rotations of blocks of b inputs.
 *
 *     {"plugin": "liboft.so",
 *      "peft": {"kind": "oft", "module_name_pattern": "all-linear", "oft_block_size": 32},
 *      ...}
 *
 *     y = (x diag(R_1, R_2, ...)) W^T + bias      R_i = I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4
 *
 * R_i is Cayley's (I + Q)(I - Q)^-1 of a skew-symmetric Q_i, with a Neumann series of five terms.
 * The parameters are the triangles above the diagonals of all Q_i, [in / b, b (b - 1) / 2], which
 * begin with zeros, so that nothing changes.  The files are those of peft's OFTConfig with
 * use_cayley_neumann, its default.
 *
 * Qiu et al., "Controlling text-to-image diffusion by orthogonal finetuning", 2023.  Qiu et al.,
 * "Orthogonal finetuning made scalable" (OFTv2), 2025.
 */
#include <stdlib.h>

#include <d9d/op/math.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { TRIANGLES };
enum { POWERS = 4 };
static const float series[POWERS] = {2, 2, 2, 1}; /* of Q, Q^2, ... */

/* --- forward -----------------------------------------------------------------------------------
 */

/* R - I, [blocks, b, b], by Horner's rule: Q (2 + Q (2 + Q (2 + Q))). */
static d9d_status rotations(const d9d_op_adapter *a, d9d_var **r)
{
    const d9d_op_matmul_opts plain = {false, false};
    d9d_var *triangles, *q, *more;

    D9D_TRY(d9d_op_adapter_param(a, TRIANGLES, &triangles));
    D9D_TRY(d9d_op_skew(a->tape, triangles, a->adapter->r, &q));
    D9D_TRY(d9d_op_scale(a->tape, q, series[POWERS - 1], r));
    for (int i = POWERS - 2; i >= 0; i--) {
        D9D_TRY(d9d_op_matmul(a->tape, *r, q, &plain, &more));
        D9D_TRY(d9d_op_add_scaled(a->tape, more, series[i], q, r));
    }
    return D9D_OK;
}

static d9d_status forward(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    d9d_var *r, *turned;

    D9D_TRY(rotations(a, &r));
    D9D_TRY(d9d_op_block_matmul(a->tape, x, r, &turned));
    D9D_TRY(d9d_op_add(a->tape, x, turned, &turned));
    return d9d_op_adapter_base(a, turned, D9D_OP_ADAPTER_ALL, y);
}

/* --- merge -------------------------------------------------------------------------------------
 */

/* to = Q from, of a block's triangle. */
static void turn(const float *triangle, int64_t b, const float *from, float *to)
{
    for (int64_t i = 0; i < b; i++)
        to[i] = 0;
    for (int64_t i = 0; i < b; i++)
        for (int64_t j = i + 1; j < b; j++, triangle++) {
            to[i] += *triangle * from[j];
            to[j] -= *triangle * from[i];
        }
}

/* A row of W R': each block's numbers w become R w. */
static d9d_status merge(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    const int64_t b = a->r, pairs = b * (b - 1) / 2;
    float *power = malloc((size_t)(2 * b) * sizeof(*power) + 1);

    (void)row;
    if (power == NULL)
        return D9D_FAIL(D9D_ENOMEM, "oft: a block of %lld numbers", (long long)b);
    for (int64_t k = 0; k < a->in / b; k++, w += b) {
        float *from = power, *to = power + b;

        for (int64_t i = 0; i < b; i++)
            from[i] = w[i];
        for (int p = 0; p < POWERS; p++) {
            float *const last = from;

            turn(a->v[TRIANGLES] + k * pairs, b, from, to);
            for (int64_t i = 0; i < b; i++)
                w[i] += series[p] * to[i];
            from = to;
            to = last;
        }
    }
    free(power);
    return D9D_OK;
}

/* --- the kind ----------------------------------------------------------------------------------
 */

#define NEEDS                                                                                      \
    "{\"coft\": false, \"block_share\": false, \"use_cayley_neumann\": true, "                     \
    "\"num_cayley_neumann_terms\": 5, \"bias\": \"none\", \"fan_in_fan_out\": false}"
static const d9d_adapter_files files = {
    .peft_type = "OFT",
    .rank = "oft_block_size",
    .fields = "{\"r\": 0, \"module_dropout\": 0.0, \"eps\": 6e-05, \"init_weights\": true, "
              "\"peft_version\": \"0.18.0\"}",
    .needs = NEEDS,
    .one_rank = true,
};
static const d9d_adapter_kind oft = {
    .size = sizeof(d9d_adapter_kind),
    .name = "oft",
    .params = {[TRIANGLES] = {.name = "oft_R.weight",
                              .dim = {D9D_ADAPTER_IN_BLOCKS, D9D_ADAPTER_PAIRS},
                              .init = D9D_INIT_ZEROS}},
    .forward = forward,
    .merge = merge,
    .files = &files,
};

/* --- the method --------------------------------------------------------------------------------
 */

typedef struct section {
    d9d_peft_target target; /* first */
    int64_t oft_block_size;
} section;
static const d9d_key keys[] = {
    D9D_PEFT_TARGET_KEYS(section),
    D9D_KEY_INT(section, oft_block_size, "32", 2, 1 << 10,
                "inputs that a rotation turns; it divides those of each layer"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "oft", keys, "rotations of blocks of inputs");

static d9d_status adapt(const void *self, const char *name, const d9d_param *w,
                        const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    const int64_t b = ((const section *)self)->oft_block_size;

    (void)name, (void)w;
    *kind = &oft;
    *opts = (d9d_adapter_opts){.r = b, .alpha = (double)b};
    return D9D_OK;
}

static const d9d_peft_method method = {
    .size = sizeof(d9d_peft_method), .table = &table, .adapt = adapt, .kind = &oft};
static const d9d_peft_method *const methods[] = {&method, NULL};
D9D_PLUGIN(.peft_methods = methods);
