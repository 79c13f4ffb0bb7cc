/* test_adapter.c - parameters of adapters: their names, shapes and places, and how they begin. */
#include "d9d/nn/adapter.h"

#include <math.h>
#include <string.h>

#include "support/unit.h"

enum { OUT = 4, IN = 3 };

/* A module with a matrix, a stack of two, or one that is divided by its input and has a bias. */
typedef struct layer {
    d9d_module module;
    d9d_param weight, bias;
    d9d_device *dev;
} layer;

static void layer_init(layer *l, d9d_shape shape, bool bias)
{
    memset(l, 0, sizeof(*l));
    d9d_module_init(&l->module);
    assert_ok(
        d9d_module_param(&l->module, "weight", &l->weight, D9D_F32, shape, D9D_INIT_NORMAL, 1));
    l->weight.spec.adaptable = true;
    l->weight.spec.parallel.style = D9D_ROWWISE;
    if (bias)
        assert_ok(d9d_module_param(&l->module, "bias", &l->bias, D9D_F32, D9D_SHAPE(shape.dim[0]),
                                   D9D_INIT_ZEROS, 0));
}

static void layer_open(layer *l)
{
    assert_ok(d9d_device_open("cpu", &l->dev));
    assert_ok(d9d_module_bind(&l->module));
    assert_ok(d9d_module_materialise(&l->module, l->dev, true));
    assert_ok(d9d_module_reset(&l->module, 7));
}

static void layer_close(layer *l)
{
    d9d_module_release(&l->module);
    if (l->dev != NULL)
        d9d_device_close(l->dev);
}

static const d9d_adapter_opts of_rank_2 = {.r = 2, .alpha = 8};

static void parameters_have_shapes_and_names(void **state)
{
    layer l;
    const d9d_param *const *p;

    (void)state;
    layer_init(&l, D9D_SHAPE(OUT, IN), false);
    assert_ok(d9d_adapter_add(&l.module, &d9d_adapter_dora, &of_rank_2));
    p = (const d9d_param *const *)l.weight.peft.adapter->param;
    assert_true(d9d_shape_equal(&p[D9D_ADAPTER_A]->spec.shape, &D9D_SHAPE(2, IN)));
    assert_true(d9d_shape_equal(&p[D9D_ADAPTER_B]->spec.shape, &D9D_SHAPE(OUT, 2)));
    assert_true(d9d_shape_equal(&p[D9D_ADAPTER_MAGNITUDE]->spec.shape, &D9D_SHAPE(OUT)));
    assert_null(p[D9D_ADAPTER_OUTPUT]);
    assert_float_equal(l.weight.peft.adapter->scale, 4, 0);
    assert_ptr_equal(p[D9D_ADAPTER_A]->peft.adapts, &l.weight);
    assert_ok(d9d_module_bind(&l.module));
    assert_string_equal(p[D9D_ADAPTER_MAGNITUDE]->name, "lora_magnitude_vector.weight");
    layer_close(&l);

    layer_init(&l, D9D_SHAPE(2, IN, OUT), false);
    assert_ok(d9d_adapter_add(&l.module, &d9d_adapter_lora, &of_rank_2));
    p = (const d9d_param *const *)l.weight.peft.adapter->param;
    assert_true(d9d_shape_equal(&p[D9D_ADAPTER_A]->spec.shape, &D9D_SHAPE(2, IN, 2)));
    assert_true(d9d_shape_equal(&p[D9D_ADAPTER_B]->spec.shape, &D9D_SHAPE(2, 2, OUT)));
    layer_close(&l);
}

/* Of a matrix divided by outputs (0) or inputs (1), and of a stack by experts. */
static void parameters_are_divided_with_the_matrix(void **state)
{
    const d9d_shape matrix = D9D_SHAPE(OUT, IN), stack = D9D_SHAPE(2, IN, OUT);
    static const int want[D9D_ADAPTER_ROLES][2] = {[D9D_ADAPTER_A] = {-1, 1},
                                                   [D9D_ADAPTER_B] = {0, -1},
                                                   [D9D_ADAPTER_MAGNITUDE] = {0, -1},
                                                   [D9D_ADAPTER_OUTPUT] = {0, -1},
                                                   [D9D_ADAPTER_INPUT] = {-1, 0}};

    (void)state;
    for (int role = 0; role < D9D_ADAPTER_ROLES; role++)
        for (int dim = 0; dim < 2; dim++)
            assert_int_equal(d9d_adapter_shared_dim(NULL, role, &matrix, dim), want[role][dim]);
    assert_int_equal(d9d_adapter_shared_dim(NULL, D9D_ADAPTER_A, &stack, 0), 0);
    assert_int_equal(d9d_adapter_shared_dim(NULL, D9D_ADAPTER_B, &stack, 0), 0);
}

