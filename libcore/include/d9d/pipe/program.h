/* program.h - a pipeline schedule as a program: for each rank, a readable list of actions.
 *
 *     2 ranks, 2 micro-batches, "gpipe":
 *       rank 0   0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0
 *       rank 1   1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0
 *
 * An action is a stage, a kind and a micro-batch:
 *
 *     F       forward                        SEND_F  send the outputs to the next stage
 *     B       whole backward                 RECV_F  receive the inputs from the previous stage
 *     I       dgrad, its input half          SEND_B  send the gradients of the inputs back
 *     W       wgrad, its weight half         RECV_B  receive the gradients of the outputs
 *
 * Actions joined by "|" are one: computed concurrently where a device can.  The computation order
 * equals that of the reference framework (d9d of PyTorch, 0.16).
 *
 *     D9D_TRY(d9d_program_build(&opts, ranks, micros, &p));   // computation
 *     D9D_TRY(d9d_program_insert_p2p(&p));                   // transfers between ranks
 *     D9D_TRY(d9d_program_check(&p));
 *
 * A custom schedule is a program too: lay out the stages with d9d_program_init(), push the
 * computation, and insert the transfers.  d9d_program_insert_p2p() orders transfers by one global
 * order over all ranks.  Even transfers that block until the peer arrives cannot deadlock then.
 */
#ifndef D9D_PIPE_PROGRAM_H
#define D9D_PIPE_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/mem.h"
#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name, text, is computation */
#define D9D_PIPE_ACTION_MAP(X)                                                                     \
    X(FORWARD, "F", true)                                                                          \
    X(BACKWARD, "B", true)                                                                         \
    X(DGRAD, "I", true)                                                                            \
    X(WGRAD, "W", true)                                                                            \
    X(SEND_FORWARD, "SEND_F", false)                                                               \
    X(RECV_FORWARD, "RECV_F", false)                                                               \
    X(SEND_BACKWARD, "SEND_B", false)                                                              \
    X(RECV_BACKWARD, "RECV_B", false)

typedef enum d9d_pipe_action_kind {
#define X(name, text, compute) D9D_PIPE_##name,
    D9D_PIPE_ACTION_MAP(X)
#undef X
        D9D_PIPE_ACTION_COUNT
} d9d_pipe_action_kind;

typedef struct d9d_pipe_action {
    d9d_pipe_action_kind kind;
    int stage, micro;
    bool joined; /* with the next action of the lane */
} d9d_pipe_action;

typedef struct d9d_pipe_lane {
    d9d_pipe_action *data;
    size_t len, cap;
} d9d_pipe_lane;

/* Placement of stages on ranks:  loop  0 1 2 3 0 1 2 3  v  0 1 2 3 3 2 1 0 */
typedef enum d9d_pipe_layout { D9D_PIPE_LOOP, D9D_PIPE_V } d9d_pipe_layout;

typedef struct d9d_program {
    int ranks, stages, micros;
    bool backward; /* a training step */
    d9d_pipe_layout layout;
    d9d_pipe_lane *lanes; /* [ranks] */
} d9d_program;

/* Limits of a program. */
enum { D9D_PIPE_MAX_RANKS = 1 << 12, D9D_PIPE_MAX_STAGES = 1 << 14, D9D_PIPE_MAX_MICROS = 1 << 16 };

/* Create a program with empty lanes.  ECONFIG for numbers below 1 or above the limits, and for a
 * number of stages that is not a multiple of the ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_program_init(int ranks, int stages_per_rank, int micros,
                                                 d9d_pipe_layout layout, bool backward,
                                                 d9d_program *out);
D9D_API void d9d_program_release(d9d_program *p);
/* Append an action to a rank's lane.  EINVAL for an action outside the program's stages and
 * micro-batches, and for more actions than the rank can have. */
D9D_API D9D_MUST_USE d9d_status d9d_program_push(d9d_program *p, int rank, d9d_pipe_action a);

/* The rank that owns a stage; and the k-th of a rank's own stages, ascending. */
D9D_API int d9d_program_rank_of(const d9d_program *p, int stage);
D9D_API int d9d_program_stage_of(const d9d_program *p, int rank, int k);

/* --- builders ---------------------------------------------------------------------------- */

