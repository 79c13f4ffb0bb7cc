/* test_parallel_plan.c - which models can be sharded over which meshes; tests/multirank/ checks the
 * results. */
#include "support/unit.h"

#include <stdio.h>

#include "d9d/device/simulated.h"
#include "d9d/parallel/parallel_plan.h"
#include "support/family.h"
#include "support/small_adapters.h"

/* A model of two layers with these heads and, unless 0, experts, over a mesh. */
static d9d_status check_model(int64_t heads, int64_t kv_heads, int64_t experts,
                              const d9d_parallel_degrees *d)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    d9d_arena a = {0};
    d9d_family_config c;
    d9d_model *m;
    d9d_status st;
    char more[160] = "\"model_type\": \"qwen3\"";

    if (experts > 0)
        (void)snprintf(more, sizeof(more),
                       "\"model_type\": \"qwen3_moe\", \"num_experts\": %lld, "
                       "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": 5",
                       (long long)experts);
    assert_ok(family_make(&a, &c,
                          "{%s, \"hidden_size\": 6, \"num_hidden_layers\": 2, "
                          "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, "
                          "\"head_dim\": 2, \"vocab_size\": 7, \"intermediate_size\": 5}",
                          more, (long long)heads, (long long)kv_heads));
    assert_ok(d9d_family_create(&c, D9D_WHOLE_MODEL, &options, &m));
    st = d9d_parallel_plan_check_blocks(m, d);
    d9d_model_free(m);
    d9d_arena_release(&a);
    return st;
}

static d9d_status check(int64_t heads, int64_t kv_heads, int64_t tp)
{
    return check_model(heads, kv_heads, 0,
                       &(d9d_parallel_degrees){1, 1, 1, 1, 1, tp, 1, 1, D9D_CP_ALL_GATHER});
}

static void heads_are_dealt_over_ranks(void **state)
{
    (void)state;
    assert_ok(check(12, 4, 1));
    assert_ok(check(12, 4, 2));
    assert_ok(check(12, 4, 4));
    assert_ok(check(12, 4, 12)); /* three ranks have one key-value head */
    assert_ok(check(12, 1, 6));
    assert_fails(check(12, 4, 5), D9D_ECONFIG,
                 "mesh.tensor_parallel 5 does not divide num_attention_heads 12");
    assert_fails(check(12, 4, 24), D9D_ECONFIG,
                 "mesh.tensor_parallel 24 does not divide num_attention_heads 12");
    assert_fails(
        check(12, 4, 6), D9D_ECONFIG,
        "mesh.tensor_parallel 6 neither divides num_key_value_heads 4 nor is a multiple of "
        "it");
}

static d9d_status check_exchange(int64_t heads, int64_t kv_heads, int64_t cp, int64_t tp)
{
    return check_model(heads, kv_heads, 0,
                       &(d9d_parallel_degrees){1, 1, 1, 1, cp, tp, 1, 1, D9D_CP_ALL_TO_ALL});
}

/* By all-to-all, the ranks of context parallelism divide the heads of a tensor-parallel rank. */
static void heads_are_exchanged_over_ranks(void **state)
{
    (void)state;
    assert_ok(check_exchange(12, 4, 1, 1));
    assert_ok(check_exchange(12, 4, 2, 1));
    assert_ok(check_exchange(12, 4, 2, 2));
    assert_ok(check_exchange(12, 4, 12, 1));
    assert_ok(check_exchange(12, 4, 3, 4));
    assert_ok(
        check_model(12, 4, 0, &(d9d_parallel_degrees){1, 1, 1, 2, 5, 2, 1, 1, D9D_CP_HYBRID}));
    assert_fails(
        check_model(12, 4, 0, &(d9d_parallel_degrees){1, 1, 1, 5, 2, 1, 1, 1, D9D_CP_HYBRID}),
        D9D_ECONFIG,
        "mesh.context_parallel_method \"all_to_all+all_gather\": 5 ranks of context "
        "parallelism x tensor_parallel 1 do not divide num_attention_heads 12");
    assert_fails(check_exchange(12, 4, 5, 1), D9D_ECONFIG,
                 "mesh.context_parallel_method \"all_to_all\": 5 ranks of context parallelism x "
                 "tensor_parallel 1 do not divide num_attention_heads 12");
    assert_fails(check_exchange(12, 4, 3, 2), D9D_ECONFIG,
                 "mesh.context_parallel_method \"all_to_all\": 3 ranks of context parallelism x "
                 "tensor_parallel 2 neither divide num_key_value_heads 4 nor are a multiple of it");
}

static d9d_status check_experts(int64_t experts, int64_t ep)
{
    return check_model(4, 2, experts,
                       &(d9d_parallel_degrees){1, 1, ep, 1, 1, 1, ep, 1, D9D_CP_ALL_GATHER});
}

