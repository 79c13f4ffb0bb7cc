/* test_fd.c - the harness of the ops sees a gradient that is wrong. */
#include <string.h>

#include "support/fd.h"
#include "support/unit.h"

/* y = x, whose gradient is dy with a fault in it. */
typedef enum fault { NONE, SCALED, ONE_ELEMENT } fault;

static d9d_status copy_input(d9d_node *n)
{
    const fault f = *(const fault *)n->attr;
    d9d_tensor dx;
    float *p;

    D9D_TRY(d9d_node_alloc(n, D9D_F32, n->dout[0].shape, &dx));
    p = memcpy(d9d_tensor_data(&dx), d9d_tensor_data(&n->dout[0]), d9d_tensor_bytes(&dx));
    for (int64_t i = 0; i < d9d_tensor_numel(&dx) && f == SCALED; i++)
        p[i] *= 1.001f;
    if (f == ONE_ELEMENT)
        p[7] += 0.02f;
    return d9d_node_accumulate_grad(n, 0, &dx);
}

static const d9d_node_ops copy_ops = {.name = "copy", .dgrad = copy_input};

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    const fd_env *e = self;
    const d9d_tensor *x = d9d_var_tensor(in[0]);
    d9d_node *n;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_tape_output(t, x->dtype, x->shape, out));
    memcpy(d9d_tensor_data(d9d_var_tensor(*out)), d9d_tensor_data(x), d9d_tensor_bytes(x));
    if (!d9d_tape_should_record(t, in, 1, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_record(t, &copy_ops, in, 1, out, 1, NULL, 0, sizeof(fault), &n));
    *(fault *)n->attr = *(const fault *)e->of->arg;
    return D9D_OK;
}

static void a_right_gradient_is_far_from_the_bound(void **state)
{
    static const fault f = NONE;

    (void)state;
    assert_true(fd_gradient_error(
                    &(fd_case){.name = "copy", .run = run, .in = {FD(4, 25)}, .arg = &f}) < 0.3);
}

static void a_wrong_one_is_seen(void **state)
{
    static const fault faults[] = {SCALED, ONE_ELEMENT};

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        assert_true(fd_gradient_error(&(fd_case){
                        .name = "copy", .run = run, .in = {FD(4, 25)}, .arg = &faults[i]}) > 1.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_gradient_is_far_from_the_bound),
        cmocka_unit_test(a_wrong_one_is_seen),
    };

    return cmocka_run_group_tests_name("fd", tests, NULL, NULL);
}
