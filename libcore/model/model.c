/* model.c - what any model is made with.  See d9d/model/model.h. */
#include "d9d/model/model.h"

#include <stdlib.h>

d9d_status d9d_model_unit(d9d_model *m, const char *name, d9d_module *child)
{
    d9d_module **units = realloc(m->units, (m->n_units + 1) * sizeof(d9d_module *));

    if (units == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its %zu units", m->ops->name, m->n_units + 1);
    m->units = units;
    m->units[m->n_units++] = child;
    return name != NULL ? d9d_module_child(m->module, name, child)
                        : D9D_FAIL(D9D_ENOMEM, "%s: the name of a unit", m->ops->name);
}

d9d_status d9d_model_loss(d9d_block_vocab *head, d9d_tape *t, const d9d_model_in *in,
                          d9d_model_out *out)
{
    const d9d_shape *s = &d9d_var_tensor(out->hidden)->shape;
    const int64_t features = s->dim[s->ndim - 1];
    d9d_tensor targets;
    d9d_var *h;
    d9d_status st;

    if (in->labels == NULL)
        return D9D_OK;
    D9D_TRY(d9d_op_reshape(t, out->hidden, D9D_SHAPE(d9d_shape_numel(s) / features, features), &h));
    D9D_TRY(d9d_unit_open(&head->module, t));
    targets = d9d_tensor_reshape(in->labels, D9D_SHAPE(d9d_tensor_numel(in->labels)));
    st = d9d_block_vocab_loss(head, t, h, &targets, D9D_IGNORE_INDEX, in->loss_is_root, &out->loss);
    d9d_tensor_release(&targets);
    return st == D9D_OK ? d9d_unit_close(&head->module, t) : st;
}

static d9d_status count(void *sum, d9d_param *p)
{
    if (p->whole.ndim > 1)
        *(double *)sum += (double)d9d_shape_numel(&p->whole);
    return D9D_OK;
}

double d9d_model_flops(const d9d_model *m, int64_t s)
{
    double elements = 0;

    if (m->ops->flops_per_token != NULL)
        return m->ops->flops_per_token(m, s);
    for (size_t i = 1; i < m->n_units; i++)
        (void)!d9d_module_each(m->units[i], count, &elements);
    return 6 * elements;
}
