/* flight_file.h - the ring of call records, its layout in memory and in its file, and its writers.
 *
 *     flight_shm.c      shared memory that other processes of this host read, and that outlives the
 *                       process
 *     flight_ring.c     records of calls, by the thread that makes them: stores into that memory
 *     flight_store.c    DIR/rank-N.bin, by the writer thread only (comm/watch/flight_writer.h)
 */
#ifndef D9DI_COMM_WATCH_FLIGHT_FILE_H
#define D9DI_COMM_WATCH_FLIGHT_FILE_H

#include "comm/comm_private.h"
#include "d9d/base/fs.h"
#include "d9d/comm/mesh.h"

#define D9DI_FLIGHT_MAGIC "d9dflit2" /* the last character is the version of the layout */

enum {
    D9DI_FLIGHT_CALLS = 1024,
    D9DI_FLIGHT_GROUPS = 80,         /* the most groups of a mesh */
    D9DI_FLIGHT_HEADER_BYTES = 4096, /* bytes before the first call */
    D9DI_FLIGHT_PEERS = 4,
    D9DI_FLIGHT_SHM_PATH_MAX = 64,
    D9DI_FLIGHT_HEARTBEAT_MS = 100,
    D9DI_FLIGHT_SYNC_MS = 5000 /* between writes of the file */
};

typedef enum d9di_flight_state { /* of a process */
                                 D9DI_FLIGHT_RUNNING,
                                 D9DI_FLIGHT_CLOSED,  /* the mesh was closed without a failure */
                                 D9DI_FLIGHT_FAILED,  /* ... after one */
                                 D9DI_FLIGHT_ABORTED, /* by its watchdog */
                                 D9DI_FLIGHT_STATE_COUNT
} d9di_flight_state;

typedef enum d9di_flight_call_state { /* of a call */
                                      D9DI_FLIGHT_CALL_STARTED,
                                      D9DI_FLIGHT_CALL_ENQUEUED, /* enqueued on the device, not
                                                                    complete */
                                      D9DI_FLIGHT_CALL_COMPLETED,
                                      D9DI_FLIGHT_CALL_FAILED,
                                      D9DI_FLIGHT_CALL_STATE_COUNT
} d9di_flight_call_state;

/* Times are of CLOCK_MONOTONIC (ns since bootstrap); `offset` converts to the time of day, as of
 * the last heartbeat. */
typedef struct d9di_flight_call {
    int64_t number; /* number among all calls of this rank, from 1; 0: being written */
    int64_t begin, end;
    int64_t seq; /* sequence number in the group; send_recv calls have their own */
    int64_t n;   /* elements; may differ between ranks for all_to_all and send_recv only */
    uint8_t group, coll, dtype, op;
    int32_t state, root;
    int32_t peer[D9DI_FLIGHT_PEERS]; /* send_recv: world rank + 1, negative to receive */
    char label[60];
} d9di_flight_call;

typedef struct d9di_flight_group {
    uint32_t axes, unused;
    int64_t seq; /* calls begun so far */
} d9di_flight_group;

typedef struct d9di_flight_header {
    char magic[8];
    int64_t job; /* id of the job, the same for all its ranks */
    int32_t rank, size;
    d9d_parallel_degrees degrees;
    int64_t pid, started; /* started: distinguishes processes that had one pid */
    int64_t clock_offset, heartbeat, calls;
    int32_t state, groups;
    char node[64], host[64];
    char abort_message[1024]; /* what the watchdog that ended the job logged */
    d9di_flight_group group[D9DI_FLIGHT_GROUPS];
    char shm_path[D9DI_FLIGHT_SHM_PATH_MAX]; /* path of the shared ring for processes of this host,
                                                or "" */
    char dir_hash[40];                       /* hash of the directory's name */
    int64_t max_lag; /* ns by which the file may lag behind the ring; 0: it does not */
} d9di_flight_header;

typedef struct d9di_flight_ring {
    d9di_flight_header header;
    char unused[D9DI_FLIGHT_HEADER_BYTES - sizeof(d9di_flight_header)];
    d9di_flight_call call[D9DI_FLIGHT_CALLS];
} d9di_flight_ring;

