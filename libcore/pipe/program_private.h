/* program_private.h - helpers shared by the files of pipe.
 */
#ifndef D9DI_PIPE_PROGRAM_PRIVATE_H
#define D9DI_PIPE_PROGRAM_PRIVATE_H

#include "d9d/pipe/program.h"

bool d9di_pipe_action_computes(d9d_pipe_action_kind v);
/* "0SEND_F3" into buf; returns buf. */
char *d9di_pipe_action_text(const d9d_pipe_action *a, char *buf, size_t n);

static inline bool d9di_pipe_action_has_dgrad(d9d_pipe_action_kind v)
{
    return v == D9D_PIPE_BACKWARD || v == D9D_PIPE_DGRAD;
}

/* The stage whose action this one depends on: the previous stage for F, the next stage for B and I.
 * -1: none, the first of the chain. */
static inline int d9di_pipe_action_source_stage(const d9d_program *p, const d9d_pipe_action *a)
{
    if (a->kind == D9D_PIPE_FORWARD)
        return a->stage - 1;
    if (d9di_pipe_action_has_dgrad(a->kind))
        return a->stage + 1 < p->stages ? a->stage + 1 : -1;
    return -1;
}

/* One past the last action that is joined with action i of a lane. */
static inline size_t d9di_pipe_lane_group_end(const d9d_pipe_lane *lane, size_t i)
{
    while (i + 1 < lane->len && lane->data[i].joined)
        i++;
    return i + 1;
}

/* Index of (kind, stage, micro-batch) in an array of d9di_program_index_count() elements. */
static inline size_t d9di_program_index(const d9d_program *p, d9d_pipe_action_kind v, int stage,
                                        int micro)
{
    return ((size_t)v * (size_t)p->stages + (size_t)stage) * (size_t)p->micros + (size_t)micro;
}
static inline size_t d9di_program_index_count(const d9d_program *p)
{
    return (size_t)D9D_PIPE_ACTION_COUNT * (size_t)p->stages * (size_t)p->micros;
}

/* Builders fill the lanes of an empty program; each is one schedule. */
d9d_status d9di_pipe_build_breadth_first(const d9d_pipe_schedule_opts *opts, d9d_program *p);
d9d_status d9di_pipe_build_interleaved(const d9d_pipe_schedule_opts *opts, d9d_program *p);
d9d_status d9di_pipe_build_zero_bubble_v(const d9d_pipe_schedule_opts *opts, d9d_program *p);
d9d_status d9di_pipe_build_dual_pipe_v(const d9d_pipe_schedule_opts *opts, d9d_program *p);

#endif /* D9DI_PIPE_PROGRAM_PRIVATE_H */
