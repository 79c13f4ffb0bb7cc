/* chat_spans.c - which text of a chat is trained; the rules are in d9d/data/chat/chat.h. */
#include <stdlib.h>
#include <string.h>

#include "data/chat/chat_render.h"

#define CURE                                                                                       \
    "enclose that in {%% generation %%} and {%% endgeneration %%} in a copy of the template"

typedef struct finder {
    const d9di_chat_template *t;
    const json_t *chat, *messages;
    size_t n;
    d9di_chat_rendering *r;
    d9d_buf prompt; /* the last generation prompt that an answer began with; empty: none did */
} finder;

static bool is_assistant(const finder *f, size_t i)
{
    return d9di_chat_is_assistant(json_array_get(f->messages, i));
}

/* --- where messages end ----------------------------------------------------------------------- */

static d9d_status find_ends(finder *f)
{
    d9di_chat_rendering *r = f->r;

    D9D_TRY(D9D_VEC_RESERVE(&r->ends, f->n));
    r->ends.len = f->n;
    for (size_t i = 0; i < f->n; i++)
        r->ends.data[i] = 0;
    for (size_t i = 0; i < r->trace.visits.len; i++) {
        const d9d_jinja_visit *v = &r->trace.visits.data[i];

        if (v->span.end > r->ends.data[v->item])
            r->ends.data[v->item] = v->span.end;
    }
    for (size_t i = 1; i < f->n; i++)
        if (r->ends.data[i] < r->ends.data[i - 1])
            r->ends.data[i] = r->ends.data[i - 1];
    return D9D_OK;
}

/* --- renderings of the chat's beginning ------------------------------------------------------- */

/* Renders the first n messages into r->part; the text of the chat is as it was. */
static d9d_status render_part(finder *f, size_t n, bool prompt)
{
    d9di_chat_rendering part = {
        .text = f->r->part, .trace = f->r->part_trace, .marks = f->r->marks};
    const d9d_status st = d9di_chat_render(f->t, f->chat, n, prompt, &part);

    f->r->part = part.text;
    f->r->part_trace = part.trace;
    f->r->marks = part.marks;
    return st;
}

/* What the last rendering has behind the last message. */
static size_t tail_of_part(const finder *f)
{
    size_t end = 0;

    for (size_t i = 0; i < f->r->part_trace.visits.len; i++)
        if (f->r->part_trace.visits.data[i].span.end > end)
            end = f->r->part_trace.visits.data[i].span.end;
    return end;
}

static bool begins(const char *text, size_t n, const char *with, size_t m)
{
    return m <= n && (m == 0 || memcmp(text, with, m) == 0);
}

static d9d_status set_prompt(finder *f, const char *text, size_t n)
{
    f->prompt.len = 0;
    return d9d_buf_append(&f->prompt, n > 0 ? text : "", n);
}

/* Sets f->prompt to what the template writes for a prompt behind the first n messages, together
 * with whatever stands there anyway. */
static d9d_status find_tail(finder *f, size_t n)
{
    const d9d_buf *part = &f->r->part;
    size_t tail;

    D9D_TRY(render_part(f, n, true));
    tail = tail_of_part(f);
    return set_prompt(f, part->data + tail, part->len - tail);
}

/* How many bytes the texts have in common at their beginning, or at their end. */
static size_t common(const d9d_buf *a, const d9d_buf *b, bool at_end)
{
    const size_t most = a->len < b->len ? a->len : b->len;
    size_t i = 0;

    while (i < most &&
           (at_end ? a->data[a->len - 1 - i] == b->data[b->len - 1 - i] : a->data[i] == b->data[i]))
        i++;
    return i;
}

/* Sets f->prompt to what a prompt adds to the text of the first n messages, behind them or within
 * the last one's.  Where its first bytes are those that follow it, there are two such texts: the
 * earlier one if `early`. */
