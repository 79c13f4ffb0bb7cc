/* chat_render.c - see chat_render.h. */
#include "data/chat/chat_render.h"

#include <stdio.h>
#include <string.h>

struct render_state {
    const d9di_chat_roles *roles;
    const d9di_chat_messages *from;
    size_t n;                         /* number of messages */
    const d9di_chat_speaker *speaker; /* role of the last message; NULL: none */
    d9di_chat_rendering *out;
    bool untrained; /* regardless of its role */
};

void d9di_chat_rendering_release(d9di_chat_rendering *r)
{
    d9d_buf_release(&r->text);
    D9D_VEC_RELEASE(&r->zones);
    D9D_VEC_RELEASE(&r->loss_spans);
    D9D_VEC_RELEASE(&r->ends);
    D9D_VEC_RELEASE(&r->spans);
    D9D_VEC_RELEASE(&r->targets);
}

const d9di_chat_speaker *d9di_chat_find_role(const d9di_chat_roles *roles, const char *name,
                                             size_t n)
{
    for (size_t i = 0; i < roles->n; i++) {
        const char *own = roles->list[i].from->name;

        if (strlen(own) == n && memcmp(own, name, n) == 0)
            return &roles->list[i];
    }
    return NULL;
}

/* --- text views
 * -----------------------------------------------------------------------------------
 */

/* A view of part of a message. */
struct text_view {
    const char *text;
    size_t n;
};

static struct text_view trim_leading(struct text_view w)
{
    while (w.n > 0 && w.text[0] == '\n')
        w = (struct text_view){w.text + 1, w.n - 1};
    return w;
}

static struct text_view trim_trailing(struct text_view w)
{
    while (w.n > 0 && w.text[w.n - 1] == '\n')
        w.n--;
    return w;
}

/* The text before the first `mark`; all of it if there is none. */
static struct text_view before_first(struct text_view w, const char *mark)
{
    const char *at = *mark ? memmem(w.text, w.n, mark, strlen(mark)) : NULL;

    return at ? (struct text_view){w.text, (size_t)(at - w.text)} : w;
}

/* The text after the last `mark`; all of it if there is none. */
static struct text_view after_last(struct text_view w, const char *mark)
{
    const size_t len = strlen(mark);
    const char *at;

    while (len > 0 && (at = memmem(w.text, w.n, mark, len)) != NULL)
        w = (struct text_view){at + len, w.n - (size_t)(at + len - w.text)};
    return w;
}

static bool begins_and_ends(struct text_view w, const char *prefix, const char *suffix)
{
    const size_t a = strlen(prefix), b = strlen(suffix);

    return w.n >= a && w.n >= b && memcmp(w.text, prefix, a) == 0 &&
           memcmp(w.text + w.n - b, suffix, b) == 0;
}

/* --- text ------------------------------------------------------------------------------------ */

static d9d_status append_text(struct render_state *r, const char *text, size_t n, bool trained)
{
    d9di_chat_rendering *o = r->out;

    if (n == 0)
        return D9D_OK;
    trained = trained && !r->untrained;
    D9D_TRY(d9d_buf_append(&o->text, text, n));
    if (o->loss_spans.len == 0 || o->loss_spans.data[o->loss_spans.len - 1].trained != trained)
        D9D_TRY(D9D_VEC_PUSH(&o->loss_spans, ((struct d9di_chat_loss_span){0, trained})));
    o->loss_spans.data[o->loss_spans.len - 1].end = o->text.len;
    return D9D_OK;
}

/* Appends text of the template, where added tokens are tokens; NULL is nothing. */
static d9d_status append_template(struct render_state *r, const char *text, bool trained)
{
    d9di_chat_rendering *o = r->out;

    if (!text || !*text)
        return D9D_OK;
    D9D_TRY(append_text(r, text, strlen(text), trained));
    if (o->zones.len == 0 || !o->zones.data[o->zones.len - 1].added)
        D9D_TRY(D9D_VEC_PUSH(&o->zones, ((d9di_tokenizer_zone){0, true})));
    o->zones.data[o->zones.len - 1].end = o->text.len;
    return D9D_OK;
}

