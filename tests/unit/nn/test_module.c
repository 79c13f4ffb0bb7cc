/* test_module.c - trees of parameters: names, memory, initial values. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/nn/module.h"
#include "support/unit.h"

/* root: "a.w" [3, 4], "a.v" [4], "b.w" [2, 5, 3], "top" [7] */
typedef struct tree {
    d9d_module root, a, b;
    d9d_param aw, av, bw, top;
} tree;

static void build(tree *m)
{
    d9d_module_init(&m->root);
    d9d_module_init(&m->a);
    d9d_module_init(&m->b);
    assert_ok(d9d_module_param(&m->a, "w", &m->aw, D9D_F32, D9D_SHAPE(3, 4), D9D_INIT_NORMAL, 2));
    assert_ok(d9d_module_param(&m->a, "v", &m->av, D9D_BF16, D9D_SHAPE(4), D9D_INIT_ONES, 0));
    assert_ok(
        d9d_module_param(&m->b, "w", &m->bw, D9D_F32, D9D_SHAPE(2, 5, 3), D9D_INIT_UNIFORM, 3));
    assert_ok(d9d_module_child(&m->root, "a", &m->a));
    assert_ok(d9d_module_child(&m->root, "b", &m->b));
    assert_ok(d9d_module_param(&m->root, "top", &m->top, D9D_F32, D9D_SHAPE(7), D9D_INIT_ZEROS, 0));
}

static d9d_status join(void *arg, d9d_param *p)
{
    char *text = arg;

    (void)strcat(strcat(text, p->name), " ");
    return D9D_OK;
}

static d9d_status stop_at_b(void *arg, d9d_param *p)
{
    (void)join(arg, p);
    return p->name[0] == 'b' ? D9D_FAIL(D9D_EINVAL, "stop at %s", p->name) : D9D_OK;
}

static void names_are_dotted_and_in_order(void **state)
{
    char text[64] = "";
    d9d_arena a = {0};
    d9d_params all;
    tree m;

    (void)state;
    build(&m);
    assert_string_equal(m.aw.name, "w");
    assert_ok(d9d_module_bind(&m.root));
    assert_ok(d9d_module_each(&m.root, join, text));
    assert_string_equal(text, "a.w a.v b.w top ");
    text[0] = '\0';
    assert_fails(d9d_module_each(&m.root, stop_at_b, text), D9D_EINVAL, "stop at b.w");
    assert_string_equal(text, "a.w a.v b.w ");
    assert_ok(d9d_module_params(&m.root, &a, &all));
    assert_int_equal(all.n, 4);
    assert_ptr_equal(all.p[2], &m.bw);
    assert_ptr_equal(d9d_module_find(&m.root, "b.w"), &m.bw);
    assert_ptr_equal(d9d_module_find(&m.root, "top"), &m.top);
    assert_null(d9d_module_find(&m.root, "w"));
    assert_null(d9d_module_find(&m.root, "a"));
    assert_true(m.aw.id == d9d_hash_u64("a.w", 3));
    assert_int_equal(m.aw.spec.grad_dtype, D9D_F32);
    assert_true(m.aw.spec.trainable);
    d9d_arena_release(&a);
    d9d_module_release(&m.root);
    d9d_module_release(&m.root);
}

static d9d_status join_module(void *arg, const char *name, d9d_module *m)
{
    char *text = arg;

    (void)m;
    (void)strcat(strcat(text, name), " ");
    return D9D_OK;
}

static void what_a_dotted_name_begins_with_is_a_module(void **state)
{
    d9d_module root, part[4];
    char text[64] = "";
    d9d_param w;

    (void)state;
    d9d_module_init(&root);
    for (int i = 0; i < 4; i++)
        d9d_module_init(&part[i]);
    assert_ok(d9d_module_param(&part[3], "w", &w, D9D_F32, D9D_SHAPE(2), D9D_INIT_ZEROS, 0));
    assert_ok(d9d_module_child(&root, "m.in", &part[0]));
    assert_ok(d9d_module_child(&root, "m.l.0", &part[1]));
    assert_ok(d9d_module_child(&root, "out", &part[2]));
    assert_ok(d9d_module_child(&root, "m.l.1", &part[3]));
    assert_ok(d9d_module_walk(&root, join_module, text));
    assert_string_equal(text, " m m.in m.l m.l.0 m.l.1 out ");
    assert_ok(d9d_module_bind(&root));
    assert_ptr_equal(d9d_module_find(&root, "m.l.1.w"), &w);
    d9d_module_release(&root);
}

