/* chat.c - messages to ids and labels. */
#include "data/chat_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "data/tokenizer_private.h"

#define MAX_FILE (UINT64_C(1) << 20)

/* Text, or a token that stands in its place. */
struct stretch {
    const char *text;
    size_t n;
    bool is_token;
    uint32_t id;
};
typedef D9D_VEC(struct stretch) stretches;

/* Texts of a template by what they are in it. */
enum role_text {
    PREFIX,
    SUFFIX,
    AFTER,
    OPEN,
    CLOSE,
    CALL_BETWEEN,
    CALL,
    CALL_INFIX,
    CALL_END,
    ROLE_TEXTS
};
enum chat_text { BOS, END, TOOLS_BETWEEN, TOOLS, TOOLS_EACH, TOOLS_END, CHAT_TEXTS };

struct role {
    const d9d_chat_role *from;
    stretches text[ROLE_TEXTS];
    stretches tokens; /* all are tokens, with their text */
    bool trains[5];   /* by d9d_chat_part */
};

struct d9di_chat {
    d9d_arena arena;
    d9d_hash hash;
    const d9d_tokenizer *tok;
    d9d_chat_template from;
    stretches text[CHAT_TEXTS];
    struct role *roles; /* [n_roles] */
    size_t n_roles;
    const struct role *system;
};

/* --- loading -----------------------------------------------------------------------------------
 */

static d9d_status keep_stretch(void *arg, const d9di_added_token *token, const char *text, size_t n)
{
    stretches *to = arg;
    const struct stretch s = {text, n, token != NULL, token ? token->id : 0};

    return D9D_VEC_PUSH(to, s);
}

/* Texts, of which NULL is none. */
static d9d_status split(const d9di_chat *c, const char *const *texts, size_t n, stretches *out)
{
    for (size_t i = 0; i < n; i++)
        if (texts[i])
            D9D_TRY(
                d9di_tokenizer_split(c->tok, texts[i], strlen(texts[i]), keep_stretch, &out[i]));
    return D9D_OK;
}

static d9d_status load_tokens(const d9di_chat *c, const char *path, const d9d_chat_role *from,
                              stretches *out)
{
    const char *const *names = from->tokens.items;
    size_t i;

    for (i = 0; i < from->tokens.n; i++) {
        struct stretch s = {names[i], strlen(names[i]), true, 0};

        if (!d9d_tokenizer_find(c->tok, s.text, s.n, &s.id))
            return D9D_FAIL(D9D_ECONFIG, "%s: role \"%s\": tokens: the tokenizer has no \"%s\"",
                            path, from->name, s.text);
        D9D_TRY(D9D_VEC_PUSH(out, s));
    }
    return D9D_OK;
}

static d9d_status load_role(d9di_chat *c, const char *path, const d9d_chat_role *from,
                            struct role *to)
{
    static const d9d_chat_calls none;
    const d9d_chat_calls *calls = from->calls ? from->calls : &none;
    const char *const texts[ROLE_TEXTS] = {
        [PREFIX] = from->prefix, [SUFFIX] = from->suffix,     [AFTER] = from->after,
        [OPEN] = from->open,     [CLOSE] = from->close,       [CALL_BETWEEN] = calls->between,
        [CALL] = calls->prefix,  [CALL_INFIX] = calls->infix, [CALL_END] = calls->suffix,
    };
    const int *train = from->train.items;
    size_t i;

    to->from = from;
    for (i = 0; i < from->train.n; i++)
        to->trains[train[i]] = true;
    D9D_TRY(split(c, texts, ROLE_TEXTS, to->text));
    D9D_TRY(load_tokens(c, path, from, &to->tokens));
    if (strcmp(from->name, "system") == 0)
        c->system = to;
    return D9D_OK;
}

static d9d_status load_texts(d9di_chat *c)
{
    static const d9d_chat_tools none;
    const d9d_chat_tools *tools = c->from.tools ? c->from.tools : &none;
    const char *const texts[CHAT_TEXTS] = {
        [BOS] = c->from.bos,     [END] = c->from.end,        [TOOLS_BETWEEN] = tools->between,
        [TOOLS] = tools->prefix, [TOOLS_EACH] = tools->each, [TOOLS_END] = tools->suffix,
    };

    return split(c, texts, CHAT_TEXTS, c->text);
}

