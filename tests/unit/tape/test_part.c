/* test_part.c - parts of a forward whose saved arrays are away: the same bits in every mode, and
 * the memory of the parts that are computed. */
#include <string.h>

#include "d9d/op/op.h"
#include "support/op_fixture.h"

enum { T = 64, H = 48, LAYERS = 6, ARRAY = T * H * 4 };

typedef struct net {
    op_fixture f;
    d9d_param *w[LAYERS];
    d9d_offload *o;
    d9d_tape_offload offload;
    d9d_tensor x, seed;
    bool recompute, keep_last;
    uint64_t after_forward; /* bytes in use */
    d9d_var *in[LAYERS];
} net;

static void fill(d9d_tensor *t, uint64_t stream)
{
    const d9d_rng r = {11, stream};
    float *p = d9d_tensor_data(t);

    for (int64_t i = 0; i < d9d_tensor_numel(t); i++)
        p[i] = 0.2f * d9d_rng_normal(r, (uint64_t)i);
}

static void net_open(net *n)
{
    const d9d_offload_opts opts = {
        .name = "tests", .key = "test.offload", .depth = 1, .min_bytes = 4096};

    memset(n, 0, sizeof(*n));
    assert_ok(d9d_device_open("cpu", &n->f.dev));
    assert_ok(d9d_tape_create(n->f.dev, &n->f.tape));
    assert_ok(d9d_offload_create(n->f.dev, &opts, &n->o));
    for (int i = 0; i < LAYERS; i++) {
        n->w[i] = op_param(&n->f, "w", D9D_F32, D9D_SHAPE(H, H));
        fill(&n->w[i]->local.data, (uint64_t)i);
    }
    assert_ok(d9d_tensor_alloc(n->f.dev, D9D_F32, D9D_SHAPE(T, H), &n->x));
    assert_ok(d9d_tensor_alloc(n->f.dev, D9D_F32, D9D_SHAPE(T, H), &n->seed));
    fill(&n->x, 100);
    fill(&n->seed, 101);
    n->offload = (d9d_tape_offload){.to = n->o, .fraction = 1, .prefetch = 1};
}

static void net_close(net *n)
{
    d9d_tensor_release(&n->x);
    d9d_tensor_release(&n->seed);
    d9d_tape_free(n->f.tape);
    for (size_t i = 0; i < n->f.n_param; i++) {
        d9d_tensor_release(&n->f.param[i].local.data);
        d9d_tensor_release(&n->f.param[i].local.grad);
    }
    assert_int_equal(d9d_device_memory(n->f.dev).in_use, 0);
    d9d_offload_free(n->o);
    d9d_device_close(n->f.dev);
}

/* x + glu(h, h), h = W x: saves x once or more, and h twice. */
static d9d_status layer(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                        size_t n_out)
{
    d9d_var *h;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_linear(t, in[0], self, &h));
    D9D_TRY(d9d_op_glu(t, &(d9d_glu){0}, h, h, &h));
    return d9d_op_add(t, in[0], h, out);
}

static d9d_status net_forward(net *n, d9d_var *x, d9d_var **y)
{
    d9d_tape *t = n->f.tape;

    for (int i = 0; i < LAYERS; i++) {
        const size_t nodes = d9d_tape_node_mark(t), vars = d9d_tape_mark(t);
        d9d_var *const in = x;

        D9D_TRY(n->recompute ? d9d_tape_recompute(t, layer, n->w[i], &in, 1, &x, 1)
                             : layer(n->w[i], t, &in, 1, &x, 1));
        d9d_tape_release_since(t, vars, &x, 1);
        n->in[i] = in;
        D9D_TRY(d9d_tape_offload_since(t, nodes, in, i + 1 < LAYERS || !n->keep_last));
    }
    *y = x;
    return D9D_OK;
}

typedef struct grads {
    float x[T * H], w[LAYERS][H * H];
} grads;

typedef enum back { AT_ONCE, HALVES, PUT_OFF } back;

