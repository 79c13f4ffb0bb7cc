/* comm_private.h - what comm.c asks of a backend, and what a group of ranks is. */
#ifndef D9DI_COMM_COMM_PRIVATE_H
#define D9DI_COMM_COMM_PRIVATE_H

#include <stdbool.h>

#include "d9d/comm/bootstrap.h"
#include "d9d/comm/comm.h"

struct d9di_flight_call;

/* Every call of comm.h is one of these; an exchange is what lies between begin and end, or one
 * send or receive alone. */
#define D9DI_COLL_MAP(X)                                                                           \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(SEND_RECV, "send_recv")                                                                      \
    X(ALLGATHER_BYTES, "allgather_bytes") /* an all_gather of bytes in the host's memory */        \
    X(PEER_BARRIER,                                                                                \
      "peer_barrier") /* all have come; then this rank takes from the others' memory */

typedef enum d9di_comm_coll {
#define X(name, text) D9DI_COLL_##name,
    D9DI_COLL_MAP(X)
#undef X
        D9DI_COLL_COUNT
} d9di_comm_coll;

const char *d9di_comm_coll_name(d9di_comm_coll v);

/* A message of an exchange. */
typedef struct d9di_comm_msg {
    d9d_dtype t;
    void *data;
    int64_t n;
    int peer; /* in the group */
    bool receive;
} d9di_comm_msg;

/* Of a fence: n bytes of another's memory, as soon as that one has come. */
typedef struct d9di_peer_get {
    int from; /* in the group */
    void *dst;
    const void *src;
    size_t n;
    d9d_comm_event **done_event; /* put behind it */
} d9di_peer_get;

typedef struct d9di_comm_call {
    d9di_comm_coll coll;
    d9d_dtype t;
    d9d_comm_op op;
    const char *label;
    d9d_stream stream;
    void *dst; /* of all_reduce and broadcast: the buffer */
    const void *src;
    const int64_t *send, *recv; /* per rank; NULL where the verb has no such counts */
    int64_t n;                  /* elements of all_reduce and broadcast, pieces of an exchange */
    int root;
    const d9di_comm_msg *msgs;
    void *peer_memory;         /* of a fence: what is taken from, as the wire has it */
    bool signaled;             /* ... each of the others was told already that this rank has come */
    const d9di_peer_get *gets; /* ... n_takes of them, in this order */
    int n_gets;
} d9di_comm_call;

/* How ranks read each other's memory: see d9d_symm_buffer_reserve().  Rooms are what a fence has as
 * `fenced`. */
typedef struct d9di_symm_buffer_ops {
    /* Collective; *out is NULL on all ranks where one cannot. */
    d9d_status (*create)(d9d_comm *c, uint64_t bytes, void **out);
    void *(*ptr)(const void *rooms, int turn, int rank);
    /* What is queued on s is there for rank `to`: the next fence is told. */
    d9d_status (*signal)(void *rooms, d9d_stream s, int to);
    d9d_status (*copy)(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n);
    void (*close)(void *rooms); /* collective, unless a call of the mesh has failed */
} d9di_symm_buffer_ops;

/* Posted messages past the library: see d9d_p2p_ring_enable(). */
typedef struct d9di_p2p_ring_ops {
    /* Collective; *out is left alone on all ranks where one cannot. */
    d9d_status (*create)(d9d_comm *c, void **out);
    /* Do the messages of this pair go so?  The same on both sides. */
    bool (*connects)(const d9d_comm *c, int peer);
    d9d_status (*transfer)(d9d_comm *c, void *mail, const d9di_comm_call *k,
                           d9d_stream s);   /* one piece */
    void (*close)(d9d_comm *c, void *mail); /* collective, unless a call of the mesh has failed */
} d9di_p2p_ring_ops;

