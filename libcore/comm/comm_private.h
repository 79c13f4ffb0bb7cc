/* comm_private.h - what comm.c asks of a backend, and what a group of ranks is. */
#ifndef D9DI_COMM_COMM_PRIVATE_H
#define D9DI_COMM_COMM_PRIVATE_H

#include <stdbool.h>

#include "d9d/comm/bootstrap.h"
#include "d9d/comm/comm.h"

struct d9di_flight_call;

/* Every call of comm.h is one of these; an exchange is what lies between begin and end, or one
 * send or receive alone. */
#define D9DI_VERB_MAP(X)                                                                           \
    X(ALL_REDUCE, "all_reduce")                                                                    \
    X(ALL_GATHER, "all_gather")                                                                    \
    X(REDUCE_SCATTER, "reduce_scatter")                                                            \
    X(ALL_TO_ALL, "all_to_all")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(EXCHANGE, "exchange")                                                                        \
    X(WORDS, "words") /* an all_gather of bytes in the host's memory */                            \
    X(FENCE, "fence") /* all have come; then this rank takes from the others' memory */

typedef enum d9di_verb {
#define X(name, text) D9DI_##name,
    D9DI_VERB_MAP(X)
#undef X
        D9DI_VERB_COUNT
} d9di_verb;

const char *d9di_verb_text(d9di_verb v);

/* A message of an exchange. */
typedef struct d9di_p2p_msg {
    d9d_dtype t;
    void *data;
    int64_t n;
    int peer; /* in the group */
    bool receive;
} d9di_p2p_msg;

/* Of a fence: n bytes of another's memory, as soon as that one has come. */
typedef struct d9di_take {
    int from; /* in the group */
    void *dst;
    const void *src;
    size_t n;
    d9d_comm_point **there; /* put behind it */
} d9di_take;

typedef struct d9di_call {
    d9di_verb verb;
    d9d_dtype t;
    d9d_comm_op op;
    const char *what;
    d9d_stream stream;
    void *dst; /* of all_reduce and broadcast: the buffer */
    const void *src;
    const int64_t *send, *recv; /* per rank; NULL where the verb has no such counts */
    int64_t n;                  /* elements of all_reduce and broadcast, pieces of an exchange */
    int root;
    const d9di_p2p_msg *pieces;
    void *fenced;           /* of a fence: what is taken from, as the wire has it */
    bool told;              /* ... each of the others was told already that this rank has come */
    const d9di_take *takes; /* ... n_takes of them, in this order */
    int n_takes;
} d9di_call;

/* How ranks read each other's memory: see d9d_comm_rooms_want().  Rooms are what a fence has as
 * `fenced`. */
typedef struct d9di_rooms_ops {
    /* Collective; *out is NULL on all ranks where one cannot. */
    d9d_status (*make)(d9d_comm *c, uint64_t bytes, void **out);
    void *(*at)(const void *rooms, int turn, int rank);
    /* What is queued on s is there for rank `to`: the next fence is told. */
    d9d_status (*tell)(void *rooms, d9d_stream s, int to);
    d9d_status (*copy)(d9d_comm *c, d9d_stream s, void *dst, const void *src, uint64_t n);
    void (*close)(void *rooms); /* collective, unless a call of the mesh has failed */
} d9di_rooms_ops;

/* Posted messages past the library: see d9d_comm_mail_want(). */
typedef struct d9di_mail_ops {
    /* Collective; *out is left alone on all ranks where one cannot. */
    d9d_status (*make)(d9d_comm *c, void **out);
    /* Do the messages of this pair go so?  The same on both sides. */
    bool (*reaches)(const d9d_comm *c, int peer);
    d9d_status (*move)(d9d_comm *c, void *mail, const d9di_call *k, d9d_stream s); /* one piece */
    void (*close)(d9d_comm *c, void *mail); /* collective, unless a call of the mesh has failed */
} d9di_mail_ops;

