/* test_config.c - key tables: strict binding, defaults, resolving, near words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "d9d/config/config.h"
#include "d9d/config/period.h"

/* --- a table of every kind ------------------------------------------------------ */

struct leaf {
    int64_t n;
};
struct node {
    d9d_list children; /* d9d_union of leaf or node: a recursive type */
    const char *label;
};
struct range {
    int64_t lo, hi;
};
struct all {
    bool b;
    int64_t i, maybe_i;
    double r, maybe_r;
    const char *s, *maybe_s;
    int e;
    struct range range;
    struct range *maybe_range;
    d9d_union u;
    d9d_list betas;
    d9d_str_int_map m;
    json_t *j;
    d9d_step_period p;
};

static const d9d_key leaf_keys[] = {
    D9D_KEY_INT(struct leaf, n, "7", 0, 100, "a number"),
    D9D_KEY_END,
};
static const d9d_table leaf_table = D9D_TABLE(struct leaf, "leaf", leaf_keys, "an end");

static const d9d_table node_table;
static const d9d_table *const tree_choices[] = {&leaf_table, &node_table, NULL};
static const char *const tree_tag[] = {"type", NULL};
static const d9d_key tree_elem = {
    .kind = D9D_KIND_UNION, .names = tree_tag, .choices = tree_choices};
static const d9d_key node_keys[] = {
    D9D_KEY_LIST(struct node, children, D9D_REQUIRED, &tree_elem, "what hangs below"),
    D9D_KEY_STR(struct node, label, "null", "its name", .flags = D9D_NULLABLE),
    D9D_KEY_END,
};
static const d9d_table node_table = D9D_TABLE(struct node, "node", node_keys, "a branching");

static d9d_status range_check(const void *value, const char *path)
{
    const struct range *r = value;

    if (r->lo > r->hi)
        return D9D_FAIL(D9D_ECONFIG, "%s: lo is %d, above hi, %d", path, (int)r->lo, (int)r->hi);
    return D9D_OK;
}

static const d9d_key range_keys[] = {
    D9D_KEY_INT(struct range, lo, "1", 0, INT64_MAX, "the low end"),
    D9D_KEY_INT(struct range, hi, "2", 0, INT64_MAX, "the high end"),
    D9D_KEY_END,
};
static const d9d_table range_table = {
    .name = "range", .size = sizeof(struct range), .keys = range_keys, .check = range_check};

static const char *const colours[] = {"red", "green", "blue", NULL};
static const d9d_key beta = {
    .kind = D9D_KIND_REAL, .flags = D9D_BELOW_MAX | D9D_FLOAT32, .min = 0, .max = 1};
static const d9d_key all_keys[] = {
    D9D_KEY_BOOL(struct all, b, "true", "a switch"),
    D9D_KEY_INT(struct all, i, D9D_REQUIRED, 1, INT64_MAX, "how many"),
    D9D_KEY_INT(struct all, maybe_i, "null", 0, 9, "perhaps", .flags = D9D_NULLABLE),
    D9D_KEY_REAL(struct all, r, "0.5", 0, 1, "a share", .flags = D9D_ABOVE_MIN),
    D9D_KEY_REAL(struct all, maybe_r, "null", 0, 1, "a share", .flags = D9D_NULLABLE),
    D9D_KEY_STR(struct all, s, "\"x\"", "a word", .min = 1),
    D9D_KEY_STR(struct all, maybe_s, "null", "a word", .flags = D9D_NULLABLE),
    D9D_KEY_ENUM(struct all, e, "\"green\"", colours, "a colour", .former = "colour"),
    D9D_KEY_TABLE(struct all, range, &range_table, "from and to"),
    {.name = "maybe_range",
     .kind = D9D_KIND_TABLE,
     .flags = D9D_NULLABLE,
     .offset = offsetof(struct all, maybe_range),
     .def = "null",
     .table = &range_table,
     .doc = "perhaps"},
    D9D_KEY_UNION(struct all, u, "{\"type\": \"leaf\"}", tree_tag, tree_choices, "a tree",
                  .flags = D9D_NULL_DEFAULT),
    D9D_KEY_LIST(struct all, betas, "[0.9, 0.99]", &beta, "decay rates", .min = 2, .max = 2),
    D9D_KEY_MAP(struct all, m, "{}", 1, 10, "sizes"),
    D9D_KEY_JSON(struct all, j, "{}", "anything"),
    D9D_KEY_PERIOD(struct all, p, "\"disable\"", "how often"),
    {.name = "old",
     .kind = D9D_KIND_BOOL,
     .flags = D9D_NO_EFFECT,
     .offset = D9D_NO_FIELD,
     .def = "false",
     .doc = "from another time"},
    D9D_KEY_END,
};
static const d9d_table all_table = D9D_TABLE(struct all, "all", all_keys, "every kind");

