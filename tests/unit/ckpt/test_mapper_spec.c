/* test_mapper_spec.c - mapper descriptions: patterns and the steps that they declare. */
#include "support/mem_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/mapper/map_graph.h"
#include "ckpt/mapper/name_glob.h"
#include "d9d/ckpt/mapper/mapper_spec.h"

/* --- patterns --------------------------------------------------------------------------------- */

static void patterns_match_whole_names(void **state)
{
    static const struct {
        const char *pattern, *name, *becomes; /* NULL: no match */
        const char *template;
    } rows[] = {
        {"a.b", "a.b", "c", "c"},
        {"a.b", "a.bc", NULL, "c"},
        {"a.b", "aXb", NULL, "c"},
        {"a.{l}.w", "a.12.w", "12/12", "{l}/{l}"},
        {"a.{l}.w", "a..w", NULL, "{l}"},
        {"a.{l}.w", "a.1.2.w", NULL, "{l}"},
        {"a.{l:any}.w", "a.1.2.w", "1.2", "{l}"},
        {"a.{l:int}.w", "a.10.w", "10", "{l}"},
        {"a.{l:int}.w", "a.010.w", NULL, "{l}"},
        {"a.{l:int}.w", "a.-1.w", NULL, "{l}"},
        {"a.{l:int}.w", "a.0.w", "0", "{l}"},
        {"{a}_{b}", "x_y_z", "x_y z", "{a} {b}"}, /* the first wildcard is greedy */
        {"{a}_{b:int}", "w_q_3", "w_q3", "{a}{b}"},
        {"{a:any}.{b}", "x.y.z", "z.x.y", "{b}.{a}"},
        {"{{{a}}}", "{x}", "}x{", "}}{a}{{"},
        {"a+{x}(b)*$", "a+1(b)*$", "1", "{x}"}, /* only braces are special */
        {"\xc3\xa4{x}", "\xc3\xa4\xc3\xb6", "\xc3\xb6", "{x}"},
        {"{l:any}", "", NULL, "{l}"},
    };
    d9d_arena a = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *values[D9DI_MAX_CAPTURES], *out;
        d9di_glob_bindings b = {.n = 0};
        d9di_glob p, t;
        size_t length;
        bool matches;

        assert_ok(d9di_glob_parse(rows[i].pattern, "p", &a, &p));
        assert_ok(d9di_glob_compile(&p, "p", false));
        assert_ok(d9di_glob_parse(rows[i].template, "t", &a, &t));
        assert_ok(d9di_glob_match(&p, rows[i].name, &a, values, &length, &matches));
        if (matches != (rows[i].becomes != NULL))
            fail_msg("%s and %s", rows[i].pattern, rows[i].name);
        for (b.n = 0; b.n < p.n && matches; b.n++) {
            b.name[b.n] = p.tokens[b.n].capture;
            b.value[b.n] = values[b.n];
        }
        if (matches) {
            assert_int_equal(length, strlen(rows[i].name));
            assert_ok(d9di_glob_expand(&t, &b, &a, &out));
            assert_string_equal(out, rows[i].becomes);
        }
        d9di_glob_release(&p);
    }
    d9d_arena_release(&a);
}

static void patterns_that_are_none_are_refused(void **state)
{
    static const char *const rows[][2] = {
        {"a{", "p: a { without }; a brace itself is written {{"},
        {"a}", "p: a } without {; a brace itself is written }}"},
        {"{}", "p: \"{}\" is no capture: a name of letters, digits and _ is needed"},
        {"{1}", "p: \"{1}\" is no capture: a name of letters, digits and _ is needed"},
        {"{a b}", "p: \"{a b}\" is no capture: a name of letters, digits and _ is needed"},
        {"{a:in}", "p: \"{a:in}\": unknown class; there are int and any"},
        {"{a}{b}", "p: {a} and {b} need text between them"},
        {"{a}.{a}", "p: {a} is there twice"},
        {"{a}.{b}.{c}.{d}.{e}.{f}.{g}.{h}.{i}", "p: more than 8 captures"},
        {"a\nb", "p: a control character"},
    };
    d9d_arena a = {0};
    d9di_glob p;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_status st = d9di_glob_parse(rows[i][0], "p", &a, &p);

        assert_fails(st == D9D_OK ? d9di_glob_compile(&p, "p", false) : st, D9D_ECONFIG,
                     rows[i][1]);
    }
    d9d_arena_release(&a);
}