static d9d_status find_added(finder *f, size_t n, bool early, bool *known)
{
    const d9d_buf *with = &f->r->part;
    d9d_buf without = {0};
    size_t before, behind;
    d9d_status st;

    D9D_TRY_OR(st, render_part(f, n, false), out);
    D9D_TRY_OR(st, d9d_buf_append(&without, f->r->part.data, f->r->part.len), out);
    D9D_TRY_OR(st, render_part(f, n, true), out);
    before = common(with, &without, false);
    behind = common(with, &without, true);
    *known = before + behind >= without.len; /* else it is in place of another text */
    if (!*known)
        goto out;
    if (early)
        before = without.len - behind;
    else
        behind = without.len - before;
    st = set_prompt(f, with->data + before, with->len - before - behind);
out:
    d9d_buf_release(&without);
    return st;
}

/* --- spans of the template's loop ------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Does text[0, n) begin with the prompt, white space at the prompt's ends aside?  *header: how far.
 */
static bool begins_with_prompt(const finder *f, const char *text, size_t n, size_t *header)
{
    const char *prompt = f->prompt.data;
    size_t from = 0, end = f->prompt.len, at = 0;

    *header = end;
    if (end > 0 && begins(text, n, prompt, end))
        return true;
    while (at < n && is_space(text[at]))
        at++;
    while (from < end && is_space(prompt[from]))
        from++;
    while (end > from && is_space(prompt[end - 1]))
        end--;
    if (from == end || !begins(text + at, n - at, prompt + from, end - from))
        return false;
    for (at += end - from; at < n && end < f->prompt.len && text[at] == prompt[end]; at++)
        end++;
    *header = at;
    return true;
}

/* The bytes at which the text and the generation prompt begin alike, up to a line's end or a
 * bracket: a prompt may begin thoughts that the turn does not have. */
static size_t common_header(const finder *f, const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && i < f->prompt.len && text[i] == f->prompt.data[i])
        i++;
    while (i > 0 && i < f->prompt.len && strchr("\n>]", text[i - 1]) == NULL)
        i--;
    return i;
}

/* Sets f->prompt to one of three texts that the generation prompt behind message i - 1 may be. */
static d9d_status find_prompt(finder *f, size_t i, int attempt, bool *known)
{
    const size_t n = i > 0 ? i : f->n;

    *known = true;
    return attempt == 0 ? find_tail(f, n) : find_added(f, n, attempt == 2, known);
}

/* The length of the generation prompt at the beginning of text[0, n), the turn of message i. */
static d9d_status find_header(finder *f, size_t i, const char *text, size_t n, size_t *out)
{
    bool nothing = false, known; /* nothing: the template adds nothing for a prompt */
    size_t best = 0;

    if (begins_with_prompt(f, text, n, out))
        return D9D_OK; /* the one of the answer before */
    for (int attempt = 0; attempt < 3; attempt++) {
        const d9d_status st = find_prompt(f, i, attempt, &known);
        size_t part;

        if (st == D9D_EFORMAT) /* the template does not take a chat that ends there */
            continue;
        D9D_TRY(st);
        if (!known)
            continue;
        if (begins_with_prompt(f, text, n, out))
            return D9D_OK;
        part = common_header(f, text, n);
        best = part > best ? part : best;
        nothing = nothing || (attempt > 0 && f->prompt.len == 0);
    }
    f->prompt.len = 0; /* not one for the next answer */
    *out = best;
    return best > 0 || nothing
               ? D9D_OK
               : D9D_FAIL(D9D_EFORMAT,
                          "%s: the text of messages[%zu] does not begin with the generation "
                          "prompt, so that what the assistant writes is not known; " CURE,
                          f->t->where, i);
}

/* The span without white space behind the text that ends a turn. */
static d9d_jinja_span without_space(const finder *f, d9d_jinja_span s)
{
    const char *text = f->r->text.data, *is_data = f->r->trace.data.data;
    size_t end = s.end;

    while (end > s.begin && is_space(text[end - 1]) && !is_data[end - 1])
        end--;
    if (end > s.begin && !is_data[end - 1])
        s.end = end;
    return s;
}

static d9d_status add_span(finder *f, d9d_jinja_span s)
{
    s = without_space(f, s);
    return s.begin < s.end ? D9D_VEC_PUSH(&f->r->loss_spans, s) : D9D_OK;
}

