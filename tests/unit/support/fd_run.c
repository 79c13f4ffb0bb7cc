/* fd_run.c - see fd_run.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/rng.h"
#include "device/pool.h"
#include "fd_run.h"
#include "unit.h"
#include "unit_device.h"

static const fd_array *array_of(const fd_env *e, size_t i)
{
    return i < e->n_in ? &e->of->in[i] : &e->of->param[i - e->n_in];
}

static bool is_given(const fd_array *a)
{
    return a->shape.ndim > 0;
}

/* --- environment ------------------------------------------------------------------- */

void fd_env_open(fd_env *e, const fd_case *c)
{
    memset(e, 0, sizeof(*e));
    e->of = c;
    assert_ok(d9d_device_open(unit_device_name(), &e->dev));
    while (e->n_in < FD_MAX && is_given(&c->in[e->n_in]))
        e->n_in++;
    while (e->n_param < FD_MAX && is_given(&c->param[e->n_param])) {
        e->param[e->n_param] = &e->storage[e->n_param];
        e->n_param++;
    }
    for (size_t i = 0; i < FD_MAX && c->constant[i].host != NULL; i++)
        assert_ok(d9d_tensor_from_host(e->dev, c->constant[i].dtype, c->constant[i].shape,
                                       c->constant[i].host, &e->constant[i]));
}

static void drop_params(fd_env *e)
{
    for (size_t i = 0; i < e->n_param; i++) {
        d9d_tensor_release(&e->param[i]->local.data);
        d9d_tensor_release(&e->param[i]->local.grad);
    }
}

void fd_env_close(fd_env *e)
{
    drop_params(e);
    for (size_t i = 0; i < FD_MAX; i++)
        d9d_tensor_release(&e->constant[i]);
    assert_int_equal(d9d_device_memory(e->dev).in_use, 0);
    d9d_device_close(e->dev);
}

/* --- numbers ------------------------------------------------------------------------- */

static float *new_floats(int64_t n)
{
    float *x = malloc(sizeof(*x) * (size_t)(n + 1));

    assert_non_null(x);
    return x;
}

static float round_bf16(float x)
{
    return d9d_bf16_to_f32(d9d_bf16_from_f32(x));
}

static float *draw(d9d_rng r, int64_t n, float scale)
{
    float *x = new_floats(n);

    for (int64_t i = 0; i < n; i++)
        x[i] = round_bf16((scale != 0 ? scale : 1.0f) * d9d_rng_normal(r, (uint64_t)i));
    return x;
}

void fd_numbers_draw(fd_env *e, fd_numbers *x)
{
    const uint64_t seed = d9d_hash_u64(e->of->name, strlen(e->of->name));
    fd_numbers out;

    memset(x, 0, sizeof(*x));
    x->n = e->n_in + e->n_param;
    for (size_t i = 0; i < x->n; i++) {
        const fd_array *a = array_of(e, i);

        x->len[i] = d9d_shape_numel(&a->shape);
        x->x[i] = draw((d9d_rng){seed, i}, x->len[i], a->scale);
        for (int64_t k = 0; a->host != NULL && k < x->len[i]; k++)
            x->x[i][k] = round_bf16(a->host[k]);
    }
    fd_forward(e, x, &(fd_opts){0}, &out);
    x->out_len = out.out_len;
    x->out = draw((d9d_rng){seed, FD_ARRAYS}, x->out_len, 1.0f);
    fd_numbers_free(&out);
}

void fd_numbers_free(fd_numbers *x)
{
    for (size_t i = 0; i < x->n; i++)
        free(x->x[i]);
    free(x->out);
    memset(x, 0, sizeof(*x));
}

static float *download(const d9d_tensor *t)
{
    float *x = new_floats(d9d_tensor_numel(t));

    assert_ok(d9d_tensor_to_f32(t, x));
    return x;
}

static d9d_status upload(d9d_device *dev, d9d_dtype t, d9d_shape shape, const float *x,
                         d9d_tensor *out)
{
    const int64_t n = d9d_shape_numel(&shape);
    uint16_t *half;
    d9d_status st;

    if (t == D9D_F32)
        return d9d_tensor_from_host(dev, t, shape, x, out);
    half = malloc(sizeof(*half) * (size_t)(n + 1));
    assert_non_null(half);
    for (int64_t i = 0; i < n; i++)
        half[i] = d9d_bf16_from_f32(x[i]);
    st = d9d_tensor_from_host(dev, t, shape, half, out);
    free(half);
    return st;
}

