/* rollout.c - see train/rollout.h. */
#include "train/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/plugin_call.h"
#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"
#include "d9d/model/kv_cache.h"
#include "engine/generation_config.h"
#include "train/step_lines.h"

/* --- checks ----------------------------------------------------------------------------------- */

static d9d_status check_period(const char *name, d9d_step_period period, int64_t iterations)
{
    if (period <= 0 || period % iterations == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s is %lld, and a round has task.num_iterations, %lld step%s: a checkpoint is "
                    "of the end of a round",
                    name, (long long)period, (long long)iterations, D9D_PLURAL(iterations));
}

static d9d_status check_steps(const d9di_train_run *run, int64_t iterations)
{
    const struct d9d_job_checkpointing_section *s = &run->c->trainer.checkpointing;

    if (run->total_steps % iterations != 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.run.steps is %lld, no multiple of task.num_iterations, %lld",
                        (long long)run->total_steps, (long long)iterations);
    D9D_TRY(check_period("trainer.checkpointing.period_steps", s->period_steps, iterations));
    return check_period("trainer.checkpointing.local_period_steps", s->local_period_steps,
                        iterations);
}

/* Samples are prompts with their answers, one in a row, decoded by a tokenizer. */
static d9d_status check_data(const d9di_train_run *run)
{
    for (size_t i = 0; i < run->data.n; i++) {
        d9d_dataset *ds = run->data.datasets[i];
        const d9d_tokenizer *tok;

        if (d9d_dataset_is_packed(ds))
            return D9D_FAIL(D9D_ENOTSUP, "%s: samples of packed documents are no prompts",
                            run->data.sections[i].dataset);
        D9D_TRY(d9d_dataset_tokenizer(ds, &tok));
        if (tok == NULL)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: has no tokenizer, and rewards are of texts; d9d-shard makes it "
                            "with one",
                            run->data.sections[i].dataset);
    }
    return D9D_OK;
}

d9d_status d9di_rollout_check(const d9di_train_run *run, const d9di_task *task)
{
    const d9d_grpo_section *c = d9di_task_generation(task);

    if (c == NULL)
        return D9D_OK;
    D9D_TRY(check_steps(run, c->num_iterations));
    return check_data(run);
}

/* --- opening ---------------------------------------------------------------------------------- */

static d9d_status open_rewards(d9di_rollout *r)
{
    const d9d_union *section = r->c->rewards.items;
    const double *weights = r->c->reward_weights.items;

    for (size_t i = 0; i < r->c->rewards.n; i++) {
        d9di_rollout_reward x = {.kind = section[i].choice->row,
                                 .self = section[i].value,
                                 .weight = r->c->reward_weights.n > 0 ? weights[i] : 1};

        if (x.kind->open != NULL)
            D9D_TRY(D9D_PLUGIN_CALL(x.kind->table->name, x.kind, open, section[i].value, &x.self));
        D9D_TRY(D9D_VEC_PUSH(&r->rewards, x));
    }
    return D9D_OK;
}

static d9d_status open_stop_tokens(d9di_rollout *r, const d9di_train_run *run)
{
    const d9di_model_aux_files_places places = {
        &run->c->model_provider, run->c->trainer.model_stage_factory.source_checkpoint};
    const int64_t *more = r->c->stop_tokens.items, vocab = r->engine->whole.model->vocab;
    d9di_generation_config file;

    if (r->c->stop_at_eos) {
        D9D_TRY(d9di_generation_config_read(&places, &r->engine->arena, &file));
        D9D_TRY(d9di_generation_config_stops(&file, &r->stop_tokens));
    }
    for (size_t i = 0; i < r->c->stop_tokens.n; i++) {
        if (more[i] >= vocab)
            return D9D_FAIL(D9D_ECONFIG,
                            "task.stop_tokens[%zu]: %lld, and the model's vocabulary has %lld", i,
                            (long long)more[i], (long long)vocab);
        D9D_TRY(D9D_VEC_PUSH(&r->stop_tokens, (uint32_t)more[i]));
    }
    if (r->stop_tokens.len == 0)
        d9d_log_warn(run->log,
                     "task %s: no eos_token_id beside the weights and no task.stop_tokens: "
                     "completions end at max_completion_length only",
                     run->c->task.choice->name);
    return D9D_OK;
}