/* --- helpers ----------------------------------------------------------------------- */

static json_t *load(const char *text)
{
    json_t *doc = json_loads(text, JSON_DECODE_ANY, NULL);

    assert_non_null(doc);
    return doc;
}

struct bound {
    d9d_arena a;
    json_t *doc;
    struct all v;
};

static void bind(struct bound *b, const char *text)
{
    memset(b, 0, sizeof(*b));
    b->doc = load(text);
    if (d9d_config_bind(&all_table, b->doc, "c.json", NULL, &b->a, &b->v) != D9D_OK)
        fail_msg("%s", d9d_err_message());
}

static void drop(struct bound *b)
{
    json_decref(b->doc);
    d9d_arena_release(&b->a);
}

static void assert_dumps(const json_t *v, const char *expected)
{
    d9d_buf b = {0};

    assert_int_equal(d9d_json_put(&b, v, -1), D9D_OK);
    assert_string_equal(b.data, expected);
    d9d_buf_release(&b);
}

/* --- binding ----------------------------------------------------------------------- */

static void defaults_fill_what_is_absent(void **state)
{
    struct bound b;
    const d9d_step_period never = D9D_PERIOD_DISABLE;

    (void)state;
    bind(&b, "{\"i\": 3}");
    assert_true(b.v.b);
    assert_int_equal(b.v.i, 3);
    assert_true(b.v.maybe_i == D9D_INT_NULL);
    assert_true(b.v.r == 0.5);
    assert_true(b.v.maybe_r != b.v.maybe_r);
    assert_string_equal(b.v.s, "x");
    assert_null(b.v.maybe_s);
    assert_int_equal(b.v.e, 1);
    assert_int_equal(b.v.range.hi, 2);
    assert_null(b.v.maybe_range);
    assert_int_equal(b.v.u.which, 0);
    assert_int_equal(((struct leaf *)b.v.u.value)->n, 7);
    assert_int_equal(b.v.betas.n, 2);
    assert_true(((double *)b.v.betas.items)[1] == 0.99);
    assert_int_equal(b.v.m.n, 0);
    assert_null(b.v.j);
    assert_int_equal(b.v.p, never);
    drop(&b);
}

static void given_values_are_taken(void **state)
{
    struct bound b;

    (void)state;
    bind(&b, "{\"i\": 9223372036854775807, \"b\": false, \"maybe_i\": 4, \"r\": 1, \"e\": \"blue\","
             " \"maybe_range\": {\"hi\": 5}, \"m\": {\"z\": 2, \"a\": 10}, \"j\": [1, {}],"
             " \"p\": 12, \"maybe_s\": \"\", \"betas\": [0, 0.5]}");
    assert_true(b.v.i == INT64_MAX);
    assert_false(b.v.b);
    assert_int_equal(b.v.maybe_i, 4);
    assert_true(b.v.r == 1.0);
    assert_int_equal(b.v.e, 2);
    assert_int_equal(b.v.maybe_range->lo, 1);
    assert_int_equal(b.v.maybe_range->hi, 5);
    assert_string_equal(b.v.m.names[0], "z");
    assert_int_equal(b.v.m.values[1], 10);
    assert_ptr_equal(b.v.j, json_object_get(b.doc, "j"));
    assert_int_equal(b.v.p, 12);
    assert_string_equal(b.v.maybe_s, "");
    drop(&b);
}

