/* jinja_parse_expr.c - tokens to expressions, with jinja2's precedence:
 *
 *     x if y else z  <  or  <  and  <  not  <  comparisons, in  <  + -  <  ~  <  * / // %  <  **
 *     <  unary - +  <  filters, tests  <  .x [x] (x)
 */
#include <string.h>

#include "data/jinja/jinja_ast.h"

static bool is_name(const d9di_jinja_token *t, const char *name)
{
    return t->kind == D9DI_JINJA_T_NAME && strcmp(t->text, name) == 0;
}

/* --- literals --------------------------------------------------------------------------------- */

/* Expressions up to the bracket `close`; at: one at a time.  A trailing comma is fine. */
static d9d_status parse_items(d9di_jinja_parser *p, int close, bool pairs, d9di_jinja_nodes *items)
{
    while (!d9di_jinja_at_op(p, close)) {
        d9di_jinja_node *item;

        if (items->len > 0) {
            D9D_TRY(d9di_jinja_expect_op(p, ','));
            if (d9di_jinja_at_op(p, close))
                break;
        }
        D9D_TRY(d9di_jinja_parse_expr(p, &item));
        D9D_TRY(D9D_VEC_PUSH(items, item));
        if (!pairs)
            continue;
        D9D_TRY(d9di_jinja_expect_op(p, ':'));
        D9D_TRY(d9di_jinja_parse_expr(p, &item));
        D9D_TRY(D9D_VEC_PUSH(items, item));
    }
    p->t++;
    return D9D_OK;
}

/* A list or dict behind its opening bracket. */
static d9d_status parse_display(d9di_jinja_parser *p, int close, d9di_jinja_node **out)
{
    const bool pairs = close == '}';
    d9di_jinja_nodes items = {0};
    d9d_status st;

    D9D_TRY_OR(st,
               d9di_jinja_new_node(p, pairs ? D9DI_JINJA_MAKE_DICT : D9DI_JINJA_MAKE_LIST,
                                   p->t[-1].line, out),
               out);
    D9D_TRY_OR(st, parse_items(p, close, pairs, &items), out);
    st = d9di_jinja_set_list(p, *out, &items);
out:
    D9D_VEC_RELEASE(&items);
    return st;
}

/* True at what ends a tuple without brackets. */
static bool at_tuple_end(const d9di_jinja_parser *p)
{
    return p->t->kind == D9DI_JINJA_T_VARIABLE_END || p->t->kind == D9DI_JINJA_T_BLOCK_END ||
           d9di_jinja_at_op(p, ')');
}

static d9d_status parse_tuple_items(d9di_jinja_parser *p, bool plain, d9di_jinja_nodes *items,
                                    bool *is_tuple)
{
    *is_tuple = false;
    while (!at_tuple_end(p)) {
        d9di_jinja_node *item;

        D9D_TRY(plain ? d9di_jinja_parse_plain(p, &item) : d9di_jinja_parse_expr(p, &item));
        D9D_TRY(D9D_VEC_PUSH(items, item));
        if (!d9di_jinja_skip_op(p, ','))
            break;
        *is_tuple = true;
    }
    return D9D_OK;
}

static d9d_status parse_tuple(d9di_jinja_parser *p, bool plain, bool may_be_empty,
                              d9di_jinja_node **out)
{
    const int line = p->t->line;
    d9di_jinja_nodes items = {0};
    d9d_status st;
    bool is_tuple;

    D9D_TRY_OR(st, parse_tuple_items(p, plain, &items, &is_tuple), out);
    if (!is_tuple && items.len == 1) {
        *out = items.data[0];
    } else if (!is_tuple && !may_be_empty) {
        st = d9di_jinja_unexpected(p, "an expression");
    } else {
        D9D_TRY_OR(st, d9di_jinja_new_node(p, D9DI_JINJA_MAKE_TUPLE, line, out), out);
        st = d9di_jinja_set_list(p, *out, &items);
    }
out:
    D9D_VEC_RELEASE(&items);
    return st;
}

d9d_status d9di_jinja_parse_tuple(d9di_jinja_parser *p, bool plain, d9di_jinja_node **out)
{
    return parse_tuple(p, plain, false, out);
}

