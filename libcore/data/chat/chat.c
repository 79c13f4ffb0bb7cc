/* chat.c - encodes chats as ids and labels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/chat/chat_private.h"

struct d9di_chat {
    const d9d_tokenizer *tok;
    d9di_chat_template *template;
};

/* --- loading ------------------------------------------------------------------------------- */

d9d_status d9di_chat_load(const d9d_chat_opts *opts, const d9d_tokenizer *tok, d9di_chat **out)
{
    d9di_chat *c = calloc(1, sizeof(*c));
    d9d_status st;

    if (!c)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a chat template");
    c->tok = tok;
    st = d9di_chat_template_load(opts, &c->template);
    if (st != D9D_OK) {
        free(c);
        return D9D_PASS(st);
    }
    *out = c;
    return D9D_OK;
}

void d9di_chat_free(d9di_chat *c)
{
    if (!c)
        return;
    d9di_chat_template_free(c->template);
    free(c);
}

const d9di_chat_template *d9di_chat_get_template(const d9di_chat *c)
{
    return c->template;
}

static bool template_reads(const void *arg, const char *name)
{
    const d9di_chat *c = arg;

    return d9di_chat_template_mentions(c->template, name);
}

d9di_chat_reader d9di_chat_get_reader(const d9di_chat *c)
{
    return (d9di_chat_reader){.reads = template_reads, .arg = c};
}

const char *d9di_chat_masks(const d9di_chat *c)
{
    return d9d_jinja_marks_generation(c->template->template) ? "generation" : "differences";
}

/* True if a trained byte is of the chat. */
static bool trains_data(const d9di_chat_rendering *r)
{
    for (size_t i = 0; i < r->loss_spans.len; i++) {
        const d9d_jinja_span s = r->loss_spans.data[i];

        for (size_t k = s.begin; k < s.end; k++)
            if (r->trace.data.data[k] != 0)
                return true;
    }
    return false;
}

/* ECONFIG unless of an answer to a question something is trained.  *taken: the template takes such
 * a chat; it may take other ones. */
static d9d_status check_answer(const d9di_chat *c, const json_t *chat, bool *taken)
{
    d9di_chat_rendering r = {.text = {0}};
    d9d_err_copy why;
    d9d_status st = d9di_chat_render(c->template, chat, 2, false, &r);

    *taken = st == D9D_OK;
    if (*taken)
        st = d9di_chat_render_spans(c->template, chat, 2, &r);
    if (*taken && st == D9D_OK && !trains_data(&r))
        st = D9D_FAIL(D9D_EFORMAT,
                      "%s: nothing of an answer is trained; enclose what the assistant writes in "
                      "{%% generation %%} and {%% endgeneration %%}",
                      c->template->where);
    d9di_chat_rendering_release(&r);
    if (st != D9D_EFORMAT)
        return st;
    d9d_err_save(&why, D9D_ECONFIG);
    return d9d_err_restore(&why);
}

/* The byte behind the last trained text that begins before `limit`. */
static size_t last_trained(const d9di_chat_rendering *r, size_t limit)
{
    size_t end = 0;

    for (size_t i = 0; i < r->loss_spans.len && r->loss_spans.data[i].begin < limit; i++)
        end = r->loss_spans.data[i].end;
    return end;
}

/* ECONFIG if the end of an answer is written with the next message, where it is not found. */
static d9d_status check_end(const d9di_chat *c, const json_t *chat)
{
    d9di_chat_rendering part = {.text = {0}}, r = {.text = {0}};
    d9d_status st = d9di_chat_render(c->template, chat, 2, false, &part);
    size_t end, n = part.text.len;

    if (st == D9D_OK)
        st = d9di_chat_render_spans(c->template, chat, 4, &r);
    if (st == D9D_EFORMAT) /* the template takes other chats */
        st = D9D_OK;
    else if (st == D9D_OK && r.text.len > n && memcmp(r.text.data, part.text.data, n) == 0) {
        end = last_trained(&r, n);
        while (n > end && strchr(" \t\r\n", part.text.data[n - 1]) != NULL)
            n--;
        if (n > end)
            st = D9D_FAIL(D9D_ECONFIG,
                          "%s: \"%.*s\", which ends an answer, is written with the next message, "
                          "so that it would not be trained; enclose it, with the answer, in "
                          "{%% generation %%} and {%% endgeneration %%}",
                          c->template->where, n - end < 40 ? (int)(n - end) : 40,
                          part.text.data + end);
    }
    d9di_chat_rendering_release(&part);
    d9di_chat_rendering_release(&r);
    return st;
}

d9d_status d9di_chat_check_trains(const d9di_chat *c)
{
    /* Templates of models that see want parts. */
    static const char *const contents[] = {"\"words\"",
                                           "[{\"type\": \"text\", \"text\": \"words\"}]"};
    d9d_err_copy first = {.text = ""};
    bool refused = false;

    for (size_t i = 0; i < sizeof(contents) / sizeof(contents[0]); i++) {
        char text[400];
        json_t *chat;
        bool taken;
        d9d_status st;

        (void)snprintf(text, sizeof(text),
                       "{\"messages\": [{\"role\": \"user\", \"content\": %s}, "
                       "{\"role\": \"assistant\", \"content\": %s}, "
                       "{\"role\": \"user\", \"content\": %s}, "
                       "{\"role\": \"assistant\", \"content\": %s}]}",
                       contents[i], contents[i], contents[i], contents[i]);
        D9D_TRY(d9d_json_parse("a chat", text, strlen(text), &chat));
        st = check_answer(c, chat, &taken);
        if (st == D9D_OK && taken && !d9d_jinja_marks_generation(c->template->template))
            st = check_end(c, chat);
        json_decref(chat);
        if (st != D9D_ECONFIG)
            return st;
        if (taken && !refused)
            d9d_err_save(&first, st);
        refused = refused || taken;
    }
    return refused ? d9d_err_restore(&first) : D9D_OK;
}

