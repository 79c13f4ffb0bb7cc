/* bootstrap.c - the launch by environment and PMIx, and exchanges.  See d9d/comm/bootstrap.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_private.h"
#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"

struct d9d_bootstrap {
    d9di_bootstrap_backend backend; /* functions are NULL in a world of one */
    bool failure_is_collective;     /* all ranks know the last failure */
    bool failure_reported;
    int64_t exchanges;
    bool connected;            /* the ranks have connected, or have found that they cannot */
    d9di_bootstrap_tree *tree; /* NULL: not connected */
    int listener;              /* of ranks that did not meet; -1: none */
    d9di_bootstrap_transport transport;
    d9d_bootstrap_blob simulated; /* what this rank of simulated ranks published */
    d9d_arena simulated_memory;
    char unconnected[512];
};

/* --- the launch ------------------------------------------------------------------------------- */

/* Environment variables by which launchers tell a task how many tasks there are, and its number.
 * The innermost launcher comes first: mpirun starts its daemons through srun.  The last names may
 * be set by any script, but rarely both. */
static const struct {
    const char *count, *rank, *launcher, *advice;
    bool both; /* one of the two alone means nothing */
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpirun", "use the mpirun of Open MPI 4 or 5",
     false},
    {"PMI_SIZE", "PMI_RANK", "a PMI launcher", "use srun --mpi=pmix, or the mpirun of Open MPI",
     false},
    {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MVAPICH",
     "use srun --mpi=pmix, or the mpirun of Open MPI", false},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun", "add --mpi=pmix", false},
    {"WORLD_SIZE", "RANK", "torchrun", "use srun --mpi=pmix, or the mpirun of Open MPI", true},
};
enum { N_LAUNCHERS = sizeof(launchers) / sizeof(launchers[0]) };

