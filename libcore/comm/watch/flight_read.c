/* flight_read.c - reading the rings of a job.  See d9d/comm/flight.h. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/mesh_axes.h"
#include "comm/watch/flight_ring.h"
#include "d9d/base/fs.h"

/* A process that shows itself every 100 ms, on a host that may be busy, is silent after: */
#define SILENCE_NS INT64_C(1000000000)

/* Times and counts stay where a sum of two does not overflow; the time of day does until 2043. */
#define MOST (INT64_C(1) << 61)

/* --- one file ------------------------------------------------------------------------------ */

static bool text_ends(const char *s, size_t n)
{
    return memchr(s, '\0', n) != NULL;
}

static bool axes_are(uint32_t axes)
{
    return axes == D9D_AXES_EXPERT || axes == D9D_AXES_EXPERT_REPLICATE ||
           (axes != 0 && (axes & ~(uint32_t)D9D_AXES_WORLD) == 0);
}

static bool degrees_are(const d9d_degrees *d)
{
    const int64_t *v = &d->pipeline_parallel;

    for (size_t i = 0; i < sizeof(*d) / sizeof(*v); i++)
        if (v[i] < 1 || v[i] > 1 << 20)
            return false;
    return true;
}

static bool number_is(int64_t v)
{
    return v >= 0 && v <= MOST;
}

static bool head_is(const d9di_flight_head *h)
{
    if (memcmp(h->magic, D9DI_FLIGHT_MAGIC, sizeof(h->magic)) != 0 || h->size < 1 ||
        h->size > 1 << 16 || h->rank < 0 || h->rank >= h->size || h->groups < 0 ||
        h->groups > D9DI_FLIGHT_GROUPS || h->state < 0 || h->state >= D9DI_FLIGHT_STATES ||
        !number_is(h->offset) || !number_is(h->beat) || !degrees_are(&h->degrees) ||
        d9d_degrees_check(&h->degrees, h->size) != D9D_OK)
        return false;
    for (int i = 0; i < h->groups; i++)
        if (!axes_are(h->group[i].axes) || !number_is(h->group[i].seq))
            return false;
    return text_ends(h->node, sizeof(h->node)) && text_ends(h->host, sizeof(h->host)) &&
           text_ends(h->said, sizeof(h->said)) && text_ends(h->memory, sizeof(h->memory)) &&
           number_is(h->lag);
}

static bool call_is(const d9di_flight_head *h, const d9di_flight_call *x)
{
    if (x->group >= h->groups || x->verb >= D9DI_VERB_COUNT || x->type >= D9D_DTYPE_COUNT ||
        x->op > D9D_COMM_MAX || x->step < 0 || x->step >= D9DI_STEPS || !number_is(x->begin) ||
        !number_is(x->end) || !number_is(x->seq) || !text_ends(x->what, sizeof(x->what)))
        return false;
    for (int i = 0; i < D9DI_FLIGHT_PEERS; i++)
        if (x->peer[i] > h->size || x->peer[i] < -h->size)
            return false;
    return true;
}

