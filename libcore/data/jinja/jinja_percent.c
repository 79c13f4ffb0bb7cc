/* jinja_percent.c - "%" of a str, and the filter format: %s %r %a %c, %d %i %u %o %x %X,
 * %e %E %f %F %g %G and %%, with keys, flags, width and precision, as Python's str has them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/jinja/jinja_text.h"
#include "data/tokenizer/utf8.h"

enum {
    MAX_WIDTH = 1 << 24,
    MAX_PRECISION = 500,
    FLOAT_BYTES = MAX_PRECISION + 330 /* sign, digits before the point, the point */
};

/* One conversion: %(key)-08.3f */
typedef struct conversion {
    bool left, plus, blank, alternate, zero;
    int64_t width, precision; /* -1: none */
    char type;
} conversion;

/* Arguments as CPython counts them: a tuple's items, or one value, which may be a mapping. */
typedef struct percent {
    d9di_jinja_run *run;
    const char *at, *end;
    d9di_jinja_value mapping, single; /* mapping: UNSET where there is none */
    const d9di_jinja_value *items;    /* of a tuple; NULL: `single` */
    size_t n, next;
} percent;

/* --- arguments -------------------------------------------------------------------------------- */

static bool is_mapping(const d9di_jinja_value *v)
{
    return v->kind == D9DI_JINJA_DICT || v->kind == D9DI_JINJA_LIST ||
           v->kind == D9DI_JINJA_RANGE || v->kind == D9DI_JINJA_UNDEFINED;
}

static void open_args(percent *p, const d9di_jinja_value *args)
{
    const bool tuple = args->kind == D9DI_JINJA_TUPLE;

    p->items = tuple ? args->seq->items : NULL;
    p->n = tuple ? args->seq->n : 1;
    p->next = 0;
    p->single = *args;
}

static d9d_status next_arg(percent *p, d9di_jinja_value *out)
{
    if (p->next == p->n)
        return d9di_jinja_fail(p->run, "%%: there are not enough arguments for the format");
    *out = p->items != NULL ? p->items[p->next] : p->single;
    p->next++;
    return D9D_OK;
}

/* "(key)" chooses a member, which is then the only argument. */
static d9d_status parse_key(percent *p)
{
    const char *from = ++p->at;
    d9di_jinja_value key, found;
    int depth = 1;

    if (p->mapping.kind == D9DI_JINJA_UNSET)
        return d9di_jinja_fail(p->run, "%%: a key needs a mapping");
    for (; p->at < p->end && depth > 0; p->at++)
        depth += (*p->at == '(') - (*p->at == ')');
    if (depth > 0)
        return d9di_jinja_fail(p->run, "%%: a key has no end");
    key = d9di_jinja_str(from, (size_t)(p->at - from) - 1);
    if (p->mapping.kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(p->run, &p->mapping);
    if (p->mapping.kind != D9DI_JINJA_DICT)
        return d9di_jinja_fail(p->run, "%%: a %s has no keys", d9di_jinja_type(&p->mapping));
    D9D_TRY(d9di_jinja_get_item(p->run, &p->mapping, &key, &found));
    if (d9di_jinja_dict_find(p->run, p->mapping.dict, &key) == NULL)
        return d9di_jinja_fail(p->run, "%%: there is no member \"%.*s\"",
                               key.n < 80 ? (int)key.n : 80, key.text);
    open_args(p, &found);
    p->items = NULL;
    p->n = 1;
    return D9D_OK;
}

/* --- the conversion --------------------------------------------------------------------------- */

static void parse_flags(percent *p, conversion *c)
{
    for (; p->at < p->end; p->at++)
        switch (*p->at) {
        case '-': c->left = true; break;
        case '+': c->plus = true; break;
        case ' ': c->blank = true; break;
        case '#': c->alternate = true; break;
        case '0': c->zero = true; break;
        default: return;
        }
}

/* Digits, or an argument for "*". */
static d9d_status parse_number(percent *p, int64_t max, int64_t *out)
{
    d9di_jinja_value v;

    if (p->at < p->end && *p->at == '*') {
        p->at++;
        D9D_TRY(next_arg(p, &v));
        if (!d9di_jinja_is_integer(&v))
            return d9di_jinja_fail(p->run, "%%: \"*\" needs an int");
        *out = d9di_jinja_as_int(&v);
    } else {
        for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9' && *out <= max; p->at++)
            *out = 10 * *out + (*p->at - '0');
    }
    return *out <= max && *out >= -max
               ? D9D_OK
               : d9di_jinja_fail(p->run, "%%: a width or precision is above %lld", (long long)max);
}

static d9d_status parse_conversion(percent *p, conversion *c)
{
    *c = (conversion){.precision = -1};
    if (p->at < p->end && *p->at == '(')
        D9D_TRY(parse_key(p));
    parse_flags(p, c);
    D9D_TRY(parse_number(p, MAX_WIDTH, &c->width));
    c->left = c->left || c->width < 0;
    c->width = c->width < 0 ? -c->width : c->width;
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        D9D_TRY(parse_number(p, MAX_PRECISION, &c->precision));
        c->precision = c->precision < 0 ? 0 : c->precision;
    }
    if (p->at < p->end && (*p->at == 'h' || *p->at == 'l' || *p->at == 'L'))
        p->at++;
    if (p->at == p->end)
        return d9di_jinja_fail(p->run, "%%: the format is incomplete");
    c->type = *p->at++;
    return D9D_OK;
}

