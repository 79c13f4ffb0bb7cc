/* gated_delta_driver.c - launched by tests/multirank/gated_delta.bats: a gated delta net with its
 * heads sharded over all ranks, compared with the whole net on each rank: output and gradients. */
#include "support/ranks.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/nn/block.h"
#include "d9d/parallel/parallel_plan.h"

enum { B = 2, S = 72, T = B * S, H = 20 };

static double exact(void)
{
    return unit_device_tolerance(2e-6, 1e-5);
}

/* Documents of 5, 67, 60 and 12 tokens. */
static const d9d_segment documents[] = {
    {0, 5, 0, 5}, {5, 67, 5, 67}, {72, 60, 72, 60}, {132, 12, 132, 12}};

/* The net of this rank: whole or sharded. */
typedef struct net {
    d9d_groups cut;
    d9d_block_gated_delta block;
    d9d_tensor y, dx;
} net;

#define SUMMED (D9D_AXES_REPLICATE | D9D_AXIS(TP))
static const d9d_param_sharding dense = {0, 0, D9D_AXES_SHARD, SUMMED};
static const d9d_param_sharding columns = {D9D_AXIS(TP), 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE};
static const d9d_param_sharding rows = {D9D_AXIS(TP), 1, D9D_AXES_SHARD, D9D_AXES_REPLICATE};

/* All weights but the head norm and the output projection have heads along dimension 0. */
static d9d_status place(void *arg, d9d_param *p)
{
    const d9d_param_sharding *sharding = strstr(p->name, "o_proj.") != NULL     ? &rows
                                         : strstr(p->name, "out_norm.") != NULL ? &dense
                                                                                : &columns;

    return d9d_param_sharding_apply(p, arg, sharding);
}

static void net_open(const ranks *w, const d9d_block_gated_delta_shape *shape, bool part, net *n)
{
    const d9d_block_opts opts = {.dtype = D9D_F32, .groups = &n->cut};

    *n = (net){.cut = {0}};
    assert_ok(d9d_block_gated_delta_init(&n->block, &opts, shape));
    assert_ok(d9d_module_bind(&n->block.module));
    if (part) {
        assert_ok(d9d_mesh_group(w->mesh, D9D_AXIS(TP), &n->cut.tp));
        assert_ok(d9d_module_each(&n->block.module, place, w->mesh));
    }
    assert_ok(d9d_module_materialise(&n->block.module, w->dev, true));
    assert_ok(d9d_module_reset(&n->block.module, 5));
}

static void net_close(net *n)
{
    d9d_module_release(&n->block.module);
    d9d_tensor_release(&n->y);
    d9d_tensor_release(&n->dx);
}

static d9d_status sum_grad(void *arg, d9d_param *p)
{
    const ranks *w = arg;

    return d9d_comm_all_reduce(p->placement.grad_group, w->dev->stream, p->name, D9D_F32,
                               d9d_tensor_data(&p->local.grad), d9d_tensor_numel(&p->local.grad),
                               D9D_COMM_SUM);
}

/* Forward and backward of the tokens that this rank has between blocks. */
static void net_learn(const ranks *w, net *n, bool packed)
{
    const int there = d9d_comm_size(n->cut.tp);
    const int64_t each = T / there, first = there > 1 ? w->rank * each : 0;
    d9d_tensor all = ranks_numbers(w, D9D_F32, D9D_SHAPE(T, H), 1);
    d9d_tensor dall = ranks_numbers(w, D9D_F32, D9D_SHAPE(T, H), 2);
    const d9d_shape shape = there > 1 ? D9D_SHAPE(each, H) : D9D_SHAPE(B, S, H);
    d9d_tensor part = d9d_tensor_rows(&all, first, each), x = d9d_tensor_reshape(&part, shape);
    d9d_tensor dpart = d9d_tensor_rows(&dall, first, each), dy = d9d_tensor_reshape(&dpart, shape);
    d9d_tensor positions, segments;
    d9d_var *in, *y;
    d9d_tape *t;

    assert_ok(d9d_tensor_alloc(w->dev, D9D_I32, D9D_SHAPE(B, S), &positions));
    assert_ok(d9d_tensor_from_host(w->dev, D9D_I32, D9D_SHAPE(4, 4), documents, &segments));
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, true, &in));
    assert_ok(d9d_block_gated_delta_forward(&n->block, t, in, &positions, packed ? &segments : NULL,
                                            NULL, in, &y));
    n->y = d9d_tensor_ref(d9d_var_tensor(y));
    assert_ok(d9d_tape_backward(t, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &n->dx);
    d9d_tape_free(t);
    assert_ok(d9d_module_each(&n->block.module, sum_grad, (void *)(uintptr_t)w));

    d9d_tensor *parts[] = {&all, &part, &x, &dall, &dpart, &dy, &positions, &segments};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        d9d_tensor_release(parts[i]);
}

