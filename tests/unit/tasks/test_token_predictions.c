/* test_token_predictions.c - what is predicted of next tokens, against sums in double over all
 * logits, for chunks of any size. */
#include "support/unit.h"

#include <math.h>
#include <string.h>

#include "support/unit_device.h"
#include "tasks/token_predictions.h"

enum { T = 11, H = 6, A = 9, V = 14, C = D9D_METRIC_TOKEN_COLUMNS };

static const int32_t labels[T] = {0, 13, -100, 5, 9, 8, 1, 2, 3, -100, 13};
static const float softcap = 1.5f;

typedef struct fixture {
    d9d_device *dev;
    d9d_block_vocab head;
    float h[T * H];
    double z[T][V];       /* logits */
    float logits[T * V];  /* as they were shown */
    int64_t shown, calls; /* tokens */
} fixture;

/* Two tables, a factor and a softcap; row 3 of the second is that of the first, so that tokens
 * 3 and A + 3 are equal. */
static void open_head(fixture *f)
{
    static const d9d_block_vocab_split splits[] = {{"first", A}, {"second", V - A}};
    const d9d_block_opts opts = {.dtype = D9D_F32, .init_std = 0.7};
    float w[V * H];

    *f = (fixture){0};
    assert_ok(d9d_device_open(unit_device_name(), &f->dev));
    assert_ok(d9d_block_vocab_init(&f->head, &opts, D9D_VOCAB_HEAD, splits, 2, H));
    f->head.softcap = softcap;
    f->head.logit_scale = 0.75f;
    assert_ok(d9d_module_bind(&f->head.module));
    assert_ok(d9d_module_materialise(&f->head.module, f->dev, false));
    assert_ok(d9d_module_reset(&f->head.module, 3));
    assert_ok(d9d_tensor_to_f32(&f->head.table[0]->local.data, w));
    assert_ok(d9d_tensor_to_f32(&f->head.table[1]->local.data, w + A * H));
    memcpy(w + (A + 3) * H, w + 3 * H, H * sizeof(*w));
    assert_ok(d9d_device_upload(f->dev, d9d_tensor_data(&f->head.table[1]->local.data), w + A * H,
                                (V - A) * H * sizeof(*w)));
    for (int i = 0; i < T * H; i++)
        f->h[i] = (float)((i * 37 + 11) % 23 - 11) / 8.0f;
    for (int t = 0; t < T; t++)
        for (int v = 0; v < V; v++) {
            double x = 0;

            for (int i = 0; i < H; i++)
                x += 0.75 * (double)f->h[t * H + i] * (double)w[v * H + i];
            f->z[t][v] = (double)softcap * tanh(x / (double)softcap);
        }
}

static void close_head(fixture *f)
{
    d9d_module_release(&f->head.module);
    assert_int_equal(d9d_device_memory(f->dev).in_use, 0);
    d9d_device_close(f->dev);
}

/* The slow twin. */
static void columns_of(const double *z, int32_t label, double *out)
{
    double sum = 0, entropy = 0;
    int best = 0, rank = 0;

    for (int v = 0; v < V; v++) {
        sum += exp(z[v]);
        best = z[v] > z[best] ? v : best;
        rank += label >= 0 && z[v] > z[label];
    }
    for (int v = 0; v < V; v++)
        entropy -= exp(z[v]) / sum * log(exp(z[v]) / sum);
    out[D9D_METRIC_TOKEN_LOSS] = label >= 0 ? log(sum) - z[label] : 0;
    out[D9D_METRIC_TOKEN_ENTROPY] = entropy;
    out[D9D_METRIC_TOKEN_CONFIDENCE] = exp(z[best]) / sum;
    out[D9D_METRIC_TOKEN_CLASS] = best;
    out[D9D_METRIC_TOKEN_RANK] = rank;
}

static d9d_status show(void *arg, const d9d_tensor *logits, int64_t first)
{
    fixture *f = arg;

    assert_int_equal(first, f->shown);
    f->shown += logits->shape.dim[0];
    f->calls++;
    return d9d_tensor_to_f32(logits, f->logits + first * V);
}

