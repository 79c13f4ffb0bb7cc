/* flight_file.h - a ring of calls as it lies in memory and in its file, and who writes it.
 *
 *     flight_shm.c   memory that others of this host can read, and that outlives the process
 *     flight_ring.c     calls, by the thread that makes them: stores into that memory
 *     flight_store.c    DIR/rank-N.bin, by the scribe's thread alone (comm/watch/flight_writer.h)
 */
#ifndef D9DI_COMM_WATCH_FLIGHT_FILE_H
#define D9DI_COMM_WATCH_FLIGHT_FILE_H

#include "comm/comm_private.h"
#include "d9d/base/fs.h"
#include "d9d/comm/mesh.h"

#define D9DI_FLIGHT_MAGIC "d9dflit1"

enum {
    D9DI_FLIGHT_CALLS = 1024,
    D9DI_FLIGHT_GROUPS = 80, /* sets of axes that are made at once at most */
    D9DI_FLIGHT_HEAD = 4096, /* bytes before the first call */
    D9DI_FLIGHT_PEERS = 4,
    D9DI_FLIGHT_MEMORY = 64,
    D9DI_FLIGHT_BEAT_MS = 100,
    D9DI_FLIGHT_SYNC_MS = 5000 /* between writings of the file */
};

typedef enum d9di_flight_state { /* of a process */
                                 D9DI_FLIGHT_RUNS,
                                 D9DI_FLIGHT_LEFT,   /* its mesh was closed without a failure */
                                 D9DI_FLIGHT_FAILED, /* ... after one */
                                 D9DI_FLIGHT_ENDED,  /* by its watchdog */
                                 D9DI_FLIGHT_STATES
} d9di_flight_state;

typedef enum d9di_flight_step { /* of a call */
                                D9DI_STEP_INSIDE,
                                D9DI_STEP_QUEUED, /* the device has it, and is not done */
                                D9DI_STEP_DONE,
                                D9DI_STEP_FAILED,
                                D9DI_STEPS
} d9di_flight_step;

/* Times are of a clock that counts since the host was started; `offset` makes it the time of day,
 * as that is at the last beat. */
typedef struct d9di_flight_call {
    int64_t number; /* of all calls of this rank, from 1; 0: being written */
    int64_t begin, end;
    int64_t seq; /* of the group's calls; exchanges count on their own */
    int64_t n;   /* elements, the same on every rank but for all_to_all and exchanges */
    uint8_t group, verb, type, op;
    int32_t step, root;
    int32_t peer[D9DI_FLIGHT_PEERS]; /* of an exchange: world rank + 1, negative to receive */
    char what[60];
} d9di_flight_call;

typedef struct d9di_flight_group {
    uint32_t axes, unused;
    int64_t seq; /* calls that were begun */
} d9di_flight_group;

typedef struct d9di_flight_head {
    char magic[8];
    int64_t job; /* the same for all ranks of a job, another for the next one */
    int32_t rank, size;
    d9d_degrees degrees;
    int64_t pid, started; /* started: tells processes of one pid apart */
    int64_t offset, beat, calls;
    int32_t state, groups;
    char node[64], host[64];
    char said[1024]; /* by the watchdog that ended the job */
    d9di_flight_group group[D9DI_FLIGHT_GROUPS];
    char memory[D9DI_FLIGHT_MEMORY]; /* where processes of this host find the ring itself, or "" */
    char dir[40];                    /* a hash of the directory's name */
    int64_t lag;                     /* ns by which the file may be older than the ring; 0: none */
} d9di_flight_head;

typedef struct d9di_ring {
    d9di_flight_head head;
    char unused[D9DI_FLIGHT_HEAD - sizeof(d9di_flight_head)];
    d9di_flight_call call[D9DI_FLIGHT_CALLS];
} d9di_ring;

/* How a process is told from others. */
typedef struct d9di_presence {
    int64_t pid, started; /* by the kernel's clock; 0: that is not known */
    char host[64];        /* a hash: of its name, and of which of its processes count each other */
} d9di_presence;

void d9di_presence_of_self(d9di_presence *out);
/* Is there no such process of this host, or what is left of one?  Its state is the kernel's letter,
 * 0 where there is none; NULL where that is not asked. */
bool d9di_process_gone(int64_t pid, int64_t started, char *state);

/* --- memory ------------------------------------------------------------------------------- */

/* A ring of zeros: a file of /dev/shm, which is there when this process has been killed; where that
 * has no room, memory that lives as long as somebody maps it; else this process's own.  `path`,
 * where others of this host and user find it, "" for the last.  Rings of processes that are gone
 * are removed there, if of the same directory (NULL: none) or an hour old. */
d9d_status d9di_ring_memory(const char *dir, d9di_ring **out);
/* Gone from /dev/shm; those who have it keep it. */
void d9di_ring_unlink(const d9di_ring *r);
/* Unmapped, and gone from /dev/shm unless it is to be found there. */
void d9di_ring_release(d9di_ring *r, bool keep);
/* That of another process, to be read; NULL: it cannot be. */
const d9di_ring *d9di_ring_attach(const char *path);
void d9di_ring_detach(const d9di_ring *r);
/* What it says now, copied; false: it is there no more, or is none. */
bool d9di_ring_peek(const char *path, d9di_ring *out);
/* Held until it is closed, so that one of several writes it to its file; -1: another does, or it is
 * there no more. */
int d9di_ring_claim(const char *path);
/* Of a ring that is being written: calls that are, have the number 0. */
void d9di_ring_copy(const d9di_ring *r, d9di_ring *out);

/* --- the file ------------------------------------------------------------------------------- */

typedef struct d9di_flight_store {
    d9d_file file;
    d9di_ring *last; /* what it has */
} d9di_flight_store;

/* DIR/rank-N.bin, made anew and empty: an older job's is taken away. */
d9d_status d9di_store_open(const char *dir, int rank, d9di_flight_store *out);
/* Write and sync what differs from what it has. */
d9d_status d9di_store_write(d9di_flight_store *s, const d9di_ring *r);
void d9di_store_close(d9di_flight_store *s);
/* What a process that is gone has left in memory, to its file, unless that is another job's. */
d9d_status d9di_store_salvage(const char *dir, const d9di_ring *r);
/* The state that the file of a rank has; false: there is none of this job. */
bool d9di_store_state(const char *dir, int rank, int64_t job, d9di_flight_state *out);

/* --- recording ------------------------------------------------------------------------------ */

/* What a ring says of its rank. */
void d9di_ring_init(d9di_ring *r, d9d_boot *boot, const d9d_degrees *d, int64_t job);
/* It is `now`, of d9d_clock_ns(), and the rank lives.  The time of day may have been set meanwhile.
 */
void d9di_ring_beat(d9di_ring *r, int64_t now);
void d9di_ring_set_state(d9di_ring *r, d9di_flight_state state);
d9di_flight_state d9di_ring_state(const d9di_ring *r);

/* The number of a group in the ring; -1: there are too many. */
int d9di_ring_group(d9di_ring *r, unsigned axes);
/* NULL when the ring or the group is not recorded.  Does not return where the watchdog ends the
 * job: a rank that has been said to be lost does no more. */
d9di_flight_call *d9di_ring_begin(d9d_comm *c, const d9di_call *k);
void d9di_ring_end(d9di_flight_call *x, d9di_flight_step step);

#endif /* D9DI_COMM_WATCH_FLIGHT_FILE_H */
