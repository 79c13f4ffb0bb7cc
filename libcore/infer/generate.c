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
typedef struct late {
    int64_t k;
    char *text;
    size_t n;
} late;

typedef struct run {
    const d9d_infer_config *c;
    const d9d_generate_section *how;
    const d9d_job *where;
    const d9d_log *log;
    int rank;
    d9d_stop *stop;
    d9di_engine engine;
    d9d_tokenizer *tokenizer;
    const char *tokenizer_path; /* NULL: none */
    d9di_asked asked;
    d9d_hash key; /* of rank 0: what all is made from */
    d9di_stepper *stepper;
    d9di_answers answers;
    int64_t room;     /* tokens of a row */
    d9di_lines lines; /* of rank 0 */
    D9D_VEC(late) late;
    d9d_buf said, line;
    int64_t written, tokens; /* samples, of the whole task; tokens of this life */
} run;

/* --- opening -------------------------------------------------------------------------------- */

static d9di_engine_how engine_opts(const run *r)
{
    return d9di_infer_engine_opts(r->c, r->where, r->asked.data.n > 0 ? &r->asked.data : NULL,
                                  NULL);
}

static d9d_status check_config(const run *r)
{
    const d9d_degrees *m = &r->c->mesh;
    const int64_t cp = m->context_parallel_shard * m->context_parallel_replicate;

    D9D_TRY(d9di_infer_check(r->c, r->where, r->how->output));
    if (cp > 1)
        return D9D_FAIL(D9D_ENOTSUP, "task.name \"generate\": rows are not shared out over "
                                     "context-parallel ranks");
    return D9D_OK;
}

static d9d_status tokenizer_open(run *r)
{
    const char **path = &r->tokenizer_path;

    *path = r->how->tokenizer;
    if (*path == NULL)
        D9D_TRY(d9di_beside(r->c, "tokenizer.json", &r->engine.arena, path));
    return *path != NULL ? d9d_tokenizer_load(*path, &r->tokenizer) : D9D_OK;
}

static d9d_status stops_open(run *r)
{
    const int64_t *more = r->how->stop_tokens.items, vocab = r->engine.whole->vocab;
    d9d_ids *stops = &r->answers.stops;

    if (r->how->stop_at_eos)
        D9D_TRY(d9di_beside_eos(r->c, stops));
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
static d9d_status check_room(run *r)
{
    const int64_t positions = r->engine.whole->max_positions, longest = r->asked.longest;
    const int64_t rows = r->c->trainer.batching.microbatch_size;

    if (longest > positions)
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s: its longest prompt has %lld tokens and the model has "
                        "%lld positions",
                        r->how->prompts, (long long)longest, (long long)positions);
    r->room =
        longest + r->how->max_new_tokens < positions ? longest + r->how->max_new_tokens : positions;
    if (rows > (INT32_MAX - (1 << 20)) / r->room)
        return D9D_FAIL(D9D_ECONFIG,
                        "trainer.batching.microbatch_size %lld: so many rows of %lld tokens are "
                        "more than 2^31",
                        (long long)rows, (long long)r->room);
    return D9D_OK;
}

/* All that can be wrong without memory for a model. */
static d9d_status run_check(run *r)
{
    d9di_engine_how how;

    D9D_TRY(check_config(r));
    D9D_TRY(d9di_asked_data(r->c, &r->asked));
    how = engine_opts(r);
    D9D_TRY(d9di_engine_open(&how, &r->engine));
    D9D_TRY(d9d_cache_check(r->engine.models[0]));
    D9D_TRY(tokenizer_open(r));
    D9D_TRY(d9di_asked_prompts(&r->asked, r->tokenizer, r->engine.whole->vocab));
    D9D_TRY(stops_open(r));
    return check_room(r);
}

/* All that is read is the same on all ranks; what ends a text, wherever that is said. */
static d9d_status sources_check(run *r, const json_t *resolved)
{
    const d9di_engine_how opts = engine_opts(r);
    const d9d_ids *stops = &r->answers.stops;
    d9di_same same = {0};

    d9di_same_add(&same, "the prompts", r->asked.hash);
    d9di_same_add(&same, "eos_token_id",
                  d9d_hash_bytes(stops->data, stops->len * sizeof(*stops->data)));
    d9di_same_data(&same, &r->asked.data);
    d9di_same_file(&same, r->tokenizer_path);
    return d9di_infer_sources(r->where, &r->engine, &opts, resolved, &same, &r->key);
}