static int64_t max_tokens(const d9di_rollout *r)
{
    const int64_t positions = r->engine->whole.model->max_positions,
                  most = r->longest + r->c->max_completion_length;

    return most < positions ? most : positions;
}

d9di_kv_decoder_opts d9di_rollout_decoder_opts(const d9d_grpo_section *c, int64_t rows,
                                               int64_t max_tokens)
{
    return (d9di_kv_decoder_opts){.cache = D9D_KV_CACHE_AUTO,
                                  .rows = rows + 1,
                                  .max_tokens = max_tokens,
                                  .keeps = true,
                                  .sampler = {.temperature = c->temperature,
                                              .top_k = c->top_k,
                                              .top_p = c->top_p,
                                              .seed = (uint64_t)c->seed,
                                              .wants_stats = true}};
}

/* Of what generates, all that needs no memory. */
static d9d_status check_decoder(const d9di_rollout *r)
{
    const d9di_kv_decoder_opts opts = d9di_rollout_decoder_opts(r->c, r->rows, max_tokens(r));

    D9D_TRY(d9di_token_sampler_check(&opts.sampler, r->engine->whole.model->vocab));
    return d9d_kv_cache_check(r->engine->models[0], opts.cache);
}

d9d_status d9di_rollout_open(d9di_rollout *r, const d9di_train_run *run, d9di_engine *engine)
{
    const int64_t wanted = run->c->trainer.data_loading.pad_to_multiple_of;

    r->c = d9di_task_generation(engine->task);
    r->engine = engine;
    if (r->c == NULL)
        return D9D_OK;
    for (size_t i = 0; i < run->data.n; i++) {
        const int64_t n = d9d_dataset_max_length(run->data.datasets[i]);

        r->longest = n > r->longest ? n : r->longest;
    }
    if (r->longest >= engine->whole.model->max_positions)
        return D9D_FAIL(D9D_EMISMATCH,
                        "data: the longest sample has %lld tokens and the model %lld positions, "
                        "which leave none to a completion",
                        (long long)r->longest, (long long)engine->whole.model->max_positions);
    r->multiple = d9di_run_data_pad_multiple(&run->c->mesh, wanted);
    r->rows = d9di_grpo_decoded_rows(r->c, run->c->trainer.batching.microbatch_size);
    if (r->rows + 1 > (INT32_MAX - (1 << 20)) / max_tokens(r))
        return D9D_FAIL(D9D_ECONFIG,
                        "task.generation_batch_size: %lld completions of %lld tokens are more than "
                        "2^31",
                        (long long)r->rows, (long long)max_tokens(r));
    D9D_TRY(check_decoder(r));
    D9D_TRY(open_rewards(r));
    return open_stop_tokens(r, run);
}

void d9di_rollout_add_consistency(const d9di_rollout *r, d9di_rank_consistency *same)
{
    if (r->c != NULL)
        d9di_rank_consistency_add(
            same, "eos_token_id",
            d9d_hash_bytes(r->stop_tokens.data, r->stop_tokens.len * sizeof(uint32_t)));
}

d9d_status d9di_rollout_open_log(d9di_rollout *r, const d9di_train_run *run, int64_t done)
{
    const bool writes = r->c != NULL && r->c->log_completions > 0 && run->rank == 0;

    return d9d_bootstrap_agree_status(
        run->where->bootstrap,
        writes ? d9di_step_lines_open(run->dir.completions, done, run->log, NULL, &r->log)
               : D9D_OK);
}

d9d_status d9di_rollout_sync(d9di_rollout *r)
{
    return r->log != NULL ? d9d_writer_sync(r->log) : D9D_OK;
}

