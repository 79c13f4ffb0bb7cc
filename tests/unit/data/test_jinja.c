/* test_jinja.c - templates: sentences of errors with their lines, limits, memory, spans; what has
 * bytes of jinja2 to compare with is in tests/golden/test_golden_jinja.c. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/data/jinja/jinja.h"

static d9d_status render_with(const char *text, const char *context, const d9d_jinja_opts *opts,
                              d9d_buf *out, d9d_jinja_trace *trace)
{
    json_t *values = json_loads(context, 0, NULL);
    const d9d_jinja_template *t;
    d9d_arena arena = {0};
    d9d_status st = d9d_jinja_compile(text, strlen(text), "t.jinja", &arena, &t);

    assert_non_null(values);
    if (st == D9D_OK)
        st = d9d_jinja_render(t, values, opts, out, trace);
    json_decref(values);
    d9d_arena_release(&arena);
    return st;
}

static d9d_status render(const char *text)
{
    d9d_buf out = {0};
    const d9d_status st =
        render_with(text, "{\"l\": [1, 2, 3], \"d\": {\"a\": 1}}", NULL, &out, NULL);

    d9d_buf_release(&out);
    return st;
}

static void check(const char *text, const char *context, const char *want)
{
    d9d_buf out = {0};

    assert_ok(render_with(text, context, NULL, &out, NULL));
    assert_string_equal(out.data, want);
    d9d_buf_release(&out);
}

/* --- errors ----------------------------------------------------------------------------------- */

