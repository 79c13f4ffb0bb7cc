/* jinja_eval.c - values of expressions. */
#include <string.h>

#include "data/jinja/jinja_exec.h"

/* --- variables -------------------------------------------------------------------------------- */

d9d_status d9di_jinja_scope_set(d9di_jinja_run *r, d9di_jinja_scope *s, const char *name,
                                d9di_jinja_value v)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->list[i].name == name) {
            s->list[i].value = v;
            return D9D_OK;
        }
    if (s->n == s->cap) {
        const size_t cap = s->cap == 0 ? 4 : 2 * s->cap;
        struct d9di_jinja_variable *more;

        D9D_TRY(d9di_jinja_alloc(r, cap, sizeof(*more), &more));
        if (s->n > 0)
            memcpy(more, s->list, s->n * sizeof(*more));
        s->list = more;
        s->cap = cap;
    }
    s->list[s->n++] = (struct d9di_jinja_variable){name, v};
    return D9D_OK;
}

static d9d_status eval_name(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    const d9di_jinja_value key = d9di_jinja_str(n->name, n->name_n), *found;
    const d9di_jinja_builtin *function;

    for (; s != NULL; s = s->parent)
        for (size_t i = 0; i < s->n; i++)
            if (s->list[i].name == n->name) {
                *out = s->list[i].value;
                return D9D_OK;
            }
    found = d9di_jinja_dict_find(r, r->context, &key);
    function = found == NULL ? d9di_jinja_find(d9di_jinja_functions, n->name, n->name_n) : NULL;
    *out = found != NULL ? *found
           : function != NULL
               ? (d9di_jinja_value){.kind = D9DI_JINJA_FUNCTION, .function = function}
               : d9di_jinja_undefined(D9DI_JINJA_NO_VARIABLE, n->name, n->name_n);
    return D9D_OK;
}

d9d_status d9di_jinja_assign(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *target,
                             const d9di_jinja_value *v)
{
    d9di_jinja_seq items;

    if (target->kind == D9DI_JINJA_NAME)
        return d9di_jinja_scope_set(r, s, target->name, *v);
    if (target->kind == D9DI_JINJA_SET_ATTR) {
        d9di_jinja_value space;

        D9D_TRY(eval_name(r, s, target, &space));
        if (space.kind != D9DI_JINJA_NAMESPACE)
            return d9di_jinja_fail(r, "\"%.60s\" is no namespace, so \"%.60s\" of it cannot be set",
                                   target->name, target->attr);
        if (target->attr[0] == '_')
            return d9di_jinja_fail(r, "an attribute of a namespace begins with \"_\"");
        return d9di_jinja_dict_put(r, space.dict, d9di_jinja_str(target->attr, target->attr_n), *v);
    }
    D9D_TRY(d9di_jinja_iterate(r, v, &items));
    if (items.n != target->n)
        return d9di_jinja_fail(r, "%zu values for %zu names", items.n, target->n);
    for (size_t i = 0; i < items.n; i++)
        D9D_TRY(d9di_jinja_assign(r, s, target->list[i], &items.items[i]));
    return D9D_OK;
}

/* --- literals --------------------------------------------------------------------------------- */

static d9d_status eval_const(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                             d9di_jinja_value *out)
{
    (void)r;
    (void)s;
    *out = n->value;
    return D9D_OK;
}

static d9d_status eval_list(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    d9di_jinja_value all;

    D9D_TRY(d9di_jinja_seq_new(
        r, n->kind == D9DI_JINJA_MAKE_LIST ? D9DI_JINJA_LIST : D9DI_JINJA_TUPLE, n->n, &all));
    for (size_t i = 0; i < n->n; i++) {
        d9di_jinja_value v;

        D9D_TRY(d9di_jinja_eval(r, s, n->list[i], &v));
        D9D_TRY(d9di_jinja_seq_append(r, all.seq, v));
    }
    *out = all;
    return D9D_OK;
}

