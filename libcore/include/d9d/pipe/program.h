/* program.h - what each rank of a pipeline does in a step: a list of actions that can be read.
 *
 *     2 ranks, 2 micro-batches, "gpipe":
 *       rank 0   0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0
 *       rank 1   1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0
 *
 * An action is a stage, a verb, a micro-batch:
 *
 *     F       forward                        SEND_F  give the outputs to the next stage
 *     B       whole backward                 RECV_F  take the inputs from the one before
 *     I       its input half alone           SEND_B  give the gradients of the inputs back
 *     W       the weight half that I left    RECV_B  take the gradients of the outputs
 *
 * and actions joined by "|" are one: computed side by side, where a device can.
 * Computation is that of the reference framework (d9d of PyTorch, 0.16) to the letter.
 *
 *     D9D_TRY(d9d_program_build(&how, ranks, micros, &p));   // computation
 *     D9D_TRY(d9d_program_insert_p2p(&p));                      // transfers between ranks
 *     D9D_TRY(d9d_program_check(&p));
 *
 * A schedule of one's own is a program too: lay the stages out with d9d_program_init(), push
 * actions of computation, and connect.  The order in which connect() puts transfers is one order
 * for all ranks, so that even transfers which block until the other side has come cannot deadlock.
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
    bool joined; /* with the action behind it */
} d9d_pipe_action;

typedef struct d9d_pipe_lane {
    d9d_pipe_action *data;
    size_t len, cap;
} d9d_pipe_lane;

/* How stages lie on ranks:  loop  0 1 2 3 0 1 2 3     v  0 1 2 3 3 2 1 0 */
typedef enum d9d_pipe_layout { D9D_PIPE_LOOP, D9D_PIPE_V } d9d_pipe_layout;

typedef struct d9d_program {
    int ranks, stages, micros;
    bool backward; /* a training step */
    d9d_pipe_layout layout;
    d9d_pipe_lane *lanes; /* [ranks] */
} d9d_program;

/* Bounds of a program. */
enum { D9D_PIPE_MAX_RANKS = 1 << 12, D9D_PIPE_MAX_STAGES = 1 << 14, D9D_PIPE_MAX_MICROS = 1 << 16 };

/* Empty lanes.  ECONFIG for numbers below 1 or above the bounds, and for a number of stages that
 * is no multiple of the ranks. */
D9D_API D9D_MUST_USE d9d_status d9d_program_init(int ranks, int stages_per_rank, int micros,
                                                 d9d_pipe_layout layout, bool backward,
                                                 d9d_program *out);
D9D_API void d9d_program_release(d9d_program *p);
/* EINVAL for what is outside the program, and for more than each action of the rank once. */
D9D_API D9D_MUST_USE d9d_status d9d_program_push(d9d_program *p, int rank, d9d_pipe_action a);

/* The rank that owns a stage, and the k-th of a rank's own stages, ascending. */
D9D_API int d9d_program_rank_of(const d9d_program *p, int stage);
D9D_API int d9d_program_stage_of(const d9d_program *p, int rank, int k);

/* --- builders ---------------------------------------------------------------------------- */

typedef enum d9d_pipe_schedule {
    D9D_PIPE_INFERENCE,  /* forward alone, breadth first */
    D9D_PIPE_GPIPE,      /* all forwards, then all backwards */
    D9D_PIPE_LOOPED_BFS, /* the same with several stages a rank */
    D9D_PIPE_1F1B,       /* interleaved where a rank has several stages; zero_bubble: ZB1P */
    D9D_PIPE_ZERO_BUBBLE_V,
    D9D_PIPE_DUAL_PIPE_V,
    D9D_PIPE_SCHEDULE_COUNT
} d9d_pipe_schedule;

/* "inference", "gpipe", "looped_bfs", "1f1b", "zero_bubble_v", "dual_pipe_v". */
D9D_API const char *d9d_pipe_schedule_name(d9d_pipe_schedule kind);

/* A schedule of one's own, which a configuration names. */
typedef struct d9d_pipe_schedule_kind {
    size_t size;            /* sizeof(d9d_pipe_schedule_kind) */
    const d9d_table *table; /* of its section */
    d9d_pipe_layout layout;
    /* NULL: 1, or 2 in a V. */
    int (*stages_per_rank)(const void *config);
    /* Push the computation of every rank: lanes are empty, transfers come by themselves.  ECONFIG
     * for ranks or micro-batches that it cannot take. */
    d9d_status (*build)(const void *config, d9d_program *p);
} d9d_pipe_schedule_kind;

typedef struct d9d_pipe_schedule_opts {
    d9d_pipe_schedule kind;
    int stages_per_rank; /* of looped_bfs and 1f1b; the others have 1, and the v layouts 2 */
    bool zero_bubble;    /* 1f1b: split backward, weight halves where a rank would wait */
    bool deep_warmup;    /* 1f1b: the reference's warm-up, twice as deep as it must be */
    const d9d_pipe_schedule_kind
        *custom; /* in the place of `kind`, with its bound section; NULL: none */
    const void *config;
} d9d_pipe_schedule_opts;

/* Stages that a rank has with this schedule. */
D9D_API int d9d_pipe_schedule_stages_per_rank(const d9d_pipe_schedule_opts *how);
/* Its name for people, "1f1b x2 zero bubble", in `text`, which is returned. */
enum { D9D_PIPE_SCHEDULE_TEXT = 48 };
D9D_API char *d9d_pipe_schedule_format(const d9d_pipe_schedule_opts *how,
                                       char text[D9D_PIPE_SCHEDULE_TEXT]);

/* The computation of every rank.  ECONFIG with both numbers where the schedule cannot
 * take so many micro-batches: 1f1b over several rounds, dual_pipe_v below two a rank. */
D9D_API D9D_MUST_USE d9d_status d9d_program_build(const d9d_pipe_schedule_opts *how, int ranks,
                                                  int micros, d9d_program *out);

/* Forward alone of stages that lie so, breadth first. */
D9D_API D9D_MUST_USE d9d_status d9d_program_forward(int ranks, int stages_per_rank, int micros,
                                                    d9d_pipe_layout layout, d9d_program *out);

/* Put in sends and receives, in the order in which what they carry is made where a forward takes 8,
 * its input half back 12, its weight half 7 and both 19.  Messages of a direction that go one after
 * the other hold each other up where their order is not that of time.  EINVAL for a program whose
 * computation deadlocks. */
D9D_API D9D_MUST_USE d9d_status d9d_program_insert_p2p(d9d_program *p);
/* The same in the order of the reference framework: ranks take turns, one action each.
 * On four ranks of two stages bubbles of 8 to 20 % become 13 to 34. */
D9D_API D9D_MUST_USE d9d_status d9d_program_insert_p2p_round_robin(d9d_program *p);

/* EINVAL with rank and action unless: every stage has, on its own rank, one F of every micro-batch
 * and, in training, behind it one B or one I and one W; every transfer between ranks is sent and
 * taken once; and nobody waits for ever, even where sends block. */
D9D_API D9D_MUST_USE d9d_status d9d_program_check(const d9d_program *p);

/* --- text ----------------------------------------------------------------------------------- */

/* "0F0 0SEND_F0 3F2|0B0", appended. */
D9D_API D9D_MUST_USE d9d_status d9d_program_print(const d9d_program *p, int rank, d9d_buf *out);
/* Actions of such a text, appended to the rank's lane.  EFORMAT names the word. */
D9D_API D9D_MUST_USE d9d_status d9d_program_parse(d9d_program *p, int rank, const char *text);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PIPE_PROGRAM_H */