static void round_release(d9di_rollout *r)
{
    d9d_arena_release(&r->arena);
    r->ids.len = r->prompts.len = r->micro_prompts.len = r->completions.len = 0;
}

void d9di_rollout_close(d9di_rollout *r)
{
    for (size_t i = 0; i < r->rewards.len; i++)
        if (r->rewards.data[i].kind->close != NULL)
            r->rewards.data[i].kind->close(r->rewards.data[i].self);
    round_release(r);
    d9d_writer_close(r->log);
    D9D_VEC_RELEASE(&r->rewards);
    D9D_VEC_RELEASE(&r->stop_tokens);
    D9D_VEC_RELEASE(&r->ids);
    D9D_VEC_RELEASE(&r->prompts);
    D9D_VEC_RELEASE(&r->micro_prompts);
    D9D_VEC_RELEASE(&r->completions);
    d9di_grpo_buffer_release(&r->buffer);
    *r = (d9di_rollout){.c = NULL};
}

uint64_t d9di_rollout_bytes(const d9di_engine *e, const void *arg)
{
    const d9di_rollout *r = arg;

    return r->c != NULL ? d9di_kv_decoder_bytes(e, D9D_KV_CACHE_AUTO, r->rows + 1, max_tokens(r))
                        : 0;
}

/* --- prompts ---------------------------------------------------------------------------------- */

static d9d_status push_tokens(d9d_token_ids *to, const int32_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        D9D_TRY(D9D_VEC_PUSH(to, (uint32_t)from[i]));
    return D9D_OK;
}

/* What stands before the first target, and the targets. */
static d9d_status take_prompt(d9di_rollout *r, const d9d_batch *b, int64_t row)
{
    const int32_t *ids = b->ids + row * b->length, *labels = b->labels + row * b->length;
    const int64_t n = b->lengths[row];
    d9di_rollout_prompt p = {.first = r->ids.len, .ref = b->refs[row]};
    int64_t begin = 0;

    while (begin < n && labels[begin] == D9D_IGNORE_INDEX)
        begin++;
    p.n = (size_t)(begin < n ? begin + 1 : n);
    D9D_TRY(push_tokens(&r->ids, ids, (int64_t)p.n));
    for (int64_t i = begin; i < n; i++)
        if (labels[i] != D9D_IGNORE_INDEX)
            D9D_TRY(push_tokens(&r->ids, &labels[i], 1));
    p.answer = r->ids.len - p.first - p.n;
    return D9D_VEC_PUSH(&r->prompts, p);
}

static d9d_status take_prompts(d9di_rollout *r, const d9di_train_run *run, d9d_prefetcher *feed)
{
    d9d_batch b;

    for (int64_t i = 0; i < run->n_micro; i++) {
        D9D_TRY(d9d_prefetcher_next(feed, &b));
        if (i == 0)
            r->first = b.first;
        D9D_TRY(D9D_VEC_PUSH(&r->micro_prompts, b.seqs));
        for (int64_t k = 0; k < b.seqs; k++)
            D9D_TRY(take_prompt(r, &b, k));
    }
    return D9D_OK;
}

/* --- decoding --------------------------------------------------------------------------------- */

static d9d_status get_prompt(void *arg, int64_t k, d9d_token_ids *ids, d9di_prompt_source_item *out)
{
    d9di_rollout *r = arg;
    const d9di_rollout_prompt *p = &r->prompts.data[k / r->c->num_generations];

    *out = (d9di_prompt_source_item){p->ref.sample, p->ref.source};
    D9D_TRY(D9D_VEC_RESERVE(ids, p->n));
    if (p->n > 0)
        memcpy(ids->data, r->ids.data + p->first, p->n * sizeof(*ids->data));
    ids->len = p->n;
    return D9D_OK;
}