/* --- runs ----------------------------------------------------------------------------- */

static d9d_dtype type_of(const fd_array *a, const fd_opts *opts)
{
    return a->float32 ? D9D_F32 : opts->dtype;
}

static bool wants(const fd_opts *opts, size_t i)
{
    return opts->frozen != (int)i + 1;
}

/* Parameters with the numbers; gradients full of what must not be read. */
static void make_params(fd_env *e, const fd_numbers *x, const fd_opts *opts)
{
    drop_params(e);
    for (size_t i = 0; i < e->n_param; i++) {
        const fd_array *a = &e->of->param[i];
        d9d_param *p = e->param[i];

        *p = (d9d_param){.name = "w",
                         .spec.shape = a->shape,
                         .shard.shape = a->shape,
                         .spec.dtype = type_of(a, opts),
                         .spec.grad_dtype = opts->grad_dtype,
                         .spec.trainable = wants(opts, e->n_in + i)};
        assert_ok(upload(e->dev, p->spec.dtype, a->shape, x->x[e->n_in + i], &p->local.data));
        assert_ok(d9d_tensor_alloc(e->dev, p->spec.grad_dtype, a->shape, &p->local.grad));
        assert_ok(unit_device_set(e->dev, d9d_tensor_data(&p->local.grad), 0xff,
                                  d9d_tensor_bytes(&p->local.grad)));
    }
}

static d9d_status make_leaves(fd_env *e, const fd_numbers *x, const fd_opts *opts, d9d_tape *t,
                              d9d_var **in)
{
    for (size_t i = 0; i < e->n_in; i++) {
        const fd_array *a = &e->of->in[i];
        d9d_tensor v;
        d9d_status st;

        D9D_TRY(upload(e->dev, type_of(a, opts), a->shape, x->x[i], &v));
        st = d9d_tape_leaf(t, &v, wants(opts, i), &in[i]);
        d9d_tensor_release(&v);
        D9D_TRY(st);
    }
    return D9D_OK;
}

static d9d_status run_checkpoint(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                                 d9d_var **out, size_t n_out)
{
    fd_env *e = self;

    return d9d_tape_recompute(t, e->of->run, e, in, n_in, out, n_out);
}

static d9d_status run_nested(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                             d9d_var **out, size_t n_out)
{
    return d9d_tape_recompute(t, run_checkpoint, self, in, n_in, out, n_out);
}

static d9d_status run_wrapped(fd_env *e, fd_wrap wrap, d9d_tape *t, d9d_var *const *in,
                              d9d_var **out)
{
    const d9d_tape_forward_fn ways[FD_WRAPS] = {e->of->run, run_checkpoint, run_nested};

    return ways[wrap](e, t, in, e->n_in, out, 1);
}

void fd_forward(fd_env *e, const fd_numbers *x, const fd_opts *opts, fd_numbers *out)
{
    d9d_var *in[FD_MAX], *y;
    uint64_t with_leaves, block;
    d9d_tape *t;

    make_params(e, x, opts);
    assert_ok(d9d_tape_create(e->dev, &t));
    d9d_tape_set_recording(t, false);
    assert_ok(make_leaves(e, x, opts, t, in));
    with_leaves = d9d_device_memory(e->dev).in_use;
    assert_ok(run_wrapped(e, opts->wrap, t, in, &y));
    assert_false(d9d_var_needs_grad(y));
    d9d_tape_release_since(t, e->n_in, &y, 1);
    /* Only the output is left; a view has no memory of its own. */
    (void)d9di_pool_class(d9d_tensor_bytes(d9d_var_tensor(y)), &block);
    assert_in_range(d9d_device_memory(e->dev).in_use - with_leaves, 0, block);
    memset(out, 0, sizeof(*out));
    out->out_len = d9d_tensor_numel(d9d_var_tensor(y));
    out->out = download(d9d_var_tensor(y));
    d9d_tape_free(t);
}

