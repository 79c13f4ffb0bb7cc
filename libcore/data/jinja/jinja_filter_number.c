/* jinja_filter_number.c - filters of numbers, and defaults. */
#include <math.h>

#include "d9d/base/num_format.h"
#include "data/jinja/jinja_text.h"

static d9d_status filter_default(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const bool missing = c->self.kind == D9DI_JINJA_UNDEFINED ||
                         (d9di_jinja_truth(&c->arg[1]) && !d9di_jinja_truth(&c->self));

    *out = !missing                             ? c->self
           : c->arg[0].kind == D9DI_JINJA_UNSET ? d9di_jinja_str("", 0)
                                                : c->arg[0];
    return D9D_OK;
}

/* int(f); false: it has no integer, or none of 64 bits. */
static bool truncate_float(double f, int64_t *out)
{
    if (!(f > -9223372036854775809.0 && f < 9223372036854775808.0))
        return false;
    *out = (int64_t)f;
    return true;
}

static d9d_status filter_int(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *v = &c->self, *base = &c->arg[1];
    int64_t b = 10, i;
    bool big = false;
    double f;

    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(c->run, v);
    if (base->kind != D9DI_JINJA_UNSET)
        b = d9di_jinja_is_integer(base) ? d9di_jinja_as_int(base) : 0;
    if (b < 2 || b > 36)
        return d9di_jinja_fail(c->run, "int: the base must be from 2 to 36");
    *out = c->arg[0].kind == D9DI_JINJA_UNSET ? d9di_jinja_int(0) : c->arg[0];
    if (d9di_jinja_is_integer(v)) {
        *out = d9di_jinja_int(d9di_jinja_as_int(v));
        return D9D_OK;
    }
    if (v->kind == D9DI_JINJA_STRING && d9di_jinja_parse_int(v, (int)b, &i, &big)) {
        *out = d9di_jinja_int(i);
        return D9D_OK;
    }
    if (v->kind == D9DI_JINJA_FLOAT)
        f = v->f;
    else if (big || v->kind != D9DI_JINJA_STRING || !d9di_jinja_parse_float(v, &f))
        return big ? d9di_jinja_fail(c->run, "int: the number has more than 64 bits") : D9D_OK;
    if (truncate_float(f, &i))
        *out = d9di_jinja_int(i);
    else if (isfinite(f))
        return d9di_jinja_fail(c->run, "int: the number has more than 64 bits");
    return D9D_OK;
}

static d9d_status filter_float(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *v = &c->self;
    double f;

    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(c->run, v);
    if (d9di_jinja_is_number(v))
        *out = d9di_jinja_float(d9di_jinja_as_double(v));
    else if (v->kind == D9DI_JINJA_STRING && d9di_jinja_parse_float(v, &f))
        *out = d9di_jinja_float(f);
    else
        *out = c->arg[0].kind == D9DI_JINJA_UNSET ? d9di_jinja_float(0) : c->arg[0];
    return D9D_OK;
}

static d9d_status need_number(const d9di_jinja_call *c, const char *filter)
{
    if (c->self.kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(c->run, &c->self);
    return d9di_jinja_is_number(&c->self) ? D9D_OK
                                          : d9di_jinja_fail(c->run, "%s: a %s is no number", filter,
                                                            d9di_jinja_type(&c->self));
}

static d9d_status filter_abs(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    D9D_TRY(need_number(c, "abs"));
    if (c->self.kind == D9DI_JINJA_FLOAT) {
        *out = d9di_jinja_float(fabs(c->self.f));
        return D9D_OK;
    }
    *out = d9di_jinja_int(d9di_jinja_as_int(&c->self));
    return out->i < 0 ? d9di_jinja_negate(c->run, out, out) : D9D_OK;
}

/* round(f, digits) of Python: the decimal that is nearest to the exact value. */
static double round_float(double f, int digits)
{
    char text[400];

    if (!isfinite(f))
        return f;
    (void)d9d_num_format(text, sizeof(text), "%.*f", digits, f);
    return d9d_num_parse(text, NULL);
}

static d9d_status filter_round(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_value *method = &c->arg[1], *digits = &c->arg[0];
    const bool common = method->kind == D9DI_JINJA_UNSET || d9di_jinja_is(method, "common");
    int64_t n = 0;

    D9D_TRY(need_number(c, "round"));
    if (digits->kind != D9DI_JINJA_UNSET)
        n = d9di_jinja_is_integer(digits) ? d9di_jinja_as_int(digits) : -1;
    if (n < 0 || n > 20)
        return d9di_jinja_fail(c->run, "round: the precision must be an int from 0 to 20");
    if (!common && !d9di_jinja_is(method, "ceil") && !d9di_jinja_is(method, "floor"))
        return d9di_jinja_fail(c->run, "round: the method must be common, ceil or floor");
    if (common && d9di_jinja_is_integer(&c->self)) {
        *out = d9di_jinja_int(d9di_jinja_as_int(&c->self));
    } else if (common) {
        *out = d9di_jinja_float(round_float(c->self.f, (int)n));
    } else {
        const double scale = pow(10, (double)n), f = d9di_jinja_as_double(&c->self) * scale;

        if (!isfinite(f))
            return d9di_jinja_fail(c->run, "round: the number is not finite");
        *out = d9di_jinja_float((d9di_jinja_is(method, "ceil") ? ceil(f) : floor(f)) / scale);
    }
    return D9D_OK;
}

static d9d_status filter_length(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    size_t n;

    D9D_TRY(d9di_jinja_length(c->run, &c->self, &n));
    *out = d9di_jinja_int((int64_t)n);
    return D9D_OK;
}

const d9di_jinja_builtin d9di_jinja_number_filters[] = {
    {"default", filter_default, "default_value boolean", 0},
    {"d", filter_default, "default_value boolean", 0},
    {"int", filter_int, "default base", 0},
    {"float", filter_float, "default", 0},
    {"abs", filter_abs, "", 0},
    {"round", filter_round, "precision method", 0},
    {"length", filter_length, "", 0},
    {"count", filter_length, "", 0},
    {NULL, NULL, NULL, 0}};
