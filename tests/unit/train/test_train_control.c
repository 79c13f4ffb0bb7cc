/* test_train_control.c - flags of ranks, and what their sum means. */
#include <signal.h>
#include <stdlib.h>

#include "support/unit.h"
#include "train/train_control.h"

static d9di_train_control control_open(bool is_root)
{
    d9di_train_control t = {.preemption = NULL};

    assert_ok(d9di_train_control_open(&t, is_root, 0, NULL));
    return t;
}

/* A single rank needs no all-reduce. */
static void test_alone(void **state)
{
    d9di_train_control t = control_open(true);

    (void)state;
    assert_false(d9di_train_control_should_exit(&t, true));
    assert_false(d9di_train_control_should_sleep(&t, true));
    assert_int_equal(raise(SIGUSR2), 0);
    assert_true(d9di_train_control_should_sleep(&t, true));
    assert_int_equal(raise(SIGTERM), 0);
    assert_true(d9di_train_control_should_exit(&t, true));
    d9di_train_control_close(&t);
}

/* One of several ranks waits for the sum, which includes its own signal. */
static void test_sum_of_ranks(void **state)
{
    d9di_train_control t = control_open(true);
    double sum;

    (void)state;
    assert_true(d9di_train_control_flags(&t, false) == 0);
    assert_int_equal(raise(SIGUSR2), 0);
    sum = d9di_train_control_flags(&t, false);
    assert_false(d9di_train_control_should_sleep(&t, false));
    d9di_train_control_receive(&t, sum);
    assert_true(d9di_train_control_should_sleep(&t, false));
    assert_false(d9di_train_control_should_exit(&t, false));
    assert_true(d9di_train_control_flags(&t, false) == 0); /* it was consumed */

    assert_int_equal(raise(SIGTERM), 0);
    sum = d9di_train_control_flags(&t, false);
    assert_false(d9di_train_control_should_exit(&t, false));
    d9di_train_control_receive(&t, 0);
    assert_false(d9di_train_control_should_exit(&t, false));
    d9di_train_control_receive(&t, 7 * sum); /* seven ranks had the flag */
    assert_true(d9di_train_control_should_exit(&t, false));
    d9di_train_control_receive(&t, 0); /* stays set */
    assert_true(d9di_train_control_should_exit(&t, false));
    d9di_train_control_close(&t);
}

/* Only rank 0 is asked to suspend; any rank to exit. */
static void test_other_ranks(void **state)
{
    d9di_train_control t = control_open(false);

    (void)state;
    assert_int_equal(raise(SIGUSR2), 0);
    assert_true(d9di_train_control_flags(&t, false) == 0);
    assert_int_equal(raise(SIGUSR1), 0);
    assert_true(d9di_train_control_flags(&t, false) == 1);
    d9di_train_control_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_sum_of_ranks),
        cmocka_unit_test(test_other_ranks),
    };

    (void)unsetenv("SLURM_JOB_ID"); /* this may be a job */
    return cmocka_run_group_tests_name("train_control", tests, NULL, NULL);
}