static const struct {
    const char *text;
    d9d_status st;
    const char *sentence;
} errors[] = {
    {"a\n{{ x", D9D_EFORMAT, "t.jinja: line 2: a tag has no \"}}\""},
    {"{% if x", D9D_EFORMAT, "t.jinja: line 1: a tag has no \"%}\""},
    {"\n\n{# x", D9D_EFORMAT, "t.jinja: line 3: a comment has no #}"},
    {"{% raw %}", D9D_EFORMAT, "t.jinja: line 1: {% raw %} has no {% endraw %}"},
    {"{{ 'x }}", D9D_EFORMAT, "t.jinja: line 1: a string has no end"},
    {"{{ (1] }}", D9D_EFORMAT, "t.jinja: line 1: unexpected \"]\""},
    {"{{ 1 }\n}", D9D_EFORMAT, "t.jinja: line 1: unexpected \"}\""},
    {"{{ $ }}", D9D_EFORMAT, "t.jinja: line 1: unexpected byte 0x24 in a tag"},
    {"{{ 99999999999999999999 }}", D9D_EFORMAT,
     "t.jinja: line 1: \"99999999999999999999\" is no number of 64 bits"},
    {"{{ '\\N{BULLET}' }}", D9D_ENOTSUP,
     "t.jinja: line 1: a string has an escape that is not supported"},
    {"{% if x %}\n", D9D_EFORMAT, "t.jinja: line 1: expected elif else endif, found \"the end\""},
    {"{% for x l %}{% endfor %}", D9D_EFORMAT, "t.jinja: line 1: expected \"in\", found \"l\""},
    {"{% set x = %}", D9D_EFORMAT, "t.jinja: line 1: expected an expression, found \"%}\""},
    {"{{ a == }}", D9D_EFORMAT, "t.jinja: line 1: expected an expression, found \"}}\""},
    {"{{ a b }}", D9D_EFORMAT, "t.jinja: line 1: expected \"}}\", found \"b\""},
    {"{{ a // // b }}", D9D_EFORMAT, "t.jinja: line 1: expected an expression, found \"//\""},
    {"\n{{ x | nope }}", D9D_ENOTSUP, "t.jinja: line 2: the filter \"nope\" is not supported"},
    {"{{ x is nope }}", D9D_ENOTSUP, "t.jinja: line 1: the test \"nope\" is not supported"},
    {"{% include 'x' %}", D9D_ENOTSUP, "t.jinja: line 1: {% include %} is not supported"},
    {"{% call n %}{% endcall %}", D9D_EFORMAT, "t.jinja: line 1: expected a call, found \"%}\""},
    {"{% nope %}", D9D_EFORMAT, "t.jinja: line 1: unexpected statement \"nope\""},
    {"{% for x in l recurse %}{% endfor %}", D9D_EFORMAT,
     "t.jinja: line 1: expected \"%}\", found \"recurse\""},
    {"{% break %}", D9D_EFORMAT, "t.jinja: line 1: \"break\" stands in no loop"},
    {"{{ f(**x, y) }}", D9D_EFORMAT, "t.jinja: line 1: expected \")\", found \"y\""},
    {"{% macro m(a, a) %}{% endmacro %}", D9D_EFORMAT,
     "t.jinja: line 1: a macro has two parameters \"a\""},
    {"a\n{{ d.b.c }}", D9D_EFORMAT, "t.jinja: line 2: there is no member \"b\""},
    {"{{ nope.c }}", D9D_EFORMAT, "t.jinja: line 1: \"nope\" is undefined"},
    {"{{ nope() }}", D9D_EFORMAT, "t.jinja: line 1: \"nope\" is undefined"},
    {"{{ l[7].c }}", D9D_EFORMAT, "t.jinja: line 1: there is no item of index 7"},
    {"{{ l.append(1) }}", D9D_EFORMAT,
     "t.jinja: line 1: \"append\" is not accessible to templates"},
    {"{{ (1 if false) + 1 }}", D9D_EFORMAT,
     "t.jinja: line 1: the condition of an \"if\" without \"else\" is false"},
    {"{% macro m(a) %}\n{{ a + 1 }}{% endmacro %}{{ m() }}", D9D_EFORMAT,
     "t.jinja: line 2: the parameter \"a\" was not provided"},
    {"{{ 1 + 'a' }}", D9D_EFORMAT, "t.jinja: line 1: \"+\" of a int and a str is not supported"},
    {"{{ 1 // 0 }}", D9D_EFORMAT, "t.jinja: line 1: division by zero"},
    {"{{ 9223372036854775807 + 1 }}", D9D_EFORMAT,
     "t.jinja: line 1: an integer has more than 64 bits"},
    {"{{ 1 < 'a' }}", D9D_EFORMAT, "t.jinja: line 1: a int and a str have no order"},
    {"{% for x in 5 %}{% endfor %}", D9D_EFORMAT,
     "t.jinja: line 1: a value of type int cannot be iterated"},
    {"{% set a, b = l %}", D9D_EFORMAT, "t.jinja: line 1: 3 values for 2 names"},
    {"{{ {[1]: 2} }}", D9D_EFORMAT, "t.jinja: line 1: a list cannot be a key"},
    {"{{ 'x'.center(3) }}", D9D_EFORMAT, "t.jinja: line 1: \"center\" is not supported"},
    {"{{ 'x' | trim(1, 2) }}", D9D_EFORMAT, "t.jinja: line 1: trim: takes 1 arguments, not 2"},
    {"{{ 'x' | trim(y=1) }}", D9D_EFORMAT,
     "t.jinja: line 1: trim: the argument \"y\" is not supported"},
    {"{{ 'x'.replace('x') }}", D9D_EFORMAT,
     "t.jinja: line 1: replace: an argument is missing, 2 are needed"},
    {"{{ nope | tojson }}", D9D_EFORMAT, "t.jinja: line 1: \"nope\" is undefined"},
    {"{{ strftime_now('%Y') }}", D9D_EFORMAT,
     "t.jinja: line 1: strftime_now: no date is given; --template-date gives it, in a "
     "configuration chat_template_date"},
    {"{{\nraise_exception('no ' ~ 1) }}", D9D_EFORMAT,
     "t.jinja: line 2: the template raised: no 1"},
    {"{% set d.x = 1 %}", D9D_EFORMAT,
     "t.jinja: line 1: \"d\" is no namespace, so \"x\" of it cannot be set"},
    {"{% for x in l %}{{ loop(l) }}{% endfor %}", D9D_EFORMAT,
     "t.jinja: line 1: a loop that is not marked \"recursive\" cannot be called"},
    {"{% for x in l recursive %}\n{{ loop() }}{% endfor %}", D9D_EFORMAT,
     "t.jinja: line 2: loop: an argument is missing, 1 are needed"},
    {"{% for x in l %}{{ loop.cycle() }}{% endfor %}", D9D_EFORMAT,
     "t.jinja: line 1: loop.cycle: there are no items"},
    {"{{ dict(**l) }}", D9D_EFORMAT, "t.jinja: line 1: \"**\" needs a dict, not a list"},
    {"{{ dict(**{1: 2}) }}", D9D_EFORMAT,
     "t.jinja: line 1: a key of what stands behind \"**\" is no name, but a int"},
    {"{{ dict(a=1, **{'a': 2}) }}", D9D_EFORMAT,
     "t.jinja: line 1: the argument \"a\" is there twice"},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        assert_fails(render(errors[i].text), errors[i].st, errors[i].sentence);
}