static d9d_status eval_dict(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    d9di_jinja_value all;

    D9D_TRY(d9di_jinja_dict_new(r, D9DI_JINJA_DICT, &all));
    for (size_t i = 0; i < n->n; i += 2) {
        d9di_jinja_value key, v;

        D9D_TRY(d9di_jinja_eval(r, s, n->list[i], &key));
        D9D_TRY(d9di_jinja_eval(r, s, n->list[i + 1], &v));
        D9D_TRY(d9di_jinja_dict_put(r, all.dict, key, v));
    }
    *out = all;
    return D9D_OK;
}

/* --- members ---------------------------------------------------------------------------------- */

static d9d_status eval_attr(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    d9di_jinja_value v;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &v));
    r->line = n->line;
    return d9di_jinja_get_attr(r, &v, n->name, n->name_n, out);
}

static d9d_status eval_item(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    d9di_jinja_value v, key;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &v));
    D9D_TRY(d9di_jinja_eval(r, s, n->b, &key));
    r->line = n->line;
    return d9di_jinja_get_item(r, &v, &key, out);
}

static d9d_status eval_slice(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                             d9di_jinja_value *out)
{
    d9di_jinja_value v, part[3];

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &v));
    for (int i = 0; i < 3; i++) {
        part[i] = (d9di_jinja_value){.kind = D9DI_JINJA_UNSET};
        if (n->list[i] != NULL)
            D9D_TRY(d9di_jinja_eval(r, s, n->list[i], &part[i]));
    }
    r->line = n->line;
    return d9di_jinja_get_slice(r, &v, part, out);
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Evaluates the positional arguments, and those of "*". */
static d9d_status eval_positional(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                  d9di_jinja_call *c)
{
    d9di_jinja_seq rest = {0};
    d9di_jinja_value *pos, v;

    if (n->c != NULL) {
        D9D_TRY(d9di_jinja_eval(r, s, n->c, &v));
        D9D_TRY(d9di_jinja_iterate(r, &v, &rest));
    }
    D9D_TRY(d9di_jinja_alloc(r, n->n + rest.n, sizeof(*pos), &pos));
    for (size_t i = 0; i < n->n; i++)
        D9D_TRY(d9di_jinja_eval(r, s, n->list[i], &pos[i]));
    if (rest.n > 0)
        memcpy(pos + n->n, rest.items, rest.n * sizeof(*pos));
    c->pos = pos;
    c->n = n->n + rest.n;
    return D9D_OK;
}

/* The keyword argument that a member of the dict behind "**" is. */
static d9d_status make_keyword(d9di_jinja_run *r, const d9di_jinja_call *c,
                               const d9di_jinja_value *key, const d9di_jinja_value *v,
                               d9di_jinja_keyword *out)
{
    char *name;

    if (key->kind != D9DI_JINJA_STRING || memchr(key->text, '\0', key->n) != NULL)
        return d9di_jinja_fail(r, "a key of what stands behind \"**\" is no name, but a %s",
                               d9di_jinja_type(key));
    D9D_TRY(d9di_jinja_alloc(r, key->n + 1, 1, &name));
    memcpy(name, key->text, key->n);
    *out = (d9di_jinja_keyword){name, *v, key};
    for (size_t i = 0; i < c->n_kw; i++)
        if (strcmp(c->kw[i].name, name) == 0)
            return d9di_jinja_fail(r, "the argument \"%.60s\" is there twice", name);
    return D9D_OK;
}

/* Adds those of "**" to the keyword arguments. */
static d9d_status eval_mapping(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                               d9di_jinja_call *c)
{
    d9di_jinja_value v;
    d9di_jinja_keyword *kw;

    D9D_TRY(d9di_jinja_eval(r, s, n->b, &v));
    if (v.kind == D9DI_JINJA_UNDEFINED)
        return d9di_jinja_fail_undefined(r, &v);
    if (v.kind != D9DI_JINJA_DICT)
        return d9di_jinja_fail(r, "\"**\" needs a dict, not a %s", d9di_jinja_type(&v));
    D9D_TRY(d9di_jinja_alloc(r, c->n_kw + v.dict->n, sizeof(*kw), &kw));
    if (c->n_kw > 0)
        memcpy(kw, c->kw, c->n_kw * sizeof(*kw));
    for (size_t i = 0; i < v.dict->n; i++)
        D9D_TRY(make_keyword(r, c, &v.dict->keys[i], &v.dict->values[i], &kw[c->n_kw + i]));
    c->kw = kw;
    c->n_kw += v.dict->n;
    return D9D_OK;
}

