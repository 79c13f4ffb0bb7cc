/* jinja_test.c - tests: `x is odd`. */
#include "data/jinja/jinja_text.h"

static d9d_status is_kind(const d9di_jinja_call *c, d9di_jinja_kind kind, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(c->self.kind == kind);
    return D9D_OK;
}

static d9d_status test_defined(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(c->self.kind != D9DI_JINJA_UNDEFINED);
    return D9D_OK;
}

static d9d_status test_undefined(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_UNDEFINED, out);
}

static d9d_status test_none(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_NONE, out);
}

static d9d_status test_boolean(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_BOOL, out);
}

static d9d_status test_true(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(c->self.kind == D9DI_JINJA_BOOL && c->self.b);
    return D9D_OK;
}

static d9d_status test_false(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(c->self.kind == D9DI_JINJA_BOOL && !c->self.b);
    return D9D_OK;
}

static d9d_status test_integer(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_INT, out);
}

static d9d_status test_float(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_FLOAT, out);
}

static d9d_status test_number(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(d9di_jinja_is_number(&c->self));
    return D9D_OK;
}

static d9d_status test_string(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_STRING, out);
}

static d9d_status test_mapping(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return is_kind(c, D9DI_JINJA_DICT, out);
}

/* What kinds are to the tests iterable, sequence and callable. */
enum { ITERABLE = 1, SEQUENCE = 2, CALLABLE = 4 };
static const int traits[D9DI_JINJA_KINDS] = {
    [D9DI_JINJA_UNDEFINED] = ITERABLE | SEQUENCE | CALLABLE,
    [D9DI_JINJA_STRING] = ITERABLE | SEQUENCE,
    [D9DI_JINJA_LIST] = ITERABLE | SEQUENCE,
    [D9DI_JINJA_TUPLE] = ITERABLE | SEQUENCE,
    [D9DI_JINJA_RANGE] = ITERABLE | SEQUENCE,
    [D9DI_JINJA_DICT] = ITERABLE | SEQUENCE,
    [D9DI_JINJA_VIEW] = ITERABLE,
    [D9DI_JINJA_GENERATOR] = ITERABLE,
    [D9DI_JINJA_LOOP] = ITERABLE | CALLABLE,
    [D9DI_JINJA_MACRO] = CALLABLE,
    [D9DI_JINJA_FUNCTION] = CALLABLE,
    [D9DI_JINJA_METHOD] = CALLABLE,
};

static d9d_status test_iterable(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(traits[c->self.kind] & ITERABLE);
    return D9D_OK;
}

static d9d_status test_sequence(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(traits[c->self.kind] & SEQUENCE);
    return D9D_OK;
}

static d9d_status test_callable(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(traits[c->self.kind] & CALLABLE);
    return D9D_OK;
}

/* --- numbers and order ------------------------------------------------------------------------ */

static d9d_status test_remainder(const d9di_jinja_call *c, const d9di_jinja_value *divisor,
                                 int64_t want, d9di_jinja_value *out)
{
    const d9di_jinja_value wanted = d9di_jinja_int(want);
    d9di_jinja_value rest;
    bool same;

    D9D_TRY(d9di_jinja_binary(c->run, '%', &c->self, divisor, &rest));
    D9D_TRY(d9di_jinja_equal(c->run, &rest, &wanted, &same));
    *out = d9di_jinja_bool(same);
    return D9D_OK;
}

static d9d_status test_odd(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value two = d9di_jinja_int(2);

    return test_remainder(c, &two, 1, out);
}

static d9d_status test_even(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value two = d9di_jinja_int(2);

    return test_remainder(c, &two, 0, out);
}

static d9d_status test_divisibleby(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_remainder(c, &c->arg[0], 0, out);
}

static d9d_status test_eq(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    bool same;

    D9D_TRY(d9di_jinja_equal(c->run, &c->self, &c->arg[0], &same));
    *out = d9di_jinja_bool(same);
    return D9D_OK;
}

static d9d_status test_ne(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    D9D_TRY(test_eq(c, out));
    out->b = !out->b;
    return D9D_OK;
}

static d9d_status compare(const d9di_jinja_call *c, int op, d9di_jinja_value *out)
{
    bool holds;

    D9D_TRY(d9di_jinja_compare(c->run, op, &c->self, &c->arg[0], &holds));
    *out = d9di_jinja_bool(holds);
    return D9D_OK;
}

