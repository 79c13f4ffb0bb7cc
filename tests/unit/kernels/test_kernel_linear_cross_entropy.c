/* The fused head and loss against all logits in double. */
#include "support/arrays.h"
#include "support/host_kernels.h"
#include "support/unit.h"
#include "support/unit_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IGNORE = -100, MOST_SPLITS = 3 };

typedef struct call {
    d9d_linear_cross_entropy_dims n;
    d9d_dtype gt;
    int64_t v[MOST_SPLITS], all_v;
    float beta[MOST_SPLITS];
    int32_t *targets;
    void *hidden, *unit, *w[MOST_SPLITS], *dhidden, *dw_all, *dw[MOST_SPLITS];
    bool with_bias;
    void *bias, *db; /* of calls with a bias */
    float *loss, *lse, *dloss;
} call;

static void run_forward(void *arg)
{
    call *p = arg;

    assert_int_equal(
        host_kernels()->loss->linear_cross_entropy(NULL, &p->n, p->loss, p->lse, p->unit, p->hidden,
                                                   (const void *const *)p->w, p->targets),
        D9D_OK);
}
static void run_dgrad(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->loss->linear_cross_entropy_dgrad(
                         NULL, p->n.t, p->dhidden, p->dloss, p->unit, p->n.rows, p->n.h),
                     D9D_OK);
}
static void run_wgrad(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->loss->linear_cross_entropy_wgrad(
                         NULL, &p->n, p->gt, p->dw, p->beta, p->dloss, p->lse, p->hidden,
                         (const void *const *)p->w, p->targets),
                     D9D_OK);
}

static void run_once(void *arg)
{
    call *p = arg;

    assert_int_equal(host_kernels()->loss->linear_cross_entropy_fwd_bwd(
                         NULL, &p->n, p->gt, p->loss, p->unit, p->dw, p->beta, p->hidden,
                         (const void *const *)p->w, p->targets),
                     D9D_OK);
}

static double weight(const call *p, int64_t id, int64_t i)
{
    int s = 0;

    for (; id >= p->v[s]; s++)
        id -= p->v[s];
    return array_get(p->n.t, p->w[s], id * p->n.h + i);
}

/* dw of all splits is one array, as dw_all is; db [V] is of calls with a bias. */
static void naive(const call *p, double *loss, double *dh, double *dw, double *db)
{
    double *logit = calloc((size_t)p->all_v + 1, sizeof(*logit));
    const double cap = (double)p->n.softcap;
    int64_t h = p->n.h;

    for (int64_t r = 0; r < p->n.rows; r++) {
        double most = -INFINITY, sum = 0.0;

        if (p->targets[r] == IGNORE)
            continue;
        for (int64_t v = 0; v < p->all_v; v++) {
            logit[v] = p->bias != NULL ? array_get(p->n.t, p->bias, v) : 0.0;
            for (int64_t i = 0; i < h; i++)
                logit[v] += array_get(p->n.t, p->hidden, r * h + i) * weight(p, v, i);
            logit[v] = cap > 0.0 ? cap * tanh(logit[v] / cap) : logit[v];
            most = logit[v] > most ? logit[v] : most;
        }
        for (int64_t v = 0; v < p->all_v; v++)
            sum += exp(logit[v] - most);
        loss[r] = most + log(sum) - logit[p->targets[r]];
        for (int64_t v = 0; v < p->all_v; v++) {
            double d = (exp(logit[v] - most) / sum - (v == p->targets[r])) * (double)p->dloss[r];

            d *= cap > 0.0 ? 1.0 - logit[v] * logit[v] / (cap * cap) : 1.0;
            if (p->bias != NULL)
                db[v] += d;
            for (int64_t i = 0; i < h; i++) {
                dh[r * h + i] += d * weight(p, v, i);
                dw[v * h + i] += d * array_get(p->n.t, p->hidden, r * h + i);
            }
        }
    }
    free(logit);
}

