/* boot.c - see d9d/dist/boot.h. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dist/boot_private.h"

struct d9d_boot {
    d9di_boot_wire wire; /* without functions in a world of one */
    bool agreed;         /* on a failure */
    d9di_boot_carrier carrier;
};

/* --- the launch -------------------------------------------------------------------- */

/* What launchers put into the environment of a task: how many there are.  The innermost comes
 * first: mpirun starts its daemons through srun. */
static const struct {
    const char *count, *launcher, *advice;
} launchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "mpirun", "use the mpirun of Open MPI 4 or 5"},
    {"PMI_SIZE", "a PMI launcher", "use srun --mpi=pmix, or the mpirun of Open MPI"},
    {"SLURM_STEP_NUM_TASKS", "srun", "add --mpi=pmix"},
};

/* The launcher of this process, and how many tasks it has: 1 and NULL without any. */
static int64_t find_launcher(const char **launcher, const char **advice)
{
    *launcher = *advice = NULL;
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const char *text = getenv(launchers[i].count);
        long long n = text != NULL ? strtoll(text, NULL, 10) : 0;

        if (n < 1)
            continue;
        *launcher = launchers[i].launcher;
        *advice = launchers[i].advice;
        return n;
    }
    return 1;
}

int64_t d9d_boot_launched(void)
{
    const char *launcher, *advice;

    return find_launcher(&launcher, &advice);
}

static void be_one(d9di_boot_wire *out)
{
    *out = (d9di_boot_wire){.rank = 0, .size = 1};
    if (gethostname(out->node, sizeof(out->node) - 1) != 0)
        (void)snprintf(out->node, sizeof(out->node), "localhost");
}

/* Of a task that PMIx is not told of. */
static d9d_status be_alone(d9di_boot_wire *out)
{
    const char *launcher, *advice;
    int64_t n = find_launcher(&launcher, &advice);

    if (n > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s launched %" PRId64 " tasks without PMIx, so that they cannot find each "
                        "other: %s",
                        launcher, n, advice);
    be_one(out);
    return D9D_OK;
}

d9d_status d9d_boot_alone(d9d_boot **out)
{
    d9d_boot *b = calloc(1, sizeof(*b));

    if (b == NULL)
        return D9D_FAIL(D9D_ENOMEM, "boot: out of memory");
    be_one(&b->wire);
    *out = b;
    return D9D_OK;
}

/* Every rank says what this one does. */
static d9d_status echo(void *self, const void *mine, size_t n, d9d_arena *a, d9d_boot_word *all)
{
    const d9d_boot *b = self;
    char *copy = d9d_arena_alloc(a, n + 1);

    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "boot: out of memory");
    if (n > 0)
        memcpy(copy, mine, n);
    for (int r = 0; r < b->wire.size; r++)
        all[r] = (d9d_boot_word){copy, n};
    return D9D_OK;
}

d9d_status d9d_boot_imagine(int rank, int size, d9d_boot **out)
{
    D9D_TRY(d9d_boot_alone(out));
    (*out)->wire.self = *out;
    (*out)->wire.rank = rank;
    (*out)->wire.size = size;
    (*out)->wire.gather = echo;
    return D9D_OK;
}

bool d9d_boot_is_imagined(const d9d_boot *b)
{
    return b->wire.gather == echo;
}

/* Threads of the launcher's library get no signal that is for the thread which opens. */
static d9d_status join_others(d9di_boot_wire *out)
{
    sigset_t all, old;
    d9d_status st;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    st = d9di_boot_pmix(out);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return st;
}

d9d_status d9d_boot_open(d9d_boot **out)
{
    d9d_boot *b = calloc(1, sizeof(*b));
    d9d_status st;

    if (b == NULL)
        return D9D_FAIL(D9D_ENOMEM, "boot: out of memory");
    st = getenv("PMIX_RANK") != NULL ? join_others(&b->wire) : be_alone(&b->wire);
    if (st == D9D_OK)
        *out = b;
    else
        free(b);
    return st;
}