static d9d_status eval_args(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_call *c)
{
    d9di_jinja_keyword *kw;

    c->run = r;
    c->n_kw = n->n_kw;
    if (n->n > 0 || n->c != NULL)
        D9D_TRY(eval_positional(r, s, n, c));
    if (n->n_kw > 0) {
        D9D_TRY(d9di_jinja_alloc(r, n->n_kw, sizeof(*kw), &kw));
        for (size_t i = 0; i < n->n_kw; i++) {
            kw[i].name = n->kw[i];
            D9D_TRY(d9di_jinja_eval(r, s, n->list[n->n + i], &kw[i].value));
        }
        c->kw = kw;
    }
    r->line = n->line;
    return n->b != NULL ? eval_mapping(r, s, n, c) : D9D_OK;
}

static d9d_status add_keyword(d9di_jinja_run *r, d9di_jinja_call *c, const char *name,
                              const d9di_jinja_value *v)
{
    d9di_jinja_keyword *kw;

    D9D_TRY(d9di_jinja_alloc(r, c->n_kw + 1, sizeof(*kw), &kw));
    if (c->n_kw > 0)
        memcpy(kw, c->kw, c->n_kw * sizeof(*kw));
    kw[c->n_kw++] = (d9di_jinja_keyword){.name = name, .value = *v};
    c->kw = kw;
    return D9D_OK;
}

d9d_status d9di_jinja_eval_call(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                const d9di_jinja_value *caller, d9di_jinja_value *out)
{
    d9di_jinja_call c = {0};
    d9di_jinja_value f;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &f));
    D9D_TRY(eval_args(r, s, n, &c));
    if (caller != NULL)
        D9D_TRY(add_keyword(r, &c, r->template->name_caller, caller));
    D9D_TRY(d9di_jinja_call_value(&f, &c, out));
    r->line = n->line;
    return D9D_OK;
}

static d9d_status eval_call(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    return d9di_jinja_eval_call(r, s, n, NULL, out);
}

/* A filter or a test. */
static d9d_status eval_applied(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                               d9di_jinja_value *out)
{
    d9di_jinja_call c = {0};
    d9di_jinja_value self;

    if (n->a != NULL)
        D9D_TRY(d9di_jinja_eval(r, s, n->a, &self));
    else
        self = *r->block;
    D9D_TRY(eval_args(r, s, n, &c));
    c.self = self;
    return d9di_jinja_apply(n->builtin, &c, out);
}

d9d_status d9di_jinja_eval_filters(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                   const d9di_jinja_value *text, d9di_jinja_value *out)
{
    const d9di_jinja_value *const outer = r->block;

    *out = *text;
    if (n == NULL)
        return D9D_OK;
    r->block = text;
    D9D_TRY(d9di_jinja_eval(r, s, n, out));
    r->block = outer;
    return D9D_OK;
}

/* --- operators -------------------------------------------------------------------------------- */

static d9d_status eval_unary(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                             d9di_jinja_value *out)
{
    d9di_jinja_value v;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &v));
    r->line = n->line;
    if (n->op == '!') {
        *out = d9di_jinja_bool(!d9di_jinja_truth(&v));
        return D9D_OK;
    }
    if (n->op == '-')
        return d9di_jinja_negate(r, &v, out);
    D9D_TRY(d9di_jinja_negate(r, &v, out)); /* that it is a number */
    *out = v.kind == D9DI_JINJA_FLOAT ? v : d9di_jinja_int(d9di_jinja_as_int(&v));
    return D9D_OK;
}