static void unions_lists_and_tables_nest(void **state)
{
    struct bound b;
    const struct node *root, *inner;
    const d9d_union *children;

    (void)state;
    bind(&b, "{\"i\": 1, \"u\": {\"type\": \"node\", \"children\": [{\"type\": \"leaf\", \"n\": 1},"
             " {\"type\": \"node\", \"label\": \"in\", \"children\": [{\"type\": \"leaf\"}]}]}}");
    root = b.v.u.value;
    assert_int_equal(b.v.u.which, 1);
    assert_int_equal(root->children.n, 2);
    children = root->children.items;
    assert_int_equal(((struct leaf *)children[0].value)->n, 1);
    inner = children[1].value;
    assert_string_equal(inner->label, "in");
    assert_int_equal(((struct leaf *)((d9d_union *)inner->children.items)->value)->n, 7);
    drop(&b);
}

/* Every row is one mistake and its whole sentence; resolving must say the same. */
static void mistakes_are_named(void **state)
{
    static const struct {
        const char *doc, *sentence;
    } rows[] = {
        {"[]", "c.json: expected an object, got a list"},
        {"{}", "c.json: i: required key is missing (how many)"},
        {"{\"i\": 0}", "c.json: i: 0 is below the minimum of 1"},
        {"{\"i\": \"8\"}", "c.json: i: expected an integer, got a string (\"8\")"},
        {"{\"i\": 1.0}", "c.json: i: expected an integer, got a number (1.0)"},
        {"{\"i\": null}", "c.json: i: expected an integer, got null"},
        {"{\"i\": 1, \"maybe_i\": true}", "c.json: maybe_i: expected an integer or null, got true"},
        {"{\"i\": 1, \"b\": 1}", "c.json: b: expected true or false, got an integer (1)"},
        {"{\"i\": 1, \"r\": 0}", "c.json: r: 0 is not above 0"},
        {"{\"i\": 1, \"r\": 1.5}", "c.json: r: 1.5 is not at most 1"},
        {"{\"i\": 1, \"s\": \"\"}", "c.json: s: has 0 bytes, at least 1 is needed"},
        {"{\"i\": 1, \"e\": \"gren\"}",
         "c.json: e: unknown word \"gren\"; did you mean \"green\"?"},
        {"{\"i\": 1, \"e\": \"mauve\"}",
         "c.json: e: unknown word \"mauve\"; expected red, green or blue"},
        {"{\"i\": 1, \"e\": 2}", "c.json: e: expected red, green or blue, got an integer (2)"},
        {"{\"i\": 1, \"colour\": \"gren\"}",
         "c.json: colour: unknown word \"gren\"; did you mean \"green\"?"},
        {"{\"i\": 1, \"e\": \"red\", \"colour\": \"red\"}",
         "c.json: colour: is the former name of e, which is given too"},
        {"{\"i\": 1, \"bettas\": []}", "c.json: bettas: unknown key; did you mean \"betas\"?"},
        {"{\"i\": 1, \"range\": {\"low\": 1}}",
         "c.json: range.low: unknown key; did you mean \"lo\"?"},
        {"{\"i\": 1, \"range\": {\"width\": 1}}",
         "c.json: range.width: unknown key; expected lo or hi"},
        {"{\"i\": 1, \"range\": {\"lo\": 3}}", "c.json: range: lo is 3, above hi, 2"},
        {"{\"i\": 1, \"maybe_range\": 3}",
         "c.json: maybe_range: expected an object or null, got an integer (3)"},
        {"{\"i\": 1, \"u\": {}}", "c.json: u.type: required key is missing; expected leaf or node"},
        {"{\"i\": 1, \"u\": {\"type\": 3}}",
         "c.json: u.type: expected leaf or node, got an integer (3)"},
        {"{\"i\": 1, \"u\": {\"type\": \"laef\"}}",
         "c.json: u.type: unknown word \"laef\"; did you mean \"leaf\"?"},
        {"{\"i\": 1, \"u\": {\"type\": \"node\", \"children\": [{\"type\": \"leaf\"},"
         " {\"type\": \"leaf\", \"n\": 101}]}}",
         "c.json: u.children[1].n: 101 is above the maximum of 100"},
        {"{\"i\": 1, \"u\": {\"type\": \"leaf\", \"tpye\": 1}}",
         "c.json: u.tpye: unknown key; did you mean \"type\"?"},
        {"{\"i\": 1, \"betas\": [0.9]}", "c.json: betas: has 1 element, at least 2 are needed"},
        {"{\"i\": 1, \"betas\": [0.9, 1.0]}", "c.json: betas[1]: 1 is not below 1"},
        {"{\"i\": 1, \"betas\": [0.9, 0.99999999]}",
         "c.json: betas[1]: 0.99999999 is 1 in float32, in which it is used"},
        {"{\"i\": 1, \"betas\": [0.9, 0.9999999999]}",
         "c.json: betas[1]: 0.9999999999 is 1 in float32, in which it is used"},
        {"{\"i\": 1, \"betas\": [1e-46, 0.9]}",
         "c.json: betas[0]: 1e-46 is 0 in float32, in which it is used"},
        {"{\"i\": 1, \"betas\": {}}", "c.json: betas: expected a list, got an object"},
        {"{\"i\": 1, \"m\": {\"a b\": 11}}", "c.json: m[\"a b\"]: 11 is above the maximum of 10"},
        {"{\"i\": 1, \"m\": []}", "c.json: m: expected an object of integers, got a list"},
        {"{\"i\": 1, \"p\": 0}",
         "c.json: p: 0 is below the minimum of 1; \"disable\" turns it off"},
        {"{\"i\": 1, \"p\": \"laststep\"}",
         "c.json: p: unknown word \"laststep\"; did you mean \"last_step\"?"},
        {"{\"i\": 1, \"p\": []}", "c.json: p: expected a number of steps, last_step or disable"},
        {"{\"i\": 1, \"old\": 3}", "c.json: old: expected true or false, got an integer (3)"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = load(rows[i].doc), *full = NULL;
        d9d_arena a = {0};
        struct all v;

        assert_int_equal(d9d_config_bind(&all_table, doc, "c.json", NULL, &a, &v), D9D_ECONFIG);
        assert_string_equal(d9d_err_message(), rows[i].sentence);
        assert_int_equal(d9d_config_resolve(&all_table, doc, "c.json", NULL, &full), D9D_ECONFIG);
        assert_string_equal(d9d_err_message(), rows[i].sentence);
        assert_null(full);
        d9d_arena_release(&a);
        json_decref(doc);
    }
}

/* A table that allows other names says what their values are. */
static void other_names_are_checked(void **state)
{
    d9d_table open = leaf_table;
    json_t *good = load("{\"n\": 3, \"a\": 0.5, \"b/c\": 1}");
    json_t *bad = load("{\"n\": 3, \"a\": 2}");
    d9d_arena a = {0};
    struct leaf v;

    (void)state;
    open.others = &(d9d_key){.kind = D9D_KIND_REAL, .min = 0, .max = 1};
    assert_int_equal(d9d_config_bind(&open, good, "c", NULL, &a, &v), D9D_OK);
    assert_int_equal(v.n, 3);
    assert_int_equal(d9d_config_bind(&open, bad, "c", NULL, &a, &v), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "c: a: 2 is not at most 1"));
    assert_int_equal(d9d_config_bind(&leaf_table, good, "c", NULL, &a, &v), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "unknown key"));
    d9d_arena_release(&a);
    json_decref(good);
    json_decref(bad);
}