static d9d_status parse_string(d9di_jinja_parser *p, d9di_jinja_value *out)
{
    const d9di_jinja_token *first = p->t;
    size_t n = 0, at = 0;
    char *all;

    for (; p->t->kind == D9DI_JINJA_T_STRING; p->t++)
        n += p->t->n;
    *out = d9di_jinja_str(first->text, n);
    if (p->t == first + 1)
        return D9D_OK;
    all = d9d_arena_alloc(p->source->arena, n + 1);
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", p->source->where);
    for (; first < p->t; at += first++->n)
        memcpy(all + at, first->text, first->n);
    out->text = all;
    return D9D_OK;
}

static const struct {
    const char *name;
    d9di_jinja_value value;
} constants[] = {
    {"true", {.kind = D9DI_JINJA_BOOL, .b = true}},
    {"True", {.kind = D9DI_JINJA_BOOL, .b = true}},
    {"false", {.kind = D9DI_JINJA_BOOL, .b = false}},
    {"False", {.kind = D9DI_JINJA_BOOL, .b = false}},
    {"none", {.kind = D9DI_JINJA_NONE}},
    {"None", {.kind = D9DI_JINJA_NONE}},
};

/* Notes in all macros around a name that it occurs. */
static void note_name(d9di_jinja_parser *p, const char *name)
{
    for (d9di_jinja_node *m = p->macro; m != NULL; m = m->outer) {
        m->takes_rest = m->takes_rest || strcmp(name, "varargs") == 0;
        m->takes_keywords = m->takes_keywords || strcmp(name, "kwargs") == 0;
        m->takes_caller = m->takes_caller || strcmp(name, "caller") == 0;
    }
}

static d9d_status parse_name(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const d9di_jinja_token *t = p->t++;

    for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
        if (strcmp(t->text, constants[i].name) == 0) {
            D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_CONST, t->line, out));
            (*out)->value = constants[i].value;
            return D9D_OK;
        }
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_NAME, t->line, out));
    (*out)->name = t->text;
    (*out)->name_n = t->n;
    note_name(p, t->text);
    return D9D_OK;
}

static d9d_status parse_primary(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const d9di_jinja_token *t = p->t;

    switch (t->kind) {
    case D9DI_JINJA_T_NAME: return parse_name(p, out);
    case D9DI_JINJA_T_STRING:
        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_CONST, t->line, out));
        return parse_string(p, &(*out)->value);
    case D9DI_JINJA_T_INT:
    case D9DI_JINJA_T_FLOAT:
        p->t++;
        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_CONST, t->line, out));
        (*out)->value = t->kind == D9DI_JINJA_T_INT ? d9di_jinja_int(t->i) : d9di_jinja_float(t->f);
        return D9D_OK;
    default: break;
    }
    if (d9di_jinja_skip_op(p, '(')) {
        D9D_TRY(parse_tuple(p, false, true, out));
        return d9di_jinja_expect_op(p, ')');
    }
    if (d9di_jinja_skip_op(p, '['))
        return parse_display(p, ']', out);
    if (d9di_jinja_skip_op(p, '{'))
        return parse_display(p, '}', out);
    return d9di_jinja_unexpected(p, "an expression");
}

/* --- calls, subscripts ------------------------------------------------------------------------ */

typedef D9D_VEC(const char *) names;

/* What follows a "*" is n->c, and what follows a "**", behind which nothing stands, n->b. */
static d9d_status parse_arg(d9di_jinja_parser *p, d9di_jinja_node *n, d9di_jinja_nodes *args,
                            names *kw)
{
    d9di_jinja_node *arg;

    if (n->b != NULL)
        return d9di_jinja_unexpected(p, "\")\"");
    if (d9di_jinja_skip_op(p, D9DI_JINJA_POWER))
        return d9di_jinja_parse_expr(p, &n->b);
    if (n->c == NULL && d9di_jinja_skip_op(p, '*'))
        return d9di_jinja_parse_expr(p, &n->c);
    if (p->t->kind == D9DI_JINJA_T_NAME && p->t[1].kind == D9DI_JINJA_T_OPERATOR &&
        p->t[1].op == '=') {
        D9D_TRY(D9D_VEC_PUSH(kw, p->t->text));
        p->t += 2;
    } else if (kw->len > 0 || n->c != NULL) {
        return d9di_jinja_unexpected(p, "a keyword argument");
    }
    D9D_TRY(d9di_jinja_parse_expr(p, &arg));
    return D9D_VEC_PUSH(args, arg);
}