typedef struct d9di_wire {
    bool hosts, shares; /* memory is read within a host alone; unless D9D_COMM_SHARE says so */
    d9d_status (*run[D9DI_VERB_COUNT])(d9d_comm *c, const d9di_call *k);
    /* NULL: everything is done when a call returns. */
    /* The device has the call, and will say when it is done: false where it is done. */
    bool (*mark)(d9d_comm *c, const d9di_call *k, struct d9di_flight_call *x);
    d9d_stream (*queue)(d9d_comm *c);
    d9d_status (*fork)(d9d_comm *c, d9d_stream s);
    d9d_status (*join)(d9d_comm *c, d9d_stream s);
    d9d_status (*point_set)(d9d_comm *c, d9d_comm_point **at);
    d9d_status (*join_at)(d9d_comm *c, d9d_comm_point *at, d9d_stream s);
    void (*point_free)(d9d_comm_point *at);
    /* What is run between them is handed over by end. */
    d9d_status (*begin)(d9d_comm *c);
    d9d_status (*end)(d9d_comm *c);
    /* NULL: ranks do not read each other's memory. */
    d9d_status (*share)(d9d_comm *c, const char *what, void *const *mine, size_t n,
                        d9d_comm_shared **out);
    const d9di_rooms_ops *rooms; /* NULL: nor have they rooms */
    const d9di_mail_ops *mail;   /* NULL: nor mail */
    /* An exchange of one piece that goes on by itself; NULL: posted ones are run at once. */
    d9d_status (*post)(d9d_comm *c, const d9di_call *k, void **out);
    bool (*passed)(d9d_comm *c, void *posted);
    d9d_status (*finish)(d9d_comm *c, const d9di_call *k, void *posted); /* takes it */
    void (*close)(d9d_comm *c); /* NULL: a group has nothing of its own */
} d9di_wire;

/* A backend that was opened for the world. */
typedef struct d9di_net {
    const d9di_wire *wire;
    void *self;
    d9d_status (*group)(void *self,
                        d9d_comm *c); /* collective over the world; NULL: nothing to do */
    /* NULL, or for the watchdog's thread: notes the calls that are done; false when the library
     * has found out that something is broken. */
    bool (*poll)(void *self, char *why, size_t why_n);
    void (*close)(void *self, bool failed);
} d9di_net;

/* Collective over the world.  Builds that have NCCL's file are compiled with -DD9D_CUDA. */
d9d_status d9di_net_mpi(d9d_boot *boot, d9d_stream stream, d9di_net *out);
d9d_status d9di_net_nccl(d9d_boot *boot, d9d_stream stream, d9di_net *out);
d9d_status d9di_net_paper(d9d_boot *boot, d9d_stream stream, d9di_net *out);

#ifdef D9D_CUDA
d9d_status d9di_cuda_copy(d9d_stream s, void *dst, const void *src, size_t n);
d9d_status d9di_cuda_share(d9d_comm *c, const char *what, void *const *mine, size_t n,
                           d9d_comm_shared **out);
d9d_status d9di_cuda_fence(d9d_comm *c, const d9di_call *k);
extern const d9di_rooms_ops d9di_rooms_cuda;
extern const d9di_mail_ops d9di_mail_cuda;
/* The first array that a rank shared. */
void *d9di_shared_at(const d9d_comm_shared *x, int rank);
/* Words that another rank writes, and that a queue waits for without a multiprocessor; the status
 * of CUDA, 0 where all is well.  Do queues of all ranks do so? */
bool d9di_shared_speaks(const d9d_comm_shared *x);
int d9di_word_write(const d9d_comm_shared *x, d9d_stream s, const void *word, uint32_t value);
/* Until the word has come to the value, in the cyclic order. */
int d9di_word_wait(const d9d_comm_shared *x, d9d_stream s, const void *word, uint32_t value);
#endif
extern const d9di_rooms_ops d9di_rooms_host;
d9d_status d9di_host_fence(d9d_comm *c, const d9di_call *k);

