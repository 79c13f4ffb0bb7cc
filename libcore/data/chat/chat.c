/* chat.c - encodes messages as ids and labels. */
#include "data/chat/chat_private.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"

#define MAX_FILE (UINT64_C(1) << 20)

struct d9di_chat {
    d9d_arena arena;
    d9d_hash hash;
    const d9d_tokenizer *tok;
    d9d_chat_template from;
    d9di_chat_roles roles;
};

/* --- loading ------------------------------------------------------------------------------- */

static d9d_status check_tokens(const d9di_chat *c, const char *path, const d9d_chat_role *role)
{
    const char *const *names = role->tokens.items;

    for (size_t i = 0; i < role->tokens.n; i++)
        if (!d9di_tokenizer_has_added(c->tok, names[i], strlen(names[i])))
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: role \"%s\": tokens: the tokenizer has no added token \"%s\"",
                            path, role->name, names[i]);
    return D9D_OK;
}

static d9d_status load_roles(d9di_chat *c, const char *path)
{
    const d9d_chat_role *roles = c->from.roles.items;
    d9di_chat_roles *to = &c->roles;

    *to = (d9di_chat_roles){.from = &c->from, .n = c->from.roles.n};
    to->list = d9d_arena_alloc(&c->arena, to->n * sizeof(*to->list));
    if (!to->list)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu roles", path, to->n);
    for (size_t i = 0; i < to->n; i++) {
        const int *train = roles[i].train.items;

        to->list[i] = (d9di_chat_speaker){.from = &roles[i]};
        for (size_t k = 0; k < roles[i].train.n; k++)
            to->list[i].trains[train[k]] = true;
        D9D_TRY(check_tokens(c, path, &roles[i]));
    }
    to->system = d9di_chat_find_role(to, "system", strlen("system"));
    return D9D_OK;
}

static d9d_status load_template(d9di_chat *c, const char *path)
{
    json_t *doc = NULL;
    d9d_buf text = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_read(path, MAX_FILE, &text), out);
    c->hash = d9d_hash_bytes(text.data ? text.data : "", text.len);
    D9D_TRY_OR(st, d9d_json_parse(path, text.data ? text.data : "", text.len, &doc), out);
    D9D_TRY_OR(st, d9d_config_bind(&d9d_chat_table, doc, path, NULL, &c->arena, &c->from), out);
    st = load_roles(c, path);
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
    st = load_template(c, path);
    if (st != D9D_OK) {
        d9di_chat_free(c);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = c;
    return D9D_OK;
}

void d9di_chat_free(d9di_chat *c)
{
    if (!c)
        return;
    d9d_arena_release(&c->arena);
    free(c);
}

d9d_hash d9di_chat_hash(const d9di_chat *c)
{
    return c->hash;
}

/* --- encoding ------------------------------------------------------------------------------ */

static d9d_status encode_text(const d9di_chat *c, d9d_tokenizer_scratch *s, d9di_chat_rendering *r,
                              d9d_token_ids *ids)
{
    return d9di_tokenizer_encode_zones(c->tok, s, r->text.len ? r->text.data : "", r->text.len,
                                       r->zones.data, r->zones.len, ids, &r->spans);
}

/* Sets the labels of ids from `from` on: ids with a trained byte, otherwise -100. shift_labels()
 * turns them into next-token targets. */
static d9d_status append_labels(const d9di_chat_rendering *r, const d9d_token_ids *ids, size_t from,
                                d9di_token_labels *labels)
{
    size_t run = 0;

    D9D_TRY(D9D_VEC_RESERVE(labels, r->spans.len));
    for (size_t i = 0; i < r->spans.len; i++) {
        const d9di_alignment *span = &r->spans.data[i];
        bool trained = false;

        while (run < r->loss_spans.len && r->loss_spans.data[run].end <= span->from)
            run++;
        for (size_t k = run; k < r->loss_spans.len && !trained; k++) {
            if (k > run && r->loss_spans.data[k - 1].end >= span->to)
                break;
            trained = r->loss_spans.data[k].trained;
        }
        labels->data[labels->len++] = trained ? (int32_t)ids->data[from + i] : -100;
    }
    return D9D_OK;
}

/* Shifts labels to next-token targets; the last token is only a target. */
static void shift_labels(d9d_token_ids *ids, d9di_token_labels *labels, size_t from)
{
    const size_t n = ids->len - from;
    int32_t *l = labels->data + (labels->len - n);
    bool any = false;

    for (size_t i = 0; i + 1 < n; i++) {
        l[i] = l[i + 1];
        any = any || l[i] != -100;
    }
    labels->len -= any ? 1 : n;
    ids->len -= any ? 1 : n;
}

/* Destination of a chat's ids and labels. */
struct output {
    d9d_token_ids *ids;
    d9di_token_labels *labels;
    size_t ids_before, labels_before;
};

