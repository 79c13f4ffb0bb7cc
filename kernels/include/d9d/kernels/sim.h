/* sim.h - a processor that computes nothing and counts what it would have done.
 *
 *     const d9d_sim_chip *chip = d9d_sim_chip_find("h200");
 *     D9D_TRY(d9d_sim_create(chip, &owner, &paper));
 *     d9d_kernels_sim()->gemm(d9d_sim_stream(paper), &g, a, b, c);
 *     printf("%g s\n", d9d_sim_now(d9d_sim_stream(paper)));
 *     d9d_sim_free(paper);
 *
 * Entries of its table take the arguments of any other's and touch no array.  Each moves the clock
 * of its stream on by what the chip would need: the longer of operations over the rate of such
 * kernels and bytes over that of memory, and a launch.  Scratch that the chip's own kernels would
 * borrow is taken from the owner and given back, so that its peaks count it.
 *
 * On a stream that is NULL, the queue of a group of ranks on a processor that does nothing beside
 * its computation, nothing is counted.  Streams of one chip have clocks of their own, which wait
 * for each other as events make them (d9d_sim_wait_until()): what is beside computation costs
 * nothing until something waits for it.
 *
 * What the host reads back must be there: an array that lies in real memory (d9d_sim_is_real())
 * holds what `route` writes, offsets as if every expert got the same, and copies of it.
 */
#ifndef D9D_KERNELS_SIM_H
#define D9D_KERNELS_SIM_H

#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- chips ------------------------------------------------------------------------------ */

/* Kinds of kernels, each with a rate of its own. */
#define D9D_SIM_KIND_MAP(X)                                                                        \
    X(GEMM, "gemm")                 /* of dense layers */                                          \
    X(GROUPED_GEMM, "grouped gemm") /* of experts, with their weights' gradients */                \
    X(ATTENTION, "attention")       /* forward */                                                  \
    X(ATTENTION_BWD, "attention backward")                                                         \
    X(ATTENTION_BUILTIN, "attention (built-in)") /* what no library takes; the gated delta rule */ \
    X(LINEAR_CROSS_ENTROPY, "linear cross entropy")                                                \
    X(MEMORY, "memory") /* the rest: bytes decide */

typedef enum d9d_sim_kind {
#define X(name, text) D9D_SIM_##name,
    D9D_SIM_KIND_MAP(X)
#undef X
        D9D_SIM_KIND_COUNT
} d9d_sim_kind;

D9D_API const char *d9d_sim_kind_name(d9d_sim_kind kind);

/* How messages go: within a node, and between nodes. */
typedef enum d9d_sim_link {
    D9D_SIM_LINK_NODE,
    D9D_SIM_LINK_NETWORK,
    D9D_SIM_LINK_COUNT
} d9d_sim_link;
D9D_API const char *d9d_sim_link_name(d9d_sim_link link);

/* Rates are per processor; docs/design/cost-model.md says where the numbers come from. */
typedef struct d9d_sim_chip {
    const char *name, *title; /* "h200", "NVIDIA H200" */
    bool is_gpu;              /* scratch, streams and libraries of the CUDA backend */
    bool is_sm90;             /* kernels of compute capability 9.0 */
    double flops, flops_f32;  /* dense products a second on the data sheet: bfloat16, float32 */
    double efficiency[D9D_SIM_KIND_COUNT]; /* the part of it that kernels of a kind reach */
    double memory_rate, memory_efficiency; /* bytes a second on the data sheet; the part reached */
    uint64_t memory;                       /* bytes; 0: unknown */
    uint64_t library_memory;               /* of these, what libraries take beside the pool */
    double launch_s;                       /* least time of a kernel */
    int per_node;                          /* processors of a node */
    struct {
        double rate, latency_s; /* bytes a second, each way at once; of a call */
    } link[D9D_SIM_LINK_COUNT];
} d9d_sim_chip;

/* NULL when there is none of this name. */
D9D_API const d9d_sim_chip *d9d_sim_chip_find(const char *name);
/* Names, ended by NULL, the first is the default. */
D9D_API const char *const *d9d_sim_chip_names(void);

/* --- one processor ------------------------------------------------------------------------- */

typedef struct d9d_sim d9d_sim;

typedef struct d9d_sim_owner {
    void *self;
    d9d_status (*alloc)(void *self, uint64_t n, void **out);
    void (*free)(void *self, void *p, uint64_t n);
} d9d_sim_owner;

D9D_API D9D_MUST_USE d9d_status d9d_sim_create(const d9d_sim_chip *chip, const d9d_sim_owner *owner,
                                               d9d_sim **out);
D9D_API void d9d_sim_free(d9d_sim *p);
D9D_API const d9d_sim_chip *d9d_sim_get_chip(const d9d_sim *p);

/* Its own stream, and another one, which lives as long as the processor. */
D9D_API d9d_stream d9d_sim_stream(d9d_sim *p);
D9D_API D9D_MUST_USE d9d_status d9d_sim_stream_create(d9d_sim *p, d9d_stream *out);
D9D_API d9d_sim *d9d_sim_of_stream(d9d_stream s);

/* Seconds since it was made. */
D9D_API double d9d_sim_now(d9d_stream s);
/* What is queued on `s` from here on comes after that time. */
D9D_API void d9d_sim_wait_until(d9d_stream s, double until);

/* Does the array lie in memory that may be read and written? */
D9D_API bool d9d_sim_is_real(const void *p);
/* Where arrays lie that may not. */
#define D9D_SIM_FAKE_BASE (UINT64_C(1) << 60)

/* --- what was done ---------------------------------------------------------------------------- */

typedef struct d9d_sim_work {
    int64_t calls;
    double flops, bytes, seconds; /* bytes read and written */
} d9d_sim_work;

/* Messages of one group, verb and link; bytes that this rank sends or receives, the larger. */
typedef struct d9d_sim_traffic {
    char group[48];
    const char *coll;
    d9d_sim_link link;
    int64_t calls;
    double bytes, seconds;
} d9d_sim_traffic;

typedef struct d9d_sim_tally {
    d9d_sim_work work[D9D_SIM_KIND_COUNT];
    d9d_sim_traffic *traffic; /* [n_talk] */
    size_t n_traffic;
    uint64_t max_scratch; /* most that one kernel has borrowed */
} d9d_sim_tally;

/* Since it was made, or began anew; borrowed. */
D9D_API const d9d_sim_tally *d9d_sim_get_tally(const d9d_sim *p);
D9D_API void d9d_sim_reset_tally(d9d_sim *p);

/* For a kernel that stands in no table: elements of type `t`, operations, bytes read and written.
 */
D9D_API D9D_MUST_USE d9d_status d9d_sim_launch(d9d_stream s, d9d_dtype t, double flops,
                                               double bytes);
/* Kernels of all kinds since it was made; it only grows. */
D9D_API int64_t d9d_sim_launches(const d9d_sim *p);

/* For who moves messages: one call on `s`. */
D9D_API D9D_MUST_USE d9d_status d9d_sim_transfer(d9d_stream s, const char *group, const char *verb,
                                                 d9d_sim_link link, double bytes);

D9D_API const d9d_kernels *d9d_kernels_sim(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_SIM_H */
