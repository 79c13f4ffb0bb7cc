/* flight_read.c - reading and validating the rings of a job.  See d9d/comm/flight.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/mesh_axes.h"
#include "comm/watch/flight_ring.h"
#include "d9d/base/fs.h"
#include "d9d/base/thread.h"

/* A process has a heartbeat every 100 ms; it counts as silent after this time, since the host may
 * be busy. */
#define SILENCE_NS INT64_C(1000000000)

/* The most that times and counts may be, so that a sum of two does not overflow; enough until
 * 2043. */
#define MAX_TIME (INT64_C(1) << 61)

/* --- one file --------------------------------------------------------------------------------- */

static bool is_terminated(const char *s, size_t n)
{
    return memchr(s, '\0', n) != NULL;
}

static bool axes_valid(uint32_t axes)
{
    return axes != 0 && ((axes & ~(uint32_t)D9D_AXES_EXPERT_STAGE) == 0 ||
                         (axes & ~(uint32_t)D9D_AXES_WORLD) == 0);
}

static bool degrees_valid(const d9d_parallel_degrees *d)
{
    const int64_t v[] = {d->pipeline_parallel,      d->data_parallel_replicate,
                         d->data_parallel_shard,    d->context_parallel_replicate,
                         d->context_parallel_shard, d->tensor_parallel,
                         d->expert_parallel};

    for (size_t i = 0; i < sizeof(v) / sizeof(v[0]); i++)
        if (v[i] < 1 || v[i] > 1 << 20)
            return false;
    return d->expert_parallel_local >= 0 && d->expert_parallel_local <= 1 << 20 &&
           d->context_parallel_method >= 0 && d->context_parallel_method < D9D_N_CP_METHODS;
}

static bool number_valid(int64_t v)
{
    return v >= 0 && v <= MAX_TIME;
}

static bool header_valid(const d9di_flight_header *h)
{
    if (memcmp(h->magic, D9DI_FLIGHT_MAGIC, sizeof(h->magic)) != 0 || h->size < 1 ||
        h->size > 1 << 16 || h->rank < 0 || h->rank >= h->size || h->groups < 0 ||
        h->groups > D9DI_FLIGHT_GROUPS || h->state < 0 || h->state >= D9DI_FLIGHT_STATE_COUNT ||
        !number_valid(h->clock_offset) || !number_valid(h->heartbeat) ||
        !degrees_valid(&h->degrees) || d9d_parallel_degrees_check(&h->degrees, h->size) != D9D_OK)
        return false;
    for (int i = 0; i < h->groups; i++)
        if (!axes_valid(h->group[i].axes) || !number_valid(h->group[i].seq))
            return false;
    return is_terminated(h->node, sizeof(h->node)) && is_terminated(h->host, sizeof(h->host)) &&
           is_terminated(h->abort_message, sizeof(h->abort_message)) &&
           is_terminated(h->shm_path, sizeof(h->shm_path)) && number_valid(h->max_lag);
}

static bool call_valid(const d9di_flight_header *h, const d9di_flight_call *x)
{
    if (x->group >= h->groups || x->coll >= D9DI_COLL_COUNT || x->dtype >= D9D_DTYPE_COUNT ||
        x->op > D9D_COMM_MAX || x->state < 0 || x->state >= D9DI_FLIGHT_CALL_STATE_COUNT ||
        !number_valid(x->begin) || !number_valid(x->end) || !number_valid(x->seq) ||
        !is_terminated(x->label, sizeof(x->label)))
        return false;
    for (int i = 0; i < D9DI_FLIGHT_PEERS; i++)
        if (x->peer[i] > h->size || x->peer[i] < -h->size)
            return false;
    return true;
}

