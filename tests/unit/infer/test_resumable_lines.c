/* test_resumable_lines.c - resumable output files: which lines are trusted, and when the file is
 * renamed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "infer/resumable_lines.h"
#include "support/unit.h"

static const d9d_hash key = {UINT64_C(0x0123456789abcdef), 7};
#define PART    "out.part-0123456789abcdef"
#define JOURNAL "out.journal-0123456789abcdef"

enum { RECORD = 100 };

static d9di_resumable_lines opened(const d9d_buf *head)
{
    d9di_resumable_lines l;

    assert_ok(d9di_resumable_lines_open("out", key, head, NULL, NULL, &l));
    return l;
}

static void add(d9di_resumable_lines *l, int n)
{
    for (int i = 0; i < n; i++) {
        char line[RECORD + 1];

        (void)snprintf(line, sizeof(line), "%0*lld\n", RECORD - 1, (long long)l->done);
        assert_ok(d9di_resumable_lines_add(l, line, RECORD, 1));
    }
}

/* A part of three runs with 10 lines each. */
static void three_attempts(void)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        d9di_resumable_lines l = opened(NULL);

        assert_int_equal(l.done, attempt * 10);
        add(&l, 10);
        d9di_resumable_lines_release(&l);
    }
}

/* Going on makes what one run would have made. */
static void assert_ends_right(int64_t first)
{
    d9di_resumable_lines l = opened(NULL);
    d9d_buf text = {0};

    assert_int_equal(l.done, first);
    add(&l, (int)(40 - first));
    assert_ok(d9di_resumable_lines_commit(&l));
    d9di_resumable_lines_release(&l);
    assert_ok(d9d_fs_read("out", 1 << 20, &text));
    assert_int_equal(text.len, 40 * RECORD);
    for (int i = 0; i < 40; i++)
        assert_int_equal(atoi(text.data + i * RECORD), i);
    d9d_buf_release(&text);
    assert_false(d9d_fs_exists(PART));
    assert_false(d9d_fs_exists(JOURNAL));
}

static void run(const char *command)
{
    assert_int_equal(system(command), 0);
}

static void attempts_add_up(void **state)
{
    (void)state;
    three_attempts();
    assert_ends_right(30);
}