/* Encodes the first n messages, replacing earlier output. */
static d9d_status encode_turns(const d9di_chat *c, d9d_tokenizer_scratch *s,
                               const d9di_chat_messages *m, size_t n,
                               d9di_chat_rendering *rendering, struct output *o,
                               d9di_jsonl_error *error)
{
    o->ids->len = o->ids_before;
    o->labels->len = o->labels_before;
    D9D_TRY(d9di_chat_render(&c->roles, m, n, NULL, rendering, error));
    D9D_TRY(encode_text(c, s, rendering, o->ids));
    D9D_TRY(append_labels(rendering, o->ids, o->ids_before, o->labels));
    shift_labels(o->ids, o->labels, o->ids_before);
    return D9D_OK;
}

static int64_t count_positions(const struct output *o)
{
    return (int64_t)(o->ids->len - o->ids_before);
}

/* Upper bound of the number of leading messages whose tokens fit. */
static size_t max_fitting_turns(const d9di_chat_rendering *r, int64_t max_positions)
{
    size_t turns = 0;

    for (size_t i = 0; i < r->spans.len && i <= (size_t)max_positions; i++)
        while (turns < r->ends.len && r->spans.data[i].to >= r->ends.data[turns])
            turns++;
    return turns;
}

/* Counts the targets of each message of the rendered chat into rendering->targets.  A label belongs
 * to the position before its token, so the first token is not a target. */
static d9d_status count_targets(const struct output *o, d9di_chat_rendering *rendering)
{
    const int32_t *labels = o->labels->data + o->labels_before;
    const size_t n = o->labels->len - o->labels_before;
    size_t turn = 0;

    D9D_TRY(D9D_VEC_RESERVE(&rendering->targets, rendering->ends.len));
    rendering->targets.len = rendering->ends.len;
    for (size_t i = 0; i < rendering->ends.len; i++)
        rendering->targets.data[i] = 0;
    for (size_t i = 0; i < n; i++) {
        while (turn + 1 < rendering->ends.len &&
               rendering->spans.data[i + 1].to > rendering->ends.data[turn])
            turn++;
        rendering->targets.data[turn] += labels[i] != -100;
    }
    return D9D_OK;
}

static bool is_trained(const d9di_chat *c, const d9di_chat_messages *m, size_t i)
{
    const d9di_chat_span name = m->list.data[i].role;
    const d9di_chat_speaker *role =
        d9di_chat_find_role(&c->roles, m->text.data + name.offset, name.n);

    return role->from->train.n > 0 && !m->list.data[i].untrained;
}

/* Truncates a chat that is too long by whole turns.  The rest is rendered again, since a template
 * may treat the last turn differently.  `lost` counts what the removed turns had. */
static d9d_status truncate_turns(const d9di_chat *c, d9d_tokenizer_scratch *s,
                                 const d9di_chat_messages *m, int64_t max_positions,
                                 d9di_chat_rendering *rendering, struct output *o,
                                 d9di_chat_truncation *lost, d9di_jsonl_error *error)
{
    const size_t fit = max_fitting_turns(rendering, max_positions);
    size_t n = fit < m->list.len ? fit : m->list.len - 1;

    D9D_TRY(count_targets(o, rendering));
    for (; n > 0; n--) {
        if (!is_trained(c, m, n - 1))
            continue;
        D9D_TRY(encode_turns(c, s, m, n, rendering, o, error));
        if (count_positions(o) > 0 && count_positions(o) <= max_positions)
            break;
    }
    if (n == 0) {
        o->ids->len = o->ids_before;
        o->labels->len = o->labels_before;
    }
    *lost = (d9di_chat_truncation){n == 0, (int64_t)(m->list.len - n), 0};
    for (size_t i = n; i < rendering->targets.len; i++)
        lost->targets += rendering->targets.data[i];
    return D9D_OK;
}

d9d_status d9di_chat_encode(const d9di_chat *c, d9d_tokenizer_scratch *s,
                            const d9di_chat_messages *m, int64_t max_positions,
                            d9di_chat_rendering *rendering, d9d_token_ids *ids,
                            d9di_token_labels *labels, d9di_chat_truncation *lost,
                            d9di_jsonl_error *error)
{
    struct output o = {ids, labels, ids->len, labels->len};

    *lost = (d9di_chat_truncation){false, 0, 0};
    D9D_TRY(encode_turns(c, s, m, m->list.len, rendering, &o, error));
    return max_positions > 0 && count_positions(&o) > max_positions
               ? truncate_turns(c, s, m, max_positions, rendering, &o, lost, error)
               : D9D_OK;
}

d9d_status d9di_chat_encode_prompt(const d9di_chat *c, d9d_tokenizer_scratch *s,
                                   const d9di_chat_messages *m, const char *speaker,
                                   bool no_thoughts, d9di_chat_rendering *rendering,
                                   d9d_token_ids *ids, d9di_jsonl_error *error)
{
    const d9di_chat_next_turn next = {d9di_chat_find_role(&c->roles, speaker, strlen(speaker)),
                                      no_thoughts};

    if (next.role == NULL)
        return D9D_FAIL(D9D_ECONFIG, "the role \"%s\" is not in the template", speaker);
    if (no_thoughts && next.role->from->thoughts == NULL)
        return D9D_FAIL(D9D_ECONFIG,
                        "the template says of no thoughts of the role \"%s\", so "
                        "they cannot be left out",
                        speaker);
    D9D_TRY(d9di_chat_render(&c->roles, m, m->list.len, &next, rendering, error));
    return encode_text(c, s, rendering, ids);
}
