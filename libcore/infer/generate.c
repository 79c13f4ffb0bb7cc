/* generate.c - the task "generate".  See d9d/infer/infer.h.
 *
 * Data-parallel ranks have every so many-th sample each.  After each step all ranks hear what the
 * others are done with; rank 0 keeps lines until those in front of them are there. */
#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/comm/exchange.h"
#include "d9d/job/preemption.h"
#include "engine/job_start.h"
#include "engine/model_aux_files.h"
#include "infer/decode_batch.h"
#include "infer/infer_job.h"
#include "infer/resumable_lines.h"

/* A line that came before those in front of it. */
typedef struct pending_line {
    int64_t k;
    char *text;
    size_t n;
} pending_line;

typedef struct generate_run {
    const d9d_infer_config *c;
    const d9d_job_generate_section *how;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_preemption *stop;
    d9di_engine engine;
    d9d_tokenizer *tokenizer;
    const char *tokenizer_path; /* NULL: none */
    d9di_prompt_source requests;
    d9d_hash key; /* of rank 0: what all is made from */
    d9di_kv_decoder *decoder;
    d9di_decode_batch decode_batch;
    int64_t max_tokens;         /* tokens of a row */
    d9di_resumable_lines lines; /* of rank 0 */
    D9D_VEC(pending_line) pending;
    d9d_buf outbox, line;
    int64_t written, tokens; /* samples, of the whole task; tokens of this life */
} generate_run;

/* --- opening -------------------------------------------------------------------------------- */

static d9di_engine_opts engine_opts(const generate_run *r)
{
    return d9di_infer_engine_opts(r->c, r->where, r->requests.data.n > 0 ? &r->requests.data : NULL,
                                  NULL);
}

static d9d_status check_config(const generate_run *r)
{
    const d9d_parallel_degrees *m = &r->c->mesh;
    const int64_t cp = m->context_parallel_shard * m->context_parallel_replicate;

    D9D_TRY(d9di_infer_check(r->c, r->where, r->how->output));
    if (cp > 1)
        return D9D_FAIL(D9D_ENOTSUP, "task.name \"generate\": rows are not shared out over "
                                     "context-parallel ranks");
    return D9D_OK;
}

static d9d_status tokenizer_open(generate_run *r)
{
    const char **path = &r->tokenizer_path;

    *path = r->how->tokenizer;
    if (*path == NULL)
        D9D_TRY(d9di_model_aux_files_find(r->c, "tokenizer.json", &r->engine.arena, path));
    return *path != NULL ? d9d_tokenizer_load(*path, &r->tokenizer) : D9D_OK;
}

static d9d_status open_stop_tokens(generate_run *r)
{
    const int64_t *more = r->how->stop_tokens.items, vocab = r->engine.whole->vocab;
    d9d_token_ids *stops = &r->decode_batch.stop_tokens;

    if (r->how->stop_at_eos)
        D9D_TRY(d9di_model_aux_files_read_eos(r->c, stops));
    for (size_t i = 0; i < r->how->stop_tokens.n; i++) {
        if (more[i] >= vocab)
            return D9D_FAIL(D9D_ECONFIG,
                            "task.stop_tokens[%zu]: %lld, and the model's vocabulary has %lld", i,
                            (long long)more[i], (long long)vocab);
        D9D_TRY(D9D_VEC_PUSH(stops, (uint32_t)more[i]));
    }
    if (stops->len == 0 && r->how->stop_at_eos)
        d9d_log_warn(r->log, "no eos_token_id beside the weights: rows end at their length alone");
    return D9D_OK;
}