typedef struct d9di_comm_backend_ops {
    bool host_local, p2p_default; /* memory is read within a host alone; unless D9D_P2P says so */
    d9d_status (*run[D9DI_COLL_COUNT])(d9d_comm *c, const d9di_comm_call *k);
    /* NULL: everything is done when a call returns. */
    /* The device has the call, and will say when it is done: false where it is done. */
    bool (*track)(d9d_comm *c, const d9di_comm_call *k, struct d9di_flight_call *x);
    d9d_stream (*stream)(d9d_comm *c);
    d9d_status (*wait_stream)(d9d_comm *c, d9d_stream s);
    d9d_status (*stream_wait)(d9d_comm *c, d9d_stream s);
    d9d_status (*event_record)(d9d_comm *c, d9d_comm_event **at);
    d9d_status (*stream_wait_event)(d9d_comm *c, d9d_comm_event *at, d9d_stream s);
    void (*event_free)(d9d_comm_event *at);
    /* What is run between them is handed over by end. */
    d9d_status (*group_start)(d9d_comm *c);
    d9d_status (*group_end)(d9d_comm *c);
    /* NULL: ranks do not read each other's memory. */
    d9d_status (*peer_map)(d9d_comm *c, const char *what, void *const *mine, size_t n,
                           d9d_peer_memory **out);
    const d9di_symm_buffer_ops *symm_buffer; /* NULL: nor have they rooms */
    const d9di_p2p_ring_ops *p2p_ring;       /* NULL: nor mail */
    /* An exchange of one piece that goes on by itself; NULL: posted ones are run at once. */
    d9d_status (*post)(d9d_comm *c, const d9di_comm_call *k, void **out);
    bool (*test)(d9d_comm *c, void *posted);
    d9d_status (*wait)(d9d_comm *c, const d9di_comm_call *k, void *posted); /* takes it */
    void (*close)(d9d_comm *c); /* NULL: a group has nothing of its own */
} d9di_comm_backend_ops;

/* A backend that was opened for the world. */
typedef struct d9di_comm_backend {
    const d9di_comm_backend_ops *ops;
    void *self;
    d9d_status (*group_create)(void *self,
                               d9d_comm *c); /* collective over the world; NULL: nothing to do */
    /* NULL, or for the watchdog's thread: notes the calls that are done; false when the library
     * has found out that something is broken. */
    bool (*poll)(void *self, char *why, size_t why_n);
    void (*close)(void *self, bool failed);
} d9di_comm_backend;

/* Collective over the world.  Builds that have NCCL's file are compiled with -DD9D_CUDA. */
d9d_status d9di_comm_backend_mpi(d9d_bootstrap *boot, d9d_stream stream, d9di_comm_backend *out);
d9d_status d9di_comm_backend_nccl(d9d_bootstrap *boot, d9d_stream stream, d9di_comm_backend *out);
d9d_status d9di_comm_backend_sim(d9d_bootstrap *boot, d9d_stream stream, d9di_comm_backend *out);

#ifdef D9D_CUDA
d9d_status d9di_comm_copy_cuda(d9d_stream s, void *dst, const void *src, size_t n);
d9d_status d9di_peer_map_cuda(d9d_comm *c, const char *what, void *const *mine, size_t n,
                              d9d_peer_memory **out);
d9d_status d9di_peer_barrier_cuda(d9d_comm *c, const d9di_comm_call *k);
extern const d9di_symm_buffer_ops d9di_symm_buffer_cuda;
extern const d9di_p2p_ring_ops d9di_p2p_ring_cuda;
/* The first array that a rank shared. */
void *d9di_peer_ptr(const d9d_peer_memory *x, int rank);
/* Words that another rank writes, and that a queue waits for without a multiprocessor; the status
 * of CUDA, 0 where all is well.  Do queues of all ranks do so? */
bool d9di_peer_has_signals(const d9d_peer_memory *x);
int d9di_peer_signal_write(const d9d_peer_memory *x, d9d_stream s, const void *word,
                           uint32_t value);
/* Until the word has come to the value, in the cyclic order. */
int d9di_peer_signal_wait(const d9d_peer_memory *x, d9d_stream s, const void *word, uint32_t value);
#endif
extern const d9di_symm_buffer_ops d9di_symm_buffer_host;
d9d_status d9di_symm_buffer_barrier_host(d9d_comm *c, const d9di_comm_call *k);