/* Rank 0 opens the output, which says where to go on, and tells the others. */
static d9d_status output_open(run *r)
{
    const char *text;
    d9d_status st = D9D_OK;

    if (r->rank == 0)
        st = d9di_lines_open(r->how->output, r->key, NULL, r->log, &r->lines);
    D9D_TRY(d9d_boot_agree(r->where->boot, st));
    r->line.len = 0;
    D9D_TRY(d9d_buf_printf(&r->line, "%lld", (long long)r->lines.done));
    text = r->line.data;
    D9D_TRY(d9d_bootstrap_broadcast_text(r->where->boot, &r->engine.arena, &text));
    r->written = strtoll(text, NULL, 10);
    return D9D_OK;
}

/* The likeliest token is taken: nothing is drawn. */
static bool is_cold(const run *r)
{
    return r->how->temperature == 0;
}

/* Memory that the rows take is spoken of before the weights are read. */
static d9d_status rows_open(run *r)
{
    const int64_t rows = r->c->trainer.batching.microbatch_size;

    d9d_log_info(r->log, "cache: %lld row%s of up to %lld tokens, %.1f MB", (long long)rows,
                 rows > 1 ? "s" : "", (long long)r->room,
                 (double)d9di_stepper_bytes(&r->engine, rows, r->room) * 1e-6);
    return d9di_stepper_open(&r->engine, rows, r->room, is_cold(r), &r->stepper);
}

static d9d_status answers_open(run *r)
{
    d9di_answers *a = &r->answers;

    a->asked = &r->asked;
    a->stepper = r->stepper;
    a->choose.temperature = r->how->temperature;
    a->choose.top_k = r->how->top_k;
    a->choose.top_p = r->how->top_p;
    a->seed = (uint64_t)r->how->seed;
    a->vocab = r->engine.whole->vocab;
    a->max_new = r->how->max_new_tokens;
    a->ahead = is_cold(r) && d9d_comm_size(r->engine.world) == 1;
    a->positions = r->engine.whole->max_positions;
    a->step = d9d_mesh_count(r->engine.mesh, D9D_AXES_DP);
    a->next = r->written + d9d_mesh_index(r->engine.mesh, D9D_AXES_DP);
    return d9di_answers_create(r->c->trainer.batching.microbatch_size, a);
}

static d9d_status run_open(run *r)
{
    d9di_engine_how how = engine_opts(r);

    D9D_TRY(output_open(r));
    D9D_TRY(d9di_launch_flight(r->where->boot, r->how->output, &r->engine.arena, &how.flight));
    D9D_TRY(d9di_engine_fill(&r->engine, &how));
    D9D_TRY(rows_open(r));
    return answers_open(r);
}

static void run_close(run *r)
{
    d9di_answers_release(&r->answers);
    d9di_stepper_close(r->stepper);
    d9di_engine_release(&r->engine);
    d9di_asked_release(&r->asked);
    d9d_tokenizer_free(r->tokenizer);
    d9di_lines_release(&r->lines);
    for (size_t i = 0; i < r->late.len; i++)
        free(r->late.data[i].text);
    D9D_VEC_RELEASE(&r->late);
    d9d_buf_release(&r->said);
    d9d_buf_release(&r->line);
    d9d_stop_close(r->stop);
}

/* --- a line ------------------------------------------------------------------------------------
 */

/* What the tokens say; null where one of them is none of the tokenizer's. */
static d9d_status put_text(run *r, const uint32_t *ids, size_t n)
{
    d9d_buf text = {0};
    d9d_status st = d9d_tokenizer_decode(r->tokenizer, ids, n, D9D_DECODE_SKIP_SPECIAL, &text);

    if (st == D9D_OK)
        st = d9d_json_put_str(&r->line, text.len > 0 ? text.data : "", text.len);
    else if (st == D9D_EINVAL)
        st = d9d_buf_append(&r->line, "null", 4);
    d9d_buf_release(&text);
    return st;
}

