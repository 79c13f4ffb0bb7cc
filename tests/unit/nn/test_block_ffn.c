/* test_block_ffn.c - the parameters of each shape of a feed-forward block, and its values against a
 * loop in double.  Gradients are those of the ops: tests/unit/op/test_op_ffn.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/nn/block.h"
#include "support/unit.h"
#include "support/unit_device.h"

enum { T = 3, H = 5, I = 7, MOST = 6 };

typedef struct fixture {
    d9d_device *dev;
    d9d_block_ffn block;
    d9d_arena arena;
    d9d_params params;
    float *host[MOST]; /* of the parameters */
    float x[T * H], y[T * H];
} fixture;

/* A parameter's numbers; biases, which begin at zero, are given some. */
static float *numbers(fixture *f, d9d_param *p)
{
    const int64_t n = d9d_tensor_numel(&p->local.data);
    float *host = calloc((size_t)n, sizeof(*host));

    assert_non_null(host);
    assert_ok(d9d_tensor_to_f32(&p->local.data, host));
    if (p->spec.shape.ndim > 1)
        return host;
    for (int64_t i = 0; i < n; i++) {
        assert_true(host[i] == 0.0f);
        host[i] = (float)(i % 5) / 4.0f - 0.4f;
    }
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&p->local.data), host,
                                (uint64_t)n * sizeof(*host)));
    return host;
}

static void open_block(fixture *f, const d9d_block_ffn_shape *shape)
{
    const d9d_block_opts opts = {.dtype = D9D_F32, .init_std = 0.6};

    *f = (fixture){0};
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_block_ffn_init(&f->block, &opts, shape));
    assert_ok(d9d_module_bind(&f->block.module));
    assert_ok(d9d_module_materialise(&f->block.module, f->dev, false));
    assert_ok(d9d_module_reset(&f->block.module, 3));
    assert_ok(d9d_module_params(&f->block.module, &f->arena, &f->params));
    assert_in_range(f->params.n, 1, MOST);
    for (size_t i = 0; i < f->params.n; i++)
        f->host[i] = numbers(f, f->params.p[i]);
    for (int i = 0; i < T * H; i++)
        f->x[i] = (float)((i * 37 + 11) % 23 - 11) / 8.0f;
}

static void close_block(fixture *f)
{
    for (size_t i = 0; i < f->params.n; i++)
        free(f->host[i]);
    d9d_module_release(&f->block.module);
    d9d_arena_release(&f->arena);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
}

static void run(fixture *f)
{
    d9d_tensor x;
    d9d_var *in, *out;
    d9d_tape *t;

    assert_ok(d9d_tape_create(f->dev, &t));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(T, H), f->x, &x));
    assert_ok(d9d_tape_leaf(t, &x, false, &in));
    assert_ok(d9d_block_ffn_forward(&f->block, t, in, in, &out));
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out), f->y));
    d9d_tape_free(t);
    d9d_tensor_release(&x);
}

/* The numbers of a parameter; NULL: the block has none of that name. */
static const float *find(const fixture *f, const char *name)
{
    for (size_t i = 0; i < f->params.n; i++)
        if (strcmp(f->params.p[i]->name, name) == 0)
            return f->host[i];
    return NULL;
}

/* out = w in + b, for w [n_out, n_in]; b may be NULL. */
static void project(const float *w, const float *b, const double *in, int n_in, double *out,
                    int n_out)
{
    for (int o = 0; o < n_out; o++) {
        out[o] = b != NULL ? (double)b[o] : 0.0;
        for (int i = 0; i < n_in; i++)
            out[o] += (double)w[o * n_in + i] * in[i];
    }
}

static double act_of(const d9d_glu *f, double x)
{
    return f->act == D9D_ACT_GELU ? 0.5 * x * erfc(-x * sqrt(0.5)) : x / (1.0 + exp(-x));
}

static void check(const d9d_block_ffn_shape *shape)
{
    fixture f;

    open_block(&f, shape);
    assert_int_equal(f.params.n, (shape->ungated ? 2 : 3) * (shape->bias ? 2 : 1));
    assert_int_equal(find(&f, "gate_proj.weight") == NULL, shape->ungated);
    assert_int_equal(find(&f, "gate_proj.bias") != NULL, shape->bias && !shape->ungated);
    run(&f);
    for (int t = 0; t < T; t++) {
        double x[H], gate[I], up[I], y[H];

        for (int i = 0; i < H; i++)
            x[i] = (double)f.x[t * H + i];
        project(find(&f, "up_proj.weight"), find(&f, "up_proj.bias"), x, H, up, I);
        if (!shape->ungated)
            project(find(&f, "gate_proj.weight"), find(&f, "gate_proj.bias"), x, H, gate, I);
        for (int i = 0; i < I; i++)
            up[i] =
                shape->ungated ? act_of(&shape->glu, up[i]) : act_of(&shape->glu, gate[i]) * up[i];
        project(find(&f, "down_proj.weight"), find(&f, "down_proj.bias"), up, I, y, H);
        for (int i = 0; i < H; i++)
            assert_float_equal(f.y[t * H + i], (float)(y[i] + x[i]),
                               unit_device_tolerance(1e-5, 1e-4));
    }
    close_block(&f);
}

static void every_shape_is_its_formula(void **state)
{
    static const d9d_block_ffn_shape shapes[] = {
        {.hidden = H, .intermediate = I},
        {.hidden = H, .intermediate = I, .bias = true},
        {.hidden = H, .intermediate = I, .bias = true, .glu = {.act = D9D_ACT_GELU}},
        {.hidden = H, .intermediate = I, .ungated = true, .glu = {.act = D9D_ACT_GELU}},
        {.hidden = H, .intermediate = I, .ungated = true, .bias = true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check(&shapes[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shape_is_its_formula)};

    return cmocka_run_group_tests_name("block_ffn", tests, NULL, NULL);
}
