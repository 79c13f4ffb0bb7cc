/* jinja_parse.c - tokens to statements. */
#include <string.h>

#include "data/jinja/jinja_ast.h"

/* Parses statements up to one of these names, at which the parser then is; `end` is a list
 * separated by blanks, NULL the end of the text. */
static d9d_status parse_body(d9di_jinja_parser *p, const char *end, d9di_jinja_node **out);

static d9d_status expect_block_end(d9di_jinja_parser *p)
{
    if (p->t->kind != D9DI_JINJA_T_BLOCK_END)
        return d9di_jinja_unexpected(p, "\"%}\"");
    p->t++;
    return D9D_OK;
}

/* The body up to {% NAME %}, which is passed. */
static d9d_status parse_block(d9di_jinja_parser *p, const char *name, d9di_jinja_node **out)
{
    D9D_TRY(expect_block_end(p));
    D9D_TRY(parse_body(p, name, out));
    p->t++;
    return D9D_OK;
}

/* The same, within which there is no loop to leave. */
static d9d_status parse_closed_block(d9di_jinja_parser *p, const char *name, d9di_jinja_node **out)
{
    const int loops = p->loops;

    p->loops = 0;
    D9D_TRY(parse_block(p, name, out));
    p->loops = loops;
    return D9D_OK;
}

/* --- targets ---------------------------------------------------------------------------------- */

static d9d_status parse_target_name(d9di_jinja_parser *p, bool attrs, d9di_jinja_node **out)
{
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None"};
    const d9di_jinja_token *t = p->t;
    bool is_name = t->kind == D9DI_JINJA_T_NAME;

    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]) && is_name; i++)
        is_name = strcmp(t->text, reserved[i]) != 0;
    if (!is_name)
        return d9di_jinja_unexpected(p, "a name");
    p->t++;
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_NAME, t->line, out));
    (*out)->name = t->text;
    (*out)->name_n = t->n;
    if (!attrs || !d9di_jinja_skip_op(p, '.'))
        return D9D_OK;
    if (p->t->kind != D9DI_JINJA_T_NAME)
        return d9di_jinja_unexpected(p, "a name");
    (*out)->kind = D9DI_JINJA_SET_ATTR;
    (*out)->attr = p->t->text;
    (*out)->attr_n = p->t->n;
    p->t++;
    return D9D_OK;
}

/* A name that is set or taken by a loop, but for a loop's own one. */
static d9d_status parse_target_item(d9di_jinja_parser *p, bool attrs, d9di_jinja_node **out)
{
    D9D_TRY(parse_target_name(p, attrs, out));
    return p->all_loops > 0 && (*out)->kind == D9DI_JINJA_NAME && strcmp((*out)->name, "loop") == 0
               ? d9di_jinja_fail_at(p->source, D9D_EFORMAT, (*out)->line,
                                    "\"loop\" is set within a loop")
               : D9D_OK;
}

/* A name, or several with commas and brackets; `attrs`: namespace.name is a target too. */
static d9d_status parse_target(d9di_jinja_parser *p, bool attrs, d9di_jinja_node **out)
{
    const int line = p->t->line;
    d9di_jinja_nodes items = {0};
    bool is_tuple = false;
    d9d_status st;

    D9D_TRY_OR(st, d9di_jinja_enter(p), out);
    do {
        d9di_jinja_node *item;

        if (items.len > 0 && p->t->kind != D9DI_JINJA_T_NAME && !d9di_jinja_at_op(p, '('))
            break;
        if (d9di_jinja_skip_op(p, '(')) {
            D9D_TRY_OR(st, parse_target(p, attrs, &item), out);
            D9D_TRY_OR(st, d9di_jinja_expect_op(p, ')'), out);
        } else {
            D9D_TRY_OR(st, parse_target_item(p, attrs, &item), out);
        }
        D9D_TRY_OR(st, D9D_VEC_PUSH(&items, item), out);
        is_tuple = is_tuple || d9di_jinja_at_op(p, ',');
    } while (d9di_jinja_skip_op(p, ','));
    p->depth--;
    *out = items.data[0];
    if (is_tuple) {
        D9D_TRY_OR(st, d9di_jinja_new_node(p, D9DI_JINJA_MAKE_TUPLE, line, out), out);
        st = d9di_jinja_set_list(p, *out, &items);
    }
out:
    D9D_VEC_RELEASE(&items);
    return st;
}

