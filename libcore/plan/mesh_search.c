/* mesh_search.c - see d9d/plan/mesh_search.h. */
#include "d9d/plan/mesh_search.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"
#include "d9d/device/simulated.h"
#include "d9d/job/preemption.h"
#include "d9d/parallel/parallel_plan.h"
#include "engine/job_start.h"
#include "plan/mesh_steps.h"
#include "plan/plan_private.h"

enum {
    MIN_CP_POSITIONS = 256,  /* positions of a sequence on one context-parallel rank */
    MAX_POSITIONS = 1 << 16, /* positions of a micro-batch */
    MAX_SIZES = 8,           /* of a micro-batch */
    ALL_PLANNED = 512,       /* most candidates of which each is planned */
    FIRST_PLANNED = 192,     /* of more: those planned first, evenly over all */
    LEADERS = 8              /* best candidates, around which is planned next */
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

/* A mesh without replicas and with the fewest stages, and whether it can divide the model. */
typedef struct division {
    d9d_parallel_degrees mesh;
    bool possible;
} division;

/* The result for a candidate. */
typedef struct plan_result {
    d9d_mesh_search_result best;
    bool reached, fits; /* the search reached it; it fits the memory */
    uint64_t least;     /* bytes that it needs at least; 0: it was refused */
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
    D9D_VEC(division) divisions;
    D9D_VEC(candidate) candidates;
    plan_result *results;   /* of each candidate */
    D9D_VEC(size_t) chosen; /* candidates of this round */
    int64_t meshes;
    d9d_preemption *signals; /* guarded by the lock */
    const char *stopped;     /* the signal that ended the search; NULL: none did */
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
           d9d_job_check_batching(d, &b) == D9D_OK;
}

/* The smallest divisor above 1, and 1 of 1. */
static int64_t smallest_divisor(int64_t n)
{
    int64_t p = 2;

    while (p * p <= n && n % p != 0)
        p++;
    return p * p <= n ? p : n;
}

/* Whether the model can be divided so.  It takes a model to find out, so the answer is remembered
 * for what divides layers; the plan finds out about more stages and shards. */
static d9d_status is_divisible(search_state *s, const d9d_parallel_degrees *d, bool *out)
{
    d9d_parallel_degrees one = *d;
    const division *known;

    one.pipeline_parallel = smallest_divisor(d->pipeline_parallel);
    one.data_parallel_replicate = d9d_parallel_degrees_ranks(d) / d->tensor_parallel /
                                  d->context_parallel_shard / one.pipeline_parallel;
    one.data_parallel_shard = 1;
    for (size_t i = 0; i < s->divisions.len; i++) {
        known = &s->divisions.data[i];
        if (d9d_parallel_degrees_equal(&known->mesh, &one)) {
            *out = known->possible;
            return D9D_OK;
        }
    }
    *out = d9d_parallel_plan_check(&s->spec, &one) == D9D_OK;
    return D9D_VEC_PUSH(&s->divisions, ((division){one, *out}));
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
    bool possible;

    if (!is_allowed(s, d, s->sizes[0]))
        return D9D_OK;
    D9D_TRY(is_divisible(s, d, &possible));
    if (possible)
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
    static const int methods[] = {D9D_CP_ALL_GATHER, D9D_CP_ALL_TO_ALL, D9D_CP_RING};

    for (int64_t cp = 1; cp <= ranks && (cp == 1 || cp * MIN_CP_POSITIONS <= s->rows[0].longest);
         cp++) {
        if (ranks % cp != 0)
            continue;
        d.context_parallel_shard = cp;
        for (size_t i = 0; i < (cp == 1 ? 1 : sizeof(methods) / sizeof(methods[0])); i++) {
            d.context_parallel_method = methods[i];
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
        .pipe = f->pipe,
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
    r->reached = true;
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

/* True once a signal asks to stop. */
static bool is_stopped(search_state *s)
{
    bool stopped;

    (void)pthread_mutex_lock(&s->lock);
    if (s->stopped == NULL)
        s->stopped = d9d_preemption_reason(s->signals);
    stopped = s->stopped != NULL;
    (void)pthread_mutex_unlock(&s->lock);
    return stopped;
}

static d9d_status plan_candidate(void *arg, int worker, size_t i)
{
    search_state *s = arg;
    d9d_arena a = {0};
    const size_t at = s->chosen.data[i];
    d9d_status st;

    (void)worker;
    if (is_stopped(s))
        return D9D_OK;
    st = plan_one(s, &s->candidates.data[at], &s->results[at], &a);
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

static bool can_release(const search_state *s, const candidate *c)
{
    d9d_train_config config = *s->config;

    config.trainer.optimizer_in_backward = true;
    config.mesh = c->mesh;
    config.trainer.batching.microbatch_size = s->sizes[c->size];
    return !s->config->trainer.optimizer_in_backward &&
           d9d_job_check_optimizer_in_backward(&config) == D9D_OK;
}

/* Of the candidates that trainer.optimizer_in_backward does not refuse, tries those of the least
 * memory with it, with all activations recomputed.  *fits is a candidate, or NULL. */
static d9d_status try_release(search_state *s, const d9d_mesh_search_results *out, d9d_arena *a,
                              const candidate **fits, uint64_t *bytes)
{
    *fits = NULL;
    for (int tries = 0; tries < LEADERS && *fits == NULL; tries++) {
        size_t at = s->candidates.len;
        d9d_train_config config;

        for (size_t i = 0; i < s->candidates.len; i++)
            if (s->results[i].least > 0 && can_release(s, &s->candidates.data[i]) &&
                (at == s->candidates.len || s->results[i].least < s->results[at].least))
                at = i;
        if (at == s->candidates.len)
            return D9D_OK;
        s->results[at].least = 0;
        D9D_TRY(make_config(s, &s->candidates.data[at], a, &config));
        ((d9d_model_section *)config.model_provider.value)->checkpointing = D9D_RECOMPUTE_FULL;
        D9D_TRY(d9di_plan_released_bytes(&config, s->opts, &s->data,
                                         &s->rows[s->candidates.data[at].size], a, bytes));
        if (*bytes > 0 && *bytes <= out->memory)
            *fits = &s->candidates.data[at];
    }
    return D9D_OK;
}

/* The remedy, where there is one. */
static d9d_status describe_release(search_state *s, const d9d_mesh_search_results *out, char *text,
                                   size_t n)
{
    char mesh[96];
    const candidate *c;
    d9d_arena a = {0};
    uint64_t bytes = 0;
    const d9d_status st = try_release(s, out, &a, &c, &bytes);

    text[0] = '\0';
    if (st == D9D_OK && c != NULL) {
        (void)d9d_parallel_degrees_text(&c->mesh, mesh, sizeof(mesh));
        (void)snprintf(text, n,
                       "; %s with micro-batches of %lld, activation checkpointing and "
                       "trainer.optimizer_in_backward fits, with %.2f GiB",
                       mesh, (long long)s->sizes[c->size], (double)bytes / 0x1p30);
    }
    d9d_arena_release(&a);
    return st;
}

static d9d_status fail_none_fits(search_state *s, const d9d_mesh_search_results *out)
{
    char release[256];
    uint64_t least = 0;

    if (out->n > 0)
        return D9D_OK;
    if (!out->complete)
        return D9D_FAIL(D9D_EINTR, "suggest: interrupted before a plan that fits was found");
    for (size_t i = 0; i < s->candidates.len; i++)
        if (s->results[i].least > 0 && (least == 0 || s->results[i].least < least))
            least = s->results[i].least;
    if (least == 0)
        D9D_TRY(first_error(s));
    if (least == 0)
        return D9D_FAIL(D9D_ECONFIG,
                        "no mesh of %lld rank%s divides this model and a batch of %lld sample%s",
                        (long long)out->ranks, D9D_PLURAL(out->ranks),
                        (long long)s->config->trainer.batching.global_batch_size,
                        D9D_PLURAL(s->config->trainer.batching.global_batch_size));
    D9D_TRY(describe_release(s, out, release, sizeof(release)));
    return D9D_FAIL(
        D9D_ECONFIG,
        "no mesh of %lld rank%s fits: a rank needs %.2f GiB at least, and may take %.2f "
        "GiB%s; more ranks or shorter rows need less",
        (long long)out->ranks, D9D_PLURAL(out->ranks), (double)least / 0x1p30,
        (double)out->memory / 0x1p30, release);
}

/* --- the search ------------------------------------------------------------------------------- */

static d9d_status search_open(search_state *s)
{
    bool is_fixed; /* the losses are of the size that the configuration has */

    D9D_TRY(d9d_model_spec_read(&s->config->model_provider, &s->arena, &s->spec));
    D9D_TRY(d9d_model_spec_trainable(&s->spec));
    D9D_TRY(d9di_plan_data_open(s->config, s->opts->length, &s->data));
    is_fixed =
        d9di_task_has_pairs(&s->data.task) || d9di_task_micro_batch_term(&s->data.task) != NULL;
    s->n_sizes = is_fixed ? 1 : MAX_SIZES;
    for (int i = 0; i < s->n_sizes; i++) {
        s->sizes[i] = is_fixed ? s->config->trainer.batching.microbatch_size : (int64_t)1 << i;
        D9D_TRY(d9di_plan_lengths_measure(&s->data, s->sizes[i], &s->rows[i]));
    }
    return D9D_OK;
}

/* Room for the results of candidates that were added. */
static d9d_status grow_results(search_state *s, size_t known)
{
    plan_result *all = d9d_arena_alloc(&s->arena, (s->candidates.len + 1) * sizeof(*all));

    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "suggest: no memory for %zu candidates", s->candidates.len);
    if (known > 0)
        memcpy(all, s->results, known * sizeof(*all));
    s->results = all;
    return D9D_OK;
}

/* Plans the chosen candidates; none is chosen then. */
static d9d_status plan_chosen(search_state *s, const char *label)
{
    d9d_status st;

    d9d_progress_start(&s->progress, s->log, label, "candidates", s->chosen.len);
    st = d9d_thread_run(0, s->chosen.len, plan_candidate, s);
    d9d_progress_end(&s->progress);
    s->chosen.len = 0;
    return st;
}

/* Every `stride`-th candidate from `first` on. */
static d9d_status plan_every(search_state *s, size_t first, size_t stride, const char *label)
{
    for (size_t i = first; i < s->candidates.len; i += stride)
        D9D_TRY(D9D_VEC_PUSH(&s->chosen, i));
    return plan_chosen(s, label);
}

/* Is candidate i a better one to search around than k?  What fits goes by its rate, the rest by the
 * memory that is missing, what was refused comes last. */
static bool leads(const search_state *s, size_t i, size_t k)
{
    const plan_result *a = &s->results[i], *b = &s->results[k];

    if (a->fits != b->fits)
        return a->fits;
    if (a->fits && a->best.tokens_per_hour != b->best.tokens_per_hour)
        return a->best.tokens_per_hour > b->best.tokens_per_hour;
    if (!a->fits && a->least != b->least)
        return b->least == 0 || (a->least != 0 && a->least < b->least);
    return i < k;
}

/* The best candidates so far; returns how many. */
static int find_leaders(const search_state *s, size_t leaders[LEADERS])
{
    int n = 0;

    for (size_t i = 0; i < s->candidates.len; i++) {
        int at = n;

        if (!s->results[i].reached)
            continue;
        while (at > 0 && leads(s, i, leaders[at - 1]))
            at--;
        if (at == LEADERS)
            continue;
        n = n < LEADERS ? n + 1 : n;
        memmove(&leaders[at + 1], &leaders[at], (size_t)(n - at - 1) * sizeof(*leaders));
        leaders[at] = i;
    }
    return n;
}

/* Chooses what is near one of the leaders and was not planned. */
static d9d_status choose_near(search_state *s)
{
    size_t leaders[LEADERS];
    const int n = find_leaders(s, leaders);

    for (size_t i = 0; i < s->candidates.len; i++) {
        const candidate *c = &s->candidates.data[i];
        bool near = false;

        for (int k = 0; k < n && !near && !s->results[i].reached; k++) {
            const candidate *of = &s->candidates.data[leaders[k]];

            near = d9di_mesh_search_is_near(&c->mesh, c->size, &of->mesh, of->size);
        }
        if (near)
            D9D_TRY(D9D_VEC_PUSH(&s->chosen, i));
    }
    return D9D_OK;
}

/* Plans all candidates if they are few.  Of many, some that lie evenly over all, then those around
 * the best ones, until all around the best ones are planned. */
static d9d_status plan_candidates(search_state *s)
{
    const size_t n = s->candidates.len;

    D9D_TRY(grow_results(s, 0));
    D9D_TRY(plan_every(s, 0, n <= ALL_PLANNED ? 1 : (n / FIRST_PLANNED) | 1, "suggest"));
    while (n > ALL_PLANNED && s->stopped == NULL) {
        D9D_TRY(choose_near(s));
        if (s->chosen.len == 0)
            break;
        D9D_TRY(plan_chosen(s, "suggest: around the best"));
    }
    return D9D_OK;
}

/* Could another schedule make it the best?  That would take more than no bubble and kernels twice
 * as fast. */
static bool is_hopeless(const d9d_mesh_search_result *g, double best_rate)
{
    return 2 * g->tokens_per_hour < best_rate * (1 - g->bubble);
}

/* Adds the best meshes with a pipeline, with other micro-batches and schedules. */
static d9d_status add_refined(search_state *s, const d9d_mesh_search_results *so_far)
{
    int left = REFINED_MESHES;

    for (size_t i = 0; i < so_far->n && left > 0; i++) {
        const d9d_parallel_degrees *d = &so_far->item[i].mesh;

        if (d->pipeline_parallel == 1 ||
            is_hopeless(&so_far->item[i], so_far->item[0].tokens_per_hour))
            continue;
        for (int pipe = 0; pipe < N_SCHEDULES; pipe++)
            D9D_TRY(add_sizes(s, d, pipe == 0, s->n_sizes, pipe));
        left--;
    }
    return D9D_OK;
}

static d9d_status run_search(search_state *s, d9d_arena *a, d9d_mesh_search_results *out)
{
    size_t known;

    D9D_TRY(search_open(s));
    D9D_TRY(add_meshes(s, out->ranks));
    D9D_TRY(plan_candidates(s));
    D9D_TRY(sort_results(s, a, out));
    known = s->candidates.len;
    if (s->stopped == NULL) {
        D9D_TRY(add_refined(s, out));
        D9D_TRY(grow_results(s, known));
        D9D_TRY(plan_every(s, known, 1, "suggest: pipelines"));
    }
    out->meshes = s->meshes;
    out->complete = s->stopped == NULL;
    if (s->stopped != NULL)
        d9d_log_warn(s->log, "suggest: %s: these are the best of what was planned", s->stopped);
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
    D9D_TRY(d9d_preemption_open(D9D_PREEMPTION_NO_LIMIT, log, &s.signals));
    st = run_search(&s, a, &all);
    if (st == D9D_OK)
        st = fail_none_fits(&s, &all);
    if (st == D9D_OK)
        *out = all;
    d9d_preemption_close(s.signals);
    D9D_VEC_RELEASE(&s.chosen);
    D9D_VEC_RELEASE(&s.candidates);
    D9D_VEC_RELEASE(&s.divisions);
    d9di_plan_data_release(&s.data);
    d9d_arena_release(&s.arena);
    return st;
}

/* --- output ----------------------------------------------------------------------------------- */

static const char *const recompute_names[] = {[D9D_RECOMPUTE_OFF] = "off",
                                              [D9D_RECOMPUTE_FULL] = "full",
                                              [D9D_RECOMPUTE_SELECTIVE] = "selective"};

/* Removes degrees of 1 and the default method, which need not be said. */
static void remove_defaults(json_t *mesh)
{
    const char *name, *method = d9d_cp_method_name(D9D_CP_ALL_GATHER);
    json_t *value;
    void *next;

    json_object_foreach_safe(mesh, next, name, value)
    {
        const char *text = json_string_value(value);

        if (json_integer_value(value) == 1 || (text != NULL && strcmp(text, method) == 0))
            (void)json_object_del(mesh, name);
    }
}

/* trainer.pipelining as a configuration has it; null without a pipeline. */
static json_t *pipelining_json(const d9d_mesh_search_result *g)
{
    return g->schedule[0] != '\0' ? d9d_job_pipelining_json(&g->pipe) : json_null();
}

/* Prints --set 'KEY=VALUE'. */
static d9d_status print_option(const char *key, const json_t *value, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, " --set '%s=", key));
    D9D_TRY(d9d_json_put(out, value, -1));
    return d9d_buf_printf(out, "'");
}

/* Prints the best result as options of d9d-train. */
static d9d_status print_best_options(const d9d_mesh_search_result *g, d9d_buf *out)
{
    json_t *mesh = d9di_plan_mesh_json(&g->mesh), *pipelining = pipelining_json(g);
    d9d_status st;

    remove_defaults(mesh);
    D9D_TRY_OR(st, d9d_buf_printf(out, "the first:"), out);
    D9D_TRY_OR(st, print_option("mesh", mesh, out), out);
    if (!json_is_null(pipelining))
        D9D_TRY_OR(st, print_option("trainer.pipelining", pipelining, out), out);
    st = d9d_buf_printf(out,
                        " --set trainer.batching.microbatch_size=%lld "
                        "--set model_provider.checkpointing=%s\n",
                        (long long)g->rows, recompute_names[g->checkpointing]);
out:
    json_decref(pipelining);
    json_decref(mesh);
    return st;
}

d9d_status d9d_mesh_search_print(const d9d_mesh_search_results *s, size_t max_n, d9d_buf *out)
{
    int width = 28; /* of the first column */

    for (size_t i = 0; i < s->n && i < max_n; i++)
        if ((int)strlen(s->item[i].mesh_text) > width)
            width = (int)strlen(s->item[i].mesh_text);
    D9D_TRY(d9d_buf_printf(out, "%-*s %5s %-13s %-16s %10s %8s %15s %6s\n", width, "mesh", "rows",
                           "checkpointing", "schedule", "GiB a rank", "step s", "tokens/s a rank",
                           "MFU %"));
    for (size_t i = 0; i < s->n && i < max_n; i++) {
        const d9d_mesh_search_result *g = &s->item[i];

        D9D_TRY(d9d_buf_printf(out, "%-*s %5lld %-13s %-16s %10.2f %8.3g %15.5g %6.1f\n", width,
                               g->mesh_text, (long long)g->rows, recompute_names[g->checkpointing],
                               g->schedule[0] != '\0' ? g->schedule : "-",
                               (double)g->bytes / 0x1p30, g->step_s,
                               g->tokens_per_hour / 3600 / (double)s->ranks, 100 * g->mfu));
    }
    if (s->n > 0)
        D9D_TRY(print_best_options(&s->item[0], out));
    return d9d_buf_printf(
        out, "%lld meshes of %lld x %s are possible; %zu were found to fit by %lld plans%s\n",
        (long long)s->meshes, (long long)s->ranks, s->chip->title, s->n, (long long)s->planned,
        s->complete ? "" : ", before the search was stopped");
}

static json_t *result_json(const d9d_mesh_search_result *g)
{
    return json_pack("{s:o, s:I, s:s, s:o, s:o, s:I, s:f, s:f, s:f, s:f}", "mesh",
                     d9di_plan_mesh_json(&g->mesh), "rows", (json_int_t)g->rows, "checkpointing",
                     recompute_names[g->checkpointing], "schedule",
                     g->schedule[0] != '\0' ? json_string(g->schedule) : json_null(), "pipelining",
                     pipelining_json(g), "bytes", (json_int_t)g->bytes, "step_s", g->step_s,
                     "tokens_per_hour", g->tokens_per_hour, "mfu", g->mfu, "bubble", g->bubble);
}

json_t *d9d_mesh_search_json(const d9d_mesh_search_results *s)
{
    json_t *list = json_array();
    bool well = list != NULL;

    for (size_t i = 0; i < s->n && well; i++)
        well = json_array_append_new(list, result_json(&s->item[i])) == 0;
    return json_pack("{s:s, s:s, s:I, s:o, s:I, s:I, s:b, s:o}", "schema", "d9d.suggest.v1",
                     "device", s->chip->name, "ranks", (json_int_t)s->ranks, "memory",
                     s->memory > 0 ? json_integer((json_int_t)s->memory) : json_null(), "meshes",
                     (json_int_t)s->meshes, "plans", (json_int_t)s->planned, "complete",
                     s->complete, "suggestions", list);
}
