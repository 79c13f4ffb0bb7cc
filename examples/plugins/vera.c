/* vera.c - a method of fine-tuning whose layers share arrays: vector-based random matrix adaptation
 * (VeRA) as peft has it.
 *
 *     {"plugin": "libvera.so",
 *      "peft": {"kind": "vera", "module_name_pattern": "all-linear", "r": 256},
 *      ...}
 *
 *     y = x W^T + b * ((d * (x A^T)) B^T) + bias      A [r, in], B [out, r]; * by element
 *
 * A and B are random and frozen, the same for all layers: the first columns of one array, and the
 * first rows of another.  Each layer trains a vector d [r] and a vector b [out], which begins with
 * zeros, so that nothing changes.  The files are those of peft's VeraConfig: with the two arrays,
 * or with save_projection false without, and then they are drawn by projection_prng_key as torch
 * does it, to the bit.
 *
 * Kopiczko et al., "VeRA", 2024.
 */
#include <math.h>

#include <d9d/op/math.h>
#include <d9d/op/op.h>
#include <d9d/tasks/plugin.h>

enum { A, B, LAMBDA_D, LAMBDA_B };
static const float d_initial = 0.1f;

/* --- forward -----------------------------------------------------------------------------------
 */

static d9d_status forward(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    d9d_param *const *p = a->adapter->param;
    d9d_var *d, *b, *more;

    D9D_TRY(d9d_op_adapter_base(a, x, D9D_OP_ADAPTER_ALL, y));
    D9D_TRY(d9d_op_adapter_param(a, LAMBDA_D, &d));
    D9D_TRY(d9d_op_adapter_param(a, LAMBDA_B, &b));
    D9D_TRY(d9d_op_linear(a->tape, x, p[A], &more));
    D9D_TRY(d9d_op_mul(a->tape, more, d, &more));
    D9D_TRY(d9d_op_linear_slice(a->tape, more, p[B], a->first, a->n, &more));
    D9D_TRY(d9d_op_mul(a->tape, more, b, &more));
    return d9d_op_add(a->tape, *y, more, y);
}

/* --- merge -------------------------------------------------------------------------------------
 */

static d9d_status merge(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    const float b = a->v[LAMBDA_B][row], *up = a->v[B] + row * a->r;

    for (int64_t k = 0; k < a->r; k++)
        for (int64_t j = 0; j < a->in; j++)
            w[j] += b * up[k] * (a->v[LAMBDA_D][k] * a->v[A][k * a->in + j]);
    return D9D_OK;
}

/* --- beginning ---------------------------------------------------------------------------------
 */

/* The Mersenne twister MT19937 (Matsumoto and Nishimura, 1998), which torch draws with on CPUs. */
enum { WORDS = 624, MIDDLE = 397 };
typedef struct twister {
    uint32_t word[WORDS];
    int next;
} twister;

static void twister_init(twister *t, uint64_t seed)
{
    t->word[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < WORDS; i++)
        t->word[i] = 1812433253u * (t->word[i - 1] ^ (t->word[i - 1] >> 30)) + i;
    t->next = WORDS;
}

static void twister_turn(twister *t)
{
    for (int i = 0; i < WORDS; i++) {
        const uint32_t y = (t->word[i] & 0x80000000u) | (t->word[(i + 1) % WORDS] & 0x7fffffffu);

        t->word[i] = t->word[(i + MIDDLE) % WORDS] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0);
    }
    t->next = 0;
}

static uint32_t twister_draw(twister *t)
{
    uint32_t y;

    if (t->next == WORDS)
        twister_turn(t);
    y = t->word[t->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* n numbers of [-bound, bound), as torch's uniform_ draws float32: 24 bits each. */
static void uniform(twister *t, double bound, int64_t n, float *to)
{
    const float low = (float)-bound, width = (float)bound - low;

    for (int64_t i = 0; i < n; i++) {
        const float unit = (float)(twister_draw(t) & 0xffffffu) * 0x1p-24f;

        to[i] = fmaf(unit, width, low); /* as contracted there */
    }
}

/* A, then B, of one stream, uniform by Kaiming of their numbers of columns. */
static d9d_status draw(const d9d_adapter_arrays *of, int i, float *to)
{
    twister t;

    twister_init(&t, of->seed);
    for (int64_t k = 0; i == B && k < of->r * of->in; k++)
        (void)twister_draw(&t);
    uniform(&t, sqrt(3) * (sqrt(2) / sqrt((double)(i == A ? of->in : of->r))),
            of->r * (i == A ? of->in : of->out), to);
    return D9D_OK;
}

static d9d_status start(d9d_param *w, d9d_device *dev)
{
    const d9d_param_part *d = &w->peft.adapter->param[LAMBDA_D]->shard;

    return dev->kernels->elementwise->fill(dev->stream, d->data.dtype, d9d_tensor_data(&d->data),
                                           d9d_shape_numel(&d->shape), d_initial);
}

/* --- the kind ----------------------------------------------------------------------------------
 */

static const d9d_adapter_files files = {
    .peft_type = "VERA",
    .rank = "r",
    .fields = "{\"vera_dropout\": 0.0, \"d_initial\": 0.1, \"init_weights\": true}",
    .needs = "{\"bias\": \"none\", \"fan_in_fan_out\": false}",
    .one_rank = true,
    .seed = "projection_prng_key",
    .has_shared = "save_projection",
};
static const d9d_adapter_kind vera = {
    .size = sizeof(d9d_adapter_kind),
    .name = "vera",
    .params = {[A] = {.name = "vera_A",
                      .dim = {D9D_ADAPTER_RANK, D9D_ADAPTER_IN},
                      .frozen = true,
                      .shared = true,
                      .file = "base_model.vera_A"},
               [B] = {.name = "vera_B",
                      .dim = {D9D_ADAPTER_OUT, D9D_ADAPTER_RANK},
                      .frozen = true,
                      .shared = true,
                      .file = "base_model.vera_B"},
               [LAMBDA_D] = {.name = "vera_lambda_d", .dim = {D9D_ADAPTER_RANK}},
               [LAMBDA_B] = {.name = "vera_lambda_b", .dim = {D9D_ADAPTER_OUT}}},
    .forward = forward,
    .merge = merge,
    .start = start,
    .files = &files,
    .draw = draw,
};

/* --- the method --------------------------------------------------------------------------------
 */

typedef struct section {
    d9d_peft_target target; /* first */
    int64_t r, projection_prng_key;
} section;
static const d9d_key keys[] = {
    D9D_PEFT_TARGET_KEYS(section),
    D9D_KEY_INT(section, r, "256", 1, 1 << 16, "rank: rows of A"),
    D9D_KEY_INT(section, projection_prng_key, "0", 0, UINT32_MAX, "the seed of A and B"),
    D9D_KEY_END,
};
static const d9d_table table =
    D9D_TABLE(section, "vera", keys, "vectors beside random matrices that layers share");

static d9d_status adapt(const void *self, const char *name, const d9d_param *w,
                        const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    const section *s = self;

    (void)name, (void)w;
    *kind = &vera;
    *opts = (d9d_adapter_opts){
        .r = s->r, .alpha = (double)s->r, .seed = (uint64_t)s->projection_prng_key};
    return D9D_OK;
}

static const d9d_peft_method method = {
    .size = sizeof(d9d_peft_method), .table = &table, .adapt = adapt, .kind = &vera};
static const d9d_peft_method *const methods[] = {&method, NULL};
D9D_PLUGIN(.peft_methods = methods);