/* --- one function per statement, behind its name ---------------------------------------------- */

/* Pushes the condition and the body of an if or elif. */
static d9d_status parse_branch(d9di_jinja_parser *p, d9di_jinja_nodes *branches)
{
    d9di_jinja_node *condition, *body;

    D9D_TRY(d9di_jinja_parse_tuple(p, true, &condition));
    D9D_TRY(expect_block_end(p));
    p->branches++;
    D9D_TRY(parse_body(p, "elif else endif", &body));
    p->branches--;
    D9D_TRY(D9D_VEC_PUSH(branches, condition));
    return D9D_VEC_PUSH(branches, body);
}

static d9d_status parse_if(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    d9di_jinja_nodes branches = {0};
    d9d_status st;

    do
        D9D_TRY_OR(st, parse_branch(p, &branches), out);
    while (d9di_jinja_skip_name(p, "elif"));
    p->branches++;
    if (d9di_jinja_skip_name(p, "else"))
        D9D_TRY_OR(st, parse_block(p, "endif", &n->b), out);
    else
        p->t++;
    p->branches--;
    n->kind = D9DI_JINJA_IF;
    st = d9di_jinja_set_list(p, n, &branches);
out:
    D9D_VEC_RELEASE(&branches);
    return st;
}

static d9d_status parse_for(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    const bool outer = p->has_macro;

    n->kind = D9DI_JINJA_FOR;
    p->all_loops++;
    D9D_TRY(parse_target(p, false, &n->target));
    if (!d9di_jinja_skip_name(p, "in"))
        return d9di_jinja_unexpected(p, "\"in\"");
    D9D_TRY(d9di_jinja_parse_tuple(p, true, &n->a));
    if (d9di_jinja_skip_name(p, "if"))
        D9D_TRY(d9di_jinja_parse_expr(p, &n->b));
    n->recursive = d9di_jinja_skip_name(p, "recursive");
    D9D_TRY(expect_block_end(p));
    p->loops++;
    p->has_macro = false;
    D9D_TRY(parse_body(p, "endfor else", &n->body));
    n->captured = p->has_macro;
    p->has_macro = p->has_macro || outer;
    p->loops--;
    if (d9di_jinja_skip_name(p, "else"))
        D9D_TRY(parse_block(p, "endfor", &n->c));
    else
        p->t++;
    p->all_loops--;
    return D9D_OK;
}

static d9d_status parse_set(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    D9D_TRY(parse_target(p, true, &n->target));
    if (d9di_jinja_skip_op(p, '=')) {
        n->kind = D9DI_JINJA_SET;
        return d9di_jinja_parse_tuple(p, false, &n->a);
    }
    n->kind = D9DI_JINJA_SET_BLOCK;
    D9D_TRY(d9di_jinja_parse_filters(p, false, NULL, &n->a));
    return parse_closed_block(p, "endset", &n->body);
}

static d9d_status parse_filter_block(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    n->kind = D9DI_JINJA_FILTER_BLOCK;
    D9D_TRY(d9di_jinja_parse_filters(p, true, NULL, &n->a));
    return parse_closed_block(p, "endfilter", &n->body);
}

static d9d_status parse_with_items(d9di_jinja_parser *p, d9di_jinja_nodes *items)
{
    while (p->t->kind != D9DI_JINJA_T_BLOCK_END) {
        d9di_jinja_node *target, *value;

        if (items->len > 0)
            D9D_TRY(d9di_jinja_expect_op(p, ','));
        D9D_TRY(parse_target_name(p, false, &target));
        D9D_TRY(d9di_jinja_expect_op(p, '='));
        D9D_TRY(d9di_jinja_parse_expr(p, &value));
        D9D_TRY(D9D_VEC_PUSH(items, target));
        D9D_TRY(D9D_VEC_PUSH(items, value));
    }
    return D9D_OK;
}

static d9d_status parse_with(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    d9di_jinja_nodes items = {0};
    d9d_status st;

    n->kind = D9DI_JINJA_WITH;
    D9D_TRY_OR(st, parse_with_items(p, &items), out);
    D9D_TRY_OR(st, d9di_jinja_set_list(p, n, &items), out);
    st = parse_block(p, "endwith", &n->body);
out:
    D9D_VEC_RELEASE(&items);
    return st;
}

