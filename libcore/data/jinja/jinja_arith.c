/* jinja_arith.c - operators. */
#include <math.h>

#include "data/jinja/jinja_ast.h"
#include "data/jinja/jinja_text.h"

static d9d_status fail_overflow(const d9di_jinja_run *r)
{
    return d9di_jinja_fail(r, "an integer has more than 64 bits");
}

static d9d_status fail_types(const d9di_jinja_run *r, const char *op, const d9di_jinja_value *a,
                             const d9di_jinja_value *b)
{
    if (a->kind == D9DI_JINJA_UNDEFINED || b->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, a->kind == D9DI_JINJA_UNDEFINED ? a : b);
    return d9di_jinja_fail(r, "\"%s\" of a %s and a %s is not supported", op, d9di_jinja_type(a),
                           d9di_jinja_type(b));
}

/* --- integers --------------------------------------------------------------------------------- */

/* Rounds down, as Python does. */
static d9d_status divide_ints(d9di_jinja_run *r, int64_t a, int64_t b, bool rest,
                              d9di_jinja_value *out)
{
    int64_t q, m;

    if (b == 0)
        return d9di_jinja_fail(r, "division by zero");
    if (b == -1) {
        *out = d9di_jinja_int(0);
        if (rest)
            return D9D_OK;
        return __builtin_sub_overflow((int64_t)0, a, &out->i) ? fail_overflow(r) : D9D_OK;
    }
    q = a / b;
    m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) {
        q--;
        m += b;
    }
    *out = d9di_jinja_int(rest ? m : q);
    return D9D_OK;
}

static uint64_t magnitude(int64_t i)
{
    return i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
}

/* a / b of b > 0, rounded once to nearest even, as Python does.  The quotient has 64 bits or more,
 * so a rest below its last one only breaks a tie. */
static double quotient(uint64_t a, uint64_t b)
{
    const int shift = a != 0 ? 64 + __builtin_clzll(a) : 0;
    const unsigned __int128 dividend = (unsigned __int128)a << shift;
    const unsigned __int128 q = dividend / b;

    return ldexp((double)(q | (dividend % b != 0)), -shift);
}

static d9d_status true_divide_ints(d9di_jinja_run *r, int64_t a, int64_t b, d9di_jinja_value *out)
{
    double q;

    if (b == 0)
        return d9di_jinja_fail(r, "division by zero");
    q = quotient(magnitude(a), magnitude(b));
    *out = d9di_jinja_float((a < 0) != (b < 0) ? -q : q);
    return D9D_OK;
}

static d9d_status power_ints(d9di_jinja_run *r, int64_t a, int64_t b, d9di_jinja_value *out)
{
    int64_t result = 1;

    if (b < 0) {
        if (a == 0)
            return d9di_jinja_fail(r, "division by zero");
        *out = d9di_jinja_float(pow((double)a, (double)b));
        return D9D_OK;
    }
    for (; b > 0; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result))
            return fail_overflow(r);
        if (b > 1 && __builtin_mul_overflow(a, a, &a))
            return fail_overflow(r);
    }
    *out = d9di_jinja_int(result);
    return D9D_OK;
}

static d9d_status binary_ints(d9di_jinja_run *r, int op, int64_t a, int64_t b,
                              d9di_jinja_value *out)
{
    bool over = false;
    int64_t i = 0;

    switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &i); break;
    case '-': over = __builtin_sub_overflow(a, b, &i); break;
    case '*': over = __builtin_mul_overflow(a, b, &i); break;
    case D9DI_JINJA_FLOORDIV: return divide_ints(r, a, b, false, out);
    case '%': return divide_ints(r, a, b, true, out);
    case D9DI_JINJA_POWER: return power_ints(r, a, b, out);
    default: return true_divide_ints(r, a, b, out); /* '/' */
    }
    *out = d9di_jinja_int(i);
    return over ? fail_overflow(r) : D9D_OK;
}