/* What D9D_COMM_SHARE says, or what is said without it. */
bool d9di_may_share(bool unless_said);
/* A name of this start of this host; "" where it is not known. */
enum { D9DI_HOST_MAX = 40 };
void d9di_host_name(char out[D9DI_HOST_MAX]);
/* Collective, once: *out is whether all ranks of the group live on one host, and may read each
 * other's memory.  Before any rank says what it has: of ranks on many hosts that were much. */
d9d_status d9di_comm_near(d9d_comm *c, const char *what, bool *out);
/* Collective: *out is whether all ranks say so. */
d9d_status d9di_comm_all(d9d_comm *c, const char *what, bool mine, bool *out);

/* A call that was run and not handed over. */
typedef struct d9di_held {
    d9di_call call;
    struct d9di_flight_call *recorded;
} d9di_held;

struct d9d_comm {
    const d9di_wire *wire;
    void *net, *self; /* the backend's own: for the world, for this group */
    char *name;
    int rank, size, tag; /* tag: two groups of a rank have different ones */
    int *world;          /* [size] */
    bool check, *failed; /* failed: some call of the mesh has */
    const struct d9d_mesh_how *how;
    struct d9di_ring *ring; /* of the flight recorder, or NULL */
    int group;              /* its number there */
    int64_t calls;          /* made so far by all ranks */
    int64_t exchanges;      /* ... and by this one alone */
    bool together;          /* between begin and end */
    bool holds;             /* ... and the backend hands calls over at the end */
    D9D_VEC(d9di_held) held;
    char what[64]; /* of the first piece */
    struct {
        void *of; /* the wire's; NULL: none */
        uint64_t bytes;
        int turn;               /* 0 or 1: the room that is written */
        bool never;             /* for the groups over these axes have not all had some */
        int refused, asked;     /* how often some rank could not, and one asked for since */
        bool agreed;            /* all groups over these axes had some */
        bool always;            /* all ranks want them for whatever is moved */
        d9d_comm_point **there; /* [size]: where the part of each is, of those told */
    } rooms;
    enum { D9DI_HOSTS_UNKNOWN, D9DI_HOSTS_ONE, D9DI_HOSTS_MORE } hosts;
    void *mail;  /* the wire's; NULL: none */
    bool wanted; /* some was asked for */
    d9d_stream stream;
    D9D_VEC(d9di_p2p_msg) pieces;
};

/* ECOMM: "tp: all_gather of model.norm: WHY". */
d9d_status d9di_call_fail(const d9d_comm *c, const d9di_call *k, const char *fmt, ...)
    D9D_PRINTF(3, 4);

/* What a group is made of; the name and the ranks are copied. */
typedef struct d9di_members {
    const char *name;
    const int *world;
    int rank, size, tag;
    bool *failed;
    bool check; /* each call before it is made: desync_check.c */
    const struct d9d_mesh_how *how;
    struct d9di_ring *ring;
    int group;
} d9di_members;

d9d_status d9di_comm_open(const d9di_net *net, const d9di_members *m, d9d_comm **out);
void d9di_comm_close(d9d_comm *c);
/* What the backend has of a group goes, and is made anew: d9d_mesh_sleep(). */
void d9di_comm_sleep(d9d_comm *c);
d9d_status d9di_comm_wake(const d9di_net *net, d9d_comm *c);

/* Check, record and run a call. */
d9d_status d9di_comm_go(d9d_comm *c, const d9di_call *k);

void d9di_rooms_close(d9d_comm *c);

/* All ranks make this call?  Collective. */
d9d_status d9di_comm_check(d9d_comm *c, const d9di_call *k);

/* dst [n] = the sum or maximum over `parts` arrays, `stride` elements apart, in their order;
 * float32 inside for the small floats.  dst may be one of the parts. */
bool d9di_reducible(d9d_dtype t);
void d9di_reduce(d9d_dtype t, d9d_comm_op op, void *dst, const void *parts, int n_parts,
                 int64_t stride, int64_t n);

#endif /* D9DI_COMM_COMM_PRIVATE_H */
