/* test_op_pool.c - pooling: token rows to one row per document. */
#include "support/fd.h"
#include "support/op_fixture.h"

enum { T = 7, N = 3, K = 4 };

/* Document 0 is the mean of rows 1, 2 and 5, document 1 is empty, document 2 is row 6. */
static const int32_t token[N * K] = {1, 2, 5, -1, -1, -1, -1, -1, 6, -1, -1, -1};
static const float share[N * K] = {1 / 3.0f, 1 / 3.0f, 1 / 3.0f, 0, 0, 0, 0, 0, 1, 0, 0, 0};
static const int32_t owner[T] = {-1, 0, 0, -1, -1, 0, 2};
static const float part[T] = {0, 1 / 3.0f, 1 / 3.0f, 0, 0, 1 / 3.0f, 1};

static d9d_status make(d9d_device *dev, d9d_op_pool_index *p)
{
    D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(N, K), token, &p->token));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(N, K), share, &p->share));
    D9D_TRY(d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(T, 1), owner, &p->owner));
    return d9d_tensor_from_host(dev, D9D_F32, D9D_SHAPE(T, 1), part, &p->owner_share);
}

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    d9d_op_pool_index p = {0};
    d9d_status st = make(d9d_tape_device(t), &p);

    (void)self, (void)n_in, (void)n_out;
    if (st == D9D_OK)
        st = d9d_op_pool(t, in[0], &p, out);
    d9d_op_pool_index_release(&p);
    return st;
}

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "rows", .run = run, .in = {FD(T, 5)}, .saved = {T, T}},
        {.name = "wide", .run = run, .in = {FD(T, 257)}, .saved = {T, T}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void pools(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(T, 2)), *y;
    float in[T * 2], got[N * 2];
    d9d_op_pool_index p = {0};

    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(x), in));
    assert_ok(make(d9d_tape_device(f->tape), &p));
    assert_ok(d9d_op_pool(f->tape, x, &p, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    for (int i = 0; i < 2; i++) {
        assert_float_equal(got[i], (in[2 + i] + in[4 + i] + in[10 + i]) / 3, 1e-6);
        assert_true(got[2 + i] == 0);
        assert_true(got[4 + i] == in[12 + i]);
    }
    d9d_op_pool_index_release(&p);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(T + 1, 2)), *y;
    d9d_op_pool_index p = {0};

    assert_ok(make(d9d_tape_device(f->tape), &p));
    assert_refused(f, d9d_op_pool(f->tape, x, &p, &y),
                   "pool: x [8, 2] does not fit owners [7, 1]: x is [T, H], owners are [T, 1]");
    d9d_op_pool_index_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(pools),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_pool", tests, NULL, NULL);
}
