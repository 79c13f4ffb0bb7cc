/* test_expert_nodes.c - how many ranks of an expert group are on one node. */
#include <string.h>

#include "engine/expert_nodes.h"
#include "support/unit.h"

/* A letter is the node of a rank. */
static int64_t local(const char *letters, int64_t expert)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    const char *node[16];
    const size_t n = strlen(letters);

    assert_true(n <= 16);
    for (size_t r = 0; r < n; r++)
        node[r] = names[letters[r] - 'a'];
    return d9di_expert_nodes_local(node, (int64_t)n, expert);
}

static void groups_over_whole_nodes(void **state)
{
    (void)state;
    assert_int_equal(local("aabb", 4), 2);
    assert_int_equal(local("aaaabbbb", 8), 4);
    assert_int_equal(local("aabbccdd", 4), 2);
    assert_int_equal(local("aabbccdd", 8), 2);
    assert_int_equal(local("aabbaabb", 4), 2);
}

static void other_groups(void **state)
{
    (void)state;
    assert_int_equal(local("aaaa", 4), 1);
    assert_int_equal(local("aaaabbbb", 4), 1);
    assert_int_equal(local("abcd", 4), 1);
    assert_int_equal(local("aaab", 4), 1);
    assert_int_equal(local("abab", 4), 1);
    assert_int_equal(local("aabbaaab", 4), 1);
    assert_int_equal(local("aabbccca", 4), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_over_whole_nodes),
        cmocka_unit_test(other_groups),
    };

    return cmocka_run_group_tests_name("expert_nodes", tests, NULL, NULL);
}
