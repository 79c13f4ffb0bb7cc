/* test_op_embedding.c - embedding with split tables. */
#include "support/fd.h"
#include "support/op_fixture.h"

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;

    (void)in, (void)n_in, (void)n_out;
    return d9d_op_embedding(t, &e->constant[0], e->param, e->n_param, out);
}

/* Of an id that no token here has, so that every gradient is that of the output. */
static d9d_status run_padded(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    fd_env *e = self;

    (void)in, (void)n_in, (void)n_out;
    return d9d_op_embedding_padded(t, &e->constant[0], 3, e->param, e->n_param, out);
}

/* One table behind the vocabulary. */
static d9d_status run_from(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    fd_env *e = self;

    (void)in, (void)n_in, (void)n_out;
    return d9d_op_embedding_from(t, &e->constant[0], 5, e->param[0], out);
}

/* Parameters: the table, A, B. */
static d9d_status run_adapted(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    d9d_param_adapter adapter = {
        .r = e->param[1]->spec.shape.dim[0],
        .scale = 0.75f,
        .param = {[D9D_ADAPTER_A] = e->param[1], [D9D_ADAPTER_B] = e->param[2]}};
    d9d_status st;

    (void)in, (void)n_in, (void)n_out;
    e->param[0]->peft.adapter = &adapter;
    st = d9d_op_embedding(t, &e->constant[0], e->param, 1, out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

/* Ids of every kind: repeated, at the ends of splits, outside all. */
static const int32_t ids[] = {0, 4, 5, 7, 8, 0, 2, 2, 2, -1, 9, 1000000, INT32_MIN, INT32_MAX, 6};

static void keeps_its_promises(void **state)
{
    static const fd_case cases[] = {
        {.name = "one",
         .run = run,
         .param = {FD(9, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(15), ids}}},
        {.name = "padded",
         .run = run_padded,
         .param = {FD(9, 5)},
         .constant = {{D9D_I32, D9D_SHAPE(15), ids}}},
        {.name = "padded split",
         .run = run_padded,
         .param = {FD(4, 7), FD(5, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(15), ids}}},
        {.name = "split",
         .run = run,
         .param = {FD(5, 7), FD(3, 7), FD(1, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 5), ids}}},
        {.name = "with an adapter",
         .run = run_adapted,
         .param = {FD(9, 5), FD(3, 5), FD(9, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 5), ids}},
         .saved = {45, 15}},
        {.name = "from",
         .run = run_from,
         .param = {FD(4, 7)},
         .constant = {{D9D_I32, D9D_SHAPE(3, 5), ids}}},
        {.name = "batch",
         .run = run,
         .param = {FD(2, 3), FD(8, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(1, 3, 5), ids}}},
        {.name = "empty split",
         .run = run,
         .param = {FD(0, 3), FD(9, 3)},
         .constant = {{D9D_I32, D9D_SHAPE(15), ids}}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void an_id_outside_gives_zeros(void **state)
{
    op_fixture *f = *state;
    d9d_param *p = op_param(f, "table", D9D_F32, D9D_SHAPE(2, 3));
    d9d_tensor *which = op_tensor(f, D9D_I32, D9D_SHAPE(3));
    const int32_t some[] = {1, 2, -1};
    const float rows[] = {1, 2, 3, 4, 5, 6}, want[] = {4, 5, 6, 0, 0, 0, 0, 0, 0};
    float got[9];
    d9d_var *y;

    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&p->local.data), rows, sizeof(rows)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(which), some, sizeof(some)));
    assert_ok(d9d_op_embedding(f->tape, which, &p, 1, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    assert_memory_equal(got, want, sizeof(want));
}

/* Tables that are parts of their splits: ids of other parts give zeros. */
static void parts_have_their_own_ids(void **state)
{
    op_fixture *f = *state;
    d9d_param *p[] = {op_param(f, "a", D9D_F32, D9D_SHAPE(1, 1)),
                      op_param(f, "b", D9D_F32, D9D_SHAPE(2, 1))};
    d9d_tensor *which = op_tensor(f, D9D_I32, D9D_SHAPE(7));
    const int32_t all[] = {0, 1, 2, 3, 4, 5, 6};
    const float a = 10, b[] = {20, 30}, want[] = {0, 0, 10, 0, 20, 30, 0};
    float got[7];
    d9d_var *y;

    p[0]->spec.shape = D9D_SHAPE(3, 1); /* id 2 of 0 to 2 */
    p[0]->local.offset[0] = 2;
    p[1]->spec.shape = D9D_SHAPE(4, 1); /* ids 4 and 5 of 3 to 6 */
    p[1]->local.offset[0] = 1;
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&p[0]->local.data), &a, sizeof(a)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&p[1]->local.data), b, sizeof(b)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(which), all, sizeof(all)));
    assert_ok(d9d_op_embedding(f->tape, which, p, 2, &y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), got));
    assert_memory_equal(got, want, sizeof(want));
}

