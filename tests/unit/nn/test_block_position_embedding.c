/* test_block_position_embedding.c - learnt positions against loops: values and gradients. */
#include "d9d/nn/block.h"
#include "support/unit.h"
#include "support/unit_device.h"

enum { B = 2, S = 5, P = 4, H = 3, T = B * S };

/* Two documents in the first row; 4 and -1 are outside the table. */
static const int32_t positions[T] = {0, 1, 2, 0, 1, 3, 4, -1, 0, 3};

typedef struct fixture {
    d9d_device *dev;
    d9d_block_position_embedding block;
    float x[T * H], dy[T * H], y[T * H], dx[T * H], w[P * H], dw[P * H];
} fixture;

static void open_block(fixture *f)
{
    const d9d_block_opts opts = {.dtype = D9D_F32, .init_std = 0.5};

    *f = (fixture){0};
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_block_position_embedding_init(&f->block, &opts, P, H));
    assert_ok(d9d_module_bind(&f->block.module));
    assert_ok(d9d_module_materialise(&f->block.module, f->dev, true));
    assert_ok(d9d_module_reset(&f->block.module, 3));
    assert_string_equal(f->block.weight.name, "weight");
    assert_ok(d9d_tensor_to_f32(&f->block.weight.local.data, f->w));
    for (int i = 0; i < T * H; i++) {
        f->x[i] = (float)((i * 37 + 11) % 23 - 11) / 8.0f;
        f->dy[i] = (float)((i * 29 + 5) % 19 - 9) / 8.0f;
    }
}

static void close_block(fixture *f)
{
    d9d_module_release(&f->block.module);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
}

static void run(fixture *f)
{
    d9d_tensor x, at, seed, dx;
    d9d_var *in, *out;
    d9d_tape *t;

    assert_ok(d9d_tape_create(f->dev, &t));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(B, S, H), f->x, &x));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(B, S, H), f->dy, &seed));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(B, S), positions, &at));
    assert_ok(d9d_tape_leaf(t, &x, true, &in));
    assert_ok(d9d_block_position_embedding_forward(&f->block, t, in, &at, &out));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out), f->y));
    assert_ok(d9d_tape_backward(t, &out, &seed, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &dx);
    assert_ok(d9d_tensor_to_f32(&dx, f->dx));
    assert_ok(d9d_tensor_to_f32(&f->block.weight.local.grad, f->dw));
    d9d_tensor_release(&dx);
    d9d_tape_free(t);
    d9d_tensor_release(&x);
    d9d_tensor_release(&seed);
    d9d_tensor_release(&at);
}

static void each_position_has_its_row(void **state)
{
    float dw[P * H] = {0};
    fixture f;

    (void)state;
    open_block(&f);
    run(&f);
    for (int i = 0; i < T * H; i++) {
        const int32_t p = positions[i / H];
        const bool known = p >= 0 && p < P;

        assert_true(f.y[i] == f.x[i] + (known ? f.w[p * H + i % H] : 0.0f));
        assert_true(f.dx[i] == f.dy[i]);
        if (known)
            dw[p * H + i % H] += f.dy[i];
    }
    for (int i = 0; i < P * H; i++)
        assert_true(f.dw[i] == dw[i]); /* sums of eighths are exact */
    close_block(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_position_has_its_row)};

    return cmocka_run_group_tests_name("block_position_embedding", tests, NULL, NULL);
}