static void predict(fixture *f, int64_t chunk, float out[T * C])
{
    d9di_token_predictions p = {.chunk = chunk, .logits = show, .arg = f};
    d9d_tensor h, y, columns;

    f->shown = f->calls = 0;
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, D9D_SHAPE(T, H), f->h, &h));
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(1, T), labels, &y));
    p.labels = &y;
    assert_ok(d9di_token_predictions_make(&p, &f->head, &h, &columns));
    assert_int_equal(columns.shape.dim[0], T);
    assert_int_equal(columns.shape.dim[1], C);
    assert_ok(d9d_tensor_to_f32(&columns, out));
    d9d_tensor_release(&columns);
    d9d_tensor_release(&y);
    d9d_tensor_release(&h);
}

static void columns_are_those_of_all_logits(void **state)
{
    float got[T * C];
    double want[C];
    fixture f;

    (void)state;
    open_head(&f);
    predict(&f, 0, got);
    assert_int_equal(f.shown, T);
    assert_int_equal(f.calls, 1);
    for (int t = 0; t < T; t++) {
        columns_of(f.z[t], labels[t], want);
        for (int v = 0; v < V; v++)
            assert_true(fabs((double)f.logits[t * V + v] - f.z[t][v]) < 1e-5);
        for (int c = 0; c < C; c++)
            if (labels[t] >= 0 || (c != D9D_METRIC_TOKEN_LOSS && c != D9D_METRIC_TOKEN_RANK))
                if (fabs((double)got[t * C + c] - want[c]) > 2e-5)
                    fail_msg("token %d, column %d: %g, must be %g", t, c, (double)got[t * C + c],
                             want[c]);
    }
    close_head(&f);
}

static void chunks_change_nothing(void **state)
{
    static const int64_t chunks[] = {1, 2, 3, 4, T - 1, T, T + 7};
    float whole[T * C], some[T * C];
    fixture f;

    (void)state;
    open_head(&f);
    predict(&f, 0, whole);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        predict(&f, chunks[i], some);
        assert_int_equal(f.calls, chunks[i] < T ? (T + chunks[i] - 1) / chunks[i] : 1);
        for (int k = 0; k < T * C; k++)
            assert_true(fabsf(some[k] - whole[k]) <= 1e-6f * (1 + fabsf(whole[k])));
    }
    close_head(&f);
}

static void classes_can_be_had_alone(void **state)
{
    d9di_token_predictions p = {.classes_alone = true, .chunk = 4};
    d9d_tensor h, y, columns;
    double want[C];
    float got[T];
    fixture f;

    (void)state;
    open_head(&f);
    assert_ok(d9d_tensor_from_host(f.dev, D9D_F32, D9D_SHAPE(T, H), f.h, &h));
    assert_ok(d9d_tensor_from_host(f.dev, D9D_I32, D9D_SHAPE(T), labels, &y));
    p.labels = &y;
    assert_ok(d9di_token_predictions_make(&p, &f.head, &h, &columns));
    assert_int_equal(columns.shape.dim[1], 1);
    assert_ok(d9d_tensor_to_f32(&columns, got));
    for (int t = 0; t < T; t++) {
        columns_of(f.z[t], labels[t], want);
        assert_true((double)got[t] == want[D9D_METRIC_TOKEN_CLASS]);
    }
    d9d_tensor_release(&columns);
    d9d_tensor_release(&y);
    d9d_tensor_release(&h);
    close_head(&f);
}

static void no_chunk_stays_in_memory(void **state)
{
    float got[T * C];
    uint64_t before, one, many;
    fixture f;

    (void)state;
    open_head(&f);
    before = d9d_device_memory(f.dev).in_use;
    predict(&f, 1, got);
    one = d9d_device_memory(f.dev).peak;
    assert_int_equal(d9d_device_memory(f.dev).in_use, before);
    predict(&f, T, got);
    many = d9d_device_memory(f.dev).peak;
    assert_true(one < many);
    close_head(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_those_of_all_logits),
        cmocka_unit_test(chunks_change_nothing),
        cmocka_unit_test(classes_can_be_had_alone),
        cmocka_unit_test(no_chunk_stays_in_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