/* Completion k of `all` tokens, of which it was given n. */
static d9d_status completion_alloc(d9di_rollout *r, size_t all, size_t n, uint32_t **ids,
                                   d9di_grpo_token **tokens)
{
    *ids = d9d_arena_alloc(&r->arena, (all + 1) * sizeof(**ids));
    *tokens = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(**tokens));
    if (*ids == NULL || *tokens == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task grpo: a completion of %zu tokens", all);
    return D9D_OK;
}

static d9d_status keep_completion(void *arg, const d9di_decode_batch_seq *row)
{
    d9di_rollout *r = arg;
    d9di_grpo_completion *x = &r->completions.data[row->k];
    d9di_grpo_token *tokens;
    uint32_t *ids;

    D9D_TRY(completion_alloc(r, row->ids.len, row->stats.len, &ids, &tokens));
    if (row->ids.len > 0)
        memcpy(ids, row->ids.data, row->ids.len * sizeof(*ids));
    for (size_t i = 0; i < row->stats.len; i++)
        tokens[i] = (d9di_grpo_token){row->stats.data[i].log_prob, row->stats.data[i].entropy};
    *x = (d9di_grpo_completion){
        .ids = ids,
        .prompt = row->prompt,
        .n = (int64_t)row->stats.len,
        .tokens = tokens,
        .truncated = strcmp(row->finish, "stop") != 0,
        .ref = r->prompts.data[row->k / r->c->num_generations].ref,
    };
    return D9D_OK;
}

/* Context-parallel ranks have the same prompts, and decode their completions in turn. */
static const d9d_comm *decoding_group(const d9di_rollout *r)
{
    return r->engine->stages[0].model->groups.cp;
}

/* True if the ranks' calls of the decoder depend on each other. */
static bool decodes_in_step(const d9di_rollout *r)
{
    const d9d_parallel_degrees *d = d9d_mesh_degrees(r->engine->mesh);

    return d->data_parallel_shard * d->context_parallel_shard > 1 || d->expert_parallel > 1;
}

/* True if a rank's call of the decoder waits for those of other ranks. */
static bool calls_depend(const d9di_rollout *r)
{
    const d9d_parallel_degrees *d = d9d_mesh_degrees(r->engine->mesh);

    return decodes_in_step(r) || d->tensor_parallel > 1 || d->pipeline_parallel > 1;
}

/* True if some rank has more to do. */
static d9d_status agree_more(const d9di_rollout *r, bool own, bool *out)
{
    const char flag = own ? 1 : 0;
    d9d_comm_blob *all;
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    *out = own;
    if (!decodes_in_step(r))
        return D9D_OK;
    st = d9d_comm_allgather_arena(r->engine->world, "generation", &flag, 1, &a, &all);
    for (int i = 0; st == D9D_OK && i < d9d_comm_size(r->engine->world); i++)
        *out = *out || *(const char *)all[i].data != 0;
    d9d_arena_release(&a);
    return st;
}

/* A call without sequences, which the other ranks' calls need. */
static d9d_status decode_nothing(d9di_kv_decoder *d)
{
    d9di_kv_decoder_output none;

    D9D_TRY(d9di_kv_decoder_enqueue(d, NULL, 0));
    return d9di_kv_decoder_wait(d, &none);
}

/* After a token that cannot be drawn the rank goes on until the others are done.  After any other
 * failure it cannot: they wait inside a call, and it ends the job without asking them. */
static d9d_status decode_all(d9di_rollout *r, const d9di_train_run *run, d9di_decode_batch *b)
{
    d9d_err_copy why;
    d9d_status own = D9D_OK;
    bool more = true;

    while (more) {
        if (own == D9D_OK) {
            own = d9di_decode_batch_step(b, keep_completion, r);
            if (own != D9D_OK && own != D9D_ENUMERIC && calls_depend(r))
                return own;
            d9d_err_save(&why, own);
        } else {
            D9D_TRY(decode_nothing(b->decoder));
        }
        D9D_TRY(agree_more(r, own == D9D_OK && d9di_decode_batch_is_busy(b), &more));
    }
    return d9di_rollout_agree(run, own == D9D_OK ? D9D_OK : d9d_err_restore(&why));
}