/* What D9D_P2P says, or what is said without it. */
bool d9di_peer_is_allowed(bool by_default);
/* A name of this start of this host; "" where it is not known. */
enum { D9DI_COMM_HOST_ID_MAX = 40 };
void d9di_comm_host_id(char out[D9DI_COMM_HOST_ID_MAX]);
/* Collective, once: *out is whether all ranks of the group live on one host, and may read each
 * other's memory.  Before any rank says what it has: of ranks on many hosts that were much. */
d9d_status d9di_comm_is_single_host(d9d_comm *c, const char *what, bool *out);
/* Collective: *out is whether all ranks say so. */
d9d_status d9di_comm_all_true(d9d_comm *c, const char *what, bool mine, bool *out);

/* A call that was run and not handed over. */
typedef struct d9di_comm_pending {
    d9di_comm_call call;
    struct d9di_flight_call *recorded;
} d9di_comm_pending;

struct d9d_comm {
    const d9di_comm_backend_ops *ops;
    void *backend, *self; /* the backend's own: for the world, for this group */
    char *name;
    int rank, size, tag; /* tag: two groups of a rank have different ones */
    int *world;          /* [size] */
    bool check, *failed; /* failed: some call of the mesh has */
    const struct d9d_mesh_opts *opts;
    struct d9di_flight_ring *ring; /* of the flight recorder, or NULL */
    int group;                     /* its number there */
    int64_t calls;                 /* made so far by all ranks */
    int64_t p2p_calls;             /* ... and by this one alone */
    bool in_group;                 /* between begin and end */
    bool deferred;                 /* ... and the backend hands calls over at the end */
    D9D_VEC(d9di_comm_pending) pending;
    char msgs_label[64]; /* of the first piece */
    struct {
        void *handle; /* the wire's; NULL: none */
        uint64_t bytes;
        int current;              /* 0 or 1: the room that is written */
        bool disabled;            /* for the groups over these axes have not all had some */
        int n_refused, n_asked;   /* how often some rank could not, and one asked for since */
        bool agreed;              /* all groups over these axes had some */
        bool forced;              /* all ranks want them for whatever is moved */
        d9d_comm_event **arrived; /* [size]: where the part of each is, of those told */
    } symm;
    enum { D9DI_HOSTS_UNKNOWN, D9DI_HOSTS_ONE, D9DI_HOSTS_MORE } hosts;
    void *p2p_ring;       /* the wire's; NULL: none */
    bool p2p_ring_wanted; /* some was asked for */
    d9d_stream stream;
    D9D_VEC(d9di_comm_msg) msgs;
};

/* ECOMM: "tp: all_gather of model.norm: WHY". */
d9d_status d9di_comm_call_fail(const d9d_comm *c, const d9di_comm_call *k, const char *fmt, ...)
    D9D_PRINTF(3, 4);

/* What a group is made of; the name and the ranks are copied. */
typedef struct d9di_comm_members {
    const char *name;
    const int *world;
    int rank, size, tag;
    bool *failed;
    bool check; /* each call before it is made: desync_check.c */
    const struct d9d_mesh_opts *opts;
    struct d9di_flight_ring *ring;
    int group;
} d9di_comm_members;

d9d_status d9di_comm_open(const d9di_comm_backend *net, const d9di_comm_members *m, d9d_comm **out);
void d9di_comm_close(d9d_comm *c);
/* What the backend has of a group goes, and is made anew: d9d_mesh_suspend(). */
void d9di_comm_suspend(d9d_comm *c);
d9d_status d9di_comm_resume(const d9di_comm_backend *net, d9d_comm *c);

/* Check, record and run a call. */
d9d_status d9di_comm_submit(d9d_comm *c, const d9di_comm_call *k);

void d9di_symm_buffer_close(d9d_comm *c);

/* All ranks make this call?  Collective. */
d9d_status d9di_desync_check(d9d_comm *c, const d9di_comm_call *k);

/* dst [n] = the sum or maximum over `parts` arrays, `stride` elements apart, in their order;
 * float32 inside for the small floats.  dst may be one of the parts. */
bool d9di_host_reduce_supports(d9d_dtype t);
void d9di_host_reduce(d9d_dtype t, d9d_comm_op op, void *dst, const void *parts, int n_parts,
                      int64_t stride, int64_t n);

#endif /* D9DI_COMM_COMM_PRIVATE_H */
