/* mpi_module.c - libd9d_mpi.so.  See comm/backend/mpi_module.h. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/backend/mpi_module.h"

enum { MESSAGE_MAX = 1 << 30 }; /* the most bytes of one MPI message, whose count is an int */
/* A wait first polls, longer if each rank has a core to itself, then sleeps between polls.  It does
 * not yield: beside busy processes sched_yield() costs a time slice of each.  Polls in vain make
 * the next ones shorter, for other processes may have the peer's core; one wait of PROBE polls as
 * long as any may, to see whether that is over.  Ranks that share a core sleep longer as they wait
 * longer, until all of them poll as often as one rank would. */
enum { POLL_MAX_NS = 1000 * 1000, POLL_MIN_NS = 5 * 1000, PROBE = 16, NAP_NS = 50 * 1000 };
enum {
    NAP_SHARE = 8 /* of the time waited so far, the longest nap */,
    NAP_MAX_NS = 5 * 1000 * 1000
};
enum { LOOK_NS = 5 * 1000 * 1000 };     /* between two looks for messages of other sizes */
enum { SETTLE_NS = 200 * 1000 * 1000 }; /* how long a failed exchange waits for begun transfers */

/* The MPI world communicator: MPI is initialised once for each process. */
static MPI_Comm world(void)
{
    return MPI_COMM_WORLD;
}

static bool fail_mpi(int rc, char *why, size_t why_n)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n;

    (void)MPI_Error_string(rc, text, &n);
    (void)snprintf(why, why_n, "MPI: %s", text);
    return false;
}

/* Values of a tag above those that callers give. */
static int tag_sizes(void)
{
    int found = 0, *max = NULL;

    (void)MPI_Comm_get_attr(world(), MPI_TAG_UB, &max, &found);
    return found ? (int)(((int64_t)*max + 1) / (D9DI_MPI_TAG_MAX + 1)) : 1;
}

static bool open_world(int ranks_per_processor, d9di_mpi_world *out, char *why, size_t why_n)
{
    int have, on = 0, over = 0;

    (void)MPI_Initialized(&on);
    (void)MPI_Finalized(&over);
    if (over) {
        (void)snprintf(why, why_n, "MPI was used and ended in this process");
        return false;
    }
    if (!on && MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &have) != MPI_SUCCESS) {
        (void)snprintf(why, why_n, "MPI does not start");
        return false;
    }
    (void)MPI_Query_thread(&have);
    if (have != MPI_THREAD_MULTIPLE) {
        (void)snprintf(why, why_n, "this MPI does not let several threads call it");
        return false;
    }
    (void)MPI_Comm_set_errhandler(world(), MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(world(), &out->rank);
    (void)MPI_Comm_size(world(), &out->size);
    out->poll_max_ns = out->poll_ns = ranks_per_processor > 1 ? POLL_MIN_NS : POLL_MAX_NS;
    out->nap_max_ns = (int64_t)ranks_per_processor * NAP_NS;
    if (out->nap_max_ns > NAP_MAX_NS)
        out->nap_max_ns = NAP_MAX_NS;
    out->sizes = tag_sizes();
    return true;
}

static void close_world(void)
{
    (void)MPI_Finalize();
}

/* --- an exchange ------------------------------------------------------------------------- */

/* A d9di_mpi_msg is sent as MPI messages of at most MESSAGE_MAX bytes. */
static size_t messages(const d9di_mpi_msg *p)
{
    return (p->n + MESSAGE_MAX - 1) / MESSAGE_MAX;
}

static size_t message_size(const d9di_mpi_msg *p, size_t i)
{
    const size_t rest = p->n - i * MESSAGE_MAX;

    return rest < MESSAGE_MAX ? rest : MESSAGE_MAX;
}

/* Ranks that disagree about a call send messages that are longer than their receives.  Open MPI
 * 4 then writes behind the buffer of the receive, instead of the error that MPI promises.  So the
 * tag carries a hash of the size, and messages of different sizes do not match. */
