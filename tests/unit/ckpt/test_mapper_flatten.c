/* test_mapper_flatten.c - unflatten and flatten: fused tensors of HuggingFace checkpoints, boxes,
 * errors.  Random graphs of them are in test_mapper_random.c. */
#include "support/mem_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mem_tensors from, to;

static uint16_t element(const mem_tensor *a, int64_t i)
{
    uint16_t u;

    memcpy(&u, a->data + 2 * i, sizeof(u));
    return u;
}

/* Adds a source of U16 elements, all different. */
static mem_tensor *add(const char *name, int ndim, const int64_t *shape)
{
    mem_tensor *a = mem_tensors_add(&from, name, D9D_U16, ndim, shape);

    for (uint64_t i = 0; i < a->t.bytes / 2; i++) {
        uint16_t u = (uint16_t)(i + 10000 * from.n);

        memcpy(a->data + 2 * i, &u, sizeof(u));
    }
    return a;
}
#define ADD(name, ndim, ...) add(name, ndim, (const int64_t[]){__VA_ARGS__})

/* m = m followed by the steps of *next, which is reset. */
static void then(d9d_mapper *m, d9d_mapper **next)
{
    assert_ok(d9d_mapper_compose(m, *next));
    assert_ok(d9d_mapper_create(next));
}

static void begin(d9d_mapper **m, d9d_mapper **next)
{
    assert_ok(d9d_mapper_create(m));
    assert_ok(d9d_mapper_create(next));
}

static void run_in_slices(d9d_mapper *m, d9d_mapper *next, uint64_t slice)
{
    d9d_mapper_free(next);
    to = (mem_tensors){.slice = slice};
    mem_tensors_run(m, &from, &to, 2);
    d9d_mapper_free(m);
}

static void finish(void)
{
    mem_tensors_free(&from);
    mem_tensors_free(&to);
}

static void count_boxes(d9d_mapper *m, int want)
{
    const d9d_tensor_source src = mem_tensors_source(&from);
    d9d_map_plan *p;
    d9d_buf text = {0};
    int n = 0;

    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_print(p, "text", D9D_MAP_PLAN_ALL | D9D_MAP_PLAN_BOXES, &text));
    for (const char *at = text.data; (at = strstr(at, "  | [")) != NULL; at++)
        n++;
    if (n != want)
        fail_msg("%d boxes, not %d: %s", n, want, text.data);
    d9d_buf_release(&text);
    d9d_map_plan_free(p);
}

/* --- fused tensors of HuggingFace ------------------------------------------------------------- */

enum { E = 2, H = 5, I = 7, A = 3, D = 4 };

static void interleaved_gate_and_up_are_two_boxes(void **state)
{
    static const char *const parts[] = {"gate", "up"};

    (void)state;
    for (uint64_t slice = 0; slice < 40; slice++) {
        const mem_tensor *x = ADD("x", 3, E, H, 2 * I);
        d9d_mapper *m, *next;

        begin(&m, &next);
        assert_ok(d9d_mapper_unflatten(next, "x", -1, (const int64_t[]){I, 2}, 2));
        then(m, &next);
        assert_ok(d9d_mapper_split(next, "x", parts, (const int64_t[]){1, 1}, 2, 3));
        then(m, &next);
        for (int k = 0; k < 2; k++)
            assert_ok(d9d_mapper_flatten(next, parts[k], 2, 3));
        then(m, &next);
        count_boxes(m, 2);
        run_in_slices(m, next, slice);
        for (int k = 0; k < 2; k++) {
            const mem_tensor *part = mem_tensors_find(&to, parts[k]);

            assert_int_equal(part->t.ndim, 3);
            for (int64_t i = 0; i < E * H * I; i++)
                assert_int_equal(element(part, i), element(x, 2 * i + k));
        }
        finish();
    }
}

