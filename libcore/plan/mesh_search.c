/* mesh_search.c - see d9d/plan/mesh_search.h. */
#include "d9d/plan/mesh_search.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/device/simulated.h"
#include "d9d/parallel/parallel_plan.h"
#include "engine/job_start.h"
#include "plan/plan_private.h"

enum {
    MIN_CP_POSITIONS = 256,  /* positions of a sequence on one context-parallel rank */
    MAX_POSITIONS = 1 << 16, /* positions of a micro-batch */
    MAX_SIZES = 8            /* of a micro-batch */
};

/* Pipeline schedules: the first for all meshes, the others for the best ones. */
static const d9d_pipe_schedule_opts pipe_schedules[] = {
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1},
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1, .zero_bubble = true},
    {.kind = D9D_PIPE_1F1B, .stages_per_rank = 2},
    {.kind = D9D_PIPE_ZERO_BUBBLE_V},
    {.kind = D9D_PIPE_DUAL_PIPE_V},
};
enum {
    N_SCHEDULES = sizeof(pipe_schedules) / sizeof(pipe_schedules[0]),
    REFINED_MESHES = 8 /* number of best meshes with a pipeline */
};

/* A mesh with a micro-batch size and a schedule. */
typedef struct candidate {
    d9d_parallel_degrees mesh;
    int size, pipe; /* indices */
} candidate;

/* The result for a candidate. */
typedef struct plan_result {
    d9d_mesh_search_result best;
    bool fits;
    uint64_t least; /* bytes that it needs at least; 0: it was refused */
    int64_t planned;
} plan_result;

typedef struct search_state {
    const d9d_train_config *config;
    const d9d_plan_opts *opts;
    d9d_model_spec spec;
    d9di_plan_data data;
    /* Micro-batch sizes in sequences: 1, 2, 4, ...; for a task on pairs only the configured size,
     * since another one changes what is learned. */
    int64_t sizes[MAX_SIZES];
    int n_sizes;
    d9di_plan_lengths rows[MAX_SIZES];
    D9D_VEC(candidate) candidates;
    plan_result *results;
    size_t done; /* candidates that have been planned */
    int64_t meshes;
    const d9d_log *log;
    d9d_progress progress; /* guarded by the lock */
    pthread_mutex_t lock;
    d9d_arena arena;
} search_state;

/* --- candidates ------------------------------------------------------------------------------- */

static bool is_allowed(const search_state *s, const d9d_parallel_degrees *d, int64_t rows)
{
    const struct d9d_job_batching_section b = {
        .global_batch_size = s->config->trainer.batching.global_batch_size,
        .microbatch_size = rows,
    };

    return d9d_parallel_degrees_check(d, d9d_parallel_degrees_ranks(d)) == D9D_OK &&
           d9d_job_check_batching(d, &b) == D9D_OK &&
           d9d_parallel_plan_check(&s->spec, d) == D9D_OK;
}

/* Adds sizes from `first` up to, but excluding, `end`. */
static d9d_status add_sizes(search_state *s, const d9d_parallel_degrees *d, int first, int end,
                            int pipe)
{
    for (int size = first; size < end; size++) {
        const int64_t rows = s->sizes[size];

        if ((size > 0 && rows * s->rows[0].mean > MAX_POSITIONS) || !is_allowed(s, d, rows))
            break;
        D9D_TRY(D9D_VEC_PUSH(&s->candidates, ((candidate){*d, size, pipe})));
    }
    return D9D_OK;
}

/* Pipelines are slow to plan: only the best get more candidates later. */
static d9d_status add_mesh(search_state *s, const d9d_parallel_degrees *d)
{
    const size_t before = s->candidates.len;

    D9D_TRY(add_sizes(s, d, 0, d->pipeline_parallel > 1 ? 1 : s->n_sizes, 0));
    s->meshes += s->candidates.len > before;
    return D9D_OK;
}

/* Adds expert parallelism over neighbouring ranks, by nodes too where a group has several whole
 * ones. */
