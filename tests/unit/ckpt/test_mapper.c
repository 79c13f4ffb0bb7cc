/* test_mapper.c - mappings: names, problems, slices, casts, printing. */
#include "support/mem_tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/mapper/dtype_convert.h"
#include "d9d/base/rng.h"
#include "d9d/ckpt/mapper/map_memory.h"
#include "d9d/ckpt/mapper/mapper.h"

/* --- large tensors are read in bands ---------------------------------------------------------- */

enum { R = 1500, C = 2100 }; /* 12.6 MB of float32: a few bands */

static void check_large(uint64_t slice)
{
    static const char *const parts[] = {"a", "b"};
    const int64_t shape[] = {R, C};
    mem_tensors from = {.n = 0}, to = {.slice = slice};
    d9d_mapper *m, *next;
    d9d_tensor_source src;
    d9d_map_plan *p;
    const float *stacked, *joined;

    for (int i = 0; i < 2; i++) {
        float *v = (float *)(void *)mem_tensors_add(&from, parts[i], D9D_F32, 2, shape)->data;

        for (int k = 0; k < R * C; k++)
            v[k] = (float)(i * R * C + k);
    }
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&next));
    for (int i = 0; i < 2; i++) {
        const char *names[2][2] = {{"s0", "j0"}, {"s1", "j1"}};

        assert_ok(d9d_mapper_duplicate(m, parts[i], names[i], 2));
    }
    assert_ok(d9d_mapper_stack(next, (const char *const[]){"s0", "s1"}, 2, "stacked", 0));
    assert_ok(d9d_mapper_concat(next, (const char *const[]){"j0", "j1"}, 2, "joined", 1));
    assert_ok(d9d_mapper_compose(m, next));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_transpose(next, "stacked", -1, -2));
    assert_ok(d9d_mapper_compose(m, next));
    src = mem_tensors_source(&from);
    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_int_equal(d9d_map_plan_bytes(p), 4ull * 4 * R * C);
    /* Memory: a block and a band, never a whole matrix. */
    assert_int_equal(d9d_map_plan_peak_bytes(p, 2), 2 * (D9D_TENSOR_SINK_CHUNK + (1 << 20)));
    d9d_map_plan_free(p);
    mem_tensors_run(m, &from, &to, 2);
    stacked = (const float *)(const void *)mem_tensors_find(&to, "stacked")->data;
    joined = (const float *)(const void *)mem_tensors_find(&to, "joined")->data;
    for (int e = 0; e < 2; e++)
        for (int i = 0; i < R; i++)
            for (int j = 0; j < C; j++) {
                float v = (float)(e * R * C + i * C + j);

                if (stacked[(e * C + j) * R + i] != v || joined[i * 2 * C + e * C + j] != v)
                    fail_msg("element %d %d of %d", i, j, e);
            }
    d9d_mapper_free(m);
    mem_tensors_free(&from);
    mem_tensors_free(&to);
}

static void large_tensors_are_read_in_slices(void **state)
{
    /* Whole; rows and parts of rows; so narrow that a transposed block is read run by run. */
    static const uint64_t slices[] = {0, 1000003, 77777};

    (void)state;
    for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++)
        check_large(slices[i]);
}

/* --- outputs in memory ------------------------------------------------------------------------ */

static void outputs_are_kept_in_memory(void **state)
{
    const float values[] = {1, 2, 3, 4, 5, 6}, transposed[] = {1, 4, 2, 5, 3, 6};
    mem_tensors from = {.n = 0};
    d9d_map_memory got = {.n = 0};
    const d9d_tensor_sink sink = d9d_map_memory_sink(&got);
    d9d_tensor_source src;
    d9d_mapper *m;
    d9d_map_plan *p;

    (void)state;
    memcpy(mem_tensors_add(&from, "a", D9D_F32, 2, (const int64_t[]){2, 3})->data, values,
           sizeof(values));
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_transpose(m, "a", 0, 1));
    src = mem_tensors_source(&from);
    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_run(p, &sink, 2, NULL));
    assert_int_equal(got.n, 1);
    assert_string_equal(got.tensors[0].name, "a");
    assert_int_equal(got.tensors[0].bytes, sizeof(transposed));
    assert_memory_equal(got.data[0], transposed, sizeof(transposed));
    d9d_map_memory_release(&got);
    assert_null(got.data);
    d9d_map_plan_free(p);
    d9d_mapper_free(m);
    mem_tensors_free(&from);
}

