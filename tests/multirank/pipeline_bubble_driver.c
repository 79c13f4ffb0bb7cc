/* pipeline_bubble_driver.c - compares a pipeline's measured bubble with the one that its timeline
 * predicts: `pipeline_bubble_driver MICROS KIND [STAGES [FLAG...]]`.
 *
 * The executor runs programs with real messages on their full number of ranks.  A stage computes
 * nothing and sleeps for its duration instead, so that many ranks behave realistically on a few
 * processors.  Flags: split and deep as in pipeline_driver; uneven: some stages take longer than
 * others, and their forward and backward times differ.
 *
 * Of several runs, the fastest one, which other processes disturbed least, is compared with a
 * timeline from the costs measured in it, as d9d-train --plan --costs makes it.  The bubbles must
 * be within 2 points.  On busy processors a message waits for its receiver to be scheduled, which
 * takes the same time however long stages are: so more runs are made, up to a limit, and then runs
 * of longer stages.  If ranks did not wake in time in any run, exit code 77 means that nothing can
 * be measured here.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"
#include "d9d/comm/mesh.h"
#include "d9d/op/op.h"
#include "d9d/pipe/executor.h"

#define LATE 0.05 /* as a share of the time asleep: with more nothing can be measured */

enum { RUNS = 5, MAX_RUNS = 20, MAX_SCALE = 4, MAX_STAGES = 64, WIDTH = 256, PRICES = 3 };

/* Measurements of a run, over all ranks. */
typedef struct account {
    double bubble, longest, late, price[MAX_STAGES][PRICES];
} account;

struct job {
    d9d_bootstrap *bootstrap;
    d9d_mesh *mesh;
    d9d_device *dev;
    d9d_comm *down, *up;
    d9d_pipe_schedule_opts pipe;
    int rank, ranks, micros;
    bool uneven;
    d9d_program program;
    d9d_executor *executor;
    d9d_stage_timer *meter;
    d9d_stage_costs price[MAX_STAGES]; /* seconds asleep */
    double asked, slept;               /* seconds of this rank in a run */
    account best;                      /* of the fastest run */
    bool busy;                         /* the processors are busy with other processes */
};

/* --- stages ----------------------------------------------------------------------------------- */

static void sleep_for(struct job *j, double seconds)
{
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    const int64_t begin = d9d_clock_ns();

    while (nanosleep(&t, &t) != 0) {
    }
    j->asked += seconds;
    j->slept += (double)(d9d_clock_ns() - begin) * 1e-9;
}

/* Argument of a stage's backward. */
typedef struct nap {
    struct job *job;
    const d9d_stage_costs *price;
} nap;

static d9d_status input_half(d9d_node *n)
{
    const nap *p = n->attr;

    sleep_for(p->job, p->price->dgrad);
    return D9D_OK;
}

static d9d_status weight_half(d9d_node *n)
{
    const nap *p = n->attr;

    sleep_for(p->job, p->price->wgrad);
    return D9D_OK;
}

static d9d_status forward(void *self, int stage, int micro, d9d_tape *t, d9d_var *const *in,
                          d9d_var **out)
{
    static const d9d_node_ops asleep = {.dgrad = input_half, .wgrad = weight_half};
    struct job *j = self;
    d9d_var *x = in[0];
    d9d_tensor first;
    d9d_node *n;

    (void)micro;
    sleep_for(j, j->price[stage].forward);
    if (stage == 0) {
        D9D_TRY(d9d_tensor_alloc(j->dev, D9D_F32, D9D_SHAPE(WIDTH), &first));
        memset(d9d_tensor_data(&first), 0, WIDTH * sizeof(float));
        D9D_TRY(d9d_tape_leaf(t, &first, true, &x));
        d9d_tensor_release(&first);
    }
    D9D_TRY(d9d_op_add(t, x, x, out));
    D9D_TRY(d9d_tape_record_hook(t, &asleep, sizeof(nap), &n));
    *(nap *)n->attr = (nap){j, &j->price[stage]};
    return stage + 1 == j->program.stages ? d9d_op_loss_root(t, *out, out) : D9D_OK;
}

static d9d_status tensors(void *self, int stage, int micro, d9d_stage_tensor *out, size_t *n)
{
    (void)self, (void)stage, (void)micro;
    *out = (d9d_stage_tensor){.name = "x", .dtype = D9D_F32, .shape = D9D_SHAPE(WIDTH)};
    *n = 1;
    return D9D_OK;
}

