/* flight_ring.c - writing a ring of calls.  See comm/watch/flight_file.h. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/watch/flight_file.h"
#include "d9d/base/hash.h"
#include "d9d/base/thread.h"

_Static_assert(sizeof(d9di_flight_call) == 128, "the ring's format");
_Static_assert(sizeof(d9di_flight_head) <= D9DI_FLIGHT_HEAD, "the ring's format");

/* When the kernel says that this process started, or 0. */
static int64_t process_started(int64_t pid, char *state)
{
    char path[64], text[1024], *at;
    unsigned long long started = 0;
    size_t n;
    FILE *f;

    *state = 0;
    (void)snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    n = fread(text, 1, sizeof(text) - 1, f);
    (void)fclose(f);
    text[n] = '\0';
    at = strrchr(text, ')'); /* the name before it may have anything in it */
    if (at == NULL ||
        sscanf(at + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
               "%*s %llu",
               state, &started) != 2)
        return 0;
    return (int64_t)started;
}

bool d9di_process_gone(int64_t pid, int64_t started, char *state)
{
    char now;
    const bool other = process_started(pid, &now) != started;

    if (state != NULL)
        *state = now;
    return other || now == 'Z' || now == 'X';
}

/* In containers of one host a number is another process in each. */
void d9di_presence_of_self(d9di_presence *out)
{
    char state, name[65] = "", space[32] = "", both[sizeof(name) + sizeof(space)];

    *out = (d9di_presence){.pid = getpid()};
    out->started = process_started(out->pid, &state);
    (void)gethostname(name, sizeof(name) - 1);
    (void)!readlink("/proc/self/ns/pid", space, sizeof(space) - 1);
    (void)snprintf(both, sizeof(both), "%s %s", name, space);
    d9d_hash_hex(d9d_hash_bytes(both, strlen(both)), out->host);
}

/* --- what a ring says ------------------------------------------------------------------- */

static int64_t time_of_day(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void d9di_ring_init(d9di_ring *r, d9d_boot *boot, const d9d_degrees *d, int64_t job)
{
    d9di_flight_head *h = &r->head;
    d9di_presence self;

    h->job = job;
    h->rank = d9d_boot_rank(boot);
    h->size = d9d_boot_size(boot);
    h->degrees = *d;
    d9di_presence_of_self(&self);
    h->pid = self.pid;
    h->started = self.started;
    memcpy(h->host, self.host, sizeof(h->host));
    d9di_ring_beat(r, d9d_clock_ns());
    h->lag = (int64_t)(D9DI_FLIGHT_SYNC_MS + D9DI_FLIGHT_BEAT_MS) * 1000000;
    (void)snprintf(h->node, sizeof(h->node), "%s", d9d_boot_node(boot));
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(h->magic, D9DI_FLIGHT_MAGIC, sizeof(h->magic));
}

void d9di_ring_beat(d9di_ring *r, int64_t now)
{
    __atomic_store_n(&r->head.offset, time_of_day() - now, __ATOMIC_RELAXED);
    __atomic_store_n(&r->head.beat, now, __ATOMIC_RELAXED);
}

void d9di_ring_set_state(d9di_ring *r, d9di_flight_state state)
{
    d9di_ring_beat(r, d9d_clock_ns());
    __atomic_store_n(&r->head.state, (int32_t)state, __ATOMIC_RELEASE);
}

d9di_flight_state d9di_ring_state(const d9di_ring *r)
{
    return (d9di_flight_state)__atomic_load_n(&r->head.state, __ATOMIC_ACQUIRE);
}

int d9di_ring_group(d9di_ring *r, unsigned axes)
{
    if (r->head.groups == D9DI_FLIGHT_GROUPS)
        return -1;
    r->head.group[r->head.groups].axes = axes;
    return r->head.groups++;
}

/* --- calls --------------------------------------------------------------------------------- */

static int64_t sum_of(const int64_t *counts, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static int64_t elements(const d9d_comm *c, const d9di_call *k)
{
    if (k->verb == D9DI_EXCHANGE)
        return sum_of(&k->pieces[0].n, 1);
    if (k->recv != NULL || k->send != NULL)
        return sum_of(k->recv != NULL ? k->recv : k->send, c->size);
    return k->n;
}

static void note_peers(const d9d_comm *c, const d9di_call *k, d9di_flight_call *x)
{
    memset(x->peer, 0, sizeof(x->peer));
    for (int i = 0; k->verb == D9DI_EXCHANGE && i < k->n && i < D9DI_FLIGHT_PEERS; i++) {
        const int32_t rank = c->world[k->pieces[i].peer] + 1;

        x->peer[i] = k->pieces[i].receive ? -rank : rank;
    }
}

/* The watchdog ends this process: what it waited for may come now, and be too late. */
static void stay_if_ended(const d9di_ring *r)
{
    while (d9di_ring_state(r) == D9DI_FLIGHT_ENDED)
        (void)pause();
}

static bool is_recorded(const d9d_comm *c)
{
    return c->ring != NULL && c->group >= 0 &&
           __atomic_load_n(&c->ring->head.state, __ATOMIC_RELAXED) == D9DI_FLIGHT_RUNS;
}

d9di_flight_call *d9di_ring_begin(d9d_comm *c, const d9di_call *k)
{
    d9di_ring *r = c->ring;
    d9di_flight_call *x;
    int64_t number;

    if (r != NULL)
        stay_if_ended(r);
    if (!is_recorded(c))
        return NULL;
    number = __atomic_add_fetch(&r->head.calls, 1, __ATOMIC_RELAXED);
    x = &r->call[(number - 1) % D9DI_FLIGHT_CALLS];
    __atomic_store_n(&x->number, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    __atomic_store_n(&x->begin, d9d_clock_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&x->end, 0, __ATOMIC_RELAXED);
    x->seq = k->verb == D9DI_EXCHANGE ? c->exchanges : c->calls;
    r->head.group[c->group].seq = c->calls;
    x->n = elements(c, k);
    x->group = (uint8_t)c->group;
    x->verb = (uint8_t)k->verb;
    x->type = (uint8_t)(k->verb == D9DI_EXCHANGE ? k->pieces[0].t : k->t);
    x->op = (uint8_t)k->op;
    x->root = k->root;
    __atomic_store_n(&x->step, D9DI_STEP_INSIDE, __ATOMIC_RELAXED);
    note_peers(c, k, x);
    (void)strncpy(x->what, k->what, sizeof(x->what) - 1);
    __atomic_store_n(&x->number, number, __ATOMIC_RELEASE);
    return x;
}

void d9di_ring_end(d9di_flight_call *x, d9di_flight_step step)
{
    if (x == NULL)
        return;
    __atomic_store_n(&x->end, d9d_clock_ns(), __ATOMIC_RELAXED);
    __atomic_store_n(&x->step, (int32_t)step, __ATOMIC_RELEASE);
}