/* Tokens that the longest row may have, and cells for all. */
static d9d_status check_max_tokens(generate_run *r)
{
    const int64_t positions = r->engine.whole->max_positions, longest = r->requests.longest;
    const int64_t rows = r->c->trainer.batching.microbatch_size;

    if (longest > positions)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: its longest prompt has %lld tokens and the model has "
                        "%lld positions",
                        r->how->prompts, (long long)longest, (long long)positions);
    r->max_tokens =
        longest + r->how->max_new_tokens < positions ? longest + r->how->max_new_tokens : positions;
    if (rows > (INT32_MAX - (1 << 20)) / r->max_tokens)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.batching.microbatch_size %lld: so many rows of %lld tokens are "
                        "more than 2^31",
                        (long long)rows, (long long)r->max_tokens);
    return D9D_OK;
}

/* All that can be wrong without memory for a model. */
static d9d_status run_check(generate_run *r)
{
    d9di_engine_opts how;

    D9D_TRY(check_config(r));
    D9D_TRY(d9di_prompt_source_open_data(r->c, &r->requests));
    how = engine_opts(r);
    D9D_TRY(d9di_engine_open(&how, &r->engine));
    D9D_TRY(d9d_kv_cache_check(r->engine.models[0]));
    D9D_TRY(tokenizer_open(r));
    D9D_TRY(d9di_prompt_source_open_prompts(&r->requests, r->tokenizer, r->engine.whole->vocab));
    D9D_TRY(open_stop_tokens(r));
    return check_max_tokens(r);
}

/* All that is read is the same on all ranks; what ends a text, wherever that is said. */
static d9d_status check_sources_uniform(generate_run *r, const json_t *resolved)
{
    const d9di_engine_opts opts = engine_opts(r);
    const d9d_token_ids *stops = &r->decode_batch.stop_tokens;
    d9di_rank_consistency same = {0};

    d9di_rank_consistency_add(&same, "the prompts", r->requests.hash);
    d9di_rank_consistency_add(&same, "eos_token_id",
                              d9d_hash_bytes(stops->data, stops->len * sizeof(*stops->data)));
    d9di_rank_consistency_add_data(&same, &r->requests.data);
    d9di_rank_consistency_add_file(&same, r->tokenizer_path);
    return d9di_infer_check_sources(r->where, &r->engine, &opts, resolved, &same, &r->key);
}

/* Rank 0 opens the output, which says where to go on, and tells the others. */
static d9d_status output_open(generate_run *r)
{
    const char *text;
    d9d_status st = D9D_OK;

    if (r->rank == 0)
        st = d9di_resumable_lines_open(r->how->output, r->key, NULL, r->log, &r->lines);
    D9D_TRY(d9d_bootstrap_agree_status(r->where->boot, st));
    r->line.len = 0;
    D9D_TRY(d9d_buf_printf(&r->line, "%lld", (long long)r->lines.done));
    text = r->line.data;
    D9D_TRY(d9d_bootstrap_broadcast_text(r->where->boot, &r->engine.arena, &text));
    r->written = strtoll(text, NULL, 10);
    return D9D_OK;
}

/* The likeliest token is taken: nothing is drawn. */
static bool is_greedy(const generate_run *r)
{
    return r->how->temperature == 0;
}

/* Memory that the rows take is spoken of before the weights are read. */
static d9d_status open_decoder(generate_run *r)
{
    const int64_t rows = r->c->trainer.batching.microbatch_size;

    d9d_log_info(r->log, "cache: %lld row%s of up to %lld tokens, %.1f MB", (long long)rows,
                 rows > 1 ? "s" : "", (long long)r->max_tokens,
                 (double)d9di_kv_decoder_bytes(&r->engine, rows, r->max_tokens) * 1e-6);
    return d9di_kv_decoder_open(&r->engine, rows, r->max_tokens, is_greedy(r), &r->decoder);
}