/* --- padding ---------------------------------------------------------------------------------- */

static d9d_status put_fill(d9di_jinja_run *r, char c, int64_t n)
{
    char some[256];

    memset(some, c, sizeof(some));
    for (; n > 0; n -= (int64_t)sizeof(some)) {
        D9D_TRY(d9di_jinja_step(r, 1));
        D9D_TRY(d9di_jinja_put(r, some, n < (int64_t)sizeof(some) ? (size_t)n : sizeof(some)));
    }
    return D9D_OK;
}

/* Text of `chars` characters between blanks. */
static d9d_status put_padded(d9di_jinja_run *r, const conversion *c, const d9di_jinja_value *v)
{
    const int64_t fill = c->width - (int64_t)d9di_jinja_chars(v);

    D9D_TRY(put_fill(r, ' ', c->left ? 0 : fill));
    D9D_TRY(d9di_jinja_put(r, v->text, v->n));
    return put_fill(r, ' ', c->left ? fill : 0);
}

/* Digits behind a sign and a prefix; zeros go between these and the digits. */
static d9d_status put_number(d9di_jinja_run *r, const conversion *c, bool minus, const char *prefix,
                             const char *digits)
{
    const char *sign = minus ? "-" : c->plus ? "+" : c->blank ? " " : "";
    const int64_t fill = c->width - (int64_t)(strlen(sign) + strlen(prefix) + strlen(digits));

    D9D_TRY(put_fill(r, ' ', c->left || c->zero ? 0 : fill));
    D9D_TRY(d9di_jinja_put_text(r, sign));
    D9D_TRY(d9di_jinja_put_text(r, prefix));
    D9D_TRY(put_fill(r, '0', !c->left && c->zero ? fill : 0));
    D9D_TRY(d9di_jinja_put_text(r, digits));
    return put_fill(r, ' ', c->left ? fill : 0);
}

/* --- numbers ---------------------------------------------------------------------------------- */

