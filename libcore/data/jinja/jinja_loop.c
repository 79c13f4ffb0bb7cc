/* jinja_loop.c - the state of a for statement, and what `loop` says of it. */
#include <string.h>

#include "data/jinja/jinja_exec.h"

/* Looks for the next item that the filter lets through; UNSET: there is none. */
static d9d_status fetch(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    while (l->at < l->items.n) {
        const d9di_jinja_value *item = &l->items.items[l->at++];
        d9di_jinja_scope scope = {.parent = l->outer};
        d9di_jinja_value passes = d9di_jinja_bool(true);

        if (l->node->b != NULL) {
            D9D_TRY(d9di_jinja_assign(r, &scope, l->node->target, item));
            D9D_TRY(d9di_jinja_eval(r, &scope, l->node->b, &passes));
        }
        if (d9di_jinja_truth(&passes)) {
            *out = *item;
            return D9D_OK;
        }
    }
    *out = (d9di_jinja_value){.kind = D9DI_JINJA_UNSET};
    return D9D_OK;
}

static d9d_status peek(d9di_jinja_run *r, d9di_jinja_loop *l)
{
    return l->next.kind == D9DI_JINJA_UNSET ? fetch(r, l, &l->next) : D9D_OK;
}

d9d_status d9di_jinja_loop_next(d9di_jinja_run *r, d9di_jinja_loop *l, bool *out)
{
    D9D_TRY(peek(r, l));
    *out = l->next.kind != D9DI_JINJA_UNSET;
    if (!*out)
        return D9D_OK;
    l->index0++;
    l->before = l->now;
    l->now = l->next;
    l->next = (d9di_jinja_value){.kind = D9DI_JINJA_UNSET};
    return D9D_OK;
}

/* Counts all items, for which the filter is applied to the rest. */
static d9d_status count(d9di_jinja_run *r, d9di_jinja_loop *l)
{
    d9di_jinja_value rest, item;

    if (l->length >= 0)
        return D9D_OK;
    l->length = l->index0 + 1 + (l->next.kind != D9DI_JINJA_UNSET);
    if (l->node->b == NULL) {
        l->length += (int64_t)(l->items.n - l->at);
        return D9D_OK;
    }
    D9D_TRY(d9di_jinja_seq_new(r, D9DI_JINJA_LIST, 0, &rest));
    for (;;) {
        D9D_TRY(fetch(r, l, &item));
        if (item.kind == D9DI_JINJA_UNSET)
            break;
        D9D_TRY(d9di_jinja_seq_append(r, rest.seq, item));
    }
    l->length += (int64_t)rest.seq->n;
    l->items = *rest.seq;
    l->counted_rest = true;
    l->at = 0;
    return D9D_OK;
}

/* --- attributes ------------------------------------------------------------------------------- */

static d9d_status get_index(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    (void)r;
    *out = d9di_jinja_int(l->index0 + 1);
    return D9D_OK;
}

static d9d_status get_index0(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    (void)r;
    *out = d9di_jinja_int(l->index0);
    return D9D_OK;
}

static d9d_status get_revindex(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    D9D_TRY(count(r, l));
    *out = d9di_jinja_int(l->length - l->index0);
    return D9D_OK;
}

static d9d_status get_revindex0(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    D9D_TRY(count(r, l));
    *out = d9di_jinja_int(l->length - l->index0 - 1);
    return D9D_OK;
}

static d9d_status get_length(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    D9D_TRY(count(r, l));
    *out = d9di_jinja_int(l->length);
    return D9D_OK;
}

static d9d_status get_first(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    (void)r;
    *out = d9di_jinja_bool(l->index0 == 0);
    return D9D_OK;
}

static d9d_status get_last(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    D9D_TRY(peek(r, l));
    *out = d9di_jinja_bool(l->next.kind == D9DI_JINJA_UNSET);
    return D9D_OK;
}

static d9d_status get_previtem(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    (void)r;
    *out = l->index0 > 0 ? l->before
                         : d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, "the loop before this one", 24);
    return D9D_OK;
}

static d9d_status get_nextitem(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    D9D_TRY(peek(r, l));
    *out = l->next.kind != D9DI_JINJA_UNSET
               ? l->next
               : d9di_jinja_undefined(D9DI_JINJA_NO_ITEM, "the loop after this one", 23);
    return D9D_OK;
}

static d9d_status get_depth(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    (void)r;
    *out = d9di_jinja_int(l->depth);
    return D9D_OK;
}

static d9d_status get_depth0(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out)
{
    (void)r;
    *out = d9di_jinja_int(l->depth - 1);
    return D9D_OK;
}

static const struct {
    const char *name;
    d9d_status (*get)(d9di_jinja_run *r, d9di_jinja_loop *l, d9di_jinja_value *out);
} attributes[] = {
    {"index", get_index},         {"index0", get_index0},     {"first", get_first},
    {"last", get_last},           {"length", get_length},     {"revindex", get_revindex},
    {"revindex0", get_revindex0}, {"previtem", get_previtem}, {"nextitem", get_nextitem},
    {"depth", get_depth},         {"depth0", get_depth0},
};

d9d_status d9di_jinja_loop_attr(d9di_jinja_run *r, d9di_jinja_loop *l, const char *name, size_t n,
                                d9di_jinja_value *out)
{
    for (size_t i = 0; i < sizeof(attributes) / sizeof(attributes[0]); i++)
        if (strlen(attributes[i].name) == n && memcmp(attributes[i].name, name, n) == 0)
            return attributes[i].get(r, l, out);
    *out = (d9di_jinja_value){.kind = D9DI_JINJA_UNSET};
    return D9D_OK;
}

/* --- methods ---------------------------------------------------------------------------------- */

static d9d_status fail_keywords(const d9di_jinja_call *c, const char *method)
{
    return d9di_jinja_fail(c->run, "%s: the argument \"%.60s\" is not supported", method,
                           c->kw[0].name);
}

/* The argument that it is this iteration's turn to have. */
static d9d_status loop_cycle(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    if (c->n_kw > 0)
        return fail_keywords(c, "loop.cycle");
    if (c->n == 0)
        return d9di_jinja_fail(c->run, "loop.cycle: there are no items");
    *out = c->pos[(uint64_t)c->self.loop->index0 % c->n];
    return D9D_OK;
}

/* Are the arguments others than those of the call before? */
static d9d_status loop_changed(const d9di_jinja_call *c, d9di_jinja_value *out)
{
    d9di_jinja_loop *l = c->self.loop;
    d9di_jinja_value now;
    bool same = false;

    if (c->n_kw > 0)
        return fail_keywords(c, "loop.changed");
    D9D_TRY(d9di_jinja_seq_new(c->run, D9DI_JINJA_TUPLE, c->n, &now));
    for (size_t i = 0; i < c->n; i++)
        D9D_TRY(d9di_jinja_seq_append(c->run, now.seq, c->pos[i]));
    if (l->changed.kind != D9DI_JINJA_UNSET)
        D9D_TRY(d9di_jinja_equal(c->run, &l->changed, &now, &same));
    if (!same)
        l->changed = now;
    *out = d9di_jinja_bool(!same);
    return D9D_OK;
}

const d9di_jinja_builtin d9di_jinja_loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0}, {"changed", loop_changed, NULL, 0}, {NULL, NULL, NULL, 0}};