static d9d_status add_expert_parallel(search_state *s, d9d_parallel_degrees d)
{
    const int64_t node = d9d_sim_chip_find(s->opts->chip)->per_node;
    const int64_t stage = d.data_parallel_replicate * d.data_parallel_shard *
                          d.context_parallel_shard * d.context_parallel_replicate *
                          d.tensor_parallel;

    for (d.expert_parallel = 1; d.expert_parallel <= stage; d.expert_parallel++) {
        if (stage % d.expert_parallel != 0)
            continue;
        d.expert_parallel_local = 1;
        D9D_TRY(add_mesh(s, &d));
        d.expert_parallel_local = node;
        if (node > 1 && d.expert_parallel > node && d.expert_parallel % node == 0)
            D9D_TRY(add_mesh(s, &d));
    }
    return D9D_OK;
}

/* Adds data parallelism, replicated or sharded. */
static d9d_status add_data_parallel(search_state *s, d9d_parallel_degrees d, int64_t ranks)
{
    const int node = d9d_sim_chip_find(s->opts->chip)->per_node;

    for (int64_t shard = 1; shard <= ranks; shard++) {
        const int64_t inside = shard * d.context_parallel_shard * d.tensor_parallel;

        if (ranks % shard != 0 || (shard > 1 && shard < ranks && inside % node != 0))
            continue;
        d.data_parallel_shard = shard;
        d.data_parallel_replicate = ranks / shard;
        D9D_TRY(add_expert_parallel(s, d));
    }
    return D9D_OK;
}

static d9d_status add_context_parallel(search_state *s, d9d_parallel_degrees d, int64_t ranks)
{
    for (int64_t cp = 1; cp <= ranks && (cp == 1 || cp * MIN_CP_POSITIONS <= s->rows[0].longest);
         cp++) {
        if (ranks % cp != 0)
            continue;
        d.context_parallel_shard = cp;
        for (int i = D9D_CP_ALL_GATHER; i <= (cp == 1 ? D9D_CP_ALL_GATHER : D9D_CP_ALL_TO_ALL);
             i++) {
            d.context_parallel_method = i;
            D9D_TRY(add_data_parallel(s, d, ranks / cp));
        }
    }
    return D9D_OK;
}

static d9d_status add_tensor_parallel(search_state *s, d9d_parallel_degrees d, int64_t ranks)
{
    const int node = d9d_sim_chip_find(s->opts->chip)->per_node;

    for (int64_t tp = 1; tp <= ranks && tp <= node; tp++) {
        if (ranks % tp != 0)
            continue;
        d.tensor_parallel = tp;
        D9D_TRY(add_context_parallel(s, d, ranks / tp));
    }
    return D9D_OK;
}

static d9d_status add_meshes(search_state *s, int64_t ranks)
{
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};

    for (int64_t pp = 1; pp <= ranks; pp++) {
        if (ranks % pp != 0)
            continue;
        d.pipeline_parallel = pp;
        D9D_TRY(add_tensor_parallel(s, d, ranks / pp));
    }
    return D9D_OK;
}

/* --- planning --------------------------------------------------------------------------------- */

/* The configuration of a candidate, with its own copy of the model's section. */
static d9d_status make_config(const search_state *s, const candidate *c, d9d_arena *a,
                              d9d_train_config *out)
{
    static const d9d_table built_in = {.name = "schedule"};
    const d9d_union *provider = &s->config->model_provider;
    d9d_model_section *head = d9d_arena_alloc(a, provider->choice->size);
    d9d_job_stages_section *own = d9d_arena_alloc(a, sizeof(*own));
    const d9d_pipe_schedule_opts *pipe = &pipe_schedules[c->pipe];

    if (head == NULL || own == NULL)
        return D9D_FAIL(D9D_ENOMEM, "suggest: no memory for a configuration");
    memcpy(head, provider->value, provider->choice->size);
    *out = *s->config;
    out->model_provider.value = head;
    out->mesh = c->mesh;
    out->trainer.batching.microbatch_size = s->sizes[c->size];
    *own = (d9d_job_stages_section){.num_stages_per_rank = pipe->stages_per_rank,
                                    .zero_bubble = pipe->zero_bubble};
    out->trainer.pipelining.schedule =
        (d9d_union){.which = (int)pipe->kind, .value = own, .choice = &built_in};
    return D9D_OK;
}