static int by_number(const void *a, const void *b)
{
    const d9di_flight_call *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

/* Calls of all ranks, by group. */
static int place_of(const d9di_flight_record *r, const d9di_flight_call *x)
{
    return x->verb == D9DI_EXCHANGE ? r->head.groups : x->group;
}

static void list_groups(d9di_flight_record *r)
{
    int n = 0;

    for (int g = 0; g <= r->head.groups; g++) {
        r->start[g] = n;
        for (int i = 0; i < r->n; i++)
            if (place_of(r, &r->call[i]) == g)
                r->listed[n++] = i;
    }
}

d9di_which d9di_record_which(const d9di_flight_record *r, const d9di_flight_call *x)
{
    d9di_which w = {.axes = r->head.group[x->group].axes};

    for (int g = 0; g < x->group; g++)
        w.number += r->head.group[g].axes == w.axes;
    return w;
}

static int group_of(const d9di_flight_record *r, d9di_which w)
{
    for (int g = 0; g < r->head.groups; g++)
        if (r->head.group[g].axes == w.axes && w.number-- == 0)
            return g;
    return -1;
}

const d9di_flight_call *d9di_record_find(const d9di_flight_record *r, d9di_which group, int64_t seq)
{
    const int g = r->known ? group_of(r, group) : -1;
    int low = g < 0 ? 0 : r->start[g], high = g < 0 ? 0 : r->start[g + 1];

    while (low < high) { /* numbers of a group rise with those of all calls */
        const int middle = low + (high - low) / 2;
        const d9di_flight_call *x = &r->call[r->listed[middle]];

        if (x->seq == seq)
            return x;
        if (x->seq < seq)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

int64_t d9di_record_seq(const d9di_flight_record *r, d9di_which group)
{
    const int g = r->known ? group_of(r, group) : -1;

    return g < 0 ? 0 : r->head.group[g].seq;
}

static void set_signs(d9di_flight_record *r)
{
    r->sign = r->head.beat;
    for (int i = r->n; i-- > 0;) {
        const d9di_flight_call *x = &r->call[i];

        if (x->step == D9DI_STEP_INSIDE || x->step == D9DI_STEP_QUEUED)
            r->waits = x;
        r->sign = x->begin > r->sign ? x->begin : r->sign;
        r->sign = x->end > r->sign ? x->end : r->sign;
    }
    r->sign += r->head.offset;
}

bool d9di_record_parse(const void *data, size_t n, d9di_flight_record *out)
{
    d9di_flight_record r = {.known = true};
    const char *at = (const char *)data + D9DI_FLIGHT_HEAD;

    if (n != sizeof(d9di_ring))
        return false;
    memcpy(&r.head, data, sizeof(r.head));
    if (!head_is(&r.head))
        return false;
    r.call = calloc(D9DI_FLIGHT_CALLS, sizeof(*r.call));
    r.listed = calloc(D9DI_FLIGHT_CALLS, sizeof(*r.listed));
    if (r.call == NULL || r.listed == NULL) {
        d9di_record_release(&r);
        return false;
    }
    for (int64_t i = 0; i < D9DI_FLIGHT_CALLS; i++, at += sizeof(*r.call)) {
        d9di_flight_call *x = &r.call[r.n];

        memcpy(x, at, sizeof(*x));
        r.n += x->number > 0 && (x->number - 1) % D9DI_FLIGHT_CALLS == i && call_is(&r.head, x);
    }
    qsort(r.call, (size_t)r.n, sizeof(*r.call), by_number);
    list_groups(&r);
    set_signs(&r);
    *out = r;
    return true;
}

void d9di_record_release(d9di_flight_record *r)
{
    free(r->call);
    free(r->listed);
    *r = (d9di_flight_record){.life = D9DI_LIFE_UNKNOWN};
}

/* --- all files -------------------------------------------------------------------------- */

/* What a process of this host keeps in memory is newer than its file. */
static void renew(d9di_flight_record *r, d9di_ring *ring)
{
    const d9di_flight_head was = r->head;
    d9di_presence self;
    d9di_flight_record now;

    d9di_presence_of_self(&self);
    if (strcmp(was.host, self.host) != 0 || !d9di_ring_peek(was.memory, ring) ||
        !d9di_record_parse(ring, sizeof(*ring), &now))
        return;
    if (now.head.job == was.job && now.head.rank == was.rank && now.head.pid == was.pid &&
        now.head.started == was.started && strcmp(now.head.host, was.host) == 0) {
        d9di_record_release(r);
        *r = now;
    } else {
        d9di_record_release(&now);
    }
}

static d9d_status read_record(const char *dir, int rank, d9di_flight_record *out)
{
    d9di_ring *ring = malloc(sizeof(*ring));
    d9d_file f = {.fd = -1};
    char path[PATH_MAX];
    d9d_status st;

    *out = (d9di_flight_record){.life = D9DI_LIFE_UNKNOWN};
    if (ring == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a ring", dir);
    (void)snprintf(path, sizeof(path), "%s/rank-%d.bin", dir, rank);
    D9D_TRY_OR(st, d9d_file_open(path, &f), out);
    D9D_TRY_OR(st, d9d_file_read_at(&f, ring, sizeof(*ring), 0), out);
    if (!d9di_record_parse(ring, sizeof(*ring), out) || out->head.rank != rank) {
        d9di_record_release(out);
        st = D9D_FAIL(D9D_EFORMAT, "%s: not a flight recorder's file of this version", path);
    } else {
        renew(out, ring);
    }
out:
    d9d_file_release(&f);
    free(ring);
    return st;
}

/* Any rank's head says how many there are; rank 0's is the newest where several jobs left some. */
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
        if (found++ == 0 || r.head.job > f->job) {
            f->job = r.head.job;
            f->size = r.head.size;
            f->degrees = r.head.degrees;
        }
        d9di_record_release(&r);
    }
    d9d_arena_release(&a);
    if (st == D9D_OK && found == 0 && first.st != D9D_OK)
        st = d9d_err_restore(&first);
    else if (st == D9D_OK && found == 0)
        st = D9D_FAIL(D9D_ENOTFOUND, "%s: has no flight recorder's files (rank-N.bin)", dir);
    return st;
}

static d9di_life life_of(const d9d_flight *f, const d9di_flight_record *r, const char *host)
{
    static const d9di_life ends[D9DI_FLIGHT_STATES] = {[D9DI_FLIGHT_LEFT] = D9DI_LIFE_LEFT,
                                                       [D9DI_FLIGHT_FAILED] = D9DI_LIFE_FAILED,
                                                       [D9DI_FLIGHT_ENDED] = D9DI_LIFE_ENDED};
    char state;

    if (!r->known)
        return D9DI_LIFE_UNKNOWN;
    if (r->head.state != D9DI_FLIGHT_RUNS)
        return ends[r->head.state];
    if (strcmp(r->head.host, host) == 0 && r->head.started != 0) {
        if (d9di_process_gone(r->head.pid, r->head.started, &state))
            return D9DI_LIFE_GONE;
        return state == 'T' || state == 't' ? D9DI_LIFE_STOPPED : D9DI_LIFE_RUNS;
    }
    return f->now - r->sign > SILENCE_NS + r->head.lag ? D9DI_LIFE_SILENT : D9DI_LIFE_RUNS;
}

/* Where nobody lives, time stands at the last sign of life. */
static void set_lives(d9d_flight *f)
{
    struct timespec t = {0};
    d9di_presence self;
    bool alive = false;

    d9di_presence_of_self(&self);
    (void)clock_gettime(CLOCK_REALTIME, &t);
    f->now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    for (int r = 0; r < f->size; r++) {
        d9di_flight_record *x = &f->record[r];

        x->life = life_of(f, x, self.host);
        alive |= x->life == D9DI_LIFE_RUNS || x->life == D9DI_LIFE_STOPPED;
        f->last = x->sign > f->last ? x->sign : f->last;
        if (x->life == D9DI_LIFE_RUNS)
            f->last = f->now;
    }
    if (!alive)
        f->now = f->last;
}

static d9d_status take_memory(d9d_flight *f, const char *what)
{
    f->record = calloc((size_t)f->size, sizeof(*f->record));
    f->culprit = calloc((size_t)f->size, sizeof(*f->culprit));
    if (f->record == NULL || f->culprit == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %d ranks", what, f->size);
    return D9D_OK;
}

/* Of this job, or none. */
static void read_file(d9d_flight *f, const char *dir, int rank)
{
    d9di_flight_record *x = &f->record[rank];

    if (read_record(dir, rank, x) == D9D_OK && x->head.job == f->job && x->head.size == f->size &&
        memcmp(&x->head.degrees, &f->degrees, sizeof(f->degrees)) == 0)
        return;
    d9di_record_release(x);
}

d9d_status d9d_flight_open(const char *dir, d9d_flight **out)
{
    d9d_flight *f = calloc(1, sizeof(*f));
    d9d_status st;

    if (f == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a flight", dir);
    D9D_TRY_OR(st, find_job(dir, f), out);
    D9D_TRY_OR(st, take_memory(f, dir), out);
    for (int r = 0; r < f->size; r++)
        read_file(f, dir, r);
    set_lives(f);
    *out = f;
    f = NULL;
out:
    d9d_flight_close(f);
    return st;
}

static const d9di_ring *ring_near(const d9di_ring *self, const d9di_neighbours *near, int rank)
{
    return rank == self->head.rank ? self : d9di_neighbours_ring(near, rank);
}

bool d9di_flight_is_near(const d9di_ring *self, const d9di_neighbours *near)
{
    for (int r = 0; r < self->head.size; r++)
        if (ring_near(self, near, r) == NULL)
            return false;
    return true;
}

d9d_status d9di_flight_gather(const d9di_ring *self, const d9di_neighbours *near, const char *dir,
                              d9d_flight **out)
{
    d9d_flight *f = calloc(1, sizeof(*f));
    d9di_ring *copy = malloc(sizeof(*copy));
    d9d_status st;

    if (f == NULL || copy == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "flight: out of memory");
        goto out;
    }
    f->job = self->head.job;
    f->size = self->head.size;
    f->degrees = self->head.degrees;
    D9D_TRY_OR(st, take_memory(f, "flight"), out);
    for (int r = 0; r < f->size; r++) {
        const d9di_ring *ring = ring_near(self, near, r);

        f->record[r].life = D9DI_LIFE_UNKNOWN;
        if (ring != NULL) {
            d9di_ring_copy(ring, copy);
            copy->head.lag = 0;
            (void)d9di_record_parse(copy, sizeof(*copy), &f->record[r]);
        } else if (dir != NULL) {
            read_file(f, dir, r);
        }
    }
    set_lives(f);
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
        d9di_record_release(&f->record[r]);
    free(f->record);
    free(f->culprit);
    free(f);
}

int d9d_flight_size(const d9d_flight *f)
{
    return f->size;
}

/* --- words ---------------------------------------------------------------------------------- */

d9d_status d9di_call_text(const d9di_flight_call *x, d9d_buf *out)
{
    return d9d_buf_printf(out, "%s %lld of %s, %s [%lld]%s", d9di_verb_text((d9di_verb)x->verb),
                          (long long)x->seq, x->what, d9d_dtype_word((d9d_dtype)x->type),
                          (long long)x->n, x->op == D9D_COMM_MAX ? ", maximum" : "");
}

char *d9di_call_group(const d9di_flight_record *r, const d9di_flight_call *x, char *buf, size_t n)
{
    return d9di_axes_name(r->head.group[x->group].axes, buf, n);
}

const char *d9di_life_text(d9di_life l)
{
    static const char *const texts[D9DI_LIVES] = {
        [D9DI_LIFE_RUNS] = "is alive",
        [D9DI_LIFE_STOPPED] = "is stopped",
        [D9DI_LIFE_SILENT] = "is silent",
        [D9DI_LIFE_GONE] = "is gone",
        [D9DI_LIFE_LEFT] = "has ended",
        [D9DI_LIFE_FAILED] = "has failed",
        [D9DI_LIFE_ENDED] = "was ended by its watchdog",
        [D9DI_LIFE_UNKNOWN] = "has no record",
    };

    return texts[l];
}

double d9di_since(const d9d_flight *f, const d9di_flight_record *r, int64_t clock)
{
    const double s = (double)(f->now - r->head.offset - clock) / 1e9;

    return s > 0 ? s : 0;
}