static void duplicates_are_refused(void **state)
{
    d9d_param p, q;
    d9d_module root, child;

    (void)state;
    d9d_module_init(&root);
    d9d_module_init(&child);
    assert_ok(d9d_module_param(&root, "x.w", &p, D9D_F32, D9D_SHAPE(1), D9D_INIT_ZEROS, 0));
    assert_ok(d9d_module_param(&child, "w", &q, D9D_F32, D9D_SHAPE(1), D9D_INIT_ZEROS, 0));
    assert_ok(d9d_module_child(&root, "x", &child));
    assert_fails(d9d_module_bind(&root), D9D_EINVAL, "two parameters are called x.w");
    d9d_module_release(&root);

    d9d_module_init(&root);
    d9d_module_init(&child);
    assert_ok(d9d_module_param(&child, "w", &q, D9D_F32, D9D_SHAPE(1), D9D_INIT_ZEROS, 0));
    assert_ok(d9d_module_child(&root, "x", &child));
    assert_ok(d9d_module_child(&root, "y", &child));
    assert_fails(d9d_module_bind(&root), D9D_EINVAL, "one parameter is called both x.w and y.w");
    d9d_module_release(&root);
}

static void memory_comes_late_and_goes(void **state)
{
    d9d_device *dev;
    tree m;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    build(&m);
    assert_ok(d9d_module_bind(&m.root));
    assert_null(m.aw.local.data.storage);
    assert_fails(d9d_module_reset(&m.root, 1), D9D_EINVAL,
                 "a.w cannot be filled: it has no memory yet");
    m.av.spec.trainable = false;
    m.bw.spec.grad_dtype = D9D_BF16;
    assert_ok(d9d_module_materialise(&m.root, dev, false));
    assert_int_equal(d9d_device_memory(dev).in_use, 4 * 256);
    assert_null(m.aw.local.grad.storage);
    assert_false(d9d_param_needs_grad(&m.aw));
    assert_ok(d9d_module_materialise(&m.root, dev, true)); /* adds the gradients alone */
    assert_int_equal(d9d_device_memory(dev).in_use, 7 * 256);
    assert_null(m.av.local.grad.storage);
    assert_int_equal(m.bw.local.grad.dtype, D9D_BF16);
    assert_true(d9d_shape_equal(&m.bw.local.grad.shape, &D9D_SHAPE(2, 5, 3)));
    assert_true(d9d_param_needs_grad(&m.aw) && !d9d_param_needs_grad(&m.av));
    assert_true(d9d_param_grad_beta(&m.aw.local) == 0 && d9d_param_grad_beta(&m.aw.local) == 1);
    d9d_module_clear_grads(&m.root);
    assert_true(d9d_param_grad_beta(&m.aw.local) == 0);
    d9d_module_release(&m.root);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
    d9d_device_close(dev);
}

static void memory_that_ends_leaves_nothing(void **state)
{
    d9d_device *dev;
    tree m;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    build(&m);
    assert_ok(d9d_module_bind(&m.root));
    d9d_device_set_limit(dev, 5 * 256);
    assert_fails_like(d9d_module_materialise(&m.root, dev, true), D9D_EOOM, "out of memory");
    d9d_module_release(&m.root);
    assert_int_equal(d9d_device_memory(dev).in_use, 0);
    d9d_device_close(dev);
}

/* Values of b.w held as rows [first, first + n) of its dimension `dim`. */
static void values_of_box(d9d_device *dev, d9d_dtype t, int dim, int64_t first, int64_t n,
                          uint64_t seed, float *out)
{
    tree m;

    build(&m);
    m.bw.spec.dtype = t;
    assert_ok(d9d_module_bind(&m.root));
    m.bw.shard.shape.dim[dim] = n;
    m.bw.shard.offset[dim] = first;
    assert_ok(d9d_module_materialise(&m.root, dev, false));
    assert_ok(d9d_module_reset(&m.root, seed));
    assert_ok(d9d_tensor_to_f32(&m.bw.local.data, out));
    d9d_module_release(&m.root);
}

