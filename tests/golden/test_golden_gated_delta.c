/* test_golden_gated_delta.c - the gated delta net compared with transformers'
 * Qwen3NextGatedDeltaNet: output and every gradient, whole sequences and packed documents.
 * Tolerance: float32 1e-5; bfloat16 1.5 times the error of transformers' own bfloat16, where there
 * are enough numbers for that. */
#include "support/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/nn/block.h"
#include "support/unit_device.h"
#include "support/vectors.h"

enum { FEW = 16 };

typedef struct fixture {
    d9d_dtype dtype;
    const char *name; /* of the case */
    const json_t *options;
    d9d_safetensors_file *file;
    d9d_device *dev;
    d9d_tape *tape;
    d9d_block_gated_delta block;
    d9d_tensor positions, segments; /* without data: of whole rows */
} fixture;

static int64_t number(const fixture *f, const char *key)
{
    const json_t *v = json_object_get(f->options, key);

    assert_non_null(v);
    return json_integer_value(v);
}

/* The file's array on the device, of the type that is tested. */
static d9d_tensor read(const fixture *f, const char *name)
{
    const d9d_safetensors_tensor *t = vectors_find(f->file, name);
    d9d_shape shape = {.ndim = t->ndim};
    d9d_tensor out;
    float *host;
    size_t n;

    memcpy(shape.dim, t->shape, sizeof(shape.dim));
    host = vectors_f32(f->file, name, &n);
    for (size_t i = 0; i < n && f->dtype == D9D_BF16; i++)
        ((uint16_t *)host)[i] = d9d_bf16_from_f32(host[i]);
    assert_ok(d9d_tensor_from_host(f->dev, f->dtype, shape, host, &out));
    free(host);
    return out;
}

static double limit_of(const fixture *f, const char *name)
{
    const json_t *theirs = json_object_get(json_object_get(f->options, "bfloat16"), name);

    assert_non_null(theirs);
    return f->dtype == D9D_BF16 ? 1.5 * json_real_value(theirs) : unit_device_tolerance(1e-5, 1e-4);
}

static void compare(const fixture *f, const char *name, const d9d_tensor *got)
{
    const double limit = limit_of(f, name);
    double distance;
    float *want, *have;
    size_t n;

    want = vectors_f32(f->file, name, &n);
    assert_int_equal(d9d_tensor_numel(got), n);
    have = malloc(sizeof(*have) * (n + 1));
    assert_non_null(have);
    assert_ok(d9d_tensor_to_f32(got, have));
    distance = vectors_distance(have, want, n, 1e-30);
    if (!(distance <= limit) && (f->dtype == D9D_F32 || n >= FEW))
        fail_msg("%s, %s: %s is %g away, %g is tolerated", f->name, d9d_dtype_name(f->dtype), name,
                 distance, limit);
    free(want);
    free(have);
}

static d9d_status fill(void *arg, d9d_param *p)
{
    const fixture *f = arg;
    d9d_tensor x = read(f, p->name);

    d9d_tensor_release(&p->local.data);
    p->local.data = x;
    return D9D_OK;
}

static d9d_status compare_grad(void *arg, d9d_param *p)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "d%s", p->name);
    assert_true(p->local.has_grad);
    compare(arg, name, &p->local.grad);
    return D9D_OK;
}

/* Positions of zeros: the block takes their shape.  Documents of the case. */
static void make_rows(fixture *f, const d9d_tensor *x)
{
    const json_t *documents = json_object_get(f->options, "documents");
    const int64_t b = x->shape.dim[0], s = x->shape.dim[1], n = (int64_t)json_array_size(documents);
    int32_t *zeros = calloc((size_t)(b * s), sizeof(*zeros)), at = 0;
    d9d_segment *list = calloc((size_t)n + 1, sizeof(*list));

    assert_non_null(zeros);
    assert_non_null(list);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(b, s), zeros, &f->positions));
    for (int64_t i = 0; i < n; i++) {
        const int32_t len = (int32_t)json_integer_value(json_array_get(documents, (size_t)i));

        list[i] = (d9d_segment){at, len, at, len};
        at += len;
    }
    if (n > 0)
        assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(n, 4), list, &f->segments));
    free(zeros);
    free(list);
}

static void open_case(fixture *f)
{
    const d9d_block_opts opts = {.dtype = f->dtype};
    const d9d_block_gated_delta_shape shape = {
        .hidden = number(f, "hidden"),
        .key_heads = number(f, "key_heads"),
        .value_heads = number(f, "value_heads"),
        .key_dim = number(f, "key_dim"),
        .value_dim = number(f, "value_dim"),
        .conv_width = number(f, "conv"),
        .norm_eps = (float)json_real_value(json_object_get(f->options, "eps"))};

    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_tape_create(f->dev, &f->tape));
    assert_ok(d9d_block_gated_delta_init(&f->block, &opts, &shape));
    assert_ok(d9d_module_bind(&f->block.module));
    assert_ok(d9d_module_materialise(&f->block.module, f->dev, true));
    assert_ok(d9d_module_each(&f->block.module, fill, f));
}

static void close_case(fixture *f)
{
    d9d_tape_free(f->tape);
    d9d_module_release(&f->block.module);
    d9d_tensor_release(&f->positions);
    d9d_tensor_release(&f->segments);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
}

static void check_case(fixture *f)
{
    d9d_tensor x, dy, g;
    d9d_var *in, *y;

    open_case(f);
    x = read(f, "x");
    dy = read(f, "dy");
    make_rows(f, &x);
    assert_ok(d9d_tape_leaf(f->tape, &x, true, &in));
    assert_ok(d9d_block_gated_delta_forward(&f->block, f->tape, in, &f->positions,
                                            f->segments.storage != NULL ? &f->segments : NULL, NULL,
                                            NULL, &y));
    assert_ok(d9d_op_reshape(f->tape, y, x.shape, &y));
    compare(f, "y", d9d_var_tensor(y));
    assert_ok(d9d_tape_backward(f->tape, &y, &dy, 1, D9D_BACKWARD_FULL));
    d9d_var_grad(in, &g);
    compare(f, "dx", &g);
    assert_ok(d9d_module_each(&f->block.module, compare_grad, f));
    d9d_tensor_release(&g);
    d9d_tensor_release(&x);
    d9d_tensor_release(&dy);
    close_case(f);
}

static void check_all(d9d_dtype t)
{
    json_t *all;
    int cases = 0;

    assert_ok(d9d_json_read(vectors_path("delta", "cases.json"), 1 << 20, &all));
    for (void *at = json_object_iter(all); at != NULL; at = json_object_iter_next(all, at)) {
        fixture f = {
            .dtype = t, .name = json_object_iter_key(at), .options = json_object_iter_value(at)};
        char path[64];

        (void)snprintf(path, sizeof(path), "%s.safetensors", f.name);
        assert_ok(d9d_safetensors_open(vectors_path("delta", path), &f.file));
        check_case(&f);
        d9d_safetensors_close(f.file);
        cases++;
    }
    assert_true(cases >= 4);
    json_decref(all);
}

static void equals_transformers(void **state)
{
    (void)state;
    check_all(D9D_F32);
}

static void bfloat16_is_near(void **state)
{
    (void)state;
    check_all(D9D_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_transformers),
        cmocka_unit_test(bfloat16_is_near),
    };

    return cmocka_run_group_tests_name("golden_delta", tests, NULL, NULL);
}
