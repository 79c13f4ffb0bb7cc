/* test_tape.c - recording, dgrad and wgrad, recompute, and memory use. */
#include <stdlib.h>
#include <string.h>

#include "d9d/op/op.h"
#include "support/op_fixture.h"

enum { T = 5, H = 6, I = 8, BLOCKS = 2, PARAMS = 4 * BLOCKS };

/* --- a small residual network: x + down(swiglu(gate(norm(x)), up(norm(x)))), twice --------- */

typedef struct net {
    op_fixture f;
    d9d_param *p[PARAMS];
    d9d_tape_forward_fn block; /* how each block runs: plain or replayed */
    d9d_tensor x, seed;
} net;

static void fill(d9d_tensor *t, uint64_t stream)
{
    const d9d_rng r = {11, stream};
    float *p = d9d_tensor_data(t);

    for (int64_t i = 0; i < d9d_tensor_numel(t); i++)
        p[i] = d9d_rng_normal(r, (uint64_t)i);
}

static void net_open(net *n)
{
    static const char *const names[] = {"norm", "gate", "up", "down"};
    const d9d_shape shapes[] = {D9D_SHAPE(H), D9D_SHAPE(I, H), D9D_SHAPE(I, H), D9D_SHAPE(H, I)};

    memset(n, 0, sizeof(*n));
    assert_ok(d9d_device_open("cpu", &n->f.dev));
    assert_ok(d9d_tape_create(n->f.dev, &n->f.tape));
    for (int i = 0; i < PARAMS; i++) {
        n->p[i] = op_param(&n->f, names[i % 4], D9D_F32, shapes[i % 4]);
        fill(&n->p[i]->local.data, (uint64_t)i);
    }
    assert_ok(d9d_tensor_alloc(n->f.dev, D9D_F32, D9D_SHAPE(T, H), &n->x));
    assert_ok(d9d_tensor_alloc(n->f.dev, D9D_F32, D9D_SHAPE(T, H), &n->seed));
    fill(&n->x, 100);
    fill(&n->seed, 101);
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
    d9d_device_close(n->f.dev);
}

static uint64_t in_use(const net *n)
{
    return d9d_device_memory(n->f.dev).in_use;
}

/* self: the block's four parameters. */
static d9d_status block(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                        size_t n_out)
{
    d9d_param **p = self;
    d9d_var *h, *gate, *up;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_rms_norm(t, in[0], p[0], 1e-6f, false, &h));
    D9D_TRY(d9d_op_linear(t, h, p[1], &gate));
    D9D_TRY(d9d_op_linear(t, h, p[2], &up));
    D9D_TRY(d9d_op_glu(t, &(d9d_glu){0}, gate, up, &h));
    D9D_TRY(d9d_op_linear(t, h, p[3], &h));
    return d9d_op_add(t, in[0], h, out);
}

static d9d_status block_again(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    return d9d_tape_recompute(t, block, self, in, n_in, out, n_out);
}

static d9d_status block_twice_again(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                    d9d_var **out, size_t n_out)
{
    return d9d_tape_recompute(t, block_again, self, in, n_in, out, n_out);
}

/* Both blocks, and x once more at the end, so that its gradient is a sum of sums. */
static d9d_status net_forward(net *n, d9d_var *x, d9d_var **y)
{
    d9d_var *h = x;

    for (int i = 0; i < BLOCKS; i++)
        D9D_TRY(n->block(&n->p[4 * i], n->f.tape, &h, 1, &h, 1));
    D9D_TRY(d9d_op_add(n->f.tape, h, x, &h));
    return d9d_op_add(n->f.tape, x, h, y);
}

/* Gradients of x and of every parameter. */
typedef struct grads {
    float x[T * H], p[PARAMS][I * H];
} grads;

typedef enum back { AT_ONCE, HALVES, PUT_OFF } back;