/* --- names ------------------------------------------------------------------------------------ */

static void names_that_collide_are_refused(void **state)
{
    d9d_mapper *m, *part;

    (void)state;
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_rename(m, "a", "b"));
    assert_fails(d9d_mapper_rename(m, "a", "c"), D9D_ECONFIG, "mapper: tensor a is taken twice");
    d9d_mapper_free(m);

    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_rename(m, "a", "b"));
    assert_fails(d9d_mapper_rename(m, "c", "b"), D9D_ECONFIG, "mapper: tensor b is given twice");
    d9d_mapper_free(m);

    /* A name that passes through the second stage collides with one that it outputs. */
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_identity(m, "a"));
    assert_ok(d9d_mapper_identity(m, "b"));
    assert_ok(d9d_mapper_rename(part, "a", "b"));
    assert_fails(d9d_mapper_compose(m, part), D9D_ECONFIG, "mapper: tensor b is given twice");
    d9d_mapper_free(m);

    /* A name consumed by the first stage and wanted from the source by the second. */
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_rename(m, "a", "b"));
    assert_ok(d9d_mapper_rename(part, "a", "c"));
    assert_fails(d9d_mapper_compose(m, part), D9D_ECONFIG, "mapper: tensor a is taken twice");
    d9d_mapper_free(m);
}

static void prefixes_scope_inputs_and_outputs(void **state)
{
    d9d_mapper *m, *part, *next;

    (void)state;
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_create(&part));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_transpose(part, "x", 0, 1));
    assert_ok(d9d_mapper_rename(next, "x", "y"));
    assert_ok(d9d_mapper_compose(part, next));
    assert_ok(d9d_mapper_union(m, part, "src.", "dst."));
    assert_int_equal(d9d_mapper_input_count(m), 1);
    assert_int_equal(d9d_mapper_output_count(m), 1);
    assert_string_equal(d9d_mapper_input(m, 0), "src.x");
    assert_string_equal(d9d_mapper_output(m, 0), "dst.y");
    d9d_mapper_free(m);
}

/* --- problems --------------------------------------------------------------------------------- */

static void a_parent_gives_its_children(void **state)
{
    static const char *const names[] = {"norm.weight", "head.weight"};
    d9d_mapper *m;

    (void)state;
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_select(m, "model", names, 2));
    assert_int_equal(d9d_mapper_input_count(m), 2);
    assert_string_equal(d9d_mapper_input(m, 0), "model.norm.weight");
    assert_string_equal(d9d_mapper_output(m, 0), "norm.weight");
    assert_string_equal(d9d_mapper_input(m, 1), "model.head.weight");
    assert_string_equal(d9d_mapper_output(m, 1), "head.weight");
    assert_fails(d9d_mapper_select(m, "other", names, 1), D9D_ECONFIG,
                 "mapper: tensor norm.weight is given twice");
    d9d_mapper_free(m);
}

static void count_problem(void *arg, const char *sentence)
{
    d9d_buf *b = arg;

    assert_ok(d9d_buf_printf(b, "%s\n", sentence));
}

static void what_does_not_fit_is_listed(void **state)
{
    const int64_t shape[] = {2, 3}, other[] = {2, 4}, wants[] = {3, 2};
    mem_tensors from = {.n = 0};
    d9d_buf said = {0};
    d9d_map_plan_opts opt = {
        .source = "ckpt", .mapper = "model", .on_problem = count_problem, .arg = &said};
    d9d_tensor_source src;
    d9d_map_plan *p = NULL;
    d9d_mapper *m;

    (void)state;
    (void)mem_tensors_add(&from, "a", D9D_F32, 2, shape);
    (void)mem_tensors_add(&from, "b", D9D_F32, 2, other);
    (void)mem_tensors_add(&from, "spare", D9D_F32, 2, other);
    src = mem_tensors_source(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_stack(m, (const char *const[]){"a", "b"}, 2, "s", 0));
    assert_ok(d9d_mapper_identity(m, "absent"));
    assert_ok(d9d_mapper_expect(m, "a", 2, wants));
    assert_fails_like(d9d_mapper_expect(m, "s", 2, wants), D9D_ENOTFOUND, "s is not an input");
    assert_fails(d9d_map_plan_create(m, &src, &opt, &p), D9D_EMISMATCH,
                 "ckpt and model: 1 missing, 1 unused, 2 mis-shaped tensors: "
                 "tensor a is F32 [2, 3], model needs F32 [3, 2]; tensor absent is missing; "
                 "tensor spare is not used (memory); "
                 "tensor b: cannot stack F32 [2, 4] with a, which is F32 [2, 3]");
    assert_null(p);
    assert_string_equal(said.data,
                        "tensor a is F32 [2, 3], model needs F32 [3, 2]\n"
                        "tensor absent is missing\n"
                        "tensor spare is not used (memory)\n"
                        "tensor b: cannot stack F32 [2, 4] with a, which is F32 [2, 3]\n");
    d9d_buf_release(&said);
    d9d_mapper_free(m);
    mem_tensors_free(&from);
}