static void net_step(net *n, bool offloaded, back mode, grads *g)
{
    d9d_tape *t = n->f.tape;
    d9d_tensor dx;
    d9d_var *x, *y;

    d9d_tape_reset(t);
    memset(g, 0, sizeof(*g));
    for (int i = 0; i < LAYERS; i++)
        n->w[i]->local.has_grad = false;
    if (offloaded)
        d9d_tape_set_offload(t, &n->offload);
    assert_ok(d9d_tape_leaf(t, &n->x, true, &x));
    assert_ok(net_forward(n, x, &y));
    d9d_tape_release_since(t, 0, NULL, 0);
    n->after_forward = d9d_device_memory(n->f.dev).in_use;
    if (mode == PUT_OFF)
        d9d_tape_defer_wgrad(t);
    assert_ok(d9d_tape_prefetch(t));
    assert_ok(d9d_tape_backward(t, &y, &n->seed, 1,
                                mode == HALVES ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
    if (mode == HALVES)
        assert_ok(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    d9d_var_grad(x, &dx);
    assert_ok(d9d_tensor_to_f32(&dx, g->x));
    d9d_tensor_release(&dx);
    for (int i = 0; i < LAYERS; i++)
        assert_ok(d9d_tensor_to_f32(&n->w[i]->local.grad, g->w[i]));
}

static void every_mode_gives_the_same_bits(void **state)
{
    static const double fractions[] = {1, 0.5, 0.3};
    static grads want, got;
    net n;

    (void)state;
    net_open(&n);
    net_step(&n, false, AT_ONCE, &want);
    for (int again = 0; again < 2; again++)
        for (back mode = AT_ONCE; mode <= PUT_OFF; mode++)
            for (int f = 0; f < 3; f++)
                for (int prefetch = 1; prefetch <= LAYERS; prefetch += 2) {
                    n.recompute = again == 1;
                    n.keep_last = prefetch > 1;
                    n.offload.fraction = fractions[f];
                    n.offload.prefetch = prefetch;
                    net_step(&n, true, mode, &got);
                    assert_memory_equal(&got, &want, sizeof(got));
                }
    assert_true(d9d_offload_get_stats(n.o).sent > 0);
    net_close(&n);
}

/* Of the parts, the last is on its way; x itself is the caller's and stays. */
static void the_memory_of_one_part_is_left(void **state)
{
    static grads g;
    uint64_t bare, all, sent;
    net n;

    (void)state;
    net_open(&n);
    bare = d9d_device_memory(n.f.dev).in_use;
    net_step(&n, false, AT_ONCE, &g);
    all = n.after_forward - bare;
    assert_int_equal(all, (2 * LAYERS - 1) * ARRAY); /* x and h of each */
    net_step(&n, true, AT_ONCE, &g);
    assert_int_equal(n.after_forward - bare, 2 * ARRAY); /* of the last */
    assert_int_equal(d9d_offload_get_stats(n.o).sent, all);
    sent = all;
    n.offload.fraction = 0.5; /* parts 0, 2 and 4 */
    net_step(&n, true, AT_ONCE, &g);
    assert_int_equal(n.after_forward - bare, all - 5 * ARRAY);
    sent += 5 * ARRAY;
    assert_int_equal(d9d_offload_get_stats(n.o).sent, sent);
    n.offload.fraction = 0.01; /* part 0: of few parts one goes too */
    net_step(&n, true, AT_ONCE, &g);
    assert_int_equal(n.after_forward - bare, all - ARRAY);
    sent += ARRAY;
    assert_int_equal(d9d_offload_get_stats(n.o).sent, sent);
    n.offload.fraction = 1;
    n.recompute = n.keep_last = true;
    net_step(&n, true, AT_ONCE, &g); /* x of parts 1 to 4 */
    assert_int_equal(n.after_forward - bare, ARRAY);
    assert_int_equal(d9d_offload_get_stats(n.o).sent, sent + 4 * ARRAY);
    net_close(&n);
}

/* A var that keeps its array keeps it for everybody. */
static void what_a_var_holds_stays(void **state)
{
    d9d_tape *t;
    d9d_var *x, *y, *z;
    net n;

    (void)state;
    net_open(&n);
    t = n.f.tape;
    d9d_tape_set_offload(t, &n.offload);
    assert_ok(d9d_tape_leaf(t, &n.x, true, &x));
    assert_ok(d9d_op_linear(t, x, n.w[0], &y));
    assert_ok(d9d_op_linear(t, y, n.w[1], &z));
    assert_ok(d9d_tape_offload_since(t, 0, NULL, true));
    assert_ok(d9d_tape_offload_since(t, d9d_tape_node_mark(t), NULL, true));
    assert_non_null(d9d_tensor_data(d9d_var_tensor(y)));
    assert_int_equal(d9d_offload_get_stats(n.o).sent, 0);
    assert_ok(d9d_op_linear(t, y, n.w[2], &z));
    net_close(&n); /* in the middle of a forward */
}

static void a_tape_ends_while_parts_are_away(void **state)
{
    static grads want, got;
    d9d_var *x, *y;
    net n;

    (void)state;
    net_open(&n);
    net_step(&n, false, AT_ONCE, &want);
    d9d_tape_reset(n.f.tape);
    d9d_tape_set_offload(n.f.tape, &n.offload);
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, true, &x));
    assert_ok(net_forward(&n, x, &y));
    assert_null(d9d_tensor_data(d9d_var_tensor(n.in[0])));
    d9d_tape_reset(n.f.tape);
    net_step(&n, true, AT_ONCE, &got);
    assert_memory_equal(&got, &want, sizeof(got));
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mode_gives_the_same_bits),
        cmocka_unit_test(the_memory_of_one_part_is_left),
        cmocka_unit_test(what_a_var_holds_stays),
        cmocka_unit_test(a_tape_ends_while_parts_are_away),
    };

    return cmocka_run_group_tests_name("part", tests, NULL, NULL);
}
