/* test_reward_functions.c - the built-in rewards; tests/tools/grpo.bats has programs. */
#include "support/unit.h"

#include <math.h>

#include "d9d/tasks/reward_function.h"

typedef struct one {
    d9d_union reward;
} one;

static d9d_status bind(const char *text, d9d_arena *a, one *out)
{
    static const d9d_key keys[] = {
        D9D_KEY_UNION(one, reward, D9D_REQUIRED, d9d_reward_tag, d9d_reward_choices, "a reward"),
        D9D_KEY_END};
    static const d9d_table table = D9D_TABLE(one, "one", keys, "one reward");
    json_t *doc = json_pack("{s:o}", "reward", json_loads(text, 0, NULL));
    d9d_status st;

    assert_non_null(doc);
    st = d9d_config_bind(&table, doc, "c.json", NULL, a, out);
    json_decref(doc);
    return st;
}

/* What a completion is worth where `answer` is right. */
static double worth(const char *text, const char *completion, const char *answer, size_t tokens)
{
    const d9d_reward_sample x = {
        .prompt = "", .completion = completion, .answer = answer, .n_tokens = tokens};
    const d9d_reward_kind *kind;
    d9d_arena a = {0};
    double reward;
    void *self;
    one o;

    assert_ok(bind(text, &a, &o));
    kind = o.reward.choice->row;
    self = o.reward.value;
    if (kind->open != NULL)
        assert_ok(kind->open(o.reward.value, &self));
    assert_ok(kind->score(self, &x, 1, &reward));
    if (kind->close != NULL)
        kind->close(self);
    d9d_arena_release(&a);
    return reward;
}

static void answers_are_compared(void **state)
{
    static const char text[] = "{\"name\": \"answer\"}",
                      number[] = "{\"name\": \"answer\", \"match\": \"number\"}",
                      boxed[] = "{\"name\": \"answer\", \"pattern\": \"box[(]([^)]*)[)]\"}",
                      both[] = "{\"name\": \"answer\", \"match\": \"number\", \"pattern\": "
                               "\"= *(.*)\"}";
    static const struct {
        const char *reward, *completion, *answer;
        double want;
    } cases[] = {
        {text, " 12\n", "12", 1},
        {text, "112", "12", 0},
        {text, "", "12", 0},
        {text, "", "", 1},
        {number, "7 and 5 are 12", "the answer is 12.0", 1},
        {number, "12 or 13", "12", 0},
        {number, "1,234,567", "#### 1234567", 1},
        {number, "-3.50", "-3.5", 1},
        {number, "none", "12", 0},
        {number, "12", "none", 0},
        {number, "none", "none", 0},
        {boxed, "box(7) no, box( 12 )", "12", 1},
        {boxed, "12", "12", 0},
        {both, "5 = 4 = 12 apples", "12", 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (worth(cases[i].reward, cases[i].completion, cases[i].answer, 1) != cases[i].want)
            fail_msg("%s of \"%s\" for \"%s\" is not %g", cases[i].reward, cases[i].completion,
                     cases[i].answer, cases[i].want);
}

static void patterns_and_lengths(void **state)
{
    static const char whole[] = "{\"name\": \"pattern\", \"pattern\": \"^a+$\"}",
                      length[] = "{\"name\": \"length\", \"target\": 8}",
                      empty[] = "{\"name\": \"answer\", \"pattern\": \"x*\"}";

    (void)state;
    assert_true(worth(whole, "aaa", "", 1) == 1);
    assert_true(worth(whole, "baaa", "", 1) == 0);
    assert_true(worth(length, "", "", 8) == 0);
    assert_true(worth(length, "", "", 6) == -0.25);
    assert_true(worth(length, "", "", 16) == -1);
    assert_true(worth(empty, "aaxx", "", 1) == 1); /* the last match is empty, at the end */
}

static void wrong_expressions_are_refused(void **state)
{
    d9d_arena a = {0};
    void *self;
    one o;

    (void)state;
    assert_ok(bind("{\"name\": \"answer\", \"pattern\": \"[a\"}", &a, &o));
    assert_fails(((const d9d_reward_kind *)o.reward.choice->row)->open(o.reward.value, &self),
                 D9D_ECONFIG,
                 "task.rewards: \"[a\" is no extended regular expression: Unmatched [, [^, [:, [., "
                 "or [=");
    d9d_arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_are_compared),
                                       cmocka_unit_test(patterns_and_lengths),
                                       cmocka_unit_test(wrong_expressions_are_refused)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
