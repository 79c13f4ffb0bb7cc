/* test_op_pointwise.c - functions of elements: every one of the table, and how they broadcast. */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/loss.h"

typedef struct function {
    d9d_pointwise f;
    float k0, k1;
} function;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const function *f = ((const fd_env *)self)->of->arg;

    (void)n_in, (void)n_out;
    return d9d_op_pointwise(t, f->f, in, f->k0, f->k1, out);
}

/* The mask is a constant; the inputs are chosen from. */
static d9d_status run_where(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                            size_t n_out)
{
    d9d_var *mask;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_tape_leaf(t, &((const fd_env *)self)->constant[0], false, &mask));
    return d9d_op_where(t, mask, in[0], in[1], out);
}

static d9d_status run_square(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_mul(t, in[0], in[0], out);
}

static d9d_status run_cast(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    d9d_var *scaled;

    (void)self, (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_affine(t, in[0], 2.0f, 1.0f, &scaled));
    D9D_TRY(d9d_op_cast(t, scaled, D9D_F32, &scaled));
    return d9d_op_affine(t, scaled, 0.5f, 0.0f, out);
}

/* Numbers further than two steps of the differences from 0, from +-1 and, of a pair, from each
 * other and from a distance of 1. */
static const float signs[15] = {-2.5f, -1.5f, -0.5f, 0.5f,   1.5f,   2.5f,  -0.25f, 0.25f,
                                1.25f, 0.75f, -3.0f, -1.25f, -0.75f, 1.75f, 0.375f};
static const float others[15] = {0.25f, 1.0f,   -0.25f, -2.0f, 1.0f,   1.25f,  2.0f, -0.125f,
                                 2.5f,  -0.75f, 1.5f,   -0.5f, -1.25f, -0.25f, 1.0f};
static const float positive[15] = {0.5f,  0.75f, 1.0f,  1.25f, 1.5f, 2.0f,  2.5f,  3.0f,
                                   0.25f, 1.75f, 0.75f, 0.5f,  1.5f, 2.25f, 0.875f};
static const int32_t mask[15] = {1, 0, 1, 1, 0, 7, -1, 0, 0, 1, 0, 1, 0, 0, 1};

#define SIGNS                                                                                      \
    {                                                                                              \
        .shape = D9D_SHAPE(3, 5), .host = signs                                                    \
    }
#define OTHERS                                                                                     \
    {                                                                                              \
        .shape = D9D_SHAPE(3, 5), .host = others                                                   \
    }
#define POSITIVE                                                                                   \
    {                                                                                              \
        .shape = D9D_SHAPE(3, 5), .host = positive                                                 \
    }
#define FN(NAME, a, b)                                                                             \
    .name = #NAME, .run = run, .arg = &(const function)                                            \
    {                                                                                              \
        D9D_POINTWISE_##NAME, a, b                                                                 \
    }

