/* test_op_linear_stacked.c - several small matrices with one input as one product, by itself and as
 * A of the adapters of layers that share their input. */
#include "support/fd.h"
#include "support/unit.h"

#include "op/linear/op_adapter.h"

enum { MATRICES = 3 };

static const float factors[MATRICES] = {1.0f, -0.5f, 2.0f};

/* All y side by side. */
static d9d_status join(d9d_tape *t, d9d_var *const *y, size_t n, d9d_var **out)
{
    d9d_op_concat_input inputs[MATRICES];
    d9d_shape shape = d9d_var_tensor(y[0])->shape;
    int64_t width = 0;

    for (size_t i = 0; i < n; i++) {
        const d9d_shape *s = &d9d_var_tensor(y[i])->shape;

        inputs[i] = (d9d_op_concat_input){.x = y[i], .n = s->dim[s->ndim - 1]};
        width += inputs[i].n;
    }
    shape.dim[shape.ndim - 1] = width;
    return d9d_op_concat(t, inputs, n, shape, out);
}

static d9d_status run_all(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                          size_t n_out)
{
    fd_env *e = self;
    d9d_var *y[MATRICES];

    (void)n_in, (void)n_out;
    D9D_TRY(d9di_op_linear_stacked(t, in[0], e->param, factors, e->n_param, y));
    return join(t, y, e->n_param, out);
}

/* Of what is stacked the others have no gradient. */
static d9d_status run_one_read(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                               d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_var *y[MATRICES];

    (void)n_in, (void)n_out;
    D9D_TRY(d9di_op_linear_stacked(t, in[0], e->param, factors, e->n_param, y));
    D9D_TRY(d9d_op_linear(t, in[0], e->param[0], &y[0]));
    D9D_TRY(d9d_op_linear(t, in[0], e->param[2], &y[2]));
    return join(t, y, e->n_param, out);
}

/* Parameters: W, W', then A, B of each.  W is read in two slices, which share A. */
static d9d_status run_layers(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param **p = e->param;
    d9d_param_adapter first = {.param = {[D9D_ADAPTER_A] = p[2], [D9D_ADAPTER_B] = p[3]},
                               .scale = 1.5f};
    d9d_param_adapter second = {.param = {[D9D_ADAPTER_A] = p[4], [D9D_ADAPTER_B] = p[5]},
                                .scale = 0.5f};
    const d9d_op_weight_slice of[MATRICES] = {
        {p[0], 0, 4, NULL}, {p[0], 4, 2, NULL}, {p[1], 0, 4, NULL}};
    d9d_var *y[MATRICES];
    d9d_status st;

    (void)n_in, (void)n_out;
    p[0]->peft.adapter = &first;
    p[1]->peft.adapter = &second;
    st = d9d_op_linear_multi(t, in[0], NULL, of, MATRICES, y);
    p[0]->peft.adapter = p[1]->peft.adapter = NULL;
    return st == D9D_OK ? join(t, y, MATRICES, out) : st;
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "three matrices",
         .run = run_all,
         .in = {FD(2, 4, 5)},
         .param = {FD(2, 5), FD(3, 5), FD(1, 5)},
         .saved = {40, 30}},
        {.name = "one matrix",
         .run = run_all,
         .in = {FD(3, 9)},
         .param = {FD(4, 9)},
         .saved = {27, 36}},
        {.name = "no rows",
         .run = run_all,
         .in = {FD(0, 5)},
         .param = {FD(2, 5), FD(3, 5)},
         .saved = {-1, 25}},
        {.name = "one of three is read",
         .run = run_one_read,
         .in = {FD(3, 5)},
         .param = {FD(2, 5), FD(3, 5), FD(1, 5)},
         .saved = {15, 30}},
        {.name = "layers with adapters",
         .run = run_layers,
         .in = {FD(3, 5)},
         .param = {FD(6, 5), FD(4, 5), FD(2, 5), FD(6, 2), FD(3, 5), FD(4, 3)},
         .saved = {15, 25, 6, 9}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keeps_its_promises)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
