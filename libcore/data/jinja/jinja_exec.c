/* jinja_exec.c - runs statements. */
#include <string.h>

#include "data/jinja/jinja_exec.h"

/* Runs a body in a scope of its own and makes its output a string. */
static d9d_status capture(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *body,
                          d9di_jinja_value *out)
{
    const size_t mark = d9di_jinja_mark(r);
    d9di_jinja_flow flow;

    r->captures++;
    D9D_TRY(d9di_jinja_exec(r, s, body, &flow));
    r->captures--;
    return d9di_jinja_take(r, mark, out);
}

static d9d_status new_scope(d9di_jinja_run *r, d9di_jinja_scope *parent, d9di_jinja_scope **out)
{
    D9D_TRY(d9di_jinja_alloc(r, 1, sizeof(**out), out));
    (*out)->parent = parent;
    return D9D_OK;
}

/* --- text, conditions ------------------------------------------------------------------------- */

static d9d_status exec_body(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_flow *flow)
{
    for (size_t i = 0; i < n->n && *flow == D9DI_JINJA_GO_ON; i++)
        D9D_TRY(d9di_jinja_exec(r, s, n->list[i], flow));
    return D9D_OK;
}

static d9d_status exec_text(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_flow *flow)
{
    (void)s;
    (void)flow;
    return d9di_jinja_put(r, n->value.text, n->value.n);
}

static d9d_status exec_output(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                              d9di_jinja_flow *flow)
{
    d9di_jinja_value v;

    (void)flow;
    D9D_TRY(d9di_jinja_eval(r, s, n->a, &v));
    return d9di_jinja_put_str(r, &v);
}

static d9d_status exec_if(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                          d9di_jinja_flow *flow)
{
    for (size_t i = 0; i < n->n; i += 2) {
        d9di_jinja_value condition;

        D9D_TRY(d9di_jinja_eval(r, s, n->list[i], &condition));
        if (d9di_jinja_truth(&condition))
            return d9di_jinja_exec(r, s, n->list[i + 1], flow);
    }
    return n->b != NULL ? d9di_jinja_exec(r, s, n->b, flow) : D9D_OK;
}

/* --- loops ------------------------------------------------------------------------------------ */

/* One iteration; *scope is used again unless a macro keeps it. */
static d9d_status iterate_once(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_scope **scope,
                               d9di_jinja_flow *flow)
{
    const d9di_jinja_value self = {.kind = D9DI_JINJA_LOOP, .loop = l};
    const d9di_jinja_value now = l->now;
    const size_t begin = d9di_jinja_mark(r);

    D9D_TRY(d9di_jinja_step(r, 1));
    if (*scope == NULL || l->node->captured)
        D9D_TRY(new_scope(r, l->outer, scope));
    (*scope)->n = 0;
    D9D_TRY(d9di_jinja_assign(r, *scope, l->node->target, &now));
    D9D_TRY(d9di_jinja_scope_set(r, *scope, r->template->name_loop, self));
    D9D_TRY(d9di_jinja_exec(r, *scope, l->node->body, flow));
    return d9di_jinja_trace_visit(r, &now, begin);
}

/* Runs the loop n over items, in the scope s around it. */
static d9d_status run_loop(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           const d9di_jinja_value *items, int64_t depth, d9di_jinja_flow *flow)
{
    d9di_jinja_scope *scope = NULL;
    d9di_jinja_loop *l;
    bool more;

    D9D_TRY(d9di_jinja_alloc(r, 1, sizeof(*l), &l));
    *l = (d9di_jinja_loop){.node = n, .outer = s, .index0 = -1, .length = -1, .depth = depth};
    D9D_TRY(d9di_jinja_iterate(r, items, &l->items));
    for (;;) {
        d9di_jinja_flow inner = D9DI_JINJA_GO_ON;

        D9D_TRY(d9di_jinja_loop_next(r, l, &more));
        if (!more)
            break;
        D9D_TRY(iterate_once(r, l, &scope, &inner));
        l->completed = l->completed || inner == D9DI_JINJA_GO_ON;
        if (inner == D9DI_JINJA_LEAVE)
            break;
    }
    if (!l->counted_rest)
        d9di_jinja_give_back(items, &l->items, l->at);
    if (l->completed || n->c == NULL)
        return D9D_OK;
    D9D_TRY(new_scope(r, s, &scope));
    return d9di_jinja_exec(r, scope, n->c, flow);
}

