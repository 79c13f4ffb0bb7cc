/* comm_private.h - struct d9d_comm (a process group), and the interface that a backend
 * implements. */
#ifndef D9DI_COMM_COMM_PRIVATE_H
#define D9DI_COMM_COMM_PRIVATE_H

#include <stdbool.h>

#include "d9d/comm/bootstrap.h"
#include "d9d/comm/comm.h"

struct d9di_flight_call;

/* The kinds of calls of comm.h.  SEND_RECV is all messages between group_start and group_end, or
 * one send or receive alone. */
#define D9DI_COLL_MAP(X)                                                                           \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(SEND_RECV, "send_recv")                                                                      \
    X(ALLGATHER_BYTES, "allgather_bytes") /* all-gather of bytes in host memory */                 \
    X(PEER_BARRIER, "peer_barrier")       /* a barrier; then this rank reads peer memory */

typedef enum d9di_comm_coll {
#define X(name, text) D9DI_COLL_##name,
    D9DI_COLL_MAP(X)
#undef X
        D9DI_COLL_COUNT
} d9di_comm_coll;

const char *d9di_comm_coll_name(d9di_comm_coll v);

/* One message of a SEND_RECV. */
typedef struct d9di_comm_msg {
    d9d_dtype t;
    void *data;
    int64_t n;
    int peer; /* in the group */
    bool receive;
} d9di_comm_msg;

/* One copy of a PEER_BARRIER: n bytes of peer memory, as soon as that rank has signaled. */
typedef struct d9di_peer_get {
    int from; /* in the group */
    void *dst;
    const void *src;
    size_t n;
    d9d_comm_event **done_event; /* recorded after the copy */
} d9di_peer_get;

typedef struct d9di_comm_call {
    d9di_comm_coll coll;
    d9d_dtype t;
    d9d_comm_op op;
    const char *label;
    d9d_stream stream;
    void *dst; /* all_reduce and broadcast: the buffer */
    const void *src;
    const int64_t *send,
        *recv; /* elements for each rank; NULL where the collective has no such counts */
    int64_t n; /* elements of all_reduce and broadcast; messages of a SEND_RECV */
    int root;
    const d9di_comm_msg *msgs;
    void *peer_memory;         /* PEER_BARRIER: the backend's handle of the memory */
    bool signaled;             /* ... the other ranks were signaled already */
    const d9di_peer_get *gets; /* ... n_gets of them, in this order */
    int n_gets;
} d9di_comm_call;

/* Staging buffers of one backend: see d9d_symm_buffer_reserve().  The handle that create() makes is
 * the `peer_memory` of a PEER_BARRIER call; `turn`, 0 or 1, selects one of the two buffers. */
typedef struct d9di_symm_buffer_ops {
    /* Collective; *out is NULL on all ranks if one rank cannot. */
    d9d_status (*create)(d9d_comm *c, uint64_t bytes, void **out);
    void *(*ptr)(const void *self, int which, int rank);
    /* Signal rank `to` when the work enqueued on s is done; the next PEER_BARRIER has `signaled`
     * set. */
    d9d_status (*signal)(void *self, d9d_stream s, int to);
    d9d_status (*copy)(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n);
    void (*close)(void *self); /* collective, unless a call of the mesh has failed */
} d9di_symm_buffer_ops;

/* Posted messages through peer memory instead of NCCL: see d9d_p2p_ring_enable(). */
typedef struct d9di_p2p_ring_ops {
    /* Collective; *out is unchanged on all ranks if one rank cannot. */
    d9d_status (*create)(d9d_comm *c, void **out);
    /* True if messages to and from `peer` use the ring; the same on both sides. */
    bool (*connects)(const d9d_comm *c, int peer);
    d9d_status (*transfer)(d9d_comm *c, void *mail, const d9di_comm_call *k,
                           d9d_stream s);   /* one message */
    void (*close)(d9d_comm *c, void *mail); /* collective, unless a call of the mesh has failed */
} d9di_p2p_ring_ops;