/* The value of a variable; NULL if unset or empty. */
static const char *env_value(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* A number from 0 to 2^31 - 1; -1 for any other text. */
static int64_t parse_count(const char *text)
{
    char *end = NULL;
    const long long n = text != NULL ? strtoll(text, &end, 10) : -1;

    return text != NULL && *end == '\0' && n >= 0 && n <= INT32_MAX ? n : -1;
}

static void init_single(d9di_bootstrap_backend *out)
{
    *out = (d9di_bootstrap_backend){.rank = 0, .size = 1};
    if (gethostname(out->node, sizeof(out->node) - 1) != 0)
        (void)snprintf(out->node, sizeof(out->node), "localhost");
}

/* The launcher of this task by its environment; N_LAUNCHERS if none. */
static size_t find_launcher(const char **count, const char **rank)
{
    size_t i;

    for (i = 0; i < N_LAUNCHERS; i++) {
        *count = env_value(launchers[i].count);
        *rank = env_value(launchers[i].rank);
        if ((*count == NULL && (*rank == NULL || parse_count(*rank) == 0)) ||
            (launchers[i].both && (*count == NULL || *rank == NULL)))
            continue; /* Slurm's batch scripts have rank 0 and no task count */
        break;
    }
    return i;
}

/* A process without PMIx: a world of one, or an error if the launcher started several tasks. */
static d9d_status init_without_pmix(d9di_bootstrap_backend *out)
{
    const char *count, *rank;
    const size_t i = find_launcher(&count, &rank);

    if (i < N_LAUNCHERS && parse_count(count) > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s launched %" PRId64 " tasks without PMIx, so that they cannot find "
                        "each other: %s",
                        launchers[i].launcher, parse_count(count), launchers[i].advice);
    if (i < N_LAUNCHERS && (parse_count(count) != 1 || (rank != NULL && parse_count(rank) != 0)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s is \"%.40s\" and %s is \"%.40s\": a launch by %s that is not "
                        "understood: %s",
                        launchers[i].count, count != NULL ? count : "", launchers[i].rank,
                        rank != NULL ? rank : "", launchers[i].launcher, launchers[i].advice);
    init_single(out);
    return D9D_OK;
}

bool d9d_bootstrap_is_nonroot_task(void)
{
    const char *count, *rank;

    return find_launcher(&count, &rank) < N_LAUNCHERS && parse_count(rank) > 0 &&
           parse_count(rank) < parse_count(count);
}

static d9d_status alloc_bootstrap(d9d_bootstrap **out)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory");
    (*out)->listener = -1;
    return D9D_OK;
}

d9d_status d9d_bootstrap_single(d9d_bootstrap **out)
{
    D9D_TRY(alloc_bootstrap(out));
    init_single(&(*out)->backend);
    return D9D_OK;
}

/* As if every rank sent what this one sends. */
static d9d_status simulated_publish(void *self, double timeout_s, const void *local, size_t n)
{
    d9d_bootstrap *b = self;
    char *copy;

    (void)timeout_s;
    d9d_arena_release(&b->simulated_memory);
    copy = d9d_arena_strndup(&b->simulated_memory, local, n);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory");
    b->simulated = (d9d_bootstrap_blob){copy, n};
    return D9D_OK;
}

static d9d_status simulated_get(void *self, int rank, d9d_arena *a, d9d_bootstrap_blob *out)
{
    const d9d_bootstrap *b = self;
    const char *copy = d9d_arena_strndup(a, b->simulated.data, b->simulated.n);

    (void)rank;
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory");
    *out = (d9d_bootstrap_blob){copy, b->simulated.n};
    return D9D_OK;
}

d9d_status d9d_bootstrap_simulate(int rank, int size, d9d_bootstrap **out)
{
    D9D_TRY(d9d_bootstrap_single(out));
    (*out)->backend.self = *out;
    (*out)->backend.rank = rank;
    (*out)->backend.size = size;
    (*out)->backend.publish = simulated_publish;
    (*out)->backend.get = simulated_get;
    (*out)->connected = true;
    return D9D_OK;
}

bool d9d_bootstrap_is_simulated(const d9d_bootstrap *b)
{
    return b->backend.publish == simulated_publish;
}

/* Block signals in the threads of the launcher's library: signals are for the calling thread. */
static d9d_status init_pmix(d9di_bootstrap_backend *out)
{
    d9d_thread_sigmask before;
    d9d_status st;

    d9d_thread_block_signals(&before);
    st = d9di_bootstrap_pmix(out);
    d9d_thread_restore_signals(&before);
    return st;
}

d9d_status d9d_bootstrap_open(d9d_bootstrap **out)
{
    d9d_bootstrap *b;
    d9d_status st;

    D9D_TRY(alloc_bootstrap(&b));
    st = env_value("PMIX_RANK") != NULL || env_value("PMIX_NAMESPACE") != NULL
             ? init_pmix(&b->backend)
             : init_without_pmix(&b->backend);
    if (st == D9D_OK)
        *out = b;
    else
        free(b);
    return st;
}

void d9d_bootstrap_close(d9d_bootstrap *b)
{
    if (b == NULL)
        return;
    d9di_bootstrap_tree_free(b->tree);
    if (b->listener >= 0)
        (void)close(b->listener);
    if (b->backend.close != NULL)
        b->backend.close(b->backend.self);
    d9d_arena_release(&b->simulated_memory);
    free(b);
}

int d9d_bootstrap_rank(const d9d_bootstrap *b)
{
    return b->backend.rank;
}
int d9d_bootstrap_size(const d9d_bootstrap *b)
{
    return b->backend.size;
}
const char *d9d_bootstrap_node(const d9d_bootstrap *b)
{
    return b->backend.node;
}

double d9d_bootstrap_set_timeout(d9d_bootstrap *b, double seconds)
{
    const double previous_s = b->backend.timeout_s;

    b->backend.timeout_s = seconds;
    return previous_s;
}

/* --- exchanges -------------------------------------------------------------------------------- */

void d9di_bootstrap_set_transport(d9d_bootstrap *b, const d9di_bootstrap_transport *by)
{
    b->transport = by != NULL ? *by : (d9di_bootstrap_transport){0};
}

size_t d9d_bootstrap_max_bytes(const d9d_bootstrap *b)
{
    return D9DI_BOOTSTRAP_MAX_BYTES / (size_t)b->backend.size;
}

/* What the launcher does alone: its servers take a request for each message. */
static d9d_status launcher_allgather(d9d_bootstrap *b, const void *local, size_t n, d9d_arena *a,
                                     d9d_bootstrap_blob *all)
{
    b->exchanges++;
    D9D_TRY(b->backend.publish(b->backend.self, b->backend.timeout_s, local, n));
    for (int r = 0; r < b->backend.size; r++)
        D9D_TRY(b->backend.get(b->backend.self, r, a, &all[r]));
    return D9D_OK;
}

/* Every rank has learnt that some rank cannot connect: the reason of the first is kept. */
static d9d_status keep_reason(d9d_bootstrap *b, d9d_status unconnected)
{
    d9di_bootstrap_failure v;
    const size_t n = d9di_bootstrap_failure_pack(unconnected, b->backend.node, b->backend.size, &v);
    d9d_bootstrap_blob *all;
    d9d_arena a = {0};
    d9d_status st;

    all = d9d_arena_alloc(&a, (size_t)b->backend.size * sizeof(*all));
    st = all == NULL ? D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory")
                     : launcher_allgather(b, &v, n, &a, all);
    for (int r = 0; st == D9D_OK && r < b->backend.size && b->unconnected[0] == '\0'; r++)
        if (all[r].n > sizeof(v.st))
            (void)snprintf(b->unconnected, sizeof(b->unconnected), "rank %d %.*s", r,
                           (int)(all[r].n - sizeof(v.st)),
                           (const char *)all[r].data + sizeof(v.st));
    d9d_arena_release(&a);
    return st;
}

int64_t d9d_bootstrap_exchanges(const d9d_bootstrap *b)
{
    return b->exchanges;
}

/* At the first exchange, for the caller has set its timeout by then. */
static d9d_status connect_ranks(d9d_bootstrap *b)
{
    d9di_bootstrap_meeting m;
    d9d_status st;

    if (b->connected)
        return D9D_OK;
    b->connected = true;
    b->exchanges++;
    st = d9di_bootstrap_meet(&b->backend, &m);
    b->tree = m.tree;
    b->listener = m.listener;
    b->failure_reported = b->failure_reported || m.reported;
    D9D_TRY(st);
    return m.unconnected == D9D_OK ? D9D_OK : keep_reason(b, m.unconnected);
}

const char *d9d_bootstrap_unconnected(const d9d_bootstrap *b)
{
    return b->unconnected[0] != '\0' ? b->unconnected : NULL;
}

d9d_status d9d_bootstrap_allgather(d9d_bootstrap *b, const void *local, size_t n, d9d_arena *a,
                                   d9d_bootstrap_blob *all)
{
    char *copy;

    if (b->transport.allgather != NULL)
        return b->transport.allgather(b->transport.self, local, n, a, all);
    if (b->backend.publish != NULL) {
        D9D_TRY(connect_ranks(b));
        if (b->tree == NULL)
            return launcher_allgather(b, local, n, a, all);
        b->exchanges++;
        return d9di_bootstrap_tree_allgather(b->tree, b->backend.timeout_s, local, n, a, all);
    }
    copy = d9d_arena_strndup(a, local, n);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory");
    all[0] = (d9d_bootstrap_blob){copy, n};
    return D9D_OK;
}

/* The message of the first rank that sends one; *rank is -1 if none does. */
static d9d_status exchange_first(d9d_bootstrap *b, const void *local, size_t n, d9d_arena *a,
                                 int *rank, d9d_bootstrap_blob *out)
{
    d9d_bootstrap_blob *all;

    if (b->transport.allgather == NULL)
        D9D_TRY(connect_ranks(b));
    if (b->transport.allgather == NULL && b->tree != NULL) {
        b->exchanges++;
        return d9di_bootstrap_tree_first(b->tree, b->backend.timeout_s, local, n, a, rank, out);
    }
    all = d9d_arena_alloc(a, (size_t)b->backend.size * sizeof(*all));
    if (all == NULL)
        return D9D_FAIL(D9D_ENOMEM, "bootstrap: out of memory");
    D9D_TRY(d9d_bootstrap_allgather(b, local, n, a, all));
    *rank = -1;
    for (int r = b->backend.size; r-- > 0;)
        if (all[r].n > 0) {
            *rank = r;
            *out = all[r];
        }
    return D9D_OK;
}

/* Truncated so that one all-gather has room for it from all ranks. */
size_t d9di_bootstrap_failure_pack(d9d_status st, const char *node, int size,
                                   d9di_bootstrap_failure *out)
{
    const size_t head = sizeof(out->st), max_bytes = D9DI_BOOTSTRAP_MAX_BYTES / (size_t)size;
    d9d_err_copy err;
    size_t n;

    d9d_err_save(&err, st);
    out->st = (int32_t)st;
    (void)d9d_num_format(out->text, sizeof(out->text), "(%.255s): %s", node, err.text);
    n = strlen(out->text);
    if (head + n > max_bytes)
        n = max_bytes - head;
    while (n > 0 && ((unsigned char)out->text[n] & 0xc0) == 0x80) /* inside a UTF-8 character */
        n--;
    return head + n;
}

static d9d_status failure_to_status(const d9d_bootstrap *b, int rank,
                                    const d9d_bootstrap_blob *blob, d9d_status local)
{
    const d9di_bootstrap_failure *v = blob->data;
    const size_t head = sizeof(v->st);

    if (rank == b->backend.rank)
        return local; /* whose message is this thread's error record already */
    if (blob->n < head || blob->n > sizeof(*v))
        return D9D_FAIL(D9D_ECOMM, "rank %d sent %zu bytes as its status, not %zu to %zu", rank,
                        blob->n, head, sizeof(*v));
    return D9D_FAIL((d9d_status)v->st, "rank %d %.*s", rank, (int)(blob->n - head), v->text);
}

static d9d_status exchange_failures(d9d_bootstrap *b, d9d_status local, d9d_arena *a)
{
    d9di_bootstrap_failure v;
    d9d_bootstrap_blob blob;
    d9d_err_copy own;
    int rank;
    const size_t n = d9di_bootstrap_failure_pack(local, b->backend.node, b->backend.size, &v);

    d9d_err_save(&own, local);
    D9D_TRY(exchange_first(b, &v, local == D9D_OK ? 0 : n, a, &rank, &blob));
    if (rank < 0)
        return D9D_OK;
    b->failure_is_collective = true;
    return failure_to_status(b, rank, &blob, local == D9D_OK ? D9D_OK : d9d_err_restore(&own));
}

#undef d9d_bootstrap_agree_status /* what an analyzer has in its place */
d9d_status d9d_bootstrap_agree_status(d9d_bootstrap *b, d9d_status local)
{
    d9d_arena a = {0};
    d9d_status st;

    if (b->backend.size == 1 || d9d_bootstrap_is_simulated(b))
        return local;
    b->failure_is_collective = false;
    st = exchange_failures(b, local, &a);
    d9d_arena_release(&a);
    b->failure_is_collective = b->failure_is_collective && st != D9D_ECOMM;
    return st;
}

bool d9d_bootstrap_failure_is_collective(const d9d_bootstrap *b)
{
    return b->failure_is_collective;
}

void d9d_bootstrap_clear_failure(d9d_bootstrap *b)
{
    b->failure_is_collective = false;
}

void d9di_bootstrap_set_failure_reported(d9d_bootstrap *b)
{
    b->failure_reported = true;
}

bool d9d_bootstrap_failure_reported(const d9d_bootstrap *b)
{
    return b->failure_reported;
}

void d9d_bootstrap_abort(d9d_bootstrap *b, int code, const char *why)
{
    if (b->backend.abort != NULL)
        b->backend.abort(b->backend.self, code, why);
}
