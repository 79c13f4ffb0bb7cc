/* test_muon.c - Muon against its formula in double: matrices, stacks of experts, what AdamW
 * updates, and which rank owns which matrix. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/rng.h"
#include "d9d/optim/optim.h"
#include "optim/matrix_plan.h"
#include "support/optimizer_config.h"
#include "support/unit.h"

/* A model of one layer.  The stack is [E, in, out]. */
enum { EMBED, WIDE, TALL, STACK, ROUTER, NORM, ADAPTED, PARAMS, STEPS = 4 };
static const struct {
    const char *name;
    d9d_shape shape;
    bool adaptable, muon;
} models[PARAMS] = {
    {"embed.weight", {2, {11, 7}}, true, false},
    {"layers.0.wide.weight", {2, {9, 31}}, true, true},
    {"layers.0.tall.weight", {2, {12, 5}}, true, true},
    {"layers.0.experts.weight", {3, {3, 6, 4}}, true, true},
    {"layers.0.router.gate.weight", {2, {3, 7}}, true, false},
    {"layers.0.norm.weight", {1, {7}}, false, false},
    {"layers.0.conv.weight", {2, {5, 3}}, false, false},
};

#define MUON                                                                                       \
    "{\"name\": \"muon\", \"lr\": 0.02, \"ns_dtype\": \"float32\", \"weight_decay\": 0.3, "        \
    "\"adamw\": {\"lr\": 0.01}"

typedef struct rig {
    d9d_device *dev;
    d9d_arena arena;
    d9d_module module;
    d9d_param param[PARAMS];
    d9d_params params;
    json_t *doc;
    d9d_union section;
    d9d_optimizer *opt;
    d9d_tensor scale;
} rig;

static d9d_status rig_create(rig *r, const char *config)
{
    D9D_TRY(optimizer_config_bind(config, &r->arena, &r->doc, &r->section));
    return d9d_optimizer_create(&r->section, r->dev, &r->params, NULL, 1, &r->opt);
}

static void rig_open(rig *r, d9d_dtype t)
{
    *r = (rig){0};
    assert_ok(d9d_device_open("cpu", &r->dev));
    d9d_module_init(&r->module);
    for (int i = 0; i < PARAMS; i++) {
        assert_ok(d9d_module_param(&r->module, models[i].name, &r->param[i], t, models[i].shape,
                                   D9D_INIT_NORMAL, 1.0f));
        r->param[i].spec.adaptable = models[i].adaptable;
    }
    assert_ok(d9d_module_bind(&r->module));
    assert_ok(d9d_module_materialise(&r->module, r->dev, true));
    assert_ok(d9d_module_reset(&r->module, 7));
    assert_ok(d9d_module_params(&r->module, &r->arena, &r->params));
    assert_ok(d9d_tensor_alloc(r->dev, D9D_F32, D9D_SCALAR, &r->scale));
}

static void rig_close(rig *r)
{
    d9d_optimizer_free(r->opt);
    d9d_tensor_release(&r->scale);
    d9d_module_release(&r->module);
    json_decref(r->doc);
    d9d_arena_release(&r->arena);
    d9d_device_close(r->dev);
}

static float grad_at(const d9d_param *p, int step, int64_t i)
{
    return d9d_rng_normal((d9d_rng){99, p->id + (uint64_t)step}, (uint64_t)i);
}

static void step(rig *r, int k, double lr, float scale)
{
    for (int i = 0; i < PARAMS; i++) {
        d9d_param *p = &r->param[i];
        float *g = d9d_tensor_data(&p->local.grad);

        for (int64_t j = 0; j < d9d_tensor_numel(&p->local.grad); j++)
            g[j] = grad_at(p, k, j);
        p->local.has_grad = true;
    }
    *(float *)d9d_tensor_data(&r->scale) = scale;
    assert_ok(d9d_optimizer_step(r->opt, lr, &r->scale));
}

