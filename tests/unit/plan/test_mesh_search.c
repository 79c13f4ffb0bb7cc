/* test_mesh_search.c - the search for a mesh: its steps, that nothing near its best is better, and
 * that a signal ends it with what was found. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/json.h"
#include "d9d/plan/mesh_search.h"
#include "plan/mesh_steps.h"
#include "support/unit.h"

enum { RANKS = 256, LENGTH = 512 };

/* 4 layers, 8 heads, 4 key heads, 16 experts. */
static const char model[] =
    "{\"data\": {\"dataset\": \"none\"},"
    " \"model_provider\": {\"name\": \"qwen3_moe\", \"model\": {\"num_hidden_layers\": 4,"
    "   \"layer\": {\"hidden_size\": 64, \"intermediate_size\": 32, \"num_attention_heads\": 8,"
    "     \"num_key_value_heads\": 4, \"head_dim\": 8, \"rms_norm_eps\": 1e-6, \"num_experts\": 16,"
    "     \"experts_top_k\": 2},"
    "   \"rope_base\": 10000, \"max_position_ids\": 512,"
    "   \"split_vocab_size\": {\"all\": 100}, \"split_vocab_order\": [\"all\"]}},"
    " \"trainer\": {\"run\": {\"name\": \"t\"}, \"batching\": {\"global_batch_size\": 1024}},"
    " \"optimizer\": {\"name\": \"adamw\", \"lr\": 1e-3}}";

typedef struct bench {
    d9d_arena arena;
    json_t *full;
    d9d_train_config config;
    d9d_plan_opts opts;
} bench;

static void bench_open(bench *b)
{
    json_t *doc;

    memset(b, 0, sizeof(*b));
    b->opts = (d9d_plan_opts){.chip = "h200", .length = LENGTH};
    assert_ok(d9d_json_parse("model", model, sizeof(model) - 1, &doc));
    assert_ok(d9d_config_resolve(&d9d_train_config_table, doc, "model", NULL, &b->full));
    json_decref(doc);
    assert_ok(
        d9d_config_bind(&d9d_train_config_table, b->full, "model", NULL, &b->arena, &b->config));
}

static void bench_release(bench *b)
{
    json_decref(b->full);
    d9d_arena_release(&b->arena);
}

static void steps_are_of_one_factor(void **state)
{
    static const struct {
        int64_t pp, dpr, dps, cps, tp, ep; /* beside pp 2 dpr 4 dps 8 tp 4 ep 6, size 3 */
        int method, size;
        bool near;
    } cases[] = {
        {2, 4, 8, 1, 4, 6, 0, 3, true},   {2, 4, 8, 1, 4, 6, 0, 4, true},
        {2, 4, 8, 1, 4, 6, 0, 5, true},   {2, 4, 8, 1, 4, 6, 0, 6, false},
        {4, 2, 8, 1, 4, 6, 0, 3, true},   {1, 4, 16, 1, 4, 6, 0, 3, true},
        {1, 4, 16, 1, 4, 6, 0, 2, false}, {2, 4, 16, 1, 2, 6, 0, 3, true},
        {2, 4, 16, 1, 2, 3, 0, 3, false}, {2, 4, 8, 1, 4, 2, 0, 3, true},
        {2, 4, 8, 1, 4, 12, 0, 2, true},  {2, 4, 8, 1, 4, 1, 0, 3, false},
        {2, 4, 8, 1, 4, 4, 0, 3, false},  {2, 32, 1, 1, 4, 6, 0, 3, true},
        {2, 32, 1, 1, 4, 6, 0, 2, false}, {2, 4, 4, 2, 4, 6, 0, 3, true},
        {2, 4, 4, 2, 4, 6, 1, 3, false},  {2, 4, 8, 1, 4, 6, 1, 3, true},
        {8, 1, 8, 1, 4, 6, 0, 3, false},  {2, 16, 8, 1, 1, 6, 0, 3, false},
    };
    const d9d_parallel_degrees from = {2, 4, 8, 1, 1, 4, 6, 1, D9D_CP_ALL_GATHER};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const d9d_parallel_degrees to = {cases[i].pp,    cases[i].dpr, cases[i].dps, 1,
                                         cases[i].cps,   cases[i].tp,  cases[i].ep,  1,
                                         cases[i].method};

        if (d9di_mesh_search_is_near(&from, 3, &to, cases[i].size) != cases[i].near ||
            d9di_mesh_search_is_near(&to, cases[i].size, &from, 3) != cases[i].near)
            fail_msg("case %zu is %snear", i, cases[i].near ? "not " : "");
    }
}

/* The tokens an hour of a mesh with the micro-batch of the configuration; 0 if it is refused. */
static double planned_rate(bench *b, const d9d_parallel_degrees *d)
{
    d9d_arena a = {0};
    d9d_plan f;
    double rate = 0;

    b->config.mesh = *d;
    if (d9d_plan_estimate(&b->config, &b->opts, &a, &f) == D9D_OK)
        rate = d9d_plan_tokens_per_hour(&f);
    d9d_arena_release(&a);
    return rate;
}

