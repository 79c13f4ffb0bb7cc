/* rollout_judge.c - texts, rewards and advantages of a round's completions, and completions.jsonl.
 * See train/rollout.h.
 */
#include <math.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/base/plugin_call.h"
#include "d9d/base/sanitize_text.h"
#include "d9d/comm/exchange.h"
#include "train/rollout.h"
#include "train/step_lines.h"

/* Ranks that differ in these alone have the same prompts. */
#define SAME_PROMPTS (D9D_AXES_CP | D9D_AXIS(TP) | D9D_AXIS(PP))

/* --- rewards ---------------------------------------------------------------------------------- */

/* A token that the tokenizer does not know has no text, nor has what it is a part of.  Rewards read
 * whole strings: a zero byte would end one before what follows it. */
static d9d_status decode_text(d9di_rollout *r, const d9d_tokenizer *tok, const uint32_t *ids,
                              size_t n, const char **out)
{
    d9d_buf bytes = {0}, text = {0};
    d9d_status st = d9d_tokenizer_decode(tok, ids, n, D9D_TOKENIZER_SKIP_SPECIAL, &bytes);

    if (st == D9D_EINVAL) {
        bytes.len = 0;
        st = D9D_OK;
    }
    if (st == D9D_OK)
        st = d9d_text_repair(&text, bytes.data, bytes.len);
    if (st == D9D_OK) {
        *out = d9d_arena_strndup(&r->arena, text.data != NULL ? text.data : "", text.len);
        if (*out == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "task grpo: a text of %zu bytes", text.len);
    }
    d9d_buf_release(&bytes);
    d9d_buf_release(&text);
    return st;
}

static d9d_status sample_make(d9di_rollout *r, const d9di_train_run *run, size_t k,
                              d9d_reward_sample *out)
{
    const size_t group = (size_t)r->c->num_generations;
    const d9di_rollout_prompt *p = &r->prompts.data[k / group];
    const d9di_grpo_completion *x = &r->completions.data[k];
    const d9d_tokenizer *tok;

    D9D_TRY(d9d_dataset_tokenizer(run->data.datasets[p->ref.source], &tok));
    *out = (d9d_reward_sample){.tokens = x->ids + x->prompt,
                               .n_tokens = (size_t)x->n,
                               .sample = p->ref.sample,
                               .dataset = p->ref.source,
                               .terminated = !x->truncated};
    if (k % group > 0) {
        out->prompt = (out - 1)->prompt;
        out->answer = (out - 1)->answer;
    } else {
        D9D_TRY(decode_text(r, tok, r->ids.data + p->first, p->n, &out->prompt));
        D9D_TRY(decode_text(r, tok, r->ids.data + p->first + p->n, p->answer, &out->answer));
    }
    return decode_text(r, tok, x->ids + x->prompt, (size_t)x->n, &out->completion);
}

/* Numbers whose squares and sums are finite too. */
static d9d_status check_rewards(const d9di_rollout_reward *f, const d9d_reward_sample *x,
                                const double *rewards, size_t n)
{
    const double most = 1e30;

    for (size_t i = 0; i < n; i++)
        if (!(fabs(rewards[i]) <= most))
            return D9D_FAIL(D9D_ENUMERIC, "reward %s: a completion of sample %lld is worth %g",
                            f->kind->table->name, (long long)x[i].sample, rewards[i]);
    return D9D_OK;
}

/* sum [n] += each function's rewards of x [n], times its weight; `one` [n] is scratch. */
static d9d_status score(d9di_rollout *r, const d9di_train_run *run, d9d_reward_sample *x,
                        double *one, double *sum)
{
    const size_t n = r->completions.len;

    for (size_t i = 0; i < n; i++)
        D9D_TRY(sample_make(r, run, i, &x[i]));
    for (size_t k = 0; k < r->rewards.len; k++) {
        const d9di_rollout_reward *f = &r->rewards.data[k];

        D9D_TRY(D9D_PLUGIN_CALL(f->kind->table->name, f->kind, score, f->self, x, n, one));
        D9D_TRY(check_rewards(f, x, one, n));
        for (size_t i = 0; i < n; i++)
            sum[i] += f->weight * one[i];
    }
    return D9D_OK;
}

/* What the ranks tell each other: head, then the rewards of completions that exist. */
typedef struct message_head {
    int64_t targets, n;
} message_head;

static bool is_trained(const d9di_rollout *r, const d9di_grpo_completion *x)
{
    return x->n > 0 && !(r->c->mask_truncated_completions && x->truncated);
}

