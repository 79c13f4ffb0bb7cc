/* test_op_block_matmul.c - products with block-diagonal matrices, and skew-symmetric blocks. */
#include "support/fd.h"
#include "support/op_fixture.h"

#include "d9d/op/math.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    return d9d_op_block_matmul(t, in[0], in[1], out);
}

static d9d_status run_skew(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    (void)n_in, (void)n_out;
    return d9d_op_skew(t, in[0], *(const int64_t *)((const fd_env *)self)->of->arg, out);
}

static void keeps_its_promises(void **state)
{
    static const int64_t one = 1, two = 2, five = 5;
    static const fd_case cases[] = {
        {.name = "blocks", .run = run, .in = {FD(4, 6), FD(2, 3, 3)}, .saved = {24, 18}},
        {.name = "one block", .run = run, .in = {FD(3, 5), FD(1, 5, 5)}, .saved = {15, 25}},
        {.name = "blocks of 1", .run = run, .in = {FD(2, 7), FD(7, 1, 1)}, .saved = {14, 7}},
        {.name = "of a batch", .run = run, .in = {FD(2, 3, 8), FD(4, 2, 2)}, .saved = {48, 16}},
        {.name = "no rows", .run = run, .in = {FD(0, 6), FD(2, 3, 3)}, .saved = {-1, 18}},
        {.name = "skew", .run = run_skew, .arg = &five, .in = {FD(3, 10)}},
        {.name = "skew, of a batch", .run = run_skew, .arg = &two, .in = {FD(2, 3, 1)}},
        {.name = "skew, of none", .run = run_skew, .arg = &one, .in = {FD(3, 0)}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* A triangle [a, b, c] of 3 x 3. */
static void a_triangle_is_read_by_rows(void **state)
{
    static const float v[] = {1, 2, 3}, want[] = {0, 1, 2, -1, 0, 3, -2, -3, 0};
    op_fixture *f = *state;
    d9d_tensor x;
    d9d_var *in, *y;
    float got[9];

    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(1, 3), v, &x));
    assert_ok(d9d_tape_leaf(f->tape, &x, false, &in));
    assert_ok(d9d_op_skew(f->tape, in, 3, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    assert_memory_equal(got, want, sizeof(want));
    d9d_tensor_release(&x);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(2, 6)), *r = op_var(f, D9D_F32, D9D_SHAPE(2, 4, 4)),
            *wide = op_var(f, D9D_F32, D9D_SHAPE(3, 2, 1)), *y;

    assert_refused(f, d9d_op_block_matmul(f->tape, x, r, &y),
                   "block_matmul: the blocks [2, 4, 4] does not fit x [2, 6]: x is [..., B N], "
                   "blocks are [B, N, N]");
    assert_refused(f, d9d_op_block_matmul(f->tape, x, wide, &y),
                   "block_matmul: the blocks [3, 2, 1] does not fit x [2, 6]: x is [..., B N], "
                   "blocks are [B, N, N]");
    assert_refused(f, d9d_op_skew(f->tape, x, 3, &y),
                   "skew: x [2, 6] does not fit a matrix [3, 3]: x is [..., N (N - 1) / 2], the "
                   "triangle of [N, N]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(a_triangle_is_read_by_rows),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_block_matmul", tests, NULL, NULL);
}
