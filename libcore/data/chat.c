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

struct role {
    const char *name;
    stretches prefix, suffix, after;
    stretches tokens; /* all are tokens, with their text */
    bool trains[4];   /* by d9d_chat_part */
};

struct d9di_chat {
    d9d_arena arena;
    d9d_hash hash;
    const d9d_tokenizer *tok;
    d9d_chat_template from;
    stretches bos, end;
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

static d9d_status split(const d9di_chat *c, const char *text, stretches *out)
{
    return d9di_tokenizer_split(c->tok, text, strlen(text), keep_stretch, out);
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
    const int *train = from->train.items;
    size_t i;

    to->name = from->name;
    for (i = 0; i < from->train.n; i++)
        to->trains[train[i]] = true;
    D9D_TRY(split(c, from->prefix, &to->prefix));
    D9D_TRY(split(c, from->suffix, &to->suffix));
    D9D_TRY(split(c, from->after, &to->after));
    D9D_TRY(load_tokens(c, path, from, &to->tokens));
    if (strcmp(to->name, "system") == 0)
        c->system = to;
    return D9D_OK;
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
    D9D_TRY_OR(st, split(c, c->from.bos, &c->bos), out);
    D9D_TRY_OR(st, split(c, c->from.end, &c->end), out);
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
        D9D_VEC_RELEASE(&c->roles[i].prefix);
        D9D_VEC_RELEASE(&c->roles[i].suffix);
        D9D_VEC_RELEASE(&c->roles[i].after);
        D9D_VEC_RELEASE(&c->roles[i].tokens);
    }
    D9D_VEC_RELEASE(&c->bos);
    D9D_VEC_RELEASE(&c->end);
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

static d9d_status put_content(struct encoding *e, const struct role *role, const char *text,
                              size_t n)
{
    const bool trained = role->trains[D9D_CHAT_CONTENT];

    while (n > 0) {
        const struct stretch *token;
        const size_t before = find_token(&role->tokens, text, n, &token);
        const size_t used = before + (token ? token->n : 0);

        D9D_TRY(put_text(e, text, before, trained));
        if (token)
            D9D_TRY(put_token(e, token->id, trained));
        text += used;
        n -= used;
    }
    return D9D_OK;
}

static d9d_status put_message(struct encoding *e, const struct role *role, const char *content,
                              size_t n)
{
    D9D_TRY(put_stretches(e, &role->prefix, role->trains[D9D_CHAT_PREFIX]));
    D9D_TRY(put_content(e, role, content, n));
    D9D_TRY(put_stretches(e, &role->suffix, role->trains[D9D_CHAT_SUFFIX]));
    return put_stretches(e, &role->after, role->trains[D9D_CHAT_AFTER]);
}

static const struct role *find_role(const d9di_chat *c, const char *name, size_t n)
{
    size_t i;

    for (i = 0; i < c->n_roles; i++)
        if (strlen(c->roles[i].name) == n && memcmp(c->roles[i].name, name, n) == 0)
            return &c->roles[i];
    return NULL;
}

static d9d_status put_chat(struct encoding *e, const d9di_messages *m, d9di_jsonl_error *error)
{
    const d9di_chat *c = e->chat;
    const char *text = m->text.data ? m->text.data : "";
    size_t i;

    D9D_TRY(put_stretches(e, &c->bos, false));
    for (i = 0; i < m->list.len; i++) {
        const d9di_message *x = &m->list.data[i];
        const struct role *role = find_role(c, text + x->role, x->role_len);

        if (!role) {
            error->at = x->at;
            snprintf(error->what, sizeof(error->what), "the role \"%.*s\" is not in the template",
                     (int)(x->role_len < 60 ? x->role_len : 60), text + x->role);
            return D9D_EFORMAT;
        }
        if (i == 0 && c->from.default_system && role != c->system)
            D9D_TRY(
                put_message(e, c->system, c->from.default_system, strlen(c->from.default_system)));
        D9D_TRY(put_message(e, role, text + x->content, x->content_len));
    }
    D9D_TRY(put_stretches(e, &c->end, false));
    return flush(e);
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
    struct encoding e = {c, s, text, false, ids, labels};
    const size_t before = ids->len;

    text->len = 0;
    D9D_TRY(put_chat(&e, m, error));
    shift(ids, labels, before);
    return D9D_OK;
}