static d9d_status message_make(const d9di_rollout *r, const double *rewards, d9d_buf *out)
{
    message_head h = {0};

    for (size_t i = 0; i < r->completions.len; i++) {
        const d9di_grpo_completion *x = &r->completions.data[i];

        h.targets += is_trained(r, x) ? x->n : 0;
        h.n += x->n > 0;
    }
    D9D_TRY(d9d_buf_append(out, &h, sizeof(h)));
    for (size_t i = 0; i < r->completions.len; i++)
        if (r->completions.data[i].n > 0)
            D9D_TRY(d9d_buf_append(out, &rewards[i], sizeof(rewards[i])));
    return D9D_OK;
}

/* The messages of all data-parallel ranks, in the order of the stream: of ranks with the same
 * prompts the first one's. */
static d9d_status exchange(d9di_rollout *r, const char *what, const d9d_buf *own,
                           d9d_comm_blob **out)
{
    const d9d_parallel_degrees *d = d9d_mesh_degrees(r->engine->mesh);
    const int n = d9d_mesh_count(r->engine->mesh, D9D_AXES_DP);
    d9d_comm_blob *all, *first = d9d_arena_alloc(&r->arena, (size_t)n * sizeof(*first));

    if (first == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task grpo: messages of %d ranks", n);
    D9D_TRY(d9d_comm_allgather_arena(r->engine->world, what, own->data, own->len, &r->arena, &all));
    for (int i = 0; i < d9d_comm_size(r->engine->world); i++)
        if (d9d_parallel_degrees_index(d, SAME_PROMPTS, i) == 0)
            first[d9d_parallel_degrees_index(d, D9D_AXES_DP, i)] = all[i];
    *out = first;
    return D9D_OK;
}

/* The rewards of this rank's completions, from its message or that of a rank with the same. */
static void take_rewards(const d9di_rollout *r, const char *from, double *rewards)
{
    for (size_t i = 0; i < r->completions.len; i++) {
        if (r->completions.data[i].n == 0)
            continue;
        memcpy(&rewards[i], from, sizeof(*rewards));
        from += sizeof(*rewards);
    }
}

/* rewards [n] of this rank's completions, and all of the step, in the order of the stream. */
static d9d_status take_messages(d9di_rollout *r, const d9d_comm_blob *blobs, double *rewards,
                                d9d_buf *all)
{
    const int n = d9d_mesh_count(r->engine->mesh, D9D_AXES_DP),
              own = d9d_mesh_index(r->engine->mesh, D9D_AXES_DP);

    r->has_targets = false;
    for (int i = 0; i < n; i++) {
        const char *text = blobs[i].data;
        message_head h;

        memcpy(&h, text, sizeof(h));
        r->has_targets = r->has_targets || h.targets > 0;
        D9D_TRY(d9d_buf_append(all, text + sizeof(h), (size_t)h.n * sizeof(double)));
        if (i == own)
            take_rewards(r, text + sizeof(h), rewards);
    }
    return D9D_OK;
}

/* Group by group; a skipped prompt has none. */
static d9d_status set_advantages(d9di_rollout *r, const double *rewards, const double *all,
                                 size_t n_all)
{
    const size_t n = r->completions.len, group = (size_t)r->c->num_generations;
    double *advantages = d9d_arena_alloc(&r->arena, (n + 1) * sizeof(*advantages));

    if (advantages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task grpo: %zu advantages", n);
    d9d_grpo_advantages(r->c, rewards, n, all, n_all, advantages);
    for (size_t i = 0; i < n; i++) {
        d9di_grpo_completion *x = &r->completions.data[i];
        const double *of = rewards + i / group * group;

        x->reward = rewards[i];
        x->advantage = advantages[i];
        x->zero_std = true;
        for (size_t k = 0; k < group; k++)
            x->zero_std = x->zero_std && of[k] == of[0];
    }
    return D9D_OK;
}

/* --- completions.jsonl ------------------------------------------------------------------------ */

static d9d_status put_text(d9d_buf *b, const char *name, const char *text)
{
    D9D_TRY(d9d_buf_printf(b, "\"%s\": ", name));
    D9D_TRY(d9d_json_put_str(b, text, strlen(text)));
    return d9d_buf_append(b, ", ", 2);
}

static d9d_status put_completion(d9d_buf *b, int64_t step, const d9d_reward_sample *x,
                                 const d9di_grpo_completion *c)
{
    D9D_TRY(d9d_buf_printf(b, D9DI_STEP_LINES_PREFIX "%lld, \"sample\": %lld, ", (long long)step,
                           (long long)x->sample));
    D9D_TRY(put_text(b, "prompt", x->prompt));
    D9D_TRY(put_text(b, "completion", x->completion));
    D9D_TRY(put_text(b, "answer", x->answer));
    D9D_TRY(d9d_buf_printf(b, "\"reward\": "));
    D9D_TRY(d9d_json_put_f64(b, c->reward));
    D9D_TRY(d9d_buf_printf(b, ", \"advantage\": "));
    D9D_TRY(d9d_json_put_f64(b, c->advantage));
    return d9d_buf_printf(b, ", \"tokens\": %zu, \"terminated\": %s}\n", x->n_tokens,
                          x->terminated ? "true" : "false");
}

/* Of this rank's completions, those of the step's first prompts. */
static size_t count_logged(const d9di_rollout *r, const d9di_train_run *run)
{
    const int64_t before = r->first % run->c->trainer.batching.global_batch_size;
    const int64_t left = r->c->log_completions - before, own = (int64_t)r->prompts.len;

    return (size_t)((left < 0 ? 0 : left < own ? left : own) * r->c->num_generations);
}

/* Lines of x, by the first of the ranks that have the same prompts. */
static d9d_status put_completions(const d9di_rollout *r, const d9di_train_run *run, int64_t step,
                                  const d9d_reward_sample *x, d9d_buf *lines)
{
    const size_t n = count_logged(r, run);

    if (d9d_mesh_index(r->engine->mesh, SAME_PROMPTS) > 0)
        return D9D_OK;
    for (size_t i = 0; i < n; i++)
        if (r->completions.data[i].n > 0)
            D9D_TRY(put_completion(lines, step + 1, &x[i], &r->completions.data[i]));
    return D9D_OK;
}

/* True if prompts to log may be of several data-parallel ranks. */
static bool logs_of_ranks(const d9di_rollout *r, const d9di_train_run *run)
{
    return r->c->log_completions > run->c->trainer.batching.global_batch_size /
                                       d9d_mesh_count(r->engine->mesh, D9D_AXES_DP);
}

/* The lines of all ranks, in the order of the stream. */
static d9d_status gather_lines(d9di_rollout *r, d9d_buf *lines)
{
    d9d_comm_blob *of;

    D9D_TRY(exchange(r, "completions.jsonl", lines, &of));
    lines->len = 0;
    for (int i = 0; i < d9d_mesh_count(r->engine->mesh, D9D_AXES_DP); i++)
        D9D_TRY(d9d_buf_append(lines, of[i].data, of[i].n));
    return D9D_OK;
}

/* Collective over the job. */
static d9d_status log_completions(d9di_rollout *r, const d9di_train_run *run, int64_t step,
                                  const d9d_reward_sample *x)
{
    d9d_buf lines = {0};
    d9d_status st;

    if (r->c->log_completions == 0 || !d9d_step_period_due(run->c->trainer.logging.period_steps,
                                                           step, run->total_steps, D9D_DUE_ON_LAST))
        return D9D_OK;
    st = d9di_rollout_agree(run, put_completions(r, run, step, x, &lines));
    if (st == D9D_OK && logs_of_ranks(r, run))
        st = gather_lines(r, &lines);
    if (st == D9D_OK && r->log != NULL && lines.len > 0)
        st = d9d_writer_put(r->log, lines.data, lines.len);
    d9d_buf_release(&lines);
    return st;
}

/* --- judging ---------------------------------------------------------------------------------- */

/* x [n] and rewards [n] of this rank's completions, where it scores, and what it tells the others.
 */
static d9d_status score_own(d9di_rollout *r, const d9di_train_run *run, d9d_reward_sample **x,
                            double **rewards, d9d_buf *message)
{
    const size_t n = r->completions.len + 1;
    double *sums = d9d_arena_alloc(&r->arena, 2 * n * sizeof(*sums));

    *x = d9d_arena_alloc(&r->arena, n * sizeof(**x));
    *rewards = sums;
    if (*x == NULL || sums == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task grpo: %zu rewards", n);
    memset(sums, 0, 2 * n * sizeof(*sums));
    if (d9d_mesh_index(r->engine->mesh, SAME_PROMPTS) == 0)
        D9D_TRY(score(r, run, *x, sums + n, sums));
    return message_make(r, sums, message);
}

d9d_status d9di_rollout_judge(d9di_rollout *r, const d9di_train_run *run, int64_t step)
{
    d9d_reward_sample *x = NULL;
    double *rewards = NULL;
    d9d_buf message = {0}, all = {0};
    d9d_comm_blob *blobs = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9di_rollout_agree(run, score_own(r, run, &x, &rewards, &message)), out);
    D9D_TRY_OR(st, exchange(r, "rewards", &message, &blobs), out);
    D9D_TRY_OR(st, take_messages(r, blobs, rewards, &all), out);
    D9D_TRY_OR(st,
               set_advantages(r, rewards, (const double *)(const void *)all.data,
                              all.len / sizeof(double)),
               out);
    st = log_completions(r, run, step, x);
out:
    d9d_buf_release(&message);
    d9d_buf_release(&all);
    return st;
}
