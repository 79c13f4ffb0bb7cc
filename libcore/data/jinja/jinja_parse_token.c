/* jinja_parse_token.c - what both files of the parser use: the current token, new nodes. */
#include <string.h>

#include "data/jinja/jinja_ast.h"

bool d9di_jinja_at_op(const d9di_jinja_parser *p, int op)
{
    return p->t->kind == D9DI_JINJA_T_OPERATOR && p->t->op == op;
}

static bool is_name(const d9di_jinja_token *t, const char *name)
{
    return t->kind == D9DI_JINJA_T_NAME && strcmp(t->text, name) == 0;
}

bool d9di_jinja_at_name(const d9di_jinja_parser *p, const char *name)
{
    return is_name(p->t, name);
}

bool d9di_jinja_skip_op(d9di_jinja_parser *p, int op)
{
    const bool here = d9di_jinja_at_op(p, op);

    p->t += here;
    return here;
}

bool d9di_jinja_skip_name(d9di_jinja_parser *p, const char *name)
{
    const bool here = is_name(p->t, name);

    p->t += here;
    return here;
}

static const char *const token_names[] = {"text",     "{{",       "}}",       "{%",
                                          "%}",       NULL,       "a string", "a number",
                                          "a number", "operator", "the end"};

void d9di_jinja_report_unexpected(const d9di_jinja_parser *p, const char *wanted)
{
    const d9di_jinja_token *t = p->t;
    char op[3] = {(char)t->op, '\0', '\0'};
    const char *found = t->kind == D9DI_JINJA_T_NAME       ? t->text
                        : t->kind == D9DI_JINJA_T_OPERATOR ? op
                                                           : token_names[t->kind];

    for (const char *from = "F//P**E==N!=G>=L<="; *from; from += 3) /* as they are written */
        if (t->kind == D9DI_JINJA_T_OPERATOR && t->op == *from)
            memcpy(op, from + 1, 2);
    (void)d9di_jinja_fail_at(p->source, D9D_EFORMAT, t->line, "expected %s, found \"%.60s\"",
                             wanted, found);
}

d9d_status d9di_jinja_expect_op(d9di_jinja_parser *p, int op)
{
    char wanted[] = "\"?\"";

    wanted[1] = (char)op;
    return d9di_jinja_skip_op(p, op) ? D9D_OK : d9di_jinja_unexpected(p, wanted);
}

d9d_status d9di_jinja_enter(d9di_jinja_parser *p)
{
    if (p->depth == 3 * D9DI_JINJA_MAX_NESTING) /* an expression in brackets counts three times */
        return d9di_jinja_fail_at(p->source, D9D_EFORMAT, p->t->line,
                                  "nested deeper than %d levels", D9DI_JINJA_MAX_NESTING);
    p->depth++;
    return D9D_OK;
}

d9d_status d9di_jinja_new_node(d9di_jinja_parser *p, d9di_jinja_node_kind kind, int line,
                               d9di_jinja_node **out)
{
    d9di_jinja_node *n = d9d_arena_alloc(p->source->arena, sizeof(*n));

    if (n == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", p->source->where);
    n->kind = kind;
    n->line = line;
    *out = n;
    return D9D_OK;
}

d9d_status d9di_jinja_copy_array(d9di_jinja_parser *p, const void *from, size_t n, size_t size,
                                 void *out)
{
    void *copy = n < SIZE_MAX / size ? d9d_arena_alloc(p->source->arena, n * size) : NULL;

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", p->source->where);
    if (n > 0)
        memcpy(copy, from, n * size);
    memcpy(out, &copy, sizeof(copy));
    return D9D_OK;
}

d9d_status d9di_jinja_set_list(d9di_jinja_parser *p, d9di_jinja_node *n,
                               const d9di_jinja_nodes *from)
{
    D9D_TRY(d9di_jinja_copy_array(p, from->data, from->len, sizeof(*from->data), &n->list));
    n->n = from->len;
    return D9D_OK;
}