/* --- floats ----------------------------------------------------------------------------------- */

static d9d_status power_floats(d9di_jinja_run *r, double a, double b, d9di_jinja_value *out)
{
    *out = d9di_jinja_float(pow(a, b));
    if (a == 0 && b < 0)
        return d9di_jinja_fail(r, "division by zero");
    if (isfinite(a) && isfinite(b) && !isfinite(out->f))
        return d9di_jinja_fail(r, "a power has no value");
    return D9D_OK;
}

static d9d_status binary_floats(d9di_jinja_run *r, int op, double a, double b,
                                d9di_jinja_value *out)
{
    double m;

    if (b == 0 && (op == '/' || op == '%' || op == D9DI_JINJA_FLOORDIV))
        return d9di_jinja_fail(r, "division by zero");
    switch (op) {
    case '+': *out = d9di_jinja_float(a + b); return D9D_OK;
    case '-': *out = d9di_jinja_float(a - b); return D9D_OK;
    case '*': *out = d9di_jinja_float(a * b); return D9D_OK;
    case '/': *out = d9di_jinja_float(a / b); return D9D_OK;
    case D9DI_JINJA_POWER: return power_floats(r, a, b, out);
    default: break;
    }
    m = fmod(a, b);
    if (op == D9DI_JINJA_FLOORDIV) {
        double q = (a - m) / b;

        q -= m != 0 && (b < 0) != (m < 0);
        *out = d9di_jinja_float(q == 0               ? copysign(0, a / b)
                                : q - floor(q) > 0.5 ? floor(q) + 1
                                                     : floor(q));
        return D9D_OK;
    }
    if (m != 0 && (b < 0) != (m < 0))
        m += b;
    *out = d9di_jinja_float(m == 0 ? copysign(0, b) : m);
    return D9D_OK;
}

/* --- strings and lists ------------------------------------------------------------------------ */

static d9d_status put_operand(d9di_jinja_run *r, const d9di_jinja_value *v, bool markup)
{
    return markup && !v->markup ? d9di_jinja_put_escaped(r, v) : d9di_jinja_put(r, v->text, v->n);
}

static d9d_status add_strings(d9di_jinja_run *r, const d9di_jinja_value *a,
                              const d9di_jinja_value *b, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);
    const bool markup = a->markup || b->markup;

    D9D_TRY(put_operand(r, a, markup));
    D9D_TRY(put_operand(r, b, markup));
    D9D_TRY(d9di_jinja_take(r, mark, out));
    out->markup = markup;
    return D9D_OK;
}

static d9d_status append_all(d9di_jinja_run *r, const d9di_jinja_seq *from, d9di_jinja_seq *to)
{
    for (size_t i = 0; i < from->n; i++)
        D9D_TRY(d9di_jinja_seq_append(r, to, from->items[i]));
    return D9D_OK;
}

static d9d_status add_lists(d9di_jinja_run *r, const d9di_jinja_value *a, const d9di_jinja_value *b,
                            d9di_jinja_value *out)
{
    d9di_jinja_value sum;

    D9D_TRY(d9di_jinja_seq_new(r, a->kind, a->seq->n + b->seq->n, &sum));
    D9D_TRY(append_all(r, a->seq, sum.seq));
    D9D_TRY(append_all(r, b->seq, sum.seq));
    *out = sum;
    return D9D_OK;
}

static d9d_status repeat(d9di_jinja_run *r, const d9di_jinja_value *v, int64_t times,
                         d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);
    d9di_jinja_value all;

    if (v->kind == D9DI_JINJA_STRING) {
        for (; times > 0 && v->n > 0; times--) {
            D9D_TRY(d9di_jinja_step(r, 1));
            D9D_TRY(d9di_jinja_put(r, v->text, v->n));
        }
        return d9di_jinja_take(r, mark, out);
    }
    D9D_TRY(d9di_jinja_seq_new(r, v->kind, 0, &all));
    for (; times > 0 && v->seq->n > 0; times--) {
        D9D_TRY(d9di_jinja_step(r, 1));
        D9D_TRY(append_all(r, v->seq, all.seq));
    }
    *out = all;
    return D9D_OK;
}

