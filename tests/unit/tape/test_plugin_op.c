/* test_plugin_op.c - the custom operation of examples/plugins/gelu.c keeps the promises of the
 * library's own. */
#define SMALL_PLUGIN own_op_plugin
#include "support/small_plugin.h"

#include "../../../examples/plugins/gelu.c"

#include "d9d/device/simulated.h"
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;

    (void)n_in, (void)n_out;
    return op_gelu(t, in[0], e->param[0], out);
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "rows", .run = run, .in = {FD(5, 7)}, .param = {FD(7)}, .saved = {5 * 7}},
        {.name = "deep",
         .run = run,
         .in = {FD(2, 3, 13)},
         .param = {FD(13)},
         .saved = {2 * 3 * 13}},
        {.name = "one row", .run = run, .in = {FD(1, 64)}, .param = {FD(64)}, .saved = {64}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* A plan takes the cost and calls nothing, whatever the arrays are; a GPU has no such kernel. */
static void a_plan_takes_its_cost(void **state)
{
    const d9d_tensor x = {.dtype = D9D_F32, .shape = D9D_SHAPE(1 << 12, 1 << 10)};
    arrays a = {.x = &x};
    d9d_device_kernel_cost cost = {D9D_F32, 0, 1e9};
    d9d_device *dev;
    double before;

    (void)state;
    assert_ok(d9d_device_simulate("cpu", &dev));
    before = d9d_sim_now(dev->stream);
    assert_ok(d9d_device_launch(dev, &forward_kernel, &a, cost));
    assert_true(d9d_sim_now(dev->stream) > before + 1e-4);
    d9d_device_close(dev);
    assert_ok(d9d_device_simulate("h200", &dev));
    assert_fails(d9d_device_launch(dev, &forward_kernel, &a, cost), D9D_ENOTSUP,
                 "gelu: has no kernel for GPUs");
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        cmocka_unit_test(a_plan_takes_its_cost),
    };

    return cmocka_run_group_tests_name("own_op", tests, NULL, NULL);
}
