/* bootstrap.c - see d9d/comm/bootstrap.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/bootstrap_private.h"
#include "d9d/base/thread.h"

struct d9d_boot {
    d9di_boot_wire wire; /* without functions in a world of one */
    bool agreed;         /* on a failure */
    bool hushed;
    d9di_boot_carrier carrier;
};

/* --- the launch -------------------------------------------------------------------- */

/* What launchers put into the environment of a task: how many there are, and which one it is.  The
 * innermost comes first: mpirun starts its daemons through srun.  The last names are of anybody's
 * scripts too, who rarely set both. */
static const struct {
    const char *count, *rank, *launcher, *advice;
    bool both; /* one of the two says nothing */
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

/* A variable, or NULL: one that is empty was meant to be taken away. */
static const char *variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* -1: no number from 0 to 2^31. */
static int64_t number(const char *text)
{
    char *end = NULL;
    const long long n = text != NULL ? strtoll(text, &end, 10) : -1;

    return text != NULL && *end == '\0' && n >= 0 && n <= INT32_MAX ? n : -1;
}

static void be_one(d9di_boot_wire *out)
{
    *out = (d9di_boot_wire){.rank = 0, .size = 1};
    if (gethostname(out->node, sizeof(out->node) - 1) != 0)
        (void)snprintf(out->node, sizeof(out->node), "localhost");
}

/* The launcher of this task by its environment; N_LAUNCHERS: none. */
static size_t find_launcher(const char **count, const char **rank)
{
    size_t i;

    for (i = 0; i < N_LAUNCHERS; i++) {
        *count = variable(launchers[i].count);
        *rank = variable(launchers[i].rank);
        if ((*count == NULL && (*rank == NULL || number(*rank) == 0)) ||
            (launchers[i].both && (*count == NULL || *rank == NULL)))
            continue; /* rank 0 of nothing is what Slurm's batch scripts are */
        break;
    }
    return i;
}

/* Of a task that PMIx is not told of. */
static d9d_status be_alone(d9di_boot_wire *out)
{
    const char *count, *rank;
    const size_t i = find_launcher(&count, &rank);

    if (i < N_LAUNCHERS && number(count) > 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s launched %" PRId64 " tasks without PMIx, so that they cannot find "
                        "each other: %s",
                        launchers[i].launcher, number(count), launchers[i].advice);
    if (i < N_LAUNCHERS && (number(count) != 1 || (rank != NULL && number(rank) != 0)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s is \"%.40s\" and %s is \"%.40s\": a launch by %s that is not "
                        "understood: %s",
                        launchers[i].count, count != NULL ? count : "", launchers[i].rank,
                        rank != NULL ? rank : "", launchers[i].launcher, launchers[i].advice);
    be_one(out);
    return D9D_OK;
}

bool d9d_boot_follows(void)
{
    const char *count, *rank;

    return find_launcher(&count, &rank) < N_LAUNCHERS && number(rank) > 0 &&
           number(rank) < number(count);
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
static d9d_status echo(void *self, double patience_s, const void *mine, size_t n, d9d_arena *a,
                       d9d_boot_word *all)
{
    const d9d_boot *b = self;
    char *copy = d9d_arena_alloc(a, n + 1);

    (void)patience_s;
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
    d9d_heard before;
    d9d_status st;

    d9d_thread_deaf_begin(&before);
    st = d9di_boot_pmix(out);
    d9d_thread_deaf_end(&before);
    return st;
}

d9d_status d9d_boot_open(d9d_boot **out)
{
    d9d_boot *b = calloc(1, sizeof(*b));
    d9d_status st;

    if (b == NULL)
        return D9D_FAIL(D9D_ENOMEM, "boot: out of memory");
    st = variable("PMIX_RANK") != NULL || variable("PMIX_NAMESPACE") != NULL ? join_others(&b->wire)
                                                                             : be_alone(&b->wire);
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

double d9d_boot_patience(d9d_boot *b, double seconds)
{
    const double was = b->wire.patience_s;

    b->wire.patience_s = seconds;
    return was;
}

/* --- exchanging ---------------------------------------------------------------------- */

void d9di_boot_carry(d9d_boot *b, const d9di_boot_carrier *by)
{
    b->carrier = by != NULL ? *by : (d9di_boot_carrier){0};
}

size_t d9d_boot_most(const d9d_boot *b)
{
    return D9DI_BOOT_MOST / (size_t)b->wire.size;
}

d9d_status d9d_boot_gather(d9d_boot *b, const void *mine, size_t n, d9d_arena *a,
                           d9d_boot_word *all)
{
    char *copy;

    if (b->carrier.gather != NULL)
        return b->carrier.gather(b->carrier.self, mine, n, a, all);
    if (b->wire.gather != NULL)
        return b->wire.gather(b->wire.self, b->wire.patience_s, mine, n, a, all);
    copy = d9d_arena_alloc(a, n + 1);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "boot: out of memory");
    if (n > 0)
        memcpy(copy, mine, n);
    all[0] = (d9d_boot_word){copy, n};
    return D9D_OK;
}

/* No longer than what is left of one gather when all ranks say as much. */
size_t d9di_verdict_make(d9d_status st, const char *node, int size, d9di_verdict *out)
{
    const size_t head = sizeof(out->st), most = D9DI_BOOT_MOST / (size_t)size;
    d9d_err_copy said;
    size_t n;

    d9d_err_save(&said, st);
    out->st = (int32_t)st;
    (void)snprintf(out->text, sizeof(out->text), "(%.255s): %s", node, said.text);
    n = strlen(out->text);
    if (head + n > most)
        n = most - head;
    while (n > 0 && ((unsigned char)out->text[n] & 0xc0) == 0x80) /* within a character */
        n--;
    return head + n;
}

static d9d_status give_verdict(const d9d_boot *b, int rank, const d9d_boot_word *word,
                               d9d_status mine)
{
    const d9di_verdict *v = word->data;
    const size_t head = sizeof(v->st);

    if (rank == b->wire.rank)
        return mine; /* whose sentence is this thread's record already */
    if (word->n < head || word->n > sizeof(*v))
        return D9D_FAIL(D9D_ECOMM, "rank %d sent %zu bytes as its status, not %zu to %zu", rank,
                        word->n, head, sizeof(*v));
    return D9D_FAIL((d9d_status)v->st, "rank %d %.*s", rank, (int)(word->n - head), v->text);
}

static d9d_status say_verdict(d9d_boot *b, d9d_status mine, d9d_arena *a, d9d_boot_word *all)
{
    d9di_verdict v;
    d9d_err_copy first;
    const size_t n = d9di_verdict_make(mine, b->wire.node, b->wire.size, &v);

    d9d_err_save(&first, mine);
    D9D_TRY(d9d_boot_gather(b, &v, mine == D9D_OK ? 0 : n, a, all));
    for (int r = 0; r < b->wire.size; r++)
        if (all[r].n > 0) {
            b->agreed = true;
            return give_verdict(b, r, &all[r], mine == D9D_OK ? D9D_OK : d9d_err_restore(&first));
        }
    return D9D_OK;
}

d9d_status d9d_boot_agree(d9d_boot *b, d9d_status mine)
{
    d9d_boot_word *all;
    d9d_arena a = {0};
    d9d_status st;

    if (b->wire.size == 1 || d9d_boot_is_imagined(b))
        return mine;
    b->agreed = false;
    all = d9d_arena_alloc(&a, (size_t)b->wire.size * sizeof(*all));
    st = all == NULL ? D9D_FAIL(D9D_ENOMEM, "boot: out of memory") : say_verdict(b, mine, &a, all);
    d9d_arena_release(&a);
    b->agreed = b->agreed && st != D9D_ECOMM;
    return st;
}

bool d9d_boot_agreed(const d9d_boot *b)
{
    return b->agreed;
}

void d9d_boot_forgive(d9d_boot *b)
{
    b->agreed = false;
}

void d9di_boot_hush(d9d_boot *b)
{
    b->hushed = true;
}

bool d9d_boot_hushed(const d9d_boot *b)
{
    return b->hushed;
}

void d9d_boot_abort(d9d_boot *b, int code, const char *why)
{
    if (b->wire.abort != NULL)
        b->wire.abort(b->wire.self, code, why);
}