/* The identity of a process. */
typedef struct d9di_flight_process {
    int64_t pid, started; /* started: the kernel's start time; 0: unknown */
    char host[64];        /* hash of the host name and the pid namespace */
} d9di_flight_process;

void d9di_flight_process_self(d9di_flight_process *out);
/* True if this host has no such process, or a zombie only.  *state becomes the kernel's state
 * letter, 0 if there is none; may be NULL. */
bool d9di_flight_process_is_gone(int64_t pid, int64_t started, char *state);

/* --- memory ------------------------------------------------------------------------------- */

/* Create a zeroed ring: a file in /dev/shm, which survives when this process is killed.  Without
 * space there: a memfd, which lives while a process maps it.  Else private memory.  r->shm_path is
 * where other processes of this host and user find it, "" for private memory.  Stale rings in
 * /dev/shm, of processes that are gone, are removed if they belong to `dir` (NULL: none) or are an
 * hour old. */
d9d_status d9di_flight_ring_create(const char *dir, d9di_flight_ring **out);
/* Remove the ring from /dev/shm; processes that map it keep it. */
void d9di_flight_ring_unlink(const d9di_flight_ring *r);
/* Unmap the ring, and remove it from /dev/shm unless `keep`. */
void d9di_flight_ring_release(d9di_flight_ring *r, bool keep);
/* Map the ring of another process read-only; NULL on failure. */
const d9di_flight_ring *d9di_flight_ring_attach(const char *path);
void d9di_flight_ring_detach(const d9di_flight_ring *r);
/* Copy a ring's current state; false if it is gone or no ring. */
bool d9di_flight_ring_read(const char *path, d9di_flight_ring *out);
/* Lock the ring, so that only one of several processes writes it to its file; close the descriptor
 * to unlock.  -1: another process has the lock, or the ring is gone. */
int d9di_flight_ring_lock(const char *path);
/* Copy a ring that is being written: calls in the middle of a write get the number 0. */
void d9di_flight_ring_copy(const d9di_flight_ring *r, d9di_flight_ring *out);

/* --- the file ------------------------------------------------------------------------------- */

typedef struct d9di_flight_store {
    d9d_file file;
    d9di_flight_ring *written; /* what the file has */
} d9di_flight_store;

/* Create DIR/rank-N.bin, empty; an older job's file is removed. */
d9d_status d9di_flight_store_open(const char *dir, int rank, d9di_flight_store *out);
/* Write and sync what differs from the file. */
d9d_status d9di_flight_store_write(d9di_flight_store *s, const d9di_flight_ring *r);
void d9di_flight_store_close(d9di_flight_store *s);
/* Write the ring that a dead process left in memory to its file, unless that is another job's. */
d9d_status d9di_flight_store_salvage(const char *dir, const d9di_flight_ring *r);
/* Read the state in a rank's file; false if there is none of this job. */
bool d9di_flight_store_read_state(const char *dir, int rank, int64_t job, d9di_flight_state *out);

/* --- recording ------------------------------------------------------------------------------ */

/* Fill the ring's header: rank, host, process, degrees. */
void d9di_flight_ring_init(d9di_flight_ring *r, d9d_bootstrap *bootstrap,
                           const d9d_parallel_degrees *d, int64_t job);
/* Heartbeat at `now`, of d9d_clock_ns().  Updates `offset`, since the time of day may have been
 * set.
 */
void d9di_flight_ring_heartbeat(d9di_flight_ring *r, int64_t now);
void d9di_flight_ring_set_state(d9di_flight_ring *r, d9di_flight_state state);
d9di_flight_state d9di_flight_ring_state(const d9di_flight_ring *r);

/* Add a group; returns its number in the ring, -1 if there are too many. */
int d9di_flight_ring_add_group(d9di_flight_ring *r, unsigned axes);
/* Record the start of a call.  NULL if the ring or the group is not recorded.  Does not return if
 * the watchdog is ending the job: a rank that was reported as lost must do no more. */
d9di_flight_call *d9di_flight_ring_call_begin(d9d_comm *c, const d9di_comm_call *k);
void d9di_flight_ring_call_end(d9di_flight_call *x, d9di_flight_call_state step);

#endif /* D9DI_COMM_WATCH_FLIGHT_FILE_H */
