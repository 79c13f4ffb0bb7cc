/* test_block_mla.c - latent attention: packed documents, and shapes that are refused.  Its
 * values are compared with transformers' in tests/golden/test_golden_blocks.c. */
#include <stdlib.h>
#include <string.h>

#include "d9d/nn/block.h"
#include "support/unit.h"
#include "support/unit_device.h"

enum { H = 12, S = 9, FIRST = 5, PARAMS = 11 };

#define SHAPE                                                                                      \
    .hidden = H, .heads = 2, .q_rank = 7, .kv_rank = 6, .nope_dim = 5, .rope_dim = 4, .v = 6,      \
    .norm_eps = 1e-6f

typedef struct fixture {
    d9d_device *dev;
    d9d_block_rope rope;
    d9d_block_mla block;
    d9d_arena arena;
    d9d_params params;
    float y[S * H], dx[S * H], x[S * H], dy[S * H];
} fixture;

static void open_block(fixture *f, bool wide)
{
    const d9d_block_opts opts = {.dtype = D9D_F32, .init_std = 0.4};
    d9d_block_mla_shape shape = {SHAPE, .rope = &f->rope};

    if (wide) { /* than keys */
        shape.v = 11;
        shape.bias = true;
    }
    *f = (fixture){.rope = {.base = 100, .features = 4, .style = D9D_ROPE_INTERLEAVED}};
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_block_rope_prepare(&f->rope, f->dev));
    assert_ok(d9d_block_mla_init(&f->block, &opts, &shape));
    assert_ok(d9d_module_bind(&f->block.module));
    assert_ok(d9d_module_materialise(&f->block.module, f->dev, true));
    assert_ok(d9d_module_reset(&f->block.module, 3));
    assert_ok(d9d_module_params(&f->block.module, &f->arena, &f->params));
    assert_in_range(f->params.n, 1, PARAMS);
    for (int i = 0; i < S * H; i++) {
        f->x[i] = (float)((i * 37 + 11) % 23 - 11) / 11.0f;
        f->dy[i] = (float)((i * 53 + 5) % 29 - 14) / 14.0f;
    }
}

static void close_block(fixture *f)
{
    d9d_module_release(&f->block.module);
    d9d_block_rope_release(&f->rope);
    d9d_arena_release(&f->arena);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
}

/* Tokens [first, first + n), whose positions are given, forward and back. */
static void run(fixture *f, int64_t first, int64_t n, const int32_t *position, const int32_t *list,
                int64_t segments)
{
    const d9d_shape shape = D9D_SHAPE(1, n, H);
    d9d_tensor x, dy, positions, some = {0}, g;
    d9d_var *in, *out;
    d9d_tape *t;

    assert_ok(d9d_tape_create(f->dev, &t));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, shape, f->x + first * H, &x));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, shape, f->dy + first * H, &dy));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(1, n), position, &positions));
    if (list != NULL)
        assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(segments, 4), list, &some));
    assert_ok(d9d_tape_leaf(t, &x, true, &in));
    assert_ok(d9d_block_mla_forward(&f->block, t, in, &positions, list != NULL ? &some : NULL, NULL,
                                    in, &out));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out), f->y + first * H));
    assert_ok(d9d_tape_backward(t, &out, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &g);
    assert_ok(d9d_tensor_to_f32(&g, f->dx + first * H));
    d9d_tensor_release(&g);
    d9d_tape_free(t);
    d9d_tensor_release(&x);
    d9d_tensor_release(&dy);
    d9d_tensor_release(&positions);
    d9d_tensor_release(&some);
}

static void grads_read(const fixture *f, float **to)
{
    for (size_t i = 0; i < f->params.n; i++) {
        const d9d_tensor *g = &f->params.p[i]->local.grad;

        assert_true(f->params.p[i]->local.has_grad);
        to[i] = calloc((size_t)d9d_tensor_numel(g), sizeof(float));
        assert_ok(d9d_tensor_to_f32(g, to[i]));
    }
}

static void close_to(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        assert_float_equal(a[i], b[i], unit_device_tolerance(2e-5, 1e-4));
}

/* Two documents in a row are what they are in rows of their own. */
static void packed_equals_apart(bool wide)
{
    const int32_t position[S] = {0, 1, 2, 3, 4, 0, 1, 2, 3};
    const int32_t list[] = {0, FIRST, 0, FIRST, FIRST, S - FIRST, FIRST, S - FIRST};
    float y[S * H], dx[S * H], *packed[PARAMS], *apart[PARAMS];
    fixture f;

    open_block(&f, wide);
    run(&f, 0, S, position, list, 2);
    memcpy(y, f.y, sizeof(y));
    memcpy(dx, f.dx, sizeof(dx));
    grads_read(&f, packed);
    d9d_module_clear_grads(&f.block.module);
    run(&f, 0, FIRST, position, NULL, 0);
    run(&f, FIRST, S - FIRST, position + FIRST, NULL, 0);
    grads_read(&f, apart);
    close_to(y, f.y, (int64_t)S * H);
    close_to(dx, f.dx, (int64_t)S * H);
    for (size_t i = 0; i < f.params.n; i++) {
        close_to(packed[i], apart[i], d9d_tensor_numel(&f.params.p[i]->local.grad));
        free(packed[i]);
        free(apart[i]);
    }
    close_block(&f);
}

static void documents_do_not_see_each_other(void **state)
{
    (void)state;
    packed_equals_apart(false);
    packed_equals_apart(true);
}

static void refuses(void **state)
{
    const d9d_block_opts opts = {.dtype = D9D_F32};
    d9d_block_rope rope = {.base = 100, .features = 6};
    const d9d_block_mla_shape shape = {SHAPE, .rope = &rope};
    d9d_block_mla b;

    (void)state;
    assert_fails(d9d_block_mla_init(&b, &opts, &shape), D9D_ECONFIG,
                 "MLA: 4 features of a head are rotated, the RoPE rotates 6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_do_not_see_each_other),
        cmocka_unit_test(refuses),
    };

    return cmocka_run_group_tests_name("block_latent", tests, NULL, NULL);
}
