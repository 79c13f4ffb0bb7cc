/* test_op_dispatch.c - dispatch and combine in a group of one: nothing is copied, and the promises
 * about the experts between them hold. tests/multirank/experts.bats has more ranks. */
#include <string.h>

#include "support/fd.h"
#include "support/moe.h"
#include "support/op_fixture.h"

enum { EXPERTS = 6 };

/* Weighted rows of experts, with or without the exchange around them. */
static d9d_status experts(d9d_tape *t, d9d_var *x, d9d_var *prob, const d9d_routing *r,
                          d9d_param *w, d9d_var **y)
{
    d9d_var *rows, *h;

    D9D_TRY(d9d_op_permute(t, x, r, &rows));
    D9D_TRY(d9d_op_grouped_linear(t, rows, &w, 1, r, &h));
    return d9d_op_unpermute(t, h, prob, r, NULL, y);
}

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    d9d_routing r;
    d9d_op_moe_dispatch there = {0};
    d9d_status st;

    (void)n_in, (void)n_out;
    D9D_TRY(moe_route(&e->constant[0], EXPERTS, &r));
    D9D_TRY_OR(st, d9d_op_dispatch(t, NULL, "x", in[0], in[1], &r, &there), out);
    D9D_TRY_OR(st, experts(t, there.x, there.prob, &there.routing, e->param[0], out), out);
    st = d9d_op_combine(t, out[0], &there, out);
out:
    d9d_op_moe_dispatch_release(&there);
    d9d_routing_release(&r);
    return st;
}

static const int32_t expert[] = {5, 0, 3, 0, 5, 3, 1, 3, 0, 5, 0, 1};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "two",
         .run = run,
         .in = {FD(6, 5), {.shape = D9D_SHAPE(6, 2), .float32 = true}},
         .param = {FD(EXPERTS, 5, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 2), expert}},
         .saved = {12, 7, 60, 36, 12}},
        {.name = "none",
         .run = run,
         .in = {FD(0, 5), {.shape = D9D_SHAPE(0, 2), .float32 = true}},
         .param = {FD(EXPERTS, 5, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(0, 2), expert}},
         .saved = {-1, 7, -1, -1, -1}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void alone_nothing_moves(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(4, 5)), *p = op_var(f, D9D_F32, D9D_SHAPE(4, 2)), *y;
    d9d_op_moe_dispatch there;
    d9d_routing r;
    size_t mark;

    assert_ok(moe_route(op_tensor(f, D9D_I32, D9D_SHAPE(4, 2)), 3, &r));
    mark = d9d_tape_mark(f->tape);
    assert_ok(d9d_op_dispatch(f->tape, NULL, "x", x, p, &r, &there));
    assert_ptr_equal(there.x, x);
    assert_ptr_equal(there.prob, p);
    assert_ptr_equal(there.routing.row.storage, r.row.storage);
    assert_ok(d9d_op_combine(f->tape, x, &there, &y));
    assert_ptr_equal(y, x);
    assert_int_equal(d9d_tape_mark(f->tape), mark);
    d9d_op_moe_dispatch_release(&there);
    d9d_op_moe_dispatch_release(&there);
    d9d_routing_release(&r);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(4, 5)), *p = op_var(f, D9D_F32, D9D_SHAPE(4, 2));
    d9d_var *few = op_var(f, D9D_F32, D9D_SHAPE(3, 5)),
            *half = op_var(f, D9D_BF16, D9D_SHAPE(4, 2));
    d9d_op_moe_dispatch there, none = {0};
    d9d_routing r;
    d9d_var *y;

    assert_ok(moe_route(op_tensor(f, D9D_I32, D9D_SHAPE(4, 2)), 3, &r));
    assert_refused(f, d9d_op_dispatch(f->tape, NULL, "x", few, p, &r, &there),
                   "dispatch: x [3, 5] does not fit the expert ids [4, 2]: x is [T, ...], expert "
                   "ids are [T, k]");
    assert_refused(f, d9d_op_dispatch(f->tape, NULL, "x", x, half, &r, &there),
                   "dispatch: prob is bfloat16, expected float32");
    assert_refused(f, d9d_op_dispatch(f->tape, NULL, "x", x, x, &r, &there),
                   "dispatch: prob [4, 5] does not fit the expert ids [4, 2]: shapes must "
                   "be equal");
    assert_refused(f, d9d_op_combine(f->tape, x, &none, &y),
                   "combine: the dispatch has no data: it was released or never filled");
    assert_ok(d9d_op_dispatch(f->tape, NULL, "x", x, p, &r, &there));
    assert_refused(f, d9d_op_combine(f->tape, few, &there, &y),
                   "combine: part [3, 5] does not fit the received expert ids [4, 2]: a part is "
                   "[N, H], expert ids are [N, k]");
    d9d_op_moe_dispatch_release(&there);
    d9d_routing_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(alone_nothing_moves),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_dispatch", tests, NULL, NULL);
}