static d9d_status put_line(run *r, const d9di_answer *row)
{
    const uint32_t *ids = row->ids.data + row->prompt;
    const size_t n = row->ids.len - (size_t)row->prompt;
    d9d_buf *b = &r->line;

    b->len = 0;
    D9D_TRY(d9d_buf_printf(b, "{\"sample\": %lld, ", (long long)row->of.sample));
    if (row->of.dataset >= 0)
        D9D_TRY(d9d_buf_printf(b, "\"dataset\": %d, ", row->of.dataset));
    D9D_TRY(d9d_buf_printf(b, "\"prompt_tokens\": %lld, \"tokens\": [", (long long)row->prompt));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(d9d_buf_printf(b, "%s%u", i > 0 ? ", " : "", ids[i]));
    D9D_TRY(d9d_buf_printf(b, "], "));
    if (r->tokenizer != NULL) {
        D9D_TRY(d9d_buf_printf(b, "\"text\": "));
        D9D_TRY(put_text(r, ids, n));
        D9D_TRY(d9d_buf_printf(b, ", "));
    }
    return d9d_buf_printf(b, "\"finish\": \"%s\"}\n", row->finish);
}

/* --- what ranks say to each other -------------------------------------------------------------- *
 *
 * Whether there is more to do, why to leave, what failed, and lines: heads with text behind each.
 */

typedef enum about { MORE, LEAVE, FAILED, LINE } about;

typedef struct head {
    about about;
    d9d_status st;  /* FAILED */
    int64_t k;      /* LINE: of the stream */
    int64_t tokens; /* LINE: generated */
    uint64_t n;     /* bytes of text */
} head;

static d9d_status say(run *r, head h, const char *text, size_t n)
{
    h.n = n;
    D9D_TRY(d9d_buf_append(&r->said, &h, sizeof(h)));
    return n > 0 ? d9d_buf_append(&r->said, text, n) : D9D_OK;
}

/* Of ranks that have the same samples the first one speaks. */
static d9d_status answer_say(void *arg, const d9di_answer *row)
{
    run *r = arg;
    const head h = {.about = LINE, .k = row->k, .tokens = (int64_t)row->ids.len - row->prompt};

    if (d9d_mesh_index(r->engine.mesh, D9D_AXIS(TP) | D9D_AXIS(PP)) > 0)
        return D9D_OK;
    D9D_TRY(put_line(r, row));
    return say(r, h, r->line.data, r->line.len);
}

/* One step; a number that is none is told to all. */
static d9d_status step_say(run *r)
{
    const char *reason = r->stop != NULL ? d9d_stop_reason(r->stop) : NULL;
    d9d_status st = d9di_answers_step(&r->answers, answer_say, r);

    if (st == D9D_ENUMERIC)
        st =
            say(r, (head){.about = FAILED, .st = st}, d9d_err_message(), strlen(d9d_err_message()));
    D9D_TRY(st);
    if (reason != NULL)
        D9D_TRY(say(r, (head){.about = LEAVE}, reason, strlen(reason)));
    return d9di_answers_busy(&r->answers) ? say(r, (head){.about = MORE}, NULL, 0) : D9D_OK;
}

/* The lines that are next. */
static d9d_status late_write(run *r)
{
    for (size_t i = 0; i < r->late.len;) {
        late *l = &r->late.data[i++];

        if (l->k != r->written)
            continue;
        D9D_TRY(d9di_lines_add(&r->lines, l->text, l->n));
        free(l->text);
        *l = r->late.data[--r->late.len];
        r->written++;
        i = 0;
    }
    return D9D_OK;
}

static d9d_status line_take(run *r, const head *h, const char *text)
{
    late l = {.k = h->k, .n = h->n};

    r->tokens += h->tokens;
    if (r->rank > 0)
        return D9D_OK;
    l.text = malloc(h->n);
    if (l.text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "a line of %llu bytes", (unsigned long long)h->n);
    memcpy(l.text, text, h->n);
    if (D9D_VEC_PUSH(&r->late, l) != D9D_OK) {
        free(l.text);
        return D9D_ENOMEM;
    }
    return late_write(r);
}

/* What all ranks said, in their order: the same on all of them. */
typedef struct heard {
    bool more;
    int64_t lines;
    d9d_status st;
    const char *failed, *leave;
} heard;