static void magnitudes_begin_as_norms(void **state)
{
    float w[OUT * IN], m[OUT];
    layer l;

    (void)state;
    layer_init(&l, D9D_SHAPE(OUT, IN), false);
    assert_ok(d9d_adapter_start(&l.weight, NULL)); /* it has none */
    assert_ok(d9d_adapter_add(&l.module, &d9d_adapter_dora, &of_rank_2));
    layer_open(&l);
    assert_ok(d9d_adapter_start(&l.weight, l.dev));
    assert_ok(d9d_tensor_to_f32(&l.weight.shard.data, w));
    assert_ok(
        d9d_tensor_to_f32(&l.weight.peft.adapter->param[D9D_ADAPTER_MAGNITUDE]->shard.data, m));
    for (int i = 0; i < OUT; i++) {
        const float *row = w + i * IN;

        assert_float_equal(m[i], sqrtf(row[0] * row[0] + row[1] * row[1] + row[2] * row[2]), 1e-6);
        assert_true(m[i] > 0);
    }
    memset(w + IN, 0, IN * sizeof(*w));
    assert_ok(d9d_device_upload(l.dev, d9d_tensor_data(&l.weight.shard.data), w, sizeof(w)));
    assert_fails(d9d_adapter_start(&l.weight, l.dev), D9D_ENOTSUP,
                 "weight: row 1 is zero, and a magnitude (DoRA) stretches rows; leave the matrix "
                 "out");
    layer_close(&l);
}

static void a_kind_may_freeze_a_parameter(void **state)
{
    d9d_adapter_kind kind = d9d_adapter_lora;
    layer l;

    (void)state;
    kind.params[D9D_ADAPTER_A].frozen = true;
    layer_init(&l, D9D_SHAPE(OUT, IN), false);
    assert_ok(d9d_adapter_add(&l.module, &kind, &of_rank_2));
    assert_false(l.weight.peft.adapter->param[D9D_ADAPTER_A]->spec.trainable);
    assert_true(l.weight.peft.adapter->param[D9D_ADAPTER_B]->spec.trainable);
    layer_close(&l);
}

/* --- kinds with a forward ----------------------------------------------------------------------
 */

static d9d_status forward(const d9d_op_adapter *a, d9d_var *x, d9d_var **y)
{
    return d9d_op_adapter_base(a, x, D9D_OP_ADAPTER_ALL, y);
}

static d9d_status merge(const d9d_adapter_arrays *a, int64_t row, float *w)
{
    (void)a, (void)row, (void)w;
    return D9D_OK;
}

static d9d_status start(d9d_param *w, d9d_device *dev)
{
    (void)dev;
    return D9D_FAIL(D9D_EIO, "%s: begins", w->name);
}

static const d9d_adapter_kind own = {
    .size = sizeof(d9d_adapter_kind),
    .name = "own",
    .params = {{.name = "up", .dim = {D9D_ADAPTER_OUT, D9D_ADAPTER_RANK}, .init = D9D_INIT_UNIFORM},
               {.name = "square",
                .dim = {D9D_ADAPTER_RANK, D9D_ADAPTER_RANK},
                .init = D9D_INIT_UNIFORM,
                .init_scale = 7},
               {.name = "features", .dim = {D9D_ADAPTER_IN}, .init = D9D_INIT_ZEROS}},
    .forward = forward,
    .merge = merge,
    .start = start,
    .reads_matrix = true,
};

static void a_kind_may_have_parameters_of_its_own(void **state)
{
    const d9d_shape matrix = D9D_SHAPE(OUT, IN);
    static const int want[3][2] = {{0, -1}, {-1, -1}, {-1, 0}};
    const d9d_param_adapter *a;
    layer l;

    (void)state;
    layer_init(&l, matrix, true);
    assert_ok(d9d_adapter_add(&l.module, &own, &of_rank_2));
    a = l.weight.peft.adapter;
    assert_true(d9d_shape_equal(&a->param[0]->spec.shape, &D9D_SHAPE(OUT, 2)));
    assert_true(d9d_shape_equal(&a->param[1]->spec.shape, &D9D_SHAPE(2, 2)));
    assert_true(d9d_shape_equal(&a->param[2]->spec.shape, &D9D_SHAPE(IN)));
    assert_float_equal(a->param[0]->spec.init_scale, 1 / sqrtf(2), 1e-6);
    assert_float_equal(a->param[1]->spec.init_scale, 7, 0);
    assert_int_equal(a->by_output, 1);
    assert_true(a->reads_matrix && a->forward == forward && a->kind == &own);
    assert_false(d9d_adapter_is_low_rank(&own));
    for (int i = 0; i < 3; i++)
        for (int dim = 0; dim < 2; dim++)
            assert_int_equal(d9d_adapter_shared_dim(&own, i, &matrix, dim), want[i][dim]);
    layer_open(&l);
    assert_fails(d9d_adapter_start(&l.weight, l.dev), D9D_EIO, "weight: begins");
    layer_close(&l);
}

