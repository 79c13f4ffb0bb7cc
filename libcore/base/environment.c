/* environment.c - the table of environment variables.  See d9d/base/environment.h. */
#include "d9d/base/environment.h"
#include "d9d/base/num_format.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* libgomp keeps a record for each thread on the stack of the thread that starts them: some 80,000
 * threads use up 8 MiB. */
#define MAX_THREADS     4096

#define MAX_CONNECTIONS 32 /* of a GPU */

/* True if the row applies to this value. */
typedef bool predicate_fn(const char *value);

typedef struct env_rule {
    const char *name;
    unsigned use;
    d9d_environment_action act;
    predicate_fn *judge;
    const char *set;  /* CHANGED: the new value, also if the variable is not set */
    const char *keep; /* CHANGED: a variable of d9d, from 1 to MAX_CONNECTIONS, that is preferred */
    const char *why;
} env_rule;

/* --- values ----------------------------------------------------------------------------------- */

/* The number that is the whole text, except for spaces; -1 if it is none. */
static long parse_number(const char *text)
{
    char *end;
    long n;

    while (isspace((unsigned char)*text))
        text++;
    n = strtol(text, &end, 10);
    if (end == text || n < 0)
        return -1;
    while (isspace((unsigned char)*end))
        end++;
    return *end == '\0' || *end == ',' ? n : -1;
}

/* A list of numbers has one for each level of nested threads. */
static bool has_too_many(const char *v)
{
    for (; v != NULL; v = strchr(v, ',') != NULL ? strchr(v, ',') + 1 : NULL)
        if (parse_number(v) > MAX_THREADS)
            return true;
    return false;
}

static bool is_not_empty(const char *v)
{
    return v[0] != '\0';
}
static bool is_on(const char *v)
{
    return is_not_empty(v) && strcmp(v, "0") != 0;
}
static bool is_off(const char *v)
{
    return strcmp(v, "0") == 0;
}
static bool is_not_32(const char *v)
{
    return parse_number(v) != 32;
}
static bool is_below_8(const char *v)
{
    return parse_number(v) < 8;
}
static bool is_below_100(const char *v)
{
    return is_not_empty(v) && atof(v) < 100;
}

static bool is_no_p2p(const char *v)
{
    return is_not_empty(v) && strcmp(v, "off") != 0 && strcmp(v, "auto") != 0 &&
           strcmp(v, "force") != 0;
}

/* Values that a job without GPUs gets: empty, a number that no GPU has, or a word of Slurm's. */
static bool hides_all_gpus(const char *v)
{
    return v[0] == '\0' || v[0] == '-' || strcmp(v, "NoDevFiles") == 0;
}

static const env_rule env_rules[] = {
    {"OMP_NUM_THREADS", D9D_ENVIRONMENT_PROCESS, D9D_ENVIRONMENT_REFUSED, has_too_many, NULL, NULL,
     "at most 4096 threads compute"},
    {"D9D_P2P", D9D_ENVIRONMENT_PROCESS, D9D_ENVIRONMENT_REFUSED, is_no_p2p, NULL, NULL,
     "it is off, auto or force"},
    {"D9D_COMM_SHARE", D9D_ENVIRONMENT_RANKS, D9D_ENVIRONMENT_KEPT, is_not_empty, NULL, NULL,
     "it is now called D9D_P2P, with off for 0 and force for 1"},

    /* Streams that share a hardware queue wait for each other, and one that waits for a message
     * must not block what the message waits for. Each queue takes 17 ms of a process's start. */
    {"CUDA_DEVICE_MAX_CONNECTIONS", D9D_ENVIRONMENT_GPU_ALONE, D9D_ENVIRONMENT_CHANGED, is_below_8,
     "8", "D9D_CUDA_MAX_CONNECTIONS",
     "copies and computation would wait for each other in one hardware queue; 8 is used in its "
     "place (D9D_CUDA_MAX_CONNECTIONS sets another number)"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", D9D_ENVIRONMENT_GPU_RANKS, D9D_ENVIRONMENT_CHANGED, is_not_32,
     "32", "D9D_CUDA_MAX_CONNECTIONS",
     "communication and computation would wait for each other in one hardware queue; 32 is used in "
     "its place (D9D_CUDA_MAX_CONNECTIONS sets another number)"},
    {"CUDA_LAUNCH_BLOCKING", D9D_ENVIRONMENT_GPU, D9D_ENVIRONMENT_KEPT, is_on, NULL, NULL,
     "every kernel launch waits for the kernel, so that nothing overlaps"},
    {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", D9D_ENVIRONMENT_GPU, D9D_ENVIRONMENT_KEPT, is_below_100,
     NULL, NULL, "only that share of each GPU's multiprocessors computes"},
    {"NVIDIA_TF32_OVERRIDE", D9D_ENVIRONMENT_GPU, D9D_ENVIRONMENT_KEPT, is_not_empty, NULL, NULL,
     "it decides, and not the job, how NVIDIA's libraries round float32 GEMMs"},
    {"CUBLAS_EMULATE_SINGLE_PRECISION", D9D_ENVIRONMENT_GPU, D9D_ENVIRONMENT_KEPT, is_on, NULL,
     NULL, "float32 GEMMs are computed in a narrower type, with other bits"},

    {"CUDA_VISIBLE_DEVICES", D9D_ENVIRONMENT_NO_GPU, D9D_ENVIRONMENT_KEPT, hides_all_gpus, NULL,
     NULL, "every GPU is hidden, and this job computes on processors"},

    {"NCCL_COMM_BLOCKING", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_CHANGED, is_off, "1", NULL,
     "calls would return before they are enqueued; 1 is used in its place"},
    /* NVLink SHARP multicast is one more way to hang, and is not needed for the speed. */
    {"NCCL_NVLS_ENABLE", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_CHANGED, NULL, "0", NULL, NULL},
    {"NCCL_P2P_DISABLE", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_KEPT, is_on, NULL, NULL,
     "messages between GPUs of one host go through the host's memory"},
    {"NCCL_SHM_DISABLE", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_KEPT, is_on, NULL, NULL,
     "messages within a host may go through the network"},
    {"NCCL_IB_DISABLE", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_KEPT, is_on, NULL, NULL,
     "messages between hosts go through sockets"},
    {"NCCL_ALGO", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_KEPT, is_not_empty, NULL, NULL,
     "it decides the order in which ranks are reduced, and with that the bits of sums"},
    {"NCCL_PROTO", D9D_ENVIRONMENT_NCCL, D9D_ENVIRONMENT_KEPT, is_not_empty, NULL, NULL,
     "it decides how messages go, whatever is fastest"},

    /* Ranks that share a core must not spin while they wait. */
    {"OMPI_MCA_mpi_yield_when_idle", D9D_ENVIRONMENT_MPI, D9D_ENVIRONMENT_CHANGED, NULL, "1", NULL,
     NULL},
};