static void shapes_that_do_not_suit_an_operation_are_mismatches(void **state)
{
    const int64_t shape[] = {2, 3};
    static const char *const three[] = {"x", "y", "z"};
    mem_tensors from = {.n = 0};
    d9d_tensor_source src;

    (void)state;
    (void)mem_tensors_add(&from, "a", D9D_I32, 2, shape);
    src = mem_tensors_source(&from);
    for (int i = 0; i < 6; i++) {
        static const char *const sentences[] = {
            "a: cannot transpose dimension 2 of I32 [2, 3]",
            "a: cannot unstack 2 parts into 3",
            "a: cannot chunk a dimension of 2 into 3 parts",
            "a: cannot squeeze dimension 1 of size 3",
            "a: cannot cast int32 to bfloat16",
            "a: cannot concat dimension -3 of I32 [2, 3]",
        };
        d9d_map_plan *p = NULL;
        d9d_mapper *m;

        assert_ok(d9d_mapper_create(&m));
        switch (i) {
        case 0: assert_ok(d9d_mapper_transpose(m, "a", 0, 2)); break;
        case 1: assert_ok(d9d_mapper_unstack(m, "a", three, 3, 0)); break;
        case 2: assert_ok(d9d_mapper_chunk(m, "a", three, 3, 0)); break;
        case 3: assert_ok(d9d_mapper_squeeze(m, "a", -1)); break;
        case 4: assert_ok(d9d_mapper_cast(m, "a", D9D_BF16)); break;
        case 5: assert_ok(d9d_mapper_concat(m, (const char *const[]){"a"}, 1, "b", -3)); break;
        }
        assert_fails_like(d9d_map_plan_create(m, &src, NULL, &p), D9D_EMISMATCH, sentences[i]);
        assert_null(p);
        d9d_mapper_free(m);
    }
    mem_tensors_free(&from);
}

/* --- casts ------------------------------------------------------------------------------------ */

static void every_half_survives_float_and_back(void **state)
{
    const d9d_dtype up = D9D_F32;

    (void)state;
    for (int which = 0; which < 2; which++) {
        d9d_dtype half = which == 0 ? D9D_F16 : D9D_BF16;

        for (unsigned u = 0; u < 65536; u++) {
            uint16_t in = (uint16_t)u, out;
            float f;

            d9di_cast_chain(&in, half, &up, 1, &f, 1);
            d9di_cast_chain(&f, D9D_F32, &half, 1, &out, 1);
            if (isnan(f))
                assert_true(d9di_cast_first_nonfinite(&out, half, 1) == 0);
            else
                assert_int_equal(out, in);
            assert_int_equal(d9di_cast_first_nonfinite(&in, half, 1) == 0, !isfinite(f));
        }
    }
}

