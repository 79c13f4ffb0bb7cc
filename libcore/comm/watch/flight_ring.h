/* flight_ring.h - the rings of a job after reading, for the analysis and the printers. */
#ifndef D9DI_COMM_WATCH_FLIGHT_RING_H
#define D9DI_COMM_WATCH_FLIGHT_RING_H

#include "comm/watch/local_peers.h"
#include "d9d/comm/flight.h"

/* Liveness of a rank's process. */
typedef enum d9di_flight_liveness {
    D9DI_LIVENESS_RUNNING,
    D9DI_LIVENESS_STOPPED,
    D9DI_LIVENESS_SILENT, /* no heartbeat, and on another host */
    D9DI_LIVENESS_GONE,
    D9DI_LIVENESS_CLOSED,
    D9DI_LIVENESS_FAILED,
    D9DI_LIVENESS_ABORTED,
    D9DI_LIVENESS_UNKNOWN, /* no record */
    D9DI_LIVENESS_COUNT
} d9di_flight_liveness;

typedef struct d9di_flight_record {
    bool known;
    d9di_flight_header header;
    d9di_flight_call *call; /* [n], by number, without damaged ones */
    int n;
    int *by_group; /* [n], indices of calls, by group and then by number; send_recv calls come last
                    */
    int group_start[D9DI_FLIGHT_GROUPS + 1];
    const d9di_flight_call *waiting; /* the oldest pending call, or NULL */
    int64_t last_seen;               /* last sign of life: time of day, ns */
    d9di_flight_liveness liveness;
} d9di_flight_record;

struct d9d_flight {
    int size;
    d9d_parallel_degrees degrees;
    int64_t job, now;           /* now: time of day; last_seen if no rank lives */
    int64_t last_seen;          /* last sign of life of any rank; when a watchdog ended the job */
    d9di_flight_record *record; /* [size] */
    int *culprit;               /* [size] */
};

/* Parse the bytes of one file; false if they are no ring. */
bool d9di_flight_record_parse(const void *data, size_t n, d9di_flight_record *out);
void d9di_flight_record_release(d9di_flight_record *r);

/* Read the rings of the running job.  Those of this host come from memory: `self` and `local_peers`
 * (or NULL).  Those of other hosts come from DIR's files, or are not read (NULL). */
d9d_status d9di_flight_open_live(const d9di_flight_ring *self, const d9di_local_peers *local_peers,
                                 const char *dir, d9d_flight **out);
/* True if all ranks are on this host. */
bool d9di_flight_is_single_host(const d9di_flight_ring *self, const d9di_local_peers *local_peers);

/* A group's identity, the same on all of its ranks: one of several over the same axes. */
typedef struct d9di_flight_group_id {
    unsigned axes;
    int number; /* number among these, in order of creation */
} d9di_flight_group_id;

/* The group of a call of this rank. */
d9di_flight_group_id d9di_flight_record_group_id(const d9di_flight_record *r,
                                                 const d9di_flight_call *x);
/* The record of call `seq` of a group, or NULL. */
const d9di_flight_call *d9di_flight_record_find_call(const d9di_flight_record *r,
                                                     d9di_flight_group_id group, int64_t seq);
/* The calls of the group begun so far. */
int64_t d9di_flight_record_group_seq(const d9di_flight_record *r, d9di_flight_group_id group);

/* "all_reduce 17 of loss, float64 [1]" */
d9d_status d9di_flight_call_text(const d9di_flight_call *x, d9d_buf *out);
/* The group of a call, such as "dp_shard", in buf; returns buf. */
char *d9di_flight_call_group(const d9di_flight_record *r, const d9di_flight_call *x, char *buf,
                             size_t n);
const char *d9di_flight_liveness_text(d9di_flight_liveness l); /* "is stopped" */
/* Seconds since a time of a rank's monotonic clock. */
double d9di_flight_seconds_since(const d9d_flight *f, const d9di_flight_record *r, int64_t clock);

#endif /* D9DI_COMM_WATCH_FLIGHT_RING_H */
