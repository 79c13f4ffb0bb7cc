/* Variables that sites export for other programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "d9d/base/environment.h"

#define CONNECTIONS "CUDA_DEVICE_MAX_CONNECTIONS"
#define GPU         D9D_ENVIRONMENT_GPU
#define RANKS       D9D_ENVIRONMENT_GPU_RANKS
#define ALONE       D9D_ENVIRONMENT_GPU_ALONE

/* A case: one or two variables, and the result for the first. */
static const struct value {
    unsigned use;
    const char *name, *text; /* NULL: not set */
    const char *wish;        /* of D9D_CUDA_MAX_CONNECTIONS */
    bool ruled;
    d9d_environment_action act;
    const char *becomes, *says; /* message; NULL: none */
} values[] = {
    {RANKS, CONNECTIONS, NULL, NULL, true, D9D_ENVIRONMENT_CHANGED, "32", NULL},
    {RANKS, CONNECTIONS, "32", NULL, false, 0, NULL, NULL},
    {RANKS, CONNECTIONS, "1", NULL, true, D9D_ENVIRONMENT_CHANGED, "32", "is \"1\""},
    {RANKS, CONNECTIONS, "8", NULL, true, D9D_ENVIRONMENT_CHANGED, "32", "32 is used"},
    {RANKS, CONNECTIONS, "", NULL, true, D9D_ENVIRONMENT_CHANGED, "32", "is \"\""},
    {RANKS, CONNECTIONS, "many", NULL, true, D9D_ENVIRONMENT_CHANGED, "32", "is \"many\""},
    {RANKS, CONNECTIONS, "1", "1", true, D9D_ENVIRONMENT_CHANGED, "1", NULL},
    {RANKS, CONNECTIONS, NULL, "8", true, D9D_ENVIRONMENT_CHANGED, "8", NULL},
    {RANKS, CONNECTIONS, "32", "4", true, D9D_ENVIRONMENT_CHANGED, "4", NULL},
    {RANKS, CONNECTIONS, "1", "33", true, D9D_ENVIRONMENT_REFUSED, NULL, "from 1 to 32"},
    {RANKS, CONNECTIONS, "1", "few", true, D9D_ENVIRONMENT_REFUSED, NULL, "\"few\""},
    {ALONE, CONNECTIONS, NULL, NULL, true, D9D_ENVIRONMENT_CHANGED, "8", NULL},
    {ALONE, CONNECTIONS, "32", NULL, false, 0, NULL, NULL},
    {ALONE, CONNECTIONS, "1", NULL, true, D9D_ENVIRONMENT_CHANGED, "8", "8 is used"},
    {ALONE, CONNECTIONS, "1", "1", true, D9D_ENVIRONMENT_CHANGED, "1", NULL},
    {ALONE, CONNECTIONS, NULL, "32", true, D9D_ENVIRONMENT_CHANGED, "32", NULL},
    {ALONE, CONNECTIONS, "8", "33", true, D9D_ENVIRONMENT_REFUSED, NULL, "from 1 to 32"},
    {GPU, "CUDA_LAUNCH_BLOCKING", "1", NULL, true, D9D_ENVIRONMENT_KEPT, NULL,
     "every kernel launch waits"},
    {GPU, "CUDA_LAUNCH_BLOCKING", "0", NULL, false, 0, NULL, NULL},
    {GPU, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50", NULL, true, D9D_ENVIRONMENT_KEPT, NULL,
     "share"},
    {GPU, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100", NULL, false, 0, NULL, NULL},
    {GPU, "NVIDIA_TF32_OVERRIDE", "0", NULL, true, D9D_ENVIRONMENT_KEPT, NULL, "float32"},
    {D9D_ENVIRONMENT_NO_GPU, "CUDA_VISIBLE_DEVICES", "", NULL, true, D9D_ENVIRONMENT_KEPT, NULL,
     "hidden"},
    {D9D_ENVIRONMENT_NO_GPU, "CUDA_VISIBLE_DEVICES", "-1", NULL, true, D9D_ENVIRONMENT_KEPT, NULL,
     "hidden"},
    {D9D_ENVIRONMENT_NO_GPU, "CUDA_VISIBLE_DEVICES", "NoDevFiles", NULL, true, D9D_ENVIRONMENT_KEPT,
     NULL, "hidden"},
    {D9D_ENVIRONMENT_NO_GPU, "CUDA_VISIBLE_DEVICES", "0,1", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_NO_GPU, "CUDA_VISIBLE_DEVICES", "GPU-8932f937", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_NO_GPU, "CUDA_VISIBLE_DEVICES", NULL, NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_NCCL, "NCCL_COMM_BLOCKING", "0", NULL, true, D9D_ENVIRONMENT_CHANGED, "1",
     "1 is used"},
    {D9D_ENVIRONMENT_NCCL, "NCCL_COMM_BLOCKING", "1", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_NCCL, "NCCL_NVLS_ENABLE", NULL, NULL, true, D9D_ENVIRONMENT_CHANGED, "0",
     NULL},
    {D9D_ENVIRONMENT_NCCL, "NCCL_NVLS_ENABLE", "1", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_NCCL, "NCCL_ALGO", "Tree", NULL, true, D9D_ENVIRONMENT_KEPT, NULL, "bits"},
    {D9D_ENVIRONMENT_NCCL, "NCCL_P2P_DISABLE", "1", NULL, true, D9D_ENVIRONMENT_KEPT, NULL,
     "host's memory"},
    {D9D_ENVIRONMENT_MPI, "OMPI_MCA_mpi_yield_when_idle", NULL, NULL, true, D9D_ENVIRONMENT_CHANGED,
     "1", NULL},
    {D9D_ENVIRONMENT_MPI, "OMPI_MCA_mpi_yield_when_idle", "0", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_PROCESS, "D9D_P2P", "force", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_PROCESS, "D9D_P2P", "1", NULL, true, D9D_ENVIRONMENT_REFUSED, NULL,
     "off, auto or force"},
    {D9D_ENVIRONMENT_RANKS, "D9D_COMM_SHARE", "0", NULL, true, D9D_ENVIRONMENT_KEPT, NULL,
     "it is now called D9D_P2P"},
    {D9D_ENVIRONMENT_PROCESS, "OMP_NUM_THREADS", "4096", NULL, false, 0, NULL, NULL},
    {D9D_ENVIRONMENT_PROCESS, "OMP_NUM_THREADS", "4097", NULL, true, D9D_ENVIRONMENT_REFUSED, NULL,
     "\"4097\" in the environment: at most 4096"},
    {D9D_ENVIRONMENT_PROCESS, "OMP_NUM_THREADS", " 100000 ", NULL, true, D9D_ENVIRONMENT_REFUSED,
     NULL, "OMP_NUM_THREADS"},
    {D9D_ENVIRONMENT_PROCESS, "OMP_NUM_THREADS", "2,100000", NULL, true, D9D_ENVIRONMENT_REFUSED,
     NULL, "OMP_NUM_THREADS"},
    {D9D_ENVIRONMENT_PROCESS, "OMP_NUM_THREADS", "99999999999999999999", NULL, true,
     D9D_ENVIRONMENT_REFUSED, NULL, "OMP_NUM_THREADS"},
    {D9D_ENVIRONMENT_PROCESS, "OMP_NUM_THREADS", "8,4", NULL, false, 0, NULL, NULL},
};

static void put(const char *name, const char *text)
{
    assert_int_equal(text != NULL ? setenv(name, text, 1) : unsetenv(name), 0);
}

static const d9d_environment_var *find(const d9d_environment *e, const char *name)
{
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->vars[i].name, name) == 0)
            return &e->vars[i];
    return NULL;
}

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        const struct value *v = &values[i];
        const d9d_environment_var *r;
        d9d_environment e;

        put("D9D_CUDA_MAX_CONNECTIONS", v->wish);
        put(v->name, v->text);
        d9d_environment_read(v->use, getenv, &e);
        r = find(&e, v->name);
        put(v->name, NULL);
        if (!v->ruled) {
            assert_null(r);
            continue;
        }
        assert_non_null(r);
        assert_int_equal(r->action, v->act);
        assert_int_equal(r->use, v->use);
        if (v->becomes != NULL)
            assert_string_equal(r->value, v->becomes);
        if (v->says == NULL)
            assert_string_equal(r->text, "");
        else
            assert_non_null(strstr(r->text, v->says));
    }
    put("D9D_CUDA_MAX_CONNECTIONS", NULL);
}

