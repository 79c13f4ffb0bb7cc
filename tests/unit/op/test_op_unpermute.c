/* test_op_unpermute.c - unpermute: rows grouped by expert back to tokens. */
#include "support/fd.h"
#include "support/moe.h"
#include "support/op_fixture.h"

enum { EXPERTS = 6 };

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    d9d_routing r;
    d9d_status st;

    (void)n_out;
    D9D_TRY(moe_route(&e->constant[0], EXPERTS, &r));
    st = d9d_op_unpermute(t, in[0], in[1], &r, n_in > 2 ? in[2] : NULL, out);
    d9d_routing_release(&r);
    return st;
}

static const int32_t expert[] = {5, 0, 3, 0, 5, 3, 1, 3, 0, 5, 0, 1};
static const int32_t elsewhere[] = {5, -1, 3, 0, -1, -1, 1, -1, -1, 5, 0, 1};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "one",
         .run = run,
         .in = {FD(12, 3), {.shape = D9D_SHAPE(12, 1), .float32 = true}},
         .constant = {{D9D_I32, D9D_SHAPE(12, 1), expert}},
         .saved = {36, 12, 12}},
        {.name = "two",
         .run = run,
         .in = {FD(12, 5), {.shape = D9D_SHAPE(6, 2), .float32 = true}},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {60, 12, 12}},
        {.name = "three",
         .run = run,
         .in = {FD(12, 65), {.shape = D9D_SHAPE(4, 3), .float32 = true}},
         .constant = {{D9D_I32, D9D_SHAPE(4, 3), expert}},
         .saved = {780, 12, 12}},
        {.name = "some are elsewhere",
         .run = run,
         .in = {FD(7, 5), {.shape = D9D_SHAPE(6, 2), .float32 = true}},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), elsewhere}},
         .saved = {35, 12, 12}},
        {.name = "with a residual",
         .run = run,
         .in = {FD(7, 5), {.shape = D9D_SHAPE(6, 2), .float32 = true}, FD(6, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), elsewhere}},
         .saved = {35, 12, 12}},
        {.name = "none",
         .run = run,
         .in = {FD(0, 5), {.shape = D9D_SHAPE(0, 2), .float32 = true}},
         .constant = {{D9D_I32, D9D_SHAPE(0, 2), expert}},
         .saved = {-1, -1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(8, 5)), *few = op_var(f, D9D_F32, D9D_SHAPE(4, 5));
    d9d_var *p = op_var(f, D9D_F32, D9D_SHAPE(4, 2)), *q = op_var(f, D9D_F32, D9D_SHAPE(2, 4));
    d9d_var *half = op_var(f, D9D_BF16, D9D_SHAPE(4, 2)), *y;
    d9d_routing r;

    assert_ok(moe_route(op_tensor(f, D9D_I32, D9D_SHAPE(4, 2)), 3, &r));
    assert_refused(
        f, d9d_op_unpermute(f->tape, few, p, &r, NULL, &y),
        "unpermute: x [4, 5] does not fit the rows of the routing [8]: x is [R, ...], the "
        "routing has R rows");
    assert_refused(f, d9d_op_unpermute(f->tape, x, q, &r, NULL, &y),
                   "unpermute: prob [2, 4] does not fit the expert ids [4, 2]: shapes must be "
                   "equal");
    assert_refused(f, d9d_op_unpermute(f->tape, x, half, &r, NULL, &y),
                   "unpermute: prob is bfloat16, expected float32");
    assert_refused(
        f, d9d_op_unpermute(f->tape, x, p, &r, x, &y),
        "unpermute: plus [8, 5] does not fit y [4, 5]: a residual has the result's shape");
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_unpermute", tests, NULL, NULL);
}
