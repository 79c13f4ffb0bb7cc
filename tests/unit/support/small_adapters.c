/* small_adapters.c - see small_adapters.h. */
#include "small_adapters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "fd.h"
#include "unit.h"

enum { T = 5, IN = 12, OUT = 7, FIRST = 2, SOME = 3 };

/* --- gradients ---------------------------------------------------------------------------------
 */

typedef struct kind_arg {
    const d9d_adapter_kind *kind;
    int64_t r, first, n;
} kind_arg;

/* Parameters: W, a bias, those of the kind in their order. */
static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const kind_arg *k = e->of->arg;
    d9d_param_adapter adapter = {.r = k->r,
                                 .alpha = 2.0 * (double)k->r,
                                 .scale = 2,
                                 .forward = k->kind->forward,
                                 .kind = k->kind,
                                 .name = k->kind->name,
                                 .reads_matrix = k->kind->reads_matrix};
    const d9d_op_weight_slice of = {e->param[0], k->first, k->n, e->param[1]};
    size_t next = 2;
    d9d_status st;

    (void)n_in, (void)n_out;
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++) {
        if (k->kind->params[i].name == NULL)
            continue;
        adapter.param[i] = e->param[next++];
        adapter.by_output |= k->kind->params[i].dim[0] == D9D_ADAPTER_OUT ? 1u << i : 0;
    }
    e->param[0]->peft.adapter = &adapter;
    st = d9d_op_linear_multi(t, in[0], NULL, &of, 1, out);
    e->param[0]->peft.adapter = NULL;
    return st;
}

static void gradients_check(const d9d_adapter_kind *kind, int64_t r, int64_t first, int64_t n,
                            char *fault)
{
    const kind_arg arg = {kind, r, first, n};
    fd_case c = {.name = kind->name,
                 .run = run,
                 .arg = &arg,
                 .in = {FD(T, IN)},
                 .param = {FD(OUT, IN), FD(OUT)}};
    size_t next = 2;
    double error;

    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (kind->params[i].name != NULL)
            c.param[next++] = (fd_array){
                .shape = d9d_adapter_shape(kind, i, &D9D_SHAPE(OUT, IN), r), .scale = 0.3f};
    error = fd_gradient_error(&c);
    if (!(error <= 1))
        (void)snprintf(fault, ADAPTER_FAULT_MAX,
                       "%s: gradients of %lld rows are off by %g of what is tolerated", kind->name,
                       (long long)n, error);
}

/* --- a layer -----------------------------------------------------------------------------------
 */

typedef struct adapted {
    d9d_module module;
    d9d_param weight;
    d9d_device *dev;
    d9d_tape *tape;
} adapted;

static void adapted_open(adapted *l, const d9d_adapter_kind *kind, int64_t r)
{
    d9d_param *list[] = {&l->weight};
    const d9d_params all = {list, 1};

    memset(l, 0, sizeof(*l));
    d9d_module_init(&l->module);
    assert_ok(d9d_module_param(&l->module, "weight", &l->weight, D9D_F32, D9D_SHAPE(OUT, IN),
                               D9D_INIT_NORMAL, 1));
    l->weight.spec.adaptable = true;
    assert_ok(d9d_adapter_add(&l->module, kind,
                              &(d9d_adapter_opts){.r = r, .alpha = 2.0 * (double)r, .seed = 7}));
    assert_ok(d9d_device_open("cpu", &l->dev));
    assert_ok(d9d_tape_create(l->dev, &l->tape));
    assert_ok(d9d_module_bind(&l->module));
    assert_ok(d9d_module_materialise(&l->module, l->dev, false));
    assert_ok(d9d_module_reset(&l->module, 3));
    assert_ok(d9d_adapter_start(&l->weight, l->dev));
    assert_ok(d9d_adapter_shared_start(&all, &all, l->dev));
}

static void adapted_close(adapted *l)
{
    d9d_tape_free(l->tape);
    d9d_module_release(&l->module);
    d9d_device_close(l->dev);
}