/* Equal stages; with `uneven` the last ones take longest.  `scale` multiplies all. */
static void set_prices(struct job *j, int scale)
{
    const double unit = 6e-3 * scale * j->ranks / j->program.stages;

    for (int s = 0; s < j->program.stages; s++) {
        const double more = j->uneven ? 1 + (double)s / j->program.stages : 1;

        j->price[s] = (d9d_stage_costs){unit * more, unit * more * (j->uneven ? 1.2 : 1),
                                        unit * more * (j->uneven ? 0.7 : 1)};
    }
}

/* --- runs ------------------------------------------------------------------------------------- */

/* Measurements that a rank sends. */
typedef struct word {
    double busy, total, late, price[MAX_STAGES][PRICES]; /* of its stages; 0 for others */
} word;

static d9d_status measure(struct job *j, word *out)
{
    d9d_stage_times work[MAX_STAGES];

    *out = (word){.late = j->slept / j->asked};
    D9D_TRY(d9d_stage_timer_read(j->meter, j->program.stages, work, &out->busy, &out->total));
    for (int s = 0; s < j->program.stages; s++) {
        const d9d_stage_costs p = d9d_stage_times_cost(&work[s], &j->program, s);

        memcpy(out->price[s], (double[PRICES]){p.forward, p.dgrad, p.wgrad}, sizeof(*out->price));
    }
    return D9D_OK;
}

static void sum_up(const struct job *j, const d9d_comm_blob *all, account *out)
{
    double busy = 0;
    word w;

    *out = (account){0};
    for (int r = 0; r < j->ranks; r++) {
        memcpy(&w, all[r].data, sizeof(w));
        busy += w.busy;
        out->late = fmax(out->late, w.late);
        out->longest = fmax(out->longest, w.total);
        for (int s = 0; s < j->program.stages; s++)
            for (int i = 0; i < PRICES; i++)
                out->price[s][i] += w.price[s][i];
    }
    out->bubble = 1 - busy / (out->longest * j->ranks);
}

static d9d_status play(struct job *j, account *out)
{
    d9d_comm_blob all[MAX_STAGES];
    d9d_arena a = {0};
    word local;
    d9d_status st;

    j->asked = j->slept = 0;
    D9D_TRY(d9d_comm_barrier(j->down, "play"));
    D9D_TRY(d9d_executor_run(j->executor));
    D9D_TRY(measure(j, &local));
    st = d9d_comm_allgather_bytes(j->down, "play", &local, sizeof(local), &a, all);
    if (st == D9D_OK)
        sum_up(j, all, out);
    d9d_arena_release(&a);
    return st;
}

/* --- comparison ------------------------------------------------------------------------------- */

static d9d_status bubble_of(const struct job *j, const d9d_stage_costs *prices, double *out)
{
    d9d_timeline t;

    D9D_TRY(d9d_timeline_make(&j->program, &(d9d_pipe_costs){.stages = prices}, &t));
    *out = t.bubble;
    d9d_timeline_release(&t);
    return D9D_OK;
}

/* The timeline of the plan. */
static d9d_status plan(const struct job *j, double *out)
{
    d9d_stage_costs prices[MAX_STAGES];

    for (int s = 0; s < j->program.stages; s++)
        prices[s] =
            (d9d_stage_costs){j->best.price[s][0], j->best.price[s][1], j->best.price[s][2]};
    return bubble_of(j, prices, out);
}

static bool agree(const struct job *j, double planned)
{
    return fabs(j->best.bubble - planned) <= 0.02;
}

static d9d_status plays(struct job *j, double *planned)
{
    account a;

    D9D_TRY(play(j, &a)); /* warm-up: the first one allocates memory and opens connections */
    j->best.longest = INFINITY;
    for (int i = 0; i < RUNS || (i < MAX_RUNS && !agree(j, *planned)); i++) {
        D9D_TRY(play(j, &a));
        if (a.longest < j->best.longest)
            j->best = a;
        D9D_TRY(plan(j, planned));
    }
    return D9D_OK;
}

/* The plays of stages that become longer until the bubbles agree. */
static d9d_status plays_of_scales(struct job *j, double *planned)
{
    for (int scale = 1;; scale *= 2) {
        set_prices(j, scale);
        D9D_TRY(plays(j, planned));
        if (scale >= MAX_SCALE || agree(j, *planned))
            return D9D_OK;
    }
}