static d9d_status open_decode_batch(generate_run *r)
{
    d9di_decode_batch *a = &r->decode_batch;

    a->source = &r->requests;
    a->decoder = r->decoder;
    a->sampler.temperature = r->how->temperature;
    a->sampler.top_k = r->how->top_k;
    a->sampler.top_p = r->how->top_p;
    a->seed = (uint64_t)r->how->seed;
    a->vocab = r->engine.whole->vocab;
    a->max_new = r->how->max_new_tokens;
    a->decodes_ahead = is_greedy(r) && d9d_comm_size(r->engine.world) == 1;
    a->positions = r->engine.whole->max_positions;
    a->step = d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
    a->next = r->written + d9d_mesh_index(r->engine.mesh, D9D_AXES_DP);
    return d9di_decode_batch_init(r->c->trainer.batching.microbatch_size, a);
}

static d9d_status run_open(generate_run *r)
{
    d9di_engine_opts how = engine_opts(r);

    D9D_TRY(output_open(r));
    D9D_TRY(
        d9di_job_start_flight_dir(r->where->boot, r->how->output, &r->engine.arena, &how.flight));
    D9D_TRY(d9di_engine_materialize(&r->engine, &how));
    D9D_TRY(open_decoder(r));
    return open_decode_batch(r);
}

static void run_close(generate_run *r)
{
    d9di_decode_batch_release(&r->decode_batch);
    d9di_kv_decoder_close(r->decoder);
    d9di_engine_release(&r->engine);
    d9di_prompt_source_release(&r->requests);
    d9d_tokenizer_free(r->tokenizer);
    d9di_resumable_lines_release(&r->lines);
    for (size_t i = 0; i < r->pending.len; i++)
        free(r->pending.data[i].text);
    D9D_VEC_RELEASE(&r->pending);
    d9d_buf_release(&r->outbox);
    d9d_buf_release(&r->line);
    d9d_preemption_close(r->stop);
}

/* --- a line ------------------------------------------------------------------------------------
 */

/* What the tokens say; null where one of them is none of the tokenizer's. */
static d9d_status append_text(generate_run *r, const uint32_t *ids, size_t n)
{
    d9d_buf text = {0};
    d9d_status st = d9d_tokenizer_decode(r->tokenizer, ids, n, D9D_TOKENIZER_SKIP_SPECIAL, &text);

    if (st == D9D_OK)
        st = d9d_json_put_str(&r->line, text.len > 0 ? text.data : "", text.len);
    else if (st == D9D_EINVAL)
        st = d9d_buf_append(&r->line, "null", 4);
    d9d_buf_release(&text);
    return st;
}

static d9d_status make_line(generate_run *r, const d9di_decode_batch_seq *row)
{
    const uint32_t *ids = row->ids.data + row->prompt;
    const size_t n = row->ids.len - (size_t)row->prompt;
    d9d_buf *b = &r->line;

    b->len = 0;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)row->item.sample));
    if (row->item.dataset >= 0)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", row->item.dataset));
    D9D_TRY(d9d_buf_printf(b, "\"prompt_tokens\": %lld, \"tokens\": [", (long long)row->prompt));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9d_buf_printf(b, "%s%u", i > 0 ? ", " : "", ids[i]));
    D9D_TRY(d9d_buf_printf(b, "], "));
    if (r->tokenizer != NULL) {
        D9D_TRY(d9d_buf_printf(b, "\"text\": "));
        D9D_TRY(append_text(r, ids, n));
        D9D_TRY(d9d_buf_printf(b, ", "));
    }
    return d9d_buf_printf(b, "\"finish\": \"%s\"}\n", row->finish);
}

/* --- what ranks say to each other -------------------------------------------------------------- *
 *
 * Whether there is more to do, why to leave, what failed, and lines: heads with text behind each.
 */

typedef enum message_kind { MSG_MORE, MSG_STOP, MSG_FAILED, MSG_LINE } message_kind;

typedef struct message_head {
    message_kind kind;
    d9d_status st;  /* FAILED */
    int64_t k;      /* LINE: of the stream */
    int64_t tokens; /* LINE: generated */
    uint64_t n;     /* bytes of text */
} message_head;

