/* bootstrap_pmix.c - the tasks of a job, through PMIx (version 3 and newer).
 *
 * Observed behaviour of PMIx servers that this file works around:
 *   - a fence without PMIX_COLLECT_DATA is no barrier across the nodes of Slurm 22.05;
 *   - asking for a key that no rank has put takes seconds, so every rank puts one in each exchange;
 *   - after the death of a rank a fence may succeed, fail or never return: any result but success
 *     is final here, and the launcher has to kill the other ranks.
 * Values are freed by hand, because the header's way differs between versions.
 */
#include "comm/bootstrap_private.h"
#include "d9d/base/num_format.h"

#if defined(__has_include)
#if __has_include(<pmix.h>)
#define D9DI_HAVE_PMIX
#endif
#endif

#ifndef D9DI_HAVE_PMIX

d9d_status d9di_bootstrap_pmix(d9di_bootstrap_backend *out)
{
    (void)out;
    return D9D_FAIL(D9D_ENOTSUP,
                    "this build has no PMIx, so it cannot run as one task of several: install "
                    "PMIx's headers (libpmix-dev) and build again");
}

#else

#include <dlfcn.h>
#include <pmix.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct pmix {
    void *library;
    pmix_proc_t me;
    int size;
    unsigned long seq;    /* messages that a rank has published: part of their keys */
    pthread_mutex_t lock; /* protects the state of the pending fence: */
    pthread_cond_t done_cond;
    bool done;
    pmix_status_t result;
    pmix_status_t (*init)(pmix_proc_t *me, pmix_info_t info[], size_t n);
    pmix_status_t (*finalize)(const pmix_info_t info[], size_t n);
    pmix_status_t (*put)(pmix_scope_t scope, const char key[], pmix_value_t *v);
    pmix_status_t (*commit)(void);
    pmix_status_t (*fence)(const pmix_proc_t who[], size_t n, const pmix_info_t info[], size_t k,
                           pmix_op_cbfunc_t done, void *arg);
    pmix_status_t (*get)(const pmix_proc_t *who, const char key[], const pmix_info_t info[],
                         size_t n, pmix_value_t **v);
    pmix_status_t (*abort)(int code, const char why[], pmix_proc_t who[], size_t n);
    const char *(*error)(pmix_status_t rc);
};

/* --- the library ---------------------------------------------------------------------- */

static d9d_status load_library(struct pmix *p)
{
    static const char *const files[] = {"libpmix.so.2", "libpmix.so"};
    const struct {
        const char *name;
        void *slot;
    } calls[] = {
        {"PMIx_Init", &p->init},     {"PMIx_Finalize", &p->finalize},  {"PMIx_Put", &p->put},
        {"PMIx_Commit", &p->commit}, {"PMIx_Fence_nb", &p->fence},     {"PMIx_Get", &p->get},
        {"PMIx_Abort", &p->abort},   {"PMIx_Error_string", &p->error},
    };

    for (int i = 0; i < 2 && p->library == NULL; i++)
        p->library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (p->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "launched as one task of several, but PMIx is missing: %s",
                        dlerror());
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        void *f = dlsym(p->library, calls[i].name);

        if (f == NULL)
            return D9D_FAIL(D9D_ENOTSUP, "%s: has no %s", files[0], calls[i].name);
        memcpy(calls[i].slot, &f, sizeof(f));
    }
    return D9D_OK;
}

static d9d_status fail_call(const struct pmix *p, const char *action, pmix_status_t rc)
{
    return D9D_FAIL(D9D_ECOMM, "PMIx: rank %u cannot %s: %s (%d)", p->me.rank, action, p->error(rc),
                    (int)rc);
}

/* --- values ------------------------------------------------------------------------------ */

static pmix_proc_t make_proc(const struct pmix *p, pmix_rank_t rank)
{
    pmix_proc_t who = p->me;

    who.rank = rank;
    return who;
}

static pmix_info_t bool_info(const char *key)
{
    pmix_info_t info;

    memset(&info, 0, sizeof(info));
    (void)snprintf(info.key, sizeof(info.key), "%s", key);
    info.value.type = PMIX_BOOL;
    info.value.data.flag = true;
    return info;
}