static d9d_status exec_for(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           d9di_jinja_flow *flow)
{
    d9di_jinja_value items;

    D9D_TRY(d9di_jinja_eval(r, s, n->a, &items));
    r->line = n->line;
    return run_loop(r, s, n, &items, 1, flow);
}

static d9d_status call_loop(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    const d9di_jinja_loop *l = c->self.loop;
    d9di_jinja_run *r = c->run;
    const size_t mark = d9di_jinja_mark(r);
    d9di_jinja_flow flow = D9DI_JINJA_GO_ON;

    if (!l->node->recursive)
        return d9di_jinja_fail(r, "a loop that is not marked \"recursive\" cannot be called");
    r->captures++;
    D9D_TRY(run_loop(r, l->outer, l->node, &c->arg[0], l->depth + 1, &flow));
    r->captures--;
    return d9di_jinja_take(r, mark, out);
}

const d9di_jinja_builtin d9di_jinja_loop_call = {"loop", call_loop, "iterable", 1};

static d9d_status exec_jump(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_flow *flow)
{
    (void)r;
    (void)s;
    *flow = n->kind == D9DI_JINJA_BREAK ? D9DI_JINJA_LEAVE : D9DI_JINJA_AGAIN;
    return D9D_OK;
}

/* --- variables, blocks ------------------------------------------------------------------------ */

static d9d_status exec_set(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           d9di_jinja_flow *flow)
{
    d9di_jinja_value v;

    (void)flow;
    D9D_TRY(d9di_jinja_eval(r, s, n->a, &v));
    r->line = n->line;
    return d9di_jinja_assign(r, s, n->target, &v);
}

static d9d_status exec_set_block(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                 d9di_jinja_flow *flow)
{
    d9di_jinja_scope *inner;
    d9di_jinja_value text, v;

    (void)flow;
    D9D_TRY(new_scope(r, s, &inner));
    D9D_TRY(capture(r, inner, n->body, &text));
    D9D_TRY(d9di_jinja_eval_filters(r, inner, n->a, &text, &v));
    return d9di_jinja_assign(r, s, n->target, &v);
}

static d9d_status exec_filter_block(d9di_jinja_run *r, d9di_jinja_scope *s,
                                    const d9di_jinja_node *n, d9di_jinja_flow *flow)
{
    d9di_jinja_scope *inner;
    d9di_jinja_value text, v;

    (void)flow;
    D9D_TRY(new_scope(r, s, &inner));
    D9D_TRY(capture(r, inner, n->body, &text));
    D9D_TRY(d9di_jinja_eval_filters(r, inner, n->a, &text, &v));
    return d9di_jinja_put_str(r, &v);
}

static d9d_status exec_with(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                            d9di_jinja_flow *flow)
{
    d9di_jinja_scope *inner;

    D9D_TRY(new_scope(r, s, &inner));
    for (size_t i = 0; i < n->n; i += 2) {
        d9di_jinja_value v;

        D9D_TRY(d9di_jinja_eval(r, s, n->list[i + 1], &v));
        D9D_TRY(d9di_jinja_assign(r, inner, n->list[i], &v));
    }
    return d9di_jinja_exec(r, inner, n->body, flow);
}