static void experts_are_dealt_over_ranks(void **state)
{
    (void)state;
    assert_ok(check_experts(0, 1));
    assert_ok(check_experts(6, 1));
    assert_ok(check_experts(6, 3));
    assert_ok(check_experts(6, 6));
    assert_fails(check_experts(6, 4), D9D_ECONFIG,
                 "mesh.expert_parallel 4 does not divide num_experts 6");
    assert_fails(check_experts(6, 12), D9D_ECONFIG,
                 "mesh.expert_parallel 12 does not divide num_experts 6");
    assert_fails(check_experts(0, 2), D9D_ECONFIG,
                 "mesh.expert_parallel is 2, but the model has no experts");
}

/* The placement of a parameter of this shape and style on rank `rank` of a simulated mesh. */
static d9d_param_placement place(const d9d_parallel_degrees *d, int rank, d9d_shape shape,
                                 d9d_parallel_style style, int *shards, int *replicas)
{
    const d9d_mesh_opts opts = {0};
    d9d_param_placement out;
    d9d_bootstrap *b;
    d9d_device *dev;
    d9d_model m = {.has_experts = true};
    d9d_module module;
    d9d_mesh *mesh;
    d9d_param p;

    assert_ok(d9d_device_simulate("h100", &dev));
    assert_ok(d9d_bootstrap_simulate(rank, (int)d9d_parallel_degrees_ranks(d), &b));
    assert_ok(d9d_mesh_open(b, d, "sim", dev->stream, &opts, &mesh));
    d9d_module_init(&module);
    assert_ok(d9d_module_param(&module, "w", &p, D9D_BF16, shape, D9D_INIT_ONES, 0));
    p.spec.parallel.style = style;
    assert_ok(d9d_module_bind(&module));
    m.module = &module;
    assert_ok(d9d_parallel_plan_apply_blocks(mesh, &m));
    out = p.placement;
    *shards = out.shard_group == NULL ? 1 : d9d_comm_size(out.shard_group);
    *replicas = out.grad_group == NULL ? 1 : d9d_comm_size(out.grad_group);
    d9d_module_release(&module);
    d9d_mesh_close(mesh);
    d9d_bootstrap_close(b);
    d9d_device_close(dev);
    return out;
}

/* Two hosts or two thousand: experts are gathered inside a replica, as all other weights are. */
static void experts_are_sharded_inside_a_replica(void **state)
{
    const d9d_parallel_degrees hsdp = {1, 64, 8, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER},
                               fsdp = {1, 1, 512, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER},
                               ddp = {1, 8, 1, 1, 1, 1, 4, 1, D9D_CP_ALL_GATHER};
    int shards, replicas;

    (void)state;
    (void)place(&hsdp, 100, D9D_SHAPE(128, 768, 2048), D9D_EXPERT_PARALLEL, &shards, &replicas);
    assert_int_equal(shards, 2);
    assert_int_equal(replicas, 64);
    (void)place(&hsdp, 100, D9D_SHAPE(2048, 2048), D9D_REPLICATED, &shards, &replicas);
    assert_int_equal(shards, 8);
    assert_int_equal(replicas, 64);
    (void)place(&fsdp, 100, D9D_SHAPE(128, 768, 2048), D9D_EXPERT_PARALLEL, &shards, &replicas);
    assert_int_equal(shards, 128);
    assert_int_equal(replicas, 1);
    (void)place(&ddp, 5, D9D_SHAPE(128, 768, 2048), D9D_EXPERT_PARALLEL, &shards, &replicas);
    assert_int_equal(shards, 1);
    assert_int_equal(replicas, 2);
}