static int sized_tag(const d9di_mpi_world *w, int tag, size_t n)
{
    const uint64_t hash = (uint64_t)n * UINT64_C(0x9e3779b97f4a7c15) >> 32;

    return (int)(hash % (uint64_t)w->sizes) * (D9DI_MPI_TAG_MAX + 1) + tag;
}

static int post_message(const d9di_mpi_world *w, const d9di_mpi_msg *p, size_t i, int tag_,
                        MPI_Request *out)
{
    const size_t n = message_size(p, i);
    const int tag = sized_tag(w, tag_, n);
    char *data = (char *)p->data + i * MESSAGE_MAX;

    return p->receive ? MPI_Irecv(data, (int)n, MPI_BYTE, p->peer, tag, world(), out)
                      : MPI_Isend(data, (int)n, MPI_BYTE, p->peer, tag, world(), out);
}

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* The nap of one who has waited so long. */
static void nap(const d9di_mpi_world *w, int64_t waited)
{
    struct timespec t = {.tv_nsec = NAP_NS};

    if (waited / NAP_SHARE > NAP_NS)
        t.tv_nsec = waited / NAP_SHARE < w->nap_max_ns ? waited / NAP_SHARE : w->nap_max_ns;
    (void)nanosleep(&t, NULL);
}

/* A message that waits for a receive of another size than the receive that waits for it: true if
 * there is one for message i of the list, whose peer is then out of step. */
static bool find_other_size(const d9di_mpi_msg *p, size_t i, int tag, char *why, size_t why_n)
{
    MPI_Status came;
    int found = 0, n = 0;

    if (MPI_Iprobe(p->peer, MPI_ANY_TAG, world(), &found, &came) != MPI_SUCCESS || !found ||
        came.MPI_TAG % (D9DI_MPI_TAG_MAX + 1) != tag)
        return false;
    (void)MPI_Get_count(&came, MPI_BYTE, &n);
    if ((size_t)n == message_size(p, i))
        return false;
    (void)snprintf(why, why_n, "rank %d sent %d bytes, not the %zu that it should", p->peer, n,
                   message_size(p, i));
    return true;
}

/* Messages of one tag on their way. */
struct exchange {
    d9di_mpi_world *world;
    const d9di_mpi_msg *msgs;
    int n, tag;
    int total;             /* MPI messages */
    MPI_Request *requests; /* [total] */
    MPI_Status *statuses;  /* [total] */
};

/* True if a receive still waited for a message, and is taken back. */
static bool cancel_unmatched(MPI_Request *r)
{
    MPI_Status status;
    int done = 0, cancelled = 0;

    (void)MPI_Cancel(r);
    if (MPI_Request_get_status(*r, &done, &status) == MPI_SUCCESS && done)
        (void)MPI_Test_cancelled(&status, &cancelled);
    if (cancelled) /* a second MPI_Cancel() would be an error */
        (void)MPI_Request_free(r);
    return cancelled != 0;
}

