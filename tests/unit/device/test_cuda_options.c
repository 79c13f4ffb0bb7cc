/* The choice of kernels in the environment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda_options.h"

static const struct value {
    const char *text; /* NULL: not set */
    d9d_cuda_attention attention;
    bool inexact;
    int64_t scratch;
} values[] = {
    {NULL, D9D_CUDA_ATTENTION_CUDNN, false, 0},
    {"{\"kind\": \"cudnn\"}", D9D_CUDA_ATTENTION_CUDNN, false, (int64_t)4096 << 20},
    {"{\"kind\": \"cudnn\", \"deterministic\": false, \"scratch_mb\": 1}", D9D_CUDA_ATTENTION_CUDNN,
     true, 1 << 20},
    {"{\"kind\": \"flash_attention_2\"}", D9D_CUDA_ATTENTION_CUDNN, false, 0},
    {"{\"kind\": \"flash_attention_4\"}", D9D_CUDA_ATTENTION_CUDNN, false, 0},
    {"{\"kind\": \"torch\"}", D9D_CUDA_ATTENTION_CUDNN, false, 0},
    {"{\"kind\": \"torch\", \"backends\": null}", D9D_CUDA_ATTENTION_CUDNN, false, 0},
    {"{\"kind\": \"torch\", \"backends\": [\"MATH\", \"CUDNN_ATTENTION\"]}",
     D9D_CUDA_ATTENTION_CUDNN, false, 0},
    {"{\"kind\": \"torch\", \"backends\": [\"MATH\"]}", D9D_CUDA_ATTENTION_SIMT, false, 0},
    {"{\"kind\": \"eager\"}", D9D_CUDA_ATTENTION_SIMT, false, 0},
};

static const struct mistake {
    const char *text, *says;
} mistakes[] = {
    {"", "D9D_BACKEND_AUTO_SDPA"},
    {"eager", "D9D_BACKEND_AUTO_SDPA"},
    {"[]", "sdpa"},
    {"{}", "kind"},
    {"{\"kind\": \"eagre\"}", "\"eager\""},
    {"{\"kind\": \"eager\", \"deterministic\": true}", "deterministic"},
    {"{\"kind\": \"cudnn\", \"deterministic\": 1}", "deterministic"},
    {"{\"kind\": \"cudnn\", \"scratch_mb\": 0}", "scratch_mb"},
    {"{\"kind\": \"torch\", \"backends\": [\"CUDNN\"]}", "backends"},
};

static void test_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        d9d_cuda_opts o;

        if (values[i].text == NULL)
            assert_int_equal(unsetenv("D9D_BACKEND_AUTO_SDPA"), 0);
        else
            assert_int_equal(setenv("D9D_BACKEND_AUTO_SDPA", values[i].text, 1), 0);
        assert_int_equal(d9di_device_cuda_opts(&o), D9D_OK);
        assert_int_equal(o.attention, values[i].attention);
        assert_int_equal(o.nondeterministic, values[i].inexact);
        assert_int_equal(o.max_score_bytes, values[i].scratch);
    }
}

static void test_mistakes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(*mistakes); i++) {
        d9d_cuda_opts o;

        assert_int_equal(setenv("D9D_BACKEND_AUTO_SDPA", mistakes[i].text, 1), 0);
        assert_int_not_equal(d9di_device_cuda_opts(&o), D9D_OK);
        assert_non_null(strstr(d9d_err_message(), mistakes[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_mistakes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
