/* chat_render.c - see chat_render.h. */
#include "data/chat_render.h"

#include <stdio.h>
#include <string.h>

struct render {
    const d9di_chat_roles *roles;
    const d9di_messages *from;
    size_t n;                         /* messages */
    const d9di_chat_speaker *speaker; /* of the last message; NULL: none */
    d9di_rendering *out;
};

void d9di_rendering_release(d9di_rendering *r)
{
    d9d_buf_release(&r->text);
    D9D_VEC_RELEASE(&r->zones);
    D9D_VEC_RELEASE(&r->runs);
    D9D_VEC_RELEASE(&r->ends);
    D9D_VEC_RELEASE(&r->spans);
}

const d9di_chat_speaker *d9di_chat_role_named(const d9di_chat_roles *roles, const char *name,
                                              size_t n)
{
    for (size_t i = 0; i < roles->n; i++) {
        const char *own = roles->list[i].from->name;

        if (strlen(own) == n && memcmp(own, name, n) == 0)
            return &roles->list[i];
    }
    return NULL;
}

/* --- text ------------------------------------------------------------------------------------ */

static d9d_status put(struct render *r, const char *text, size_t n, bool trained)
{
    d9di_rendering *o = r->out;

    if (n == 0)
        return D9D_OK;
    D9D_TRY(d9d_buf_append(&o->text, text, n));
    if (o->runs.len == 0 || o->runs.data[o->runs.len - 1].trained != trained)
        D9D_TRY(D9D_VEC_PUSH(&o->runs, ((struct d9di_chat_run){0, trained})));
    o->runs.data[o->runs.len - 1].end = o->text.len;
    return D9D_OK;
}

/* Text of the template, whose added tokens are tokens; NULL is none. */
static d9d_status put_template(struct render *r, const char *text, bool trained)
{
    d9di_rendering *o = r->out;

    if (!text || !*text)
        return D9D_OK;
    D9D_TRY(put(r, text, strlen(text), trained));
    if (o->zones.len == 0 || !o->zones.data[o->zones.len - 1].added)
        D9D_TRY(D9D_VEC_PUSH(&o->zones, ((d9di_zone){0, true})));
    o->zones.data[o->zones.len - 1].end = o->text.len;
    return D9D_OK;
}

/* Text of a message, in which nothing is an added token, or which is one. */
static d9d_status put_given(struct render *r, const char *text, size_t n, bool added, bool trained)
{
    if (n == 0)
        return D9D_OK;
    D9D_TRY(put(r, text, n, trained));
    return D9D_VEC_PUSH(&r->out->zones, ((d9di_zone){r->out->text.len, added}));
}

static const char *text_of(const struct render *r, d9di_span s)
{
    return (r->from->text.data ? r->from->text.data : "") + s.at;
}

static d9d_status put_span(struct render *r, d9di_span s, bool trained)
{
    return put_given(r, text_of(r, s), s.n, false, trained);
}

/* The first of the role's tokens in the text, the longest where several begin, of *len bytes; n
 * when there is none. */
static size_t find_token(const d9d_chat_role *role, const char *text, size_t n, size_t *len)
{
    const char *const *names = role->tokens.items;
    size_t best = n;

    *len = 0;
    for (size_t i = 0; i < role->tokens.n; i++) {
        const size_t own = strlen(names[i]);
        const char *at = memmem(text, n, names[i], own);
        const size_t where = at ? (size_t)(at - text) : n;

        if (at && (where < best || (where == best && own > *len))) {
            best = where;
            *len = own;
        }
    }
    return best;
}

/* *said: more than newlines is behind the last token. */
static d9d_status put_content(struct render *r, const d9di_chat_speaker *role, const char *text,
                              size_t n, bool *said)
{
    const bool trained = role->trains[D9D_CHAT_CONTENT];

    *said = false;
    while (n > 0) {
        size_t token;
        const size_t before = find_token(role->from, text, n, &token);

        D9D_TRY(put_given(r, text, before, false, trained));
        D9D_TRY(put_given(r, text + before, token, true, trained));
        for (size_t i = 0; token == 0 && i < before; i++)
            *said = *said || text[i] != '\n';
        text += before + token;
        n -= before + token;
    }
    return D9D_OK;
}

/* --- messages -------------------------------------------------------------------------------- */

static d9d_status put_calls(struct render *r, const d9di_chat_speaker *role, const d9di_message *m,
                            bool said)
{
    const d9d_chat_calls *t = role->from->calls;
    const bool trained = role->trains[D9D_CHAT_CALLS];

    for (size_t i = 0; i < m->n_calls; i++) {
        const d9di_call *call = &r->from->calls.data[m->calls + i];

        if (i > 0 || said)
            D9D_TRY(put_template(r, t->between, trained));
        D9D_TRY(put_template(r, t->prefix, trained));
        D9D_TRY(put_span(r, call->name, trained));
        D9D_TRY(put_template(r, t->infix, trained));
        D9D_TRY(put_span(r, call->arguments, trained));
        D9D_TRY(put_template(r, t->suffix, trained));
    }
    return D9D_OK;
}