static void update_best(plan_result *r, const d9d_plan *f, int checkpointing)
{
    d9d_mesh_search_result *best = &r->best;
    const double rate = d9d_plan_tokens_per_hour(f);

    if (r->fits && rate <= best->tokens_per_hour)
        return;
    r->fits = true;
    *best = (d9d_mesh_search_result){
        .mesh = f->mesh,
        .rows = f->samples,
        .checkpointing = checkpointing,
        .bytes = d9d_plan_rank_bytes(d9d_plan_largest_rank(f)),
        .step_s = f->step_s,
        .tokens_per_hour = rate,
        .mfu = f->mfu,
        .bubble = f->bubble,
    };
    memcpy(best->mesh_text, f->mesh_text, sizeof(best->mesh_text));
    memcpy(best->schedule, f->schedule, sizeof(best->schedule));
}

/* Plans with the least checkpointing that fits.  An impossible candidate, such as more stages than
 * layers, is not an error. */
static d9d_status plan_one(search_state *s, const candidate *c, plan_result *r, d9d_arena *a)
{
    static const int modes[] = {D9D_RECOMPUTE_OFF, D9D_RECOMPUTE_SELECTIVE, D9D_RECOMPUTE_FULL};
    d9d_train_config config;
    d9d_plan f;
    d9d_status st;

    D9D_TRY(make_config(s, c, a, &config));
    for (int i = 0; i < 3 && !r->fits; i++) {
        ((d9d_model_section *)config.model_provider.value)->checkpointing = modes[i];
        st = d9di_plan_estimate(&config, s->opts, &s->data, &s->rows[c->size], a, &f);
        if (st == D9D_ECONFIG || st == D9D_ENOTSUP || st == D9D_EMISMATCH)
            return D9D_OK;
        D9D_TRY(st);
        r->planned++;
        r->least = d9d_plan_rank_bytes(d9d_plan_largest_rank(&f));
        if (d9d_plan_fits(&f))
            update_best(r, &f, modes[i]);
    }
    return D9D_OK;
}

