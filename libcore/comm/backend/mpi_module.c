/* mpi_module.c - libd9d_mpi.so.  See comm/backend/mpi_module.h. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/backend/mpi_module.h"

enum { MESSAGE_MAX = 1 << 30 }; /* the most bytes of one MPI message, whose count is an int */
/* A wait first polls, longer if each rank has a core to itself, then sleeps between polls.  It does
 * not yield: beside busy processes sched_yield() costs a time slice of each.  Ranks that share a
 * core sleep longer as they wait longer, until all of them poll as often as one rank would. */
enum { POLL_NS = 1000 * 1000, OVERSUBSCRIBED_POLL_NS = 20 * 1000, NAP_NS = 50 * 1000 };
enum {
    NAP_SHARE = 8 /* of the time waited so far, the longest nap */,
    NAP_MAX_NS = 5 * 1000 * 1000
};

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
    out->poll_ns = ranks_per_processor > 1 ? OVERSUBSCRIBED_POLL_NS : POLL_NS;
    out->nap_max_ns = (int64_t)ranks_per_processor * NAP_NS;
    if (out->nap_max_ns > NAP_MAX_NS)
        out->nap_max_ns = NAP_MAX_NS;
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

static int post_message(const d9di_mpi_msg *p, size_t i, int tag, MPI_Request *out)
{
    const size_t at = i * MESSAGE_MAX, n = p->n - at < MESSAGE_MAX ? p->n - at : MESSAGE_MAX;
    char *data = (char *)p->data + at;

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

static int wait_all(const d9di_mpi_world *w, int n, MPI_Request *requests, MPI_Status *statuses)
{
    const int64_t began = now_ns();
    int64_t waited;
    int rc, done = 0;

    for (;;) {
        rc = MPI_Testall(n, requests, &done, statuses);
        if (rc != MPI_SUCCESS || done)
            return rc;
        waited = now_ns() - began;
        if (waited >= w->poll_ns)
            nap(w, waited);
    }
}

/* Compare the received sizes with the expected ones. */
static bool check_sizes(const d9di_mpi_msg *msgs, int n, int rc, MPI_Status *statuses, char *why,
                        size_t why_n)
{
    size_t at = 0;

    for (int i = 0; i < n; i++)
        for (size_t j = 0; j < messages(&msgs[i]); j++, at++) {
            const size_t rest = msgs[i].n - j * MESSAGE_MAX,
                         want = rest < MESSAGE_MAX ? rest : MESSAGE_MAX;
            int came = 0, class = MPI_SUCCESS;

            if (rc == MPI_ERR_IN_STATUS && statuses[at].MPI_ERROR != MPI_SUCCESS &&
                statuses[at].MPI_ERROR != MPI_ERR_PENDING) {
                (void)MPI_Error_class(statuses[at].MPI_ERROR, &class);
                if (class != MPI_ERR_TRUNCATE)
                    return fail_mpi(statuses[at].MPI_ERROR, why, why_n);
                (void)snprintf(why, why_n, "rank %d sent more than the %zu bytes that it should",
                               msgs[i].peer, want);
                return false;
            }
            if (rc != MPI_SUCCESS || !msgs[i].receive)
                continue;
            (void)MPI_Get_count(&statuses[at], MPI_BYTE, &came);
            if ((size_t)came == want)
                continue;
            (void)snprintf(why, why_n, "rank %d sent %d bytes, not the %zu that it should",
                           msgs[i].peer, came, want);
            return false;
        }
    return rc == MPI_SUCCESS ? true : fail_mpi(rc, why, why_n);
}

/* Receives first, so that messages arrive in posted buffers. */
static int post_all(const d9di_mpi_msg *msgs, int n, int tag, MPI_Request *out)
{
    for (int receive = 1; receive >= 0; receive--) {
        MPI_Request *r = out;

        for (int i = 0; i < n; r += messages(&msgs[i]), i++)
            for (size_t j = 0; msgs[i].receive == receive && j < messages(&msgs[i]); j++) {
                const int rc = post_message(&msgs[i], j, tag, r + j);

                if (rc != MPI_SUCCESS)
                    return rc;
            }
    }
    return MPI_SUCCESS;
}

static bool send_recv(const d9di_mpi_world *w, const d9di_mpi_msg *msgs, int n, int tag, char *why,
                      size_t why_n)
{
    MPI_Request *requests;
    MPI_Status *statuses;
    size_t total = 0;
    bool ok = false;
    int rc;

    for (int i = 0; i < n; i++)
        total += messages(&msgs[i]);
    requests = malloc((total + 1) * sizeof(*requests));
    statuses = calloc(total + 1, sizeof(*statuses));
    if (requests == NULL || statuses == NULL) {
        (void)snprintf(why, why_n, "no memory for %zu messages", total);
    } else {
        rc = post_all(msgs, n, tag, requests);
        if (rc == MPI_SUCCESS)
            rc = wait_all(w, (int)total, requests, statuses);
        ok = check_sizes(msgs, n, rc, statuses, why, why_n);
    }
    free(statuses);
    free(requests);
    return ok;
}

/* --- posted messages ----------------------------------------------------------------- */

struct d9di_mpi_post {
    const d9di_mpi_world *world;
    d9di_mpi_msg msg;
    int n, rc, done;
    MPI_Request *requests; /* [n] */
    MPI_Status *statuses;  /* [n] */
};

static struct d9di_mpi_post *post_one(const d9di_mpi_world *w, const d9di_mpi_msg *msg, int tag,
                                      char *why, size_t why_n)
{
    const size_t n = messages(msg);
    struct d9di_mpi_post *p =
        calloc(1, sizeof(*p) + n * (sizeof(*p->statuses) + sizeof(*p->requests)));

    if (p == NULL) {
        (void)snprintf(why, why_n, "no memory for %zu messages", n);
        return NULL;
    }
    p->world = w;
    p->msg = *msg;
    p->n = (int)n;
    p->requests = (MPI_Request *)(p + 1);
    p->statuses = (MPI_Status *)(p->requests + n);
    p->rc = post_all(&p->msg, 1, tag, p->requests);
    if (p->rc != MPI_SUCCESS) { /* requests posted so far stay with MPI */
        (void)fail_mpi(p->rc, why, why_n);
        return NULL;
    }
    return p;
}

static bool post_test(struct d9di_mpi_post *p)
{
    if (!p->done)
        p->rc = MPI_Testall(p->n, p->requests, &p->done, p->statuses);
    return p->done || p->rc != MPI_SUCCESS;
}

static bool post_wait(struct d9di_mpi_post *p, char *why, size_t why_n)
{
    bool ok;

    if (!post_test(p))
        p->rc = wait_all(p->world, p->n, p->requests, p->statuses);
    ok = check_sizes(&p->msg, 1, p->rc, p->statuses, why, why_n);
    free(p);
    return ok;
}

extern const d9di_mpi_module d9d_mpi_module_v4;
__attribute__((visibility("default")))
const d9di_mpi_module d9d_mpi_module_v4 = {.open = open_world,
                                           .exchange = send_recv,
                                           .post = post_one,
                                           .test = post_test,
                                           .wait = post_wait,
                                           .close = close_world};