/* Nothing of the last update is pending when the first kernel may read weights ahead. */
static d9d_status decode_open(d9di_rollout *r, d9di_decode_batch *b)
{
    const d9d_grpo_section *c = r->c;
    const d9di_kv_decoder_opts opts = d9di_rollout_decoder_opts(c, r->rows, max_tokens(r));

    for (size_t i = 0; i < r->prompts.len * (size_t)c->num_generations; i++)
        D9D_TRY(D9D_VEC_PUSH(&r->completions, (d9di_grpo_completion){.n = 0}));
    D9D_TRY(d9d_device_sync(r->engine->dev));
    D9D_TRY(d9di_kv_decoder_open(r->engine, &opts, &b->decoder));
    *b = (d9di_decode_batch){
        .source = {(int64_t)r->completions.len, get_prompt, r, r->c->num_generations},
        .decoder = b->decoder,
        .first_stream = (uint64_t)(r->first * c->num_generations),
        .max_new = c->max_completion_length,
        .positions = max_tokens(r),
        .next = d9d_comm_rank(decoding_group(r)),
        .step = d9d_comm_size(decoding_group(r)),
        .prefix_mask = r->engine->spec.opts.prefix_mask,
        .decodes_ahead = d9d_comm_size(r->engine->world) == 1,
    };
    for (size_t i = 0; i < r->stop_tokens.len; i++)
        D9D_TRY(D9D_VEC_PUSH(&b->stop_tokens, r->stop_tokens.data[i]));
    return d9di_decode_batch_init(r->rows, b);
}

/* No rank's first call waits for one that has no memory for its cache. */
static d9d_status generate(d9di_rollout *r, const d9di_train_run *run)
{
    d9di_decode_batch b = {.decoder = NULL};
    d9d_status st = d9di_rollout_agree(run, decode_open(r, &b));

    if (st == D9D_OK)
        st = decode_all(r, run, &b);
    r->prefilled = b.prefilled;
    d9di_kv_decoder_close(b.decoder);
    d9di_decode_batch_release(&b);
    return st;
}

/* --- completions of other ranks -------------------------------------------------------------- */

/* In a message, before the tokens and what is known of the completion's. */
typedef struct completion_head {
    int64_t k, prompt, n;
    bool truncated;
} completion_head;

/* Those that this rank has decoded. */
static d9d_status pack_completions(const d9di_rollout *r, d9d_buf *out)
{
    const size_t step = (size_t)d9d_comm_size(decoding_group(r));

    for (size_t k = (size_t)d9d_comm_rank(decoding_group(r)); k < r->completions.len; k += step) {
        const d9di_grpo_completion *x = &r->completions.data[k];
        completion_head h;

        memset(&h, 0, sizeof(h));
        h.k = (int64_t)k;
        h.prompt = x->prompt;
        h.n = x->n;
        h.truncated = x->truncated;
        if (x->ids == NULL) /* of a skipped prompt */
            continue;
        D9D_TRY(d9d_buf_append(out, &h, sizeof(h)));
        D9D_TRY(d9d_buf_append(out, x->ids, (size_t)(x->prompt + x->n) * sizeof(*x->ids)));
        D9D_TRY(d9d_buf_append(out, x->tokens, (size_t)x->n * sizeof(*x->tokens)));
    }
    return D9D_OK;
}