static void test_text(void **state)
{
    const d9d_jinja_template *t;
    d9d_arena arena = {0};

    (void)state;
    assert_fails(d9d_jinja_compile("a\xff", 2, "t", &arena, &t), D9D_EFORMAT,
                 "t: byte 1 is not valid UTF-8");
    assert_fails(d9d_jinja_compile("a\0b", 3, "t", &arena, &t), D9D_EFORMAT, "t: byte 1 is NUL");
    d9d_arena_release(&arena);
    check("", "{}", "");
    check("\n", "{}", "");
}

/* A failure leaves the output and the spans as they were. */
static void test_unchanged(void **state)
{
    d9d_jinja_trace trace = {0};
    d9d_buf out = {0};

    (void)state;
    assert_ok(d9d_buf_append(&out, "before", 6));
    assert_ok(D9D_VEC_PUSH(&trace.generation, (d9d_jinja_span){1, 2}));
    assert_fails_like(
        render_with("x{% generation %}y{% endgeneration %}{{ nope.x }}", "{}", NULL, &out, &trace),
        D9D_EFORMAT, "undefined");
    assert_string_equal(out.data, "before");
    assert_int_equal(trace.generation.len, 1);
    assert_ok(render_with("x{% generation %}yz{% endgeneration %}.", "{}", NULL, &out, &trace));
    assert_string_equal(out.data, "beforexyz.");
    assert_int_equal(trace.generation.data[1].begin, 7);
    assert_int_equal(trace.generation.data[1].end, 9);
    d9d_jinja_trace_release(&trace);
    d9d_buf_release(&out);
}

static void test_generation(void **state)
{
    const char *within = "{% set x %}{% generation %}y{% endgeneration %}{% endset %}{{ x }}";
    const d9d_jinja_template *t;
    d9d_jinja_trace trace = {0};
    d9d_arena arena = {0};
    d9d_buf out = {0};

    (void)state;
    assert_ok(d9d_jinja_compile(within, strlen(within), "t", &arena, &t));
    assert_true(d9d_jinja_marks_generation(t));
    assert_ok(d9d_jinja_compile("x", 1, "t", &arena, &t));
    assert_false(d9d_jinja_marks_generation(t));
    check(within, "{}", "y");
    assert_fails_like(render_with(within, "{}", NULL, &out, &trace), D9D_EFORMAT, "generation");
    d9d_arena_release(&arena);
    d9d_buf_release(&out);
}

