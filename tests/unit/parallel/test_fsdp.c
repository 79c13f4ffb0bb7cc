/* test_fsdp.c - FSDP memory: unsharded units, and the sharded state that a rank keeps; saves of the
 * sharded state. */
#include "comm/comm_private.h"
#include "d9d/checkpointer/checkpointer.h"
#include "d9d/parallel/fsdp.h"
#include "support/unit.h"

/* Two units: "a.w" [6, 4] kept in parts, "a.v" [5] whole; "b.w" [2, 4] kept in parts. */
typedef struct small {
    d9d_module root, a, b, *units[3];
    d9d_param aw, av, bw;
    d9d_model model;
} small;

static void build(small *m, d9d_comm *others)
{
    d9d_module_init(&m->root);
    d9d_module_init(&m->a);
    d9d_module_init(&m->b);
    assert_ok(d9d_module_param(&m->a, "w", &m->aw, D9D_BF16, D9D_SHAPE(6, 4), D9D_INIT_ONES, 0));
    assert_ok(d9d_module_param(&m->a, "v", &m->av, D9D_BF16, D9D_SHAPE(5), D9D_INIT_ONES, 0));
    assert_ok(d9d_module_param(&m->b, "w", &m->bw, D9D_BF16, D9D_SHAPE(2, 4), D9D_INIT_ONES, 0));
    assert_ok(d9d_module_child(&m->root, "a", &m->a));
    assert_ok(d9d_module_child(&m->root, "b", &m->b));
    assert_ok(d9d_module_bind(&m->root));
    m->units[0] = m->units[2] = &m->a;
    m->units[1] = &m->b;
    m->model = (d9d_model){.module = &m->root, .units = m->units, .n_units = 3};
    if (others == NULL)
        return;
    d9d_param_shard(&m->aw, others, 0, 4, 1);
    d9d_param_shard(&m->bw, others, 0, 4, 3);
    m->av.placement.is_primary = false;
}

static uint64_t bytes(const small *m, d9d_fsdp_opts opts)
{
    uint64_t n = 1;

    assert_ok(d9d_fsdp_bytes(&m->model, &opts, &n));
    return n;
}

static void the_largest_unit_or_all_gradients(void **state)
{
    d9d_quantised_recipe recipe = {.scaling = D9D_SCALE_ROWWISE, .format = D9D_F8_E4M3};
    d9d_comm others = {.size = 4};
    d9d_fsdp *s = (d9d_fsdp *)state;
    const d9d_params *first[D9D_FSDP_PREFETCH_MAX];
    d9d_device *dev;
    small m;

    build(&m, NULL);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.with_grads = true,
                                               .reduce_once = true,
                                               .reshard = D9D_RESHARD_AFTER_STEP,
                                               .prefetch = 1}),
                     0);
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_fsdp_create(&m.model, dev, &(d9d_fsdp_opts){.with_grads = true}, &s));
    assert_null(s); /* nothing to keep, and every call takes that */
    d9d_fsdp_pre_forward(s, true, true);
    d9d_fsdp_pre_backward(s, true);
    assert_ok(d9d_fsdp_post_backward(s));
    assert_ok(d9d_fsdp_wait_grads(s));
    assert_int_equal(d9d_fsdp_first_units(s, first), 0);
    assert_ok(d9d_fsdp_prefetch(s, 0));
    assert_ok(d9d_fsdp_reshard(s));
    d9d_fsdp_free(s);
    d9d_device_close(dev);
    d9d_module_release(&m.root);
    build(&m, &others);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.with_grads = false}), 24 * 2);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.reshard = D9D_RESHARD_AFTER_BACKWARD}),
                     24 * 2); /* nothing learns */
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.with_grads = true}), 24 * (2 + 4));
    for (int late = D9D_RESHARD_AFTER_BACKWARD; late <= D9D_RESHARD_AFTER_STEP; late++)
        assert_int_equal(bytes(&m, (d9d_fsdp_opts){.with_grads = true, .reshard = late}),
                         (24 + 8) * 2 + 24 * 4);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.with_grads = true, .reduce_once = true}),
                     24 * 2 + (24 + 8) * 4);
    m.aw.fp8.recipe = m.bw.fp8.recipe = &recipe; /* a copy a pass, or two */
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = false}), 24 * 2);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = true}), 24);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = true,
                                               .with_grads = true,
                                               .reshard = D9D_RESHARD_AFTER_STEP}),
                     (24 + 8) * 2 + 24 * 4);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = true, .with_grads = true}),
                     24 + 24 * 4);
    recipe.scaling = D9D_SCALE_TENSORWISE; /* both in backward */
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = true}), 24);
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = true, .with_grads = true}),
                     24 * 2 + 24 * 4);
    m.aw.spec.reads_data = true;
    assert_int_equal(bytes(&m, (d9d_fsdp_opts){.float8_all_gather = true}), 24 * 2);
    d9d_module_release(&m.root);
}

static void empty_parts_and_copies_are_saved_elsewhere(void **state)
{
    d9d_comm others = {.rank = 1, .size = 4};
    d9d_checkpointer_set all, here;
    d9d_arena a = {0};
    d9d_params params;
    small m;

    (void)state;
    build(&m, &others);
    assert_true(d9d_shape_equal(&m.aw.shard.shape, &D9D_SHAPE(2, 4)) && m.aw.shard.offset[0] == 2);
    assert_true(d9d_shape_equal(&m.bw.shard.shape, &D9D_SHAPE(0, 4)));
    assert_ok(d9d_module_params(&m.root, &a, &params));
    assert_ok(d9d_checkpointer_set_make(&params, NULL, false, &a, &all));
    assert_ok(d9d_checkpointer_set_local(&all, &a, &here));
    assert_int_equal(all.n, 3);
    assert_int_equal(here.n, 1);
    assert_string_equal(here.items[0].name, "a.w");
    d9d_arena_release(&a);
    d9d_module_release(&m.root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_unit_or_all_gradients),
        cmocka_unit_test(empty_parts_and_copies_are_saved_elsewhere),
    };

    return cmocka_run_group_tests_name("sharded", tests, NULL, NULL);
}
