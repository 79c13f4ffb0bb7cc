/* test_job_start.c - the devices of the ranks of a job. */
#include "engine/job_start.h"
#include "support/unit.h"

static void each_rank_has_a_gpu_of_its_own(void **state)
{
    static const d9di_job_start_device_id own[] = {{"cuda", "1a"}, {"cuda", "2b"}, {"cuda", "3c"}};
    static const d9di_job_start_device_id few[] = {{"cuda", "1a"}, {"cuda", "2b"}, {"cuda", "1a"}};

    (void)state;
    for (int r = 0; r < 3; r++)
        assert_ok(d9di_job_start_check_distinct(own, r));
    assert_ok(d9di_job_start_check_distinct(few, 1));
    assert_int_equal(d9di_job_start_check_distinct(few, 2), D9D_ECONFIG);
    unit_check_has(d9d_err_message(), "has the GPU that rank 0 has", __FILE__, __LINE__);
}

static void processors_are_shared_but_alike(void **state)
{
    static const d9di_job_start_device_id cpus[] = {{"cpu", ""}, {"cpu", ""}};
    static const d9di_job_start_device_id both[] = {{"cuda", "1a"}, {"cpu", ""}};

    (void)state;
    assert_ok(d9di_job_start_check_distinct(cpus, 1));
    assert_int_equal(d9di_job_start_check_distinct(both, 1), D9D_ECONFIG);
    unit_check_has(d9d_err_message(), "computes on cpu, and rank 0 on cuda", __FILE__, __LINE__);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_has_a_gpu_of_its_own),
        cmocka_unit_test(processors_are_shared_but_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