static d9d_status words_take(run *r, const d9d_comm_word *w, d9d_arena *a, heard *out)
{
    const char *at = w->data, *end = at + w->n;
    head h;

    for (; at < end; at += h.n) {
        memcpy(&h, at, sizeof(h));
        at += sizeof(h);
        out->more = out->more || h.about == MORE;
        out->lines += h.about == LINE;
        if (h.about == LEAVE && out->leave == NULL)
            out->leave = d9d_arena_strndup(a, at, h.n);
        if (h.about == FAILED && out->failed == NULL) {
            out->failed = d9d_arena_strndup(a, at, h.n);
            out->st = h.st;
        }
        if (h.about == LINE)
            D9D_TRY(line_take(r, &h, at));
    }
    return D9D_OK;
}

static d9d_status exchange(run *r, d9d_arena *a, heard *out)
{
    d9d_comm_word *all;

    D9D_TRY(
        d9d_comm_allgather_arena(r->engine.world, "answers", r->said.data, r->said.len, a, &all));
    for (int i = 0; i < d9d_comm_size(r->engine.world); i++)
        D9D_TRY(words_take(r, &all[i], a, out));
    return D9D_OK;
}

static d9d_status step(run *r, bool *more, int64_t *done)
{
    d9d_arena a = {0};
    heard h = {0};
    d9d_status st;

    r->said.len = 0;
    D9D_TRY_OR(st, step_say(r), out);
    D9D_TRY_OR(st, exchange(r, &a, &h), out);
    *more = h.more;
    *done += h.lines;
    if (h.failed != NULL)
        st = d9d_boot_agree(r->where->boot, D9D_FAIL(h.st, "%s", h.failed));
    else if (h.leave != NULL && h.more)
        st = d9d_boot_agree(r->where->boot,
                            D9D_FAIL(D9D_EINTR, "%s: %lld of %lld samples are done", h.leave,
                                     (long long)*done, (long long)r->asked.n));
out:
    d9d_arena_release(&a);
    return st;
}

/* --- the loop -----------------------------------------------------------------------------------
 */

static d9d_status steps_run(run *r)
{
    int64_t done = r->written;
    bool more = done < r->asked.n;
    d9d_progress progress;
    d9d_status st = D9D_OK;

    d9d_progress_start(&progress, r->log, "generate", "samples", (uint64_t)r->asked.n);
    progress.first = progress.done = (uint64_t)done;
    while (more && st == D9D_OK) {
        st = step(r, &more, &done);
        d9d_progress_note(&progress, "%lld tokens", (long long)r->tokens);
        d9d_progress_add(&progress, (uint64_t)done - progress.done);
    }
    d9d_progress_end(&progress);
    return st;
}

static d9d_status run_through(run *r, const json_t *resolved, d9d_infer_summary *s)
{
    int64_t start;

    D9D_TRY(d9d_boot_agree(r->where->boot, run_check(r)));
    D9D_TRY(sources_check(r, resolved));
    D9D_TRY(run_open(r));
    s->first_sample = r->written;
    s->samples = r->asked.n;
    start = d9d_clock_ns();
    D9D_TRY(steps_run(r));
    s->tokens = r->tokens;
    s->tokens_per_s = (double)r->tokens / ((double)(d9d_clock_ns() - start) * 1e-9);
    return d9d_boot_agree(r->where->boot, r->rank == 0 ? d9di_lines_commit(&r->lines) : D9D_OK);
}

d9d_status d9di_generate(const d9d_infer_config *config, const json_t *resolved,
                         const d9d_job *where, d9d_infer_summary *out)
{
    run r = {.c = config,
             .how = config->task.value,
             .where = where,
             .log = where->log,
             .rank = d9d_boot_rank(where->boot),
             .lines = {.file = {.fd = -1}, .journal = {.file = {.fd = -1}}}};
    const int64_t margin = config->trainer.timeout.save_margin;
    d9d_infer_summary s = {.what = D9D_INFER_GENERATED, .loss = NAN, .perplexity = NAN};
    d9d_status st;

    D9D_TRY_OR(st, d9d_stop_open(r.rank == 0 ? margin : D9D_STOP_NO_LIMIT, r.log, &r.stop), out);
    D9D_TRY_OR(st, run_through(&r, resolved, &s), out);
    *out = s;
out:
    st = d9di_launch_failed(where->boot, r.engine.mesh, st);
    run_close(&r);
    if (st == D9D_OK)
        d9di_launch_landed(where->boot, r.how->output);
    return st;
}