/* One pass over a fresh tape; gradients of the leaves are in `leaf`. */
static d9d_status pass(fd_env *e, const fd_numbers *x, const fd_opts *opts, d9d_tape *t,
                       fd_numbers *out, d9d_tensor *leaf)
{
    d9d_var *in[FD_MAX], *y;
    d9d_tensor seed;
    d9d_status st;

    D9D_TRY(make_leaves(e, x, opts, t, in));
    D9D_TRY(run_wrapped(e, opts->wrap, t, in, &y));
    D9D_TRY(upload(e->dev, d9d_var_tensor(y)->dtype, d9d_var_tensor(y)->shape, x->out, &seed));
    free(out->out);
    out->out_len = d9d_tensor_numel(d9d_var_tensor(y));
    out->out = download(d9d_var_tensor(y));
    d9d_tape_release_since(t, 0, NULL, 0);
    st = d9d_tape_backward(t, &y, &seed, 1, opts->halves ? D9D_BACKWARD_DGRAD : D9D_BACKWARD_FULL);
    if (st == D9D_OK && opts->halves)
        st = d9d_tape_backward(t, NULL, NULL, 0, D9D_BACKWARD_WGRAD);
    /* The seed is the caller's: it must be as it was. */
    if (st == D9D_OK) {
        float *again = download(&seed);

        assert_memory_equal(again, x->out, sizeof(float) * (size_t)x->out_len);
        free(again);
    }
    d9d_tensor_release(&seed);
    for (size_t i = 0; i < e->n_in && st == D9D_OK; i++)
        d9d_var_grad(in[i], &leaf[i]);
    return st;
}

static void collect(fd_env *e, const fd_numbers *x, const d9d_tensor *leaf, fd_numbers *out)
{
    out->n = x->n;
    for (size_t i = 0; i < x->n; i++) {
        const d9d_param *p = i < e->n_in ? NULL : e->param[i - e->n_in];
        const d9d_tensor *g = p != NULL ? &p->local.grad : &leaf[i];
        const bool there = p != NULL ? p->local.has_grad : g->storage != NULL;

        out->len[i] = x->len[i];
        out->x[i] = there ? download(g) : NULL;
    }
}

d9d_status fd_backward(fd_env *e, const fd_numbers *x, const fd_opts *opts, fd_numbers *out)
{
    d9d_tensor leaf[FD_MAX] = {{0}};
    d9d_status st = D9D_OK;
    uint64_t before;
    d9d_tape *t;

    memset(out, 0, sizeof(*out));
    make_params(e, x, opts);
    before = d9d_device_memory(e->dev).in_use;
    if (opts->limit > 0)
        d9d_device_set_limit(e->dev, before + opts->limit);
    assert_ok(d9d_tape_create(e->dev, &t));
    for (int i = 0; i < (opts->times > 0 ? opts->times : 1) && st == D9D_OK; i++) {
        for (size_t k = 0; k < e->n_in; k++)
            d9d_tensor_release(&leaf[k]);
        d9d_tape_reset(t);
        st = pass(e, x, opts, t, out, leaf);
    }
    if (st == D9D_OK)
        collect(e, x, leaf, out);
    else
        fd_numbers_free(out);
    for (size_t k = 0; k < e->n_in; k++)
        d9d_tensor_release(&leaf[k]);
    d9d_tape_free(t);
    d9d_device_set_limit(e->dev, UINT64_MAX);
    assert_int_equal(d9d_device_memory(e->dev).in_use, before);
    return st;
}

uint64_t fd_kept(fd_env *e, const fd_numbers *x)
{
    d9d_var *in[FD_MAX], *y;
    uint64_t before, saved;
    d9d_tape *t;

    make_params(e, x, &(fd_opts){0});
    before = d9d_device_memory(e->dev).in_use;
    assert_ok(d9d_tape_create(e->dev, &t));
    assert_ok(make_leaves(e, x, &(fd_opts){0}, t, in));
    assert_ok(e->of->run(e, t, in, e->n_in, &y, 1));
    d9d_tape_release_since(t, 0, NULL, 0);
    saved = d9d_device_memory(e->dev).in_use - before;
    d9d_tape_free(t);
    assert_int_equal(d9d_device_memory(e->dev).in_use, before);
    return saved;
}
