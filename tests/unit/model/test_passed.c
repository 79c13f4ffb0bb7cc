/* test_passed.c - what stages of a model declare, and what they give. */
#include "support/unit.h"

#include <string.h>

#include "d9d/model/model.h"

static const d9d_stage_spec declared[] = {
    {.name = "hidden", .per = D9D_STAGE_PER_HIDDEN, .dtype = D9D_BF16, .rank = 1, .shape = {8}},
    {.name = "mask", .per = D9D_STAGE_PER_TOKEN, .dtype = D9D_I32, .constant = true},
    {.name = "gate", .per = D9D_STAGE_PER_SEQUENCE, .dtype = D9D_F32, .rank = 1, .shape = {4}},
    {.name = "memory",
     .per = D9D_STAGE_PER_DOCUMENT,
     .field = "image",
     .dtype = D9D_F32,
     .rank = 2,
     .shape = {6, 8}},
    {.name = "boxes",
     .per = D9D_STAGE_PER_RAGGED,
     .field = "boxes",
     .dtype = D9D_F32,
     .rank = 1,
     .shape = {8}},
    {.name = "loads", .per = D9D_STAGE_PER_MICRO_BATCH, .dtype = D9D_F32, .rank = 1, .shape = {3}},
};
enum { DECLARED = sizeof(declared) / sizeof(declared[0]) };

static d9d_status stage_tensors(const d9d_model *m, int stage, d9d_stage_spec *out, size_t *n)
{
    (void)m;
    if (stage == 9)
        return D9D_FAIL(D9D_ECONFIG, "no stage 9");
    *n = stage < 3 ? DECLARED : 0;
    memcpy(out, declared, *n * sizeof(*out));
    return D9D_OK;
}

static const d9d_model_ops ops = {
    .size = sizeof(ops), .name = "mine", .stage_tensors = stage_tensors};

static void declarations(void **state)
{
    static const d9d_model_ops old = {.size = offsetof(d9d_model_ops, stage_tensors),
                                      .name = "old"};
    d9d_model m = {.ops = &ops, .hidden = 8, .dtype = D9D_F32};
    d9d_stage_spec specs[D9D_STAGE_TENSORS_MAX];
    size_t n;

    (void)state;
    assert_ok(d9d_model_stage_specs(&m, 1, specs, &n));
    assert_int_equal(n, DECLARED);
    assert_int_equal(d9d_model_stage_specs(&m, 3, specs, &n), D9D_ECONFIG);
    assert_string_equal(d9d_err_message(), "mine: 0 tensors enter stage 3, not 1 to 8");
    assert_int_equal(d9d_model_stage_specs(&m, 9, specs, &n), D9D_ECONFIG);
    m.ops = &old; /* hidden states alone */
    assert_ok(d9d_model_stage_specs(&m, 1, specs, &n));
    assert_int_equal(n, 1);
    assert_string_equal(specs[0].name, D9D_STAGE_HIDDEN);
    assert_int_equal(specs[0].shape[0], 8);
    assert_false(specs[0].constant);
}

static void shapes_follow_the_batch(void **state)
{
    const d9d_tensor ids = {.dtype = D9D_I32, .shape = D9D_SHAPE(2, 5)};
    const d9d_model_field fields[] = {
        {.name = "image", .value = {.dtype = D9D_F32, .shape = D9D_SHAPE(3, 28, 28)}},
        {.name = "boxes", .value = {.dtype = D9D_F32, .shape = D9D_SHAPE(3, 7, 4)}},
        {.name = "number", .value = {.dtype = D9D_F32, .shape = D9D_SHAPE(3)}}};
    static const d9d_shape want[DECLARED] = {{3, {2, 5, 8}}, {2, {2, 5}},    {2, {2, 4}},
                                             {3, {3, 6, 8}}, {3, {3, 7, 8}}, {1, {3}}};
    const d9d_model m = {.ops = &ops};
    d9d_model_in in = {.ids = &ids, .fields = fields, .n_fields = 3};
    d9d_stage_spec other = declared[4];
    d9d_stage_tensor t;

    (void)state;
    for (size_t i = 0; i < DECLARED; i++) {
        assert_ok(d9d_model_stage_tensor(&m, &declared[i], &in, &t));
        assert_string_equal(t.name, declared[i].name);
        assert_int_equal(t.dtype, declared[i].dtype);
        assert_int_equal(t.constant, declared[i].constant);
        assert_true(d9d_shape_equal(&t.shape, &want[i]));
    }
    other.field = "number";
    assert_int_equal(d9d_model_stage_tensor(&m, &other, &in, &t), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "per row of the field \"number\", which is not"));
    in.n_fields = 0;
    assert_int_equal(d9d_model_stage_tensor(&m, &declared[3], &in, &t), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "field \"image\", which this batch does not have"));
}

static void sorting_what_is_given(void **state)
{
    d9d_var *const some = (d9d_var *)(uintptr_t)16, *const other = (d9d_var *)(uintptr_t)32;
    d9d_model_out out = {.hidden = some};
    d9d_var *v[DECLARED];

    (void)state;
    assert_ok(d9d_model_pass(&out, "boxes", other));
    assert_ok(d9d_model_sort_passed(&out, declared, DECLARED, "mine", v));
    for (size_t i = 0; i < DECLARED; i++)
        assert_ptr_equal(v[i], i == 0 ? some : i == 4 ? other : NULL);
    assert_ok(d9d_model_pass(&out, "box", other));
    assert_int_equal(d9d_model_sort_passed(&out, declared, DECLARED, "mine", v), D9D_EMISMATCH);
    assert_string_equal(d9d_err_message(),
                        "mine: passes on \"box\", which the next stage does not take");
    while (out.n_passed < D9D_STAGE_TENSORS_MAX)
        assert_ok(d9d_model_pass(&out, "boxes", other));
    assert_int_equal(d9d_model_pass(&out, "boxes", other), D9D_EINVAL);
}

static void finding_what_has_come(void **state)
{
    d9d_var *const some = (d9d_var *)(uintptr_t)16;
    const d9d_model_passed passed[] = {{"hidden", NULL}, {"mask", some}};
    const d9d_model_in in = {.passed = passed, .n_passed = 2}, first = {.passed = NULL};

    (void)state;
    assert_ptr_equal(d9d_model_find_passed(&in, "mask"), some);
    assert_null(d9d_model_find_passed(&in, "masks"));
    assert_null(d9d_model_find_passed(&first, "mask"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(declarations),
        cmocka_unit_test(shapes_follow_the_batch),
        cmocka_unit_test(sorting_what_is_given),
        cmocka_unit_test(finding_what_has_come),
    };

    return cmocka_run_group_tests_name("passed", tests, NULL, NULL);
}
