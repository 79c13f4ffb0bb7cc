/* test_bootstrap.c - bootstrap: ranks agree on a failure. */
#include <string.h>

#include "comm/bootstrap_private.h"
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verdict_fits_however_many_say_one),
        cmocka_unit_test(a_verdict_is_cut_between_characters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