static d9d_status net_backward(net *n, back mode, grads *g)
{
    const bool halves = mode == HALVES;
    d9d_tape *t = n->f.tape;
    d9d_tensor dx;
    d9d_var *x, *y;

    d9d_tape_reset(t);
    memset(g, 0, sizeof(*g));
    for (int i = 0; i < PARAMS; i++)
        n->p[i]->local.has_grad = false;
    D9D_TRY(d9d_tape_leaf(t, &n->x, true, &x));
    D9D_TRY(net_forward(n, x, &y));
    d9d_tape_release_since(t, 0, NULL, 0);
    if (mode == PUT_OFF)
        d9d_tape_defer_wgrad(t);
    D9D_TRY(d9d_tape_backward(t, &y, &n->seed, 1, halves ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
    if (halves)
        D9D_TRY(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    d9d_var_grad(x, &dx);
    assert_ok(d9d_tensor_to_f32(&dx, g->x));
    d9d_tensor_release(&dx);
    for (int i = 0; i < PARAMS; i++)
        if (n->p[i]->local.has_grad)
            assert_ok(d9d_tensor_to_f32(&n->p[i]->local.grad, g->p[i]));
    return D9D_OK;
}

static const d9d_tape_forward_fn ways[] = {block, block_again, block_twice_again};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static void all_ways_give_the_same_bits(void **state)
{
    net n;
    grads want, got;

    (void)state;
    net_open(&n);
    n.block = block;
    assert_ok(net_backward(&n, AT_ONCE, &want));
    for (int way = 0; way < WAYS; way++) {
        for (back mode = AT_ONCE; mode <= PUT_OFF; mode++) {
            n.block = ways[way];
            assert_ok(net_backward(&n, mode, &got));
            assert_memory_equal(&got, &want, sizeof(got));
        }
    }
    net_close(&n);
}

/* Blocks of 256 bytes: every array here fits one. */
static uint64_t arrays(uint64_t n)
{
    return n * 256;
}

/* On demand, gradients have memory from backward until they are cleared, and the same bits. */
static void gradients_on_demand_have_memory_while_they_are_needed(void **state)
{
    uint64_t bare;
    grads want, got;
    net n;

    (void)state;
    net_open(&n);
    n.block = block;
    assert_ok(net_backward(&n, AT_ONCE, &want));
    d9d_tape_reset(n.f.tape);
    for (int i = 0; i < PARAMS; i++) {
        d9d_tensor_release(&n.p[i]->local.grad);
        n.p[i]->local.shape = n.p[i]->spec.shape;
        n.p[i]->grad_on_demand = true;
        d9d_param_grad_clear(n.p[i]);
        assert_true(d9d_param_needs_grad(n.p[i]));
    }
    bare = in_use(&n);
    for (int way = 0; way < WAYS; way++)
        for (back mode = AT_ONCE; mode <= PUT_OFF; mode++) {
            n.block = ways[way];
            assert_ok(net_backward(&n, mode, &got));
            assert_memory_equal(&got, &want, sizeof(got));
            d9d_tape_reset(n.f.tape);
            assert_int_equal(in_use(&n), bare + arrays(PARAMS));
            for (int i = 0; i < PARAMS; i++)
                d9d_param_grad_clear(n.p[i]);
            assert_int_equal(in_use(&n), bare);
        }
    net_close(&n);
}

/* --- what is put off --------------------------------------------------------------- */

/* A node writes its letter: small in its input half, great in its weight half. */
typedef struct letter {
    char name;
    char *log;
} letter;

static d9d_status write_letter(const d9d_node *n, int shift)
{
    const letter *l = n->attr;

    l->log[strlen(l->log)] = (char)(l->name + shift);
    return D9D_OK;
}
static d9d_status write_small(d9d_node *n)
{
    return write_letter(n, 0);
}
static d9d_status write_great(d9d_node *n)
{
    return write_letter(n, 'A' - 'a');
}
static d9d_status write_late(d9d_node *n)
{
    return d9d_node_defer(n, write_small);
}
static d9d_status write_and_wait(d9d_node *n)
{
    D9D_TRY(write_small(n));
    return d9d_tape_run_deferred(n->tape);
}

/* Letters are nodes with two halves, digits come behind weight halves, < is a wait for others. */
static void put_off(const char *nodes, bool may, const char *want)
{
    static const d9d_node_ops both = {.name = "both", .dgrad = write_small, .wgrad = write_great},
                              late = {.name = "late", .bwd = write_late},
                              wait = {.name = "wait", .bwd = write_and_wait};
    char log[64] = "";
    d9d_device *dev;
    d9d_tape *t;
    d9d_node *n;

    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_tape_create(dev, &t));
    if (may)
        d9d_tape_defer_wgrad(t);
    for (size_t i = strlen(nodes); i-- > 0;) {
        const char c = nodes[i];

        assert_ok(d9d_tape_record_hook(t,
                                       c == '<'   ? &wait
                                       : c <= '9' ? &late
                                                  : &both,
                                       sizeof(letter), &n));
        *(letter *)n->attr = (letter){c, log};
    }
    assert_ok(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_FULL));
    assert_string_equal(log, want);
    d9d_tape_free(t);
    d9d_device_close(dev);
}

static void what_is_put_off_comes_in_its_order(void **state)
{
    (void)state;
    put_off("a1b<c2", false, "aA1bB<cC2");
    put_off("1ab2c<de3", true, "1abc<AB2CdeDE3");
    put_off("a1b2c", true, "abA1B2cC");
    put_off("<a<", true, "<a<A");
}

/* Frozen parameters, in every combination of the first block's. */
static void frozen_parameters_do_no_work(void **state)
{
    net n;
    grads all, got;

    (void)state;
    net_open(&n);
    n.block = block;
    assert_ok(net_backward(&n, false, &all));
    for (int mask = 0; mask < 16; mask++) {
        for (int way = 0; way < 2 * WAYS; way++) {
            n.block = ways[way / 2];
            for (int i = 0; i < 4; i++)
                n.p[i]->spec.trainable = mask >> i & 1;
            assert_ok(net_backward(&n, way & 1, &got));
            assert_memory_equal(got.x, all.x, sizeof(got.x));
            for (int i = 0; i < PARAMS; i++) {
                const bool trains = i >= 4 || (mask >> i & 1);

                assert_int_equal(n.p[i]->local.has_grad, trains);
                if (trains)
                    assert_memory_equal(got.p[i], all.p[i], sizeof(got.p[i]));
            }
        }
    }
    net_close(&n);
}

/* A step that repeats asks the system for nothing. */
static void steps_repeat_without_new_memory(void **state)
{
    uint64_t requests = 0, before;
    grads g;
    net n;

    (void)state;
    net_open(&n);
    n.block = block_again;
    before = in_use(&n);
    for (int step = 0; step < 4; step++) {
        assert_ok(net_backward(&n, step & 1, &g));
        d9d_tape_reset(n.f.tape);
        assert_int_equal(in_use(&n), before);
        if (step == 2)
            requests = d9d_device_memory(n.f.dev).requests;
    }
    assert_int_equal(d9d_device_memory(n.f.dev).requests, requests);
    net_close(&n);
}

/* --- memory in the middle ------------------------------------------------------------------ */

static void each_mode_keeps_what_it_must(void **state)
{
    d9d_tape *t;
    uint64_t before;
    d9d_var *x, *y;
    net n;

    (void)state;
    net_open(&n);
    t = n.f.tape;
    before = in_use(&n);
    assert_ok(d9d_tape_leaf(t, &n.x, true, &x));
    assert_ok(block(n.p, t, &x, 1, &y, 1));
    d9d_tape_release_since(t, 0, NULL, 0);
    /* inv; h of the norm for gate and up; gate, up; the product.  x is the test's. */
    assert_int_equal(in_use(&n) - before, arrays(5));
    assert_ok(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_DGRAD));
    /* inv, h, the product for the weight halves; gradients of down (the test's seed), gate, up,
     * the norm's output; and of x. */
    assert_int_equal(in_use(&n) - before, arrays(3 + 3 + 1));
    assert_ok(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    assert_int_equal(in_use(&n) - before, arrays(1)); /* the gradient of x */
    d9d_tape_reset(t);
    assert_int_equal(in_use(&n), before);

    assert_ok(d9d_tape_leaf(t, &n.x, true, &x));
    assert_ok(block(n.p, t, &x, 1, &y, 1));
    d9d_tape_release_since(t, 0, NULL, 0);
    assert_ok(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_FULL));
    assert_int_equal(in_use(&n) - before, arrays(1));

    d9d_tape_reset(t);
    assert_ok(d9d_tape_leaf(t, &n.x, true, &x));
    assert_ok(block_again(n.p, t, &x, 1, &y, 1));
    d9d_tape_release_since(t, 0, NULL, 0);
    assert_int_equal(in_use(&n), before); /* x is the test's */
    assert_ok(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_DGRAD));
    assert_int_equal(in_use(&n) - before, arrays(3 + 3 + 1));
    d9d_tape_reset(t); /* without the weight half */
    assert_int_equal(in_use(&n), before);
    net_close(&n);
}