/* A pattern with exponentially many readings is rejected quickly. */
static void a_pattern_of_too_many_readings_is_refused(void **state)
{
    const char *values[D9DI_MAX_CAPTURES];
    char name[2001];
    d9d_arena a = {0};
    d9di_glob p;
    size_t length;
    bool matches;

    (void)state;
    memset(name, '-', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    name[0] = 'x';
    assert_ok(d9di_glob_parse("{a}-{b}-{c}-{d}-{e}-{f}-{g}-{h}x", "p", &a, &p));
    assert_ok(d9di_glob_compile(&p, "p", false));
    assert_fails_like(d9di_glob_match(&p, name, &a, values, &length, &matches), D9D_ECONFIG,
                      "too many ways to read tensor x---");
    d9di_glob_release(&p);
    d9d_arena_release(&a);
}

static void names_are_in_the_order_of_their_numbers(void **state)
{
    static const char *const order[] = {"",
                                        "a",
                                        "a.1",
                                        "a.1.b",
                                        "a.2",
                                        "a.010",
                                        "a.10",
                                        "a.11",
                                        "a.b",
                                        "a9999999999999999999999",
                                        "a10000000000000000000000",
                                        "ab",
                                        "b"};
    enum { N = sizeof(order) / sizeof(order[0]) };

    (void)state;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++)
            if (d9di_mapper_name_compare(order[i], order[k]) != (i > k) - (i < k))
                fail_msg("%s and %s", order[i], order[k]);
}

/* --- descriptions ----------------------------------------------------------------------------- */

static mem_tensors source;

static void add(const char *name, int ndim, int64_t a, int64_t b)
{
    (void)mem_tensors_add(&source, name, D9D_F32, ndim, (const int64_t[]){a, b});
}

/* The result of the stages (with other members after them) on `source`; "" and the error
 * otherwise. */
static d9d_status plan_of(const char *stages, d9d_buf *out)
{
    const d9d_tensor_source src = mem_tensors_source(&source);
    d9d_mapper_spec *spec = NULL;
    d9d_mapper *m = NULL;
    d9d_map_plan *p = NULL;
    d9d_buf text = {0};
    d9d_status st;

    out->len = 0;
    assert_ok(d9d_buf_printf(&text, "{\"schema\": \"d9d.mapper.v1\", \"stages\": %s}", stages));
    D9D_TRY_OR(st, d9d_mapper_spec_parse("m", text.data, text.len, &spec), out);
    D9D_TRY_OR(st, d9d_mapper_spec_build(spec, &src, &m), out);
    D9D_TRY_OR(st, d9d_map_plan_create(m, &src, NULL, &p), out);
    for (size_t i = 0; i < d9d_map_plan_output_count(p); i++)
        assert_ok(d9d_buf_printf(out, "%s ", d9d_map_plan_output(p, i)->name));
    assert_ok(d9d_map_plan_print(p, "text", D9D_MAP_PLAN_ALL, out));
out:
    d9d_map_plan_free(p);
    d9d_mapper_free(m);
    d9d_mapper_spec_free(spec);
    d9d_buf_release(&text);
    return st;
}

static void assert_plan(const char *stages, const char *const *parts)
{
    d9d_buf out = {0};

    assert_ok(plan_of(stages, &out));
    for (; *parts != NULL; parts++)
        unit_check_has(out.data, *parts, __FILE__, __LINE__);
    d9d_buf_release(&out);
}
#define HAS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void assert_refused(const char *stages, d9d_status want, const char *sentence)
{
    d9d_buf out = {0};

    if (plan_of(stages, &out) != want || strcmp(d9d_err_message(), sentence) != 0)
        fail_msg("%s: %s; not %s", stages, d9d_err_message(), sentence);
    d9d_buf_release(&out);
}

static int experts(void **state)
{
    (void)state;
    source = (mem_tensors){.n = 0};
    for (int l = 1; l >= 0; l--)
        for (int e = 11; e >= 0; e--) {
            char name[32];

            (void)snprintf(name, sizeof(name), "l.%d.e.%d.w", l, e);
            add(name, 2, 2, 3);
        }
    add("l.0.q", 2, 4, 2);
    add("l.0.k", 2, 2, 2);
    add("one", 2, 1, 2);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    mem_tensors_free(&source);
    return 0;
}