static d9d_status append_message(generate_run *r, message_head h, const char *text, size_t n)
{
    h.n = n;
    D9D_TRY(d9d_buf_append(&r->outbox, &h, sizeof(h)));
    return n > 0 ? d9d_buf_append(&r->outbox, text, n) : D9D_OK;
}

/* Of ranks that have the same samples the first one speaks. */
static d9d_status append_done_seq(void *arg, const d9di_decode_batch_seq *row)
{
    generate_run *r = arg;
    const message_head h = {
        .kind = MSG_LINE, .k = row->k, .tokens = (int64_t)row->ids.len - row->prompt};

    if (d9d_mesh_index(r->engine.mesh, D9D_AXIS(TP) | D9D_AXIS(PP)) > 0)
        return D9D_OK;
    D9D_TRY(make_line(r, row));
    return append_message(r, h, r->line.data, r->line.len);
}

/* One step; a number that is none is told to all. */
static d9d_status run_local_step(generate_run *r)
{
    const char *reason = r->stop != NULL ? d9d_preemption_reason(r->stop) : NULL;
    d9d_status st = d9di_decode_batch_step(&r->decode_batch, append_done_seq, r);

    if (st == D9D_ENUMERIC)
        st = append_message(r, (message_head){.kind = MSG_FAILED, .st = st}, d9d_err_message(),
                            strlen(d9d_err_message()));
    D9D_TRY(st);
    if (reason != NULL)
        D9D_TRY(append_message(r, (message_head){.kind = MSG_STOP}, reason, strlen(reason)));
    return d9di_decode_batch_is_busy(&r->decode_batch)
               ? append_message(r, (message_head){.kind = MSG_MORE}, NULL, 0)
               : D9D_OK;
}

/* The lines that are next. */
static d9d_status write_pending_lines(generate_run *r)
{
    for (size_t i = 0; i < r->pending.len;) {
        pending_line *l = &r->pending.data[i++];

        if (l->k != r->written)
            continue;
        D9D_TRY(d9di_resumable_lines_add(&r->lines, l->text, l->n));
        free(l->text);
        *l = r->pending.data[--r->pending.len];
        r->written++;
        i = 0;
    }
    return D9D_OK;
}

static d9d_status receive_line(generate_run *r, const message_head *h, const char *text)
{
    pending_line l = {.k = h->k, .n = h->n};

    r->tokens += h->tokens;
    if (r->rank > 0)
        return D9D_OK;
    l.text = malloc(h->n);
    if (l.text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "a line of %llu bytes", (unsigned long long)h->n);
    memcpy(l.text, text, h->n);
    if (D9D_VEC_PUSH(&r->pending, l) != D9D_OK) {
        free(l.text);
        return D9D_ENOMEM;
    }
    return write_pending_lines(r);
}

/* What all ranks said, in their order: the same on all of them. */
typedef struct exchange_result {
    bool more;
    int64_t lines;
    d9d_status st;
    const char *failed, *leave;
} exchange_result;

static d9d_status parse_messages(generate_run *r, const d9d_comm_blob *w, d9d_arena *a,
                                 exchange_result *out)
{
    const char *at = w->data, *end = at + w->n;
    message_head h;

    for (; at < end; at += h.n) {
        memcpy(&h, at, sizeof(h));
        at += sizeof(h);
        out->more = out->more || h.kind == MSG_MORE;
        out->lines += h.kind == MSG_LINE;
        if (h.kind == MSG_STOP && out->leave == NULL)
            out->leave = d9d_arena_strndup(a, at, h.n);
        if (h.kind == MSG_FAILED && out->failed == NULL) {
            out->failed = d9d_arena_strndup(a, at, h.n);
            out->st = h.st;
        }
        if (h.kind == MSG_LINE)
            D9D_TRY(receive_line(r, &h, at));
    }
    return D9D_OK;
}

