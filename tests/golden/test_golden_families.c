/* test_golden_families.c - every family against transformers: logits, losses and gradients for each
 * directory of families/ and masked_lm/, and for MXFP4 weights; hidden states of packed documents,
 * and gradients, for each of encoders/.
 *
 *     test_golden_families DIR...     # absolute: of these alone, and how far each is away
 */
#include "support/unit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/certify/golden.h"
#include "support/unit_device.h"
#include "support/vectors.h"

/* A model's vectors, and the weights of another one of its shapes; paths from the root. */
static struct {
    const char *folder, *name;
    char *path;
} mixed[] = {
    {"families/mistral", "config.json", NULL},
    {"families/mistral", "golden.safetensors", NULL},
    {"families/llama3", "model.safetensors", NULL},
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void each_case(const char *folder, void (*fn)(const char *name))
{
    DIR *dir = opendir(vectors_path(folder, ""));
    struct dirent *e;
    char *names[256];
    size_t n = 0;

    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL && n < 256)
        if (e->d_name[0] != '.') {
            char name[300];

            (void)snprintf(name, sizeof(name), "%s/%s", folder, e->d_name);
            names[n++] = strdup(name);
        }
    assert_int_equal(closedir(dir), 0);
    assert_true(n > 0 && n < 256);
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 0; i < n; i++) {
        fn(names[i]);
        free(names[i]);
    }
}

/* The largest distance. */
static double compare_case(const char *name)
{
    const d9d_golden_opts opts = {.device = unit_device_name(),
                                  .limit = unit_device_tolerance(1e-5, 1e-4)};
    d9d_arena a = {0};
    d9d_golden_result r;

    if (d9d_golden_compare(vectors_path(name, ""), &opts, &a, &r) != D9D_OK)
        fail_msg("%s: %s", name, d9d_err_message());
    assert_true(r.n > 8); /* logits, losses, and gradients of layers */
    if (!(r.worst < r.limit))
        fail_msg("%s: %s is %.3g away, limit %.3g", name, r.name, r.worst, r.limit);
    d9d_arena_release(&a);
    return r.worst;
}

static void check_case(const char *name)
{
    (void)compare_case(name);
}

static void values_equal_transformers(void **state)
{
    (void)state;
    each_case("families", check_case);
}

/* Weights in the published layout of gpt-oss, decoded when they are loaded. */
static void mxfp4_equals_transformers(void **state)
{
    (void)state;
    check_case("quant/gpt_oss");
}

static void hidden_states_equal_transformers(void **state)
{
    (void)state;
    each_case("encoders", check_case);
}

static void masked_tokens_equal_transformers(void **state)
{
    (void)state;
    each_case("masked_lm", check_case);
}

/* With other weights all arrays are far away. */
static void other_weights_are_far_away(void **state)
{
    d9d_arena a = {0};
    d9d_golden_result r;
    char *dir = realpath(*state, NULL);

    assert_non_null(dir);
    for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++)
        assert_ok(d9d_fs_copy(mixed[i].path, mixed[i].name));
    assert_ok(d9d_golden_compare(dir, &(d9d_golden_opts){.device = unit_device_name()}, &a, &r));
    assert_true(r.worst > 0.1);
    d9d_arena_release(&a);
    free(dir);
}

static void given_equals_transformers(void **state)
{
    printf("%s is %.3g away\n", (const char *)*state, compare_case(*state));
}

static int run_given(int n, char **names)
{
    struct CMUnitTest tests[256];

    n = n < 256 ? n : 256;
    for (int i = 0; i < n; i++)
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = given_equals_transformers, .initial_state = names[i]};
    return _cmocka_run_group_tests("given", tests, (size_t)n, NULL, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_equal_transformers),
        cmocka_unit_test(mxfp4_equals_transformers),
        cmocka_unit_test(hidden_states_equal_transformers),
        cmocka_unit_test(masked_tokens_equal_transformers),
        unit_test_in_dir(other_weights_are_far_away),
    };
    int rc;

    if (argc > 1)
        return run_given(argc - 1, argv + 1);

    for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++)
        mixed[i].path = realpath(vectors_path(mixed[i].folder, mixed[i].name), NULL);
    rc = cmocka_run_group_tests_name("golden families", tests, NULL, NULL);
    for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++)
        free(mixed[i].path);
    return rc;
}