static void every_op_declares_its_leaves(void **state)
{
    (void)state;
    /* Expert 10 comes after 9, layers in order, whatever the order of the source. */
    assert_plan("[[{\"op\": \"stack\", \"from\": \"l.{l}.e.{e}.w\", \"over\": \"e\", \"to\": "
                "\"l.{l}.w\", \"count\": 12}]], \"rest\": \"keep\"",
                HAS("l.0.k l.0.q l.0.w l.1.w one group 0: stack(0)",
                    "l.0.e.9.w F32 [2, 3] (memory at 0)\n  < l.0.e.10.w",
                    "> l.1.w F32 [12, 2, 3]"));
    assert_plan("[[{\"op\": \"concat\", \"from\": [\"l.{l}.q\", \"l.{l}.k\"], \"to\": \"qk.{l}\", "
                "\"dim\": -2}], [{\"op\": \"split\", \"from\": \"qk.{l}\", \"to\": [\"a.{l}\", "
                "\"b{l}.{l}\"], \"sizes\": [1, 5]}]], \"rest\": \"drop\"",
                HAS("concat(-2), split(0, [1, 5])", "> a.0 F32 [1, 2]", "> b0.0 F32 [5, 2]"));
    assert_plan(
        "[[{\"op\": \"identity\", \"from\": \"one\", \"to\": \"uno\"}, {\"op\": \"squeeze\", "
        "\"from\": \"l.0.q\"}, {\"op\": \"unsqueeze\", \"from\": \"l.0.k\", \"dim\": 1}], "
        "[{\"op\": \"squeeze\", \"from\": \"uno\", \"dim\": 0}]], \"rest\": \"drop\"",
        HAS("rename, squeeze(0)", "> uno F32 [2]", "> l.0.q F32 [4, 2]", "unsqueeze(1)",
            "> l.0.k F32 [2, 1, 2]"));
    assert_plan(
        "[[{\"op\": \"unflatten\", \"from\": \"l.{l}.q\", \"to\": \"q.{l}\", \"sizes\": [-1, 2]}], "
        "[{\"op\": \"transpose\", \"from\": \"q.{l}\", \"dims\": [0, 1]}], [{\"op\": \"flatten\", "
        "\"from\": \"q.{l}\", \"end_dim\": 1}, {\"op\": \"flatten\", \"from\": \"one\"}]], "
        "\"rest\": \"drop\"",
        HAS("unflatten(0, [-1, 2]), transpose(0, 1), flatten(0, 1)", "> q.0 F32 [4, 2]",
            "flatten(0, -1)", "> one F32 [2]"));
    assert_plan(
        "[[{\"op\": \"unstack\", \"from\": \"l.0.q\", \"over\": \"i\", \"to\": \"r{i}\"}, "
        "{\"op\": \"chunk\", \"from\": \"l.0.k\", \"over\": \"i\", \"count\": 2, \"to\": "
        "\"c.{i}\", \"dim\": 1}, {\"op\": \"duplicate\", \"from\": \"one\", \"to\": [\"x\", "
        "\"y\"]}]], \"rest\": \"drop\"",
        HAS("c.0 c.1 r0 r1 r2 r3 x y ", "> r3 F32 [2]", "> c.1 F32 [2, 1]", "duplicate"));
    assert_plan("[[{\"op\": \"cast\", \"from\": [\"one\", \"l.{l}.q\"], \"dtype\": \"float64\"}, "
                "{\"op\": \"drop\", \"from\": \"{x:any}.w\"}, {\"op\": \"transpose\", \"from\": "
                "\"l.0.k\", \"dims\": [0, 1]}]]",
                HAS("> one F64 [1, 2]", "> l.0.q F64", "transpose(0, 1)", ": drop: 0 bytes"));
    assert_plan(
        "[[{\"op\": \"select\", \"parent\": \"l.0\", \"from\": \"{n}\"}]], \"rest\": \"drop\"",
        HAS("k q ", "< l.0.q F32 [4, 2]", "> q F32 [4, 2]"));
}