static void depth_is_bounded(void **state)
{
    json_t *u = load("{\"type\": \"leaf\"}"), *doc = load("{\"i\": 1}");
    d9d_arena a = {0};
    struct all v;

    (void)state;
    for (int i = 0; i < 70; i++)
        u = json_pack("{s:s, s:[o]}", "type", "node", "children", u);
    assert_int_equal(json_object_set_new(doc, "u", u), 0);
    assert_int_equal(d9d_config_bind(&all_table, doc, "c", NULL, &a, &v), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "nested deeper than 64"));
    d9d_arena_release(&a);
    json_decref(doc);
}

static void record_line(void *arg, d9d_log_level level, const char *text)
{
    (void)level;
    strncat(arg, text, 200);
}

static void keys_without_effect_are_said(void **state)
{
    char said[512] = "";
    const d9d_log log = {.line = record_line, .arg = said, .level = D9D_LOG_INFO};
    json_t *doc = load("{\"i\": 1, \"old\": true}"), *plain = load("{\"i\": 1}");
    d9d_arena a = {0};
    struct all v;

    (void)state;
    assert_int_equal(d9d_config_bind(&all_table, plain, "c.json", &log, &a, &v), D9D_OK);
    assert_string_equal(said, "");
    assert_int_equal(d9d_config_bind(&all_table, doc, "c.json", &log, &a, &v), D9D_OK);
    assert_string_equal(said, "c.json: old: accepted, but has no effect here");
    d9d_arena_release(&a);
    json_decref(doc);
    json_decref(plain);
}