static d9d_status load(d9di_chat *c, const char *path)
{
    const d9d_chat_role *roles;
    json_t *doc = NULL;
    d9d_buf text = {0};
    d9d_status st;
    size_t i;

    D9D_TRY_OR(st, d9d_fs_read(path, MAX_FILE, &text), out);
    c->hash = d9d_hash_bytes(text.data ? text.data : "", text.len);
    D9D_TRY_OR(st, d9d_json_parse(path, text.data ? text.data : "", text.len, &doc), out);
    D9D_TRY_OR(st, d9d_config_bind(&d9d_chat_table, doc, path, NULL, &c->arena, &c->from), out);
    roles = c->from.roles.items;
    c->n_roles = c->from.roles.n;
    c->roles = calloc(c->n_roles, sizeof(*c->roles));
    if (!c->roles) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu roles", path, c->n_roles);
        goto out;
    }
    D9D_TRY_OR(st, load_texts(c), out);
    for (i = 0; i < c->n_roles; i++)
        D9D_TRY_OR(st, load_role(c, path, &roles[i], &c->roles[i]), out);
out:
    json_decref(doc);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_chat_load(const char *path, const d9d_tokenizer *tok, d9di_chat **out)
{
    d9di_chat *c = calloc(1, sizeof(*c));
    d9d_status st;

    if (!c)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    c->tok = tok;
    st = load(c, path);
    if (st != D9D_OK) {
        d9di_chat_free(c);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = c;
    return D9D_OK;
}

void d9di_chat_free(d9di_chat *c)
{
    size_t i;

    if (!c)
        return;
    for (i = 0; c->roles && i < c->n_roles; i++) {
        for (size_t t = 0; t < ROLE_TEXTS; t++)
            D9D_VEC_RELEASE(&c->roles[i].text[t]);
        D9D_VEC_RELEASE(&c->roles[i].tokens);
    }
    for (i = 0; i < CHAT_TEXTS; i++)
        D9D_VEC_RELEASE(&c->text[i]);
    free(c->roles);
    d9d_arena_release(&c->arena);
    free(c);
}

d9d_hash d9di_chat_hash(const d9di_chat *c)
{
    return c->hash;
}

/* --- encoding ----------------------------------------------------------------------------------
 */

/* Ids so far, and text that is not tokenised yet.  A label is the token itself where it is
 * trained, until shift() makes it the next one. */
struct encoding {
    const d9di_chat *chat;
    const d9di_messages *from;
    const struct role *speaker; /* of the last message; NULL: none */
    d9d_tokenizer_scratch *scratch;
    d9d_buf *text;
    bool trained; /* the text */
    d9d_ids *ids;
    d9di_labels *labels;
};

static d9d_status note_labels(struct encoding *e, bool trained)
{
    size_t i = e->labels->len;

    D9D_TRY(D9D_VEC_RESERVE(e->labels, e->ids->len - i));
    for (; i < e->ids->len; i++)
        e->labels->data[i] = trained ? (int32_t)e->ids->data[i] : -100;
    e->labels->len = e->ids->len;
    return D9D_OK;
}

static d9d_status flush(struct encoding *e)
{
    if (e->text->len > 0)
        D9D_TRY(d9di_tokenizer_encode_text(e->chat->tok, e->scratch, e->text->data, e->text->len,
                                           e->ids));
    e->text->len = 0;
    return note_labels(e, e->trained);
}

static d9d_status put_text(struct encoding *e, const char *text, size_t n, bool trained)
{
    if (trained != e->trained)
        D9D_TRY(flush(e));
    e->trained = trained;
    return d9d_buf_append(e->text, text, n);
}

static d9d_status put_token(struct encoding *e, uint32_t id, bool trained)
{
    D9D_TRY(flush(e));
    D9D_TRY(D9D_VEC_PUSH(e->ids, id));
    return note_labels(e, trained);
}

static d9d_status put_stretches(struct encoding *e, const stretches *list, bool trained)
{
    size_t i;

    for (i = 0; i < list->len; i++) {
        const struct stretch *s = &list->data[i];

        D9D_TRY(s->is_token ? put_token(e, s->id, trained) : put_text(e, s->text, s->n, trained));
    }
    return D9D_OK;
}

/* The first of the tokens in the text, the longest where several begin; n when there is none. */
static size_t find_token(const stretches *tokens, const char *text, size_t n,
                         const struct stretch **out)
{
    size_t best = n, i;

    *out = NULL;
    for (i = 0; i < tokens->len; i++) {
        const struct stretch *s = &tokens->data[i];
        const char *at = memmem(text, n, s->text, s->n);
        const size_t where = at ? (size_t)(at - text) : n;

        if (at && (where < best || (where == best && (!*out || s->n > (*out)->n)))) {
            best = where;
            *out = s;
        }
    }
    return best;
}

static const char *text_of(const struct encoding *e, d9di_span s)
{
    return (e->from->text.data ? e->from->text.data : "") + s.at;
}

static d9d_status put_span(struct encoding *e, d9di_span s, bool trained)
{
    return put_text(e, text_of(e, s), s.n, trained);
}

/* *said: more than newlines is behind the last token. */
static d9d_status put_content(struct encoding *e, const struct role *role, const char *text,
                              size_t n, bool *said)
{
    const bool trained = role->trains[D9D_CHAT_CONTENT];

    *said = false;
    while (n > 0) {
        const struct stretch *token;
        const size_t before = find_token(&role->tokens, text, n, &token);
        const size_t used = before + (token ? token->n : 0);

        D9D_TRY(put_text(e, text, before, trained));
        if (token)
            D9D_TRY(put_token(e, token->id, trained));
        for (size_t i = 0; !token && i < before; i++)
            *said = *said || text[i] != '\n';
        text += used;
        n -= used;
    }
    return D9D_OK;
}

static d9d_status put_calls(struct encoding *e, const struct role *role, const d9di_message *m,
                            bool said)
{
    const bool trained = role->trains[D9D_CHAT_CALLS];

    for (size_t i = 0; i < m->n_calls; i++) {
        const d9di_call *call = &e->from->calls.data[m->calls + i];

        if (i > 0 || said)
            D9D_TRY(put_stretches(e, &role->text[CALL_BETWEEN], trained));
        D9D_TRY(put_stretches(e, &role->text[CALL], trained));
        D9D_TRY(put_span(e, call->name, trained));
        D9D_TRY(put_stretches(e, &role->text[CALL_INFIX], trained));
        D9D_TRY(put_span(e, call->arguments, trained));
        D9D_TRY(put_stretches(e, &role->text[CALL_END], trained));
    }
    return D9D_OK;
}

static d9d_status put_tools(struct encoding *e, bool behind_text)
{
    const d9di_chat *c = e->chat;
    const bool trained = c->system->trains[D9D_CHAT_CONTENT];

    if (behind_text)
        D9D_TRY(put_stretches(e, &c->text[TOOLS_BETWEEN], trained));
    D9D_TRY(put_stretches(e, &c->text[TOOLS], trained));
    for (size_t i = 0; i < e->from->tools.len; i++) {
        D9D_TRY(put_stretches(e, &c->text[TOOLS_EACH], trained));
        D9D_TRY(put_span(e, e->from->tools.data[i], trained));
    }
    return put_stretches(e, &c->text[TOOLS_END], trained);
}

/* What stands between messages of two roles, or of one and none. */
static d9d_status change_speaker(struct encoding *e, const struct role *next)
{
    if (e->speaker == next)
        return D9D_OK;
    if (e->speaker)
        D9D_TRY(put_stretches(e, &e->speaker->text[CLOSE], false));
    if (next)
        D9D_TRY(put_stretches(e, &next->text[OPEN], false));
    e->speaker = next;
    return D9D_OK;
}

/* With the chat's tools if it is the first; `m` NULL is a system message that is not there, its
 * content NULL or the default. */
static d9d_status put_message(struct encoding *e, const struct role *role, const d9di_message *m,
                              const char *content, size_t n)
{
    const bool tools = e->speaker == NULL && e->from->tools.len > 0;
    bool said;

    D9D_TRY(change_speaker(e, role));
    D9D_TRY(put_stretches(e, &role->text[PREFIX], role->trains[D9D_CHAT_PREFIX]));
    D9D_TRY(put_content(e, role, content, n, &said));
    if (tools)
        D9D_TRY(put_tools(e, content != NULL));
    if (m)
        D9D_TRY(put_calls(e, role, m, said));
    D9D_TRY(put_stretches(e, &role->text[SUFFIX], role->trains[D9D_CHAT_SUFFIX]));
    return put_stretches(e, &role->text[AFTER], role->trains[D9D_CHAT_AFTER]);
}

static const struct role *role_named(const d9di_chat *c, const char *name, size_t n)
{
    for (size_t i = 0; i < c->n_roles; i++)
        if (strlen(c->roles[i].from->name) == n && memcmp(c->roles[i].from->name, name, n) == 0)
            return &c->roles[i];
    return NULL;
}

static d9d_status not_rendered(d9di_jsonl_error *error, size_t at, const char *what)
{
    error->at = at;
    snprintf(error->what, sizeof(error->what), "the template does not say how to render %s", what);
    return D9D_EFORMAT;
}

/* The system message of a chat whose first is of another role. */
static d9d_status put_default(struct encoding *e)
{
    const char *text = e->chat->from.default_system;

    return text || e->from->tools.len > 0
               ? put_message(e, e->chat->system, NULL, text, text ? strlen(text) : 0)
               : D9D_OK;
}

static d9d_status put_messages(struct encoding *e, d9di_jsonl_error *error)
{
    const d9di_messages *m = e->from;
    const d9di_chat *c = e->chat;

    if (m->tools.len > 0 && !c->from.tools)
        return not_rendered(error, m->tools_at, "\"tools\"");
    D9D_TRY(put_stretches(e, &c->text[BOS], false));
    for (size_t i = 0; i < m->list.len; i++) {
        const d9di_message *x = &m->list.data[i];
        const struct role *role = role_named(c, text_of(e, x->role), x->role.n);

        if (!role) {
            error->at = x->at;
            snprintf(error->what, sizeof(error->what), "the role \"%.*s\" is not in the template",
                     (int)(x->role.n < 60 ? x->role.n : 60), text_of(e, x->role));
            return D9D_EFORMAT;
        }
        if (x->n_calls > 0 && !role->from->calls)
            return not_rendered(error, x->at, "\"tool_calls\" of this role");
        if (i == 0 && role != c->system)
            D9D_TRY(put_default(e));
        D9D_TRY(put_message(e, role, x, text_of(e, x->content), x->content.n));
    }
    return D9D_OK;
}

static d9d_status put_chat(struct encoding *e, d9di_jsonl_error *error)
{
    D9D_TRY(put_messages(e, error));
    D9D_TRY(change_speaker(e, NULL));
    D9D_TRY(put_stretches(e, &e->chat->text[END], false));
    return flush(e);
}

d9d_status d9di_chat_prompt(const d9di_chat *c, d9d_tokenizer_scratch *s, const d9di_messages *m,
                            const char *speaker, d9d_buf *text, d9d_ids *ids, d9di_labels *labels,
                            d9di_jsonl_error *error)
{
    struct encoding e = {
        .chat = c, .from = m, .scratch = s, .text = text, .ids = ids, .labels = labels};
    const struct role *role = role_named(c, speaker, strlen(speaker));

    if (role == NULL)
        return D9D_FAIL(D9D_ECONFIG, "the role \"%s\" is not in the template", speaker);
    text->len = 0;
    D9D_TRY(put_messages(&e, error));
    D9D_TRY(change_speaker(&e, role));
    D9D_TRY(put_stretches(&e, &role->text[PREFIX], false));
    return flush(&e);
}

/* Labels become those of the next token; the last token is but a target. */
static void shift(d9d_ids *ids, d9di_labels *labels, size_t from)
{
    bool any = false;
    size_t i;

    for (i = from; i + 1 < ids->len; i++) {
        labels->data[i] = labels->data[i + 1];
        any = any || labels->data[i] != -100;
    }
    ids->len = labels->len = any ? ids->len - 1 : from;
}

d9d_status d9di_chat_encode(const d9di_chat *c, d9d_tokenizer_scratch *s, const d9di_messages *m,
                            d9d_buf *text, d9d_ids *ids, d9di_labels *labels,
                            d9di_jsonl_error *error)
{
    struct encoding e = {
        .chat = c, .from = m, .scratch = s, .text = text, .ids = ids, .labels = labels};
    const size_t before = ids->len;

    text->len = 0;
    D9D_TRY(put_chat(&e, error));
    shift(ids, labels, before);
    return D9D_OK;
}