static int compare_number(const void *a, const void *b)
{
    const d9di_flight_call *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

/* Index the calls of a rank by group. */
static int group_index(const d9di_flight_record *r, const d9di_flight_call *x)
{
    return x->coll == D9DI_COLL_SEND_RECV ? r->header.groups : x->group;
}

static void index_groups(d9di_flight_record *r)
{
    int n = 0;

    for (int g = 0; g <= r->header.groups; g++) {
        r->group_start[g] = n;
        for (int i = 0; i < r->n; i++)
            if (group_index(r, &r->call[i]) == g)
                r->by_group[n++] = i;
    }
}

d9di_flight_group_id d9di_flight_record_group_id(const d9di_flight_record *r,
                                                 const d9di_flight_call *x)
{
    d9di_flight_group_id w = {.axes = r->header.group[x->group].axes};

    for (int g = 0; g < x->group; g++)
        w.number += r->header.group[g].axes == w.axes;
    return w;
}

static int find_group(const d9di_flight_record *r, d9di_flight_group_id w)
{
    for (int g = 0; g < r->header.groups; g++)
        if (r->header.group[g].axes == w.axes && w.number-- == 0)
            return g;
    return -1;
}

const d9di_flight_call *d9di_flight_record_find_call(const d9di_flight_record *r,
                                                     d9di_flight_group_id group, int64_t seq)
{
    const int g = r->known ? find_group(r, group) : -1;
    int low = g < 0 ? 0 : r->group_start[g], high = g < 0 ? 0 : r->group_start[g + 1];

    while (low < high) { /* sequence numbers in a group rise with call numbers */
        const int middle = low + (high - low) / 2;
        const d9di_flight_call *x = &r->call[r->by_group[middle]];

        if (x->seq == seq)
            return x;
        if (x->seq < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int64_t d9di_flight_record_group_seq(const d9di_flight_record *r, d9di_flight_group_id group)
{
    const int g = r->known ? find_group(r, group) : -1;

    return g < 0 ? 0 : r->header.group[g].seq;
}

static void set_last_seen(d9di_flight_record *r)
{
    r->last_seen = r->header.heartbeat;
    for (int i = r->n; i-- > 0;) {
        const d9di_flight_call *x = &r->call[i];

        if (x->state == D9DI_FLIGHT_CALL_STARTED || x->state == D9DI_FLIGHT_CALL_ENQUEUED)
            r->waiting = x;
        r->last_seen = x->begin > r->last_seen ? x->begin : r->last_seen;
        r->last_seen = x->end > r->last_seen ? x->end : r->last_seen;
    }
    r->last_seen += r->header.clock_offset;
}

bool d9di_flight_record_parse(const void *data, size_t n, d9di_flight_record *out)
{
    d9di_flight_record r = {.known = true};
    const char *at = (const char *)data + D9DI_FLIGHT_HEADER_BYTES;

    if (n != sizeof(d9di_flight_ring))
        return false;
    memcpy(&r.header, data, sizeof(r.header));
    if (!header_valid(&r.header))
        return false;
    r.call = calloc(D9DI_FLIGHT_CALLS, sizeof(*r.call));
    r.by_group = calloc(D9DI_FLIGHT_CALLS, sizeof(*r.by_group));
    if (r.call == NULL || r.by_group == NULL) {
        d9di_flight_record_release(&r);
        return false;
    }
    for (int64_t i = 0; i < D9DI_FLIGHT_CALLS; i++, at += sizeof(*r.call)) {
        d9di_flight_call *x = &r.call[r.n];

        memcpy(x, at, sizeof(*x));
        r.n +=
            x->number > 0 && (x->number - 1) % D9DI_FLIGHT_CALLS == i && call_valid(&r.header, x);
    }
    qsort(r.call, (size_t)r.n, sizeof(*r.call), compare_number);
    index_groups(&r);
    set_last_seen(&r);
    *out = r;
    return true;
}

void d9di_flight_record_release(d9di_flight_record *r)
{
    free(r->call);
    free(r->by_group);
    *r = (d9di_flight_record){.liveness = D9DI_LIVENESS_UNKNOWN};
}

/* --- all files -------------------------------------------------------------------------------- */

/* Use the shared ring of a process of this host, which is newer than its file. */
static void refresh_from_memory(d9di_flight_record *r, d9di_flight_ring *ring)
{
    const d9di_flight_header from_file = r->header;
    d9di_flight_process self;
    d9di_flight_record now;

    d9di_flight_process_self(&self);
    if (strcmp(from_file.host, self.host) != 0 ||
        !d9di_flight_ring_read(from_file.shm_path, ring) ||
        !d9di_flight_record_parse(ring, sizeof(*ring), &now))
        return;
    if (now.header.job == from_file.job && now.header.rank == from_file.rank &&
        now.header.pid == from_file.pid && now.header.started == from_file.started &&
        strcmp(now.header.host, from_file.host) == 0) {
        d9di_flight_record_release(r);
        *r = now;
    } else {
        d9di_flight_record_release(&now);
    }
}

static d9d_status read_record(const char *dir, int rank, d9di_flight_record *out)
{
    d9di_flight_ring *ring = malloc(sizeof(*ring));
    d9d_file f = {.fd = -1};
    char path[PATH_MAX];
    d9d_status st;

    *out = (d9di_flight_record){.liveness = D9DI_LIVENESS_UNKNOWN};
    if (ring == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a ring", dir);
    (void)snprintf(path, sizeof(path), "%s/rank-%d.bin", dir, rank);
    D9D_TRY_OR(st, d9d_file_open(path, &f), out);
    D9D_TRY_OR(st, d9d_file_read_at(&f, ring, sizeof(*ring), 0), out);
    if (!d9di_flight_record_parse(ring, sizeof(*ring), out) || out->header.rank != rank) {
        d9di_flight_record_release(out);
        st = D9D_FAIL(D9D_EFORMAT, "%s: not a flight recorder's file of this version", path);
    } else {
        refresh_from_memory(out, ring);
    }
out:
    d9d_file_release(&f);
    free(ring);
    return st;
}

/* Find the job: any rank's header has the number of ranks; if several jobs left files, rank 0's is
 * of the newest. */
static d9d_status find_job(const char *dir, d9d_flight *f)
{
    d9d_fs_names names;
    d9d_arena a = {0};
    d9d_err_copy first = {.st = D9D_OK};
    d9d_status st = d9d_fs_list(dir, &a, &names);
    int found = 0;

    for (size_t i = 0; st == D9D_OK && i < names.n; i++) {
        d9di_flight_record r;
        int rank, end = 0;

        if (sscanf(names.name[i], "rank-%7d.bin%n", &rank, &end) != 1 || rank < 0 ||
            names.name[i][end] != '\0' || end == 0)
            continue;
        if (read_record(dir, rank, &r) != D9D_OK) {
            if (first.st == D9D_OK)
                d9d_err_save(&first, D9D_EFORMAT);
            continue;
        }
        if (found++ == 0 || r.header.job > f->job) {
            f->job = r.header.job;
            f->size = r.header.size;
            f->degrees = r.header.degrees;
        }
        d9di_flight_record_release(&r);
    }
    d9d_arena_release(&a);
    if (st == D9D_OK && found == 0 && first.st != D9D_OK)
        st = d9d_err_restore(&first);
    else if (st == D9D_OK && found == 0)
        st = D9D_FAIL(
            D9D_ENOTFOUND,
            "%s: has no flight recorder's files (rank-N.bin), which runs of several ranks keep",
            dir);
    return st;
}

static d9di_flight_liveness liveness_of(const d9d_flight *f, const d9di_flight_record *r,
                                        const char *host)
{
    static const d9di_flight_liveness ends[D9DI_FLIGHT_STATE_COUNT] = {
        [D9DI_FLIGHT_CLOSED] = D9DI_LIVENESS_CLOSED,
        [D9DI_FLIGHT_FAILED] = D9DI_LIVENESS_FAILED,
        [D9DI_FLIGHT_ABORTED] = D9DI_LIVENESS_ABORTED};
    char state;

    if (!r->known)
        return D9DI_LIVENESS_UNKNOWN;
    if (r->header.state != D9DI_FLIGHT_RUNNING)
        return ends[r->header.state];
    if (strcmp(r->header.host, host) == 0 && r->header.started != 0) {
        if (d9di_flight_process_is_gone(r->header.pid, r->header.started, &state))
            return D9DI_LIVENESS_GONE;
        return state == 'T' || state == 't' ? D9DI_LIVENESS_STOPPED : D9DI_LIVENESS_RUNNING;
    }
    return f->now - r->last_seen > SILENCE_NS + r->header.max_lag ? D9DI_LIVENESS_SILENT
                                                                  : D9DI_LIVENESS_RUNNING;
}

/* When the first watchdog ended the job; 0: none did.  What ranks did later, until the launcher
 * killed them one after the other, does not count. */
static int64_t first_abort(const d9d_flight *f)
{
    int64_t first = 0;

    for (int r = 0; r < f->size; r++) {
        const d9di_flight_record *x = &f->record[r];

        if (x->liveness == D9DI_LIVENESS_ABORTED && (first == 0 || x->last_seen < first))
            first = x->last_seen;
    }
    return first;
}

/* The record of a host's last heartbeat among the `n` of different hosts; NULL: the host has none.
 */
static d9di_flight_record **find_host(d9di_flight_record **hosts, int n, const char *host)
{
    for (int i = 0; i < n; i++)
        if (strcmp(hosts[i]->header.host, host) == 0)
            return &hosts[i];
    return NULL;
}

/* The ranks of a host have one monotonic clock, and so one offset to the time of day: that of the
 * last heartbeat.  The time of day may be set between the heartbeats of two ranks, which must not
 * move one against the other; nor against this process, whose time of day `now` becomes. */
static void align_clocks(d9d_flight *f, d9di_flight_record **hosts)
{
    struct timespec t = {0};
    d9di_flight_process self;
    d9di_flight_record **newest;
    int n = 0;

    for (int r = 0; r < f->size; r++) {
        d9di_flight_record *x = &f->record[r];

        if (!x->known)
            continue;
        newest = find_host(hosts, n, x->header.host);
        if (newest == NULL)
            hosts[n++] = x;
        else if (x->header.heartbeat > (*newest)->header.heartbeat)
            *newest = x;
    }
    for (int r = 0; r < f->size; r++) {
        d9di_flight_record *x = &f->record[r];

        newest = x->known ? find_host(hosts, n, x->header.host) : NULL;
        if (newest == NULL)
            continue;
        x->last_seen += (*newest)->header.clock_offset - x->header.clock_offset;
        x->header.clock_offset = (*newest)->header.clock_offset;
    }
    d9di_flight_process_self(&self);
    newest = find_host(hosts, n, self.host);
    (void)clock_gettime(CLOCK_REALTIME, &t);
    f->now = newest != NULL ? d9d_clock_ns() + (*newest)->header.clock_offset
                            : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Determine which ranks live.  If none does, `now` is the last sign of life. */
static d9d_status set_liveness(d9d_flight *f)
{
    d9di_flight_record **hosts = calloc((size_t)f->size, sizeof(*hosts));
    d9di_flight_process self;
    int64_t aborted;
    bool alive = false;

    if (hosts == NULL)
        return D9D_FAIL(D9D_ENOMEM, "flight: no memory for the hosts of %d ranks", f->size);
    align_clocks(f, hosts);
    free(hosts);
    d9di_flight_process_self(&self);
    for (int r = 0; r < f->size; r++) {
        d9di_flight_record *x = &f->record[r];

        x->liveness = liveness_of(f, x, self.host);
        alive |= x->liveness == D9DI_LIVENESS_RUNNING || x->liveness == D9DI_LIVENESS_STOPPED;
        f->last_seen = x->last_seen > f->last_seen ? x->last_seen : f->last_seen;
        if (x->liveness == D9DI_LIVENESS_RUNNING)
            f->last_seen = f->now;
    }
    aborted = first_abort(f);
    if (aborted != 0)
        f->last_seen = aborted;
    if (!alive)
        f->now = f->last_seen;
    return D9D_OK;
}

static d9d_status alloc_records(d9d_flight *f, const char *label)
{
    f->record = calloc((size_t)f->size, sizeof(*f->record));
    f->culprit = calloc((size_t)f->size, sizeof(*f->culprit));
    if (f->record == NULL || f->culprit == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d ranks", label, f->size);
    return D9D_OK;
}

/* Read a rank's file if it is of this job. */
static void read_rank_file(d9d_flight *f, const char *dir, int rank)
{
    d9di_flight_record *x = &f->record[rank];

    if (read_record(dir, rank, x) == D9D_OK && x->header.job == f->job &&
        x->header.size == f->size && d9d_parallel_degrees_equal(&x->header.degrees, &f->degrees))
        return;
    d9di_flight_record_release(x);
}

d9d_status d9d_flight_open(const char *dir, d9d_flight **out)
{
    d9d_flight *f = calloc(1, sizeof(*f));
    d9d_status st;

    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a flight", dir);
    D9D_TRY_OR(st, find_job(dir, f), out);
    D9D_TRY_OR(st, alloc_records(f, dir), out);
    for (int r = 0; r < f->size; r++)
        read_rank_file(f, dir, r);
    D9D_TRY_OR(st, set_liveness(f), out);
    *out = f;
    f = NULL;
out:
    d9d_flight_close(f);
    return st;
}

static const d9di_flight_ring *local_ring(const d9di_flight_ring *self,
                                          const d9di_local_peers *local_peers, int rank)
{
    return rank == self->header.rank ? self : d9di_local_peers_ring(local_peers, rank);
}

bool d9di_flight_is_single_host(const d9di_flight_ring *self, const d9di_local_peers *local_peers)
{
    for (int r = 0; r < self->header.size; r++)
        if (local_ring(self, local_peers, r) == NULL)
            return false;
    return true;
}

d9d_status d9di_flight_open_live(const d9di_flight_ring *self, const d9di_local_peers *local_peers,
                                 const char *dir, d9d_flight **out)
{
    d9d_flight *f = calloc(1, sizeof(*f));
    d9di_flight_ring *copy = malloc(sizeof(*copy));
    d9d_status st;

    if (f == NULL || copy == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "flight: out of memory");
        goto out;
    }
    f->job = self->header.job;
    f->size = self->header.size;
    f->degrees = self->header.degrees;
    D9D_TRY_OR(st, alloc_records(f, "flight"), out);
    for (int r = 0; r < f->size; r++) {
        const d9di_flight_ring *ring = local_ring(self, local_peers, r);

        f->record[r].liveness = D9DI_LIVENESS_UNKNOWN;
        if (ring != NULL) {
            d9di_flight_ring_copy(ring, copy);
            copy->header.max_lag = 0;
            (void)d9di_flight_record_parse(copy, sizeof(*copy), &f->record[r]);
        } else if (dir != NULL) {
            read_rank_file(f, dir, r);
        }
    }
    D9D_TRY_OR(st, set_liveness(f), out);
    *out = f;
    f = NULL;
out:
    d9d_flight_close(f);
    free(copy);
    return st;
}

void d9d_flight_close(d9d_flight *f)
{
    if (f == NULL)
        return;
    for (int r = 0; r < f->size && f->record != NULL; r++)
        d9di_flight_record_release(&f->record[r]);
    free(f->record);
    free(f->culprit);
    free(f);
}

int d9d_flight_size(const d9d_flight *f)
{
    return f->size;
}

/* --- words ------------------------------------------------------------------------------------ */

d9d_status d9di_flight_call_text(const d9di_flight_call *x, d9d_buf *out)
{
    return d9d_buf_printf(out, "%s %lld of %s, %s [%lld]%s",
                          d9di_comm_coll_name((d9di_comm_coll)x->coll), (long long)x->seq, x->label,
                          d9d_dtype_name((d9d_dtype)x->dtype), (long long)x->n,
                          x->op == D9D_COMM_MAX ? ", maximum" : "");
}

char *d9di_flight_call_group(const d9di_flight_record *r, const d9di_flight_call *x, char *buf,
                             size_t n)
{
    return d9di_mesh_axes_name(r->header.group[x->group].axes, buf, n);
}

const char *d9di_flight_liveness_text(d9di_flight_liveness l)
{
    static const char *const texts[D9DI_LIVENESS_COUNT] = {
        [D9DI_LIVENESS_RUNNING] = "is alive",
        [D9DI_LIVENESS_STOPPED] = "is stopped",
        [D9DI_LIVENESS_SILENT] = "is silent",
        [D9DI_LIVENESS_GONE] = "is gone",
        [D9DI_LIVENESS_CLOSED] = "has ended",
        [D9DI_LIVENESS_FAILED] = "has failed",
        [D9DI_LIVENESS_ABORTED] = "was ended by its watchdog",
        [D9DI_LIVENESS_UNKNOWN] = "has no record",
    };

    return texts[l];
}

double d9di_flight_seconds_since(const d9d_flight *f, const d9di_flight_record *r, int64_t clock)
{
    const double s = (double)(f->now - r->header.clock_offset - clock) / 1e9;

    return s > 0 ? s : 0;
}