static bool is_incomplete(MPI_Request r)
{
    int done = 0;

    return MPI_Request_get_status(r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;
}

/* A receive that waits while its peer has sent a message of another size.  A receive whose message
 * is on its way is incomplete too, and the peer may have gone on; only what can be cancelled waits.
 */
static bool find_desync(const struct exchange *x, char *why, size_t why_n)
{
    MPI_Request *r = x->requests;

    for (int i = 0; i < x->n; i++)
        for (size_t j = 0; j < messages(&x->msgs[i]); j++, r++)
            if (x->msgs[i].receive && is_incomplete(*r) &&
                find_other_size(&x->msgs[i], j, x->tag, why, why_n) && cancel_unmatched(r))
                return true;
    return false;
}

/* Take back receives that have not begun, and wait a while for the others.  Sends are left: MPI
 * cannot take them back, and only reads what they send. */
static void take_back(const struct exchange *x)
{
    const int64_t began = now_ns();
    MPI_Request *r = x->requests;

    for (int i = 0; i < x->n; i++)
        for (size_t j = 0; j < messages(&x->msgs[i]); j++, r++)
            if (x->msgs[i].receive && *r != MPI_REQUEST_NULL)
                (void)MPI_Cancel(r);
    r = x->requests;
    for (int i = 0; i < x->n; i++)
        for (size_t j = 0; j < messages(&x->msgs[i]); j++, r++) {
            int done = !x->msgs[i].receive || *r == MPI_REQUEST_NULL;

            while (!done && MPI_Test(r, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done &&
                   now_ns() - began < SETTLE_NS)
                nap(x->world, 0);
        }
}

/* Compare the received sizes with the expected ones. */
static bool check_sizes(const struct exchange *x, int rc, char *why, size_t why_n)
{
    const MPI_Status *status = x->statuses;

    for (int i = 0; i < x->n; i++)
        for (size_t j = 0; j < messages(&x->msgs[i]); j++, status++) {
            const size_t want = message_size(&x->msgs[i], j);
            int came = 0, class = MPI_SUCCESS;

            if (rc == MPI_ERR_IN_STATUS && status->MPI_ERROR != MPI_SUCCESS &&
                status->MPI_ERROR != MPI_ERR_PENDING) {
                (void)MPI_Error_class(status->MPI_ERROR, &class);
                if (class != MPI_ERR_TRUNCATE)
                    return fail_mpi(status->MPI_ERROR, why, why_n);
                (void)snprintf(why, why_n, "rank %d sent more than the %zu bytes that it should",
                               x->msgs[i].peer, want);
                return false;
            }
            if (rc != MPI_SUCCESS || !x->msgs[i].receive)
                continue;
            (void)MPI_Get_count(status, MPI_BYTE, &came);
            if ((size_t)came == want)
                continue;
            (void)snprintf(why, why_n, "rank %d sent %d bytes, not the %zu that it should",
                           x->msgs[i].peer, came, want);
            return false;
        }
    return rc == MPI_SUCCESS ? true : fail_mpi(rc, why, why_n);
}

/* Receives first, so that messages arrive in posted buffers. */
static int post_all(const struct exchange *x)
{
    for (int i = 0; i < x->total; i++)
        x->requests[i] = MPI_REQUEST_NULL;
    for (int receive = 1; receive >= 0; receive--) {
        MPI_Request *r = x->requests;

        for (int i = 0; i < x->n; r += messages(&x->msgs[i]), i++)
            for (size_t j = 0; x->msgs[i].receive == receive && j < messages(&x->msgs[i]); j++) {
                const int rc = post_message(x->world, &x->msgs[i], j, x->tag, r + j);

                if (rc != MPI_SUCCESS) {
                    r[j] = MPI_REQUEST_NULL;
                    return rc;
                }
            }
    }
    return MPI_SUCCESS;
}

/* How long a wait that begins polls. */
static int64_t poll_time(d9di_mpi_world *w)
{
    return __atomic_fetch_add(&w->n_waits, 1, __ATOMIC_RELAXED) % PROBE == 0
               ? w->poll_max_ns
               : __atomic_load_n(&w->poll_ns, __ATOMIC_RELAXED);
}

/* Double or halve what the next waits poll, after one that polled and waited so long. */
static void adapt_poll(d9di_mpi_world *w, int64_t polled, int64_t waited)
{
    const int64_t now = __atomic_load_n(&w->poll_ns, __ATOMIC_RELAXED);
    int64_t next = waited < polled ? 2 * now : now / 2;

    if (waited < POLL_MIN_NS) /* any poll would have done */
        return;
    if (next > w->poll_max_ns)
        next = w->poll_max_ns;
    if (next < POLL_MIN_NS)
        next = POLL_MIN_NS;
    __atomic_store_n(&w->poll_ns, next, __ATOMIC_RELAXED);
}

/* Wait for messages that were posted. */
static bool wait_all(const struct exchange *x, char *why, size_t why_n)
{
    const int64_t began = now_ns(), poll = poll_time(x->world);
    int64_t waited = 0, look = LOOK_NS;
    int rc, done = 0;

    for (;;) {
        rc = MPI_Testall(x->total, x->requests, &done, x->statuses);
        if (rc != MPI_SUCCESS || done)
            break;
        waited = now_ns() - began;
        if (waited < poll)
            continue;
        if (waited >= look) {
            look = waited + LOOK_NS;
            if (find_desync(x, why, why_n))
                return false;
        }
        nap(x->world, waited);
    }
    adapt_poll(x->world, poll, waited);
    return check_sizes(x, rc, why, why_n);
}

static bool send_recv(d9di_mpi_world *w, const d9di_mpi_msg *msgs, int n, int tag, char *why,
                      size_t why_n)
{
    struct exchange x = {.world = w, .msgs = msgs, .n = n, .tag = tag};
    bool ok = false;
    int rc;

    for (int i = 0; i < n; i++)
        x.total += (int)messages(&msgs[i]);
    x.requests = malloc(((size_t)x.total + 1) * sizeof(*x.requests));
    x.statuses = calloc((size_t)x.total + 1, sizeof(*x.statuses));
    if (x.requests == NULL || x.statuses == NULL) {
        (void)snprintf(why, why_n, "no memory for %d messages", x.total);
    } else {
        rc = post_all(&x);
        ok = rc == MPI_SUCCESS ? wait_all(&x, why, why_n) : fail_mpi(rc, why, why_n);
        if (!ok)
            take_back(&x);
    }
    free(x.statuses);
    free(x.requests);
    return ok;
}

/* --- posted messages ----------------------------------------------------------------- */

struct d9di_mpi_post {
    struct exchange x;
    d9di_mpi_msg msg;
    int rc, done; /* of the last test */
};

static void post_cancel(struct d9di_mpi_post *p)
{
    take_back(&p->x);
    free(p);
}

static struct d9di_mpi_post *post_one(d9di_mpi_world *w, const d9di_mpi_msg *msg, int tag,
                                      char *why, size_t why_n)
{
    const size_t n = messages(msg);
    struct d9di_mpi_post *p =
        calloc(1, sizeof(*p) + n * (sizeof(*p->x.statuses) + sizeof(*p->x.requests)));
    int rc;

    if (p == NULL) {
        (void)snprintf(why, why_n, "no memory for %zu messages", n);
        return NULL;
    }
    p->msg = *msg;
    p->x = (struct exchange){.world = w, .msgs = &p->msg, .n = 1, .tag = tag, .total = (int)n};
    p->x.requests = (MPI_Request *)(p + 1);
    p->x.statuses = (MPI_Status *)(p->x.requests + n);
    rc = post_all(&p->x);
    if (rc != MPI_SUCCESS) {
        (void)fail_mpi(rc, why, why_n);
        post_cancel(p);
        return NULL;
    }
    return p;
}

static bool post_test(struct d9di_mpi_post *p)
{
    if (!p->done && p->rc == MPI_SUCCESS)
        p->rc = MPI_Testall(p->x.total, p->x.requests, &p->done, p->x.statuses);
    return p->done || p->rc != MPI_SUCCESS;
}

static bool post_wait(struct d9di_mpi_post *p, char *why, size_t why_n)
{
    const bool ok =
        post_test(p) ? check_sizes(&p->x, p->rc, why, why_n) : wait_all(&p->x, why, why_n);

    if (ok)
        free(p);
    else
        post_cancel(p);
    return ok;
}

extern const d9di_mpi_module d9d_mpi_module_v6;
__attribute__((visibility("default")))
const d9di_mpi_module d9d_mpi_module_v6 = {.open = open_world,
                                           .exchange = send_recv,
                                           .post = post_one,
                                           .test = post_test,
                                           .wait = post_wait,
                                           .cancel = post_cancel,
                                           .close = close_world};