static void make(call *p)
{
    int64_t first = 0;

    p->n.v = p->v;
    p->n.ignore = IGNORE;
    for (int i = 0; i < p->n.n_split; i++)
        p->all_v += p->v[i];
    p->dw_all = array_poison(p->gt, p->all_v * p->n.h);
    for (int i = 0; i < p->n.n_split; i++) {
        p->w[i] = array_random(p->n.t, p->v[i] * p->n.h, 5 + (uint64_t)i, 1.0);
        p->dw[i] = (char *)p->dw_all + (size_t)(first * p->n.h) * d9d_dtype_size(p->gt);
        first += p->v[i];
    }
    if (p->with_bias) {
        p->n.bias = p->bias = array_random(p->n.t, p->all_v, 4, 1.0);
        p->db = array_random(p->gt, p->all_v, 4, 1.0);
    }
    p->hidden = array_random(p->n.t, p->n.rows * p->n.h, 1, 1.0);
    p->unit = array_poison(p->n.t, p->n.rows * p->n.h);
    p->dhidden = array_poison(p->n.t, p->n.rows * p->n.h);
    p->dloss = array_random(D9D_F32, p->n.rows, 2, 1.0);
    p->loss = array_poison(D9D_F32, p->n.rows);
    p->lse = array_poison(D9D_F32, p->n.rows);
    p->targets = calloc((size_t)p->n.rows + 1, sizeof(*p->targets));
    for (int64_t r = 0; r < p->n.rows; r++)
        p->targets[r] = r % 4 == 1 ? IGNORE : (int32_t)(r * 7919 % p->all_v);
}

static void release(call *p)
{
    void *parts[] = {p->hidden, p->unit, p->dhidden, p->dw_all, p->dloss,
                     p->loss,   p->lse,  p->targets, p->bias,   p->db};

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        free(parts[i]);
    for (int i = 0; i < p->n.n_split; i++)
        free(p->w[i]);
}

/* Loss and gradients at once are those of ones, in rounds of a few tokens too. */
static void check_once(call *p)
{
    int64_t n_h = p->n.rows * p->n.h, n_w = p->all_v * p->n.h;
    double *loss = calloc((size_t)p->n.rows + 1, sizeof(*loss)),
           *dh = calloc((size_t)n_h + 1, sizeof(*dh)), *dw = calloc((size_t)n_w + 1, sizeof(*dw));
    void *before = array_random(p->gt, n_w, 3, 1.0);
    const double tolerance = p->n.t == D9D_F32 ? 3e-5 : 2e-2;

    for (int64_t i = 0; i < p->n.rows; i++)
        p->dloss[i] = 1.0f;
    naive(p, loss, dh, dw, NULL);
    for (int64_t i = 0; i < n_w && p->beta[0] != 0.0f; i++)
        dw[i] += array_get(p->gt, before, i);
    for (p->n.scratch = 0; p->n.scratch <= 1; p->n.scratch++) {
        array_same_for_threads(run_once, p, p->dw_all, (size_t)n_w * d9d_dtype_size(p->gt), before);
        array_close("loss at once", D9D_F32, p->loss, loss, p->n.rows, 1e-5);
        array_close("unit at once", p->n.t, p->unit, dh, n_h, tolerance);
        /* A GPU rounds bfloat16 gradients once a round. */
        array_close("dw at once", p->gt, p->dw_all, dw, n_w,
                    unit_device_tolerance(p->n.t == D9D_F32 ? 3e-5 : 1e-2,
                                          p->gt == D9D_F32 ? tolerance : 2e-2));
    }
    free(loss);
    free(dh);
    free(dw);
    free(before);
}

static void bias_grad_set(call *p, double v)
{
    for (int64_t i = 0; p->bias != NULL && i < p->all_v; i++)
        array_set(p->gt, p->db, i, v);
    p->n.dbias = p->db;
}

/* The gradient of the bias is added to what there is, also where no head has a gradient. */
static void check_bias(call *p, double *db)
{
    const double tolerance = p->n.t == D9D_F32 ? 3e-5 : unit_device_tolerance(3e-5, 2e-2);

    for (int64_t i = 0; i < p->all_v; i++)
        db[i] += 0.5;
    for (int frozen = 0; frozen < 2; frozen++) {
        bias_grad_set(p, 0.5);
        for (int s = 0; s < p->n.n_split && frozen; s++)
            p->dw[s] = NULL;
        run_wgrad(p);
        array_close("dbias", p->gt, p->db, db, p->all_v, p->gt == D9D_F32 ? tolerance : 2e-2);
    }
}