/* Appends text of a message: either ordinary text without added tokens, or one allowed token. */
static d9d_status append_message_text(struct render_state *r, const char *text, size_t n,
                                      bool added, bool trained)
{
    if (n == 0)
        return D9D_OK;
    D9D_TRY(append_text(r, text, n, trained));
    return D9D_VEC_PUSH(&r->out->zones, ((d9di_tokenizer_zone){r->out->text.len, added}));
}

static const char *span_text(const struct render_state *r, d9di_chat_span s)
{
    return (r->from->text.data ? r->from->text.data : "") + s.offset;
}

static d9d_status append_span(struct render_state *r, d9di_chat_span s, bool trained)
{
    return append_message_text(r, span_text(r, s), s.n, false, trained);
}

/* Finds the first of the role's tokens in the text, the longest if several begin there; *len is its
 * length. n if there is none. */
static size_t find_role_token(const d9d_chat_role *role, const char *text, size_t n, size_t *len)
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

static d9d_status append_content(struct render_state *r, const d9d_chat_role *role,
                                 struct text_view w, bool trained)
{
    while (w.n > 0) {
        size_t token;
        const size_t before = find_role_token(role, w.text, w.n, &token);

        D9D_TRY(append_message_text(r, w.text, before, false, trained));
        D9D_TRY(append_message_text(r, w.text + before, token, true, trained));
        w = (struct text_view){w.text + before + token, w.n - before - token};
    }
    return D9D_OK;
}

/* True if anything but newlines follows the last of the role's tokens. */
static bool has_more_text(const d9d_chat_role *role, struct text_view w)
{
    size_t token = w.n, before = 0;

    while (token > 0 && (before = find_role_token(role, w.text, w.n, &token)) < w.n)
        w = (struct text_view){w.text + before + token, w.n - before - token};
    while (w.n > 0 && w.text[w.n - 1] == '\n')
        w.n--;
    return w.n > 0;
}

/* --- thoughts -------------------------------------------------------------------------------- */

/* The body of a message. */
struct message_body {
    struct text_view thoughts, content;
    bool thinks; /* thoughts are rendered */
};

/* True if message i follows the last message of the role `behind`, so that its thoughts are
 * rendered. */
static bool keeps_thoughts(const struct render_state *r, const d9d_chat_thoughts *t, size_t i)
{
    const bool some = *t->unless_prefix || *t->unless_suffix;

    if (!t->behind)
        return true;
    for (size_t k = r->n; k-- > 0;) {
        const d9di_chat_message *m = &r->from->list.data[k];
        const struct text_view content = {span_text(r, m->content), m->content.n};

        if (m->role.n == strlen(t->behind) &&
            memcmp(span_text(r, m->role), t->behind, m->role.n) == 0 &&
            !(some && begins_and_ends(content, t->unless_prefix, t->unless_suffix)))
            return i > k;
    }
    return false;
}

static struct message_body split_thoughts(const struct render_state *r, const d9d_chat_thoughts *t,
                                          size_t i)
{
    const d9di_chat_message *m = &r->from->list.data[i];
    struct message_body s = {.content = {span_text(r, m->content), m->content.n}};
    bool empty;

    if (!t)
        return s;
    if (m->has_thoughts) {
        s.thoughts = (struct text_view){span_text(r, m->thoughts), m->thoughts.n};
    } else if (*t->end && before_first(s.content, t->end).n < s.content.n) {
        s.thoughts =
            trim_leading(after_last(trim_trailing(before_first(s.content, t->end)), t->begin));
        s.content = trim_leading(after_last(s.content, t->end));
    }
    empty = t->empty == D9D_CHAT_EMPTY_ALWAYS || (t->empty == D9D_CHAT_EMPTY_LAST && i + 1 == r->n);
    s.thinks = (s.thoughts.n > 0 || empty) && keeps_thoughts(r, t, i);
    return s;
}