/* A node of a parameter that saves one array for each half and one for both. */
static d9d_status give_seed(d9d_node *n)
{
    d9d_tensor dx = d9d_tensor_ref(&n->dout[0]);

    return d9d_node_accumulate_grad(n, 0, &dx);
}

static d9d_status no_weight(d9d_node *n)
{
    (void)n;
    return D9D_OK;
}

static const d9d_node_ops saver_ops = {.name = "saver", .dgrad = give_seed, .wgrad = no_weight};

static d9d_var *save_three(net *n, d9d_var *x)
{
    static const d9d_node_need needs[] = {D9D_NEED_DGRAD, D9D_NEED_WGRAD, D9D_NEED_BOTH};
    d9d_node *node;
    d9d_var *y;

    assert_ok(d9d_tape_output(n->f.tape, D9D_F32, D9D_SHAPE(T, H), &y));
    assert_ok(d9d_tape_record(n->f.tape, &saver_ops, &x, 1, &y, 1, n->p, 1, 0, &node));
    for (int i = 0; i < 3; i++) {
        d9d_tensor array;

        assert_ok(d9d_node_alloc(node, D9D_F32, D9D_SHAPE(3), &array));
        assert_int_equal(d9d_node_save(node, &array, needs[i]), i);
        d9d_tensor_release(&array);
    }
    d9d_tape_release_since(n->f.tape, 0, NULL, 0);
    return y;
}