void d9d_boot_close(d9d_boot *b)
{
    if (b == NULL)
        return;
    if (b->wire.close != NULL)
        b->wire.close(b->wire.self);
    free(b);
}

int d9d_boot_rank(const d9d_boot *b)
{
    return b->wire.rank;
}
int d9d_boot_size(const d9d_boot *b)
{
    return b->wire.size;
}
const char *d9d_boot_node(const d9d_boot *b)
{
    return b->wire.node;
}

/* --- exchanging ---------------------------------------------------------------------- */

void d9di_boot_carry(d9d_boot *b, const d9di_boot_carrier *by)
{
    b->carrier = by != NULL ? *by : (d9di_boot_carrier){0};
}

d9d_status d9d_boot_gather(d9d_boot *b, const void *mine, size_t n, d9d_arena *a,
                           d9d_boot_word *all)
{
    char *copy;

    if (b->carrier.gather != NULL)
        return b->carrier.gather(b->carrier.self, mine, n, a, all);
    if (b->wire.gather != NULL)
        return b->wire.gather(b->wire.self, mine, n, a, all);
    copy = d9d_arena_alloc(a, n + 1);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "boot: out of memory");
    if (n > 0)
        memcpy(copy, mine, n);
    all[0] = (d9d_boot_word){copy, n};
    return D9D_OK;
}

/* What a rank says of itself: a failure with its sentence, or nothing. */
struct verdict {
    int32_t st;
    char node[sizeof(((d9di_boot_wire *)0)->node)];
    char text[sizeof(((d9d_err_copy *)0)->text)];
};

static d9d_status give_verdict(const d9d_boot *b, int rank, const d9d_boot_word *word,
                               d9d_status mine)
{
    const struct verdict *v = word->data;

    if (rank == b->wire.rank)
        return mine; /* whose sentence is this thread's record already */
    if (word->n != sizeof(*v))
        return D9D_FAIL(D9D_ECOMM, "rank %d sent %zu bytes as its status, not %zu", rank, word->n,
                        sizeof(*v));
    return D9D_FAIL((d9d_status)v->st, "rank %d (%.255s): %.2047s", rank, v->node, v->text);
}

static d9d_status say_verdict(d9d_boot *b, d9d_status mine, d9d_arena *a, d9d_boot_word *all)
{
    struct verdict v = {.st = (int32_t)mine};
    d9d_err_copy first;

    d9d_err_save(&first, mine);
    (void)snprintf(v.node, sizeof(v.node), "%s", b->wire.node);
    (void)snprintf(v.text, sizeof(v.text), "%s", first.text);
    D9D_TRY(d9d_boot_gather(b, &v, mine == D9D_OK ? 0 : sizeof(v), a, all));
    for (int r = 0; r < b->wire.size; r++)
        if (all[r].n > 0)
            return give_verdict(b, r, &all[r], mine == D9D_OK ? D9D_OK : d9d_err_restore(&first));
    return D9D_OK;
}

d9d_status d9d_boot_agree(d9d_boot *b, d9d_status mine)
{
    d9d_boot_word *all;
    d9d_arena a = {0};
    d9d_status st;

    if (b->wire.size == 1 || d9d_boot_is_imagined(b))
        return mine;
    all = d9d_arena_alloc(&a, (size_t)b->wire.size * sizeof(*all));
    st = all == NULL ? D9D_FAIL(D9D_ENOMEM, "boot: out of memory") : say_verdict(b, mine, &a, all);
    d9d_arena_release(&a);
    b->agreed = st != D9D_OK && st != D9D_ECOMM;
    return st;
}

bool d9d_boot_agreed(const d9d_boot *b)
{
    return b->agreed;
}

void d9d_boot_abort(d9d_boot *b, int code, const char *why)
{
    if (b->wire.abort != NULL)
        b->wire.abort(b->wire.self, code, why);
}