static void gate_and_up_are_interleaved_by_two_boxes(void **state)
{
    static const char *const parts[] = {"gate", "up"};

    (void)state;
    for (uint64_t slice = 0; slice < 40; slice++) {
        const mem_tensor *gate = ADD("gate", 3, E, I, H), *up = ADD("up", 3, E, I, H);
        const mem_tensor *x;
        d9d_mapper *m, *next;

        begin(&m, &next);
        for (int k = 0; k < 2; k++)
            assert_ok(d9d_mapper_transpose(next, parts[k], 1, 2));
        then(m, &next);
        assert_ok(d9d_mapper_stack(next, parts, 2, "x", 3));
        then(m, &next);
        assert_ok(d9d_mapper_flatten(next, "x", -2, -1));
        then(m, &next);
        count_boxes(m, 2);
        run_in_slices(m, next, slice);
        x = mem_tensors_find(&to, "x");
        assert_int_equal(x->t.shape[2], 2 * I);
        for (int64_t e = 0; e < E; e++)
            for (int64_t h = 0; h < H; h++)
                for (int64_t i = 0; i < 2 * I; i++)
                    assert_int_equal(element(x, (e * H + h) * 2 * I + i),
                                     element(i % 2 == 0 ? gate : up, (e * I + i / 2) * H + h));
        finish();
    }
}

/* Element [p, h] of part k of head a, in the rows of GPT-NeoX's query_key_value. */
static int64_t fused_at(int a, int k, int p, int h)
{
    return (((a * 3 + k) * D) + p) * H + h;
}

static void fused_heads_come_apart_and_together(void **state)
{
    static const char *const parts[] = {"q", "k", "v"};
    const mem_tensor *x = ADD("x", 2, A * 3 * D, H);
    d9d_mapper *m, *next;

    (void)state;
    begin(&m, &next);
    assert_ok(d9d_mapper_unflatten(next, "x", 0, (const int64_t[]){A, 3, -1}, 3));
    then(m, &next);
    assert_ok(d9d_mapper_split(next, "x", parts, (const int64_t[]){1, 1, 1}, 3, 1));
    then(m, &next);
    for (int k = 0; k < 3; k++)
        assert_ok(d9d_mapper_flatten(next, parts[k], 0, 2));
    then(m, &next);
    count_boxes(m, 3 * A);
    run_in_slices(m, next, 9);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < A * D * H; i++)
            assert_int_equal(element(mem_tensors_find(&to, parts[k]), i),
                             element(x, fused_at(i / H / D, k, i / H % D, i % H)));
    mem_tensors_free(&from);
    from = to; /* and back */
    for (size_t i = 0; i < from.n; i++)
        from.a[i].t.name = from.a[i].name;
    begin(&m, &next);
    for (int k = 0; k < 3; k++)
        assert_ok(d9d_mapper_unflatten(next, parts[k], 0, (const int64_t[]){A, 1, D}, 3));
    then(m, &next);
    assert_ok(d9d_mapper_concat(next, parts, 3, "x", 1));
    then(m, &next);
    assert_ok(d9d_mapper_flatten(next, "x", 0, 2));
    then(m, &next);
    count_boxes(m, 3 * A);
    run_in_slices(m, next, 0);
    x = mem_tensors_find(&to, "x");
    assert_int_equal(x->t.ndim, 2);
    for (int i = 0; i < A * 3 * D * H; i++)
        assert_int_equal(element(x, i), (uint16_t)(i + 10000));
    finish();
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* Parts whose bounds are not at rows: a partial row, whole rows, a partial row. */
static void a_part_becomes_at_most_three_boxes(void **state)
{
    static const char *const parts[] = {"a", "b", "c"};
    d9d_mapper *m, *next;

    (void)state;
    for (int64_t a = 0; a <= 12; a++)
        for (int64_t b = 0; a + b <= 24; b += 5) {
            const int64_t sizes[] = {a, b, 24 - a - b};
            const int rows = (int)((a + b) / 4 - (a + 3) / 4);
            const int b_boxes = (a % 4 != 0) + ((a + b) % 4 != 0) + (rows > 0);
            const mem_tensor *x;

            (void)ADD("a", 1, sizes[0]);
            (void)ADD("b", 1, sizes[1]);
            (void)ADD("c", 1, sizes[2]);
            begin(&m, &next);
            assert_ok(d9d_mapper_concat(next, parts, 3, "x", 0));
            then(m, &next);
            assert_ok(d9d_mapper_unflatten(next, "x", 0, (const int64_t[]){6, 4}, 2));
            then(m, &next);
            count_boxes(m, (a >= 4) + (a % 4 != 0) +
                               (b == 0     ? 0
                                : rows < 0 ? 1
                                           : b_boxes) +
                               (sizes[2] >= 4) + (sizes[2] % 4 != 0));
            run_in_slices(m, next, (uint64_t)(a % 5));
            x = mem_tensors_find(&to, "x");
            for (int64_t i = 0; i < 24; i++)
                assert_int_equal(element(x, i), (uint16_t)(i < a       ? 10000 + i
                                                           : i < a + b ? 20000 + i - a
                                                                       : 30000 + i - a - b));
            finish();
        }
}