/* Arguments behind "(", into n. */
static d9d_status parse_args(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    d9di_jinja_nodes args = {0};
    names kw = {0};
    d9d_status st = D9D_OK;

    while (!d9di_jinja_skip_op(p, ')')) {
        if (args.len > 0 || n->c != NULL || n->b != NULL)
            D9D_TRY_OR(st, d9di_jinja_expect_op(p, ','), out);
        if (d9di_jinja_skip_op(p, ')'))
            break;
        D9D_TRY_OR(st, parse_arg(p, n, &args, &kw), out);
    }
    D9D_TRY_OR(st, d9di_jinja_set_list(p, n, &args), out);
    n->n -= kw.len;
    n->n_kw = kw.len;
    st = d9di_jinja_copy_array(p, kw.data, kw.len, sizeof(*kw.data), &n->kw);
out:
    D9D_VEC_RELEASE(&args);
    D9D_VEC_RELEASE(&kw);
    return st;
}

/* What stands behind "[" before the "]". */
static d9d_status parse_subscript(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    d9di_jinja_node *part[3] = {NULL, NULL, NULL};
    int i = 0;

    if (!d9di_jinja_at_op(p, ':'))
        D9D_TRY(d9di_jinja_parse_expr(p, &part[0]));
    if (d9di_jinja_at_op(p, ','))
        return d9di_jinja_fail_at(p->source, D9D_ENOTSUP, p->t->line,
                                  "a subscript of several values is not supported");
    while (i < 2 && d9di_jinja_skip_op(p, ':')) {
        i++;
        if (!d9di_jinja_at_op(p, ':') && !d9di_jinja_at_op(p, ']'))
            D9D_TRY(d9di_jinja_parse_expr(p, &part[i]));
    }
    n->b = part[0];
    if (i > 0) {
        n->kind = D9DI_JINJA_SLICE;
        n->n = 3;
        D9D_TRY(d9di_jinja_copy_array(p, part, 3, sizeof(part[0]), &n->list));
    }
    return d9di_jinja_expect_op(p, ']');
}

static d9d_status parse_attr(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    const d9di_jinja_token *t = p->t++;

    if (t->kind == D9DI_JINJA_T_NAME) {
        n->kind = D9DI_JINJA_ATTR;
        n->name = t->text;
        n->name_n = t->n;
        return D9D_OK;
    }
    p->t--;
    return t->kind == D9DI_JINJA_T_INT ? parse_primary(p, &n->b)
                                       : d9di_jinja_unexpected(p, "a name or a number");
}

static d9d_status parse_postfix(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    for (;;) {
        const int line = p->t->line;
        d9di_jinja_node *n;

        if (!d9di_jinja_at_op(p, '.') && !d9di_jinja_at_op(p, '[') && !d9di_jinja_at_op(p, '('))
            return D9D_OK;
        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_ITEM, line, &n));
        n->a = *out;
        *out = n;
        if (d9di_jinja_skip_op(p, '.')) {
            D9D_TRY(parse_attr(p, n));
        } else if (d9di_jinja_skip_op(p, '[')) {
            D9D_TRY(parse_subscript(p, n));
        } else {
            p->t++;
            n->kind = D9DI_JINJA_CALL;
            D9D_TRY(parse_args(p, n));
        }
    }
}

/* A builtin that is not there.  Within an if statement it fails where it runs, as in jinja2. */
static d9d_status refuse_builtin(d9di_jinja_parser *p, const d9di_jinja_token *t, const char *what,
                                 const d9di_jinja_builtin **out)
{
    d9di_jinja_builtin *absent;

    if (p->branches == 0)
        return d9di_jinja_fail_at(p->source, D9D_ENOTSUP, t->line, "the %s \"%s\" is not supported",
                                  what, t->text);
    absent = d9d_arena_alloc(p->source->arena, sizeof(*absent));
    if (absent == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", p->source->where);
    *absent = (d9di_jinja_builtin){.name = t->text};
    *out = absent;
    return D9D_OK;
}

/* --- filters and tests ------------------------------------------------------------------------ */

static d9d_status parse_filter(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const d9di_jinja_token *t = p->t;
    d9di_jinja_node *n;

    if (t->kind != D9DI_JINJA_T_NAME)
        return d9di_jinja_unexpected(p, "the name of a filter");
    p->t++;
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_FILTER, t->line, &n));
    n->a = *out;
    n->builtin = d9di_jinja_find_filter(t->text, t->n);
    if (n->builtin == NULL)
        D9D_TRY(refuse_builtin(p, t, "filter", &n->builtin));
    *out = n;
    return d9di_jinja_skip_op(p, '(') ? parse_args(p, n) : D9D_OK;
}