static d9d_status plan_candidate(void *arg, int worker, size_t i)
{
    search_state *s = arg;
    d9d_arena a = {0};
    const size_t at = s->done + i;
    const d9d_status st = plan_one(s, &s->candidates.data[at], &s->results[at], &a);

    (void)worker;
    d9d_arena_release(&a);
    (void)pthread_mutex_lock(&s->lock);
    d9d_progress_add(&s->progress, 1);
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* --- ranking ---------------------------------------------------------------------------------- */

/* Of equal rates the one that needs less memory, then the one found first. */
static int compare_rate(const void *a, const void *b)
{
    const d9d_mesh_search_result *x = a, *y = b;
    int64_t mesh_x[D9D_N_PARALLEL_DEGREES], mesh_y[D9D_N_PARALLEL_DEGREES];

    if (x->tokens_per_hour != y->tokens_per_hour)
        return x->tokens_per_hour > y->tokens_per_hour ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    d9d_parallel_degrees_values(&x->mesh, mesh_x);
    d9d_parallel_degrees_values(&y->mesh, mesh_y);
    return memcmp(mesh_x, mesh_y, sizeof(mesh_x));
}

/* The best candidate of each mesh, among those planned so far. */
static d9d_status sort_results(const search_state *s, d9d_arena *a, d9d_mesh_search_results *out)
{
    const size_t n = s->candidates.len;
    size_t n_unique = 0;

    out->n = 0;
    out->planned = 0;
    out->item = d9d_arena_alloc(a, (n + 1) * sizeof(*out->item));
    if (out->item == NULL)
        return D9D_FAIL(D9D_ENOMEM, "suggest: no memory for %zu candidates", n);
    for (size_t i = 0; i < n; i++) {
        out->planned += s->results[i].planned;
        if (s->results[i].fits)
            out->item[out->n++] = s->results[i].best;
    }
    qsort(out->item, out->n, sizeof(*out->item), compare_rate);
    for (size_t i = 0; i < out->n; i++) {
        bool seen = false;

        for (size_t k = 0; k < n_unique && !seen; k++)
            seen = strcmp(out->item[k].mesh_text, out->item[i].mesh_text) == 0;
        if (!seen)
            out->item[n_unique++] = out->item[i];
    }
    out->n = n_unique;
    return D9D_OK;
}

/* If all were refused: the error of the first candidate without a pipeline, if that is the
 * cause. */
static d9d_status first_error(const search_state *s)
{
    d9d_arena a = {0};
    d9d_train_config config;
    d9d_plan f;
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < s->candidates.len && st == D9D_OK; i++) {
        const candidate *c = &s->candidates.data[i];

        if (c->mesh.pipeline_parallel > 1)
            continue;
        st = make_config(s, c, &a, &config);
        if (st == D9D_OK)
            st = d9di_plan_estimate(&config, s->opts, &s->data, &s->rows[c->size], &a, &f);
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status fail_none_fits(const search_state *s, const d9d_mesh_search_results *out)
{
    uint64_t least = 0;

    if (out->n > 0)
        return D9D_OK;
    for (size_t i = 0; i < s->candidates.len; i++)
        if (s->results[i].least > 0 && (least == 0 || s->results[i].least < least))
            least = s->results[i].least;
    if (least == 0)
        D9D_TRY(first_error(s));
    if (least == 0)
        return D9D_FAIL(
            D9D_ECONFIG, "no mesh of %lld ranks divides this model and a batch of %lld samples",
            (long long)out->ranks, (long long)s->config->trainer.batching.global_batch_size);
    return D9D_FAIL(D9D_ECONFIG,
                    "no mesh of %lld ranks fits: a rank needs %.2f GiB at least, and may take %.2f "
                    "GiB; more ranks or shorter rows need less",
                    (long long)out->ranks, (double)least / 0x1p30, (double)out->memory / 0x1p30);
}

/* --- the search ------------------------------------------------------------------------------- */

static d9d_status search_open(search_state *s)
{
    bool paired;

    D9D_TRY(d9d_model_spec_read(&s->config->model_provider, &s->arena, &s->spec));
    D9D_TRY(d9d_model_spec_trainable(&s->spec));
    D9D_TRY(d9di_plan_data_open(s->config, s->opts->length, &s->data));
    paired = d9di_task_has_pairs(&s->data.task);
    s->n_sizes = paired ? 1 : MAX_SIZES;
    for (int i = 0; i < s->n_sizes; i++) {
        s->sizes[i] = paired ? s->config->trainer.batching.microbatch_size : (int64_t)1 << i;
        D9D_TRY(d9di_plan_lengths_measure(&s->data, s->sizes[i], &s->rows[i]));
    }
    return D9D_OK;
}

/* Plans candidates from index `done` on. */
static d9d_status plan_candidates(search_state *s, size_t done)
{
    plan_result *all = d9d_arena_alloc(&s->arena, (s->candidates.len + 1) * sizeof(*all));
    d9d_status st;

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "suggest: no memory for %zu candidates", s->candidates.len);
    if (done > 0)
        memcpy(all, s->results, done * sizeof(*all));
    s->results = all;
    s->done = done;
    d9d_progress_start(&s->progress, s->log,
                       done > 0 ? "suggest: no memory for the best candidates" : "suggest",
                       "candidates", s->candidates.len - done);
    st = d9d_thread_run(0, s->candidates.len - done, plan_candidate, s);
    d9d_progress_end(&s->progress);
    return st;
}

/* Adds the best meshes with a pipeline, with other micro-batches and schedules. */
static d9d_status add_refined(search_state *s, const d9d_mesh_search_results *so_far)
{
    int left = REFINED_MESHES;

    for (size_t i = 0; i < so_far->n && left > 0; i++) {
        const d9d_parallel_degrees *d = &so_far->item[i].mesh;

        if (d->pipeline_parallel == 1)
            continue;
        for (int pipe = 0; pipe < N_SCHEDULES; pipe++)
            D9D_TRY(add_sizes(s, d, pipe == 0, s->n_sizes, pipe));
        left--;
    }
    return D9D_OK;
}

static d9d_status run_search(search_state *s, d9d_arena *a, d9d_mesh_search_results *out)
{
    size_t done;

    D9D_TRY(search_open(s));
    D9D_TRY(add_meshes(s, out->ranks));
    D9D_TRY(plan_candidates(s, 0));
    D9D_TRY(sort_results(s, a, out));
    done = s->candidates.len;
    D9D_TRY(add_refined(s, out));
    D9D_TRY(plan_candidates(s, done));
    out->meshes = s->meshes;
    return sort_results(s, a, out);
}

d9d_status d9d_mesh_search(const d9d_train_config *config, const d9d_plan_opts *opts, int64_t ranks,
                           const d9d_log *log, d9d_arena *a, d9d_mesh_search_results *out)
{
    search_state s = {
        .config = config, .opts = opts, .log = log, .lock = PTHREAD_MUTEX_INITIALIZER};
    d9d_mesh_search_results all = {.ranks = ranks};
    d9d_status st;

    D9D_TRY(d9d_device_check_simulated(opts->chip));
    all.chip = d9d_sim_chip_find(opts->chip);
    all.memory = opts->memory > 0 ? opts->memory : all.chip->memory;
    st = run_search(&s, a, &all);
    if (st == D9D_OK)
        st = fail_none_fits(&s, &all);
    if (st == D9D_OK)
        *out = all;
    D9D_VEC_RELEASE(&s.candidates);
    d9di_plan_data_release(&s.data);
    d9d_arena_release(&s.arena);
    return st;
}

/* --- output ----------------------------------------------------------------------------------- */

static const char *const recompute_names[] = {[D9D_RECOMPUTE_OFF] = "off",
                                              [D9D_RECOMPUTE_FULL] = "full",
                                              [D9D_RECOMPUTE_SELECTIVE] = "selective"};

/* Prints the best result as options of d9d-train. */
static d9d_status print_best_options(const d9d_mesh_search_result *g, d9d_buf *out)
{
    json_t *mesh = d9di_plan_mesh_json(&g->mesh);
    d9d_buf text = {0};
    d9d_status st = d9d_json_put(&text, mesh, -1);

    if (st == D9D_OK)
        st =
            d9d_buf_printf(out,
                           "the first: --set 'mesh=%s' --set trainer.batching.microbatch_size=%lld "
                           "--set model_provider.checkpointing=%s\n",
                           text.data, (long long)g->rows, recompute_names[g->checkpointing]);
    d9d_buf_release(&text);
    json_decref(mesh);
    return st;
}

d9d_status d9d_mesh_search_print(const d9d_mesh_search_results *s, size_t max_n, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%-28s %5s %-13s %-16s %10s %8s %15s %6s\n", "mesh", "rows",
                           "checkpointing", "schedule", "GiB a rank", "step s", "tokens/s a rank",
                           "MFU %"));
    for (size_t i = 0; i < s->n && i < max_n; i++) {
        const d9d_mesh_search_result *g = &s->item[i];

        D9D_TRY(d9d_buf_printf(out, "%-28s %5lld %-13s %-16s %10.2f %8.3g %15.5g %6.1f\n",
                               g->mesh_text, (long long)g->rows, recompute_names[g->checkpointing],
                               g->schedule[0] != '\0' ? g->schedule : "-",
                               (double)g->bytes / 0x1p30, g->step_s,
                               g->tokens_per_hour / 3600 / (double)s->ranks, 100 * g->mfu));
    }
    if (s->n > 0)
        D9D_TRY(print_best_options(&s->item[0], out));
    return d9d_buf_printf(out, "%zu of %lld meshes of %lld x %s fit; %lld plans\n", s->n,
                          (long long)s->meshes, (long long)s->ranks, s->chip->title,
                          (long long)s->planned);
}

