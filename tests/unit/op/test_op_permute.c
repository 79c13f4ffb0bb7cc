/* test_op_permute.c - permute: tokens to rows grouped by expert. */
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

    (void)n_in, (void)n_out;
    D9D_TRY(moe_route(&e->constant[0], EXPERTS, &r));
    st = d9d_op_permute(t, in[0], &r, out);
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
         .in = {FD(12, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(12, 1), expert}},
         .saved = {12}},
        {.name = "two",
         .run = run,
         .in = {FD(6, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {12}},
        {.name = "three",
         .run = run,
         .in = {FD(4, 33)},
         .constant = {{D9D_I32, D9D_SHAPE(4, 3), expert}},
         .saved = {12}},
        {.name = "some are elsewhere",
         .run = run,
         .in = {FD(6, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), elsewhere}},
         .saved = {12}},
        {.name = "none",
         .run = run,
         .in = {FD(0, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(0, 2), expert}},
         .saved = {-1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void rows_are_in_order_of_experts(void **state)
{
    static const float x[] = {1, 10, 2, 20}, want[] = {2, 20, 1, 10, 2, 20, 1, 10};
    static const int32_t which[] = {3, 1, 2, 0};
    op_fixture *f = *state;
    d9d_var *v = op_var(f, D9D_F32, D9D_SHAPE(2, 2)), *y;
    d9d_tensor *choice = op_tensor(f, D9D_I32, D9D_SHAPE(2, 2));
    d9d_routing r;
    float got[8];

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(choice), which, sizeof(which)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(d9d_var_tensor(v)), x, sizeof(x)));
    assert_ok(moe_route(choice, 4, &r));
    assert_ok(d9d_op_permute(f->tape, v, &r, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    assert_memory_equal(got, want, sizeof(want));
    d9d_routing_release(&r);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(3, 5)), *y;
    d9d_routing r, none = {0};

    assert_ok(moe_route(op_tensor(f, D9D_I32, D9D_SHAPE(4, 2)), 3, &r));
    assert_refused(f, d9d_op_permute(f->tape, x, &r, &y),
                   "permute: x [3, 5] does not fit the expert ids [4, 2]: x is [T, ...], expert "
                   "ids are [T, k]");
    assert_refused(f, d9d_op_permute(f->tape, x, &none, &y),
                   "permute: the routing has no data: it was released or never filled");
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(rows_are_in_order_of_experts),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_permute", tests, NULL, NULL);
}