d9d_status d9di_jinja_parse_filters(d9di_jinja_parser *p, bool first, d9di_jinja_node *of,
                                    d9di_jinja_node **out)
{
    *out = of;
    while (first || d9di_jinja_skip_op(p, '|')) {
        D9D_TRY(parse_filter(p, out));
        first = false;
    }
    return D9D_OK;
}

/* True at an argument of a test that stands without brackets. */
static bool at_test_argument(const d9di_jinja_parser *p)
{
    return p->t->kind == D9DI_JINJA_T_STRING || p->t->kind == D9DI_JINJA_T_INT ||
           p->t->kind == D9DI_JINJA_T_FLOAT || d9di_jinja_at_op(p, '[') ||
           d9di_jinja_at_op(p, '{') ||
           (p->t->kind == D9DI_JINJA_T_NAME && !is_name(p->t, "else") && !is_name(p->t, "or") &&
            !is_name(p->t, "and"));
}

static d9d_status parse_test_argument(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    d9di_jinja_node *arg = NULL;
    d9di_jinja_nodes one = {.data = &arg, .len = 1};

    if (is_name(p->t, "is"))
        return d9di_jinja_fail_at(p->source, D9D_EFORMAT, p->t->line,
                                  "several tests with \"is\" need brackets");
    D9D_TRY(parse_primary(p, &arg));
    D9D_TRY(parse_postfix(p, &arg));
    return d9di_jinja_set_list(p, n, &one);
}

/* Behind "is". */
static d9d_status parse_test(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const int line = p->t->line;
    const bool negated = d9di_jinja_skip_name(p, "not");
    const d9di_jinja_token *t = p->t;
    d9di_jinja_node *n, *outer;

    if (t->kind != D9DI_JINJA_T_NAME)
        return d9di_jinja_unexpected(p, "the name of a test");
    p->t++;
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_TEST, line, &n));
    n->a = *out;
    n->builtin = d9di_jinja_find(d9di_jinja_tests, t->text, t->n);
    if (n->builtin == NULL)
        D9D_TRY(refuse_builtin(p, t, "test", &n->builtin));
    if (d9di_jinja_skip_op(p, '('))
        D9D_TRY(parse_args(p, n));
    else if (at_test_argument(p))
        D9D_TRY(parse_test_argument(p, n));
    *out = n;
    if (!negated)
        return D9D_OK;
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_UNARY, line, &outer));
    outer->op = '!';
    outer->a = n;
    *out = outer;
    return D9D_OK;
}

static d9d_status parse_filters_and_tests(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    for (;;) {
        if (d9di_jinja_at_op(p, '|')) {
            D9D_TRY(d9di_jinja_parse_filters(p, false, *out, out));
        } else if (d9di_jinja_skip_name(p, "is")) {
            D9D_TRY(parse_test(p, out));
        } else if (d9di_jinja_at_op(p, '(')) {
            D9D_TRY(parse_postfix(p, out));
        } else {
            return D9D_OK;
        }
    }
}

/* --- operators -------------------------------------------------------------------------------- */

static d9d_status parse_unary(d9di_jinja_parser *p, bool with_filters, d9di_jinja_node **out)
{
    const int line = p->t->line;
    const int op = d9di_jinja_skip_op(p, '-') ? '-' : d9di_jinja_skip_op(p, '+') ? '+' : 0;

    D9D_TRY(d9di_jinja_enter(p));
    if (op) {
        d9di_jinja_node *operand;

        D9D_TRY(parse_unary(p, false, &operand));
        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_UNARY, line, out));
        (*out)->op = op;
        (*out)->a = operand;
    } else {
        D9D_TRY(parse_primary(p, out));
    }
    D9D_TRY(parse_postfix(p, out));
    if (with_filters)
        D9D_TRY(parse_filters_and_tests(p, out));
    p->depth--;
    return D9D_OK;
}

/* Levels of left-associative operators, the loosest first. */
static const char *const levels[] = {"+-", "~", "*/F%", "P"};
enum { LEVELS = 4, CONCAT = 1 };

static bool at_level(const d9di_jinja_parser *p, int level)
{
    return p->t->kind == D9DI_JINJA_T_OPERATOR && strchr(levels[level], p->t->op) != NULL;
}