static json_t *result_json(const d9d_mesh_search_result *g)
{
    return json_pack("{s:o, s:I, s:s, s:o, s:I, s:f, s:f, s:f, s:f}", "mesh",
                     d9di_plan_mesh_json(&g->mesh), "rows", (json_int_t)g->rows, "checkpointing",
                     recompute_names[g->checkpointing], "schedule",
                     g->schedule[0] != '\0' ? json_string(g->schedule) : json_null(), "bytes",
                     (json_int_t)g->bytes, "step_s", g->step_s, "tokens_per_hour",
                     g->tokens_per_hour, "mfu", g->mfu, "bubble", g->bubble);
}

json_t *d9d_mesh_search_json(const d9d_mesh_search_results *s)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (size_t i = 0; i < s->n && well; i++)
        well = json_array_append_new(list, result_json(&s->item[i])) == 0;
    return json_pack("{s:s, s:s, s:I, s:o, s:I, s:I, s:o}", "schema", "d9d.suggest.v1", "device",
                     s->chip->name, "ranks", (json_int_t)s->ranks, "memory",
                     s->memory > 0 ? json_integer((json_int_t)s->memory) : json_null(), "meshes",
                     (json_int_t)s->meshes, "plans", (json_int_t)s->planned, "suggestions", list);
}
