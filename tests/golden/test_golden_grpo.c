/* test_golden_grpo.c - losses, gradients, advantages and clipping of the task grpo against TRL's
 * own GRPOTrainer (make_grpo.py): from rewards over the micro-batch to the gradient of
 * log-probabilities. */
#include "support/unit.h"

#include <math.h>

#include "d9d/base/json.h"
#include "d9d/op/loss.h"
#include "support/unit_device.h"
#include "tasks/grpo_batch.h"
#include "tasks/tasks.h"

enum { B = 8, S = 6 };

typedef struct golden_case {
    const json_t *want;
    const char *name;
    d9d_arena arena;
    d9d_grpo_section c;
    d9di_grpo_buffer buffer;
    d9d_batch batch;
    d9d_tape *tape;
    d9d_device *dev;
} golden_case;

static double number(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static const json_t *list_of(const golden_case *g, const char *key)
{
    return json_object_get(g->want, key);
}

/* The case's keys that the section has. */
static void section_read(golden_case *g, const json_t *shape)
{
    static const char *const keys[] = {"loss_type",     "epsilon", "epsilon_high",
                                       "delta",         "beta",    "importance_sampling_level",
                                       "scale_rewards", NULL};
    static const char *const shapes[] = {"num_generations", "max_completion_length", NULL};
    const d9d_log silent = {0};
    json_t *doc = json_pack("{s:[{s:s}]}", "rewards", "name", "answer");

    assert_non_null(doc);
    for (int i = 0; keys[i] != NULL; i++)
        if (json_object_get(g->want, keys[i]) != NULL)
            assert_int_equal(json_object_set(doc, keys[i], json_object_get(g->want, keys[i])), 0);
    for (int i = 0; shapes[i] != NULL; i++)
        assert_int_equal(json_object_set(doc, shapes[i], json_object_get(shape, shapes[i])), 0);
    if (list_of(g, "masked") != NULL)
        assert_int_equal(json_object_set_new(doc, "mask_truncated_completions", json_true()), 0);
    assert_ok(d9d_config_bind(&d9di_grpo_table, doc, "case", &silent, &g->arena, &g->c));
    json_decref(doc);
}

static bool is_masked(const golden_case *g, int64_t row)
{
    const json_t *rows = list_of(g, "masked");

    for (size_t i = 0; i < json_array_size(rows); i++)
        if (json_integer_value(json_array_get(rows, i)) == row)
            return true;
    return false;
}

/* Completions behind a prompt of one token, so that position i is of token i. */
static void batch_make(golden_case *g)
{
    static const uint32_t ids[S + 1];
    static const d9di_grpo_token tokens[S];
    d9di_grpo_completion x[B];
    double rewards[B], advantages[B];

    for (size_t i = 0; i < B; i++)
        rewards[i] = number(list_of(g, "rewards"), i);
    d9d_grpo_advantages(&g->c, rewards, B, rewards, B, advantages);
    for (size_t i = 0; i < B; i++) {
        const double want = number(list_of(g, "advantages"), i);

        if (!(fabs(advantages[i] - want) <= 1e-9))
            fail_msg("%s: advantage %zu is %.12g, TRL's %.12g", g->name, i, advantages[i], want);
        x[i] = (d9di_grpo_completion){
            .ids = ids,
            .prompt = 1,
            .n = json_integer_value(json_array_get(list_of(g, "lengths"), i)),
            .tokens = tokens,
            .reward = rewards[i],
            .advantage = advantages[i],
            .truncated = is_masked(g, (int64_t)i),
        };
    }
    assert_ok(d9di_grpo_batch_make(&g->c, x, B, 0, S, &g->buffer, &g->batch));
    assert_int_equal(g->batch.length, S);
}

static d9d_var *leaf(golden_case *g, const float *host, bool learns)
{
    d9d_tensor x;
    d9d_var *v;

    assert_ok(d9d_tensor_from_host(g->dev, D9D_F32, D9D_SHAPE(B, S, 1), host, &x));
    assert_ok(d9d_tape_leaf(g->tape, &x, learns, &v));
    d9d_tensor_release(&x);
    return v;
}

static d9d_var *log_probs(golden_case *g, const char *key, bool learns)
{
    float host[B * S];

    for (size_t i = 0; i < B * S; i++)
        host[i] = (float)number(list_of(g, key), i);
    return leaf(g, host, learns);
}

static d9d_var *column(golden_case *g, int k)
{
    float host[B * S];

    for (size_t i = 0; i < B * S; i++)
        host[i] = ((const float *)g->batch.fields[0].data)[i * D9DI_GRPO_COLUMNS + (size_t)k];
    return leaf(g, host, false);
}

static void read_back(const d9d_var *v, float host[B * S])
{
    assert_int_equal(d9d_tensor_numel(d9d_var_tensor(v)), B * S);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(v), host));
}

