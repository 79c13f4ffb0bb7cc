/* jinja.c - see d9d/data/jinja/jinja.h: compiling and rendering. */
#include "d9d/data/jinja/jinja.h"

#include <string.h>

#include "d9d/data/tokenizer/tokenizer.h"
#include "data/jinja/jinja_exec.h"

#define MAX_STEPS  (UINT64_C(20) * 1000 * 1000)
#define MAX_OUTPUT (UINT64_C(1) << 28)
#define MAX_MEMORY (UINT64_C(1) << 30)

/* --- compiling -------------------------------------------------------------------------------- */

static d9d_status check_text(const char *text, size_t n, const char *where)
{
    const size_t valid = d9d_utf8_valid_up_to(text, n);
    const char *nul = n > 0 ? memchr(text, '\0', n) : NULL;

    if (valid < n)
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %zu is not valid UTF-8", where, valid);
    if (nul != NULL)
        return D9D_FAIL(D9D_EFORMAT, "%s: byte %zu is NUL", where, (size_t)(nul - text));
    return D9D_OK;
}

static d9d_status list_words(d9di_jinja_source *s, const d9di_jinja_tokens *tokens,
                             d9d_jinja_template *t)
{
    for (size_t i = 0; i < tokens->len; i++) {
        const d9di_jinja_token *one = &tokens->data[i];

        if (one->kind == D9DI_JINJA_T_STRING && d9di_jinja_intern(s, one->text, one->n) == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory", s->where);
    }
    t->words = d9d_arena_alloc(s->arena, s->names.len * sizeof(*t->words));
    if (t->words == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", s->where);
    t->n_words = s->names.len;
    for (size_t i = 0; i < t->n_words; i++)
        t->words[i] = s->names.entries[i].value;
    return D9D_OK;
}

static d9d_status make_template(d9di_jinja_source *s, const d9di_jinja_tokens *tokens,
                                const d9d_jinja_template **out)
{
    d9d_jinja_template *t = d9d_arena_alloc(s->arena, sizeof(*t));

    if (t != NULL) {
        t->where = s->where;
        t->name_loop = d9di_jinja_intern(s, "loop", 4);
        t->name_varargs = d9di_jinja_intern(s, "varargs", 7);
        t->name_kwargs = d9di_jinja_intern(s, "kwargs", 6);
        t->name_caller = d9di_jinja_intern(s, "caller", 6);
    }
    if (t == NULL || t->name_loop == NULL || t->name_varargs == NULL || t->name_kwargs == NULL ||
        t->name_caller == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", s->where);
    D9D_TRY(list_words(s, tokens, t));
    D9D_TRY(d9di_jinja_parse(s, tokens->data, t));
    *out = t;
    return D9D_OK;
}

d9d_status d9d_jinja_compile(const char *text, size_t n, const char *where, d9d_arena *arena,
                             const d9d_jinja_template **out)
{
    d9di_jinja_source s = {.where = d9d_arena_strdup(arena, where), .arena = arena};
    d9di_jinja_tokens tokens = {0};
    d9d_status st;

    if (s.where == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    D9D_TRY(check_text(text, n, where));
    D9D_TRY_OR(st, d9di_jinja_lex(&s, text, n, &tokens), out);
    st = make_template(&s, &tokens, out);
out:
    D9D_VEC_RELEASE(&tokens);
    d9d_map_release(&s.names);
    return st;
}

bool d9d_jinja_marks_generation(const d9d_jinja_template *t)
{
    return t->generation;
}

bool d9d_jinja_mentions(const d9d_jinja_template *t, const char *word)
{
    for (size_t i = 0; i < t->n_words; i++)
        if (strcmp(t->words[i], word) == 0)
            return true;
    return false;
}

/* --- rendering -------------------------------------------------------------------------------- */

static d9d_status render(d9di_jinja_run *r, const json_t *context)
{
    d9di_jinja_scope top = {0};
    d9di_jinja_value variables, data;
    d9di_jinja_flow flow;

    if (!json_is_object(context))
        return D9D_FAIL(D9D_EINVAL, "%s: the context is no object", r->where);
    D9D_TRY(d9di_jinja_from_json(r, context, &variables));
    if (r->opts->data != NULL) {
        r->data_mark = r->trace != NULL;
        D9D_TRY(d9di_jinja_from_json(r, r->opts->data, &data));
        r->data_mark = 0;
        for (size_t i = 0; data.kind == D9DI_JINJA_DICT && i < data.dict->n; i++)
            D9D_TRY(
                d9di_jinja_dict_put(r, variables.dict, data.dict->keys[i], data.dict->values[i]));
    }
    r->context = variables.dict;
    return d9di_jinja_exec(r, &top, r->template->body, &flow);
}

d9d_status d9d_jinja_render(const d9d_jinja_template *t, const json_t *context,
                            const d9d_jinja_opts *opts, d9d_buf *out, d9d_jinja_trace *trace)
{
    d9d_jinja_opts limits = opts != NULL ? *opts : (d9d_jinja_opts){0};
    const d9d_jinja_trace before = trace != NULL ? *trace : (d9d_jinja_trace){0};
    const size_t length = out->len;
    d9d_arena arena = {0};
    d9di_jinja_run r = {.where = t->where,
                        .line = 1,
                        .opts = &limits,
                        .arena = &arena,
                        .out = out,
                        .base = length,
                        .trace = trace,
                        .traced = before.data.len,
                        .template = t};
    d9d_status st;

    limits.max_steps = limits.max_steps ? limits.max_steps : MAX_STEPS;
    limits.max_output = limits.max_output ? limits.max_output : MAX_OUTPUT;
    limits.max_memory = limits.max_memory ? limits.max_memory : MAX_MEMORY;
    st = d9d_buf_reserve(out, 0);
    if (st == D9D_OK)
        st = render(&r, context);
    if (st == D9D_OK && trace != NULL)
        st = d9di_jinja_trace_output(&r, "", 0);
    if (st != D9D_OK) {
        out->len = length;
        if (trace != NULL) {
            trace->generation.len = before.generation.len;
            trace->visits.len = before.visits.len;
            trace->data.len = before.data.len;
        }
    }
    if (out->data != NULL)
        out->data[out->len] = '\0';
    d9d_arena_release(&arena);
    return st == D9D_OK ? st : D9D_PASS(st);
}