enum { V = 6, V_FIRST = 2, H = 5, T = 8 };

/* The gradients [V, H] of tables of V_FIRST rows and the others after two backwards, where the
 * tokens have these ids and `padding` is an id. */
static void two_backwards(op_fixture *f, const int32_t *tokens, int64_t padding, float *grad)
{
    d9d_param *p[] = {op_param(f, "a", D9D_F32, D9D_SHAPE(V_FIRST, H)),
                      op_param(f, "b", D9D_F32, D9D_SHAPE(V - V_FIRST, H))};
    d9d_tensor *which = op_tensor(f, D9D_I32, D9D_SHAPE(T));
    d9d_tensor *dy = op_tensor(f, D9D_F32, D9D_SHAPE(T, H));
    float numbers[T * H];
    d9d_var *y;

    for (int i = 0; i < T * H; i++)
        numbers[i] = (float)(i % 7) - 2.5f;
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(which), tokens, T * sizeof(*tokens)));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(dy), numbers, sizeof(numbers)));
    for (int i = 0; i < 2; i++) {
        assert_ok(d9d_op_embedding_padded(f->tape, which, padding, p, 2, &y));
        assert_ok(d9d_tape_backward(f->tape, &y, dy, 1, D9D_BACKWARD_FULL));
        d9d_tape_reset(f->tape);
    }
    assert_ok(d9d_tensor_to_f32(&p[0]->local.grad, grad));
    assert_ok(d9d_tensor_to_f32(&p[1]->local.grad, grad + V_FIRST * H));
}

/* Whatever the id of padding: the gradients of tokens that are none, and zeros in its row. */
static void padding_has_no_gradient(void **state)
{
    static const int32_t tokens[T] = {3, 0, 5, 3, 1, 2, 4, 0};

    for (int32_t padding = -1; padding <= V; padding++) {
        float got[V * H], want[V * H];
        int32_t others[T];

        for (int i = 0; i < T; i++)
            others[i] = tokens[i] == padding ? V : tokens[i];
        op_fixture_close(state);
        op_fixture_open(state);
        two_backwards(*state, tokens, padding, got);
        two_backwards(*state, others, V, want);
        assert_memory_equal(got, want, sizeof(want));
    }
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_param *p = op_param(f, "a", D9D_F32, D9D_SHAPE(2, 3));
    d9d_param *wide = op_param(f, "b", D9D_F32, D9D_SHAPE(2, 4));
    d9d_param *half = op_param(f, "c", D9D_BF16, D9D_SHAPE(2, 3));
    d9d_param *tables[D9D_NODE_MAX + 1] = {p, wide}, *mixed[] = {p, half};
    d9d_tensor *which = op_tensor(f, D9D_I32, D9D_SHAPE(5));
    d9d_tensor *wrong = op_tensor(f, D9D_F32, D9D_SHAPE(5));
    d9d_tensor *deep = op_tensor(f, D9D_I32, D9D_SHAPE(1, 1, 1, 1, 1, 1));
    d9d_var *y;

    assert_refused(f, d9d_op_embedding(f->tape, which, tables, 0, &y),
                   "embedding: a vocabulary of 0 splits, from 1 to 8 are possible");
    assert_refused(f, d9d_op_embedding(f->tape, which, tables, 9, &y),
                   "embedding: a vocabulary of 9 splits, from 1 to 8 are possible");
    assert_refused(f, d9d_op_embedding(f->tape, which, tables, 2, &y),
                   "embedding: b [2, 4] does not fit rows [3]: a split is [V, H]");
    assert_refused(f, d9d_op_embedding(f->tape, which, mixed, 2, &y),
                   "embedding: c is bfloat16, expected float32");
    assert_refused(f, d9d_op_embedding(f->tape, wrong, tables, 1, &y),
                   "embedding: ids is float32, expected int32");
    assert_refused(f, d9d_op_embedding(f->tape, deep, tables, 1, &y),
                   "embedding: ids [1, 1, 1, 1, 1, 1] does not fit the output [2, 3]: there is no "
                   "room for one more dimension");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises),
        op_test(an_id_outside_gives_zeros),
        op_test(parts_have_their_own_ids),
        op_test(padding_has_no_gradient),
        op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_embedding", tests, NULL, NULL);
}