static void floats_round_to_the_nearest_half(void **state)
{
    static const struct {
        float in;
        uint16_t f16, bf16;
    } rows[] = {
        {1.0f, 0x3c00, 0x3f80},          {65504.0f, 0x7bff, 0x4780},
        {65519.996f, 0x7bff, 0x4780},    {65520.0f, 0x7c00, 0x4780},
        {5.9604645e-8f, 0x0001, 0x3380}, {2.9802322e-8f, 0x0000, 0x3300},
        {2.9802326e-8f, 0x0001, 0x3300}, {6.1035156e-5f, 0x0400, 0x3880},
        {6.1005350e-5f, 0x03ff, 0x3880}, {1.0004883f, 0x3c00, 0x3f80},
        {1.0014648f, 0x3c02, 0x3f80},    {-0.0f, 0x8000, 0x8000},
        {INFINITY, 0x7c00, 0x7f80},
    };
    const d9d_dtype f16 = D9D_F16, bf16 = D9D_BF16;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint16_t a, b;

        d9di_cast_chain(&rows[i].in, D9D_F32, &f16, 1, &a, 1);
        d9di_cast_chain(&rows[i].in, D9D_F32, &bf16, 1, &b, 1);
        assert_int_equal(a, rows[i].f16);
        assert_int_equal(b, rows[i].bf16);
    }
}

static void casts_of_a_chain_are_all_done(void **state)
{
    const int64_t n = 5000;
    mem_tensors from = {.n = 0}, to = {.n = 0};
    d9d_map_plan_opts opt = {.cast = true, .cast_to = D9D_F32};
    d9d_tensor_source src;
    d9d_tensor_sink sink = mem_tensors_sink(&to);
    d9d_map_plan *p;
    d9d_mapper *m, *next;
    float *in, *out;
    uint32_t *ids;

    (void)state;
    in = (float *)(void *)mem_tensors_add(&from, "x", D9D_F32, 1, &n)->data;
    ids = (uint32_t *)(void *)mem_tensors_add(&from, "ids", D9D_U32, 1, &n)->data;
    for (int64_t i = 0; i < n; i++) {
        in[i] = 1.0f + (float)i / 4096;
        ids[i] = (uint32_t)i;
    }
    src = mem_tensors_source(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_cast(m, "x", D9D_BF16));
    assert_ok(d9d_mapper_identity(m, "ids"));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_cast(next, "x", D9D_F64));
    assert_ok(d9d_mapper_compose(m, next));
    assert_ok(d9d_map_plan_create(m, &src, &opt, &p));
    assert_ok(d9d_map_plan_run(p, &sink, 1, NULL));
    d9d_map_plan_free(p);
    out = (float *)(void *)mem_tensors_find(&to, "x")->data;
    for (int64_t i = 0; i < n; i++)
        assert_true(out[i] == d9d_bf16_to_f32(d9d_bf16_from_f32(in[i])));
    assert_memory_equal(mem_tensors_find(&to, "ids")->data, ids, (size_t)n * 4);
    d9d_mapper_free(m);
    mem_tensors_free(&from);
    mem_tensors_free(&to);
}

/* Elements of a transposed matrix and of its halves, where bands contain elements of others too. */
static void a_cast_saturates(void **state)
{
    enum { ROWS = 1100, COLUMNS = 700 };
    const int64_t shape[] = {ROWS, COLUMNS};
    const d9d_dtype f16 = D9D_F16;
    d9d_map_plan_opts opt = {.cast = true, .cast_to = D9D_F16};
    mem_tensors from = {.n = 0};
    d9d_map_plan *p;
    d9d_tensor_source src;
    d9d_mapper *m, *next;
    float *in;

    (void)state;
    in = (float *)(void *)mem_tensors_add(&from, "x", D9D_F32, 2, shape)->data;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        in[i] = i % 7919 == 0 ? (i % 2 != 0 ? -1e6f : 1e5f + (float)i) : (float)(i % 1000);
    in[COLUMNS + 1] = INFINITY;
    src = mem_tensors_source(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_transpose(m, "x", 0, 1));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_chunk(next, "x", (const char *const[]){"u", "v"}, 2, 1));
    assert_ok(d9d_mapper_compose(m, next));
    assert_ok(d9d_map_plan_create(m, &src, &opt, &p));
    {
        mem_tensors to = {.n = 0};
        d9d_tensor_sink sink = mem_tensors_sink(&to);

        assert_fails_like(d9d_map_plan_run(p, &sink, 1, NULL), D9D_ECONFIG,
                          "values are beyond float16");
        mem_tensors_free(&to);
    }
    d9d_map_plan_free(p);
    for (int jobs = 1; jobs <= 3; jobs += 2) {
        mem_tensors to = {.n = 0};
        d9d_tensor_sink sink = mem_tensors_sink(&to);

        opt.overflow = D9D_CAST_OVERFLOW_SATURATE;
        assert_ok(d9d_map_plan_create(m, &src, &opt, &p));
        assert_ok(d9d_map_plan_run(p, &sink, jobs, NULL));
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLUMNS; c++) {
                const int half = ROWS / 2, side = r / half;
                const uint16_t *out =
                    (const void *)mem_tensors_find(&to, side == 0 ? "u" : "v")->data;
                const float old = in[r * COLUMNS + c];
                const float want = isfinite(old) ? fminf(fmaxf(old, -65504.0f), 65504.0f) : old;
                uint16_t bits;

                (void)d9di_cast_chain(&want, D9D_F32, &f16, 1, &bits, 1);
                assert_int_equal(out[c * half + r % half], bits);
            }
        d9d_map_plan_free(p);
        mem_tensors_free(&to);
    }
    d9d_mapper_free(m);
    mem_tensors_free(&from);
}