/* What of the output is of opts->data, in brackets. */
static void test_trace(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a{{ d.x }}b", "a[X<]b"},
        {"{{ 'a' ~ d.x ~ o }}", "a[X<]O"},
        {"{{ d.x | lower }}{{ d.x | replace('X', o) }}|{{ d.x[1:] }}{{ d.x[::-1] }}",
         "[x<]O[<]|[<<X]"},
        {"{{ d | tojson }}", "{\"[x]\": \"[X<]\", \"[n]\": 1}"},
        {"{{ d }}", "{'[x]': '[X<]', '[n]': 1}"},
        {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(d.x) | trim }}{{ m(o) }}", "([X<])(O)"},
        {"{% set s %}{{ d.x }}!{% endset %}{{ s + s.split('!')[0] }}{{ 1.5 }}", "[X<]![X<]1.5"},
        {"{{ dict(y=o, **d) }}", "{'y': 'O', '[x]': '[X<]', '[n]': 1}"},
        {"{% macro m(n) %}{{ kwargs }}{% endmacro %}{{ m(**d) }}", "{'[x]': '[X<]'}"},
        {"{% for c in d.x recursive %}{{ c }}({{ loop(c[1:]) }}){{ loop.cycle(o, d.x) }}{% endfor "
         "%}",
         "[X]()O[<]()[X<]"},
        {"{{ d.x | list | join('-') }}{{ d.x | upper | title }}{{ d.n }}", "[X]-[<X<]1"},
    };
    json_t *context = json_pack("{s:s}", "o", "O");
    json_t *data = json_pack("{s:{s:s, s:i}}", "d", "x", "X<", "n", 1);
    const d9d_jinja_opts opts = {.data = data};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const d9d_jinja_template *t;
        d9d_jinja_trace trace = {0};
        d9d_arena arena = {0};
        d9d_buf out = {0}, got = {0};
        char before = 0;

        assert_ok(d9d_jinja_compile(cases[i].text, strlen(cases[i].text), "t", &arena, &t));
        assert_ok(d9d_jinja_render(t, context, &opts, &out, &trace));
        assert_int_equal(trace.data.len, out.len);
        for (size_t k = 0; k < out.len; before = trace.data.data[k++])
            assert_ok(d9d_buf_printf(&got, "%s%c",
                                     trace.data.data[k] == before ? ""
                                     : before                     ? "]"
                                                                  : "[",
                                     out.data[k]));
        assert_ok(d9d_buf_printf(&got, "%s", before ? "]" : ""));
        assert_string_equal(got.data, cases[i].want);
        d9d_jinja_trace_release(&trace);
        d9d_arena_release(&arena);
        d9d_buf_release(&out);
        d9d_buf_release(&got);
    }
    json_decref(data);
    json_decref(context);
}

/* The text of an item has the item's mark, whatever becomes of it. */
static void test_marks(void **state)
{
    static const char text[] =
        "{{ o }}<{{ l[0].k ~ l[1].k }}>{% for m in l %}{{ m.k | upper }}.{{ m "
        "}}{% endfor %}{{ n }}";
    static const char want[] = "a<bc>B.{'k': 'b'}C.{'k': 'c'}n";
    static const char marks[] = "\1\0\2\3\0\2\0\0\0\2\0\0\0\0\2\0\0\3\0\0\0\3\0\0\0\0\3\0\0\1";
    json_t *context = json_object();
    json_t *data =
        json_pack("{s:s, s:[{s:s}, {s:s}], s:s}", "o", "a", "l", "k", "b", "k", "c", "n", "n");
    const d9d_jinja_opts opts = {
        .data = data, .items = json_object_get(data, "l"), .marks = "\2\3"};
    const d9d_jinja_template *t;
    d9d_jinja_trace trace = {0};
    d9d_arena arena = {0};
    d9d_buf out = {0};

    (void)state;
    assert_ok(d9d_jinja_compile(text, sizeof(text) - 1, "t", &arena, &t));
    assert_ok(d9d_jinja_render(t, context, &opts, &out, &trace));
    assert_string_equal(out.data, want);
    assert_int_equal(trace.data.len, sizeof(want) - 1);
    assert_memory_equal(trace.data.data, marks, sizeof(want) - 1);
    d9d_jinja_trace_release(&trace);
    d9d_arena_release(&arena);
    d9d_buf_release(&out);
    json_decref(data);
    json_decref(context);
}