typedef struct d9di_comm_backend_ops {
    bool host_local, p2p_default; /* host_local: peer memory needs one host; p2p_default: allowed
                                     unless D9D_P2P says otherwise */
    d9d_status (*run[D9DI_COLL_COUNT])(d9d_comm *c, const d9di_comm_call *k);
    /* The functions up to group_end may be NULL: calls are then complete on return. */
    /* Track completion of an enqueued call for the flight recorder; false if it is complete
     * already. */
    bool (*track)(d9d_comm *c, const d9di_comm_call *k, struct d9di_flight_call *x);
    d9d_stream (*stream)(d9d_comm *c);
    d9d_status (*wait_stream)(d9d_comm *c, d9d_stream s);
    d9d_status (*stream_wait)(d9d_comm *c, d9d_stream s);
    d9d_status (*event_record)(d9d_comm *c, d9d_comm_event **at);
    d9d_status (*stream_wait_event)(d9d_comm *c, d9d_comm_event *at, d9d_stream s);
    void (*event_free)(d9d_comm_event *at);
    /* Calls between them are submitted by group_end. */
    d9d_status (*group_start)(d9d_comm *c);
    d9d_status (*group_end)(d9d_comm *c);
    /* NULL: no peer memory. */
    d9d_status (*peer_map)(d9d_comm *c, const char *label, void *const *local, size_t n,
                           d9d_peer_memory **out);
    const d9di_symm_buffer_ops *symm_buffer; /* NULL: no staging buffers */
    const d9di_p2p_ring_ops *p2p_ring;       /* NULL: no P2P ring */
    /* Start a SEND_RECV of one message; NULL: a posted message runs at once. */
    d9d_status (*post)(d9d_comm *c, const d9di_comm_call *k, void **out);
    bool (*test)(d9d_comm *c, void *posted);
    d9d_status (*wait)(d9d_comm *c, const d9di_comm_call *k, void *posted); /* frees `posted` */
    void (*cancel)(d9d_comm *c, void *posted); /* frees it too; NULL: left as it is */
    void (*close)(d9d_comm *c);                /* NULL: a group has no backend state */
} d9di_comm_backend_ops;

/* A backend, opened for the world. */
typedef struct d9di_comm_backend {
    const d9di_comm_backend_ops *ops;
    void *self;
    d9d_status (*group_create)(void *self,
                               d9d_comm *c); /* collective over the world; NULL: nothing to do */
    /* For the watchdog's thread; may be NULL.  Records calls that have completed; false, with the
     * reason in `why`, if the library reports an asynchronous error. */
    bool (*poll)(void *self, char *why, size_t why_n);
    void (*close)(void *self, bool failed);
} d9di_comm_backend;

/* Collective over the world.  comm_nccl.c is compiled only with -DD9D_CUDA. */
d9d_status d9di_comm_backend_mpi(d9d_bootstrap *bootstrap, d9d_stream stream,
                                 d9di_comm_backend *out);
d9d_status d9di_comm_backend_nccl(d9d_bootstrap *bootstrap, d9d_stream stream,
                                  d9di_comm_backend *out);
d9d_status d9di_comm_backend_sim(d9d_bootstrap *bootstrap, d9d_stream stream,
                                 d9di_comm_backend *out);

#ifdef D9D_CUDA
d9d_status d9di_comm_copy_cuda(d9d_stream s, void *dst, const void *src, size_t n);
d9d_status d9di_peer_map_cuda(d9d_comm *c, const char *label, void *const *local, size_t n,
                              d9d_peer_memory **out);
d9d_status d9di_peer_barrier_cuda(d9d_comm *c, const d9di_comm_call *k);
extern const d9di_symm_buffer_ops d9di_symm_buffer_cuda;
extern const d9di_p2p_ring_ops d9di_p2p_ring_cuda;
/* The first array that a rank mapped. */
void *d9di_peer_ptr(const d9d_peer_memory *x, int rank);
/* Signals: 32-bit words in peer memory that streams write and wait for without an SM.
 * has_signals():  can the streams of all ranks do so?  The others return a CUresult or cudaError_t,
 * 0 for success. */
bool d9di_peer_has_signals(const d9d_peer_memory *x);
int d9di_peer_signal_write(const d9d_peer_memory *x, d9d_stream s, const void *word,
                           uint32_t value);
/* Stream s waits until the word is at least `value`, in cyclic (wrapping) order. */
int d9di_peer_signal_wait(const d9d_peer_memory *x, d9d_stream s, const void *word, uint32_t value);
#endif
extern const d9di_symm_buffer_ops d9di_symm_buffer_host;
d9d_status d9di_symm_buffer_barrier_host(d9d_comm *c, const d9di_comm_call *k);

/* Whether D9D_P2P allows peer memory; by_default if it is not set. */
bool d9di_peer_is_allowed(bool by_default);
/* The boot id of this host: it differs between hosts and between boots; "" if unknown. */
enum { D9DI_COMM_HOST_ID_MAX = 40 };
void d9di_comm_host_id(char out[D9DI_COMM_HOST_ID_MAX]);
/* *out is true if all ranks of the group are on one host and may read each other's memory.
 * Collective once, then cached.  It runs before larger exchanges, whose size grows with the
 * hosts. */