static d9d_status append_body(struct render_state *r, const d9di_chat_speaker *role,
                              const struct message_body *s)
{
    const d9d_chat_thoughts *t = role->from->thoughts;
    const bool thoughts = role->trains[D9D_CHAT_THOUGHTS];
    const bool content = role->trains[D9D_CHAT_CONTENT];

    if (!s->thinks)
        return append_content(r, role->from, s->content, content);
    D9D_TRY(append_template(r, t->prefix, thoughts));
    D9D_TRY(append_content(r, role->from, trim_leading(trim_trailing(s->thoughts)), thoughts));
    D9D_TRY(append_template(r, t->suffix, thoughts));
    return append_content(r, role->from, trim_leading(s->content), content);
}

/* --- messages -------------------------------------------------------------------------------- */

static d9d_status append_calls(struct render_state *r, const d9di_chat_speaker *role,
                               const d9di_chat_message *m, bool said)
{
    const d9d_chat_calls *t = role->from->calls;
    const bool trained = role->trains[D9D_CHAT_CALLS];

    for (size_t i = 0; i < m->n_calls; i++) {
        const d9di_chat_tool_call *call = &r->from->calls.data[m->calls + i];

        if (i > 0 || said)
            D9D_TRY(append_template(r, t->between, trained));
        D9D_TRY(append_template(r, t->prefix, trained));
        D9D_TRY(append_span(r, call->name, trained));
        D9D_TRY(append_template(r, t->infix, trained));
        D9D_TRY(append_span(r, call->arguments, trained));
        D9D_TRY(append_template(r, t->suffix, trained));
    }
    return D9D_OK;
}

static d9d_status append_tools(struct render_state *r, bool behind_text)
{
    const d9d_chat_tools *t = r->roles->from->tools;
    const bool trained = r->roles->system->trains[D9D_CHAT_CONTENT];

    if (behind_text)
        D9D_TRY(append_template(r, t->between, trained));
    D9D_TRY(append_template(r, t->prefix, trained));
    for (size_t i = 0; i < r->from->tools.len; i++) {
        D9D_TRY(append_template(r, t->each, trained));
        D9D_TRY(append_span(r, r->from->tools.data[i], trained));
    }
    return append_template(r, t->suffix, trained);
}

/* Appends `close` and `open` between messages of different roles, or at either end. */
static d9d_status change_speaker(struct render_state *r, const d9di_chat_speaker *next)
{
    if (r->speaker == next)
        return D9D_OK;
    if (r->speaker)
        D9D_TRY(append_template(r, r->speaker->from->close, false));
    if (next)
        D9D_TRY(append_template(r, next->from->open, false));
    r->speaker = next;
    return D9D_OK;
}

/* Appends a message, the first one with the chat's tools.  `m` NULL: a missing system message, with
 * the default content or none. */
static d9d_status append_message(struct render_state *r, const d9di_chat_speaker *role,
                                 const d9di_chat_message *m, const struct message_body *s)
{
    const bool tools = r->speaker == NULL && r->from->tools.len > 0;
    const bool said =
        role->from->thoughts ? s->content.n > 0 : has_more_text(role->from, s->content);

    D9D_TRY(change_speaker(r, role));
    D9D_TRY(append_template(r, role->from->prefix, role->trains[D9D_CHAT_PREFIX]));
    D9D_TRY(append_body(r, role, s));
    if (tools)
        D9D_TRY(append_tools(r, s->content.text != NULL));
    if (m)
        D9D_TRY(append_calls(r, role, m, said));
    D9D_TRY(append_template(r, role->from->suffix, role->trains[D9D_CHAT_SUFFIX]));
    return append_template(r, role->from->after, role->trains[D9D_CHAT_AFTER]);
}

