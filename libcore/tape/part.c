/* part.c - parts of a forward whose saved arrays wait in host memory.  See d9d_tape_offload. */
#include <math.h>

#include "tape/record.h"

void d9d_tape_set_offload(d9d_tape *t, const d9d_tape_offload *offload)
{
    t->offload = offload;
}

size_t d9d_tape_node_mark(const d9d_tape *t)
{
    return t->nodes.len;
}

/* --- backward -------------------------------------------------------------------------------- */

/* Fetch up to n parts that backward computes after part `number`. */
static d9d_status parts_fetch(d9d_tape *t, size_t number, int n)
{
    for (; n > 0 && number > 0; n--) {
        d9di_tape_part *p = t->parts.data[--number];

        if (p->group != NULL)
            D9D_TRY(d9d_offload_fetch(p->group));
    }
    return D9D_OK;
}

d9d_status d9d_tape_prefetch(d9d_tape *t)
{
    return t->offload != NULL ? parts_fetch(t, t->parts.len, t->offload->prefetch) : D9D_OK;
}

static void part_release(d9d_node *n)
{
    d9di_tape_part *p = n->attr;

    d9d_offload_group_free(p->group);
    p->group = NULL;
}

/* Before the part's own nodes.  The next ones are fetched into memory of their own, beside its
 * computation. */
static d9d_status part_return(d9d_node *n)
{
    const d9di_tape_part *p = n->attr;

    if (p->group == NULL) /* a wgrad half: dgrad was before it */
        return D9D_OK;
    D9D_TRY(d9d_offload_wait(p->group));
    part_release(n);
    return parts_fetch(n->tape, p->number, n->tape->offload->prefetch);
}

static const d9d_node_ops part_ops = {.name = "offload",
                                      .dgrad = part_return,
                                      .wgrad = part_return,
                                      .bwd = part_return,
                                      .release = part_release};

/* --- forward --------------------------------------------------------------------------------- */

typedef D9D_VEC(const d9d_tensor *) tensor_list;

static d9d_status list_saved(const d9d_tape *t, size_t first, tensor_list *out)
{
    for (size_t i = first; i < t->nodes.len; i++) {
        const d9d_node *n = t->nodes.data[i];

        for (int k = 0; k < n->n_saved; k++)
            if (n->saved[k].storage != NULL)
                D9D_TRY(D9D_VEC_PUSH(out, &n->saved[k]));
    }
    return D9D_OK;
}

/* Evenly spread, so that the bus has the time of those that stay.  The first goes: it is away
 * longest, and of few parts one goes too. */
static bool is_chosen(const d9d_tape *t, size_t number)
{
    const double f = t->offload->fraction;

    return ceil((double)number * f) < ceil((double)(number + 1) * f);
}

/* The part's node is recorded first: it owns the group. */
static d9d_status part_record(d9d_tape *t, d9di_tape_part **out)
{
    d9d_node *n;

    D9D_TRY(d9d_tape_record_hook(t, &part_ops, sizeof(d9di_tape_part), &n));
    *out = n->attr;
    (*out)->number = t->parts.len;
    return D9D_VEC_PUSH(&t->parts, *out);
}

d9d_status d9d_tape_offload_since(d9d_tape *t, size_t node_mark, d9d_var *read, bool away)
{
    tensor_list saved = {0};
    d9di_tape_part *p = NULL;
    d9d_status st;

    if (t->offload == NULL || t->recording != D9DI_RECORD_ON)
        return D9D_OK;
    if (read != NULL)
        d9di_var_release_value(read);
    D9D_TRY_OR(st, part_record(t, &p), out);
    if (away && is_chosen(t, p->number))
        D9D_TRY_OR(st, list_saved(t, node_mark, &saved), out);
    st = d9d_offload_send(t->offload->to, saved.data, saved.len, &p->group);
out:
    D9D_VEC_RELEASE(&saved);
    return st;
}