struct captured_log {
    int n;
    char last[512];
};

static void hear(void *arg, d9d_log_level level, const char *text)
{
    struct captured_log *h = arg;

    assert_int_equal(level, D9D_LOG_WARN);
    h->n++;
    (void)strncpy(h->last, text, sizeof(h->last) - 1);
}

/* Reading changes nothing before it is applied, and each warning concerns one variable. */
static void test_apply_and_say(void **state)
{
    struct captured_log h = {0};
    const d9d_log log = {.line = hear, .arg = &h, .level = D9D_LOG_WARN};
    d9d_environment e;

    (void)state;
    put(CONNECTIONS, "1");
    put("NCCL_ALGO", "Ring");
    put("OMP_NUM_THREADS", NULL);
    d9d_environment_read(~0u, getenv, &e);
    assert_string_equal(getenv(CONNECTIONS), "1");
    assert_int_equal(d9d_environment_check(&e), D9D_OK);
    d9d_environment_log(&e, RANKS, &log);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.last, CONNECTIONS " is \"1\""));
    d9d_environment_log(&e, D9D_ENVIRONMENT_NCCL, &log);
    assert_int_equal(h.n, 2);
    assert_non_null(strstr(h.last, "NCCL_ALGO"));
    d9d_environment_apply(&e);
    assert_string_equal(getenv(CONNECTIONS), "32");
    assert_string_equal(getenv("NCCL_ALGO"), "Ring");
    d9d_environment_read(RANKS, getenv, &e);
    assert_null(find(&e, CONNECTIONS));
    put("NCCL_ALGO", NULL);
}

static void test_refused(void **state)
{
    d9d_environment e;

    (void)state;
    put("OMP_NUM_THREADS", "100000");
    d9d_environment_read(D9D_ENVIRONMENT_PROCESS, getenv, &e);
    put("OMP_NUM_THREADS", NULL);
    assert_int_equal(d9d_environment_check(&e), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "OMP_NUM_THREADS is \"100000\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_apply_and_say),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
