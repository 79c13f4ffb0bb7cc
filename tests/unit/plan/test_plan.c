/* test_plan.c - plans of every mesh: refused where training refuses, and verdicts to the byte.
 */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/parallel/parallel_plan.h"
#include "d9d/plan/mesh_search.h"
#include "support/unit.h"

/* 4 layers, 4 heads, 2 key heads, 8 experts. */
static const char model[] =
    "{\"data\": {\"dataset\": \"none\"},"
    " \"model_provider\": {\"name\": \"qwen3_moe\", \"model\": {\"num_hidden_layers\": 4,"
    "   \"layer\": {\"hidden_size\": 16, \"intermediate_size\": 8, \"num_attention_heads\": 4,"
    "     \"num_key_value_heads\": 2, \"head_dim\": 8, \"rms_norm_eps\": 1e-6, \"num_experts\": 8,"
    "     \"experts_top_k\": 2},"
    "   \"rope_base\": 10000, \"max_position_ids\": 512,"
    "   \"split_vocab_size\": {\"all\": 100}, \"split_vocab_order\": [\"all\"]}},"
    " \"trainer\": {\"run\": {\"name\": \"t\"}, \"batching\": {\"global_batch_size\": 64}},"
    " \"optimizer\": {\"name\": \"adamw\", \"lr\": 1e-3}}";

typedef struct bench {
    d9d_arena arena;
    json_t *full;
    d9d_train_config config;
    d9d_model_spec spec;
    int64_t planned, refused;
} bench;

static void bench_open(bench *b)
{
    json_t *doc;

    memset(b, 0, sizeof(*b));
    assert_ok(d9d_json_parse("model", model, sizeof(model) - 1, &doc));
    assert_ok(d9d_config_resolve(&d9d_train_config_table, doc, "model", NULL, &b->full));
    json_decref(doc);
    assert_ok(
        d9d_config_bind(&d9d_train_config_table, b->full, "model", NULL, &b->arena, &b->config));
    assert_ok(d9d_model_spec_read(&b->config.model_provider, &b->arena, &b->spec));
}

static void bench_release(bench *b)
{
    json_decref(b->full);
    d9d_arena_release(&b->arena);
}

/* The schedule takes as many micro-batches. */
static bool is_played(const bench *b)
{
    const d9d_parallel_degrees *d = &b->config.mesh;
    const d9d_pipe_schedule_opts opts = d9d_job_pipe_schedule_opts(&b->config.trainer.pipelining);
    const int64_t replicas = d->data_parallel_replicate * d->data_parallel_shard;
    d9d_program p;

    if (d->pipeline_parallel == 1)
        return true;
    if (d9d_program_build(&opts, (int)d->pipeline_parallel,
                          (int)(b->config.trainer.batching.global_batch_size / replicas),
                          &p) != D9D_OK)
        return false;
    d9d_program_release(&p);
    return true;
}

/* As training checks them before it takes memory; a stage needs a layer. */
static bool is_allowed(const bench *b)
{
    const d9d_parallel_degrees *d = &b->config.mesh;

    return d9d_parallel_degrees_check(d, d9d_parallel_degrees_ranks(d)) == D9D_OK &&
           d9d_job_check_batching(d, &b->config.trainer.batching) == D9D_OK &&
           d9d_parallel_plan_check(&b->spec, d) == D9D_OK && d->pipeline_parallel <= 4 &&
           is_played(b);
}

static void check_mesh(bench *b, const d9d_parallel_degrees *d)
{
    d9d_plan_opts opts = {.chip = "cpu", .length = 64};
    d9d_arena a = {0};
    d9d_plan f;
    d9d_status st;

    b->config.mesh = *d;
    st = d9d_plan_estimate(&b->config, &opts, &a, &f);
    if ((st == D9D_OK) != is_allowed(b))
        fail_msg("pp %d dpr %d dps %d cps %d cpr %d tp %d ep %d: %s", (int)d->pipeline_parallel,
                 (int)d->data_parallel_replicate, (int)d->data_parallel_shard,
                 (int)d->context_parallel_shard, (int)d->context_parallel_replicate,
                 (int)d->tensor_parallel, (int)d->expert_parallel,
                 st == D9D_OK ? "is planned and would be refused" : d9d_err_message());
    if (st == D9D_OK) {
        f.memory_requested = true;
        f.memory = d9d_plan_rank_bytes(d9d_plan_largest_rank(&f));
        assert_ok(d9d_plan_check_memory(&f));
        f.memory--;
        assert_fails_like(d9d_plan_check_memory(&f), D9D_ECONFIG, "it does not fit");
        assert_int_equal(f.n_stages, d->pipeline_parallel);
        assert_true(f.step_s > 0 && f.bubble >= 0 && f.bubble < 1);
        b->planned++;
    } else {
        assert_true(st == D9D_ECONFIG || st == D9D_ENOTSUP);
        b->refused++;
    }
    d9d_arena_release(&a);
}