static d9d_status exec_generation(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                  d9di_jinja_flow *flow)
{
    d9d_jinja_span span = {.begin = d9di_jinja_mark(r)};
    d9di_jinja_scope *inner;

    if (r->trace != NULL && r->captures > 0)
        return d9di_jinja_fail(r, "a generation block within a macro or a block has no place in "
                                  "the output");
    D9D_TRY(new_scope(r, s, &inner));
    D9D_TRY(d9di_jinja_exec(r, inner, n->body, flow));
    span.end = d9di_jinja_mark(r);
    return r->trace != NULL ? D9D_VEC_PUSH(&r->trace->generation, span) : D9D_OK;
}

/* --- macros ----------------------------------------------------------------------------------- */

static d9d_status make_macro(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                             d9di_jinja_value *out)
{
    d9di_jinja_macro *m;

    D9D_TRY(d9di_jinja_alloc(r, 1, sizeof(*m), &m));
    *m = (d9di_jinja_macro){n, s};
    *out = (d9di_jinja_value){.kind = D9DI_JINJA_MACRO, .macro = m};
    return D9D_OK;
}

static d9d_status exec_define_macro(d9di_jinja_run *r, d9di_jinja_scope *s,
                                    const d9di_jinja_node *n, d9di_jinja_flow *flow)
{
    d9di_jinja_value macro;

    (void)flow;
    D9D_TRY(make_macro(r, s, n, &macro));
    return d9di_jinja_scope_set(r, s, n->name, macro);
}

static d9d_status exec_call_block(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                                  d9di_jinja_flow *flow)
{
    d9di_jinja_value caller, v;

    (void)flow;
    D9D_TRY(make_macro(r, s, n, &caller));
    D9D_TRY(d9di_jinja_eval_call(r, s, n->a, &caller, &v));
    return d9di_jinja_put_str(r, &v);
}

/* The place of a keyword argument among those of the call; -1: it is not given. */
static int find_keyword(const d9di_jinja_call *c, const char *name)
{
    for (size_t i = 0; i < c->n_kw; i++)
        if (strcmp(c->kw[i].name, name) == 0)
            return (int)i;
    return -1;
}

static d9d_status bind_param(const d9di_jinja_call *c, const d9di_jinja_node *n, size_t i,
                             d9di_jinja_scope *s)
{
    const int at = i < c->n ? -1 : find_keyword(c, n->kw[i]);
    d9di_jinja_value v = d9di_jinja_undefined(D9DI_JINJA_NO_ARGUMENT, n->kw[i], strlen(n->kw[i]));

    if (i < c->n)
        v = c->pos[i];
    else if (at >= 0)
        v = c->kw[at].value;
    else if (n->list[i] != NULL)
        D9D_TRY(d9di_jinja_eval(c->run, s, n->list[i], &v));
    return d9di_jinja_scope_set(c->run, s, n->kw[i], v);
}

/* Sets `caller` if the macro's body has it and none of its parameters is called so. */
static d9d_status bind_caller(const d9di_jinja_call *c, const d9di_jinja_node *n,
                              d9di_jinja_scope *s)
{
    const char *const name = c->run->template->name_caller;
    const int at = find_keyword(c, name);

    for (size_t i = 0; i < n->n_kw; i++)
        if (n->kw[i] == name)
            return D9D_OK;
    if (!n->takes_caller)
        return D9D_OK;
    return d9di_jinja_scope_set(
        c->run, s, name,
        at >= 0 ? c->kw[at].value
                : d9di_jinja_undefined(D9DI_JINJA_NO_VARIABLE, "caller", strlen("caller")));
}

