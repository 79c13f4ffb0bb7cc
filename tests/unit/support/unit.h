/* unit.h - for every unit test: cmocka, checks of a status and its message, and a temporary
 * directory. */
#ifndef D9D_UNIT_H
#define D9D_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "d9d/base/status.h"

/* Success; otherwise the sentence is in the report. */
#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        const d9d_status ok_st_ = (expr);                                                          \
        if (ok_st_ != D9D_OK)                                                                      \
            fail_msg("%s: %s: %s", #expr, d9d_status_name(ok_st_), d9d_err_message());             \
    } while (0)

/* This failure with exactly this sentence. */
#define assert_fails(expr, want, sentence)                                                         \
    do {                                                                                           \
        assert_string_equal(d9d_status_name(expr), d9d_status_name(want));                         \
        assert_string_equal(d9d_err_message(), (sentence));                                        \
    } while (0)

/* This failure with a sentence that has `part`. */
#define assert_fails_like(expr, want, part)                                                        \
    do {                                                                                           \
        assert_string_equal(d9d_status_name(expr), d9d_status_name(want));                         \
        unit_check_has(d9d_err_message(), (part), __FILE__, __LINE__);                             \
    } while (0)

void unit_check_has(const char *text, const char *part, const char *file, int line);

/* Valgrind runs this test (make memcheck), fifty times slower: what is small of a kind will do. */
bool unit_is_wrapped(void);
/* By how much to go on from case to case: 1, and n where valgrind runs this test. */
int unit_step(int n);
/* make test-long runs this test: all cases, however long they take. */
bool unit_is_long(void);

/* Setup and teardown for cmocka_unit_test_setup_teardown(): *state is the path of a
 * new directory, which is also made the current one. */
int unit_dir_setup(void **state);
int unit_dir_teardown(void **state);

/* The test of one function with such a directory. */
#define unit_test_in_dir(f) cmocka_unit_test_setup_teardown(f, unit_dir_setup, unit_dir_teardown)

#endif /* D9D_UNIT_H */