d9d_status d9di_comm_is_single_host(d9d_comm *c, const char *label, bool *out);
/* Logical AND over the ranks of the group.  Collective. */
d9d_status d9di_comm_all_true(d9d_comm *c, const char *label, bool local, bool *out);

/* Who is told of waits: d9d_mesh_observe_waits(). */
typedef struct d9di_comm_wait_observer {
    void (*fn)(void *self, bool begins); /* NULL: nobody */
    void *self;
    d9d_stream stream;
} d9di_comm_wait_observer;

/* A call inside a group that the backend has not submitted yet. */
typedef struct d9di_comm_pending {
    d9di_comm_call call;
    struct d9di_flight_call *recorded;
} d9di_comm_pending;

struct d9d_comm {
    const d9di_comm_backend_ops *ops;
    void *backend, *self; /* the backend's state: of the world, of this group */
    char *name;
    int rank, size, tag; /* tag: different for any two groups of a rank */
    int *world;          /* [size] */
    bool check, *failed; /* failed: shared by the mesh, true after any call failed */
    const struct d9d_mesh_opts *opts;
    const d9di_comm_wait_observer *waits; /* of the mesh */
    struct d9di_flight_ring *ring;        /* of the flight recorder, or NULL */
    int group;                            /* its number in the flight recorder */
    int64_t calls;                        /* sequence number: collectives so far */
    int64_t p2p_calls;                    /* ... messages of this rank so far */
    uint64_t *sent;                       /* [size]: d9di_comm_sent_bytes() */
    bool in_group;                        /* between group_start and group_end */
    bool deferred;                        /* ... and the backend submits calls at the end */
    D9D_VEC(d9di_comm_pending) pending;
    char msgs_label[64]; /* label of the first message */
    struct {
        void *handle; /* the backend's handle; NULL: none */
        uint64_t bytes;
        int current;              /* 0 or 1: the buffer that is written */
        bool disabled;            /* some group over these axes has no buffers */
        int n_refused, n_asked;   /* refused allocations; requests since the last try */
        bool agreed;              /* all groups over these axes have buffers */
        bool forced;              /* all ranks have D9D_P2P=force */
        d9d_comm_event **arrived; /* [size]: recorded when a rank's slice has arrived */
    } symm;
    enum { D9DI_HOSTS_UNKNOWN, D9DI_HOSTS_ONE, D9DI_HOSTS_MORE } hosts;
    void *p2p_ring;       /* the backend's handle; NULL: none */
    bool p2p_ring_wanted; /* d9d_p2p_ring_enable() was called */
    d9d_stream stream;
    D9D_VEC(d9di_comm_msg) msgs;
};

/* Bytes that this rank has sent to rank `to` of the group in all-to-alls and messages so far. */
uint64_t d9di_comm_sent_bytes(const d9d_comm *c, int to);

/* ECOMM: "tp: all_gather of model.norm: WHY". */
d9d_status d9di_comm_call_fail(const d9d_comm *c, const d9di_comm_call *k, const char *fmt, ...)
    D9D_PRINTF(3, 4);

/* What a group is created from; the name and the ranks are copied. */
typedef struct d9di_comm_members {
    const char *name;
    const int *world;
    int rank, size, tag;
    bool *failed;
    bool check; /* compare each call with the other ranks': desync_check.c */
    const struct d9d_mesh_opts *opts;
    const d9di_comm_wait_observer *waits;
    struct d9di_flight_ring *ring;
    int group;
} d9di_comm_members;

d9d_status d9di_comm_open(const d9di_comm_backend *net, const d9di_comm_members *m, d9d_comm **out);
void d9di_comm_close(d9d_comm *c);
/* Free the backend's state of a group, and create it again: d9d_mesh_suspend(). */
void d9di_comm_suspend(d9d_comm *c);
d9d_status d9di_comm_resume(const d9di_comm_backend *net, d9d_comm *c);

/* Check, record and run a call. */
d9d_status d9di_comm_submit(d9d_comm *c, const d9di_comm_call *k);

void d9di_symm_buffer_close(d9d_comm *c);

/* ECOMM unless all ranks of the group make this same call.  Collective. */
d9d_status d9di_desync_check(d9d_comm *c, const d9di_comm_call *k);

/* dst [n] = the sum or maximum over n_parts arrays that are `stride` elements apart, in their
 * order; accumulated in float32 for 16-bit floats.  dst may be one of the parts. */
bool d9di_host_reduce_supports(d9d_dtype t);
void d9di_host_reduce(d9d_dtype t, d9d_comm_op op, void *dst, const void *parts, int n_parts,
                      int64_t stride, int64_t n);

#endif /* D9DI_COMM_COMM_PRIVATE_H */