/* y [T, OUT] of x, with or without the adapter. */
static void adapted_run(adapted *l, const float *x, bool with, float *y)
{
    d9d_param_adapter *adapter = l->weight.peft.adapter;
    d9d_tensor host;
    d9d_var *in, *out;

    assert_ok(d9d_tensor_from_host(l->dev, D9D_F32, D9D_SHAPE(T, IN), x, &host));
    assert_ok(d9d_tape_leaf(l->tape, &host, false, &in));
    l->weight.peft.adapter = with ? adapter : NULL;
    assert_ok(d9d_op_linear(l->tape, in, &l->weight, &out));
    l->weight.peft.adapter = adapter;
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(out), y));
    d9d_tensor_release(&host);
    d9d_tape_reset(l->tape);
}

static void beginning_check(const d9d_adapter_kind *kind, int64_t r, char *fault)
{
    float *x = array_random(D9D_F32, (int64_t)T * IN, 5, 1), with[T * OUT], without[T * OUT];
    adapted l;

    adapted_open(&l, kind, r);
    adapted_run(&l, x, true, with);
    adapted_run(&l, x, false, without);
    for (int i = 0; i < T * OUT; i++)
        if (with[i] != without[i])
            (void)snprintf(fault, ADAPTER_FAULT_MAX, "%s: a new adapter changes y", kind->name);
    adapted_close(&l);
    free(x);
}

/* The numbers of a parameter, drawn; freed by the caller. */
static float *numbers_draw(const adapted *l, int i)
{
    d9d_param *p = l->weight.peft.adapter->param[i];
    const int64_t n = d9d_shape_numel(&p->spec.shape);
    float *v = array_random(D9D_F32, n, 40 + (uint64_t)i, 0.3);

    assert_ok(
        d9d_device_upload(l->dev, d9d_tensor_data(&p->local.data), v, (uint64_t)n * sizeof(*v)));
    return v;
}

static void merge_check(const d9d_adapter_kind *kind, int64_t r, char *fault)
{
    d9d_adapter_arrays arrays = {.in = IN, .out = OUT, .r = r, .scale = 2};
    float *x = array_random(D9D_F32, (int64_t)T * IN, 5, 1), *drawn[D9D_ADAPTER_PARAMS] = {NULL},
          y[T * OUT], w[OUT * IN];
    double off = 0;
    adapted l;

    adapted_open(&l, kind, r);
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        if (kind->params[i].name != NULL)
            arrays.v[i] = drawn[i] = numbers_draw(&l, i);
    adapted_run(&l, x, true, y);
    assert_ok(d9d_tensor_to_f32(&l.weight.local.data, w));
    for (int o = 0; o < OUT; o++) {
        assert_ok(kind->merge(&arrays, o, w + (size_t)o * IN));
        for (int t = 0; t < T; t++) {
            double want = 0;

            for (int j = 0; j < IN; j++)
                want += (double)x[t * IN + j] * (double)w[o * IN + j];
            off = fmax(off, fabs(y[t * OUT + o] - want) / (1 + fabs(want)));
        }
    }
    if (!(off <= 1e-5))
        (void)snprintf(fault, ADAPTER_FAULT_MAX, "%s: merged it is off by %g", kind->name, off);
    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        free(drawn[i]);
    adapted_close(&l);
    free(x);
}

const char *adapter_kind_fault(const d9d_adapter_kind *kind, int64_t r,
                               char text[ADAPTER_FAULT_MAX])
{
    text[0] = '\0';
    assert_ok(d9d_adapter_kind_check(kind));
    gradients_check(kind, r, 0, OUT, text);
    if (text[0] == '\0')
        gradients_check(kind, r, FIRST, SOME, text);
    if (text[0] == '\0')
        beginning_check(kind, r, text);
    if (text[0] == '\0')
        merge_check(kind, r, text);
    return text;
}