/* Every second and every third element, cut anywhere and reshaped, also such that rows differ. */
static void steps_are_cut_and_divided(void **state)
{
    static const char *const sources[] = {"a", "b", "c"}, *const parts[] = {"y", "z"};
    d9d_mapper *m, *next;

    (void)state;
    for (int n = 2; n <= 3; n++)
        for (int64_t cut = 0; cut <= 12 * n; cut++) {
            const int64_t sizes[] = {cut, 12 * n - cut}, whole[][3] = {{4, -1, n}, {-1, n + 1, 1}};

            for (int k = 0; k < n; k++)
                (void)ADD(sources[k], 1, 12);
            begin(&m, &next);
            assert_ok(d9d_mapper_stack(next, sources, (size_t)n, "x", 1));
            then(m, &next);
            assert_ok(d9d_mapper_flatten(next, "x", 0, 1));
            then(m, &next);
            assert_ok(d9d_mapper_split(next, "x", parts, sizes, 2, 0));
            then(m, &next);
            assert_ok(d9d_mapper_concat(next, parts, 2, "x", 0));
            then(m, &next);
            assert_ok(d9d_mapper_unflatten(next, "x", 0, whole[cut % 2], 3));
            then(m, &next);
            run_in_slices(m, next, (uint64_t)(cut % 7));
            for (int64_t i = 0; i < 12 * n; i++)
                assert_int_equal(element(mem_tensors_find(&to, "x"), i),
                                 (uint16_t)(10000 * (1 + i % n) + i / n));
            assert_int_equal(mem_tensors_find(&to, "x")->t.shape[1], cut % 2 == 0 ? 3 : n + 1);
            finish();
        }
}

static void nothing_and_six_dimensions(void **state)
{
    const int64_t six[] = {1, 2, 1, 3, 2, -1}, none[] = {3, -1, 2}, one[] = {-1};
    d9d_mapper *m, *next;

    (void)state;
    (void)ADD("a", 1, 24);
    (void)ADD("none", 2, 0, 5);
    begin(&m, &next);
    assert_ok(d9d_mapper_unflatten(next, "a", 0, six, 6));
    assert_ok(d9d_mapper_unflatten(next, "none", 0, none, 3));
    then(m, &next);
    count_boxes(m, 1);
    assert_ok(d9d_mapper_flatten(next, "a", 0, -1));
    assert_ok(d9d_mapper_flatten(next, "none", 1, 3));
    then(m, &next);
    assert_ok(d9d_mapper_unflatten(next, "a", 0, one, 1));
    assert_ok(d9d_mapper_flatten(next, "none", 1, 1));
    then(m, &next);
    run_in_slices(m, next, 5);
    assert_int_equal(mem_tensors_find(&to, "a")->t.ndim, 1);
    assert_int_equal(mem_tensors_find(&to, "none")->t.shape[0], 3);
    assert_int_equal(mem_tensors_find(&to, "none")->t.shape[1], 0);
    for (int i = 0; i < 24; i++)
        assert_int_equal(element(mem_tensors_find(&to, "a"), i), 10000 + i);
    finish();
}

/* --- printing, fingerprints
 * ----------------------------------------------------------------------- */

static void no_fingerprint(void *self, d9d_hasher *h)
{
    (void)self;
    (void)h;
}