/* All degrees whose product is n, and every expert degree that divides a stage; one more, too. */
static void check_ranks(bench *b, int64_t n)
{
    d9d_parallel_degrees d = {0};

#define EACH(field, of)                                                                            \
    for (d.field = 1; d.field <= (of); d.field++)                                                  \
        if ((of) % d.field == 0)
    EACH(pipeline_parallel, n)
    {
        const int64_t stage = n / d.pipeline_parallel;

        EACH(tensor_parallel, stage)
        {
            const int64_t tokens = stage / d.tensor_parallel;

            EACH(context_parallel_shard, tokens)
            {
                const int64_t rest = tokens / d.context_parallel_shard;

                EACH(context_parallel_replicate, rest)
                {
                    const int64_t dp = rest / d.context_parallel_replicate;

                    EACH(data_parallel_shard, dp)
                    {
                        d.data_parallel_replicate = dp / d.data_parallel_shard;
                        EACH(expert_parallel, stage)
                        check_mesh(b, &d);
                    }
                }
            }
        }
    }
#undef EACH
}

static void every_mesh_is_planned_or_refused(void **state)
{
    static const int64_t some[] = {1, 2, 3, 4, 6, 8};
    const bool all = unit_is_long();
    bench b;

    (void)state;
    bench_open(&b);
    for (int64_t i = 0; i < (all ? 64 : (int64_t)(sizeof(some) / sizeof(some[0]))); i++)
        check_ranks(&b, all ? i + 1 : some[i]);
    print_message("%lld meshes planned, %lld refused\n", (long long)b.planned,
                  (long long)b.refused);
    assert_true(b.planned > 50 && b.refused > 50);
    bench_release(&b);
}

/* Fewer experts than ranks that share them out, in a pipeline: gradients of parts that do not lie
 * in order are under way while the next forward gathers. */
static void experts_are_cut_in_a_pipeline(void **state)
{
    bench b;

    (void)state;
    bench_open(&b);
    check_mesh(&b, &(d9d_parallel_degrees){.pipeline_parallel = 2,
                                           .data_parallel_replicate = 1,
                                           .data_parallel_shard = 1,
                                           .context_parallel_replicate = 3,
                                           .context_parallel_shard = 3,
                                           .tensor_parallel = 1,
                                           .expert_parallel = 1});
    assert_int_equal(b.planned, 1);
    bench_release(&b);
}

/* No suggestion needs more than there is, and each is allowed. */
static void suggestions_fit(void **state)
{
    d9d_plan_opts opts = {.chip = "h200", .length = 64};
    d9d_mesh_search_results free_choice, narrow;
    bench b;

    (void)state;
    bench_open(&b);
    assert_ok(d9d_mesh_search(&b.config, &opts, 4, NULL, &b.arena, &free_choice));
    opts.memory = free_choice.item[0].bytes - 1;
    assert_ok(d9d_mesh_search(&b.config, &opts, 4, NULL, &b.arena, &narrow));
    assert_true(narrow.n > 0 && narrow.n <= free_choice.n);
    for (size_t i = 0; i < narrow.n; i++) {
        assert_true(narrow.item[i].bytes <= opts.memory);
        b.config.mesh = narrow.item[i].mesh;
        b.config.trainer.batching.microbatch_size = narrow.item[i].rows;
        assert_true(is_allowed(&b));
        assert_int_equal(d9d_parallel_degrees_ranks(&narrow.item[i].mesh), 4);
        assert_true(i == 0 || narrow.item[i].tokens_per_hour <= narrow.item[i - 1].tokens_per_hour);
    }
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mesh_is_planned_or_refused),
        cmocka_unit_test(experts_are_cut_in_a_pipeline),
        cmocka_unit_test(suggestions_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
