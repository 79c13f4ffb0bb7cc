/* test_op_matmul.c - products of two activations, stored or transposed, alone and in batches. */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/math.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)n_in, (void)n_out;
    return d9d_op_matmul(t, in[0], in[1], ((const fd_env *)self)->of->arg, out);
}

static void keeps_its_promises(void **state)
{
    static const d9d_op_matmul_opts plain = {0}, a = {.trans_a = true}, b = {.trans_b = true},
                                    both = {true, true};
    static const fd_case cases[] = {
        {.name = "a b", .run = run, .arg = &plain, .in = {FD(3, 5), FD(5, 7)}, .saved = {15, 35}},
        {.name = "a' b", .run = run, .arg = &a, .in = {FD(5, 3), FD(5, 7)}, .saved = {15, 35}},
        {.name = "a b'", .run = run, .arg = &b, .in = {FD(3, 5), FD(7, 5)}, .saved = {15, 35}},
        {.name = "a' b'", .run = run, .arg = &both, .in = {FD(5, 3), FD(7, 5)}, .saved = {15, 35}},
        {.name = "a batch",
         .run = run,
         .arg = &plain,
         .in = {FD(2, 2, 3, 5), FD(2, 2, 5, 7)},
         .saved = {60, 140}},
        {.name = "a batch, transposed",
         .run = run,
         .arg = &both,
         .in = {FD(3, 5, 2), FD(3, 7, 5)},
         .saved = {30, 105}},
        {.name = "one matrix for all",
         .run = run,
         .arg = &b,
         .in = {FD(2, 2, 3, 5), FD(7, 5)},
         .saved = {60, 35}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *a = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4)), *b = op_var(f, D9D_F32, D9D_SHAPE(4, 3)),
            *y;

    assert_refused(f, d9d_op_matmul(f->tape, a, b, &(d9d_op_matmul_opts){.trans_b = true}, &y),
                   "matmul: b [4, 3] does not fit a [2, 3, 4]: a is [..., M, K], b [..., K, N] or "
                   "[K, N], each or transposed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_matmul", tests, NULL, NULL);
}