/* A row of W + scale B A with the norm m. */
static void a_magnitude_is_merged_by_rows(void **state)
{
    static const float a[] = {1, 2, 3, -1, 0, 1}, b[] = {0, 0, 1, -2}, m[] = {0, 5};
    const d9d_adapter_arrays all = {.in = IN, .out = 2, .r = 2, .scale = 0.5f, .v = {a, b, m}};
    const float row[] = {1 + 0.5f * 3, 1 + 0.5f * 2, 1 + 0.5f * 1};
    const float norm = sqrtf(row[0] * row[0] + row[1] * row[1] + row[2] * row[2]);
    float w[] = {1, 1, 1};

    (void)state;
    assert_ok(d9d_adapter_merge_magnitude(&all, 1, w));
    for (int j = 0; j < IN; j++)
        assert_float_equal(w[j], row[j] * 5 / norm, 1e-6);
}

static void refuses_a_kind_that_lacks_something(void **state)
{
    d9d_adapter_kind kind = d9d_adapter_lora;
    layer l;

    (void)state;
    layer_init(&l, D9D_SHAPE(OUT, IN), false);
    kind.params[D9D_ADAPTER_ROLES].name = "more";
    assert_fails(d9d_adapter_add(&l.module, &kind, &of_rank_2), D9D_ECONFIG,
                 "lora: parameter 5, more, has no role, of which there are 5, and the kind no "
                 "forward of its own");
    kind = own;
    kind.merge = NULL;
    assert_fails(d9d_adapter_add(&l.module, &kind, &of_rank_2), D9D_ECONFIG,
                 "own: has a forward and no merge");
    kind = own;
    kind.params[1].dim[1] = D9D_ADAPTER_OUT;
    assert_fails(d9d_adapter_add(&l.module, &kind, &of_rank_2), D9D_ECONFIG,
                 "own: parameter square needs a dimension, and that of outputs comes first");
    layer_close(&l);
    layer_init(&l, D9D_SHAPE(2, IN, OUT), false);
    assert_fails(d9d_adapter_add(&l.module, &own, &of_rank_2), D9D_EINVAL,
                 "own: adapters of experts are LoRA alone");
    layer_close(&l);
}

static void refuses(void **state)
{
    layer l;

    (void)state;
    layer_init(&l, D9D_SHAPE(OUT, IN), true);
    assert_fails(d9d_adapter_add(&l.module, &d9d_adapter_ia3, &of_rank_2), D9D_ENOTSUP,
                 "ia3: a layer whose inputs tensor parallelism divides and that has a bias cannot "
                 "have factors of its output");
    assert_ok(d9d_adapter_add(&l.module, &d9d_adapter_ia3_feedforward, &of_rank_2));
    assert_fails(d9d_adapter_add(&l.module, &d9d_adapter_lora, &of_rank_2), D9D_EINVAL,
                 "lora: the module has an adapter already");
    layer_close(&l);
    layer_init(&l, D9D_SHAPE(OUT, IN), false);
    l.weight.spec.adaptable = false;
    assert_fails(d9d_adapter_add(&l.module, &d9d_adapter_lora, &of_rank_2), D9D_EINVAL,
                 "lora: the module has no matrix");
    layer_close(&l);
    layer_init(&l, D9D_SHAPE(2, IN, OUT), false);
    assert_fails(d9d_adapter_add(&l.module, &d9d_adapter_dora, &of_rank_2), D9D_EINVAL,
                 "dora: adapters of experts are LoRA alone");
    layer_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_have_shapes_and_names),
        cmocka_unit_test(parameters_are_divided_with_the_matrix),
        cmocka_unit_test(magnitudes_begin_as_norms),
        cmocka_unit_test(a_kind_may_freeze_a_parameter),
        cmocka_unit_test(a_kind_may_have_parameters_of_its_own),
        cmocka_unit_test(a_magnitude_is_merged_by_rows),
        cmocka_unit_test(refuses_a_kind_that_lacks_something),
        cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("adapter", tests, NULL, NULL);
}