typedef enum d9d_pipe_schedule {
    D9D_PIPE_INFERENCE,  /* forward only, breadth first */
    D9D_PIPE_GPIPE,      /* all forwards, then all backwards */
    D9D_PIPE_LOOPED_BFS, /* GPipe with several stages for each rank */
    D9D_PIPE_1F1B,       /* interleaved where a rank has several stages; zero_bubble: ZB1P */
    D9D_PIPE_ZERO_BUBBLE_V,
    D9D_PIPE_DUAL_PIPE_V,
    D9D_PIPE_SCHEDULE_COUNT
} d9d_pipe_schedule;

/* "inference", "gpipe", "looped_bfs", "1f1b", "zero_bubble_v", "dual_pipe_v". */
D9D_API const char *d9d_pipe_schedule_name(d9d_pipe_schedule kind);

/* A custom schedule, which a configuration names. */
typedef struct d9d_pipe_schedule_kind {
    size_t size;            /* sizeof(d9d_pipe_schedule_kind) */
    const d9d_table *table; /* of its configuration section */
    d9d_pipe_layout layout;
    /* Stages of each rank.  NULL: 1, or 2 in the V layout. */
    int (*stages_per_rank)(const void *config);
    /* Push the computation of every rank.  Lanes are empty; transfers are inserted afterwards.
     * ECONFIG for numbers of ranks or micro-batches that it cannot schedule. */
    d9d_status (*build)(const void *config, d9d_program *p);
} d9d_pipe_schedule_kind;

typedef struct d9d_pipe_schedule_opts {
    d9d_pipe_schedule kind;
    int stages_per_rank; /* for looped_bfs and 1f1b; the others have 1, V layouts 2 */
    bool zero_bubble;    /* 1f1b: split backward; W runs where a rank would wait */
    bool deep_warmup;    /* 1f1b: the reference's warm-up, twice as deep as necessary */
    const d9d_pipe_schedule_kind
        *custom; /* in place of `kind`, with its bound section; NULL: none */
    const void *config;
} d9d_pipe_schedule_opts;

/* Stages of each rank with this schedule. */
D9D_API int d9d_pipe_schedule_stages_per_rank(const d9d_pipe_schedule_opts *opts);
/* Its display name, "1f1b x2 zero bubble", written to `text`, which is returned. */
enum { D9D_PIPE_SCHEDULE_TEXT = 48 };
D9D_API char *d9d_pipe_schedule_format(const d9d_pipe_schedule_opts *opts,
                                       char text[D9D_PIPE_SCHEDULE_TEXT]);

/* Build the computation of every rank.  ECONFIG with both numbers if the schedule cannot take so
 * many micro-batches: 1f1b over several rounds, dual_pipe_v below two for each rank. */
D9D_API D9D_MUST_USE d9d_status d9d_program_build(const d9d_pipe_schedule_opts *opts, int ranks,
                                                  int micros, d9d_program *out);

/* Forward only, breadth first, for stages in this layout. */
D9D_API D9D_MUST_USE d9d_status d9d_program_forward(int ranks, int stages_per_rank, int micros,
                                                    d9d_pipe_layout layout, d9d_program *out);

/* Insert sends and receives.  Their order is that in which their payloads are ready if F takes 8, I
 * 12, W 7 and B 19 units of time.  Messages of one direction are delivered in order, so an order
 * other than that of time would delay them.  EINVAL for a program whose computation deadlocks. */
D9D_API D9D_MUST_USE d9d_status d9d_program_insert_p2p(d9d_program *p);
/* d9d_program_insert_p2p() in the order of the reference framework: ranks round robin, one action
 * each. On four ranks of two stages it raises bubbles of 8 to 20 % to 13 to 34 %. */
D9D_API D9D_MUST_USE d9d_status d9d_program_insert_p2p_round_robin(d9d_program *p);

/* Validate a program; EINVAL names rank and action.  Every stage has on its own rank one F of every
 * micro-batch and, in training, after it one B or one I and one W.  Every transfer between ranks is
 * sent and received once.  No rank waits for ever, even if sends block. */
D9D_API D9D_MUST_USE d9d_status d9d_program_check(const d9d_program *p);

/* --- text ----------------------------------------------------------------------------------- */

/* Append the rank's lane as text: "0F0 0SEND_F0 3F2|0B0". */
D9D_API D9D_MUST_USE d9d_status d9d_program_print(const d9d_program *p, int rank, d9d_buf *out);
/* Parse such a text and append its actions to the rank's lane.  EFORMAT names the word. */
D9D_API D9D_MUST_USE d9d_status d9d_program_parse(d9d_program *p, int rank, const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_PROGRAM_H */