/* --- printing
 * ------------------------------------------------------------------------------------- */

static void plans_are_printed(void **state)
{
    const int64_t shape[] = {2, 3};
    mem_tensors from = {.n = 0};
    d9d_tensor_source src;
    d9d_map_plan *p;
    d9d_mapper *m, *next;
    d9d_buf b = {0};

    (void)state;
    (void)mem_tensors_add(&from, "a", D9D_F32, 2, shape);
    (void)mem_tensors_add(&from, "b", D9D_F32, 2, shape);
    (void)mem_tensors_add(&from, "c", D9D_F32, 2, shape);
    src = mem_tensors_source(&from);
    assert_ok(d9d_mapper_create(&m));
    assert_ok(d9d_mapper_stack(m, (const char *const[]){"a", "b"}, 2, "s", 0));
    assert_ok(d9d_mapper_drop(m, "c"));
    assert_ok(d9d_mapper_create(&next));
    assert_ok(d9d_mapper_transpose(next, "s", 1, 2));
    assert_ok(d9d_mapper_compose(m, next));
    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_print(p, "text", D9D_MAP_PLAN_ALL, &b));
    assert_string_equal(b.data, "group 0: stack(0), transpose(1, 2): 48 bytes\n"
                                "  < a F32 [2, 3] (memory at 0)\n"
                                "  < b F32 [2, 3] (memory at 0)\n"
                                "  > s F32 [2, 3, 2]\n"
                                "group 1: drop: 0 bytes\n"
                                "  < c F32 [2, 3] (memory at 0)\n"
                                "2 groups, 3 tensors in, 1 out, 48 bytes to read, 48 to write, "
                                "72 bytes of memory a job\n");
    b.len = 0;
    assert_ok(d9d_map_plan_print(p, "json", D9D_MAP_PLAN_ALL, &b));
    unit_check_has(b.data, "\"operation\": \"transpose(1, 2)\"", __FILE__, __LINE__);
    b.len = 0;
    assert_ok(d9d_map_plan_print(p, "dot", D9D_MAP_PLAN_ALL, &b));
    unit_check_has(b.data, "s0 -> s2;", __FILE__, __LINE__);
    assert_fails_like(d9d_map_plan_print(p, "xml", D9D_MAP_PLAN_ALL, &b), D9D_EINVAL, "xml");
    d9d_buf_release(&b);
    d9d_map_plan_free(p);
    d9d_mapper_free(m);
    mem_tensors_free(&from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_tensors_are_read_in_slices),
        cmocka_unit_test(outputs_are_kept_in_memory),
        cmocka_unit_test(names_that_collide_are_refused),
        cmocka_unit_test(prefixes_scope_inputs_and_outputs),
        cmocka_unit_test(a_parent_gives_its_children),
        cmocka_unit_test(what_does_not_fit_is_listed),
        cmocka_unit_test(shapes_that_do_not_suit_an_operation_are_mismatches),
        cmocka_unit_test(every_half_survives_float_and_back),
        cmocka_unit_test(floats_round_to_the_nearest_half),
        cmocka_unit_test(casts_of_a_chain_are_all_done),
        cmocka_unit_test(a_cast_saturates),
        cmocka_unit_test(plans_are_printed),
    };

    return cmocka_run_group_tests_name("mapper", tests, NULL, NULL);
}