static d9d_hash fingerprint(d9d_mapper *m)
{
    d9d_tensor_source src = mem_tensors_source(&from);
    d9d_map_plan *p;
    d9d_hash h;

    src.fingerprint = no_fingerprint;
    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_fingerprint(p, &h));
    d9d_map_plan_free(p);
    return h;
}

static void fingerprints_are_of_boxes(void **state)
{
    static const char *const parts[] = {"a", "b"};
    d9d_mapper *m[3], *next;
    d9d_hash h[3];

    (void)state;
    (void)ADD("a", 1, 6);
    (void)ADD("b", 1, 6);
    for (int k = 0; k < 3; k++) { /* in order, the same by a detour, interleaved */
        begin(&m[k], &next);
        assert_ok(k == 0 ? d9d_mapper_concat(next, parts, 2, "x", 0)
                         : d9d_mapper_stack(next, parts, 2, "x", k - 1));
        then(m[k], &next);
        if (k > 0)
            assert_ok(d9d_mapper_flatten(next, "x", 0, 1));
        then(m[k], &next);
        d9d_mapper_free(next);
        h[k] = fingerprint(m[k]);
        d9d_mapper_free(m[k]);
    }
    assert_memory_equal(&h[0], &h[1], sizeof(h[0]));
    assert_memory_not_equal(&h[0], &h[2], sizeof(h[0]));
    mem_tensors_free(&from);
}

static void steps_are_printed(void **state)
{
    static const char *const parts[] = {"a", "b"};
    d9d_tensor_source src;
    d9d_mapper *m, *next;
    d9d_map_plan *p;
    d9d_buf text = {0};

    (void)state;
    (void)ADD("a", 1, 6);
    (void)ADD("b", 1, 6);
    src = mem_tensors_source(&from);
    begin(&m, &next);
    assert_ok(d9d_mapper_stack(next, parts, 2, "x", 1));
    then(m, &next);
    assert_ok(d9d_mapper_flatten(next, "x", 0, 1));
    then(m, &next);
    d9d_mapper_free(next);
    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_print(p, "text", D9D_MAP_PLAN_ALL | D9D_MAP_PLAN_BOXES, &text));
    unit_check_has(text.data, "stack(1), flatten(0, 1)", __FILE__, __LINE__);
    unit_check_has(text.data, "  | [0:11:2] of a from element 0 by [1]\n", __FILE__, __LINE__);
    unit_check_has(text.data, "  | [1:12:2] of b from element 0 by [1]\n", __FILE__, __LINE__);
    text.len = 0;
    assert_ok(d9d_map_plan_print(p, "json", D9D_MAP_PLAN_BOXES, &text));
    unit_check_has(text.data, "{\"start\": [1], \"size\": [6], \"step\": [2], \"source\": \"b\"",
                   __FILE__, __LINE__);
    d9d_buf_release(&text);
    d9d_map_plan_free(p);
    d9d_mapper_free(m);
    mem_tensors_free(&from);
}

/* --- errors ----------------------------------------------------------------------------------- */

static d9d_status plan_unflatten(int dim, const int64_t *sizes, size_t n)
{
    const d9d_tensor_source src = mem_tensors_source(&from);
    d9d_map_plan *p = NULL;
    d9d_mapper *m;
    d9d_status st;

    assert_ok(d9d_mapper_create(&m));
    st = d9d_mapper_unflatten(m, "x", dim, sizes, n);
    if (st == D9D_OK)
        st = d9d_map_plan_create(m, &src, NULL, &p);
    assert_null(p);
    d9d_mapper_free(m);
    return st;
}

static d9d_status plan_flatten(int start_dim, int end_dim, bool transposed)
{
    const d9d_tensor_source src = mem_tensors_source(&from);
    d9d_map_plan *p = NULL;
    d9d_mapper *m, *next;
    d9d_status st;

    begin(&m, &next);
    if (transposed)
        assert_ok(d9d_mapper_transpose(next, "x", 0, 1));
    then(m, &next);
    assert_ok(d9d_mapper_flatten(next, "x", start_dim, end_dim));
    then(m, &next);
    d9d_mapper_free(next);
    st = d9d_map_plan_create(m, &src, NULL, &p);
    assert_null(p);
    d9d_mapper_free(m);
    return st;
}