/* Of the tokens that count, where the ratio is each token's. */
static void check_share(const golden_case *g, const char *key, const d9d_var *v)
{
    const json_t *want = json_object_get(list_of(g, "metrics"), key);
    float host[B * S];
    double sum = 0, n = 0;

    if (want == NULL || v == NULL || g->c.importance_sampling_level == 1)
        return;
    read_back(v, host);
    for (size_t i = 0; i < B * S; i++) {
        const double mask =
            ((const float *)g->batch.fields[0].data)[i * D9DI_GRPO_COLUMNS + D9DI_GRPO_MASK];

        sum += mask * (double)host[i];
        n += mask;
    }
    if (!(fabs(sum / n - json_number_value(want)) <= 1e-6))
        fail_msg("%s: %s is %.9g, TRL's %.9g", g->name, key, sum / n, json_number_value(want));
}

/* Relative to the largest. */
static void check_gradient(const golden_case *g, const d9d_var *own, double targets)
{
    float host[B * S];
    double largest = 0, worst = 0;
    d9d_tensor grad;

    d9d_var_grad(own, &grad);
    assert_ok(d9d_tensor_to_f32(&grad, host));
    d9d_tensor_release(&grad);
    for (size_t i = 0; i < B * S; i++) {
        const double want = number(list_of(g, "gradient"), i);

        largest = fabs(want) > largest ? fabs(want) : largest;
        worst = fmax(worst, fabs((double)host[i] / targets - want));
    }
    assert_true(largest > 0);
    if (!(worst <= unit_device_tolerance(1e-5, 1e-4) * largest))
        fail_msg("%s: a gradient is %g away, of %g", g->name, worst, largest);
}

static void check_case(golden_case *g)
{
    const d9d_op_policy_opts opts = d9di_grpo_policy_opts(&g->c);
    const double targets = (double)d9di_grpo_targets(&g->c, &g->batch),
                 want = json_number_value(json_object_get(g->want, "loss"));
    d9d_op_policy_in in = {.own = log_probs(g, "own", true),
                           .advantage = column(g, D9DI_GRPO_ADVANTAGE),
                           .weight = column(g, D9DI_GRPO_WEIGHT),
                           .share = column(g, D9DI_GRPO_SHARE)};
    d9d_op_policy_out out;
    float host[B * S];
    d9d_var *root;
    double loss = 0, parts = 0;

    if (list_of(g, "first") == NULL)
        in.old = log_probs(g, "old", false);
    if (g->c.beta > 0)
        in.ref = log_probs(g, "ref", false);
    assert_ok(d9d_op_policy_gradient(g->tape, &opts, &in, &out));
    assert_ok(d9d_op_loss_root(g->tape, out.loss, &root));
    read_back(out.loss, host);
    for (size_t i = 0; i < B * S; i++) {
        loss += (double)host[i] / targets;
        parts += fabs((double)host[i]) / targets;
    }
    if (!(fabs(loss - want) <= unit_device_tolerance(1e-5, 1e-4) * parts))
        fail_msg("%s: the loss is %.9g, TRL's %.9g", g->name, loss, want);
    check_share(g, "clip_ratio/low_mean", out.low);
    check_share(g, "clip_ratio/high_mean", out.high);
    check_share(g, "kl", out.kl);
    assert_ok(d9d_tape_backward(g->tape, NULL, NULL, 0, D9D_BACKWARD_FULL));
    check_gradient(g, in.own, targets);
}

static void is_that_of_trl(void **state)
{
    json_t *doc;
    const json_t *cases;
    d9d_device *dev;

    (void)state;
    assert_ok(d9d_device_open(unit_device_name(), &dev));
    assert_ok(d9d_json_read("tests/golden/grpo/cases.json", 1 << 20, &doc));
    cases = json_object_get(doc, "cases");
    assert_int_equal(json_array_size(cases), 15);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        golden_case g = {.want = json_array_get(cases, i), .dev = dev};

        g.name = json_string_value(json_object_get(g.want, "case"));
        assert_ok(d9d_tape_create(dev, &g.tape));
        section_read(&g, doc);
        batch_make(&g);
        check_case(&g);
        d9d_tape_free(g.tape);
        d9di_grpo_buffer_release(&g.buffer);
        d9d_arena_release(&g.arena);
    }
    json_decref(doc);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_that_of_trl)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