static d9d_status test_lt(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return compare(c, '<', out);
}

static d9d_status test_gt(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return compare(c, '>', out);
}

static d9d_status test_le(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return compare(c, 'L', out);
}

static d9d_status test_ge(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return compare(c, 'G', out);
}

static d9d_status test_in(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return compare(c, 'I', out);
}

/* Python's `is`: of constants only. */
static d9d_status test_sameas(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    if (c->arg[0].kind != D9DI_JINJA_NONE && c->arg[0].kind != D9DI_JINJA_BOOL)
        return d9di_jinja_fail(c->run, "sameas: only true, false and none are supported");
    *out = d9di_jinja_bool(c->self.kind == c->arg[0].kind &&
                           (c->self.kind == D9DI_JINJA_NONE || c->self.b == c->arg[0].b));
    return D9D_OK;
}

/* str(value).islower(), of ASCII: a letter, and none of the other case. */
static d9d_status test_case(const d9di_jinja_call *c, char first, char other, d9di_jinja_value *out)
{
    bool has = false, all = true;
    d9di_jinja_value s;

    D9D_TRY(d9di_jinja_to_str(c->run, &c->self, &s));
    for (size_t i = 0; i < s.n; i++) {
        if ((unsigned char)s.text[i] >= 0x80)
            return d9di_jinja_fail(c->run, "the case of what is not ASCII is not supported");
        has = has || (s.text[i] >= first && s.text[i] < first + 26);
        all = all && !(s.text[i] >= other && s.text[i] < other + 26);
    }
    *out = d9di_jinja_bool(has && all);
    return D9D_OK;
}

static d9d_status test_lower(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_case(c, 'a', 'A', out);
}

static d9d_status test_upper(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    return test_case(c, 'A', 'a', out);
}

/* --- names of filters and tests --------------------------------------------------------------- */

static d9d_status test_filter(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(c->self.kind == D9DI_JINJA_STRING &&
                           d9di_jinja_find_filter(c->self.text, c->self.n) != NULL);
    return D9D_OK;
}

static d9d_status test_test(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    *out = d9di_jinja_bool(c->self.kind == D9DI_JINJA_STRING &&
                           d9di_jinja_find(d9di_jinja_tests, c->self.text, c->self.n) != NULL);
    return D9D_OK;
}

const d9di_jinja_builtin d9di_jinja_tests[] = {{"defined", test_defined, "", 0},
                                               {"undefined", test_undefined, "", 0},
                                               {"none", test_none, "", 0},
                                               {"boolean", test_boolean, "", 0},
                                               {"true", test_true, "", 0},
                                               {"false", test_false, "", 0},
                                               {"integer", test_integer, "", 0},
                                               {"float", test_float, "", 0},
                                               {"number", test_number, "", 0},
                                               {"string", test_string, "", 0},
                                               {"mapping", test_mapping, "", 0},
                                               {"iterable", test_iterable, "", 0},
                                               {"sequence", test_sequence, "", 0},
                                               {"callable", test_callable, "", 0},
                                               {"odd", test_odd, "", 0},
                                               {"even", test_even, "", 0},
                                               {"divisibleby", test_divisibleby, "num", 1},
                                               {"eq", test_eq, "other", 1},
                                               {"equalto", test_eq, "other", 1},
                                               {"==", test_eq, "other", 1},
                                               {"ne", test_ne, "other", 1},
                                               {"!=", test_ne, "other", 1},
                                               {"lt", test_lt, "other", 1},
                                               {"lessthan", test_lt, "other", 1},
                                               {"<", test_lt, "other", 1},
                                               {"gt", test_gt, "other", 1},
                                               {"greaterthan", test_gt, "other", 1},
                                               {">", test_gt, "other", 1},
                                               {"le", test_le, "other", 1},
                                               {"<=", test_le, "other", 1},
                                               {"ge", test_ge, "other", 1},
                                               {">=", test_ge, "other", 1},
                                               {"in", test_in, "seq", 1},
                                               {"sameas", test_sameas, "other", 1},
                                               {"lower", test_lower, "", 0},
                                               {"upper", test_upper, "", 0},
                                               {"filter", test_filter, "", 0},
                                               {"test", test_test, "", 0},
                                               {NULL, NULL, NULL, 0}};