static int dim_of(int64_t ranks, d9d_shape shape)
{
    const d9d_parallel_degrees d = {1, 1, ranks, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    int shards, replicas;

    return place(&d, 0, shape, D9D_REPLICATED, &shards, &replicas).shard_dim;
}

/* Shards are padded to the largest: a dimension below the number of ranks would multiply a
 * parameter. */
static void the_dimension_that_wastes_little_is_sharded(void **state)
{
    (void)state;
    assert_int_equal(dim_of(8, D9D_SHAPE(2048, 2048)), 0);
    assert_int_equal(dim_of(8, D9D_SHAPE(50257, 768)), 0);
    assert_int_equal(dim_of(8, D9D_SHAPE(4, 4096)), 1);     /* rows in parts of 512 */
    assert_int_equal(dim_of(300, D9D_SHAPE(128, 4096)), 0); /* and in no less than 32 */
    assert_int_equal(dim_of(4096, D9D_SHAPE(1024, 4096)), 0);
    assert_int_equal(dim_of(4, D9D_SHAPE(2, 6, 10)), 1); /* few experts */
    assert_int_equal(dim_of(16, D9D_SHAPE(4, 8, 512)), 2);
    assert_int_equal(dim_of(4096, D9D_SHAPE(128)), 0);
}

/* --- parameters that matrices share ------------------------------------------------------------
 */

/* Two matrices [8, 6] with VeRA, on rank `rank` of two ranks of FSDP by two of tensor parallelism.
 */
enum { SHARED_RANKS = 4 };
typedef struct sharing {
    d9d_module root, module[2];
    d9d_param weight[2];
    d9d_device *dev;
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
} sharing;

static void sharing_open(sharing *s, int rank)
{
    const d9d_parallel_degrees d = {1, 1, 2, 1, 1, 2, 1, 1, D9D_CP_ALL_GATHER};
    const d9d_mesh_opts opts = {0};

    assert_ok(d9d_device_simulate("h100", &s->dev));
    assert_ok(d9d_bootstrap_simulate(rank, SHARED_RANKS, &s->bootstrap));
    assert_ok(d9d_mesh_open(s->bootstrap, &d, "sim", s->dev->stream, &opts, &s->mesh));
    d9d_module_init(&s->root);
    for (int i = 0; i < 2; i++) {
        d9d_module_init(&s->module[i]);
        assert_ok(d9d_module_param(&s->module[i], "weight", &s->weight[i], D9D_F32, D9D_SHAPE(8, 6),
                                   D9D_INIT_NORMAL, 1));
        s->weight[i].spec.adaptable = true;
        s->weight[i].spec.parallel.style = D9D_COLWISE;
        assert_ok(d9d_adapter_add(&s->module[i], small_vera_kind,
                                  &(d9d_adapter_opts){.r = 3, .alpha = 3}));
        assert_ok(d9d_module_child(&s->root, i == 0 ? "q" : "k", &s->module[i]));
    }
    assert_ok(d9d_adapter_share(&s->root));
    assert_ok(d9d_module_bind(&s->root));
}

static void sharing_close(sharing *s)
{
    d9d_module_release(&s->root);
    for (int i = 0; i < 2; i++)
        d9d_module_release(&s->module[i]);
    d9d_mesh_close(s->mesh);
    d9d_bootstrap_close(s->bootstrap);
    d9d_device_close(s->dev);
}

/* A [3, 6] is whole on all ranks, of B [8, 3] a rank has the half that its W has. */
static void what_matrices_share_is_divided_by_tensor_parallelism_alone(void **state)
{
    int a_primary = 0, b_primary = 0;

    (void)state;
    for (int rank = 0; rank < SHARED_RANKS; rank++) {
        d9d_model m = {0};
        const d9d_param *a, *b;
        sharing s;

        sharing_open(&s, rank);
        m.module = &s.root;
        assert_ok(d9d_parallel_plan_apply_blocks(s.mesh, &m));
        a = s.weight[1].peft.adapter->param[0];
        b = s.weight[1].peft.adapter->param[1];
        assert_null(a->placement.shard_group);
        assert_null(b->placement.shard_group);
        assert_true(d9d_shape_equal(&a->shard.shape, &D9D_SHAPE(3, 6)));
        assert_true(d9d_shape_equal(&b->shard.shape, &D9D_SHAPE(4, 3)));
        assert_int_equal(b->shard.offset[0], s.weight[0].local.offset[0]);
        a_primary += a->placement.is_primary;
        b_primary += b->placement.is_primary;
        sharing_close(&s);
    }
    assert_int_equal(a_primary, 1);
    assert_int_equal(b_primary, 2);
}

static void matrices_that_share_are_divided_alike(void **state)
{
    const d9d_param_sharding by_output = {D9D_AXIS(TP), 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE},
                             whole = {0, 0, D9D_AXES_SHARD, D9D_AXES_REPLICATE | D9D_AXIS(TP)};
    sharing s;

    (void)state;
    sharing_open(&s, 1);
    assert_ok(d9d_param_sharding_apply(&s.weight[0], s.mesh, &by_output));
    assert_fails(d9d_param_sharding_apply(&s.weight[1], s.mesh, &whole), D9D_ENOTSUP,
                 "k.weight: shares q.vera_B, and the model's plan divides the two differently");
    sharing_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_dealt_over_ranks),
        cmocka_unit_test(heads_are_exchanged_over_ranks),
        cmocka_unit_test(experts_are_dealt_over_ranks),
        cmocka_unit_test(experts_are_sharded_inside_a_replica),
        cmocka_unit_test(the_dimension_that_wastes_little_is_sharded),
        cmocka_unit_test(what_matrices_share_is_divided_by_tensor_parallelism_alone),
        cmocka_unit_test(matrices_that_share_are_divided_alike),
    };

    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