static bool is_repeatable(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_STRING || v->kind == D9DI_JINJA_LIST ||
           v->kind == D9DI_JINJA_TUPLE;
}

d9d_status d9di_jinja_binary(d9di_jinja_run *r, int op, const d9di_jinja_value *a,
                             const d9di_jinja_value *b, d9di_jinja_value *out)
{
    char name[3] = {(char)op, '\0', '\0'};

    if (d9di_jinja_is_integer(a) && d9di_jinja_is_integer(b))
        return binary_ints(r, op, d9di_jinja_as_int(a), d9di_jinja_as_int(b), out);
    if (d9di_jinja_is_number(a) && d9di_jinja_is_number(b))
        return binary_floats(r, op, d9di_jinja_as_double(a), d9di_jinja_as_double(b), out);
    if (op == '+' && a->kind == D9DI_JINJA_STRING && b->kind == D9DI_JINJA_STRING)
        return add_strings(r, a, b, out);
    if (op == '+' && a->kind == b->kind &&
        (a->kind == D9DI_JINJA_LIST || a->kind == D9DI_JINJA_TUPLE))
        return add_lists(r, a, b, out);
    if (op == '%' && a->kind == D9DI_JINJA_STRING)
        return d9di_jinja_percent(r, a, b, out);
    if (op == '*' && is_repeatable(a) && d9di_jinja_is_integer(b))
        return repeat(r, a, d9di_jinja_as_int(b), out);
    if (op == '*' && d9di_jinja_is_integer(a) && is_repeatable(b))
        return repeat(r, b, d9di_jinja_as_int(a), out);
    if (op == D9DI_JINJA_FLOORDIV || op == D9DI_JINJA_POWER)
        name[0] = name[1] = op == D9DI_JINJA_POWER ? '*' : '/';
    return fail_types(r, name, a, b);
}

d9d_status d9di_jinja_negate(d9di_jinja_run *r, const d9di_jinja_value *v, d9di_jinja_value *out)
{
    if (v->kind == D9DI_JINJA_FLOAT) {
        *out = d9di_jinja_float(-v->f);
        return D9D_OK;
    }
    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, v);
    if (!d9di_jinja_is_integer(v))
        return d9di_jinja_fail(r, "\"-\" of a %s is not supported", d9di_jinja_type(v));
    return binary_ints(r, '-', 0, d9di_jinja_as_int(v), out);
}

/* --- comparisons ------------------------------------------------------------------------------ */

static bool is_nan(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_FLOAT && isnan(v->f);
}

d9d_status d9di_jinja_compare(d9di_jinja_run *r, int op, const d9di_jinja_value *a,
                              const d9di_jinja_value *b, bool *out)
{
    bool same = false;
    int order;

    if (op == D9DI_JINJA_EQ || op == D9DI_JINJA_NE) {
        D9D_TRY(d9di_jinja_equal(r, a, b, &same));
        *out = same == (op == D9DI_JINJA_EQ);
        return D9D_OK;
    }
    if (op == D9DI_JINJA_IN || op == D9DI_JINJA_NOT_IN) {
        D9D_TRY(d9di_jinja_contains(r, a, b, &same));
        *out = same == (op == D9DI_JINJA_IN);
        return D9D_OK;
    }
    D9D_TRY(d9di_jinja_order(r, a, b, &order));
    *out = !is_nan(a) && !is_nan(b) &&
           (op == '<'             ? order < 0
            : op == '>'           ? order > 0
            : op == D9DI_JINJA_LE ? order <= 0
                                  : order >= 0);
    return D9D_OK;
}