/* A key that was renamed: bound by either name, resolved by the one that it has now. */
static void former_names_are_accepted_and_said(void **state)
{
    char said[512] = "";
    const d9d_log log = {.line = record_line, .arg = said, .level = D9D_LOG_INFO};
    json_t *doc = load("{\"i\": 1, \"colour\": \"blue\"}"), *full = NULL;
    d9d_arena a = {0};
    struct all v;

    (void)state;
    assert_int_equal(d9d_config_bind(&all_table, doc, "c.json", &log, &a, &v), D9D_OK);
    assert_string_equal(said, "c.json: colour is now e");
    assert_int_equal(v.e, 2);
    said[0] = '\0';
    assert_int_equal(d9d_config_resolve(&all_table, doc, "c.json", &log, &full), D9D_OK);
    assert_string_equal(said, "c.json: colour is now e");
    assert_null(json_object_get(full, "colour"));
    said[0] = '\0';
    assert_int_equal(d9d_config_bind(&all_table, full, "c.json", &log, &a, &v), D9D_OK);
    assert_string_equal(said, "");
    assert_int_equal(v.e, 2);
    json_decref(full);
    d9d_arena_release(&a);
    json_decref(doc);
}

/* --- resolving ----------------------------------------------------------------------- */

static void resolving_fills_in_and_is_stable(void **state)
{
    json_t *doc = load("{\"u\": {\"children\": [{\"type\": \"leaf\"}], \"type\": \"node\"},"
                       " \"i\": 1, \"maybe_range\": {}}");
    json_t *null_default = load("{\"u\": null, \"i\": 1}"), *full = NULL, *again = NULL;

    (void)state;
    assert_int_equal(d9d_config_resolve(&all_table, null_default, "c", NULL, &full), D9D_OK);
    assert_dumps(json_object_get(full, "u"), "{\"type\": \"leaf\", \"n\": 7}");
    json_decref(null_default);
    json_decref(full);
    full = NULL;
    assert_int_equal(d9d_config_resolve(&all_table, doc, "c", NULL, &full), D9D_OK);
    assert_dumps(full,
                 "{\"b\": true, \"i\": 1, \"maybe_i\": null, \"r\": 0.5, \"maybe_r\": null,"
                 " \"s\": \"x\", \"maybe_s\": null, \"e\": \"green\","
                 " \"range\": {\"lo\": 1, \"hi\": 2}, \"maybe_range\": {\"lo\": 1, \"hi\": 2},"
                 " \"u\": {\"type\": \"node\", \"children\": [{\"type\": \"leaf\", \"n\": 7}],"
                 " \"label\": null}, \"betas\": [0.9, 0.99], \"m\": {}, \"j\": {},"
                 " \"p\": \"disable\"}");
    assert_int_equal(d9d_config_resolve(&all_table, full, "c", NULL, &again), D9D_OK);
    assert_true(json_equal(full, again));
    json_decref(again);
    json_decref(full);
    json_decref(doc);
}

