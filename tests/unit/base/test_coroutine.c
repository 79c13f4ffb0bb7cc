/* test_coroutine.c - two coroutines: order of execution, and failures. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/coroutine.h"
#include "support/unit.h"

typedef struct script {
    char name;
    int parts;
    int fails; /* fails in this part; 0: in none */
    char *said;
    bool unwound;
} script;

/* Recursion deep enough to use the stack; returns the given status. */
static d9d_status part(script *p, d9d_co *t, int i, int depth)
{
    char frame[512];

    memset(frame, p->name, sizeof(frame));
    if (depth > 0) {
        D9D_TRY(part(p, t, i, depth - 1));
        return frame[depth] == p->name ? D9D_OK : D9D_FAIL(D9D_EINVAL, "the stack has changed");
    }
    (void)snprintf(p->said + strlen(p->said), 16, "%c%d ", p->name, i);
    if (i == p->fails)
        return D9D_FAIL(D9D_EIO, "%c fails in part %d", p->name, i);
    return i < p->parts ? d9d_co_yield(t) : D9D_OK;
}

static d9d_status work(void *arg, d9d_co *t)
{
    script *p = arg;
    d9d_status st = D9D_OK;

    for (int i = 1; i <= p->parts && st == D9D_OK; i++)
        st = part(p, t, i, 100);
    p->unwound = true;
    return st;
}

static void run_two(int a_parts, int a_fails, int b_parts, int b_fails, d9d_status want,
                    const char *order)
{
    char said[256] = "";
    script a = {.name = 'a', .parts = a_parts, .fails = a_fails, .said = said};
    script b = {.name = 'b', .parts = b_parts, .fails = b_fails, .said = said};

    assert_int_equal(d9d_co_run(work, &a, &b), want);
    assert_string_equal(said, order);
    assert_true(a.unwound);
    assert_true(b.unwound || a_fails == 1);
}

static void parts_alternate(void **state)
{
    (void)state;
    run_two(3, 0, 3, 0, D9D_OK, "a1 b1 a2 b2 a3 b3 ");
    run_two(1, 0, 3, 0, D9D_OK, "a1 b1 b2 b3 ");
    run_two(4, 0, 1, 0, D9D_OK, "a1 b1 a2 a3 a4 ");
    run_two(1, 0, 1, 0, D9D_OK, "a1 b1 ");
}

static void failures_end_both(void **state)
{
    (void)state;
    run_two(3, 2, 3, 0, D9D_EIO, "a1 b1 a2 ");
    assert_string_equal(d9d_err_message(), "a fails in part 2");
    run_two(3, 0, 3, 1, D9D_EIO, "a1 b1 ");
    assert_string_equal(d9d_err_message(), "b fails in part 1");
    run_two(3, 0, 3, 3, D9D_EIO, "a1 b1 a2 b2 a3 b3 ");
    run_two(3, 1, 3, 0, D9D_EIO, "a1 "); /* the other coroutine never starts */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_alternate),
        cmocka_unit_test(failures_end_both),
    };

    return cmocka_run_group_tests_name("coroutine", tests, NULL, NULL);
}