static d9d_status fail_not_rendered(d9di_jsonl_error *error, size_t at, const char *what)
{
    error->offset = at;
    error->reason = D9D_SHARD_BAD_CHAT;
    snprintf(error->message, sizeof(error->message), "the template does not say how to render %s",
             what);
    return D9D_EFORMAT;
}

/* Appends the system message of a chat that begins with another role. */
static d9d_status append_default_system(struct render_state *r)
{
    const char *text = r->roles->from->default_system;
    const struct message_body s = {.content = {text, text ? strlen(text) : 0}};

    return text || r->from->tools.len > 0 ? append_message(r, r->roles->system, NULL, &s) : D9D_OK;
}

/* Fails if the template cannot render a member of the message. */
static d9d_status check_message(const struct render_state *r, const d9di_chat_message *m,
                                const d9di_chat_speaker *role, d9di_jsonl_error *error)
{
    if (!role) {
        error->offset = m->offset;
        error->reason = D9D_SHARD_BAD_CHAT;
        snprintf(error->message, sizeof(error->message), "the role \"%.*s\" is not in the template",
                 (int)(m->role.n < 60 ? m->role.n : 60), span_text(r, m->role));
        return D9D_EFORMAT;
    }
    if (m->n_calls > 0 && !role->from->calls)
        return fail_not_rendered(error, m->offset, "\"tool_calls\" of this role");
    if (m->thoughts.n > 0 && !role->from->thoughts)
        return fail_not_rendered(error, m->offset, "\"reasoning_content\" of this role");
    return D9D_OK;
}

static d9d_status append_messages(struct render_state *r, d9di_jsonl_error *error)
{
    const d9di_chat_messages *m = r->from;

    if (m->tools.len > 0 && !r->roles->from->tools)
        return fail_not_rendered(error, m->tools_offset, "\"tools\"");
    D9D_TRY(append_template(r, r->roles->from->bos, false));
    for (size_t i = 0; i < r->n; i++) {
        const d9di_chat_message *x = &m->list.data[i];
        const d9di_chat_speaker *role =
            d9di_chat_find_role(r->roles, span_text(r, x->role), x->role.n);

        struct message_body s;

        D9D_TRY(check_message(r, x, role, error));
        if (i == 0 && role != r->roles->system)
            D9D_TRY(append_default_system(r));
        s = split_thoughts(r, role->from->thoughts, i);
        r->untrained = x->untrained;
        D9D_TRY(append_message(r, role, x, &s));
        r->untrained = false;
        D9D_TRY(D9D_VEC_PUSH(&r->out->ends, r->out->text.len));
    }
    return D9D_OK;
}

/* Appends the beginning of the next turn, with empty thoughts if it is to have none. */
static d9d_status append_next_turn(struct render_state *r, const d9di_chat_next_turn *next)
{
    const d9d_chat_role *role = next->role->from;

    D9D_TRY(append_template(r, role->prefix, false));
    if (!next->no_thoughts)
        return D9D_OK;
    D9D_TRY(append_template(r, role->thoughts->prefix, false));
    return append_template(r, role->thoughts->suffix, false);
}

d9d_status d9di_chat_render(const d9di_chat_roles *roles, const d9di_chat_messages *m, size_t n,
                            const d9di_chat_next_turn *next, d9di_chat_rendering *out,
                            d9di_jsonl_error *error)
{
    struct render_state r = {.roles = roles, .from = m, .n = n, .out = out};

    out->text.len = out->zones.len = out->loss_spans.len = out->ends.len = out->spans.len = 0;
    D9D_TRY(append_messages(&r, error));
    D9D_TRY(change_speaker(&r, next ? next->role : NULL));
    return next ? append_next_turn(&r, next) : append_template(&r, roles->from->end, false);
}