/* Those of one rank's message. */
static d9d_status unpack_completions(d9di_rollout *r, const d9d_comm_blob *from)
{
    const char *at = from->data, *end = at + from->n;

    while (at < end) {
        d9di_grpo_token *tokens;
        uint32_t *ids;
        completion_head h;

        memcpy(&h, at, sizeof(h));
        at += sizeof(h);
        D9D_TRY(completion_alloc(r, (size_t)(h.prompt + h.n), (size_t)h.n, &ids, &tokens));
        memcpy(ids, at, (size_t)(h.prompt + h.n) * sizeof(*ids));
        at += (size_t)(h.prompt + h.n) * sizeof(*ids);
        memcpy(tokens, at, (size_t)h.n * sizeof(*tokens));
        at += (size_t)h.n * sizeof(*tokens);
        r->completions.data[h.k] =
            (d9di_grpo_completion){.ids = ids,
                                   .prompt = h.prompt,
                                   .n = h.n,
                                   .tokens = tokens,
                                   .truncated = h.truncated,
                                   .ref = r->prompts.data[h.k / r->c->num_generations].ref};
    }
    return D9D_OK;
}

static d9d_status unpack_all(d9di_rollout *r, const d9d_comm_blob *all)
{
    const d9d_comm *group = decoding_group(r);

    for (int i = 0; i < d9d_comm_size(group); i++)
        if (i != d9d_comm_rank(group))
            D9D_TRY(unpack_completions(r, &all[i]));
    return D9D_OK;
}

/* Afterwards each rank of the group has the completions of all.  Collective over the job. */
static d9d_status share_completions(d9di_rollout *r, const d9di_train_run *run)
{
    d9d_buf own = {0};
    d9d_arena a = {0};
    d9d_comm_blob *all = NULL;
    d9d_status st;

    if (d9d_comm_size(decoding_group(r)) == 1)
        return D9D_OK;
    D9D_TRY_OR(st, d9di_rollout_agree(run, pack_completions(r, &own)), out);
    D9D_TRY_OR(st,
               d9d_comm_allgather_arena(r->engine->stages[0].model->groups.cp, "completions",
                                        own.data, own.len, &a, &all),
               out);
    st = d9di_rollout_agree(run, unpack_all(r, all));
out:
    d9d_buf_release(&own);
    d9d_arena_release(&a);
    return st;
}

/* --- a round ---------------------------------------------------------------------------------- */

static void log_round(const d9di_rollout *r, const d9di_train_run *run, double seconds)
{
    int64_t n = 0;

    for (size_t i = 0; i < r->completions.len; i++)
        n += r->completions.data[i].n;
    d9d_log_debug(
        run->log,
        "generated %zu completion%s of %lld token%s from %zu prompt%s of %lld token%s in %.3f "
        "s, %.0f tokens/s",
        r->completions.len, D9D_PLURAL(r->completions.len), (long long)n, D9D_PLURAL(n),
        r->prompts.len, D9D_PLURAL(r->prompts.len), (long long)r->prefilled,
        D9D_PLURAL(r->prefilled), seconds, (double)n / seconds);
}

static d9d_status round_make(d9di_rollout *r, const d9di_train_run *run, d9d_prefetcher *feed,
                             int64_t step)
{
    int64_t start;

    round_release(r);
    D9D_TRY(take_prompts(r, run, feed));
    start = d9d_clock_ns();
    D9D_TRY(generate(r, run));
    D9D_TRY(share_completions(r, run));
    log_round(r, run, (double)(d9d_clock_ns() - start) * 1e-9);
    return d9di_rollout_judge(r, run, step);
}

d9d_status d9di_rollout_begin_step(d9di_rollout *r, const d9di_train_run *run, d9d_prefetcher *feed,
                                   int64_t step)
{
    if (r->c == NULL)
        return D9D_OK;
    r->iteration = step % r->c->num_iterations;
    r->micro = r->at = 0;
    d9di_task_select(r->engine->task, r->iteration);
    return r->iteration == 0 ? round_make(r, run, feed, step) : D9D_OK;
}

d9d_status d9di_rollout_next(d9di_rollout *r, d9d_batch *out)
{
    const int64_t group = r->c->num_generations, n = r->micro_prompts.data[r->micro];
    const int64_t first = r->at * group;

    r->micro++;
    r->at += n;
    return d9di_grpo_batch_make(r->c, r->completions.data + first, n * group,
                                r->first * group + first, r->multiple, &r->buffer, out);
}