/* `varargs` and `kwargs`; without them what is left is an error. */
static d9d_status bind_rest(const d9di_jinja_call *c, const d9di_jinja_node *n, d9di_jinja_scope *s)
{
    const d9d_jinja_template *t = c->run->template;
    d9di_jinja_value rest, keywords;

    if (c->n > n->n_kw && !n->takes_rest)
        return d9di_jinja_fail(c->run, "the macro \"%.60s\" takes %zu arguments, not %zu", n->name,
                               n->n_kw, c->n);
    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_TUPLE, 0, &rest));
    for (size_t i = n->n_kw; i < c->n; i++)
        D9D_TRY(d9di_jinja_seq_append(c->run, rest.seq, c->pos[i]));
    D9D_TRY(d9di_jinja_dict_new(c->run, D9DI_JINJA_DICT, &keywords));
    for (size_t i = 0; i < c->n_kw; i++) {
        const char *name = c->kw[i].name;
        size_t at = c->n < n->n_kw ? c->n : n->n_kw;

        while (at < n->n_kw && strcmp(n->kw[at], name) != 0)
            at++;
        if (at < n->n_kw || (n->takes_caller && strcmp(name, t->name_caller) == 0))
            continue;
        if (!n->takes_keywords)
            return d9di_jinja_fail(c->run, "the macro \"%.60s\" takes no keyword \"%.60s\"",
                                   n->name, name);
        D9D_TRY(d9di_jinja_dict_put(c->run, keywords.dict, d9di_jinja_keyword_key(&c->kw[i]),
                                    c->kw[i].value));
    }
    if (n->takes_keywords)
        D9D_TRY(d9di_jinja_scope_set(c->run, s, t->name_kwargs, keywords));
    return n->takes_rest ? d9di_jinja_scope_set(c->run, s, t->name_varargs, rest) : D9D_OK;
}

d9d_status d9di_jinja_call_macro(const d9di_jinja_macro *m, d9di_jinja_call *c,
                                 d9di_jinja_value *out)
{
    const d9di_jinja_node *n = m->node;
    d9di_jinja_scope *s;

    D9D_TRY(new_scope(c->run, m->scope, &s));
    D9D_TRY(bind_rest(c, n, s));
    D9D_TRY(bind_caller(c, n, s));
    for (size_t i = 0; i < n->n_kw; i++)
        D9D_TRY(bind_param(c, n, i, s));
    return capture(c->run, s, n->body, out);
}

/* --- all -------------------------------------------------------------------------------------- */

static d9d_status (*const runners[D9DI_JINJA_NODE_KINDS])(d9di_jinja_run *r, d9di_jinja_scope *s,
                                                          const d9di_jinja_node *n,
                                                          d9di_jinja_flow *flow) = {
    [D9DI_JINJA_BODY] = exec_body,
    [D9DI_JINJA_TEXT] = exec_text,
    [D9DI_JINJA_OUTPUT] = exec_output,
    [D9DI_JINJA_IF] = exec_if,
    [D9DI_JINJA_FOR] = exec_for,
    [D9DI_JINJA_SET] = exec_set,
    [D9DI_JINJA_SET_BLOCK] = exec_set_block,
    [D9DI_JINJA_FILTER_BLOCK] = exec_filter_block,
    [D9DI_JINJA_WITH] = exec_with,
    [D9DI_JINJA_DEFINE_MACRO] = exec_define_macro,
    [D9DI_JINJA_CALL_BLOCK] = exec_call_block,
    [D9DI_JINJA_GENERATION] = exec_generation,
    [D9DI_JINJA_BREAK] = exec_jump,
    [D9DI_JINJA_CONTINUE] = exec_jump,
};

d9d_status d9di_jinja_exec(d9di_jinja_run *r, d9di_jinja_scope *s, const d9di_jinja_node *n,
                           d9di_jinja_flow *flow)
{
    *flow = D9DI_JINJA_GO_ON;
    r->line = n->line;
    D9D_TRY(d9di_jinja_step(r, 1));
    if (++r->depth > D9DI_JINJA_MAX_DEPTH)
        return d9di_jinja_fail(r, "evaluation is nested deeper than %d levels",
                               D9DI_JINJA_MAX_DEPTH);
    D9D_TRY(runners[n->kind](r, s, n, flow));
    r->depth--;
    return D9D_OK;
}