static d9d_status eval_binary(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                              d9di_jinja_value *out)
{
    d9di_jinja_value a, b;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &a));
    D9D_TRY(d9di_jinja_eval(r, s, n->b, &b));
    r->line = n->line;
    return d9di_jinja_binary(r, n->op, &a, &b, out);
}

static d9d_status eval_concat(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                              d9di_jinja_value *out)
{
    d9di_jinja_value a, b;
    size_t mark;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &a));
    D9D_TRY(d9di_jinja_eval(r, s, n->b, &b));
    r->line = n->line;
    mark = d9di_jinja_mark(r);
    D9D_TRY(d9di_jinja_put_str(r, &a));
    D9D_TRY(d9di_jinja_put_str(r, &b));
    return d9di_jinja_take(r, mark, out);
}

static d9d_status eval_logic(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                             d9di_jinja_value *out)
{
    D9D_TRY(d9di_jinja_eval(r, s, n->a, out));
    return d9di_jinja_truth(out) == (n->kind == D9DI_JINJA_AND) ? d9di_jinja_eval(r, s, n->b, out)
                                                                : D9D_OK;
}

static d9d_status eval_compare(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                               d9di_jinja_value *out)
{
    d9di_jinja_value left, right;
    bool holds = true;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &left));
    for (size_t i = 0; i < n->n && holds; i++) {
        D9D_TRY(d9di_jinja_eval(r, s, n->list[i], &right));
        r->line = n->line;
        D9D_TRY(d9di_jinja_compare(r, n->ops[i], &left, &right, &holds));
        left = right;
    }
    *out = d9di_jinja_bool(holds);
    return D9D_OK;
}

static d9d_status eval_cond(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_value *out)
{
    d9di_jinja_value condition;

    D9D_TRY(d9di_jinja_eval(r, s, n->b, &condition));
    if (d9di_jinja_truth(&condition))
        return d9di_jinja_eval(r, s, n->a, out);
    if (n->c != NULL)
        return d9di_jinja_eval(r, s, n->c, out);
    *out = d9di_jinja_undefined(D9DI_JINJA_NO_ELSE, "", 0);
    return D9D_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

static d9d_status (*const evaluators[D9DI_JINJA_NODE_KINDS])(d9di_jinja_run *r, d9di_jinja_scope *s,
                                                             const d9di_jinja_node *n,
                                                             d9di_jinja_value *out) = {
    [D9DI_JINJA_CONST] = eval_const,     [D9DI_JINJA_NAME] = eval_name,
    [D9DI_JINJA_MAKE_LIST] = eval_list,  [D9DI_JINJA_MAKE_TUPLE] = eval_list,
    [D9DI_JINJA_MAKE_DICT] = eval_dict,  [D9DI_JINJA_ATTR] = eval_attr,
    [D9DI_JINJA_ITEM] = eval_item,       [D9DI_JINJA_SLICE] = eval_slice,
    [D9DI_JINJA_CALL] = eval_call,       [D9DI_JINJA_FILTER] = eval_applied,
    [D9DI_JINJA_TEST] = eval_applied,    [D9DI_JINJA_UNARY] = eval_unary,
    [D9DI_JINJA_BINARY] = eval_binary,   [D9DI_JINJA_AND] = eval_logic,
    [D9DI_JINJA_OR] = eval_logic,        [D9DI_JINJA_CONCAT] = eval_concat,
    [D9DI_JINJA_COMPARE] = eval_compare, [D9DI_JINJA_COND] = eval_cond,
};

d9d_status d9di_jinja_eval(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           d9di_jinja_value *out)
{
    r->line = n->line;
    D9D_TRY(d9di_jinja_step(r, 1));
    if (++r->depth > D9DI_JINJA_MAX_DEPTH)
        return d9di_jinja_fail(r, "evaluation is nested deeper than %d levels",
                               D9DI_JINJA_MAX_DEPTH);
    D9D_TRY(evaluators[n->kind](r, s, n, out));
    r->depth--;
    return D9D_OK;
}