/* What iterations over opts->items wrote, inner ones before outer ones, none within a block. */
static void test_visits(void **state)
{
    static const char text[] =
        "{% for m in l[1:] %}{{ m.k }}{% for n in l if n.k == 'a' %}<{{ n.k "
        "}}>{% endfor %}{% endfor %}{% for m in l | reverse %}{% endfor %}"
        "{% set s %}{% for m in l %}{{ m.k }}{% endfor %}{% endset %}{{ s }}";
    static const d9d_jinja_visit want[] = {{0, {1, 4}}, {1, {1, 4}}, {0, {5, 8}}, {2, {4, 8}}};
    json_t *context = json_object();
    json_t *data = json_pack("{s:[{s:s}, {s:s}, {s:s}]}", "l", "k", "a", "k", "", "k", "c");
    const d9d_jinja_opts opts = {.data = data, .items = json_object_get(data, "l")};
    const d9d_jinja_template *t;
    d9d_jinja_trace trace = {0};
    d9d_arena arena = {0};
    d9d_buf out = {0};

    (void)state;
    assert_ok(d9d_buf_append(&out, "-", 1));
    assert_ok(d9d_jinja_compile(text, sizeof(text) - 1, "t", &arena, &t));
    assert_ok(d9d_jinja_render(t, context, &opts, &out, &trace));
    assert_string_equal(out.data, "-<a>c<a>ac");
    assert_int_equal(trace.visits.len, sizeof(want) / sizeof(want[0]));
    for (size_t i = 0; i < trace.visits.len; i++) {
        assert_int_equal(trace.visits.data[i].item, want[i].item);
        assert_int_equal(trace.visits.data[i].span.begin, want[i].span.begin);
        assert_int_equal(trace.visits.data[i].span.end, want[i].span.end);
    }
    assert_true(d9d_jinja_mentions(t, "k"));
    assert_true(d9d_jinja_mentions(t, "a"));
    assert_false(d9d_jinja_mentions(t, "<a>"));
    d9d_jinja_trace_release(&trace);
    d9d_arena_release(&arena);
    d9d_buf_release(&out);
    json_decref(data);
    json_decref(context);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void check_limit(const char *text, const d9d_jinja_opts *opts, const char *part)
{
    d9d_buf out = {0};

    assert_fails_like(render_with(text, "{}", opts, &out, NULL), D9D_EFORMAT, part);
    d9d_buf_release(&out);
}

static void test_limits(void **state)
{
    const d9d_jinja_opts steps = {.max_steps = 1000}, output = {.max_output = 10},
                         memory = {.max_memory = 10000};

    (void)state;
    check_limit("{% for i in range(1000) %}{% endfor %}", &steps, "more than 1000 steps");
    check_limit("{{ 'a' * 1000000000000 }}", &steps, "more than 1000 steps");
    check_limit("12345678901", &output, "longer than 10 bytes");
    check_limit("{{ '1234567' * 2 }}", &output, "longer than 10 bytes");
    check_limit("{% set ns = namespace(l=[1]) %}{% for i in range(50) %}{% set ns.l = ns.l + ns.l "
                "%}{% endfor %}",
                &memory, "more than 10000 bytes of memory");
    check_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL,
                "nested deeper than 1000 levels");
    check_limit("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", NULL,
                "nested deeper than 1000 levels");
    check_limit("{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = [ns.l] "
                "%}{% endfor %}{{ ns.l }}",
                NULL, "nested deeper than 100 levels");
    check_limit("{% set a = namespace(l=[]) %}{% set b = namespace(l=[]) %}{% for i in range(200) "
                "%}{% set a.l = [a.l] %}{% set b.l = [b.l] %}{% endfor %}{{ a.l == b.l }}",
                NULL, "nested deeper than 100 levels");
    check_limit("{{ range(100001) }}", NULL, "100001 items, more than 100000");
}