static void check(call *p)
{
    int64_t n_h, n_w;
    double *loss, *dh, *dw, *db;
    void *before = NULL;

    make(p);
    n_h = p->n.rows * p->n.h;
    n_w = p->all_v * p->n.h;
    loss = calloc((size_t)p->n.rows + 1, sizeof(*loss));
    dh = calloc((size_t)n_h + 1, sizeof(*dh));
    dw = calloc((size_t)n_w + 1, sizeof(*dw));
    db = calloc((size_t)p->all_v + 1, sizeof(*db));
    if (p->beta[0] != 0.0f)
        before = array_random(p->gt, n_w, 3, 1.0);
    naive(p, loss, dh, dw, db);
    for (int64_t i = 0; i < n_w && before != NULL; i++)
        dw[i] += array_get(p->gt, before, i);
    array_same_for_threads(run_forward, p, p->loss, (size_t)p->n.rows * sizeof(float), NULL);
    array_same_for_threads(run_forward, p, p->unit, (size_t)n_h * d9d_dtype_size(p->n.t), NULL);
    array_same_for_threads(run_dgrad, p, p->dhidden, (size_t)n_h * d9d_dtype_size(p->n.t), NULL);
    array_same_for_threads(run_wgrad, p, p->dw_all, (size_t)n_w * d9d_dtype_size(p->gt), before);
    array_close("loss", D9D_F32, p->loss, loss, p->n.rows, 1e-5);
    /* In bfloat16 it is rounded before and after the product with dloss. */
    array_close("dhidden", p->n.t, p->dhidden, dh, n_h, p->n.t == D9D_F32 ? 3e-5 : 1e-2);
    /* A GPU rounds the gradients of logits before it multiplies by them. */
    array_close("dw", p->gt, p->dw_all, dw, n_w,
                p->n.t == D9D_F32 ? 3e-5 : unit_device_tolerance(3e-5, 2e-2));
    for (int64_t r = 0; r < p->n.rows; r++)
        assert_true(p->targets[r] != IGNORE || (p->loss[r] == 0.0f && p->lse[r] == 0.0f));
    if (p->bias != NULL)
        check_bias(p, db);
    else
        check_once(p);
    free(loss);
    free(dh);
    free(dw);
    free(db);
    free(before);
    release(p);
}