/* This rank's shard of a matrix or vector. */
static float *part_of(const d9d_param *p, const float *whole)
{
    const int64_t cols = p->local.shape.ndim > 1 ? p->local.shape.dim[1] : 1;
    const int64_t stride = p->spec.shape.ndim > 1 ? p->spec.shape.dim[1] : 1;
    float *part = calloc((size_t)(p->local.shape.dim[0] * cols) + 1, sizeof(*part));

    assert_non_null(part);
    for (int64_t i = 0; i < p->local.shape.dim[0]; i++)
        memcpy(part + i * cols,
               whole + (p->local.offset[0] + i) * stride + (stride > 1 ? p->local.offset[1] : 0),
               (size_t)cols * sizeof(float));
    return part;
}

static d9d_status compare(void *arg, d9d_param *p)
{
    net *whole = arg;
    const d9d_param *all = d9d_module_find(&whole->block.module, p->name);
    float *got = ranks_host(&p->local.grad), *host = ranks_host(&all->local.grad),
          *want = part_of(p, host);

    ranks_close_to(p->name, got, want, d9d_tensor_numel(&p->local.grad), exact());
    free(got);
    free(host);
    free(want);
    return D9D_OK;
}

/* This rank's rows. */
static void compare_rows(const ranks *w, const char *what, const d9d_tensor *got,
                         const d9d_tensor *whole)
{
    const int64_t n = d9d_tensor_numel(got);
    float *a = ranks_host(got), *b = ranks_host(whole);

    ranks_close_to(what, a, b + (n < (int64_t)T * H ? w->rank * n : 0), n, exact());
    free(a);
    free(b);
}

static void heads_in_parts_are_the_net(void **state)
{
    const ranks *w = *state;
    const d9d_block_gated_delta_shape shape = {.hidden = H,
                                               .key_heads = w->size,
                                               .value_heads = 2 * (int64_t)w->size,
                                               .key_dim = 6,
                                               .value_dim = 5,
                                               .conv_width = 4,
                                               .norm_eps = 1e-6f};

    for (int packed = 0; packed < 2; packed++) {
        net whole, part;

        net_open(w, &shape, false, &whole);
        net_open(w, &shape, true, &part);
        net_learn(w, &whole, packed);
        net_learn(w, &part, packed);
        compare_rows(w, "y", &part.y, &whole.y);
        compare_rows(w, "dx", &part.dx, &whole.dx);
        assert_ok(d9d_module_each(&part.block.module, compare, &whole));
        net_close(&whole);
        net_close(&part);
    }
}

/* Rejected: ranks that do not divide the heads, rows in chunks. */
static void what_cannot_be_is_refused(void **state)
{
    const ranks *w = *state;
    const d9d_block_opts opts = {.dtype = D9D_F32};
    d9d_block_gated_delta_shape shape = {.hidden = H,
                                         .key_heads = 1,
                                         .value_heads = 1,
                                         .key_dim = 6,
                                         .value_dim = 5,
                                         .conv_width = 4,
                                         .norm_eps = 1e-6f};
    d9d_groups cut = {.tp = w->comm};
    d9d_tensor x = ranks_numbers(w, D9D_F32, D9D_SHAPE(T, H), 1), positions;
    d9d_block_gated_delta block;
    d9d_var *in, *y;
    d9d_tape *t;

    shape.value_heads = 3, shape.key_heads = 2;
    assert_fails(d9d_block_gated_delta_init(&block, &opts, &shape), D9D_EINVAL,
                 "gated delta net: 3 value heads are not a multiple of 2 key heads");
    shape.key_heads = 1;
    assert_ok(d9d_block_gated_delta_init(&block, &opts, &shape));
    assert_ok(d9d_tensor_alloc(w->dev, D9D_I32, D9D_SHAPE(B, S), &positions));
    assert_ok(d9d_tape_create(w->dev, &t));
    assert_ok(d9d_tape_leaf(t, &x, false, &in));
    block.groups = &cut;
    if (w->size > 1)
        assert_fails_like(
            d9d_block_gated_delta_forward(&block, t, in, &positions, NULL, NULL, NULL, &y),
            D9D_ECONFIG, "tensor-parallel ranks do not divide 1 key heads");
    cut = (d9d_groups){.cp = w->comm};
    if (w->size > 1)
        assert_fails_like(
            d9d_block_gated_delta_forward(&block, t, in, &positions, NULL, NULL, NULL, &y),
            D9D_ENOTSUP, "ranks) is not supported, because the state runs");
    d9d_tape_free(t);
    d9d_tensor_release(&positions);
    d9d_tensor_release(&x);
    d9d_module_release(&block.module);
}

int main(void)
{
    ranks w;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(heads_in_parts_are_the_net, &w),
        cmocka_unit_test_prestate(what_cannot_be_is_refused, &w),
    };

    ranks_open_tensor(&w);
    return ranks_run(&w, "delta net", tests, sizeof(tests) / sizeof(*tests));
}
