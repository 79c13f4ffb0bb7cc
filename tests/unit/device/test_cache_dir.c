/* test_cache_dir.c - where choices are kept between runs, and by which process of a host. */
#include <stdio.h>
#include <string.h>

#include "device/cache_dir.h"
#include "support/unit.h"

/* "NAME=VALUE", up to NULL. */
static const char *const *variables;

static char *get(const char *name)
{
    static char values[8][32]; /* those of the last calls */
    static int calls;
    char *const value = values[calls++ % 8];

    for (const char *const *v = variables; *v != NULL; v++)
        if (strncmp(*v, name, strlen(name)) == 0 && (*v)[strlen(name)] == '=')
            return (void)snprintf(value, sizeof(values[0]), "%s", *v + strlen(name) + 1), value;
    return NULL;
}

typedef struct directory_case {
    const char *variables[4], *path;
    bool read_only;
} directory_case;

static void variables_decide(void **state)
{
    static const directory_case cases[] = {
        {{NULL}, NULL, false},
        {{"HOME=/h"}, "/h/.cache/d9d", false},
        {{"HOME=h"}, NULL, false},
        {{"HOME=/h", "XDG_CACHE_HOME=/x"}, "/x/d9d", false},
        {{"HOME=/h", "XDG_CACHE_HOME=x"}, "/h/.cache/d9d", false},
        {{"HOME=/h", "D9D_CACHE_DIR=/c"}, "/c", false},
        {{"HOME=/h", "D9D_CACHE_DIR=c"}, "c", false},
        {{"HOME=/h", "D9D_CACHE_DIR="}, NULL, false},
        {{"HOME=/h", "SLURM_LOCALID=0"}, "/h/.cache/d9d", false},
        {{"HOME=/h", "SLURM_LOCALID=3"}, "/h/.cache/d9d", true},
        {{"HOME=/h", "SLURM_LOCALID=0", "OMPI_COMM_WORLD_LOCAL_RANK=1"}, "/h/.cache/d9d", true},
        {{"HOME=/h", "FLUX_TASK_LOCAL_ID="}, "/h/.cache/d9d", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_arena a = {0};
        d9di_cache_dir dir;

        variables = cases[i].variables;
        dir = d9di_cache_dir_find(get, &a);
        if (cases[i].path == NULL)
            assert_null(dir.path);
        else
            assert_string_equal(dir.path, cases[i].path);
        assert_int_equal(dir.read_only, cases[i].read_only);
        d9d_arena_release(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(variables_decide)};

    return cmocka_run_group_tests_name("cache_dir", tests, NULL, NULL);
}