static void initial_values_do_not_depend_on_the_box(void **state)
{
    static const int64_t dims[] = {2, 5, 3};
    static const d9d_dtype types[] = {D9D_F32, D9D_BF16};
    float whole[30], part[30];
    d9d_device *dev;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    for (int i = 0; i < 2 * 3; i++) {
        const int dim = i % 3;
        const int64_t cut = dims[dim] / 2, inner = dim == 2 ? 1 : dim == 1 ? 3 : 15;

        values_of_box(dev, types[i / 3], dim, 0, dims[dim], 42, whole);
        for (int half = 0; half < 2; half++) {
            const int64_t first = half ? cut : 0, n = half ? dims[dim] - cut : cut;

            values_of_box(dev, types[i / 3], dim, first, n, 42, part);
            for (int64_t k = 0; k < 30 / dims[dim] * n; k++) {
                const int64_t outer = k / (n * inner), at = k / inner % n, rest = k % inner;

                assert_true(part[k] == whole[(outer * dims[dim] + first + at) * inner + rest]);
            }
        }
    }
    d9d_device_close(dev);
}

/* b.w [2, 5, 3] over 2 ranks that compute with a part of the columns, and 3 that share its rows. */
static void what_is_kept_is_a_part_of_what_is_computed_with(void **state)
{
    d9d_comm *others = (d9d_comm *)state; /* no call looks into it */
    float whole[30], part[30];
    d9d_device *dev;
    tree m;

    assert_ok(d9d_device_open("cpu", &dev));
    values_of_box(dev, D9D_F32, 0, 0, 2, 42, whole);
    for (int tp = 0; tp < 2; tp++) {
        for (int rank = 0; rank < 3; rank++) {
            static const int64_t rows[] = {2, 2, 1}, first[] = {0, 2, 4};
            const int64_t columns = tp == 0 ? 2 : 1;

            build(&m);
            assert_ok(d9d_module_bind(&m.root));
            d9d_param_partition(&m.bw, 2, 2, tp);
            d9d_param_shard(&m.bw, others, 1, 3, rank);
            assert_true(d9d_shape_equal(&m.bw.local.shape, &D9D_SHAPE(2, 5, columns)));
            assert_true(d9d_shape_equal(&m.bw.shard.shape, &D9D_SHAPE(2, rows[rank], columns)));
            assert_ok(d9d_module_materialise(&m.root, dev, true));
            assert_null(m.bw.local.data.storage);
            assert_null(m.bw.local.grad.storage);
            assert_true(d9d_param_needs_grad(&m.bw) &&
                        m.aw.local.data.storage == m.aw.shard.data.storage);
            assert_ok(d9d_module_reset(&m.root, 42));
            assert_ok(d9d_tensor_to_f32(&m.bw.shard.data, part));
            for (int64_t k = 0; k < 2 * rows[rank] * columns; k++) {
                const int64_t e = k / (rows[rank] * columns), row = k / columns % rows[rank];

                assert_true(part[k] ==
                            whole[(e * 5 + first[rank] + row) * 3 + 2 * tp + k % columns]);
            }
            d9d_module_release(&m.root);
        }
    }
    d9d_device_close(dev);
}

static void initial_values_are_what_was_declared(void **state)
{
    float aw[12], again[12], av[4], bw[30], top[7];
    d9d_device *dev;
    tree m;

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    build(&m);
    assert_ok(d9d_module_bind(&m.root));
    assert_ok(d9d_module_materialise(&m.root, dev, false));
    assert_ok(d9d_module_reset(&m.root, 7));
    assert_ok(d9d_tensor_to_f32(&m.aw.local.data, aw));
    assert_ok(d9d_tensor_to_f32(&m.av.local.data, av));
    assert_ok(d9d_tensor_to_f32(&m.bw.local.data, bw));
    assert_ok(d9d_tensor_to_f32(&m.top.local.data, top));
    for (int i = 0; i < 12; i++)
        assert_true(aw[i] == 2 * d9d_rng_normal((d9d_rng){7, m.aw.id}, (uint64_t)i));
    for (int i = 0; i < 4; i++)
        assert_true(av[i] == 1);
    for (int i = 0; i < 30; i++)
        assert_true(bw[i] == 3 * (2 * d9d_rng_uniform((d9d_rng){7, m.bw.id}, (uint64_t)i) - 1));
    for (int i = 0; i < 7; i++)
        assert_true(top[i] == 0);
    assert_ok(d9d_module_reset(&m.root, 8));
    assert_ok(d9d_tensor_to_f32(&m.aw.local.data, again));
    assert_memory_not_equal(aw, again, sizeof(aw));
    d9d_module_release(&m.root);
    d9d_device_close(dev);
}