enum { N_RULES = sizeof(env_rules) / sizeof(env_rules[0]) };
_Static_assert(N_RULES <= sizeof(((d9d_environment *)0)->vars) / sizeof(d9d_environment_var),
               "every row has a place");

/* --- decisions -------------------------------------------------------------------------------- */

/* A user's own setting takes precedence over the site's. */
static void apply_user_value(const env_rule *r, const char *wish, d9d_environment_var *out)
{
    const long n = parse_number(wish);

    if (n >= 1 && n <= MAX_CONNECTIONS) {
        (void)snprintf(out->value, sizeof(out->value), "%ld", n);
        return;
    }
    out->action = D9D_ENVIRONMENT_REFUSED;
    (void)d9d_num_format(out->text, sizeof(out->text),
                         "%s is \"%.64s\", which is no number from 1 to %d", r->keep, wish,
                         MAX_CONNECTIONS);
}

/* A row without a predicate is a default: it gives way to any value that is set. */
static bool apply_rule(const env_rule *r, char *(*get)(const char *), d9d_environment_var *out)
{
    const char *value = get(r->name), *wish = r->keep != NULL ? get(r->keep) : NULL;
    const bool bad = value != NULL && r->judge != NULL && r->judge(value);

    if (wish == NULL && !bad && (value != NULL || r->act != D9D_ENVIRONMENT_CHANGED))
        return false;
    *out = (d9d_environment_var){.use = r->use, .action = r->act, .name = r->name};
    if (wish != NULL) {
        apply_user_value(r, wish, out);
        return true;
    }
    if (r->act == D9D_ENVIRONMENT_CHANGED)
        (void)snprintf(out->value, sizeof(out->value), "%s", r->set);
    if (bad)
        (void)d9d_num_format(out->text, sizeof(out->text), "%s is \"%.64s\" in the environment: %s",
                             r->name, value, r->why);
    return true;
}

void d9d_environment_read(unsigned uses, char *(*get)(const char *name), d9d_environment *out)
{
    *out = (d9d_environment){.n = 0};
    for (size_t i = 0; i < N_RULES; i++)
        if ((env_rules[i].use & uses) != 0 && apply_rule(&env_rules[i], get, &out->vars[out->n]))
            out->n++;
}

d9d_status d9d_environment_check(const d9d_environment *e)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->vars[i].action == D9D_ENVIRONMENT_REFUSED)
            return D9D_FAIL(D9D_ECONFIG, "%s", e->vars[i].text);
    return D9D_OK;
}

void d9d_environment_apply(const d9d_environment *e)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->vars[i].action == D9D_ENVIRONMENT_CHANGED)
            (void)setenv(e->vars[i].name, e->vars[i].value, 1);
}

void d9d_environment_log(const d9d_environment *e, unsigned uses, const d9d_log *log)
{
    for (size_t i = 0; i < e->n; i++)
        if ((e->vars[i].use & uses) != 0 && e->vars[i].action != D9D_ENVIRONMENT_REFUSED &&
            e->vars[i].text[0] != '\0')
            d9d_log_warn(log, "%s", e->vars[i].text);
}
