/* flight_ring.h - the rings of a job as they were read. */
#ifndef D9DI_COMM_WATCH_FLIGHT_RING_H
#define D9DI_COMM_WATCH_FLIGHT_RING_H

#include "comm/watch/local_peers.h"
#include "d9d/comm/flight.h"

/* What can be said of a rank's process. */
typedef enum d9di_flight_liveness {
    D9DI_LIVENESS_RUNNING,
    D9DI_LIVENESS_STOPPED,
    D9DI_LIVENESS_SILENT, /* shows no life, and cannot be looked at from here */
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
    d9di_flight_call *call; /* [n], by number, without those that were damaged */
    int n;
    int *by_group; /* [n], places of calls by group and then by number; exchanges come last */
    int group_start[D9DI_FLIGHT_GROUPS + 1];
    const d9di_flight_call *waiting; /* the oldest that is not done, or NULL */
    int64_t last_seen;               /* of life, the last: time of day, ns */
    d9di_flight_liveness liveness;
} d9di_flight_record;

struct d9d_flight {
    int size;
    d9d_parallel_degrees degrees;
    int64_t job, now;           /* now: time of day; `last`, where no rank lives */
    int64_t last_seen;          /* sign of life of any rank */
    d9di_flight_record *record; /* [size] */
    int *culprit;               /* [size] */
};

/* The bytes of one file; false when they are no ring. */
bool d9di_flight_record_parse(const void *data, size_t n, d9di_flight_record *out);
void d9di_flight_record_release(d9di_flight_record *r);

/* The rings of the job that is running: of this host from memory, `self` and its neighbours (or
 * NULL); others' from DIR's files, or not at all (NULL). */
d9d_status d9di_flight_open_live(const d9di_flight_ring *self, const d9di_local_peers *local_peers,
                                 const char *dir, d9d_flight **out);
/* Does no rank's ring but those of this host count? */
bool d9di_flight_is_single_host(const d9di_flight_ring *self, const d9di_local_peers *local_peers);

/* A group as all of its ranks know it: one of several over the same axes. */
typedef struct d9di_flight_group_id {
    unsigned axes;
    int number; /* among those, in the order in which they were made */
} d9di_flight_group_id;

/* The group of a call. */
d9di_flight_group_id d9di_flight_record_group_id(const d9di_flight_record *r,
                                                 const d9di_flight_call *x);
/* A group's call, or NULL. */
const d9di_flight_call *d9di_flight_record_find_call(const d9di_flight_record *r,
                                                     d9di_flight_group_id group, int64_t seq);
/* How many calls of the group were begun. */
int64_t d9di_flight_record_group_seq(const d9di_flight_record *r, d9di_flight_group_id group);

/* "all_reduce 17 of loss, float64 [1]" */
d9d_status d9di_flight_call_text(const d9di_flight_call *x, d9d_buf *out);
/* "dp_shard" of a call; into buf, returned. */
char *d9di_flight_call_group(const d9di_flight_record *r, const d9di_flight_call *x, char *buf,
                             size_t n);
const char *d9di_flight_liveness_text(d9di_flight_liveness l); /* "is stopped" */
/* Seconds since a time of a rank's clock. */
double d9di_flight_seconds_since(const d9d_flight *f, const d9di_flight_record *r, int64_t clock);

#endif /* D9DI_COMM_WATCH_FLIGHT_RING_H */