static void what_no_half_reads_is_not_kept(void **state)
{
    uint64_t before;
    d9d_var *x, *y;
    net n;

    (void)state;
    net_open(&n);
    before = in_use(&n);
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, true, &x));
    y = save_three(&n, x);
    assert_int_equal(in_use(&n) - before, arrays(3));
    assert_ok(d9d_tape_backward(n.f.tape, &y, &n.seed, 1, D9D_BACKWARD_DGRAD));
    assert_int_equal(in_use(&n) - before, arrays(2)); /* the gradient of x is the seed */
    assert_ok(d9d_tape_backward(n.f.tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    assert_int_equal(in_use(&n), before);

    d9d_tape_reset(n.f.tape);
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, false, &x));
    (void)save_three(&n, x);
    assert_int_equal(in_use(&n) - before, arrays(2)); /* no input half */

    d9d_tape_reset(n.f.tape);
    n.p[0]->spec.trainable = n.p[1]->spec.trainable = false;
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, true, &x));
    (void)save_three(&n, x);
    assert_int_equal(in_use(&n) - before, arrays(2)); /* no weight half */

    d9d_tape_reset(n.f.tape);
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, true, &x));
    assert_ok(d9d_op_add(n.f.tape, x, x, &y));
    assert_ok(d9d_op_linear(n.f.tape, y, n.p[1], &y)); /* frozen: y is not needed again */
    d9d_tape_release_since(n.f.tape, 0, NULL, 0);
    assert_int_equal(in_use(&n), before);
    net_close(&n);
}

static void a_checkpoint_keeps_its_inputs_and_outputs(void **state)
{
    uint64_t before;
    d9d_var *x, *y;
    net n;

    (void)state;
    net_open(&n);
    before = in_use(&n);
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, true, &x));
    assert_ok(block_twice_again(n.p, n.f.tape, &x, 1, &y, 1));
    assert_int_equal(in_use(&n) - before, arrays(1)); /* y; x is the test's */
    assert_non_null(d9d_var_tensor(x)->storage);
    d9d_tape_release_since(n.f.tape, 0, NULL, 0);
    assert_int_equal(in_use(&n), before);
    net_close(&n);
}

static void without_recording_nothing_stays(void **state)
{
    d9d_tape *t;
    uint64_t before;
    d9d_var *x, *y;
    float a[T * H], b[T * H];
    net n;

    (void)state;
    net_open(&n);
    t = n.f.tape;
    before = in_use(&n);
    n.block = block;
    assert_ok(d9d_tape_leaf(t, &n.x, true, &x));
    assert_ok(net_forward(&n, x, &y));
    assert_true(d9d_var_needs_grad(y));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), a));
    for (int way = 0; way < WAYS; way++) {
        size_t mark;

        d9d_tape_reset(t);
        d9d_tape_set_recording(t, false);
        n.block = ways[way];
        assert_ok(d9d_tape_leaf(t, &n.x, true, &x));
        mark = d9d_tape_mark(t);
        assert_ok(net_forward(&n, x, &y));
        assert_false(d9d_var_needs_grad(y));
        d9d_tape_release_since(t, mark, &y, 1);
        assert_int_equal(in_use(&n) - before, arrays(1));
        assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), b));
        assert_memory_equal(a, b, sizeof(a));
        /* What was released says what it was. */
        d9d_tape_release_since(t, mark, NULL, 0);
        assert_null(d9d_var_tensor(y)->storage);
        assert_true(d9d_shape_equal(&d9d_var_tensor(y)->shape, &D9D_SHAPE(T, H)));
        assert_int_equal(in_use(&n), before);
        assert_non_null(d9d_var_tensor(x)->storage);
    }
    net_close(&n);
}

