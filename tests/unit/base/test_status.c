/* test_status.c - error codes, messages, traces. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "support/unit.h"

static void every_status_has_name_text_and_exit_code(void **state)
{
    (void)state;
#define X(name, value, code, words)                                                                \
    assert_string_equal(d9d_status_name(D9D_##name), "D9D_" #name);                                \
    assert_string_equal(d9d_status_text(D9D_##name), words);                                       \
    assert_int_equal(d9d_status_exit_code(D9D_##name), code);
    D9D_STATUS_MAP(X)
#undef X
    assert_string_equal(d9d_status_name((d9d_status)-99), "D9D_?");
    assert_string_equal(d9d_status_text((d9d_status)-99), "unknown status");
    assert_int_equal(d9d_status_exit_code((d9d_status)-99), 1);
}

static void a_sentence_may_quote_the_one_before(void **state)
{
    (void)state;
    errno = EAGAIN;
    assert_fails(D9D_FAIL(D9D_EIO, "a: %d of %d", 3, 4), D9D_EIO, "a: 3 of 4");
    assert_int_equal(errno, EAGAIN);
    assert_fails(D9D_FAIL(D9D_EIO, "rank 1: %s", d9d_err_message()), D9D_EIO, "rank 1: a: 3 of 4");
}

static void control_characters_stay_off_the_terminal(void **state)
{
    (void)state;
    assert_fails(D9D_FAIL(D9D_EFORMAT, "\"\033[2J\x7f\" is %s", "\xc2\x9bm\nbad\r\xc2\xa0"),
                 D9D_EFORMAT, "\"?[2J?\" is ?m?bad?\xc2\xa0");
}

static void a_long_sentence_is_cut_between_characters(void **state)
{
    char text[4096];
    size_t n;

    (void)state;
    for (size_t i = 0; i + 2 < sizeof(text); i += 2)
        memcpy(text + i, "\xc3\xa9", 3); /* e acute */
    for (size_t skip = 0; skip < 2; skip++) {
        (void)D9D_FAIL(D9D_EIO, "%s%s", skip ? "x" : "", text);
        n = strlen(d9d_err_message());
        assert_in_range(n, 2040, 2047);
        assert_non_null(strstr(d9d_err_message(), "\xc3\xa9...\xc3\xa9"));
        assert_string_equal(d9d_err_message() + n - 4, "\xc3\xa9\xc3\xa9");
    }
    /* The beginning (what) and the end (why) stay. */
    (void)D9D_FAIL(D9D_EIO, "begin/%s%s: cannot open: %s", text, text, "gone");
    assert_int_equal(strncmp(d9d_err_message(), "begin/\xc3\xa9", 8), 0);
    assert_non_null(strstr(d9d_err_message(), "\xc3\xa9: cannot open: gone"));
}

static d9d_status fail_inside(void)
{
    return D9D_FAIL(D9D_ENUMERIC, "loss is nan");
}

static d9d_status pass_on(void)
{
    D9D_TRY(fail_inside());
    return D9D_OK;
}

static d9d_status pass_to_label(void)
{
    d9d_status st;

    D9D_TRY_OR(st, pass_on(), out);
out:
    return st;
}

static void the_trace_has_every_try_only_when_debugging(void **state)
{
    size_t lines = 0;

    (void)state;
    unsetenv("D9D_DEBUG");
    assert_fails(pass_to_label(), D9D_ENUMERIC, "loss is nan");
    assert_string_equal(d9d_err_trace(), "");

    setenv("D9D_DEBUG", "1", 1);
    assert_fails(pass_to_label(), D9D_ENUMERIC, "loss is nan");
    for (const char *p = d9d_err_trace(); (p = strstr(p, "  at test_status.c:")) != NULL; p++)
        lines++;
    assert_int_equal(lines, 3);
    for (int i = 0; i < 1000; i++) /* longer than the limit */
        (void)d9d_err_pass(D9D_EIO, __FILE__, i);
    unsetenv("D9D_DEBUG");
}

struct failed_thread {
    d9d_err_copy copy;
    char seen[64];
};

static void *fail_in_thread(void *arg)
{
    struct failed_thread *t = arg;

    strncpy(t->seen, d9d_err_message(), sizeof(t->seen) - 1);
    d9d_err_save(&t->copy, D9D_FAIL(D9D_ECOMM, "rank 3 is gone"));
    return NULL;
}

static void a_record_belongs_to_a_thread_and_can_be_carried(void **state)
{
    struct failed_thread t = {.seen = ""};
    pthread_t id;

    (void)state;
    (void)D9D_FAIL(D9D_EIO, "mine");
    assert_int_equal(pthread_create(&id, NULL, fail_in_thread, &t), 0);
    assert_int_equal(pthread_join(id, NULL), 0);
    assert_string_equal(t.seen, "");
    assert_string_equal(d9d_err_message(), "mine");
    assert_fails(d9d_err_restore(&t.copy), D9D_ECOMM, "rank 3 is gone");
}

typedef struct mute {
    d9d_status (*answer)(d9d_status st);
} mute;

static d9d_status answer(d9d_status st)
{
    return st;
}
static d9d_status explain(d9d_status st)
{
    return D9D_FAIL(st, "no room");
}

static void who_fails_without_a_sentence_gets_one(void **state)
{
    const mute quiet = {answer}, explained = {explain};

    (void)state;
    (void)D9D_FAIL(D9D_EIO, "of something else");
    assert_fails(D9D_PLUGIN_CALL("mine", &quiet, answer, D9D_EFORMAT), D9D_EFORMAT,
                 "mine: its answer() failed and does not say why");
    assert_fails(D9D_PLUGIN_CALL("mine", &quiet, answer, (d9d_status)77), D9D_EINVAL,
                 "mine: its answer() returned 77, which is no d9d_status");
    assert_fails(D9D_PLUGIN_CALL("mine", &explained, answer, D9D_ENOMEM), D9D_ENOMEM, "no room");
    assert_int_equal(D9D_PLUGIN_CALL("mine", &quiet, answer, D9D_OK), D9D_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_name_text_and_exit_code),
        cmocka_unit_test(a_sentence_may_quote_the_one_before),
        cmocka_unit_test(control_characters_stay_off_the_terminal),
        cmocka_unit_test(a_long_sentence_is_cut_between_characters),
        cmocka_unit_test(the_trace_has_every_try_only_when_debugging),
        cmocka_unit_test(a_record_belongs_to_a_thread_and_can_be_carried),
        cmocka_unit_test(who_fails_without_a_sentence_gets_one),
    };

    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