static void a_name_has_a_layer(void **state)
{
    static const struct {
        const char *name;
        int64_t layer;
    } of[] = {{"model.layers.0.mlp.up_proj.weight", 0},
              {"layers.31.norm.weight", 31},
              {"model.layers.2.experts.layers.5.weight", 2},
              {"model.sublayers.3.weight", -1},
              {"model.layers.weight", -1},
              {"model.layers.7", -1},
              {"lm_head.weight", -1}};

    (void)state;
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++)
        assert_int_equal(d9d_param_layer_of(of[i].name), of[i].layer);
}

/* Random initial values of a quantised matrix: rows of the bytes that its elements have; a part of
 * the rows has theirs, and one of the columns has their codes. */
static void quantised_values_are_those_of_the_elements(void **state)
{
    enum { ROWS = 6, COLS = 128, HALF = 64 };
    static const struct {
        int64_t row, rows, col, cols;
    } parts[] = {{0, ROWS, 0, COLS}, {2, 3, 0, COLS}, {0, ROWS, HALF, HALF}};
    d9d_device *dev;
    d9d_param p;
    d9d_module m;
    float x[ROWS * COLS];

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    for (int i = -1; i < (int)(sizeof(parts) / sizeof(*parts)); i++) {
        uint8_t want[ROWS * 192];

        d9d_module_init(&m);
        assert_ok(
            d9d_module_param(&m, "w", &p, D9D_F32, D9D_SHAPE(ROWS, COLS), D9D_INIT_NORMAL, 1));
        assert_ok(d9d_module_bind(&m));
        if (i >= 0) {
            p.spec.stored = D9D_QUANT_NF4;
            p.local.shape = p.shard.shape = D9D_SHAPE(parts[i].rows, parts[i].cols);
            p.shard.offset[0] = parts[i].row;
            p.shard.offset[1] = parts[i].col;
        }
        assert_ok(d9d_module_materialise(&m, dev, false));
        assert_ok(d9d_module_reset(&m, 3));
        if (i < 0) {
            memcpy(x, d9d_tensor_data(&p.shard.data), sizeof(x));
        } else {
            assert_true(d9d_tensor_bytes(&p.local.data) <= sizeof(want));
            assert_ok(d9d_quant_rows(D9D_QUANT_NF4, D9D_F32, x + parts[i].row * COLS, parts[i].rows,
                                     COLS, parts[i].col, parts[i].cols, want));
            assert_memory_equal(d9d_tensor_data(&p.local.data), want,
                                d9d_tensor_bytes(&p.local.data));
        }
        d9d_module_release(&m);
    }
    d9d_device_close(dev);
}

/* Only then they may waste what a later forward might need. */
static void gradients_on_demand_are_loose_if_it_is_said(void **state)
{
    tree m;

    (void)state;
    build(&m);
    d9d_module_set_grads_on_demand(&m.root, false);
    assert_true(m.aw.grad_on_demand && !m.aw.grad_loose);
    m.top.spec.trainable = false;
    d9d_module_set_grads_on_demand(&m.root, true);
    assert_true(m.aw.grad_on_demand && m.aw.grad_loose);
    assert_false(m.top.grad_on_demand || m.top.grad_loose);
    d9d_module_release(&m.root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_dotted_and_in_order),
        cmocka_unit_test(a_name_has_a_layer),
        cmocka_unit_test(what_a_dotted_name_begins_with_is_a_module),
        cmocka_unit_test(duplicates_are_refused),
        cmocka_unit_test(memory_comes_late_and_goes),
        cmocka_unit_test(memory_that_ends_leaves_nothing),
        cmocka_unit_test(initial_values_do_not_depend_on_the_box),
        cmocka_unit_test(what_is_kept_is_a_part_of_what_is_computed_with),
        cmocka_unit_test(initial_values_are_what_was_declared),
        cmocka_unit_test(quantised_values_are_those_of_the_elements),
        cmocka_unit_test(gradients_on_demand_are_loose_if_it_is_said),
    };

    return cmocka_run_group_tests_name("module", tests, NULL, NULL);
}