static d9d_status compare(struct job *j)
{
    double planned = 0, nominal = 0;
    bool well;

    D9D_TRY(plays_of_scales(j, &planned));
    D9D_TRY(bubble_of(j, j->price, &nominal));
    well = agree(j, planned);
    if (!well && j->best.late > 1 + LATE) {
        if (j->rank == 0)
            printf("ranks slept %.0f %% too long: nothing can be measured\n",
                   100 * (j->best.late - 1));
        j->busy = true;
        return D9D_OK;
    }
    if (j->rank == 0)
        printf(
            "%2d stages, %d ranks, %2d micro-batches: bubble measured %5.1f %%, planned %5.1f %%, "
            "of undisturbed stages %5.1f %%\n",
            j->program.stages, j->ranks, j->micros, 100 * j->best.bubble, 100 * planned,
            100 * nominal);
    return well ? D9D_OK
                : D9D_FAIL(D9D_EVERIFY, "the bubble is %.1f %%, and was planned as %.1f %%",
                           100 * j->best.bubble, 100 * planned);
}

/* --- main ------------------------------------------------------------------------------------- */

static d9d_status read_words(struct job *j, int argc, char **argv)
{
    int kind = 0;

    while (kind < D9D_PIPE_SCHEDULE_COUNT &&
           strcmp(d9d_pipe_schedule_name((d9d_pipe_schedule)kind), argv[2]))
        kind++;
    if (kind == D9D_PIPE_SCHEDULE_COUNT || kind == D9D_PIPE_INFERENCE)
        return D9D_FAIL(D9D_EINVAL, "no schedule to learn by: %s", argv[2]);
    j->micros = atoi(argv[1]);
    j->pipe.kind = (d9d_pipe_schedule)kind;
    j->pipe.stages_per_rank = argc > 3 ? atoi(argv[3]) : 1;
    for (int i = 4; i < argc; i++) {
        j->pipe.zero_bubble |= strcmp(argv[i], "split") == 0;
        j->pipe.deep_warmup |= strcmp(argv[i], "deep") == 0;
        j->uneven |= strcmp(argv[i], "uneven") == 0;
    }
    return D9D_OK;
}

static d9d_status open_job(struct job *j)
{
    static const d9d_executor_ops ops = {.forward = forward, .tensors = tensors};
    d9d_parallel_degrees d = {1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};

    D9D_TRY(d9d_bootstrap_open(&j->bootstrap));
    j->rank = d9d_bootstrap_rank(j->bootstrap);
    j->ranks = d9d_bootstrap_size(j->bootstrap);
    d.pipeline_parallel = j->ranks;
    D9D_TRY(d9d_device_open("cpu", &j->dev));
    D9D_TRY(d9d_mesh_open(j->bootstrap, &d, "cpu", j->dev->stream,
                          &(d9d_mesh_opts){.timeout_s = 600}, &j->mesh));
    D9D_TRY(d9d_mesh_group(j->mesh, D9D_AXIS(PP), &j->down));
    D9D_TRY(d9d_mesh_group_dup(j->mesh, D9D_AXIS(PP), 1, &j->up));
    D9D_TRY(d9d_program_build(&j->pipe, j->ranks, j->micros, &j->program));
    D9D_TRY(d9d_program_insert_p2p(&j->program));
    if (j->program.stages > MAX_STAGES)
        return D9D_FAIL(D9D_EINVAL, "%d stages, at most %d", j->program.stages, (int)MAX_STAGES);
    D9D_TRY(d9d_stage_timer_create(j->dev, &j->meter));
    D9D_TRY(d9d_executor_create(&(d9d_executor_opts){.program = &j->program,
                                                     .rank = j->rank,
                                                     .dev = j->dev,
                                                     .down = j->down,
                                                     .up = j->up,
                                                     .ops = &ops,
                                                     .self = j},
                                &j->executor));
    d9d_executor_set_timer(j->executor, j->meter);
    return D9D_OK;
}

static d9d_status all(struct job *j, int argc, char **argv)
{
    D9D_TRY(read_words(j, argc, argv));
    D9D_TRY(open_job(j));
    return compare(j);
}

static void close_job(struct job *j)
{
    d9d_executor_free(j->executor);
    d9d_stage_timer_free(j->meter);
    d9d_program_release(&j->program);
    d9d_mesh_close(j->mesh);
    d9d_device_close(j->dev);
    d9d_bootstrap_close(j->bootstrap);
}

int main(int argc, char **argv)
{
    struct job j = {0};
    d9d_status st =
        argc < 3
            ? D9D_FAIL(D9D_EINVAL, "usage: pipeline_bubble_driver MICROS KIND [STAGES [FLAG...]]")
            : all(&j, argc, argv);

    if (st != D9D_OK)
        fprintf(stderr, "rank %d: %s\n", j.rank, d9d_err_message());
    if (st != D9D_OK && st != D9D_EVERIFY && j.ranks > 1)
        d9d_bootstrap_abort(j.bootstrap, 1, d9d_err_message());
    close_job(&j);
    return j.busy ? 77 : d9d_status_exit_code(st);
}