static d9d_status parse_binary(d9di_jinja_parser *p, int level, d9di_jinja_node **out)
{
    if (level == LEVELS)
        return parse_unary(p, true, out);
    D9D_TRY(parse_binary(p, level + 1, out));
    while (at_level(p, level)) {
        const d9di_jinja_token *t = p->t++;
        d9di_jinja_node *n, *right;

        D9D_TRY(parse_binary(p, level + 1, &right));
        D9D_TRY(d9di_jinja_new_node(p, level == CONCAT ? D9DI_JINJA_CONCAT : D9DI_JINJA_BINARY,
                                    t->line, &n));
        n->op = t->op;
        n->a = *out;
        n->b = right;
        *out = n;
    }
    return D9D_OK;
}

/* The comparison at the current token, which it passes; 0: none. */
static int take_comparison(d9di_jinja_parser *p)
{
    if (p->t->kind == D9DI_JINJA_T_OPERATOR && strchr("ENGL<>", p->t->op) != NULL)
        return p->t++->op;
    if (d9di_jinja_skip_name(p, "in"))
        return D9DI_JINJA_IN;
    if (is_name(p->t, "not") && is_name(p->t + 1, "in")) {
        p->t += 2;
        return D9DI_JINJA_NOT_IN;
    }
    return 0;
}

static d9d_status parse_compare(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    d9di_jinja_nodes operands = {0};
    d9d_buf ops = {0};
    d9di_jinja_node *n;
    d9d_status st;
    int op;

    D9D_TRY_OR(st, parse_binary(p, 0, out), out);
    while ((op = take_comparison(p)) != 0) {
        const char c = (char)op;
        d9di_jinja_node *right;

        D9D_TRY_OR(st, parse_binary(p, 0, &right), out);
        D9D_TRY_OR(st, D9D_VEC_PUSH(&operands, right), out);
        D9D_TRY_OR(st, d9d_buf_append(&ops, &c, 1), out);
    }
    if (operands.len > 0) {
        D9D_TRY_OR(st, d9di_jinja_new_node(p, D9DI_JINJA_COMPARE, (*out)->line, &n), out);
        n->a = *out;
        D9D_TRY_OR(st, d9di_jinja_set_list(p, n, &operands), out);
        st = d9di_jinja_copy_array(p, ops.data, ops.len, 1, &n->ops);
        *out = n;
    }
out:
    D9D_VEC_RELEASE(&operands);
    d9d_buf_release(&ops);
    return st;
}

static d9d_status parse_not(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const int line = p->t->line;
    d9di_jinja_node *operand;

    if (!d9di_jinja_skip_name(p, "not"))
        return parse_compare(p, out);
    D9D_TRY(d9di_jinja_enter(p));
    D9D_TRY(parse_not(p, &operand));
    p->depth--;
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_UNARY, line, out));
    (*out)->op = '!';
    (*out)->a = operand;
    return D9D_OK;
}

static d9d_status parse_and_or(d9di_jinja_parser *p, bool is_or, d9di_jinja_node **out)
{
    D9D_TRY(is_or ? parse_and_or(p, false, out) : parse_not(p, out));
    while (d9di_jinja_skip_name(p, is_or ? "or" : "and")) {
        d9di_jinja_node *n, *right;

        D9D_TRY(is_or ? parse_and_or(p, false, &right) : parse_not(p, &right));
        D9D_TRY(d9di_jinja_new_node(p, is_or ? D9DI_JINJA_OR : D9DI_JINJA_AND, (*out)->line, &n));
        n->a = *out;
        n->b = right;
        *out = n;
    }
    return D9D_OK;
}

d9d_status d9di_jinja_parse_plain(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    D9D_TRY(d9di_jinja_enter(p));
    D9D_TRY(parse_and_or(p, true, out));
    p->depth--;
    return D9D_OK;
}

d9d_status d9di_jinja_parse_expr(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    D9D_TRY(d9di_jinja_enter(p));
    D9D_TRY(d9di_jinja_parse_plain(p, out));
    while (d9di_jinja_skip_name(p, "if")) {
        d9di_jinja_node *n;

        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_COND, (*out)->line, &n));
        n->a = *out;
        D9D_TRY(d9di_jinja_parse_plain(p, &n->b));
        if (d9di_jinja_skip_name(p, "else"))
            D9D_TRY(d9di_jinja_parse_expr(p, &n->c));
        *out = n;
    }
    p->depth--;
    return D9D_OK;
}