/* --- encoding ------------------------------------------------------------------------------ */

static d9d_status encode_text(const d9di_chat *c, d9d_tokenizer_scratch *s, d9di_chat_rendering *r,
                              d9d_token_ids *ids)
{
    r->spans.len = 0;
    return d9di_tokenizer_encode_data(c->tok, s, r->text.len ? r->text.data : "", r->text.len,
                                      r->trace.data.data, ids, &r->spans);
}

/* Sets the labels of ids from `from` on: ids with a trained byte, otherwise -100. shift_labels()
 * turns them into next-token targets. */
static d9d_status append_labels(const d9di_chat_rendering *r, const d9d_token_ids *ids, size_t from,
                                d9di_token_labels *labels)
{
    const d9d_jinja_span *loss = r->loss_spans.data;
    size_t k = 0;

    D9D_TRY(D9D_VEC_RESERVE(labels, r->spans.len));
    for (size_t i = 0; i < r->spans.len; i++) {
        const d9di_alignment *span = &r->spans.data[i];
        const size_t to = span->to > span->from ? span->to : span->from + 1;

        while (k < r->loss_spans.len && loss[k].end <= span->from)
            k++;
        labels->data[labels->len++] =
            k < r->loss_spans.len && loss[k].begin < to ? (int32_t)ids->data[from + i] : -100;
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
static d9d_status encode_turns(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                               size_t n, d9di_chat_rendering *rendering, struct output *o)
{
    o->ids->len = o->ids_before;
    o->labels->len = o->labels_before;
    D9D_TRY(d9di_chat_render_spans(c->template, chat, n, rendering));
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

/* Truncates a chat that is too long by whole turns.  The rest is rendered again, since a template
 * may treat the last turn differently, or not take a chat that ends there.  `lost` counts what the
 * removed turns had. */
static d9d_status truncate_turns(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                                 int64_t max_positions, d9di_chat_rendering *rendering,
                                 struct output *o, d9di_chat_truncation *lost)
{
    const json_t *messages = json_object_get(chat, "messages");
    const size_t all = json_array_size(messages), fit = max_fitting_turns(rendering, max_positions);
    size_t n = fit < all ? fit : all - 1;

    D9D_TRY(count_targets(o, rendering));
    for (; n > 0; n--) {
        d9d_status st;

        if (!d9di_chat_is_trained(json_array_get(messages, n - 1)))
            continue;
        st = encode_turns(c, s, chat, n, rendering, o);
        if (st != D9D_OK && st != D9D_EFORMAT)
            return D9D_PASS(st);
        if (st == D9D_OK && count_positions(o) > 0 && count_positions(o) <= max_positions)
            break;
    }
    if (n == 0) {
        o->ids->len = o->ids_before;
        o->labels->len = o->labels_before;
    }
    *lost = (d9di_chat_truncation){n == 0, (int64_t)(all - n), 0};
    for (size_t i = n; i < rendering->targets.len; i++)
        lost->targets += rendering->targets.data[i];
    return D9D_OK;
}

d9d_status d9di_chat_encode(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                            int64_t max_positions, d9di_chat_rendering *rendering,
                            d9d_token_ids *ids, d9di_token_labels *labels,
                            d9di_chat_truncation *lost)
{
    const size_t n = json_array_size(json_object_get(chat, "messages"));
    struct output o = {ids, labels, ids->len, labels->len};

    *lost = (d9di_chat_truncation){false, 0, 0};
    D9D_TRY(encode_turns(c, s, chat, n, rendering, &o));
    return max_positions > 0 && count_positions(&o) > max_positions
               ? truncate_turns(c, s, chat, max_positions, rendering, &o, lost)
               : D9D_OK;
}

/* Shifting has left the last token, and the memory of its label, behind the end. */
d9d_status d9di_chat_encode_whole(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                                  d9di_chat_rendering *rendering, d9d_token_ids *ids,
                                  d9di_token_labels *labels)
{
    const size_t n = json_array_size(json_object_get(chat, "messages"));
    struct output o = {ids, labels, ids->len, labels->len};

    D9D_TRY(encode_turns(c, s, chat, n, rendering, &o));
    if (ids->len == o.ids_before)
        return D9D_OK;
    ids->len++;
    labels->data[labels->len++] = -100;
    return D9D_OK;
}

d9d_status d9di_chat_encode_prompt(const d9di_chat *c, d9d_tokenizer_scratch *s, const json_t *chat,
                                   d9di_chat_rendering *rendering, d9d_token_ids *ids)
{
    const size_t n = json_array_size(json_object_get(chat, "messages"));

    D9D_TRY(d9di_chat_render(c->template, chat, n, true, rendering));
    return encode_text(c, s, rendering, ids);
}