/* A number that the launcher knows of the job; its type differs between launchers. */
static bool get_job_u64(const struct pmix *p, const char *key, uint64_t *out)
{
    const pmix_proc_t job = make_proc(p, PMIX_RANK_WILDCARD);
    const pmix_info_t now = bool_info(PMIX_OPTIONAL);
    pmix_value_t *v = NULL;
    bool known = true;

    if (p->get(&job, key, &now, 1, &v) != PMIX_SUCCESS || v == NULL)
        return false;
    switch (v->type) {
    case PMIX_UINT32: *out = v->data.uint32; break;
    case PMIX_INT: *out = v->data.integer > 0 ? (uint64_t)v->data.integer : 0; break;
    case PMIX_INT32: *out = v->data.int32 > 0 ? (uint64_t)v->data.int32 : 0; break;
    case PMIX_UINT64: *out = v->data.uint64; break;
    case PMIX_SIZE: *out = v->data.size; break;
    default: known = false;
    }
    free(v);
    return known;
}

/* The launcher's name of the node, else the host name. */
static void get_node_name(const struct pmix *p, char *out, size_t n)
{
    const pmix_info_t now = bool_info(PMIX_OPTIONAL);
    pmix_value_t *v = NULL;

    if (gethostname(out, n) != 0)
        (void)snprintf(out, n, "unknown node");
    out[n - 1] = '\0';
    if (p->get(&p->me, PMIX_HOSTNAME, &now, 1, &v) != PMIX_SUCCESS || v == NULL)
        return;
    if (v->type == PMIX_STRING && v->data.string != NULL) {
        (void)snprintf(out, n, "%s", v->data.string);
        free(v->data.string);
    }
    free(v);
}

/* --- messages ------------------------------------------------------------------------ */

/* Called by a thread of the PMIx library. */
static void on_fence_done(pmix_status_t rc, void *arg)
{
    struct pmix *p = arg;

    (void)pthread_mutex_lock(&p->lock);
    p->result = rc;
    p->done = true;
    (void)pthread_cond_signal(&p->done_cond);
    (void)pthread_mutex_unlock(&p->lock);
}

/* A fence with a timeout, which servers do not implement. */
static d9d_status meet(struct pmix *p, double timeout_s)
{
    const pmix_proc_t all = make_proc(p, PMIX_RANK_WILDCARD);
    const pmix_info_t collect = bool_info(PMIX_COLLECT_DATA);
    struct timespec end;
    pmix_status_t rc;
    int late = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += timeout_s > 0 && timeout_s < INT32_MAX ? (time_t)timeout_s : INT32_MAX;
    p->done = false;
    rc = p->fence(&all, 1, &collect, 1, on_fence_done, p);
    (void)pthread_mutex_lock(&p->lock);
    while (rc == PMIX_SUCCESS && !p->done && late == 0)
        late = pthread_cond_timedwait(&p->done_cond, &p->lock, &end);
    late = rc == PMIX_SUCCESS && !p->done;
    rc = p->done ? p->result : rc;
    (void)pthread_mutex_unlock(&p->lock);
    if (late)
        return D9D_FAIL(D9D_ECOMM,
                        "PMIx: rank %u waits since %.0f s for other ranks, of which one at least "
                        "has not started or stands still",
                        p->me.rank, timeout_s);
    return rc == PMIX_SUCCESS
               ? D9D_OK
               : fail_call(p, "meet the other ranks, of which one may have ended", rc);
}

/* Message number `seq` of a rank. */
static void make_key(unsigned long seq, char out[64])
{
    (void)snprintf(out, 64, "d9d.%lu", seq);
}

static d9d_status publish_and_fence(void *self, double timeout_s, const void *local, size_t n)
{
    struct pmix *p = self;
    char key[64];
    pmix_value_t v;
    char *bytes;
    pmix_status_t rc;

    if (n > D9DI_BOOTSTRAP_MAX_BYTES / (size_t)p->size)
        return D9D_FAIL(D9D_EINVAL, "PMIx: a message of %zu bytes from each of %d rank%s", n,
                        p->size, D9D_PLURAL(p->size));
    make_key(p->seq, key);
    bytes = malloc(n + 1); /* one byte more, so that no value is empty: servers drop none */
    if (bytes == NULL)
        return D9D_FAIL(D9D_ENOMEM, "PMIx: out of memory: %zu bytes requested", n);
    if (n > 0)
        memcpy(bytes, local, n);
    bytes[n] = 0;
    memset(&v, 0, sizeof(v));
    v.type = PMIX_BYTE_OBJECT;
    v.data.bo.bytes = bytes;
    v.data.bo.size = n + 1;
    rc = p->put(PMIX_GLOBAL, key, &v); /* copies */
    free(bytes);
    if (rc != PMIX_SUCCESS)
        return fail_call(p, "give its message", rc);
    rc = p->commit();
    if (rc != PMIX_SUCCESS)
        return fail_call(p, "send its message", rc);
    D9D_TRY(meet(p, timeout_s));
    p->seq++;
    return D9D_OK;
}