static void functions_keep_their_promises(void **state)
{
    const fd_case cases[] = {
        {FN(AFFINE, -1.5f, 0.25f), .in = {FD(3, 5)}},
        {FN(ABS, 0, 0), .in = {SIGNS}, .saved = {15}},
        {FN(SQUARE, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(SQRT, 0, 0), .in = {POSITIVE}, .saved = {15}},
        {FN(EXP, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(LOG, 0, 0), .in = {POSITIVE}, .saved = {15}},
        {FN(SIGMOID, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(LOG_SIGMOID, 0, 0), .in = {{.shape = D9D_SHAPE(3, 5), .scale = 4}}, .saved = {15}},
        {FN(TANH, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(SOFTCAP, 2.0f, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(RELU, 0, 0), .in = {SIGNS}, .saved = {15}},
        {FN(SILU, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(GELU, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(GELU_TANH, 0, 0), .in = {FD(3, 5)}, .saved = {15}},
        {FN(CLAMP, -1.0f, 1.0f), .in = {SIGNS}, .saved = {15}},
        {FN(ADD, 0, 0), .in = {FD(3, 5), FD(3, 5)}},
        {FN(SUB, 0, 0), .in = {FD(3, 5), FD(3, 5)}},
        {FN(MUL, 0, 0), .in = {FD(3, 5), FD(3, 5)}, .saved = {15, 15}},
        {FN(DIV, 0, 0), .in = {FD(3, 5), POSITIVE}, .saved = {15, 15}},
        {FN(MINIMUM, 0, 0), .in = {SIGNS, OTHERS}, .saved = {15, 15}},
        {FN(MAXIMUM, 0, 0), .in = {SIGNS, OTHERS}, .saved = {15, 15}},
        {FN(EXP_SUB, 0, 0), .in = {FD(3, 5), FD(3, 5)}, .saved = {15, 15}},
        {FN(MSE, 0, 0), .in = {FD(3, 5), FD(3, 5)}, .saved = {15, 15}},
        {FN(L1, 0, 0), .in = {SIGNS, OTHERS}, .saved = {15, 15}},
        {FN(HUBER, 1.0f, 0), .in = {SIGNS, OTHERS}, .saved = {15, 15}},
        {FN(BCE_WITH_LOGITS, 0, 0), .in = {FD(3, 5), POSITIVE}, .saved = {15, 15}},
        {FN(KL_DIV, 0, 0), .in = {FD(3, 5), POSITIVE}, .saved = {15, 15}},
        {.name = "where",
         .run = run_where,
         .in = {FD(3, 5), FD(3, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 5), mask}}},
        {.name = "where by column",
         .run = run_where,
         .in = {FD(3, 5), FD(1)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 1), mask}}},
        {.name = "square", .run = run_square, .in = {FD(2, 7)}, .saved = {14}},
        {.name = "cast", .run = run_cast, .in = {FD(2, 7)}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void inputs_broadcast(void **state)
{
    const fd_case cases[] = {
        {FN(MUL, 0, 0), .in = {FD(7, 5), FD(5)}, .saved = {35, 5}},
        {FN(MUL, 0, 0), .in = {FD(7, 5), FD(7, 1)}, .saved = {35, 7}},
        {FN(MUL, 0, 0), .in = {FD(1), FD(7, 5)}, .saved = {1, 35}},
        {FN(MUL, 0, 0), .in = {FD(7, 1), FD(1, 5)}, .saved = {7, 5}},
        {FN(SUB, 0, 0), .in = {FD(2, 3, 1, 5), FD(2, 1, 7, 1)}},
        {FN(ADD, 0, 0), .in = {FD(3, 2, 5), FD(2, 1)}},
        {FN(MSE, 0, 0), .in = {FD(3, 1037), FD(3, 1)}, .saved = {3 * 1037, 3}},
        {FN(MUL, 0, 0), .in = {FD(2100, 3), FD(3)}, .saved = {6300, 3}, .tolerance_bf16 = 0.02f},
        {FN(MUL, 0, 0), .in = {FD(0, 5), FD(5)}, .saved = {-1, 5}},
        {FN(SUB, 0, 0), .in = {FD(3, 5), {.shape = D9D_SHAPE(5), .float32 = true}}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void a_mask_has_no_gradient(void **state)
{
    op_fixture *f = *state;
    d9d_var *x, *y;

    assert_ok(d9d_tape_leaf(f->tape, op_tensor(f, D9D_F32, D9D_SHAPE(3)), true, &x));
    assert_ok(d9d_op_ge(f->tape, x, 0.0f, &y));
    assert_false(d9d_var_needs_grad(y));
    assert_ok(d9d_op_detach(f->tape, x, &y));
    assert_false(d9d_var_needs_grad(y));
    assert_ok(d9d_op_cast(f->tape, x, D9D_F32, &y));
    assert_ptr_equal(y, x);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *a = op_var(f, D9D_F32, D9D_SHAPE(2, 3)), *b = op_var(f, D9D_F32, D9D_SHAPE(2)),
            *whole = op_var(f, D9D_I64, D9D_SHAPE(2, 3)), *y;

    assert_refused(f, d9d_op_mul(f->tape, a, b, &y),
                   "mul: b [2] does not fit a [2, 3]: dimensions, aligned at the last, must be "
                   "equal or 1");
    assert_refused(f, d9d_op_where(f->tape, a, a, whole, &y),
                   "where: c is int64, expected float32 or bfloat16");
    assert_refused(f, d9d_op_cast(f->tape, a, D9D_I32, &y),
                   "cast: to int32, possible are float32 and bfloat16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_keep_their_promises),
        cmocka_unit_test(inputs_broadcast),
        op_test(a_mask_has_no_gradient),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_pointwise", tests, NULL, NULL);
}