static void memory_that_ends_anywhere_leaves_a_tape_to_free(void **state)
{
    grads want, got;
    net n;

    (void)state;
    net_open(&n);
    n.block = block;
    assert_ok(net_backward(&n, false, &want));
    for (int way = 0; way < 2 * WAYS; way++) {
        uint64_t before, limit;

        d9d_tape_reset(n.f.tape);
        before = in_use(&n);
        n.block = ways[way / 2];
        for (limit = before;; limit += 256) {
            d9d_status st;

            d9d_device_set_limit(n.f.dev, limit);
            st = net_backward(&n, way & 1, &got);
            d9d_tape_reset(n.f.tape);
            assert_int_equal(in_use(&n), before);
            if (st == D9D_OK)
                break;
            assert_string_equal(d9d_status_name(st), "D9D_EOOM");
        }
        assert_true(limit > before + arrays(5));
        assert_memory_equal(&got, &want, sizeof(got));
    }
    d9d_device_set_limit(n.f.dev, UINT64_MAX);
    net_close(&n);
}

/* --- sums of gradients ------------------------------------------------------------------------ */

static d9d_var *leaf_of(net *n, const d9d_tensor *x)
{
    d9d_var *v;

    assert_ok(d9d_tape_leaf(n->f.tape, x, true, &v));
    return v;
}

static void expect_multiple(const d9d_var *v, const d9d_tensor *seed, float times)
{
    float got[T * H], s[T * H];
    d9d_tensor g;

    d9d_var_grad(v, &g);
    assert_ok(d9d_tensor_to_f32(&g, got));
    assert_ok(d9d_tensor_to_f32(seed, s));
    for (int i = 0; i < T * H; i++)
        assert_float_equal(got[i], times * s[i], 0);
    d9d_tensor_release(&g);
}

/* One array goes to both inputs of add, through reshapes, many times; none of them is spoilt. */
static void shared_gradients_are_not_written_to(void **state)
{
    d9d_var *a, *b, *h, *flat, *y;
    float before[T * H], after[T * H];
    net n;

    (void)state;
    net_open(&n);
    a = leaf_of(&n, &n.x);
    b = leaf_of(&n, &n.x);
    assert_ok(d9d_op_add(n.f.tape, a, b, &h)); /* a + b */
    assert_ok(d9d_op_reshape(n.f.tape, h, D9D_SHAPE(T * H), &flat));
    assert_ok(d9d_op_reshape(n.f.tape, flat, D9D_SHAPE(T, H), &y));
    assert_ok(d9d_op_add(n.f.tape, y, h, &y)); /* 2a + 2b */
    assert_ok(d9d_op_add(n.f.tape, y, b, &y)); /* 2a + 3b */
    assert_ok(d9d_op_add(n.f.tape, b, y, &y)); /* 2a + 4b */
    assert_ok(d9d_op_add(n.f.tape, y, y, &y)); /* 4a + 8b */
    assert_ok(d9d_tensor_to_f32(&n.seed, before));
    assert_ok(d9d_tape_backward(n.f.tape, &y, &n.seed, 1, D9D_BACKWARD_FULL));
    expect_multiple(a, &n.seed, 4);
    expect_multiple(b, &n.seed, 8);
    assert_ok(d9d_tensor_to_f32(&n.seed, after));
    assert_memory_equal(before, after, sizeof(before));
    net_close(&n);
}