typedef struct params {
    D9D_VEC(const char *) names;
    d9di_jinja_nodes defaults;
} params;

static d9d_status parse_param(d9di_jinja_parser *p, params *to)
{
    const size_t n = to->defaults.len;
    d9di_jinja_node *name, *value = NULL;

    D9D_TRY(parse_target_name(p, false, &name));
    for (size_t i = 0; i < to->names.len; i++)
        if (to->names.data[i] == name->name)
            return d9di_jinja_fail_at(p->source, D9D_EFORMAT, name->line,
                                      "a macro has two parameters \"%s\"", name->name);
    if (d9di_jinja_skip_op(p, '='))
        D9D_TRY(d9di_jinja_parse_expr(p, &value));
    else if (n > 0 && to->defaults.data[n - 1] != NULL)
        return d9di_jinja_fail_at(p->source, D9D_EFORMAT, name->line,
                                  "the parameter \"%s\" has no default and follows one that has",
                                  name->name);
    if (value == NULL && strcmp(name->name, "caller") == 0)
        return d9di_jinja_fail_at(p->source, D9D_EFORMAT, name->line,
                                  "the parameter \"caller\" needs a default");
    D9D_TRY(D9D_VEC_PUSH(&to->names, name->name));
    return D9D_VEC_PUSH(&to->defaults, value);
}

static d9d_status parse_params(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    params all = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_jinja_expect_op(p, '('), out);
    while (!d9di_jinja_skip_op(p, ')')) {
        if (all.names.len > 0)
            D9D_TRY_OR(st, d9di_jinja_expect_op(p, ','), out);
        if (d9di_jinja_skip_op(p, ')'))
            break;
        D9D_TRY_OR(st, parse_param(p, &all), out);
    }
    D9D_TRY_OR(st, d9di_jinja_set_list(p, n, &all.defaults), out);
    n->n_kw = all.names.len;
    n->kw = d9d_arena_alloc(p->source->arena, all.names.len * sizeof(*n->kw));
    if (n->kw == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", p->source->where);
    else if (all.names.len > 0)
        memcpy(n->kw, all.names.data, all.names.len * sizeof(*n->kw));
out:
    D9D_VEC_RELEASE(&all.names);
    D9D_VEC_RELEASE(&all.defaults);
    return st;
}

/* The body of a macro up to {% END %}. */
static d9d_status parse_macro_body(d9di_jinja_parser *p, d9di_jinja_node *n, const char *end)
{
    n->outer = p->macro;
    p->macro = n;
    D9D_TRY(parse_closed_block(p, end, &n->body));
    p->macro = n->outer;
    p->has_macro = true;
    return D9D_OK;
}

static d9d_status parse_macro(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    d9di_jinja_node *name;

    n->kind = D9DI_JINJA_DEFINE_MACRO;
    D9D_TRY(parse_target_name(p, false, &name));
    n->name = name->name;
    n->name_n = name->name_n;
    D9D_TRY(parse_params(p, n));
    return parse_macro_body(p, n, "endmacro");
}

static d9d_status parse_call_block(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    n->kind = D9DI_JINJA_CALL_BLOCK;
    n->name = "caller";
    if (d9di_jinja_at_op(p, '('))
        D9D_TRY(parse_params(p, n));
    D9D_TRY(d9di_jinja_parse_expr(p, &n->a));
    if (n->a->kind != D9DI_JINJA_CALL)
        return d9di_jinja_unexpected(p, "a call");
    return parse_macro_body(p, n, "endcall");
}

static d9d_status parse_generation(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    n->kind = D9DI_JINJA_GENERATION;
    p->generation = true;
    return parse_closed_block(p, "endgeneration", &n->body);
}

static d9d_status parse_jump(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    n->kind = strcmp(p->t[-1].text, "break") == 0 ? D9DI_JINJA_BREAK : D9DI_JINJA_CONTINUE;
    return p->loops > 0 ? D9D_OK
                        : d9di_jinja_fail_at(p->source, D9D_EFORMAT, n->line,
                                             "\"%s\" stands in no loop", p->t[-1].text);
}

static d9d_status parse_print(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    n->kind = D9DI_JINJA_OUTPUT;
    return d9di_jinja_parse_expr(p, &n->a);
}