static void placements_and_composers(void **state)
{
    (void)state;
    assert_plan("[[{\"op\": \"distribute\", \"from\": \"l.{x}.q\", \"to\": \"q.{x}\", \"mesh\": "
                "[2, 3], \"placements\": [\"replicate\", \"shard(0)\"], \"coordinate\": [1, 1]}]], "
                "\"rest\": \"drop\"",
                HAS("distribute(replicate 1/2, shard(0) 1/3)", "> q.0 F32 [2, 2]"));
    assert_plan("[[{\"op\": \"gather\", \"from\": \"l.0.e.{r}.w\", \"over\": \"r\", \"to\": \"g\", "
                "\"mesh\": [3, 4], \"placements\": [\"shard(0)\", \"shard(-1)\"]}]], \"rest\": "
                "\"drop\"",
                HAS("gather(shard(0) /3, shard(-1) /4)", "> g F32 [6, 12]"));
    /* A scope for each match of its prefix, with its captures. */
    assert_plan(
        "[[{\"op\": \"scope\", \"from\": \"l.{l}.\", \"to\": \"layer{l}/\", \"stages\": "
        "[[{\"op\": \"stack\", \"from\": \"e.{e}.w\", \"over\": \"e\", \"to\": \"w\"}], "
        "[{\"op\": \"transpose\", \"from\": \"w\"}]], \"rest\": \"keep\"}]], \"rest\": \"keep\"",
        HAS("layer0/k layer0/q layer0/w layer1/w one ", "stack(0), transpose(-2, -1)"));
    /* Of 27 groups in byte order: "l.0.e.0.w", "l.0.e.1.w", "l.0.e.10.w", ... */
    assert_plan("[[{\"op\": \"shard\", \"total\": 9, \"current\": 2, \"stages\": [], \"rest\": "
                "\"keep\"}]]",
                HAS("l.0.e.9.w l.0.e.10.w l.1.e.4.w group", ": drop: 0 bytes"));
}

static void what_a_description_gets_wrong_is_said(void **state)
{
    (void)state;
    assert_refused("[[{\"op\": \"stack\", \"from\": \"l.{l}.e.{e}.w\", \"over\": \"e\", \"to\": "
                   "\"l.{l}\", \"count\": 11}]]",
                   D9D_ECONFIG, "m: stages[0][0] (stack): l.0 has a part 11, count is 11");
    assert_refused("[[{\"op\": \"drop\", \"from\": \"l.0.e.3.w\"}], [{\"op\": \"stack\", \"from\": "
                   "\"l.{l}.e.{e}.w\", \"over\": \"e\", \"to\": \"l.{l}\"}]]",
                   D9D_ECONFIG, "m: stages[1]: tensor l.0.e.3.w is taken twice");
    assert_refused(
        "[[{\"op\": \"concat\", \"from\": [\"l.{l}.q\", \"l.{k}.k\"], \"to\": \"x\"}]]",
        D9D_ECONFIG,
        "m: stages[0][0] (concat): from \"l.{l}.q\" and \"l.{k}.k\" have other captures");
    assert_refused("[[{\"op\": \"rename\", \"from\": \"one\", \"to\": \"{x}\"}]]", D9D_ECONFIG,
                   "m: stages[0][0] (rename): to \"{x}\": {x} is not a capture of \"one\"");
    assert_refused(
        "[[{\"op\": \"unstack\", \"from\": \"l.{i}.q\", \"over\": \"i\", \"to\": \"r{i}\"}]]",
        D9D_ECONFIG,
        "m: stages[0][0] (unstack): from \"l.{i}.q\": {i} numbers the parts, not the whole");
    assert_refused(
        "[[{\"op\": \"transpose\", \"from\": \"one\"}], [{\"op\": \"unstack\", \"from\": "
        "\"one\", \"over\": \"i\", \"to\": \"r{i}\"}]]",
        D9D_ECONFIG, "m: stages[1][0] (unstack): count is needed: one is not as in the source");
    assert_refused("[[{\"op\": \"chunk\", \"from\": \"one\", \"over\": \"i\", \"to\": \"r{i}\"}]]",
                   D9D_ECONFIG, "m: stages[0][0].count: over needs to know how many parts to make");
    assert_refused(
        "[[{\"op\": \"unstack\", \"from\": \"one\", \"over\": \"i\", \"count\": 2000000000, "
        "\"to\": \"r{i}\"}]]",
        D9D_ECONFIG, "m: stages[0][0] (unstack): more than 4194304 tensors");
    assert_refused(
        "[[{\"op\": \"gather\", \"from\": [\"one\", \"l.0.q\"], \"to\": \"x\", \"mesh\": [2], "
        "\"placements\": [\"Shard(0)\"]}]]",
        D9D_ECONFIG, "m: stages[0][0].placements[0]: expected \"replicate\" or \"shard(N)\"");
    assert_refused(
        "[[{\"op\": \"gather\", \"from\": [\"one\", \"l.0.q\"], \"to\": \"x\", \"mesh\": "
        "[2, 2], \"placements\": [\"shard(0)\", \"replicate\"]}]]",
        D9D_ECONFIG, "m: stages[0][0] (gather): x: 2 parts to gather from a mesh of 4");
    assert_refused("[[{\"op\": \"shard\", \"total\": 2, \"current\": 2, \"stages\": []}]]",
                   D9D_ECONFIG, "m: stages[0][0] (shard): share 2 of 2");
    assert_refused("[[{\"op\": \"rename\", \"from\": \"one\", \"to\": \"__metadata__\"}]]",
                   D9D_ECONFIG, "m: gives a tensor the name \"__metadata__\"");
    assert_refused(
        "[[{\"op\": \"unflatten\", \"from\": \"one\", \"sizes\": [-1, 2, -1]}]]", D9D_ECONFIG,
        "m: stages[0][0] (unflatten): cannot unflatten one into 2 dimensions of size -1");
    assert_refused("[[{\"op\": \"rename\", \"from\": [], \"to\": \"x\"}]]", D9D_ECONFIG,
                   "m: stages[0][0].from: has 0 names, 1 to 65536 are allowed");
    assert_refused(
        "[[{\"from\": \"one\"}]]", D9D_ECONFIG,
        "m: stages[0][0].op: required key is missing; expected identity, rename, "
        "select, transpose, squeeze, unsqueeze, unflatten, flatten, cast, drop, stack, concat, "
        "unstack, chunk, split, duplicate, distribute, gather, scope or shard");
    assert_refused("[], \"rest\": \"refuse\", \"expect\": {\"one\": [\"A*B\"]}", D9D_EMISMATCH,
                   "m: expect: tensor one is F32 [1, 2], expected [A*B]");
    assert_refused(
        "[], \"expect\": {\"one\": [\"A*B\", 2]}", D9D_ECONFIG,
        "m: expect: \"one\": A*B has more than one letter that no shape before it defines");
    assert_refused(
        "[], \"expect\": {\"one\": [\"2*\", 2]}", D9D_ECONFIG,
        "m: expect[\"one\"][0]: expected a size: a number, a word, or their product such as "
        "\"3*H\"");
}