static d9d_status put_tools(struct render *r, bool behind_text)
{
    const d9d_chat_tools *t = r->roles->from->tools;
    const bool trained = r->roles->system->trains[D9D_CHAT_CONTENT];

    if (behind_text)
        D9D_TRY(put_template(r, t->between, trained));
    D9D_TRY(put_template(r, t->prefix, trained));
    for (size_t i = 0; i < r->from->tools.len; i++) {
        D9D_TRY(put_template(r, t->each, trained));
        D9D_TRY(put_span(r, r->from->tools.data[i], trained));
    }
    return put_template(r, t->suffix, trained);
}

/* What stands between messages of two roles, or of one and none. */
static d9d_status change_speaker(struct render *r, const d9di_chat_speaker *next)
{
    if (r->speaker == next)
        return D9D_OK;
    if (r->speaker)
        D9D_TRY(put_template(r, r->speaker->from->close, false));
    if (next)
        D9D_TRY(put_template(r, next->from->open, false));
    r->speaker = next;
    return D9D_OK;
}

/* With the chat's tools if it is the first; `m` NULL is a system message that is not there, its
 * content NULL or the default. */
static d9d_status put_message(struct render *r, const d9di_chat_speaker *role,
                              const d9di_message *m, const char *content, size_t n)
{
    const bool tools = r->speaker == NULL && r->from->tools.len > 0;
    bool said;

    D9D_TRY(change_speaker(r, role));
    D9D_TRY(put_template(r, role->from->prefix, role->trains[D9D_CHAT_PREFIX]));
    D9D_TRY(put_content(r, role, content, n, &said));
    if (tools)
        D9D_TRY(put_tools(r, content != NULL));
    if (m)
        D9D_TRY(put_calls(r, role, m, said));
    D9D_TRY(put_template(r, role->from->suffix, role->trains[D9D_CHAT_SUFFIX]));
    return put_template(r, role->from->after, role->trains[D9D_CHAT_AFTER]);
}

static d9d_status not_rendered(d9di_jsonl_error *error, size_t at, const char *what)
{
    error->at = at;
    snprintf(error->what, sizeof(error->what), "the template does not say how to render %s", what);
    return D9D_EFORMAT;
}

/* The system message of a chat whose first is of another role. */
static d9d_status put_default(struct render *r)
{
    const char *text = r->roles->from->default_system;

    return text || r->from->tools.len > 0
               ? put_message(r, r->roles->system, NULL, text, text ? strlen(text) : 0)
               : D9D_OK;
}

/* What the template has no place for. */
static d9d_status check_message(const struct render *r, const d9di_message *m,
                                const d9di_chat_speaker *role, d9di_jsonl_error *error)
{
    if (!role) {
        error->at = m->at;
        snprintf(error->what, sizeof(error->what), "the role \"%.*s\" is not in the template",
                 (int)(m->role.n < 60 ? m->role.n : 60), text_of(r, m->role));
        return D9D_EFORMAT;
    }
    if (m->n_calls > 0 && !role->from->calls)
        return not_rendered(error, m->at, "\"tool_calls\" of this role");
    return D9D_OK;
}

static d9d_status put_messages(struct render *r, d9di_jsonl_error *error)
{
    const d9di_messages *m = r->from;

    if (m->tools.len > 0 && !r->roles->from->tools)
        return not_rendered(error, m->tools_at, "\"tools\"");
    D9D_TRY(put_template(r, r->roles->from->bos, false));
    for (size_t i = 0; i < r->n; i++) {
        const d9di_message *x = &m->list.data[i];
        const d9di_chat_speaker *role =
            d9di_chat_role_named(r->roles, text_of(r, x->role), x->role.n);

        D9D_TRY(check_message(r, x, role, error));
        if (i == 0 && role != r->roles->system)
            D9D_TRY(put_default(r));
        D9D_TRY(put_message(r, role, x, text_of(r, x->content), x->content.n));
        D9D_TRY(D9D_VEC_PUSH(&r->out->ends, r->out->text.len));
    }
    return D9D_OK;
}

d9d_status d9di_chat_render(const d9di_chat_roles *roles, const d9di_messages *m, size_t n,
                            const d9di_chat_speaker *next, d9di_rendering *out,
                            d9di_jsonl_error *error)
{
    struct render r = {.roles = roles, .from = m, .n = n, .out = out};

    out->text.len = out->zones.len = out->runs.len = out->ends.len = out->spans.len = 0;
    D9D_TRY(put_messages(&r, error));
    D9D_TRY(change_speaker(&r, next));
    return next ? put_template(&r, next->from->prefix, false)
                : put_template(&r, roles->from->end, false);
}