static void test_shapes(void **state)
{
    static const struct shape {
        int64_t rows, h;
        int n_split;
        int64_t v[MOST_SPLITS];
    } shapes[] = {
        {0, 3, 1, {5}},          {1, 1, 1, {1}},           {2, 4, 2, {3, 2}},
        {17, 33, 3, {1, 70, 3}}, {300, 9, 2, {90, 41}},    {35, 6, 2, {4100, 4096}},
        {3, 2, 2, {70, 8259}},   {200, 64, 2, {576, 321}}, {150, 72, 2, {584, 325}},
        {131, 200, 1, {1003}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags += unit_step(3)) {
            call p = {.n = {.t = array_types[flags & 1],
                            .rows = shapes[i].rows,
                            .h = shapes[i].h,
                            .n_split = shapes[i].n_split,
                            .softcap = flags & 4 ? 2.0f : 0.0f},
                      .with_bias = (i + (size_t)flags / 4) % 2 == 1,
                      .gt = array_types[flags >> 1 & 1]};

            memcpy(p.v, shapes[i].v, sizeof(p.v));
            for (int s = 0; s < MOST_SPLITS; s++)
                p.beta[s] = flags % 4 == 1 || flags % 4 == 2 ? 1.0f : 0.0f;
            check(&p);
        }
}

static void assert_zeros(const call *p, const float *dh)
{
    for (int64_t i = 0; i < p->n.rows; i++)
        assert_true(p->loss[i] == 0.0f);
    for (int64_t i = 0; i < p->n.rows * p->n.h; i++)
        assert_true(dh[i] == 0.0f);
    for (int64_t i = 0; i < p->all_v * p->n.h; i++)
        assert_true(((float *)p->dw_all)[i] == 0.0f);
}

/* Nothing to predict: no loss, and gradients are zero, not left alone. */
static void test_all_ignored(void **state)
{
    call p = {.n = {.t = D9D_F32, .rows = 3, .h = 2, .n_split = 1}, .gt = D9D_F32, .v = {4}};

    (void)state;
    make(&p);
    for (int i = 0; i < 3; i++)
        p.targets[i] = IGNORE;
    run_forward(&p);
    run_dgrad(&p);
    run_wgrad(&p);
    assert_zeros(&p, p.dhidden);
    memset(p.dw_all, 0xff, 8 * sizeof(float));
    memset(p.unit, 0xff, 6 * sizeof(float));
    run_once(&p);
    assert_zeros(&p, p.unit);
    release(&p);
}

/* A frozen split gets no gradient; without `unit` the losses are the same bits. */
static void test_not_wanted(void **state)
{
    call p = {.n = {.t = D9D_F32, .rows = 9, .h = 5, .n_split = 2}, .gt = D9D_F32, .v = {4, 6}};
    float loss[9], poison[20];

    (void)state;
    make(&p);
    run_forward(&p);
    assert_int_equal(host_kernels()->loss->linear_cross_entropy(NULL, &p.n, loss, p.lse, NULL,
                                                                p.hidden, (const void *const *)p.w,
                                                                p.targets),
                     D9D_OK);
    assert_memory_equal(loss, p.loss, sizeof(loss));
    memset(poison, 0xff, sizeof(poison));
    p.dw[0] = NULL;
    run_wgrad(&p);
    assert_memory_equal(p.dw_all, poison, sizeof(poison));
    for (int i = 20; i < 50; i++)
        assert_false(isnan(((float *)p.dw_all)[i]));
    release(&p);
}

/* Each block of the vocabulary has larger logits than those before it, up to exp(90) times, and
 * targets are of any block.  What is large is spread over `parts` features, so that a gradient is
 * not the small difference of large numbers. */
static void check_rising(d9d_dtype t, int64_t rows, int64_t h, int parts)
{
    enum { COLUMNS = 20001 };
    call p = {.n = {.t = t, .rows = rows, .h = h, .n_split = 2}, .gt = t};

    p.v[0] = 700;
    p.v[1] = COLUMNS - 700;
    make(&p);
    for (int64_t i = 0, id = 0; i < 2; i++)
        for (int64_t c = 0; c < p.v[i]; c++, id++)
            for (int64_t j = 0; j < h; j++) {
                const double large = id < 700 ? 0.0 : id < 9000 ? 40.0 : 90.0;

                array_set(t, p.w[i], c * h + j,
                          (j == 0 ? (double)(id % 5) : 0.0) + (j < parts ? large / parts : 0.0));
            }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < h; j++)
            array_set(t, p.hidden, i * h + j, j >= parts ? 0.0 : i % 3 == 2 ? -1.0 : 1.0);
    p.targets[0] = 3;
    p.targets[1] = COLUMNS - 1;
    p.targets[2] = 8999;
    check_once(&p);
    release(&p);
}

static void test_rising(void **state)
{
    (void)state;
    check_rising(D9D_F32, 3, 1, 1);
    check_rising(D9D_BF16, 5, 64, 32);
    check_rising(D9D_BF16, 5, 72, 32);
}

static void test_bad_targets(void **state)
{
    const int32_t bad[] = {4, -1, INT32_MAX, INT32_MIN};
    call p = {.n = {.t = D9D_F32, .rows = 3, .h = 2, .n_split = 1}, .gt = D9D_F32, .v = {4}};

    (void)state;
    make(&p);
    for (int i = 0; i < 4; i++) {
        p.targets[2] = bad[i];
        if (!unit_device_is_cpu()) {
            run_forward(&p);
            assert_true(isfinite(p.loss[0]) && isnan(p.loss[2]));
            continue;
        }
        assert_int_equal(
            host_kernels()->loss->linear_cross_entropy(NULL, &p.n, p.loss, p.lse, NULL, p.hidden,
                                                       (const void *const *)p.w, p.targets),
            D9D_EINVAL);
        assert_non_null(strstr(d9d_err_message(), "row 2"));
    }
    release(&p);
}

