/* param_unit.c - opening and closing, in forward and by the tape in backward.  See
 * d9d/nn/param_unit.h.
 *
 * A forward's close is what backward meets first, so it opens.  An input half opens and closes for
 * data alone; the weight half, later, is a backward of its own.
 */
#include "d9d/nn/param_unit.h"

static d9d_unit *unit_of(const d9d_node *n)
{
    return *(d9d_unit *const *)n->attr;
}

#define HALF(name, call, pass)                                                                     \
    static d9d_status name(d9d_node *n)                                                            \
    {                                                                                              \
        return unit_of(n)->ops->call(unit_of(n), pass);                                            \
    }
HALF(open_for_data, open, D9D_UNIT_INPUT)
HALF(open_now, open, D9D_UNIT_BACKWARD)
HALF(close_data, close, D9D_UNIT_INPUT)
HALF(close_now, close, D9D_UNIT_BACKWARD)

static d9d_status open_for_grads(d9d_node *n)
{
    if (unit_of(n)->closes_late)
        D9D_TRY(d9d_tape_catch_up(n->tape));
    return open_now(n);
}

static d9d_status close_late(d9d_node *n)
{
    unit_of(n)->closes_late = false;
    return close_now(n);
}

static d9d_status close_grads(d9d_node *n)
{
    unit_of(n)->closes_late = true;
    return d9d_node_put_off(n, close_late);
}

static const d9d_node_ops closed = {
    .name = "gather", .input = open_for_data, .weight = open_for_grads, .full = open_for_grads};
static const d9d_node_ops opened = {
    .name = "reduce", .input = close_data, .weight = close_grads, .full = close_grads};

static d9d_status record(d9d_unit *u, d9d_tape *t, const d9d_node_ops *ops)
{
    d9d_node *n;

    D9D_TRY(d9d_tape_record_point(t, ops, sizeof(u), &n));
    if (n != NULL)
        *(d9d_unit **)n->attr = u;
    return D9D_OK;
}

d9d_status d9d_unit_open(d9d_module *m, d9d_tape *t)
{
    if (m->unit == NULL)
        return D9D_OK;
    D9D_TRY(m->unit->ops->open(m->unit, D9D_UNIT_FORWARD));
    return record(m->unit, t, &opened);
}

d9d_status d9d_unit_close(d9d_module *m, d9d_tape *t)
{
    if (m->unit == NULL)
        return D9D_OK;
    D9D_TRY(record(m->unit, t, &closed));
    return m->unit->ops->close(m->unit, D9D_UNIT_FORWARD);
}

d9d_status d9d_unit_run(d9d_module *m, d9d_tape *t, bool recompute, d9d_forward_fn fn, void *self,
                        d9d_var *const *in, size_t n_in, d9d_var **out)
{
    const size_t mark = d9d_tape_mark(t);

    D9D_TRY(d9d_unit_open(m, t));
    D9D_TRY(recompute ? d9d_tape_checkpoint(t, fn, self, in, n_in, out, 1)
                      : fn(self, t, in, n_in, out, 1));
    D9D_TRY(d9d_unit_close(m, t));
    d9d_tape_release_since(t, mark, out, 1);
    return D9D_OK;
}