/* What a node that lost its power, or an editor, makes of a part; and how much is believed then. */
static void damage_is_not_believed(void **state)
{
    static const struct {
        const char *what;
        int64_t first;
    } cases[] = {
        {"head -c 1280 /dev/zero >>" PART, 30},
        {"printf '%0100d\\n' 30 | tail -c 50 >>" PART, 30},
        {"dd if=/dev/zero of=" PART " bs=1 seek=2500 count=200 conv=notrunc status=none", 21},
        {"dd if=/dev/zero of=" PART " bs=1 seek=950 count=1000 conv=notrunc status=none", 1},
        {"printf 8 | dd of=" PART " bs=1 seek=1550 conv=notrunc status=none", 11},
        {"printf precious >" PART, 0},
        {"truncate -s 2999 " PART, 21},
        {"truncate -s 0 " PART, 0},
        {"truncate -s -3 " JOURNAL, 21},
        {"head -c 500 /dev/zero >>" JOURNAL, 30},
        {"sed -i 's/^30 /29 /' " JOURNAL, 21},
        {"printf '31 3100 %032d\\n' 0 >>" JOURNAL "; printf '%0100d\\n' 30 >>" PART, 30},
        {"sed -i 2,5d " JOURNAL, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        three_attempts();
        run(cases[i].what);
        assert_ends_right(cases[i].first);
        run("rm out");
    }
}

/* The head of a .npy is proven along with the records behind it. */
static void heads_are_proven(void **state)
{
    d9d_buf head = {.data = (char[]){"head"}, .len = 4, .cap = 5};
    d9di_resumable_lines l = opened(&head);

    (void)state;
    d9di_resumable_lines_release(&l);
    l = opened(&head);
    add(&l, 5);
    d9di_resumable_lines_release(&l);
    run("printf x | dd of=" PART " bs=1 seek=1 conv=notrunc status=none");
    l = opened(&head);
    assert_int_equal(l.done, 0);
    add(&l, 5);
    assert_ok(d9di_resumable_lines_commit(&l));
    d9di_resumable_lines_release(&l);
    run("test \"$(head -c 5 out)\" = head0 -a $(stat -c %s out) = 504");
}

static void what_is_not_ours_stays(void **state)
{
    d9di_resumable_lines l;

    (void)state;
    run("echo precious >" PART);
    assert_fails(d9di_resumable_lines_open("out", key, NULL, NULL, NULL, &l), D9D_ECONFIG,
                 PART ": has 9 bytes, and no " JOURNAL " that says that they are of this job; "
                      "remove it or name another output");
    run("test $(cat " PART ") = precious -a ! -e " JOURNAL);
    run("echo d9d.part.v1 0 >" JOURNAL);
    assert_fails_like(d9di_resumable_lines_open("out", key, NULL, NULL, NULL, &l), D9D_ECONFIG,
                      "has 9 bytes");
    run("test $(cat " PART ") = precious && rm out.*");
    run("echo thesis >thesis && ln -s thesis " PART);
    assert_fails(d9di_resumable_lines_open("out", key, NULL, NULL, NULL, &l), D9D_EPATH,
                 PART ": is a symbolic link, which is not followed");
    run("rm " PART " && ln -s thesis " JOURNAL);
    assert_fails_like(d9di_resumable_lines_open("out", key, NULL, NULL, NULL, &l), D9D_EPATH,
                      "symbolic link");
    run("test $(cat thesis) = thesis && rm out.*");
    if (geteuid() == 0) {
        run("touch " PART);
        assert_int_equal(chown(PART, 65534, 65534), 0);
        assert_fails(d9di_resumable_lines_open("out", key, NULL, NULL, NULL, &l), D9D_EPATH,
                     PART ": belongs to user 65534, this is user 0");
    }
}

static void who_was_first_keeps_the_name(void **state)
{
    d9di_resumable_lines l = opened(NULL);

    (void)state;
    add(&l, 3);
    run("echo first >out");
    assert_fails(d9di_resumable_lines_commit(&l), D9D_ECONFIG,
                 "out: was written by someone else meanwhile; what was to go there is " PART);
    d9di_resumable_lines_release(&l);
    run("test $(cat out) = first -a $(wc -l <" PART ") = 3 && rm out");
    assert_ends_right(3);
}

static void one_writes_at_a_time(void **state)
{
    d9di_resumable_lines l = opened(NULL), other;

    (void)state;
    add(&l, 3);
    assert_fails(d9di_resumable_lines_open("out", key, NULL, NULL, NULL, &other), D9D_EIO,
                 PART ": another process is writing it; wait for its end, or name another");
    d9di_resumable_lines_release(&l);
    assert_ends_right(3);
}

/* --- states ----------------------------------------------------------------------------------- */

/* What is counted of records 0, 1, ...: two parts. */
typedef struct counter {
    double sum;
    int64_t n[3];
    d9di_resumable_lines_part parts[2];
    d9di_resumable_lines_state state;
} counter;

static void counter_init(counter *c, uint64_t id)
{
    *c = (counter){.sum = 0};
    c->parts[0] = (d9di_resumable_lines_part){&c->sum, sizeof(c->sum)};
    c->parts[1] = (d9di_resumable_lines_part){c->n, sizeof(c->n)};
    c->state = (d9di_resumable_lines_state){.id = id, .parts = c->parts, .n = 2};
}

static void count(counter *c, int64_t k)
{
    c->sum += 0.1 * (double)k;
    c->n[k % 3]++;
}

static d9di_resumable_lines opened_counting(counter *c, uint64_t id)
{
    d9di_resumable_lines l;

    counter_init(c, id);
    assert_ok(d9di_resumable_lines_open("out", key, NULL, &c->state, NULL, &l));
    return l;
}

static void add_counted(d9di_resumable_lines *l, counter *c, int n)
{
    for (int i = 0; i < n; i++) {
        l->state_is_ahead = true;
        count(c, l->done);
        add(l, 1);
    }
}

/* It has what counting from `from` on makes, to the bit. */
static void assert_counted(const counter *c, int64_t from, int64_t to)
{
    counter whole;

    counter_init(&whole, 0);
    for (int64_t k = from; k < to; k++)
        count(&whole, k);
    assert_memory_equal(&c->sum, &whole.sum, sizeof(c->sum));
    assert_memory_equal(c->n, whole.n, sizeof(c->n));
}

static void states_go_on(void **state)
{
    counter c;

    (void)state;
    for (int attempt = 0; attempt < 3; attempt++) {
        d9di_resumable_lines l = opened_counting(&c, 7);

        assert_int_equal(l.done, attempt * 10);
        assert_int_equal(l.counted_from, 0);
        assert_counted(&c, 0, l.done);
        add_counted(&l, &c, 10);
        d9di_resumable_lines_release(&l);
    }
    run("dd if=/dev/zero of=" PART " bs=1 seek=2500 count=200 conv=notrunc status=none");
    {
        d9di_resumable_lines l = opened_counting(&c, 7);

        assert_int_equal(l.done, 21);
        assert_counted(&c, 0, 21);
        d9di_resumable_lines_release(&l);
    }
    run("sed -i '$s/.$/1/' " JOURNAL); /* a digit of the state */
    {
        d9di_resumable_lines l = opened_counting(&c, 7);

        assert_int_equal(l.done, 20);
        assert_counted(&c, 0, 20);
        d9di_resumable_lines_release(&l);
    }
    assert_ends_right(20);
}

/* A state that counts a record which could not be written is not kept. */
static void states_ahead_are_not_kept(void **state)
{
    counter c;
    d9di_resumable_lines l = opened_counting(&c, 7);

    (void)state;
    add_counted(&l, &c, 1);
    d9di_resumable_lines_release(&l);
    l = opened_counting(&c, 7);
    add_counted(&l, &c, 1);
    l.state_is_ahead = true;
    count(&c, 1);
    d9di_resumable_lines_release(&l);
    l = opened_counting(&c, 7);
    assert_counted(&c, 0, l.done);
    d9di_resumable_lines_release(&l);
}

/* Parts without a state, or with another one, go on; what is counted is so from there on, which the
 * next start knows. */
static void other_states_are_not_taken(void **state)
{
    static const uint64_t then[] = {0, 8};
    counter c;

    (void)state;
    for (size_t i = 0; i < sizeof(then) / sizeof(then[0]); i++) {
        d9di_resumable_lines l = then[i] != 0 ? opened_counting(&c, then[i]) : opened(NULL);

        if (then[i] != 0)
            add_counted(&l, &c, 10);
        else
            add(&l, 10);
        d9di_resumable_lines_release(&l);
        for (int attempt = 0; attempt < 2; attempt++) {
            l = opened_counting(&c, 7);
            assert_int_equal(l.done, 10 + attempt * 10);
            assert_int_equal(l.counted_from, 10);
            assert_counted(&c, 10, l.done);
            add_counted(&l, &c, 10);
            d9di_resumable_lines_release(&l);
        }
        assert_ends_right(30);
        run("rm out");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(attempts_add_up),
        unit_test_in_dir(damage_is_not_believed),
        unit_test_in_dir(heads_are_proven),
        unit_test_in_dir(what_is_not_ours_stays),
        unit_test_in_dir(one_writes_at_a_time),
        unit_test_in_dir(who_was_first_keeps_the_name),
        unit_test_in_dir(states_go_on),
        unit_test_in_dir(states_ahead_are_not_kept),
        unit_test_in_dir(other_states_are_not_taken),
    };

    return cmocka_run_group_tests_name("lines", tests, NULL, NULL);
}
