/* test_selftest.c - the self-test: what passes, and what fails. */
#include "d9d/train/selftest.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "support/unit.h"

typedef struct record {
    double loss, norm;
} record;

static void write_run(const char *dir, const record *r, int n)
{
    d9d_buf b = {0};
    char path[64];

    for (int i = 0; i < n; i++)
        assert_ok(d9d_buf_printf(&b, "{\"step\": %d, \"loss\": %.17g, \"grad_norm\": %.17g}\n",
                                 i + 1, r[i].loss, r[i].norm));
    assert_ok(d9d_fs_mkdirs(dir));
    (void)snprintf(path, sizeof(path), "%s/metrics.jsonl", dir);
    assert_ok(d9d_fs_write_atomic(path, b.data, b.len));
    d9d_buf_release(&b);
}

static void differences_beyond_rounding_are_found(void **state)
{
    static const record alone[] = {{5, 1}, {4, 2}, {3, 0.5}};
    static const struct {
        record mesh[3];
        int n;
        double worst; /* below 0: different steps */
        bool same;
    } cases[] = {
        {{{5, 1}, {4, 2}, {3, 0.5}}, 3, 0, true},
        {{{5, 1}, {4.00002, 2}, {3, 0.5}}, 3, 5e-6, true},
        {{{5, 1}, {4.0002, 2}, {3, 0.5}}, 3, 5e-5, false},
        {{{5, 1}, {4, 2}, {3, 0.50001}}, 3, 2e-5, false},
        {{{5, 0}, {4, 2}, {3, 0.5}}, 3, 1, false},
        {{{5, 1}, {4, 2}}, 2, -1, false},
    };

    (void)state;
    write_run("alone", alone, 3);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d9d_selftest_summary s = {.ranks = 2, .mesh = "tp 2", .allowed = 1e-5};
        d9d_buf text = {0};
        d9d_status st;

        write_run("mesh", cases[i].mesh, cases[i].n);
        st = d9d_selftest_compare("mesh", "alone", &s);
        assert_int_equal(st, cases[i].same ? D9D_OK : D9D_EVERIFY);
        if (cases[i].worst < 0)
            continue;
        assert_float_equal(s.worst, cases[i].worst, 1e-8);
        assert_ok(d9d_selftest_print(&s, &text));
        assert_true((strstr(text.data, "do not compute what one computes") == NULL) ==
                    cases[i].same);
        d9d_buf_release(&text);
    }
}

/* A NaN loss never equals another. */
static void a_nan_does_not_pass(void **state)
{
    d9d_selftest_summary s = {.mesh = "tp 2", .allowed = 1e-5};
    const char text[] = "{\"step\": 1, \"loss\": null, \"grad_norm\": 1}\n";

    (void)state;
    write_run("alone", &(record){5, 1}, 1);
    assert_ok(d9d_fs_mkdirs("mesh"));
    assert_ok(d9d_fs_write_atomic("mesh/metrics.jsonl", text, strlen(text)));
    assert_int_equal(d9d_selftest_compare("mesh", "alone", &s), D9D_EVERIFY);
}

/* Steps without a target have no loss and no norm, on the mesh and alone. */
static void a_step_without_a_target_is_the_same(void **state)
{
    static const char *const lines[] = {"{\"step\": 1, \"lr\": 1}\n",
                                        "{\"step\": 2, \"loss\": 3, \"grad_norm\": 1}\n"};
    d9d_selftest_summary s = {.mesh = "tp 2", .allowed = 1e-5};
    char text[128];

    (void)state;
    (void)snprintf(text, sizeof(text), "%s%s", lines[0], lines[1]);
    for (int i = 0; i < 2; i++) {
        static const char *const dirs[][2] = {{"mesh", "mesh/metrics.jsonl"},
                                              {"alone", "alone/metrics.jsonl"}};

        assert_ok(d9d_fs_mkdirs(dirs[i][0]));
        assert_ok(d9d_fs_write_atomic(dirs[i][1], text, strlen(text)));
    }
    assert_ok(d9d_selftest_compare("mesh", "alone", &s));
    write_run("alone", (const record[]){{5, 1}, {3, 1}}, 2);
    assert_int_equal(d9d_selftest_compare("mesh", "alone", &s), D9D_EVERIFY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(differences_beyond_rounding_are_found),
        unit_test_in_dir(a_nan_does_not_pass),
        unit_test_in_dir(a_step_without_a_target_is_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
