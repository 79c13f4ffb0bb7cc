/* test_bootstrap.c - bootstrap: ranks agree on a failure, and on what carries their
 * messages. */
#include <stdlib.h>
#include <string.h>

#include "comm/bootstrap_hello.h"
#include "support/unit.h"

static void a_verdict_fits_however_many_say_one(void **state)
{
    static const int sizes[] = {2, 7000, 8000, 65536, 1 << 20};
    static const char begins[] = "(n1): tensor ";
    char name[1500];

    (void)state;
    memset(name, 'x', sizeof(name));
    (void)D9D_FAIL(D9D_EFORMAT, "tensor %.*s", (int)sizeof(name), name);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t max_bytes = D9DI_BOOTSTRAP_MAX_BYTES / (size_t)sizes[i];
        const size_t whole = sizeof(int32_t) + strlen("(n1): ") + strlen(d9d_err_message());
        d9di_bootstrap_failure v;
        const size_t n = d9di_bootstrap_failure_pack(D9D_EFORMAT, "n1", sizes[i], &v);

        assert_int_equal(n, max_bytes < whole ? max_bytes : whole);
        assert_int_equal(v.st, D9D_EFORMAT);
        assert_memory_equal(v.text, begins,
                            n - sizeof(v.st) < sizeof(begins) - 1 ? n - sizeof(v.st)
                                                                  : sizeof(begins) - 1);
    }
}

static void a_verdict_is_cut_between_characters(void **state)
{
    d9di_bootstrap_failure v;
    size_t n;

    (void)state;
    (void)D9D_FAIL(D9D_EIO, "\xc3\xa9\xc3\xa9\xc3\xa9");
    n = d9di_bootstrap_failure_pack(D9D_EIO, "n", D9DI_BOOTSTRAP_MAX_BYTES / (4 + 5 + 3), &v);
    assert_int_equal(n, 4 + 5 + 2);
}

static d9di_bootstrap_hello hello(const char *value, int size, const char *node)
{
    d9di_bootstrap_hello h;

    (void)(value == NULL ? unsetenv("D9D_BOOTSTRAP") : setenv("D9D_BOOTSTRAP", value, 1));
    d9di_bootstrap_hello_make(node, size, &h);
    (void)unsetenv("D9D_BOOTSTRAP");
    return h;
}

static void ranks_that_choose_differently_are_named(void **state)
{
    static const struct {
        const char *a, *b;
        int size;
        const char *want; /* NULL: alike */
    } cases[] = {
        {NULL, NULL, 64, NULL},
        {NULL, "pmix", 64, NULL},
        {"", "tcp", 65, NULL},
        {NULL, "tcp", 64,
         "rank 0 (n1) exchanges messages by PMIx and rank 5 (n2) by TCP: D9D_BOOTSTRAP is not set "
         "on the first and tcp on the second; set it alike on all ranks"},
        {"tcp", "pmix", 100,
         "rank 0 (n1) exchanges messages by TCP and rank 5 (n2) by PMIx: D9D_BOOTSTRAP is tcp on "
         "the first and pmix on the second; set it alike on all ranks"},
        {"pmix", "TCP", 4,
         "D9D_BOOTSTRAP is \"TCP\" on rank 5 (n2): it is \"pmix\" or \"tcp\", and the same on all "
         "ranks"},
        {"tpc", "tpc", 4,
         "D9D_BOOTSTRAP is \"tpc\" on rank 0 (n1): it is \"pmix\" or \"tcp\", and the same on all "
         "ranks"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const d9di_bootstrap_hello a = hello(cases[i].a, cases[i].size, "n1");
        const d9di_bootstrap_hello b = hello(cases[i].b, cases[i].size, "n2");
        const d9d_status st = d9di_bootstrap_hello_compare(&a, 0, &b, 5);

        assert_int_equal(st, cases[i].want == NULL ? D9D_OK : D9D_ECONFIG);
        if (cases[i].want != NULL)
            assert_string_equal(d9d_err_message(), cases[i].want);
    }
}

static void a_first_message_of_another_kind_is_refused(void **state)
{
    d9di_bootstrap_hello h = hello("tcp", 2, "n1"), got;
    d9d_bootstrap_blob blob = {&h, sizeof(h)};

    (void)state;
    assert_ok(d9di_bootstrap_hello_read(&blob, 1, 0, &got));
    assert_memory_equal(&got, &h, sizeof(h));
    h.carrier = 7;
    assert_int_equal(d9di_bootstrap_hello_read(&blob, 1, 0, &got), D9D_ECOMM);
    assert_non_null(strstr(d9d_err_message(), "carrier 7"));
    blob.n--;
    assert_int_equal(d9di_bootstrap_hello_read(&blob, 1, 0, &got), D9D_ECOMM);
    assert_non_null(
        strstr(d9d_err_message(), "rank 1 sent 99 bytes as its first message, not 100"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verdict_fits_however_many_say_one),
        cmocka_unit_test(a_verdict_is_cut_between_characters),
        cmocka_unit_test(ranks_that_choose_differently_are_named),
        cmocka_unit_test(a_first_message_of_another_kind_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
