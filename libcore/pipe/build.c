/* build.c - schedules by name, and the breadth-first ones (GPipe, looped BFS, inference).  See
 * d9d/pipe/program.h.
 */
#include "pipe/program_private.h"

#include "d9d/base/plugin_call.h"

static const struct {
    const char *word;
    d9d_status (*build)(const d9d_pipe_schedule_opts *opts, d9d_program *p);
    int stages_per_rank; /* 0: as configured */
    d9d_pipe_layout layout;
    bool backward;
} schedules[D9D_PIPE_SCHEDULE_COUNT] = {
    [D9D_PIPE_INFERENCE] = {"inference", d9di_pipe_build_breadth_first, 1, D9D_PIPE_LOOP, false},
    [D9D_PIPE_GPIPE] = {"gpipe", d9di_pipe_build_breadth_first, 1, D9D_PIPE_LOOP, true},
    [D9D_PIPE_LOOPED_BFS] = {"looped_bfs", d9di_pipe_build_breadth_first, 0, D9D_PIPE_LOOP, true},
    [D9D_PIPE_1F1B] = {"1f1b", d9di_pipe_build_interleaved, 0, D9D_PIPE_LOOP, true},
    [D9D_PIPE_ZERO_BUBBLE_V] = {"zero_bubble_v", d9di_pipe_build_zero_bubble_v, 2, D9D_PIPE_V,
                                true},
    [D9D_PIPE_DUAL_PIPE_V] = {"dual_pipe_v", d9di_pipe_build_dual_pipe_v, 2, D9D_PIPE_V, true},
};

const char *d9d_pipe_schedule_name(d9d_pipe_schedule kind)
{
    return schedules[kind].word;
}

int d9d_pipe_schedule_stages_per_rank(const d9d_pipe_schedule_opts *opts)
{
    const int fixed = schedules[opts->kind].stages_per_rank, limit = D9D_PIPE_MAX_STAGES;
    int own;

    if (opts->custom != NULL && opts->custom->stages_per_rank != NULL) {
        own = opts->custom->stages_per_rank(opts->config);
        return own < 0 ? 0 : own > limit ? limit + 1 : own; /* too many: refused with that number */
    }
    if (opts->custom != NULL)
        return opts->custom->layout == D9D_PIPE_V ? 2 : 1;

    return fixed > 0 ? fixed : opts->stages_per_rank;
}

d9d_status d9d_program_build(const d9d_pipe_schedule_opts *opts, int ranks, int micros,
                             d9d_program *out)
{
    d9d_program p;
    d9d_status st;

    D9D_TRY(
        d9d_program_init(ranks, d9d_pipe_schedule_stages_per_rank(opts), micros,
                         opts->custom != NULL ? opts->custom->layout : schedules[opts->kind].layout,
                         opts->custom != NULL || schedules[opts->kind].backward, &p));
    st = opts->custom != NULL
             ? D9D_PLUGIN_CALL(opts->custom->table->name, opts->custom, build, opts->config, &p)
             : schedules[opts->kind].build(opts, &p);
    if (st == D9D_OK)
        *out = p;
    else
        d9d_program_release(&p);
    return st;
}

/* Forwards of every stage, first stage first; then backwards of every stage, last stage first. */
static d9d_status breadth_first_rank(d9d_program *p, int rank)
{
    const int n = p->stages / p->ranks;

    for (int k = 0; k < n; k++)
        for (int m = 0; m < p->micros; m++)
            D9D_TRY(d9d_program_push(
                p, rank,
                (d9d_pipe_action){D9D_PIPE_FORWARD, d9d_program_stage_of(p, rank, k), m, false}));
    for (int k = n - 1; k >= 0 && p->backward; k--)
        for (int m = p->micros - 1; m >= 0; m--)
            D9D_TRY(d9d_program_push(
                p, rank,
                (d9d_pipe_action){D9D_PIPE_BACKWARD, d9d_program_stage_of(p, rank, k), m, false}));
    return D9D_OK;
}

d9d_status d9di_pipe_build_breadth_first(const d9d_pipe_schedule_opts *opts, d9d_program *p)
{
    (void)opts;
    for (int r = 0; r < p->ranks; r++)
        D9D_TRY(breadth_first_rank(p, r));
    return D9D_OK;
}

d9d_status d9d_program_forward(int ranks, int stages_per_rank, int micros, d9d_pipe_layout layout,
                               d9d_program *out)
{
    d9d_program p;
    d9d_status st;

    D9D_TRY(d9d_program_init(ranks, stages_per_rank, micros, layout, false, &p));
    st = d9di_pipe_build_breadth_first(NULL, &p);
    if (st == D9D_OK)
        *out = p;
    else
        d9d_program_release(&p);
    return st;
}