/* As the search has them: shards of whole nodes, unless all or none is sharded. */
static bool is_searched(const d9d_parallel_degrees *d)
{
    const int64_t inside = d->data_parallel_shard * d->context_parallel_shard * d->tensor_parallel;

    return d->pipeline_parallel == 1 && d->tensor_parallel <= 8 && d->context_parallel_shard <= 2 &&
           (d->data_parallel_shard == 1 || d->data_parallel_replicate == 1 || inside % 8 == 0);
}

/* Plans a mesh with half, the same and twice the micro-batch. */
static int check_near(bench *b, const d9d_mesh_search_result *best, const d9d_parallel_degrees *d)
{
    int planned = 0;

    for (int64_t rows = (best->rows + 1) / 2; rows <= 2 * best->rows; rows *= 2) {
        double rate;

        if (rows > 128 || !is_searched(d))
            break;
        b->config.trainer.batching.microbatch_size = rows;
        rate = planned_rate(b, d);
        planned += rate > 0;
        if (rate > best->tokens_per_hour * (1 + 1e-9))
            fail_msg("%s with %d rows is not the best", best->mesh_text, (int)best->rows);
    }
    return planned;
}

/* A factor of two moves from one axis to another, or the experts' ranks are halved or doubled. */
static int check_moves(bench *b, const d9d_mesh_search_result *best)
{
    d9d_parallel_degrees d;
    int planned = 0;

    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            int64_t *const axes[] = {&d.data_parallel_replicate, &d.data_parallel_shard,
                                     &d.context_parallel_shard, &d.tensor_parallel};

            d = best->mesh;
            if (from == to || *axes[from] % 2 != 0)
                continue;
            *axes[from] /= 2;
            *axes[to] *= 2;
            planned += check_near(b, best, &d);
        }
    for (int64_t twice = 1; twice <= 4; twice *= 4) {
        d = best->mesh;
        d.expert_parallel = d.expert_parallel * twice / 2;
        if (d.expert_parallel > 0)
            planned += check_near(b, best, &d);
    }
    return planned;
}

static void nothing_near_the_best_is_better(void **state)
{
    d9d_mesh_search_results s;
    bench b;

    (void)state;
    bench_open(&b);
    assert_ok(d9d_mesh_search(&b.config, &b.opts, RANKS, NULL, &b.arena, &s));
    assert_true(s.complete);
    assert_true(s.n > 0 && s.meshes > 512 && s.planned < s.meshes);
    assert_int_equal(s.item[0].mesh.pipeline_parallel, 1);
    b.config.trainer.batching.microbatch_size = s.item[0].rows;
    assert_true(planned_rate(&b, &s.item[0].mesh) == s.item[0].tokens_per_hour);
    assert_true(check_moves(&b, &s.item[0]) > 5);
    bench_release(&b);
}

/* --- signals ------------------------------------------------------------------------------ */

static void block_sigterm(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
}

/* Counts lines, and sends a signal with the hundredth. */
static void line_and_signal(void *arg, d9d_log_level level, const char *text)
{
    int *lines = arg;

    (void)level;
    (void)text;
    if (++*lines == 100)
        (void)kill(getpid(), SIGTERM);
}

static void a_signal_ends_the_search_with_what_was_found(void **state)
{
    int lines = 0;
    const d9d_log log = {
        .line = line_and_signal, .arg = &lines, .level = D9D_LOG_INFO, .every_s = 1e-9};
    d9d_mesh_search_results whole, s;
    bench b;

    (void)state;
    block_sigterm();
    bench_open(&b);
    assert_ok(d9d_mesh_search(&b.config, &b.opts, RANKS, NULL, &b.arena, &whole));
    assert_ok(d9d_mesh_search(&b.config, &b.opts, RANKS, &log, &b.arena, &s));
    assert_false(s.complete);
    assert_true(s.n > 0 && s.planned < whole.planned);
    assert_true(s.item[0].tokens_per_hour <= whole.item[0].tokens_per_hour);
    bench_release(&b);
}

static void a_signal_before_the_first_plan_is_an_error(void **state)
{
    d9d_mesh_search_results s;
    bench b;

    (void)state;
    block_sigterm();
    bench_open(&b);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_fails_like(d9d_mesh_search(&b.config, &b.opts, 4, NULL, &b.arena, &s), D9D_EINTR,
                      "interrupted before a plan that fits was found");
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_of_one_factor),
        cmocka_unit_test(nothing_near_the_best_is_better),
        cmocka_unit_test(a_signal_ends_the_search_with_what_was_found),
        cmocka_unit_test(a_signal_before_the_first_plan_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