static void what_is_missing_is_listed_with_what_is_not_used(void **state)
{
    (void)state;
    add("l.7.q", 2, 4, 2);
    assert_refused("[[{\"op\": \"stack\", \"from\": \"l.{l}.e.{e}.w\", \"over\": \"e\", \"to\": "
                   "\"l.{l}\", \"count\": 13}, {\"op\": \"concat\", \"from\": [\"l.{l}.q\", "
                   "\"l.{l}.k\"], \"to\": \"qk.{l}\"}]]",
                   D9D_EMISMATCH,
                   "source and mapper: 3 missing, 1 unused, 0 mis-shaped tensors: tensor "
                   "l.0.e.12.w is missing; tensor l.1.e.12.w is missing; tensor l.7.k is missing; "
                   "tensor one is not used (memory)");
}

/* Each stage doubles the tensors: the plan must be rejected before memory ends. */
static void descriptions_cannot_grow_without_bound(void **state)
{
    d9d_buf stages = {0}, out = {0};

    (void)state;
    assert_ok(d9d_buf_printf(&stages, "["));
    for (int i = 0; i < 32; i++)
        assert_ok(d9d_buf_printf(
            &stages,
            "%s[{\"op\": \"duplicate\", \"from\": \"one\", \"to\": [\"a\", \"b\"]}], "
            "[{\"op\": \"concat\", \"from\": [\"a\", \"b\"], \"to\": \"one\"}]",
            i > 0 ? ", " : ""));
    assert_ok(d9d_buf_printf(&stages, "], \"rest\": \"drop\""));
    assert_fails_like(plan_of(stages.data, &out), D9D_ENOTSUP, " boxes");
    d9d_buf_release(&stages);
    d9d_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_whole_names),
        cmocka_unit_test(patterns_that_are_none_are_refused),
        cmocka_unit_test(a_pattern_of_too_many_readings_is_refused),
        cmocka_unit_test(names_are_in_the_order_of_their_numbers),
        cmocka_unit_test_setup_teardown(every_op_declares_its_leaves, experts, clear),
        cmocka_unit_test_setup_teardown(placements_and_composers, experts, clear),
        cmocka_unit_test_setup_teardown(what_a_description_gets_wrong_is_said, experts, clear),
        cmocka_unit_test_setup_teardown(what_is_missing_is_listed_with_what_is_not_used, experts,
                                        clear),
        cmocka_unit_test_setup_teardown(descriptions_cannot_grow_without_bound, experts, clear),
    };

    return cmocka_run_group_tests_name("mapper_spec", tests, NULL, NULL);
}
