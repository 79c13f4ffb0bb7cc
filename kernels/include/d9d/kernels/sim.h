/* sim.h - the simulated backend: computes nothing, and adds up what a chip would have done.
 *
 *     const d9d_sim_chip *chip = d9d_sim_chip_find("h200");
 *     D9D_TRY(d9d_sim_create(chip, &owner, &sim));
 *     d9d_kernels_sim()->gemm->dense(d9d_sim_stream(sim), &g, a, b, c);
 *     printf("%g s\n", d9d_sim_now(d9d_sim_stream(sim)));
 *     d9d_sim_free(sim);
 *
 * This is the cost model (roofline) behind --plan. Entries of its table take the same arguments as
 * any other table's and access no array. Each advances the clock of its stream by the time that the
 * chip would need. That is the longer of FLOP over the rate of such kernels and bytes over the
 * memory rate, and at least a launch. Scratch that the CUDA kernels would allocate is allocated
 * from the owner and freed, so that its peak counts.
 *
 * Streams of one chip have separate clocks, which wait for each other as events require
 * (d9d_sim_wait_until()): overlapped work costs nothing until something waits for it. Nothing is
 * counted on a NULL stream: that of a process group on a processor which cannot overlap.
 *
 * Arrays that the host reads back must exist. An array in real memory (d9d_sim_is_real()) receives
 * what sort_by_expert() writes, with offsets as if every expert had the same load, and copies of
 * it.
 */
#ifndef D9D_KERNELS_SIM_H
#define D9D_KERNELS_SIM_H

#include "d9d/kernels/table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- chips ------------------------------------------------------------------------------ */

/* Kinds of kernels, each with its own efficiency. */
#define D9D_SIM_KIND_MAP(X)                                                                        \
    X(GEMM, "gemm")                         /* of dense layers */                                  \
    X(FP8_GEMM, "fp8 gemm")                 /* of dense layers, with operands of 8 bits */         \
    X(GROUPED_GEMM, "grouped gemm")         /* of experts, with their weights' gradients */        \
    X(FP8_GROUPED_GEMM, "fp8 grouped gemm") /* the same with operands of 8 bits */                 \
    X(ATTENTION, "attention")               /* forward */                                          \
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

/* Which link a message takes: within a node, or between nodes; or the bus to host memory, by
 * kernels in both directions at once, or by asynchronous copies. */
typedef enum d9d_sim_link {
    D9D_SIM_LINK_NODE,
    D9D_SIM_LINK_NETWORK,
    D9D_SIM_LINK_HOST,
    D9D_SIM_LINK_HOST_COPY,
    D9D_SIM_LINK_COUNT
} d9d_sim_link;
D9D_API const char *d9d_sim_link_name(d9d_sim_link link);

/* A chip's data sheet. Rates are per processor; docs/design/cost-model.md says where the numbers
 * come from. */
typedef struct d9d_sim_chip {
    const char *name, *title; /* "h200", "NVIDIA H200" */
    bool is_gpu;              /* has the CUDA backend's scratch, streams and libraries */
    bool is_sm90;             /* has the kernels of compute capability 9.0 (Hopper) */
    int sms;                  /* streaming multiprocessors */
    double flops, flops_f32;  /* FLOP per second on the data sheet: dense bfloat16, float32 */
    double flops_fp8;         /* of operands of 8 bits; 0: no tensor cores for them */
    double efficiency[D9D_SIM_KIND_COUNT]; /* fraction of it that each kind of kernel reaches */
    double memory_rate, memory_efficiency; /* bytes per second on the data sheet; the fraction
                                              reached */
    uint64_t memory;                       /* bytes; 0: unknown */
    uint64_t library_memory;               /* of these, bytes that libraries take outside the
                                              pool */
    double launch_s;                       /* shortest time of a kernel */
    double part_s[2]; /* what attention over a part of the keys (ring attention) takes beside its
                         FLOP, as few tiles leave processors idle: forward, backward */
    int per_node;     /* processors per node */
    struct {
        double rate, latency_s; /* bytes per second and direction; seconds per call */
    } link[D9D_SIM_LINK_COUNT];
} d9d_sim_chip;

/* NULL if no chip has this name. */
D9D_API const d9d_sim_chip *d9d_sim_chip_find(const char *name);
/* Names, terminated by NULL; the first is the default. */
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

/* The processor's first stream, and further ones, which live as long as the processor. */
D9D_API d9d_stream d9d_sim_stream(d9d_sim *p);
D9D_API D9D_MUST_USE d9d_status d9d_sim_stream_create(d9d_sim *p, d9d_stream *out);
D9D_API d9d_sim *d9d_sim_of_stream(d9d_stream s);

/* Seconds on the stream's clock since the processor was created. */
D9D_API double d9d_sim_now(d9d_stream s);
/* Work that is enqueued on `s` from now on starts no earlier than that time. */
D9D_API void d9d_sim_wait_until(d9d_stream s, double until);

/* How unevenly tokens choose experts.  0, the default: all alike.  Else the first experts take
 * `most` times the mean each, as many as there are choices for, and the others none; below 1 all
 * take that much, and the other choices are dropped.  A rank with the first experts then receives
 * the most rows that a capacity factor of `most` allows. */
D9D_API void d9d_sim_set_expert_load(d9d_sim *p, double most);

/* True if the array lies in memory that may be accessed. */
D9D_API bool d9d_sim_is_real(const void *p);
/* Where the addresses of fake arrays begin. */
#define D9D_SIM_FAKE_BASE (UINT64_C(1) << 60)
/* And those of pinned host memory, which kernels reach over the bus. */
#define D9D_SIM_FAKE_HOST_BASE (UINT64_C(1) << 62)
D9D_API bool d9d_sim_is_host(const void *p);

/* --- what was done ---------------------------------------------------------------------------- */

typedef struct d9d_sim_work {
    int64_t calls;
    double flops, bytes, seconds; /* bytes read and written */
} d9d_sim_work;

/* Messages of one group, collective and link; bytes are the larger of sent and received. */
typedef struct d9d_sim_traffic {
    char group[48];
    const char *coll;
    d9d_sim_link link;
    int64_t calls;
    double bytes, seconds;
} d9d_sim_traffic;

typedef struct d9d_sim_tally {
    d9d_sim_work work[D9D_SIM_KIND_COUNT];
    d9d_sim_traffic *traffic; /* [n_traffic] */
    size_t n_traffic;
    uint64_t max_scratch; /* most bytes of scratch that one kernel allocated */
} d9d_sim_tally;

/* Counts since creation or the last reset; borrowed. */
D9D_API const d9d_sim_tally *d9d_sim_get_tally(const d9d_sim *p);
D9D_API void d9d_sim_reset_tally(d9d_sim *p);

/* Charges a kernel that no table has: elements of type `t`, FLOP, bytes read and written. */
D9D_API D9D_MUST_USE d9d_status d9d_sim_launch(d9d_stream s, d9d_dtype t, double flops,
                                               double bytes);
/* Kernel launches of all kinds since creation; never reset. */
D9D_API int64_t d9d_sim_launches(const d9d_sim *p);

/* Charges a collective or message on `s`, for the simulated transport. */
D9D_API D9D_MUST_USE d9d_status d9d_sim_transfer(d9d_stream s, const char *group, const char *verb,
                                                 d9d_sim_link link, double bytes);

D9D_API const d9d_kernels *d9d_kernels_sim(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_SIM_H */