static void what_does_not_fit_is_refused(void **state)
{
    static const struct {
        int dim;
        int64_t sizes[7];
        size_t n;
        d9d_status st;
        const char *says;
    } rows[] = {
        {0, {2, 3}, 2, D9D_EMISMATCH, "x: cannot unflatten dimension 0 of U16 [4, 6] into [2, 3]"},
        {-1,
         {4, -1},
         2,
         D9D_EMISMATCH,
         "x: cannot unflatten dimension -1 of U16 [4, 6] into [4, -1]"},
        {0,
         {-1, 0},
         2,
         D9D_EMISMATCH,
         "x: cannot unflatten dimension 0 of U16 [4, 6] into [-1, 0]"},
        {0, {INT64_MAX, 4, 4}, 3, D9D_EMISMATCH, "x: cannot unflatten dimension 0 of U16 [4, 6]"},
        {2, {4}, 1, D9D_EMISMATCH, "x: cannot unflatten dimension 2 of U16 [4, 6]"},
        {0,
         {4, 1, 1, 1, 1, 1},
         6,
         D9D_EMISMATCH,
         "x: cannot unflatten a dimension of a tensor of 2 into 6, it has at most 6 dimensions"},
        {0, {4, 1, 1, 1, 1, 1, 1}, 7, D9D_EMISMATCH, "of a tensor of 2 into 7"},
        {0, {0}, 0, D9D_ECONFIG, "mapper: cannot unflatten x into no dimensions"},
        {0, {-2, 2}, 2, D9D_ECONFIG, "mapper: cannot unflatten x into a dimension of size -2"},
        {0, {-1, -1}, 2, D9D_ECONFIG, "mapper: cannot unflatten x into 2 dimensions of size -1"},
    };

    (void)state;
    (void)ADD("x", 2, 4, 6);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_fails_like(plan_unflatten(rows[i].dim, rows[i].sizes, rows[i].n), rows[i].st,
                          rows[i].says);
    assert_fails_like(plan_flatten(0, 2, false), D9D_EMISMATCH,
                      "x: cannot flatten dimension 2 of U16 [4, 6]");
    assert_fails_like(plan_flatten(1, 0, false), D9D_EMISMATCH,
                      "x: cannot flatten dimensions 1 to 0 of U16 [4, 6]");
    mem_tensors_free(&from);
}

static void what_is_too_much_is_refused(void **state)
{
    (void)state;
    from = (mem_tensors){.n = 1}; /* planned only, without data */
    (void)snprintf(from.a[0].name, sizeof(from.a[0].name), "x");
    from.a[0].t = (d9d_safetensors_tensor){.name = from.a[0].name,
                                           .dtype = D9D_U8,
                                           .ndim = 2,
                                           .shape = {1 << 20, (1 << 19) + 1},
                                           .bytes = (1ull << 39) + (1 << 20)};
    assert_fails_like(plan_flatten(0, 1, true), D9D_ENOTSUP,
                      "mapper: a tensor of 524289 boxes, 524288 are possible");
    from.a[0].t.shape[0] = INT64_C(1) << 62;
    from.a[0].t.shape[1] = 4;
    from.a[0].t.ndim = 3;
    from.a[0].t.bytes = 0; /* [2^62, 4, 0] */
    assert_fails_like(plan_flatten(0, 1, false), D9D_EMISMATCH,
                      "x: the size of the whole overflows");
    mem_tensors_free(&from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interleaved_gate_and_up_are_two_boxes),
        cmocka_unit_test(gate_and_up_are_interleaved_by_two_boxes),
        cmocka_unit_test(fused_heads_come_apart_and_together),
        cmocka_unit_test(a_part_becomes_at_most_three_boxes),
        cmocka_unit_test(steps_are_cut_and_divided),
        cmocka_unit_test(nothing_and_six_dimensions),
        cmocka_unit_test(fingerprints_are_of_boxes),
        cmocka_unit_test(steps_are_printed),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(what_is_too_much_is_refused),
    };

    return cmocka_run_group_tests_name("mapper_flatten", tests, NULL, NULL);
}
