/* sim.h - a processor that computes nothing and counts what it would have done.
 *
 *     const d9d_paper_chip *chip = d9d_paper_chip_find("h200");
 *     D9D_TRY(d9d_paper_create(chip, &owner, &paper));
 *     d9d_kernels_paper()->gemm(d9d_paper_stream(paper), &g, a, b, c);
 *     printf("%g s\n", d9d_paper_now(d9d_paper_stream(paper)));
 *     d9d_paper_free(paper);
 *
 * Entries of its table take the arguments of any other's and touch no array.  Each moves the clock
 * of its stream on by what the chip would need: the longer of operations over the rate of such
 * kernels and bytes over that of memory, and a launch.  Scratch that the chip's own kernels would
 * borrow is taken from the owner and given back, so that its peaks count it.
 *
 * On a stream that is NULL, the queue of a group of ranks on a processor that does nothing beside
 * its computation, nothing is counted.  Streams of one chip have clocks of their own, which wait
 * for each other as events make them (d9d_paper_wait()): what is beside computation costs nothing
 * until something waits for it.
 *
 * What the host reads back must be there: an array that lies in real memory (d9d_paper_is_real())
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
#define D9D_PAPER_KIND_MAP(X)                                                                      \
    X(PRODUCTS, "products")   /* of matrices */                                                    \
    X(EXPERTS, "experts")     /* of experts, with their weights' gradients */                      \
    X(ATTENTION, "attention") /* forward */                                                        \
    X(ATTENTION_GRAD, "attention gradient")                                                        \
    X(ATTENTION_OWN, "attention by own kernels") /* what no library takes; the gated delta rule */ \
    X(HEAD, "head and loss")                                                                       \
    X(MEMORY, "memory") /* the rest: bytes decide */

typedef enum d9d_paper_kind {
#define X(name, text) D9D_PAPER_##name,
    D9D_PAPER_KIND_MAP(X)
#undef X
        D9D_PAPER_KIND_COUNT
} d9d_paper_kind;

D9D_API const char *d9d_paper_kind_text(d9d_paper_kind kind);

/* How messages go: within a node, and between nodes. */
typedef enum d9d_paper_link { D9D_PAPER_NODE, D9D_PAPER_NET, D9D_PAPER_LINK_COUNT } d9d_paper_link;
D9D_API const char *d9d_paper_link_text(d9d_paper_link link);

/* Rates are per processor; docs/design/cost-model.md says where the numbers come from. */
typedef struct d9d_paper_chip {
    const char *name, *text; /* "h200", "NVIDIA H200" */
    bool gpu;                /* scratch, streams and libraries of the CUDA backend */
    bool hopper;             /* kernels of compute capability 9.0 */
    double flops, flops_f32; /* dense products a second on the data sheet: bfloat16, float32 */
    double rate[D9D_PAPER_KIND_COUNT]; /* the part of it that kernels of a kind reach */
    double memory_rate, memory_part;   /* bytes a second on the data sheet; the part reached */
    uint64_t memory;                   /* bytes; 0: unknown */
    uint64_t outside;                  /* of these, what libraries take beside the pool */
    double launch_s;                   /* least time of a kernel */
    int node;                          /* processors of a node */
    struct {
        double rate, latency_s; /* bytes a second, each way at once; of a call */
    } link[D9D_PAPER_LINK_COUNT];
} d9d_paper_chip;

/* NULL when there is none of this name. */
D9D_API const d9d_paper_chip *d9d_paper_chip_find(const char *name);
/* Names, ended by NULL, the first is the default. */
D9D_API const char *const *d9d_paper_chip_names(void);

/* --- one processor ------------------------------------------------------------------------- */

typedef struct d9d_paper d9d_paper;

typedef struct d9d_paper_owner {
    void *self;
    d9d_status (*take)(void *self, uint64_t n, void **out);
    void (*give)(void *self, void *p, uint64_t n);
} d9d_paper_owner;

D9D_API D9D_MUST_USE d9d_status d9d_paper_create(const d9d_paper_chip *chip,
                                                 const d9d_paper_owner *owner, d9d_paper **out);
D9D_API void d9d_paper_free(d9d_paper *p);
D9D_API const d9d_paper_chip *d9d_paper_chip_of(const d9d_paper *p);

/* Its own stream, and another one, which lives as long as the processor. */
D9D_API d9d_stream d9d_paper_stream(d9d_paper *p);
D9D_API D9D_MUST_USE d9d_status d9d_paper_add_stream(d9d_paper *p, d9d_stream *out);
D9D_API d9d_paper *d9d_paper_of(d9d_stream s);

/* Seconds since it was made. */
D9D_API double d9d_paper_now(d9d_stream s);
/* What is queued on `s` from here on comes after that time. */
D9D_API void d9d_paper_wait(d9d_stream s, double until);

/* Does the array lie in memory that may be read and written? */
D9D_API bool d9d_paper_is_real(const void *p);
/* Where arrays lie that may not. */
#define D9D_PAPER_UNREAL (UINT64_C(1) << 60)

/* --- what was done ---------------------------------------------------------------------------- */

typedef struct d9d_paper_work {
    int64_t calls;
    double flops, bytes, seconds; /* bytes read and written */
} d9d_paper_work;

/* Messages of one group, verb and link; bytes that this rank sends or receives, the larger. */
typedef struct d9d_paper_talk {
    char group[48];
    const char *verb;
    d9d_paper_link link;
    int64_t calls;
    double bytes, seconds;
} d9d_paper_talk;

typedef struct d9d_paper_tally {
    d9d_paper_work work[D9D_PAPER_KIND_COUNT];
    d9d_paper_talk *talk; /* [n_talk] */
    size_t n_talk;
    uint64_t scratch; /* most that one kernel has borrowed */
} d9d_paper_tally;

/* Since it was made, or began anew; borrowed. */
D9D_API const d9d_paper_tally *d9d_paper_done(const d9d_paper *p);
D9D_API void d9d_paper_begin(d9d_paper *p);

/* For a kernel that stands in no table: elements of type `t`, operations, bytes read and written.
 */
D9D_API D9D_MUST_USE d9d_status d9d_paper_launch(d9d_stream s, d9d_dtype t, double flops,
                                                 double bytes);
/* Kernels of all kinds since it was made; it only grows. */
D9D_API int64_t d9d_paper_launches(const d9d_paper *p);

/* For who moves messages: one call on `s`. */
D9D_API D9D_MUST_USE d9d_status d9d_paper_say(d9d_stream s, const char *group, const char *verb,
                                              d9d_paper_link link, double bytes);

D9D_API const d9d_kernels *d9d_kernels_paper(void);

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_SIM_H */