static void assignments_change_the_document(void **state)
{
    static const struct {
        const char *text, *result, *sentence;
    } rows[] = {
        {"a.b.c=1", "{\"a\":{\"b\":{\"c\":1}},\"l\":[{\"x\":1},2],\"n\":null}", NULL},
        {"l.0.x=true", "{\"l\":[{\"x\":true},2],\"n\":null}", NULL},
        {"l[0].x=[]", "{\"l\":[{\"x\":[]},2],\"n\":null}", NULL},
        {"l[2]=word", "{\"l\":[{\"x\":1},2,\"word\"],\"n\":null}", NULL},
        {"n.k=a=b", "{\"l\":[{\"x\":1},2],\"n\":{\"k\":\"a=b\"}}", NULL},
        {"n=", "{\"l\":[{\"x\":1},2],\"n\":\"\"}", NULL},
        {"n=1e-3", "{\"l\":[{\"x\":1},2],\"n\":0.001}", NULL},
        {"n[0].k=1", "{\"l\":[{\"x\":1},2],\"n\":[{\"k\":1}]}", NULL},
        {"m[0]=1", "{\"l\":[{\"x\":1},2],\"n\":null,\"m\":[1]}", NULL},
        {"m[1]=1", NULL, "--set m[1]=1: there is no element 1 in a list of 0"},
        {"l[0][0]=1", NULL, "--set l[0][0]=1: [0] would be an element, and what has it is no list"},
        {"n=2x", "{\"l\":[{\"x\":1},2],\"n\":\"2x\"}", NULL},
        {"a", NULL, "--set a: expected KEY=VALUE"},
        {"=1", NULL, "--set =1: expected KEY=VALUE"},
        {"n={", NULL, "--set n={: the value begins like JSON, but is not"},
        {"n=\xff", NULL, "--set n=\xff: the value is not UTF-8"},
        {"l.3=1", NULL, "--set l.3=1: there is no element 3 in a list of 2"},
        {"l.x=1", NULL, "--set l.x=1: \"x\" is not the number of a list element"},
        {"l[1].y=1", NULL, "--set l[1].y=1: \"y\" would be inside of a plain value"},
        {"a..b=1", NULL,
         "--set a..b=1: expected a path such as a.b[0].c before the \"=\", stuck at \".b\""},
        {"a.=1", NULL,
         "--set a.=1: expected a path such as a.b[0].c before the \"=\", stuck at \".\""},
        {"l[=1", NULL,
         "--set l[=1: expected a path such as a.b[0].c before the \"=\", stuck at \"[\""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = load("{\"l\": [{\"x\": 1}, 2], \"n\": null}"), *want;

        if (rows[i].sentence != NULL) {
            assert_int_equal(d9d_config_set(NULL, doc, rows[i].text), D9D_ECONFIG);
            assert_string_equal(d9d_err_message(), rows[i].sentence);
        } else {
            if (d9d_config_set(NULL, doc, rows[i].text) != D9D_OK)
                fail_msg("%s", d9d_err_message());
            want = load(rows[i].result);
            assert_true(json_equal(doc, want));
            json_decref(want);
        }
        json_decref(doc);
    }
}

/* A number or a boolean for a text is its digits, as paths of a job's number are. */
static void texts_of_digits(void **state)
{
    static const struct {
        const char *text, *result;
    } rows[] = {
        {"s=2026", "{\"s\": \"2026\"}"},
        {"s=1e5", "{\"s\": \"1e5\"}"},
        {"s=true", "{\"s\": \"true\"}"},
        {"s=null", "{\"s\": null}"},
        {"s=\"7\"", "{\"s\": \"7\"}"},
        {"maybe_s=7", "{\"maybe_s\": \"7\"}"},
        {"u.label=7", "{\"u\": {\"label\": \"7\"}}"},
        {"u.children[0].label=7", "{\"u\": {\"children\": [{\"label\": \"7\"}]}}"},
        {"i=7", "{\"i\": 7}"},
        {"unknown=7", "{\"unknown\": 7}"},
        {"s.below=7", "{\"s\": {\"below\": 7}}"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *doc = json_object(), *want = load(rows[i].result);

        assert_int_equal(d9d_config_set(&all_table, doc, rows[i].text), D9D_OK);
        if (!json_equal(doc, want))
            fail_msg("%s", rows[i].text);
        json_decref(want);
        json_decref(doc);
    }
}

/* --- words and periods -------------------------------------------------------------------- */

static void near_words_are_found(void **state)
{
    static const char *const words[] = {"global_batch_size", "microbatch_size", "lr", "eps", NULL};
    static const char *const families[] = {"qwen2_moe", "qwen2", "qwen3_dense", "qwen3_moe", NULL};

    (void)state;
    assert_string_equal(d9d_config_did_you_mean("global_batchsize", words), "global_batch_size");
    assert_string_equal(d9d_config_did_you_mean("global_batch", words), "global_batch_size");
    assert_string_equal(d9d_config_did_you_mean("mircobatch_size", words), "microbatch_size");
    assert_string_equal(d9d_config_did_you_mean("EPS", words), "eps");
    assert_null(d9d_config_did_you_mean("rl", words));
    assert_string_equal(d9d_config_did_you_mean("qwen3", families), "qwen3_dense");
    assert_string_equal(d9d_config_did_you_mean("Qwen2", families), "qwen2");
    assert_string_equal(d9d_config_did_you_mean("qwen4", families), "qwen2");
    assert_null(d9d_config_did_you_mean("qw", families));
    assert_null(d9d_config_did_you_mean("learning_rate", words));
    assert_null(d9d_config_did_you_mean("", words));
}

static void periods_are_due(void **state)
{
    static const struct {
        d9d_step_period p;
        int64_t done, total;
        unsigned flags;
        bool due;
    } rows[] = {
        {5, 4, 20, 0, true},
        {5, 5, 20, 0, false},
        {5, 20, 21, D9D_DUE_ON_LAST, true},
        {5, 20, 21, 0, false},
        {5, 5, 20, D9D_DUE_AFTER_STEP, true},
        {5, 21, 21, D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP, true},
        {10, 8, 100, 0, false},
        {10, 9, 100, 0, true},
        {10, 10, 100, 0, false},
        {10, 19, 100, 0, true},
        {D9D_PERIOD_LAST_STEP, 19, 20, 0, true},
        {D9D_PERIOD_LAST_STEP, 18, 20, 0, false},
        {D9D_PERIOD_LAST_STEP, 20, 20, D9D_DUE_AFTER_STEP, true},
        {D9D_PERIOD_DISABLE, 20, 20, D9D_DUE_ON_LAST | D9D_DUE_AFTER_STEP, false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(d9d_step_period_due(rows[i].p, rows[i].done, rows[i].total, rows[i].flags),
                         rows[i].due);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_fill_what_is_absent),
        cmocka_unit_test(given_values_are_taken),
        cmocka_unit_test(unions_lists_and_tables_nest),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(other_names_are_checked),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(keys_without_effect_are_said),
        cmocka_unit_test(former_names_are_accepted_and_said),
        cmocka_unit_test(resolving_fills_in_and_is_stable),
        cmocka_unit_test(assignments_change_the_document),
        cmocka_unit_test(texts_of_digits),
        cmocka_unit_test(near_words_are_found),
        cmocka_unit_test(periods_are_due),
    };

    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