/* Logits that are far apart, and not finite ones. */
static void test_extremes(void **state)
{
    const float w[] = {1000.0f, -1000.0f, 0.0f};
    const void *heads[] = {w};
    const int64_t v[] = {3};
    const d9d_linear_cross_entropy_dims n = {
        .t = D9D_F32, .rows = 3, .h = 1, .n_split = 1, .v = v, .ignore = -1};
    const int32_t targets[] = {1, 0, 0};
    float hidden[] = {1.0f, 1.0f, NAN}, loss[3], lse[3];

    (void)state;
    assert_int_equal(host_kernels()->loss->linear_cross_entropy(NULL, &n, loss, lse, NULL, hidden,
                                                                heads, targets),
                     D9D_OK);
    assert_true(loss[0] == 2000.0f);
    assert_true(loss[1] == 0.0f);
    assert_true(isnan(loss[2]));
}

/* --- parts of a vocabulary --------------------------------------------------- */

enum { PARTS = 3 };

/* Part i of a call: rows [first, first + n) of each split; what join made of it. */
typedef struct part {
    d9d_linear_cross_entropy_dims n;
    int64_t v[MOST_SPLITS], first[MOST_SPLITS];
    const void *w[MOST_SPLITS];
    void *unit, *dw[MOST_SPLITS];
    float *loss, *lse;
} part;

static void part_make(const call *p, int i, part *x)
{
    int64_t id = 0;

    *x = (part){.n = p->n};
    x->n.v = x->v;
    x->n.first = x->first;
    x->n.vocab = p->all_v;
    for (int s = 0; s < p->n.n_split; id += p->v[s++]) {
        int64_t begin = p->v[s] * i / PARTS, end = p->v[s] * (i + 1) / PARTS;
        size_t at = (size_t)(begin * p->n.h);

        x->v[s] = end - begin;
        x->first[s] = id + begin;
        x->w[s] = (const char *)p->w[s] + at * d9d_dtype_size(p->n.t);
        x->dw[s] = (char *)p->dw[s] + at * d9d_dtype_size(p->gt);
    }
    x->unit = array_poison(p->n.t, p->n.rows * p->n.h);
    x->loss = array_poison(D9D_F32, p->n.rows);
    x->lse = array_poison(D9D_F32, p->n.rows);
}

/* lse and loss [2, T] of a part. */
static void part_run(const call *p, part *x, float *stats)
{
    assert_int_equal(host_kernels()->loss->linear_cross_entropy(NULL, &x->n, stats + p->n.rows,
                                                                stats, x->unit, p->hidden, x->w,
                                                                p->targets),
                     D9D_OK);
}

static void part_join(const call *p, part *x, const float *stats, int i)
{
    assert_int_equal(host_kernels()->loss->linear_cross_entropy_combine(
                         NULL, &x->n, x->loss, x->lse, x->unit, stats, PARTS, i, x->w, p->targets),
                     D9D_OK);
    assert_int_equal(host_kernels()->loss->linear_cross_entropy_wgrad(NULL, &x->n, p->gt, x->dw,
                                                                      p->beta, p->dloss, x->lse,
                                                                      p->hidden, x->w, p->targets),
                     D9D_OK);
}

/* Every part has the loss of the whole; their units add up to its unit; dw is the rows of its. */
static void parts_check(call *p)
{
    const int64_t n_h = p->n.rows * p->n.h, n_w = p->all_v * p->n.h;
    float *stats = calloc((size_t)(2 * PARTS * p->n.rows) + 1, sizeof(*stats));
    double *loss, *unit, *dw, *db, *sum = calloc((size_t)n_h + 1, sizeof(*sum));
    float *added = calloc((size_t)n_h + 1, sizeof(*added));
    part x[PARTS];

    make(p);
    bias_grad_set(p, 0.0);
    run_forward(p);
    run_wgrad(p);
    db = p->bias != NULL ? array_doubles(p->gt, p->db, p->all_v) : NULL;
    bias_grad_set(p, 0.0);
    loss = array_doubles(D9D_F32, p->loss, p->n.rows);
    unit = array_doubles(p->n.t, p->unit, n_h);
    dw = array_doubles(p->gt, p->dw_all, n_w);
    memset(p->dw_all, 0xff, (size_t)n_w * d9d_dtype_size(p->gt));
    for (int i = 0; i < PARTS; i++) {
        part_make(p, i, &x[i]);
        part_run(p, &x[i], stats + 2 * i * p->n.rows);
    }
    for (int i = 0; i < PARTS; i++) {
        part_join(p, &x[i], stats, i);
        assert_memory_equal(x[i].loss, x[0].loss, (size_t)p->n.rows * sizeof(float));
        assert_memory_equal(x[i].lse, x[0].lse, (size_t)p->n.rows * sizeof(float));
        for (int64_t j = 0; j < n_h; j++)
            sum[j] += array_get(p->n.t, x[i].unit, j);
    }
    for (int64_t j = 0; j < n_h; j++)
        added[j] = (float)sum[j];
    array_close("loss", D9D_F32, x[0].loss, loss, p->n.rows, 1e-5);
    array_close("unit", D9D_F32, added, unit, n_h, p->n.t == D9D_F32 ? 3e-5 : 2e-2);
    array_close("dw", p->gt, p->dw_all, dw, n_w, p->n.t == D9D_F32 ? 3e-5 : 2e-2);
    if (db != NULL)
        array_close("dbias", p->gt, p->db, db, p->all_v, p->n.t == D9D_F32 ? 3e-5 : 2e-2);
    for (int i = 0; i < PARTS; i++) {
        free(x[i].unit);
        free(x[i].loss);
        free(x[i].lse);
    }
    free(loss), free(unit), free(dw), free(db), free(sum), free(added), free(stats);
    release(p);
}