static d9d_status get_message(void *self, int rank, d9d_arena *a, d9d_bootstrap_blob *out)
{
    struct pmix *p = self;
    const pmix_proc_t who = make_proc(p, (pmix_rank_t)rank);
    pmix_value_t *v = NULL;
    d9d_status st = D9D_OK;
    char action[64], key[64], *copy;
    pmix_status_t rc;

    make_key(p->seq - 1, key);
    rc = p->get(&who, key, NULL, 0, &v);
    (void)snprintf(action, sizeof(action), "read the message of rank %d", rank);
    if (rc != PMIX_SUCCESS || v == NULL)
        return fail_call(p, action, rc);
    if (v->type != PMIX_BYTE_OBJECT || v->data.bo.size < 1) {
        st = D9D_FAIL(D9D_ECOMM, "PMIx: rank %d gave a message of another type", rank);
        free(v);
        return st;
    }
    copy = d9d_arena_alloc(a, v->data.bo.size);
    if (copy == NULL)
        st = D9D_FAIL(D9D_ENOMEM, "PMIx: out of memory: %zu bytes requested", v->data.bo.size);
    else
        *out = (d9d_bootstrap_blob){memcpy(copy, v->data.bo.bytes, v->data.bo.size),
                                    v->data.bo.size - 1};
    free(v->data.bo.bytes);
    free(v);
    return st;
}

/* --- joining and leaving ---------------------------------------------------------------------- */

static void abort_job(void *self, int code, const char *why)
{
    const struct timespec a_while = {.tv_sec = 2};
    struct pmix *p = self;

    (void)p->abort(code, why, NULL, 0);
    (void)nanosleep(&a_while, NULL); /* wait to be killed: servers have crashed or hung when tasks
                                        disconnect during an abort */
}

static void finalize_client(void *self)
{
    struct pmix *p = self;

    (void)p->finalize(NULL, 0);
    /* The library stays loaded: its threads may still be running. */
    free(p);
}

static d9d_status init_client(struct pmix *p, d9di_bootstrap_backend *out)
{
    uint64_t size = 0, on_node;
    pmix_status_t rc = p->init(&p->me, NULL, 0);

    if (rc != PMIX_SUCCESS)
        return D9D_FAIL(D9D_ECOMM,
                        "PMIx: the launcher's server does not answer: %s (%d); where this is not "
                        "one of its tasks, take PMIX_RANK and PMIX_NAMESPACE out of the "
                        "environment",
                        p->error(rc), (int)rc);
    if (!get_job_u64(p, PMIX_JOB_SIZE, &size) || size < 1 || size > INT32_MAX ||
        p->me.rank >= size) {
        (void)p->finalize(NULL, 0);
        return D9D_FAIL(D9D_ECOMM,
                        "PMIx: rank %u of %llu tasks: the launcher has forgotten how many there "
                        "are; a second program of one launch needs a launch of its own",
                        p->me.rank, (unsigned long long)size);
    }
    p->size = (int)size;
    out->rank = (int)p->me.rank;
    out->size = p->size;
    out->one_node = get_job_u64(p, PMIX_LOCAL_SIZE, &on_node) && on_node == size;
    get_node_name(p, out->node, sizeof(out->node));
    return D9D_OK;
}

d9d_status d9di_bootstrap_pmix(d9di_bootstrap_backend *out)
{
    struct pmix *p = calloc(1, sizeof(*p));
    pthread_condattr_t clock;
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "PMIx: out of memory");
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&p->done_cond, &clock);
    (void)pthread_condattr_destroy(&clock);
    *out = (d9di_bootstrap_backend){.self = p,
                                    .publish = publish_and_fence,
                                    .get = get_message,
                                    .abort = abort_job,
                                    .close = finalize_client};
    st = load_library(p);
    if (st == D9D_OK)
        st = init_client(p, out);
    if (st != D9D_OK)
        free(p);
    return st;
}

#endif