/* The first byte of the span that has the mark; its end: none has. */
static size_t find_mark(const finder *f, d9d_jinja_span s, unsigned char mark)
{
    const char *at = memchr(f->r->trace.data.data + s.begin, mark, s.end - s.begin);

    return at != NULL ? (size_t)(at - f->r->trace.data.data) : s.end;
}

/* Adds a part of the turn of message i.  Where other messages are written within it, as results are
 * that follow their calls, it ends where the text of the chat up to this message does. */
static d9d_status add_turn(finder *f, size_t i, d9d_jinja_span s)
{
    const unsigned char mark = d9di_chat_mark(json_array_get(f->messages, i), i);
    const size_t others = find_mark(f, s, D9DI_CHAT_OTHERS);
    const char *text = f->r->text.data, *is_data = f->r->trace.data.data, *last;
    d9d_jinja_span rest = {s.end, s.end}; /* behind the last text of others */
    size_t same, end;
    d9d_status st;

    if (others == s.end)
        return add_span(f, s);
    st = render_part(f, i + 1, false);
    if (st != D9D_OK && st != D9D_EFORMAT)
        return D9D_PASS(st);
    same = st == D9D_OK ? common(&f->r->text, &f->r->part, false) : 0;
    end = same < others ? same : others;
    while (same < f->r->part.len && end > s.begin && !is_data[end - 1] &&
           strchr("\n>]", text[end - 1]) == NULL)
        end--; /* what follows is another text that may begin alike */
    last = memrchr(is_data + others, D9DI_CHAT_OTHERS, s.end - others);
    rest.begin = (size_t)(last - is_data);
    if (end > s.begin && find_mark(f, rest, mark) == rest.end)
        return add_span(f, (d9d_jinja_span){s.begin, end});
    return D9D_FAIL(D9D_EFORMAT,
                    "%s: the turn of messages[%zu] has text of other messages in it, so that "
                    "what the assistant writes is not known; " CURE,
                    f->t->where, i);
}

/* Adds the span of a visit, without what is written within it of other messages. */
static d9d_status add_visit(finder *f, size_t k)
{
    const d9d_jinja_visit *visits = f->r->trace.visits.data, *v = &visits[k];
    size_t header = 0, first = k, at;

    D9D_TRY(find_header(f, v->item, f->r->text.data + v->span.begin, v->span.end - v->span.begin,
                        &header));
    at = v->span.begin + header;
    while (first > 0 && visits[first - 1].span.begin >= v->span.begin)
        first--;
    for (size_t i = first; i < k; i++) { /* inner visits are recorded before outer ones */
        if (visits[i].item == v->item || visits[i].span.begin < at)
            continue;
        D9D_TRY(add_turn(f, v->item, (d9d_jinja_span){at, visits[i].span.begin}));
        at = visits[i].span.end;
    }
    return at < v->span.end ? add_turn(f, v->item, (d9d_jinja_span){at, v->span.end}) : D9D_OK;
}

/* *any: the loop has messages of the assistant. */
static d9d_status add_visits(finder *f, bool *any)
{
    *any = false;
    for (size_t k = 0; k < f->r->trace.visits.len; k++)
        if (is_assistant(f, f->r->trace.visits.data[k].item)) {
            *any = true;
            D9D_TRY(add_visit(f, k));
        }
    return D9D_OK;
}

/* --- spans by differences --------------------------------------------------------------------- */

/* Renders up to before and up to after message i. */
static d9d_status add_difference(finder *f, size_t i)
{
    const d9di_chat_rendering *r = f->r;
    size_t end[2];

    for (size_t k = 0; k < 2; k++) {
        const d9d_status st = render_part(f, i + k, k == 0);

        if (st != D9D_OK && st != D9D_EFORMAT)
            return D9D_PASS(st);
        if (st == D9D_EFORMAT || !begins(r->text.data, r->text.len, r->part.data, r->part.len))
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: the text up to %s messages[%zu] does not begin the text of the "
                            "chat, so that what the assistant writes is not known; " CURE,
                            f->t->where, k == 0 ? "before" : "after", i);
        end[k] = r->part.len;
    }
    for (size_t k = i; k < f->n; k++)
        if (r->ends.data[k] < end[1])
            f->r->ends.data[k] = end[1];
    return end[0] < end[1] ? add_span(f, (d9d_jinja_span){end[0], end[1]}) : D9D_OK;
}