static void test_fsdp_param(void **state)
{
    static const struct shape {
        int64_t rows, h;
        int n_split;
        int64_t v[MOST_SPLITS];
    } shapes[] = {
        {0, 3, 1, {5}},          {2, 3, 1, {1}},          {9, 4, 1, {2}},
        {17, 33, 3, {1, 70, 3}}, {60, 1030, 2, {50, 41}}, {35, 6, 2, {8200, 4099}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int flags = 0; flags < 8; flags += unit_step(3)) {
            call p = {.n = {.t = array_types[flags & 1],
                            .rows = shapes[i].rows,
                            .h = shapes[i].h,
                            .n_split = shapes[i].n_split,
                            .softcap = flags & 4 ? 2.0f : 0.0f},
                      .with_bias = (i + (size_t)flags / 4) % 2 == 1,
                      .gt = array_types[flags >> 1 & 1]};

            memcpy(p.v, shapes[i].v, sizeof(p.v));
            parts_check(&p);
        }
}

/* Parts whose logits are far apart: the share of one vanishes, whichever has the target. */
static void test_parts_far_apart(void **state)
{
    const float high[] = {500.0f}, low[] = {-500.0f}, hidden[] = {1.0f, 1.0f};
    const void *const w[2][1] = {{high}, {low}};
    const int64_t v[] = {1}, first[2][1] = {{0}, {1}};
    const int32_t targets[] = {0, 1};
    float parts[2][2][2], unit[2][2], loss[2], lse[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        const d9d_linear_cross_entropy_dims n = {.t = D9D_F32,
                                                 .rows = 2,
                                                 .h = 1,
                                                 .n_split = 1,
                                                 .v = v,
                                                 .ignore = -1,
                                                 .first = first[i],
                                                 .vocab = 2};

        assert_int_equal(host_kernels()->loss->linear_cross_entropy(
                             NULL, &n, parts[i][1], parts[i][0], unit[i], hidden, w[i], targets),
                         D9D_OK);
    }
    for (int i = 0; i < 2; i++) {
        const d9d_linear_cross_entropy_dims n = {.t = D9D_F32,
                                                 .rows = 2,
                                                 .h = 1,
                                                 .n_split = 1,
                                                 .v = v,
                                                 .ignore = -1,
                                                 .first = first[i],
                                                 .vocab = 2};

        assert_int_equal(host_kernels()->loss->linear_cross_entropy_combine(
                             NULL, &n, loss, lse, unit[i], &parts[0][0][0], 2, i, w[i], targets),
                         D9D_OK);
        assert_true(loss[0] == 0.0f && loss[1] == 1000.0f && lse[0] == 500.0f);
        assert_true(unit[i][0] == 0.0f && unit[i][1] == 500.0f); /* p W - W[target], p 1 or 0 */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),     cmocka_unit_test(test_all_ignored),
        cmocka_unit_test(test_not_wanted), cmocka_unit_test(test_bad_targets),
        cmocka_unit_test(test_extremes),   cmocka_unit_test(test_rising),
        cmocka_unit_test(test_fsdp_param), cmocka_unit_test(test_parts_far_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