static void roots_may_be_many_leaves_or_useless(void **state)
{
    d9d_var *a, *fixed, *y, *none, *roots[4];
    d9d_tensor seeds[4], g;
    net n;

    (void)state;
    net_open(&n);
    a = leaf_of(&n, &n.x);
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, false, &fixed));
    assert_ok(d9d_op_add(n.f.tape, a, fixed, &y));
    assert_ok(d9d_op_add(n.f.tape, fixed, fixed, &none)); /* not recorded */
    assert_false(d9d_var_needs_grad(none));
    roots[0] = a, roots[1] = y, roots[2] = none, roots[3] = y;
    for (int i = 0; i < 4; i++)
        seeds[i] = n.seed;
    assert_ok(d9d_tape_backward(n.f.tape, roots, seeds, 4, D9D_BACKWARD_FULL));
    expect_multiple(a, &n.seed, 3);
    d9d_var_grad(fixed, &g);
    assert_null(g.storage);
    d9d_var_grad(y, &g); /* inner: dropped when its node had run */
    assert_null(g.storage);
    net_close(&n);
}

static void what_no_gradient_reaches_has_none(void **state)
{
    d9d_var *a, *b, *y, *z;
    d9d_tensor g;
    net n;

    (void)state;
    net_open(&n);
    a = leaf_of(&n, &n.x);
    b = leaf_of(&n, &n.x);
    assert_ok(block(n.p, n.f.tape, &b, 1, &z, 1));
    assert_ok(d9d_op_add(n.f.tape, a, a, &y));
    assert_ok(d9d_tape_backward(n.f.tape, &y, &n.seed, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(b, &g);
    assert_null(g.storage);
    for (int i = 0; i < PARAMS; i++)
        assert_false(n.p[i]->local.has_grad);
    net_close(&n);
}

/* --- checkpoints of odd functions ------------------------------------------------------------ */

/* in: a, b, a again; out: a + b, an input, a + b once more. */
static d9d_status odd(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    (void)self, (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_add(t, in[0], in[1], &out[0]));
    D9D_TRY(d9d_op_add(t, out[0], in[2], &out[0]));
    out[1] = in[1];
    out[2] = out[0];
    return D9D_OK;
}

static void a_checkpoint_may_return_its_inputs_and_repeat_itself(void **state)
{
    net n;

    (void)state;
    net_open(&n);
    for (int halves = 0; halves < 2; halves++) {
        d9d_var *in[3], *out[3];
        const d9d_tensor seeds[3] = {n.seed, n.seed, n.seed};

        d9d_tape_reset(n.f.tape);
        in[0] = leaf_of(&n, &n.x);
        in[1] = leaf_of(&n, &n.x);
        in[2] = in[0];
        assert_ok(d9d_tape_recompute(n.f.tape, odd, NULL, in, 3, out, 3));
        assert_ptr_not_equal(out[1], in[1]);
        assert_ok(d9d_tape_backward(n.f.tape, out, seeds, 3,
                                    halves ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
        expect_multiple(in[0], &n.seed, 4);
        expect_multiple(in[1], &n.seed, 3);
    }
    net_close(&n);
}

/* Only the second output gets a gradient. */
static void outputs_without_gradient_are_passed_over(void **state)
{
    d9d_var *in[3], *out[3];
    net n;

    (void)state;
    net_open(&n);
    in[0] = in[2] = leaf_of(&n, &n.x);
    in[1] = leaf_of(&n, &n.x);
    assert_ok(d9d_tape_recompute(n.f.tape, odd, NULL, in, 3, out, 3));
    assert_ok(d9d_tape_backward(n.f.tape, &out[1], &n.seed, 1, D9D_BACKWARD_FULL));
    expect_multiple(in[1], &n.seed, 1);
    net_close(&n);
}

static void a_checkpoint_without_gradients_records_nothing(void **state)
{
    d9d_var *x, *y;
    net n;

    (void)state;
    net_open(&n);
    for (int i = 0; i < 4; i++)
        n.p[i]->spec.trainable = false;
    assert_ok(d9d_tape_leaf(n.f.tape, &n.x, false, &x));
    assert_ok(block_twice_again(n.p, n.f.tape, &x, 1, &y, 1));
    assert_false(d9d_var_needs_grad(y));
    assert_ok(d9d_tape_backward(n.f.tape, &y, &n.seed, 1, D9D_BACKWARD_FULL));
    net_close(&n);
}

/* Parameters alone: the replay waits for the weight half. */
static void a_checkpoint_of_fixed_inputs_trains_its_parameters(void **state)
{
    float want[PARAMS][I * H], got[I * H];
    net n;

    (void)state;
    net_open(&n);
    for (int way = 0; way < 2 * WAYS; way++) {
        d9d_var *x, *y;

        d9d_tape_reset(n.f.tape);
        for (int i = 0; i < PARAMS; i++)
            n.p[i]->local.has_grad = false;
        assert_ok(d9d_tape_leaf(n.f.tape, &n.x, false, &x));
        assert_ok(ways[way / 2](n.p, n.f.tape, &x, 1, &y, 1));
        assert_ok(d9d_tape_backward(n.f.tape, &y, &n.seed, 1,
                                    way & 1 ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
        if (way & 1)
            assert_ok(d9d_tape_backward(n.f.tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
        for (int i = 0; i < 4; i++) {
            assert_true(n.p[i]->local.has_grad);
            assert_ok(d9d_tensor_to_f32(&n.p[i]->local.grad, way == 0 ? want[i] : got));
            if (way > 0)
                assert_memory_equal(got, want[i],
                                    4 * (size_t)d9d_tensor_numel(&n.p[i]->local.grad));
        }
    }
    net_close(&n);
}

/* Fails when it is called for the n-th time. */
static d9d_status fails_at(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                           size_t n_out)
{
    int *left = self;

    (void)n_in, (void)n_out;
    D9D_TRY(d9d_op_add(t, in[0], in[0], out));
    return --*left == 0 ? D9D_FAIL(D9D_EIO, "this function fails") : D9D_OK;
}

static void a_function_that_fails_is_reported(void **state)
{
    int now = 1, later = 2;
    d9d_var *x, *y = NULL;
    net n;

    (void)state;
    net_open(&n);
    x = leaf_of(&n, &n.x);
    assert_fails(d9d_tape_recompute(n.f.tape, fails_at, &now, &x, 1, &y, 1), D9D_EIO,
                 "this function fails");
    assert_null(y);
    assert_ok(d9d_op_add(n.f.tape, x, x, &y));
    assert_true(d9d_var_needs_grad(y)); /* still recording */
    assert_ok(d9d_tape_recompute(n.f.tape, fails_at, &later, &x, 1, &y, 1));
    assert_fails(d9d_tape_backward(n.f.tape, &y, &n.seed, 1, D9D_BACKWARD_FULL), D9D_EIO,
                 "this function fails");
    d9d_tape_reset(n.f.tape);
    net_close(&n);
}

static void limits_are_reported(void **state)
{
    d9d_var *in[D9D_NODE_MAX + 1], *out[D9D_NODE_MAX + 1];
    net n;

    (void)state;
    net_open(&n);
    for (int i = 0; i <= D9D_NODE_MAX; i++)
        in[i] = leaf_of(&n, &n.x);
    assert_fails(d9d_tape_recompute(n.f.tape, odd, NULL, in, 9, out, 3), D9D_EINVAL,
                 "recompute: 9 inputs and 3 outputs, at most 8 of each");
    net_close(&n);
}

/* --- what is not allowed ------------------------------------------------------------------- */

static void backward_runs_once(void **state)
{
    static const char once[] = "full backward: the tape went backward already";
    d9d_var *x, *y;
    d9d_tape *t;
    net n;

    (void)state;
    net_open(&n);
    t = n.f.tape;
    x = leaf_of(&n, &n.x);
    assert_ok(d9d_op_add(t, x, x, &y));
    assert_fails(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD), D9D_EINVAL,
                 "weight backward: no input backward (dgrad) came before it");
    assert_ok(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_FULL));
    assert_fails(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_FULL), D9D_EINVAL, once);
    assert_fails(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD), D9D_EINVAL,
                 "weight backward: the tape went backward already");
    assert_fails(d9d_op_add(t, x, x, &y), D9D_EINVAL,
                 "add: the tape went backward; reset it before recording again");
    d9d_tape_reset(t);
    x = leaf_of(&n, &n.x);
    assert_ok(d9d_op_add(t, x, x, &y));
    assert_ok(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_DGRAD));
    assert_fails(d9d_tape_backward(t, &y, &n.seed, 1, D9D_BACKWARD_DGRAD), D9D_EINVAL,
                 "input backward: the input backward (dgrad) has run; only the weight backward "
                 "(wgrad) may follow");
    assert_ok(d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
    net_close(&n);
}

static void seeds_must_fit_their_roots(void **state)
{
    d9d_tensor flat, none = {0};
    d9d_var *x, *y;
    net n;

    (void)state;
    net_open(&n);
    x = leaf_of(&n, &n.x);
    assert_ok(d9d_op_add(n.f.tape, x, x, &y));
    flat = d9d_tensor_reshape(&n.seed, D9D_SHAPE(T * H));
    assert_fails(d9d_tape_backward(n.f.tape, &y, &flat, 1, D9D_BACKWARD_FULL), D9D_EINVAL,
                 "backward: root 0 is float32 [5, 6], its gradient float32 [30]");
    assert_fails(d9d_tape_backward(n.f.tape, &y, &none, 1, D9D_BACKWARD_FULL), D9D_EINVAL,
                 "backward: the gradient of root 0 has no storage");
    d9d_tensor_release(&flat);
    assert_ok(d9d_tape_backward(n.f.tape, &y, &n.seed, 1, D9D_BACKWARD_FULL));
    net_close(&n);
}

/* One table is embedding and head: two nodes add to one gradient, in the same order in all modes.
 */
static void a_tied_parameter_is_one_sum(void **state)
{
    static const int32_t ids[T] = {0, 3, 3, 6, 1}, targets[T] = {3, 3, 6, 1, 0};
    float want[7 * H], got[7 * H], one[T] = {1, 2, 3, 4, 5};
    d9d_tensor which, target, seed;
    d9d_param *table;
    net n;

    (void)state;
    net_open(&n);
    table = op_param(&n.f, "table", D9D_F32, D9D_SHAPE(7, H));
    fill(&table->local.data, 55);
    assert_ok(d9d_tensor_from_host(n.f.dev, D9D_I32, D9D_SHAPE(T), ids, &which));
    assert_ok(d9d_tensor_from_host(n.f.dev, D9D_I32, D9D_SHAPE(T), targets, &target));
    assert_ok(d9d_tensor_from_host(n.f.dev, D9D_F32, D9D_SHAPE(T), one, &seed));
    for (int way = 0; way < 2 * WAYS; way++) {
        d9d_var *x, *y;

        d9d_tape_reset(n.f.tape);
        table->local.has_grad = false;
        assert_ok(d9d_op_embedding(n.f.tape, &which, &table, 1, &x));
        assert_ok(ways[way / 2](n.p, n.f.tape, &x, 1, &x, 1));
        assert_ok(d9d_op_linear_cross_entropy(n.f.tape, x, &table, 1, &target,
                                              &(d9d_op_vocab_opts){.ignore = -100}, &y));
        assert_ok(d9d_tape_backward(n.f.tape, &y, &seed, 1,
                                    way & 1 ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL));
        if (way & 1)
            assert_ok(d9d_tape_backward(n.f.tape, NULL, NULL, 0, D9D_BACKWARD_WGRAD));
        assert_ok(d9d_tensor_to_f32(&table->local.grad, way == 0 ? want : got));
        if (way > 0)
            assert_memory_equal(got, want, sizeof(got));
    }
    d9d_tensor_release(&which);
    d9d_tensor_release(&target);
    d9d_tensor_release(&seed);
    net_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ways_give_the_same_bits),
        cmocka_unit_test(what_is_put_off_comes_in_its_order),
        cmocka_unit_test(gradients_on_demand_have_memory_while_they_are_needed),
        cmocka_unit_test(frozen_parameters_do_no_work),
        cmocka_unit_test(steps_repeat_without_new_memory),
        cmocka_unit_test(each_mode_keeps_what_it_must),
        cmocka_unit_test(what_no_half_reads_is_not_kept),
        cmocka_unit_test(a_checkpoint_keeps_its_inputs_and_outputs),
        cmocka_unit_test(without_recording_nothing_stays),
        cmocka_unit_test(memory_that_ends_anywhere_leaves_a_tape_to_free),
        cmocka_unit_test(shared_gradients_are_not_written_to),
        cmocka_unit_test(roots_may_be_many_leaves_or_useless),
        cmocka_unit_test(what_no_gradient_reaches_has_none),
        cmocka_unit_test(a_checkpoint_may_return_its_inputs_and_repeat_itself),
        cmocka_unit_test(outputs_without_gradient_are_passed_over),
        cmocka_unit_test(a_checkpoint_without_gradients_records_nothing),
        cmocka_unit_test(a_checkpoint_of_fixed_inputs_trains_its_parameters),
        cmocka_unit_test(a_function_that_fails_is_reported),
        cmocka_unit_test(limits_are_reported),
        cmocka_unit_test(backward_runs_once),
        cmocka_unit_test(seeds_must_fit_their_roots),
        cmocka_unit_test(a_tied_parameter_is_one_sum),
    };

    return cmocka_run_group_tests_name("tape", tests, NULL, NULL);
}
