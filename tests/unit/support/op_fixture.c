/* op_fixture.c - see op_fixture.h. */
#include "op_fixture.h"

#include <stdlib.h>

#include "unit_device.h"

int op_fixture_open(void **state)
{
    op_fixture *f = calloc(1, sizeof(*f));

    *state = f;
    return f != NULL && d9d_device_open(unit_device_name(), &f->dev) == D9D_OK &&
                   d9d_tape_create(f->dev, &f->tape) == D9D_OK
               ? 0
               : -1;
}

int op_fixture_close(void **state)
{
    op_fixture *f = *state;
    int rc;

    d9d_tape_free(f->tape);
    for (size_t i = 0; i < f->n_param; i++) {
        d9d_tensor_release(&f->param[i].local.data);
        d9d_tensor_release(&f->param[i].local.grad);
    }
    for (size_t i = 0; i < f->n_tensor; i++)
        d9d_tensor_release(&f->tensor[i]);
    rc = d9d_device_memory(f->dev).in_use == 0 ? 0 : -1;
    d9d_device_close(f->dev);
    free(f);
    return rc;
}

d9d_tensor *op_tensor(op_fixture *f, d9d_dtype t, d9d_shape shape)
{
    d9d_tensor *x = &f->tensor[f->n_tensor++];

    assert_true(f->n_tensor <= 16);
    assert_ok(d9d_tensor_alloc(f->dev, t, shape, x));
    assert_ok(unit_device_set(f->dev, d9d_tensor_data(x), 0, d9d_tensor_bytes(x)));
    return x;
}

d9d_var *op_var(op_fixture *f, d9d_dtype t, d9d_shape shape)
{
    d9d_tensor x;
    d9d_var *v;

    assert_ok(d9d_tensor_alloc(f->dev, t, shape, &x));
    assert_ok(unit_device_set(f->dev, d9d_tensor_data(&x), 0, d9d_tensor_bytes(&x)));
    assert_ok(d9d_tape_leaf(f->tape, &x, true, &v));
    d9d_tensor_release(&x);
    return v;
}

d9d_param *op_param(op_fixture *f, const char *name, d9d_dtype t, d9d_shape shape)
{
    d9d_param *p = &f->param[f->n_param++];

    assert_true(f->n_param <= 16);
    *p = (d9d_param){.name = name,
                     .spec.shape = shape,
                     .shard.shape = shape,
                     .spec.dtype = t,
                     .spec.grad_dtype = D9D_F32,
                     .spec.trainable = true};
    assert_ok(d9d_tensor_alloc(f->dev, t, shape, &p->local.data));
    assert_ok(unit_device_set(f->dev, d9d_tensor_data(&p->local.data), 0,
                              d9d_tensor_bytes(&p->local.data)));
    assert_ok(d9d_tensor_alloc(f->dev, D9D_F32, shape, &p->local.grad));
    return p;
}