static bool is_visited(const finder *f, size_t i)
{
    for (size_t k = 0; k < f->r->trace.visits.len; k++)
        if (f->r->trace.visits.data[k].item == i)
            return true;
    return false;
}

/* all: also answers without text, which templates may leave out. */
static d9d_status add_differences(finder *f, bool all)
{
    const d9d_jinja_span text = {0, f->r->text.len};

    for (size_t i = 0; i < f->n; i++) {
        const json_t *m = json_array_get(f->messages, i);

        if (d9di_chat_is_assistant(m) && !is_visited(f, i) &&
            (all || find_mark(f, text, d9di_chat_mark(m, i)) < text.end))
            D9D_TRY(add_difference(f, i));
    }
    return D9D_OK;
}

/* --- all spans -------------------------------------------------------------------------------- */

static int compare_spans(const void *a, const void *b)
{
    const d9d_jinja_span *x = a, *y = b;

    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorts the spans and joins those that overlap. */
static void join_spans(d9d_jinja_spans *s)
{
    size_t n = 0;

    if (s->len > 1)
        qsort(s->data, s->len, sizeof(*s->data), compare_spans);
    for (size_t i = 0; i < s->len; i++) {
        if (n > 0 && s->data[i].begin <= s->data[n - 1].end) {
            if (s->data[i].end > s->data[n - 1].end)
                s->data[n - 1].end = s->data[i].end;
        } else if (s->data[i].begin < s->data[i].end) {
            s->data[n++] = s->data[i];
        }
    }
    s->len = n;
}

/* Takes the spans of messages away whose weight is 0. */
static void drop_untrained(finder *f)
{
    const d9di_chat_rendering *r = f->r;
    d9d_jinja_spans *s = &f->r->loss_spans;
    size_t n = 0, message = 0;

    for (size_t i = 0; i < s->len; i++) {
        while (message + 1 < f->n && r->ends.data[message] <= s->data[i].begin)
            message++;
        if (!is_assistant(f, message) || d9di_chat_is_trained(json_array_get(f->messages, message)))
            s->data[n++] = s->data[i];
    }
    s->len = n;
}

static bool has_weights(const finder *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (is_assistant(f, i) && !d9di_chat_is_trained(json_array_get(f->messages, i)))
            return true;
    return false;
}

static d9d_status find_spans(finder *f)
{
    const d9d_jinja_spans *marked = &f->r->trace.generation;
    bool any = false;

    D9D_TRY(find_ends(f));
    if (d9d_jinja_marks_generation(f->t->template)) {
        if (has_weights(f) && f->r->trace.visits.len == 0)
            return D9D_FAIL(D9D_EFORMAT,
                            "%s: has no loop over the messages, so that a \"weight\" of 0 cannot "
                            "be heeded",
                            f->t->where);
        for (size_t i = 0; i < marked->len; i++)
            D9D_TRY(D9D_VEC_PUSH(&f->r->loss_spans, marked->data[i]));
    } else {
        D9D_TRY(add_visits(f, &any));
        D9D_TRY(add_differences(f, !any));
    }
    join_spans(&f->r->loss_spans);
    drop_untrained(f);
    return D9D_OK;
}

d9d_status d9di_chat_render_spans(const d9di_chat_template *t, const json_t *chat, size_t n,
                                  d9di_chat_rendering *out)
{
    finder f = {
        .t = t, .chat = chat, .messages = json_object_get(chat, "messages"), .n = n, .r = out};
    d9d_status st;

    out->loss_spans.len = out->ends.len = out->spans.len = 0;
    st = d9di_chat_render(t, chat, n, false, out);
    if (st == D9D_OK)
        st = find_spans(&f);
    d9d_buf_release(&f.prompt);
    return st == D9D_OK ? st : D9D_PASS(st);
}