static d9d_status refuse(d9di_jinja_parser *p, d9di_jinja_node *n)
{
    return d9di_jinja_fail_at(p->source, D9D_ENOTSUP, n->line, "{%% %s %%} is not supported",
                              p->t[-1].text);
}

static const struct {
    const char *name;
    d9d_status (*parse)(d9di_jinja_parser *p, d9di_jinja_node *n);
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"generation", parse_generation},
    {"break", parse_jump},
    {"continue", parse_jump},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"print", parse_print},
    {"call", parse_call_block},
    {"block", refuse},
    {"extends", refuse},
    {"include", refuse},
    {"import", refuse},
    {"from", refuse},
    {"autoescape", refuse},
};

/* --- bodies ----------------------------------------------------------------------------------- */

/* The statement behind {%. */
static d9d_status parse_statement(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const d9di_jinja_token *t = p->t;

    if (t->kind != D9DI_JINJA_T_NAME)
        return d9di_jinja_unexpected(p, "the name of a statement");
    p->t++;
    D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_BODY, t->line, out));
    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
        if (strcmp(t->text, statements[i].name) == 0) {
            D9D_TRY(statements[i].parse(p, *out));
            return expect_block_end(p);
        }
    return d9di_jinja_fail_at(p->source, D9D_EFORMAT, t->line, "unexpected statement \"%.60s\"",
                              t->text);
}

/* Text, {{ }} or a statement. */
static d9d_status parse_part(d9di_jinja_parser *p, d9di_jinja_node **out)
{
    const d9di_jinja_token *t = p->t++;

    switch (t->kind) {
    case D9DI_JINJA_T_DATA:
        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_TEXT, t->line, out));
        (*out)->value = d9di_jinja_str(t->text, t->n);
        return D9D_OK;
    case D9DI_JINJA_T_VARIABLE_BEGIN:
        D9D_TRY(d9di_jinja_new_node(p, D9DI_JINJA_OUTPUT, t->line, out));
        D9D_TRY(d9di_jinja_parse_tuple(p, false, &(*out)->a));
        if (p->t->kind != D9DI_JINJA_T_VARIABLE_END)
            return d9di_jinja_unexpected(p, "\"}}\"");
        p->t++;
        return D9D_OK;
    default: return parse_statement(p, out);
    }
}

/* Is the parser behind {% at one of these names? */
static bool at_end(const d9di_jinja_parser *p, const char *names)
{
    const size_t n = p->t[1].kind == D9DI_JINJA_T_NAME ? p->t[1].n : 0;

    if (names == NULL || n == 0)
        return false;
    for (const char *w = names; *w; w += strspn(w, " ")) {
        const size_t len = strcspn(w, " ");

        if (len == n && memcmp(w, p->t[1].text, n) == 0)
            return true;
        w += len;
    }
    return false;
}

static d9d_status parse_parts(d9di_jinja_parser *p, const char *end, d9di_jinja_nodes *parts)
{
    while (p->t->kind != D9DI_JINJA_T_END) {
        d9di_jinja_node *part;

        if (p->t->kind == D9DI_JINJA_T_BLOCK_BEGIN && at_end(p, end)) {
            p->t++;
            return D9D_OK;
        }
        D9D_TRY(parse_part(p, &part));
        D9D_TRY(D9D_VEC_PUSH(parts, part));
    }
    return end == NULL ? D9D_OK : d9di_jinja_unexpected(p, end);
}

static d9d_status parse_body(d9di_jinja_parser *p, const char *end, d9di_jinja_node **out)
{
    d9di_jinja_nodes parts = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9di_jinja_enter(p), out);
    D9D_TRY_OR(st, d9di_jinja_new_node(p, D9DI_JINJA_BODY, p->t->line, out), out);
    D9D_TRY_OR(st, parse_parts(p, end, &parts), out);
    st = d9di_jinja_set_list(p, *out, &parts);
    p->depth--;
out:
    D9D_VEC_RELEASE(&parts);
    return st;
}

d9d_status d9di_jinja_parse(d9di_jinja_source *s, const d9di_jinja_token *tokens,
                            d9d_jinja_template *out)
{
    d9di_jinja_parser p = {.source = s, .t = tokens};
    d9di_jinja_node *body = NULL;

    D9D_TRY(parse_body(&p, NULL, &body));
    out->body = body;
    out->generation = p.generation;
    return D9D_OK;
}
