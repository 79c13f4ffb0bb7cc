/* flight_ring.h - the rings of a job as they were read. */
#ifndef D9DI_COMM_WATCH_FLIGHT_RING_H
#define D9DI_COMM_WATCH_FLIGHT_RING_H

#include "comm/watch/local_peers.h"
#include "d9d/comm/flight.h"

/* What can be said of a rank's process. */
typedef enum d9di_life {
    D9DI_LIFE_RUNS,
    D9DI_LIFE_STOPPED,
    D9DI_LIFE_SILENT, /* shows no life, and cannot be looked at from here */
    D9DI_LIFE_GONE,
    D9DI_LIFE_LEFT,
    D9DI_LIFE_FAILED,
    D9DI_LIFE_ENDED,
    D9DI_LIFE_UNKNOWN, /* no record */
    D9DI_LIVES
} d9di_life;

typedef struct d9di_flight_record {
    bool known;
    d9di_flight_head head;
    d9di_flight_call *call; /* [n], by number, without those that were damaged */
    int n;
    int *listed; /* [n], places of calls by group and then by number; exchanges come last */
    int start[D9DI_FLIGHT_GROUPS + 1];
    const d9di_flight_call *waits; /* the oldest that is not done, or NULL */
    int64_t sign;                  /* of life, the last: time of day, ns */
    d9di_life life;
} d9di_flight_record;

struct d9d_flight {
    int size;
    d9d_degrees degrees;
    int64_t job, now;           /* now: time of day; `last`, where no rank lives */
    int64_t last;               /* sign of life of any rank */
    d9di_flight_record *record; /* [size] */
    int *culprit;               /* [size] */
};

/* The bytes of one file; false when they are no ring. */
bool d9di_record_parse(const void *data, size_t n, d9di_flight_record *out);
void d9di_record_release(d9di_flight_record *r);

/* The rings of the job that is running: of this host from memory, `self` and its neighbours (or
 * NULL); others' from DIR's files, or not at all (NULL). */
d9d_status d9di_flight_gather(const d9di_ring *self, const d9di_neighbours *near, const char *dir,
                              d9d_flight **out);
/* Does no rank's ring but those of this host count? */
bool d9di_flight_is_near(const d9di_ring *self, const d9di_neighbours *near);

/* A group as all of its ranks know it: one of several over the same axes. */
typedef struct d9di_which {
    unsigned axes;
    int number; /* among those, in the order in which they were made */
} d9di_which;

/* The group of a call. */
d9di_which d9di_record_which(const d9di_flight_record *r, const d9di_flight_call *x);
/* A group's call, or NULL. */
const d9di_flight_call *d9di_record_find(const d9di_flight_record *r, d9di_which group,
                                         int64_t seq);
/* How many calls of the group were begun. */
int64_t d9di_record_seq(const d9di_flight_record *r, d9di_which group);

/* "all_reduce 17 of loss, float64 [1]" */
d9d_status d9di_call_text(const d9di_flight_call *x, d9d_buf *out);
/* "dp_shard" of a call; into buf, returned. */
char *d9di_call_group(const d9di_flight_record *r, const d9di_flight_call *x, char *buf, size_t n);
const char *d9di_life_text(d9di_life l); /* "is stopped" */
/* Seconds since a time of a rank's clock. */
double d9di_since(const d9d_flight *f, const d9di_flight_record *r, int64_t clock);

#endif /* D9DI_COMM_WATCH_FLIGHT_RING_H */