static d9d_status exchange_messages(generate_run *r, d9d_arena *a, exchange_result *out)
{
    d9d_comm_blob *all;

    D9D_TRY(d9d_comm_allgather_arena(r->engine.world, "answers", r->outbox.data, r->outbox.len, a,
                                     &all));
    for (int i = 0; i < d9d_comm_size(r->engine.world); i++)
        D9D_TRY(parse_messages(r, &all[i], a, out));
    return D9D_OK;
}

static d9d_status run_step(generate_run *r, bool *more, int64_t *done)
{
    d9d_arena a = {0};
    exchange_result h = {0};
    d9d_status st;

    r->outbox.len = 0;
    D9D_TRY_OR(st, run_local_step(r), out);
    D9D_TRY_OR(st, exchange_messages(r, &a, &h), out);
    *more = h.more;
    *done += h.lines;
    if (h.failed != NULL)
        st = d9d_bootstrap_agree_status(r->where->boot, D9D_FAIL(h.st, "%s", h.failed));
    else if (h.leave != NULL && h.more)
        st = d9d_bootstrap_agree_status(
            r->where->boot, D9D_FAIL(D9D_EINTR, "%s: %lld of %lld samples are done", h.leave,
                                     (long long)*done, (long long)r->requests.n));
out:
    d9d_arena_release(&a);
    return st;
}

/* --- the loop -----------------------------------------------------------------------------------
 */

static d9d_status run_steps(generate_run *r)
{
    int64_t done = r->written;
    bool more = done < r->requests.n;
    d9d_progress progress;
    d9d_status st = D9D_OK;

    d9d_progress_start(&progress, r->log, "generate", "samples", (uint64_t)r->requests.n);
    progress.first = progress.done = (uint64_t)done;
    while (more && st == D9D_OK) {
        st = run_step(r, &more, &done);
        d9d_progress_note(&progress, "%lld tokens", (long long)r->tokens);
        d9d_progress_add(&progress, (uint64_t)done - progress.done);
    }
    d9d_progress_end(&progress);
    return st;
}

static d9d_status open_and_run(generate_run *r, const json_t *resolved, d9d_infer_task_summary *s)
{
    int64_t start;

    D9D_TRY(d9d_bootstrap_agree_status(r->where->boot, run_check(r)));
    D9D_TRY(check_sources_uniform(r, resolved));
    D9D_TRY(run_open(r));
    s->first_sample = r->written;
    s->samples = r->requests.n;
    start = d9d_clock_ns();
    D9D_TRY(run_steps(r));
    s->tokens = r->tokens;
    s->tokens_per_s = (double)r->tokens / ((double)(d9d_clock_ns() - start) * 1e-9);
    return d9d_bootstrap_agree_status(
        r->where->boot, r->rank == 0 ? d9di_resumable_lines_commit(&r->lines) : D9D_OK);
}

d9d_status d9di_generate(const d9d_infer_config *config, const json_t *resolved,
                         const d9d_job *where, d9d_infer_task_summary *out)
{
    generate_run r = {.c = config,
                      .how = config->task.value,
                      .where = where,
                      .log = where->log,
                      .rank = d9d_bootstrap_rank(where->boot),
                      .lines = {.file = {.fd = -1}, .journal = {.file = {.fd = -1}}}};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_infer_task_summary s = {.output = D9D_INFER_TASK_TOKENS, .loss = NAN, .perplexity = NAN};
    d9d_status st;

    D9D_TRY_OR(st,
               d9d_preemption_open(r.rank == 0 ? margin : D9D_PREEMPTION_NO_LIMIT, r.log, &r.stop),
               out);
    D9D_TRY_OR(st, open_and_run(&r, resolved, &s), out);
    *out = s;
out:
    st = d9di_job_start_fail_rank(where->boot, r.engine.mesh, st);
    run_close(&r);
    if (st == D9D_OK)
        d9di_job_start_remove_flight_dir(where->boot, r.how->output);
    return st;
}