static void test_nesting(void **state)
{
    static const char *const parts[][3] = {{"{{ ", "(", " }}"},
                                           {"{{ ", "[", " }}"},
                                           {"{{ ", "-", " }}"},
                                           {"{{ ", "not ", " }}"},
                                           {"{{ ", "1 if 1 else ", " }}"},
                                           {"", "{% if 1 %}", ""},
                                           {"{% for ", "(", " %}"}};

    (void)state;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        d9d_buf text = {0};

        assert_ok(d9d_buf_printf(&text, "%s", parts[i][0]));
        for (int k = 0; k < 100000; k++)
            assert_ok(d9d_buf_printf(&text, "%s", parts[i][1]));
        assert_ok(d9d_buf_printf(&text, "%s", parts[i][2]));
        assert_int_equal(render(text.data), D9D_EFORMAT);
        d9d_buf_release(&text);
    }
}

/* The context has a limit of depth, too, and is an object. */
static void test_context(void **state)
{
    json_t *deep = json_array();
    json_t *root;
    const d9d_jinja_template *t;
    d9d_arena arena = {0};
    d9d_buf out = {0};

    (void)state;
    for (int i = 0; i < 200; i++)
        deep = json_pack("[o]", deep);
    root = json_pack("{s:o}", "x", deep);
    assert_ok(d9d_jinja_compile("x", 1, "t", &arena, &t));
    assert_fails(d9d_jinja_render(t, root, NULL, &out, NULL), D9D_EFORMAT,
                 "t: line 1: the context is nested deeper than 100 levels");
    assert_fails(d9d_jinja_render(t, deep, NULL, &out, NULL), D9D_EINVAL,
                 "t: the context is no object");
    json_decref(root);
    d9d_buf_release(&out);
    d9d_arena_release(&arena);
}

static void test_time(void **state)
{
    const struct tm now = {.tm_year = 124, .tm_mon = 1, .tm_mday = 5, .tm_wday = 1};
    const d9d_jinja_opts opts = {.now = &now};
    d9d_buf out = {0};

    (void)state;
    assert_ok(render_with("{{ strftime_now('%d %b %Y, 100%%') }}", "{}", &opts, &out, NULL));
    assert_string_equal(out.data, "05 Feb 2024, 100%");
    d9d_buf_release(&out);
    check_limit("{{ strftime_now('%f') }}", &opts, "\"%f\" is not supported");
}

/* One template, many renderings: nothing of one is left for the next. */
static void test_again(void **state)
{
    const char *text = "{% set ns = namespace(n=0) %}{% for x in l %}{% set ns.n = ns.n + x %}{{ "
                       "ns.n }},{% endfor %}";
    const d9d_jinja_template *t;
    json_t *context = json_pack("{s:[i,i,i]}", "l", 1, 2, 3);
    d9d_arena arena = {0};
    d9d_buf out = {0};

    (void)state;
    assert_ok(d9d_jinja_compile(text, strlen(text), "t", &arena, &t));
    for (int i = 0; i < 3; i++) {
        out.len = 0;
        assert_ok(d9d_jinja_render(t, context, NULL, &out, NULL));
        assert_string_equal(out.data, "1,3,6,");
    }
    json_decref(context);
    d9d_buf_release(&out);
    d9d_arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors),    cmocka_unit_test(test_text),
        cmocka_unit_test(test_unchanged), cmocka_unit_test(test_generation),
        cmocka_unit_test(test_trace),     cmocka_unit_test(test_visits),
        cmocka_unit_test(test_marks),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_nesting),   cmocka_unit_test(test_context),
        cmocka_unit_test(test_time),      cmocka_unit_test(test_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