static d9d_status fail_type(percent *p, const conversion *c, const d9di_jinja_value *v)
{
    if (v->kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(p->run, v);
    return d9di_jinja_fail(p->run, "%%%c: of a %s is not possible", c->type, d9di_jinja_type(v));
}

/* The int that %d makes of a number, %x only of an int. */
static d9d_status take_int(percent *p, const conversion *c, const d9di_jinja_value *v, int64_t *out)
{
    const bool decimal = strchr("diu", c->type) != NULL;

    if (d9di_jinja_is_integer(v)) {
        *out = d9di_jinja_as_int(v);
        return D9D_OK;
    }
    if (!decimal || v->kind != D9DI_JINJA_FLOAT)
        return fail_type(p, c, v);
    if (!(v->f > -9223372036854775809.0 && v->f < 9223372036854775808.0))
        return d9di_jinja_fail(p->run, "%%%c: the number is no int of 64 bits", c->type);
    *out = (int64_t)v->f;
    return D9D_OK;
}

static d9d_status put_int(percent *p, const conversion *c, const d9di_jinja_value *v)
{
    static const struct {
        char type;
        const char *prefix, *digits;
        unsigned base;
    } forms[] = {{'o', "0o", "01234567", 8},
                 {'x', "0x", "0123456789abcdef", 16},
                 {'X', "0X", "0123456789ABCDEF", 16},
                 {'d', "", "0123456789", 10}};
    char text[MAX_PRECISION + 64];
    size_t at = sizeof(text) - 1, form = 0;
    int64_t i = 0;
    uint64_t rest;

    D9D_TRY(take_int(p, c, v, &i));
    while (forms[form].type != c->type && forms[form].type != 'd')
        form++;
    rest = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    text[at] = '\0';
    do {
        text[--at] = forms[form].digits[rest % forms[form].base];
        rest /= forms[form].base;
    } while (rest > 0);
    while ((int64_t)(sizeof(text) - 1 - at) < c->precision)
        text[--at] = '0';
    return put_number(p->run, c, i < 0, c->alternate ? forms[form].prefix : "", text + at);
}

/* Of a number that is finite and has no sign. */
static void format_float(const conversion *c, double f, char text[FLOAT_BYTES])
{
    const int digits = c->precision < 0 ? 6 : (int)c->precision;

#define FORM(letter)                                                                               \
    (void)(c->alternate ? d9d_num_format(text, FLOAT_BYTES, "%#.*" letter, digits, f)              \
                        : d9d_num_format(text, FLOAT_BYTES, "%.*" letter, digits, f))
    switch (c->type) {
    case 'e': FORM("e"); return;
    case 'E': FORM("E"); return;
    case 'g': FORM("g"); return;
    case 'G': FORM("G"); return;
    default: FORM("f"); return;
    }
#undef FORM
}

static d9d_status put_float(percent *p, const conversion *c, const d9di_jinja_value *v)
{
    const bool upper = c->type == 'E' || c->type == 'F' || c->type == 'G';
    char text[FLOAT_BYTES];
    double f;

    if (!d9di_jinja_is_number(v))
        return fail_type(p, c, v);
    f = d9di_jinja_as_double(v);
    if (isnan(f))
        return put_number(p->run, c, false, "", upper ? "NAN" : "nan");
    if (isinf(f))
        return put_number(p->run, c, f < 0, "", upper ? "INF" : "inf");
    format_float(c, fabs(f), text);
    return put_number(p->run, c, signbit(f), "", text);
}

/* --- text ------------------------------------------------------------------------------------- */

static d9d_status put_text(percent *p, const conversion *c, const d9di_jinja_value *v)
{
    const size_t mark = d9di_jinja_mark(p->run);
    d9di_jinja_value s;

    if (c->type == 's')
        D9D_TRY(d9di_jinja_put_str(p->run, v));
    else if (c->type == 'r')
        D9D_TRY(d9di_jinja_put_repr(p->run, v));
    else
        D9D_TRY(d9di_jinja_put_ascii(p->run, v));
    D9D_TRY(d9di_jinja_take(p->run, mark, &s));
    if (c->precision >= 0 && (uint64_t)c->precision < d9di_jinja_chars(&s))
        s.n = d9di_jinja_offset(&s, (size_t)c->precision);
    return put_padded(p->run, c, &s);
}

/* A character, or its number. */
static d9d_status put_char(percent *p, const conversion *c, const d9di_jinja_value *v)
{
    char text[4];
    d9di_jinja_value s = *v;
    int64_t i;

    if (d9di_jinja_is_integer(v)) {
        i = d9di_jinja_as_int(v);
        if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
            return d9di_jinja_fail(p->run, "%%c: %lld is no character", (long long)i);
        s = d9di_jinja_str(text, d9di_utf8_encode((uint32_t)i, text));
    } else if (v->kind != D9DI_JINJA_STRING || d9di_jinja_chars(v) != 1) {
        return fail_type(p, c, v);
    }
    return put_padded(p->run, c, &s);
}

/* --- the format ------------------------------------------------------------------------------- */

static const struct {
    const char *types;
    d9d_status (*put)(percent *p, const conversion *c, const d9di_jinja_value *v);
} forms[] = {{"sra", put_text}, {"c", put_char}, {"diuoxX", put_int}, {"eEfFgG", put_float}};

static d9d_status put_conversion(percent *p)
{
    conversion c;
    d9di_jinja_value v;

    D9D_TRY(d9di_jinja_step(p->run, 1));
    if (p->at < p->end && *p->at == '%')
        return d9di_jinja_put(p->run, p->at++, 1);
    D9D_TRY(parse_conversion(p, &c));
    D9D_TRY(next_arg(p, &v));
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (c.type != '\0' && strchr(forms[i].types, c.type) != NULL)
            return forms[i].put(p, &c, &v);
    return d9di_jinja_fail(p->run,
                           "%%: a conversion is not one of s r a c d i u o x X e E f F g G");
}

d9d_status d9di_jinja_percent(d9di_jinja_run *r, const d9di_jinja_value *format,
                              const d9di_jinja_value *args, d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);
    percent p = {.run = r, .at = format->text, .end = format->text + format->n};

    if (format->markup)
        return d9di_jinja_fail(r, "%%: of a safe str is not supported");
    open_args(&p, args);
    if (is_mapping(args))
        p.mapping = *args;
    while (p.at < p.end) {
        const char *next = memchr(p.at, '%', (size_t)(p.end - p.at));
        const size_t n = next != NULL ? (size_t)(next - p.at) : (size_t)(p.end - p.at);

        D9D_TRY(d9di_jinja_put(r, p.at, n));
        p.at += n;
        if (next == NULL)
            break;
        p.at++;
        D9D_TRY(put_conversion(&p));
    }
    if (p.next < p.n && p.mapping.kind == D9DI_JINJA_UNSET)
        return d9di_jinja_fail(r, "%%: %zu of the arguments are not used", p.n - p.next);
    return d9di_jinja_take(r, mark, out);
}
