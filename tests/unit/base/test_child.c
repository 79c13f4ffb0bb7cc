/* test_child.c - programs that are started: their input, their output, their group. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "d9d/base/child.h"
#include "support/unit.h"

/* The exit status of a shell's script, with `end` as its standard input and output. */
static int run_script(const char *script, int end, bool own_group, pid_t *pid)
{
    const char *const args[] = {"sh", "-c", script, NULL};
    int status;

    assert_int_equal(d9d_child_start(args, end, end, own_group, pid), 0);
    assert_int_equal(waitpid(*pid, &status, 0), *pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void a_program_has_its_output_and_its_group(void **state)
{
    static const char script[] = "[ \"$(ps -o pgid= -p $$ | tr -d ' ')\" = $$ ]";
    char text[8] = {0};
    int ends[2];
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(run_script("echo said; exit 3", ends[1], false, &pid), 3);
    assert_int_equal(read(ends[0], text, sizeof(text) - 1), 5);
    assert_string_equal(text, "said\n");
    if (access("/usr/bin/ps", X_OK) == 0 || access("/bin/ps", X_OK) == 0) {
        assert_int_equal(run_script(script, ends[1], true, &pid), 0);
        assert_int_equal(run_script(script, ends[1], false, &pid), 1);
    }
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* kill(-pid) ends a group, with what its leader has started. */
static void a_group_ends_as_one(void **state)
{
    static const char *const args[] = {"sh", "-c", "sleep 600 & wait", NULL};
    int ends[2], status;
    pid_t pid;
    char c;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(d9d_child_start(args, STDIN_FILENO, ends[1], true, &pid), 0);
    (void)close(ends[1]);
    while (kill(-pid, SIGKILL) != 0)
        assert_int_equal(errno, ESRCH);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(read(ends[0], &c, 1), 0); /* none is left that could write */
    (void)close(ends[0]);
}

/* A signal that this process blocks is none that the program blocks. */
static void no_signal_is_blocked(void **state)
{
    sigset_t term, before;
    pid_t pid;

    (void)state;
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    assert_int_equal(sigprocmask(SIG_BLOCK, &term, &before), 0);
    assert_int_equal(
        run_script("trap 'exit 5' TERM; kill -TERM $$; exit 4", STDERR_FILENO, false, &pid), 5);
    assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
}

/* Under valgrind posix_spawn() forks, so that only the child knows of a failed exec. */
static void what_is_no_program(void **state)
{
    static const char *const args[] = {"/no/such/program", NULL};
    pid_t pid = 7;

    (void)state;
    if (unit_is_wrapped())
        skip();
    assert_int_equal(d9d_child_start(args, STDIN_FILENO, STDERR_FILENO, false, &pid), ENOENT);
    assert_int_equal(pid, 7);
}

/* It would have this process's in their place. */
static void what_is_no_descriptor(void **state)
{
    static const char *const args[] = {"true", NULL};
    pid_t pid = 7;

    (void)state;
    assert_int_equal(d9d_child_start(args, -1, STDERR_FILENO, false, &pid), EBADF);
    assert_int_equal(d9d_child_start(args, STDIN_FILENO, -1, false, &pid), EBADF);
    assert_int_equal(pid, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_program_has_its_output_and_its_group),
        cmocka_unit_test(a_group_ends_as_one),
        cmocka_unit_test(no_signal_is_blocked),
        cmocka_unit_test(what_is_no_program),
        cmocka_unit_test(what_is_no_descriptor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
