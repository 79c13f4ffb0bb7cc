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
    D9DI_FLIGHT_GROUPS = 80,         /* sets of axes that are made at once at most */
    D9DI_FLIGHT_HEADER_BYTES = 4096, /* bytes before the first call */
    D9DI_FLIGHT_PEERS = 4,
    D9DI_FLIGHT_SHM_PATH_MAX = 64,
    D9DI_FLIGHT_HEARTBEAT_MS = 100,
    D9DI_FLIGHT_SYNC_MS = 5000 /* between writings of the file */
};

typedef enum d9di_flight_state { /* of a process */
                                 D9DI_FLIGHT_RUNNING,
                                 D9DI_FLIGHT_CLOSED,  /* its mesh was closed without a failure */
                                 D9DI_FLIGHT_FAILED,  /* ... after one */
                                 D9DI_FLIGHT_ABORTED, /* by its watchdog */
                                 D9DI_FLIGHT_STATE_COUNT
} d9di_flight_state;

typedef enum d9di_flight_call_state { /* of a call */
                                      D9DI_FLIGHT_CALL_STARTED,
                                      D9DI_FLIGHT_CALL_ENQUEUED, /* the device has it, and is not
                                                                    done */
                                      D9DI_FLIGHT_CALL_COMPLETED,
                                      D9DI_FLIGHT_CALL_FAILED,
                                      D9DI_FLIGHT_CALL_STATE_COUNT
} d9di_flight_call_state;

/* Times are of a clock that counts since the host was started; `offset` makes it the time of day,
 * as that is at the last beat. */
typedef struct d9di_flight_call {
    int64_t number; /* of all calls of this rank, from 1; 0: being written */
    int64_t begin, end;
    int64_t seq; /* of the group's calls; exchanges count on their own */
    int64_t n;   /* elements, the same on every rank but for all_to_all and exchanges */
    uint8_t group, coll, dtype, op;
    int32_t state, root;
    int32_t peer[D9DI_FLIGHT_PEERS]; /* of an exchange: world rank + 1, negative to receive */
    char label[60];
} d9di_flight_call;

typedef struct d9di_flight_group {
    uint32_t axes, unused;
    int64_t seq; /* calls that were begun */
} d9di_flight_group;

typedef struct d9di_flight_header {
    char magic[8];
    int64_t job; /* the same for all ranks of a job, another for the next one */
    int32_t rank, size;
    d9d_parallel_degrees degrees;
    int64_t pid, started; /* started: tells processes of one pid apart */
    int64_t clock_offset, heartbeat, calls;
    int32_t state, groups;
    char node[64], host[64];
    char abort_message[1024]; /* by the watchdog that ended the job */
    d9di_flight_group group[D9DI_FLIGHT_GROUPS];
    char shm_path[D9DI_FLIGHT_SHM_PATH_MAX]; /* where processes of this host find the ring itself,
                                                or "" */
    char dir_hash[40];                       /* a hash of the directory's name */
    int64_t max_lag; /* ns by which the file may be older than the ring; 0: none */
} d9di_flight_header;

typedef struct d9di_flight_ring {
    d9di_flight_header header;
    char unused[D9DI_FLIGHT_HEADER_BYTES - sizeof(d9di_flight_header)];
    d9di_flight_call call[D9DI_FLIGHT_CALLS];
} d9di_flight_ring;

/* How a process is told from others. */
typedef struct d9di_flight_process {
    int64_t pid, started; /* by the kernel's clock; 0: that is not known */
    char host[64];        /* a hash: of its name, and of which of its processes count each other */
} d9di_flight_process;

void d9di_flight_process_self(d9di_flight_process *out);
/* Is there no such process of this host, or what is left of one?  Its state is the kernel's letter,
 * 0 where there is none; NULL where that is not asked. */
bool d9di_flight_process_is_gone(int64_t pid, int64_t started, char *state);

/* --- memory ------------------------------------------------------------------------------- */

/* A ring of zeros: a file of /dev/shm, which is there when this process has been killed; where that
 * has no room, memory that lives as long as somebody maps it; else this process's own.  `path`,
 * where others of this host and user find it, "" for the last.  Rings of processes that are gone
 * are removed there, if of the same directory (NULL: none) or an hour old. */
d9d_status d9di_flight_ring_create(const char *dir, d9di_flight_ring **out);
/* Gone from /dev/shm; those who have it keep it. */
void d9di_flight_ring_unlink(const d9di_flight_ring *r);
/* Unmapped, and gone from /dev/shm unless it is to be found there. */
void d9di_flight_ring_release(d9di_flight_ring *r, bool keep);
/* That of another process, to be read; NULL: it cannot be. */
const d9di_flight_ring *d9di_flight_ring_attach(const char *path);
void d9di_flight_ring_detach(const d9di_flight_ring *r);
/* What it says now, copied; false: it is there no more, or is none. */
bool d9di_flight_ring_read(const char *path, d9di_flight_ring *out);
/* Held until it is closed, so that one of several writes it to its file; -1: another does, or it is
 * there no more. */
int d9di_flight_ring_lock(const char *path);
/* Of a ring that is being written: calls that are, have the number 0. */
void d9di_flight_ring_copy(const d9di_flight_ring *r, d9di_flight_ring *out);

/* --- the file ------------------------------------------------------------------------------- */

typedef struct d9di_flight_store {
    d9d_file file;
    d9di_flight_ring *written; /* what it has */
} d9di_flight_store;

/* DIR/rank-N.bin, made anew and empty: an older job's is taken away. */
d9d_status d9di_flight_store_open(const char *dir, int rank, d9di_flight_store *out);
/* Write and sync what differs from what it has. */
d9d_status d9di_flight_store_write(d9di_flight_store *s, const d9di_flight_ring *r);
void d9di_flight_store_close(d9di_flight_store *s);
/* What a process that is gone has left in memory, to its file, unless that is another job's. */
d9d_status d9di_flight_store_salvage(const char *dir, const d9di_flight_ring *r);
/* The state that the file of a rank has; false: there is none of this job. */
bool d9di_flight_store_read_state(const char *dir, int rank, int64_t job, d9di_flight_state *out);

/* --- recording ------------------------------------------------------------------------------ */

/* What a ring says of its rank. */
void d9di_flight_ring_init(d9di_flight_ring *r, d9d_bootstrap *boot, const d9d_parallel_degrees *d,
                           int64_t job);
/* It is `now`, of d9d_clock_ns(), and the rank lives.  The time of day may have been set meanwhile.
 */
void d9di_flight_ring_heartbeat(d9di_flight_ring *r, int64_t now);
void d9di_flight_ring_set_state(d9di_flight_ring *r, d9di_flight_state state);
d9di_flight_state d9di_flight_ring_state(const d9di_flight_ring *r);

/* The number of a group in the ring; -1: there are too many. */
int d9di_flight_ring_add_group(d9di_flight_ring *r, unsigned axes);
/* NULL when the ring or the group is not recorded.  Does not return where the watchdog ends the
 * job: a rank that has been said to be lost does no more. */
d9di_flight_call *d9di_flight_ring_call_begin(d9d_comm *c, const d9di_comm_call *k);
void d9di_flight_ring_call_end(d9di_flight_call *x, d9di_flight_call_state step);

#endif /* D9DI_COMM_WATCH_FLIGHT_FILE_H */