/* --- the formula in double -------------------------------------------------------------------- */

/* y [m, n] = a [m, k] b [k, n], with strides. */
static void multiply(double *y, const double *a, int64_t a_row, int64_t a_col, const double *b,
                     int64_t b_row, int64_t b_col, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            y[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++)
                y[i * n + j] += a[i * a_row + l * a_col] * b[l * b_row + j * b_col];
        }
}

/* As torch does: of the transposed matrix where there are more rows than columns. */
static void orthogonalize(double *x, int64_t rows, int64_t cols)
{
    enum { MOST = 512 };
    static const double a = 3.4445, b = -4.775, c = 2.0315;
    static double y[MOST], gram[MOST], square[MOST], next[MOST];
    const int64_t m = rows > cols ? cols : rows, n = rows > cols ? rows : cols;
    double norm = 0;

    assert_true(rows * cols <= MOST);
    for (int64_t i = 0; i < rows * cols; i++)
        norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            y[i * n + j] = x[rows > cols ? j * cols + i : i * cols + j] / norm;
    for (int k = 0; k < 5; k++) {
        multiply(gram, y, n, 1, y, 1, n, m, m, n);
        multiply(square, gram, m, 1, gram, m, 1, m, m, m);
        for (int64_t i = 0; i < m * m; i++)
            gram[i] = b * gram[i] + c * square[i];
        multiply(next, gram, m, 1, y, n, 1, m, n, m);
        for (int64_t i = 0; i < m * n; i++)
            y[i] = a * y[i] + next[i];
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            x[rows > cols ? j * cols + i : i * cols + j] = y[i * n + j];
}

/* One step of a matrix of a linear layer with `out` outputs and `in` inputs. */
static void naive_step(double *p, double *m, const double *g, int64_t rows, int64_t cols,
                       double ratio, double lr)
{
    static double u[512];

    for (int64_t i = 0; i < rows * cols; i++) {
        m[i] = 0.95 * m[i] + 0.05 * g[i];
        u[i] = 0.05 * g[i] + 0.95 * m[i];
    }
    orthogonalize(u, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        p[i] = p[i] * (1 - lr * 0.3) - lr * ratio * u[i];
}

/* The parameter after STEPS steps of the rig, from its present value. */
static double *naive_run(const rig *r, int which, bool match_rms, const double *lr, double scale)
{
    const d9d_param *x = &r->param[which];
    const bool stack = which == STACK;
    const int64_t n = d9d_shape_numel(&x->spec.shape), rows = x->spec.shape.dim[stack],
                  cols = x->spec.shape.dim[stack + 1], size = rows * cols;
    const double out = (double)(stack ? cols : rows), in = (double)(stack ? rows : cols);
    const double ratio = match_rms ? 0.2 * sqrt(fmax(out, in)) : sqrt(fmax(1, out / in));
    double *p = calloc((size_t)n, sizeof(*p)), *m = calloc((size_t)n, sizeof(*m)),
           *g = calloc((size_t)n, sizeof(*g));

    for (int64_t i = 0; i < n; i++)
        p[i] = (double)((const float *)d9d_tensor_data(&x->local.data))[i];
    for (int k = 0; k < STEPS; k++) {
        for (int64_t i = 0; i < n; i++)
            g[i] = scale * (double)grad_at(x, k, i);
        for (int64_t at = 0; at < n; at += size)
            naive_step(p + at, m + at, g + at, rows, cols, ratio, lr[k]);
    }
    free(m);
    free(g);
    return p;
}

static void check_formula(const char *config, bool match_rms)
{
    const double lr[STEPS] = {0.02, 0.05, 0, 0.01};
    double *want[PARAMS] = {NULL};
    rig r;

    rig_open(&r, D9D_F32);
    assert_ok(rig_create(&r, config));
    for (int i = 0; i < PARAMS; i++)
        if (models[i].muon)
            want[i] = naive_run(&r, i, match_rms, lr, 0.5);
    for (int k = 0; k < STEPS; k++)
        step(&r, k, lr[k], 0.5f);
    for (int i = 0; i < PARAMS; i++) {
        const float *got = d9d_tensor_data(&r.param[i].local.data);

        for (int64_t j = 0; want[i] != NULL && j < d9d_tensor_numel(&r.param[i].local.data); j++)
            if (!(fabs((double)got[j] - want[i][j]) <= 5e-6 * (1 + fabs(want[i][j]))))
                fail_msg("%s, element %lld: %.9g, the formula gives %.9g", models[i].name,
                         (long long)j, (double)got[j], want[i][j]);
        free(want[i]);
    }
    rig_close(&r);
}

static void test_formula(void **state)
{
    (void)state;
    check_formula(MUON "}", false);
    check_formula(MUON ", \"adjust_lr_fn\": \"match_rms_adamw\"}", true);
}

/* --- AdamW for the rest ----------------------------------------------------------------------- */

static void check_equal(const d9d_param *a, const d9d_param *b)
{
    assert_memory_equal(d9d_tensor_data(&a->local.data), d9d_tensor_data(&b->local.data),
                        d9d_tensor_bytes(&a->local.data));
}

/* What is no matrix of a layer moves as under AdamW, to the bit, with its own learning rate. */
static void test_adamw_for_the_rest(void **state)
{
    rig r, adamw;

    (void)state;
    rig_open(&r, D9D_BF16);
    rig_open(&adamw, D9D_BF16);
    assert_ok(rig_create(&r, MUON "}"));
    assert_ok(rig_create(&adamw, "{\"name\": \"adamw\", \"lr\": 0.01}"));
    for (int k = 0; k < STEPS; k++) {
        step(&r, k, 0.02 / (k + 1), 0.5f);
        step(&adamw, k, 0.01 / (k + 1), 0.5f);
    }
    for (int i = 0; i < PARAMS; i++)
        if (!models[i].muon)
            check_equal(&r.param[i], &adamw.param[i]);
    rig_close(&r);
    rig_close(&adamw);
}

static void test_states(void **state)
{
    static const char *const names[] = {"embed.weight.exp_avg",
                                        "embed.weight.exp_avg_sq",
                                        "embed.weight.master_residual",
                                        "layers.0.wide.weight.momentum_buffer",
                                        "layers.0.wide.weight.master_residual",
                                        "layers.0.tall.weight.momentum_buffer",
                                        "layers.0.tall.weight.master_residual",
                                        "layers.0.experts.weight.momentum_buffer",
                                        "layers.0.experts.weight.master_residual",
                                        "layers.0.router.gate.weight.exp_avg"};
    rig r;

    (void)state;
    rig_open(&r, D9D_BF16);
    assert_ok(rig_create(&r, MUON "}"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const d9d_optimizer_state s = d9d_optimizer_state_at(r.opt, i);

        assert_string_equal(s.name, names[i]);
        assert_int_equal(s.residual, strstr(s.name, ".master_residual") != NULL);
        assert_int_equal(s.tensor->dtype, s.residual ? D9D_I16 : D9D_F32);
    }
    assert_int_equal(d9d_optimizer_state_count(r.opt), 3 * 2 + 4 * 3);
    rig_close(&r);
}

/* A master weight goes where the float32 weight goes, to the bit. */
static void test_masters(void **state)
{
    rig r, exact;

    (void)state;
    rig_open(&r, D9D_BF16);
    rig_open(&exact, D9D_F32);
    for (int i = 0; i < PARAMS; i++)
        d9d_tensor_elements_to_f32(D9D_BF16, d9d_tensor_data(&r.param[i].local.data),
                                   d9d_tensor_numel(&r.param[i].local.data),
                                   d9d_tensor_data(&exact.param[i].local.data));
    assert_ok(rig_create(&r, MUON "}"));
    assert_ok(rig_create(&exact, MUON "}"));
    for (int k = 0; k < STEPS; k++) {
        step(&r, k, 1e-4, 1);
        step(&exact, k, 1e-4, 1);
    }
    for (size_t i = 0; i < d9d_optimizer_state_count(r.opt); i++) {
        const d9d_optimizer_state s = d9d_optimizer_state_at(r.opt, i);
        const uint16_t *w = d9d_tensor_data(&s.param->shard.data);
        const int16_t *low = d9d_tensor_data(s.tensor);
        const uint32_t *want;

        if (!s.residual)
            continue;
        want = d9d_tensor_data(&exact.param[s.param - r.param].shard.data);
        for (int64_t j = 0; j < d9d_tensor_numel(s.tensor); j++)
            assert_int_equal(((uint32_t)w[j] << 16) + (uint32_t)(int32_t)low[j], want[j]);
    }
    rig_close(&r);
    rig_close(&exact);
}

/* A step that is skipped leaves weights and momentum. */
static void test_nan_scale(void **state)
{
    rig r, other;

    (void)state;
    rig_open(&r, D9D_F32);
    rig_open(&other, D9D_F32);
    assert_ok(rig_create(&r, MUON "}"));
    assert_ok(rig_create(&other, MUON "}"));
    step(&r, 0, 0.02, NAN);
    for (int i = 0; i < PARAMS; i++)
        check_equal(&r.param[i], &other.param[i]);
    step(&r, 1, 0.02, 1);
    step(&other, 1, 0.02, 1);
    check_equal(&r.param[WIDE], &other.param[WIDE]);
    rig_close(&r);
    rig_close(&other);
}

/* --- groups ----------------------------------------------------------------------------------- */

static void test_kind_of_a_group(void **state)
{
    d9d_buf text = {0};
    rig r;

    (void)state;
    rig_open(&r, D9D_F32);
    assert_ok(rig_create(&r,
                         MUON ", \"groups\": [{\"pattern\": \".*router.*\", \"kind\": \"muon\"}, "
                              "{\"pattern\": \".*wide.*\", \"kind\": \"adamw\"}]}"));
    assert_ok(d9d_optimizer_describe(r.opt, &text));
    assert_non_null(strstr(text.data, "muon: float32 weights; bytes a parameter: weights 4, "
                                      "gradients 4, momentum_buffer 4, in all 12, for 3 parameters "
                                      "of 153 elements"));
    assert_non_null(strstr(text.data, "adamw: float32 weights; bytes a parameter: weights 4, "
                                      "gradients 4, exp_avg 4, exp_avg_sq 4, in all 16, for 4 "
                                      "parameters of 378 elements"));
    assert_non_null(strstr(text.data, "group \".*router.*\": 1 parameter of 21 elements, lr_scale "
                                      "1, kind muon"));
    d9d_buf_release(&text);
    rig_close(&r);
}

static void test_errors(void **state)
{
    static const struct {
        const char *config, *sentence;
    } rows[] = {
        {MUON ", \"groups\": [{\"pattern\": \".*norm.*\", \"kind\": \"muon\"}]}",
         "Muon updates matrices and stacks of them, and layers.0.norm.weight has 1 dimension; give "
         "its group the kind adamw"},
        {"{\"name\": \"muon\", \"lr\": 0.02}", "set adamw.lr, or adjust_lr_fn match_rms_adamw"},
        {"{\"name\": \"muon\"}", "lr"},
        {MUON ", \"ns_steps\": 0}", "ns_steps"},
        {MUON ", \"ns_coefficients\": [1, 2]}", "ns_coefficients"},
        {MUON ", \"momentum\": 1}", "momentum"},
        {MUON ", \"betas\": [0.9, 0.9]}", "betas"},
        {"{\"name\": \"adamw\", \"lr\": 1, \"groups\": [{\"pattern\": \".*\", \"kind\": "
         "\"muon\"}]}",
         "optimizer.groups[0].kind: the optimizer adamw has no kind"},
    };
    rig r;

    (void)state;
    rig_open(&r, D9D_F32);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_fails_like(rig_create(&r, rows[i].config), D9D_ECONFIG, rows[i].sentence);
    rig_close(&r);
}

/* --- owners ----------------------------------------------------------------------------------- */

enum { RANKS = 4 };

/* Owners of the parameters WIDE and STACK, where each rank has a box of each. */
static void plan_make(const d9di_matrix_box wide[RANKS], const d9di_matrix_box stack[RANKS],
                      d9d_arena *a, d9di_matrix_plan *out)
{
    static d9d_param param[2];
    static d9d_param *list[2] = {&param[0], &param[1]};
    static const d9d_params params = {list, 2};
    static d9d_optimizer_update u[2];
    static d9di_matrix_box boxes[RANKS * 2];
    static int first_copy[RANKS * 2];
    static d9di_matrix_shards s;

    param[0].spec.shape = D9D_SHAPE(8, 6);
    param[1].spec.shape = D9D_SHAPE(6, 3, 4);
    s = (d9di_matrix_shards){
        .ranks = RANKS, .params = &params, .boxes = boxes, .first_copy = first_copy};
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 2; i++) {
            int first = 0;

            boxes[2 * r + i] = (i == 0 ? wide : stack)[r];
            while (memcmp(&boxes[2 * first + i], &boxes[2 * r + i], sizeof(boxes[0])) != 0)
                first++;
            first_copy[2 * r + i] = first;
        }
    u[0].param = &param[0];
    u[1].param = &param[1];
    assert_ok(d9di_matrix_plan_make(&s, u, 2, a, out));
    assert_int_equal(out->n_classes, 2);
    assert_int_equal(out->classes[0].n, 1);
    assert_int_equal(out->classes[1].n, 6);
}

/* Experts stay where they are; copies share the work; a divided matrix goes to a rank with a part.
 */
static void test_owners(void **state)
{
    static const d9di_matrix_box rows[RANKS] = {{{0, 0, 0}, {1, 3, 6}},
                                                {{0, 3, 0}, {1, 3, 6}},
                                                {{0, 6, 0}, {1, 2, 6}},
                                                {{0, 8, 0}, {1, 0, 6}}};
    static const d9di_matrix_box experts[RANKS] = {{{0, 0, 0}, {3, 3, 4}},
                                                   {{3, 0, 0}, {3, 3, 4}},
                                                   {{0, 0, 0}, {3, 3, 4}},
                                                   {{3, 0, 0}, {3, 3, 4}}};
    static const int owners[] = {2, 0, 2, 1, 3, 1}; /* rank 0 has the other matrix already */
    d9di_matrix_plan p;
    d9d_arena a = {0};
    int most[RANKS] = {0};

    (void)state;
    plan_make(rows, experts, &a, &p);
    assert_int_equal(p.classes[0].matrices[0].owner, 0);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(d9di_matrix_sender(p.shards, &p.classes[0].matrices[0], r), r);
    for (size_t i = 0; i < 6; i++) {
        const d9di_matrix *m = &p.classes[1].matrices[i];

        assert_int_equal(m->owner, owners[i]);
        assert_int_equal(m->place, most[m->owner]++);
        for (int r = 0; r < RANKS; r++)
            if (r % 2 == (i >= 3))
                assert_int_equal(d9di_matrix_sender(p.shards, m, r), m->owner);
    }
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),   cmocka_unit_test(test_adamw_for_the_rest),
        cmocka_unit_test(test_states),    cmocka_unit_test(test_masters),
        cmocka_unit_test(test_nan_scale), cmocka_unit_test(test_kind_of_a_group),
        cmocka_unit_test(test_errors),    cmocka_unit_test(test_owners),
    };

    return cmocka_run_group_tests_name("muon", tests, NULL, NULL);
}
