/* reward_functions.c - the built-in rewards of completions.  See d9d/tasks/reward_function.h. */
#include "d9d/tasks/reward_function.h"

#include <ctype.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "tasks/tasks.h"

/* A part of a text. */
typedef struct text_part {
    const char *at;
    size_t n;
} text_part;

/* --- regular expressions ---------------------------------------------------------------------- */

static d9d_status pattern_compile(const char *pattern, regex_t *out)
{
    const int e = regcomp(out, pattern, REG_EXTENDED);
    char why[128];

    if (e == 0)
        return D9D_OK;
    (void)regerror(e, out, why, sizeof(why));
    return D9D_FAIL(D9D_ECONFIG, "task.rewards: \"%s\" is no extended regular expression: %s",
                    pattern, why);
}

/* The first group of the last match, or the match. */
static text_part last_match(const regex_t *r, const char *text)
{
    text_part found = {NULL, 0};
    regmatch_t m[2];

    for (int flags = 0; regexec(r, text, 2, m, flags) == 0; flags = REG_NOTBOL) {
        const int k = r->re_nsub > 0 && m[1].rm_so >= 0;

        found = (text_part){text + m[k].rm_so, (size_t)(m[k].rm_eo - m[k].rm_so)};
        if (text[m[0].rm_so] == '\0')
            break;
        text += m[0].rm_eo > m[0].rm_so ? m[0].rm_eo : m[0].rm_so + 1;
    }
    return found;
}

/* --- answer --------------------------------------------------------------------------------- */

enum answer_match { ANSWER_TEXT, ANSWER_NUMBER };
static const char *const answer_matches[] = {"text", "number", NULL};

typedef struct answer_section {
    int match;
    const char *pattern;
} answer_section;

typedef struct answer {
    const answer_section *c;
    regex_t pattern, number;
    bool has_pattern, has_number;
} answer;

static void answer_close(void *self)
{
    answer *a = self;

    if (a->has_pattern)
        regfree(&a->pattern);
    if (a->has_number)
        regfree(&a->number);
    free(a);
}

static d9d_status answer_compile(answer *a)
{
    D9D_TRY(pattern_compile("-?[0-9][0-9,]*(\\.[0-9]+)?", &a->number));
    a->has_number = true;
    if (a->c->pattern == NULL)
        return D9D_OK;
    D9D_TRY(pattern_compile(a->c->pattern, &a->pattern));
    a->has_pattern = true;
    return D9D_OK;
}

static d9d_status answer_open(const void *config, void **self)
{
    answer *a = calloc(1, sizeof(*a));
    d9d_status st;

    if (a == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task.rewards: no memory");
    a->c = config;
    st = answer_compile(a);
    if (st == D9D_OK)
        *self = a;
    else
        answer_close(a);
    return st;
}

static text_part trim(text_part x)
{
    while (x.n > 0 && isspace((unsigned char)x.at[0])) {
        x.at++;
        x.n--;
    }
    while (x.n > 0 && isspace((unsigned char)x.at[x.n - 1]))
        x.n--;
    return x;
}

/* The last number of a text, without the commas of thousands; NaN: there is none. */
static double last_number(const regex_t *number, const char *text)
{
    regmatch_t m[1];
    double found = NAN;

    while (regexec(number, text, 1, m, 0) == 0) {
        char digits[64];
        size_t n = 0;

        for (regoff_t i = m[0].rm_so; i < m[0].rm_eo && n + 1 < sizeof(digits); i++)
            if (text[i] != ',')
                digits[n++] = text[i];
        digits[n] = '\0';
        found = strtod(digits, NULL);
        text += m[0].rm_eo;
    }
    return found;
}

static bool text_equal(text_part a, text_part b)
{
    a = trim(a);
    b = trim(b);
    return a.n == b.n && memcmp(a.at, b.at, a.n) == 0;
}

static d9d_status answer_score_one(const answer *a, const d9d_reward_sample *x, double *reward)
{
    text_part given = {x->completion, strlen(x->completion)};
    const text_part right = {x->answer, strlen(x->answer)};
    char *copy;

    *reward = 0;
    if (a->has_pattern)
        given = last_match(&a->pattern, x->completion);
    if (given.at == NULL)
        return D9D_OK;
    if (a->c->match == ANSWER_TEXT) {
        *reward = text_equal(given, right);
        return D9D_OK;
    }
    copy = strndup(given.at, given.n);
    if (copy == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task.rewards: a completion of %zu bytes", given.n);
    *reward = last_number(&a->number, copy) == last_number(&a->number, x->answer);
    free(copy);
    return D9D_OK;
}

static d9d_status answer_score(void *self, const d9d_reward_sample *x, size_t n, double *rewards)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(answer_score_one(self, &x[i], &rewards[i]));
    return D9D_OK;
}

static const d9d_reward_kind answer_kind;
static const d9d_key answer_keys[] = {
    D9D_KEY_ENUM(answer_section, match, "\"text\"", answer_matches,
                 "what must be equal: the texts without space around them, or the last number in "
                 "each"),
    D9D_KEY_STR(answer_section, pattern, "null",
                "extended regular expression: its last match in the completion, or that of its "
                "first group, is compared; null: the whole",
                .flags = D9D_NULLABLE, .min = 1),
    D9D_KEY_END,
};
static const d9d_table answer_table =
    D9D_TABLE(answer_section, "answer", answer_keys, "1 for the sample's answer, else 0",
              .row = &answer_kind);
static const d9d_reward_kind answer_kind = {.size = sizeof(d9d_reward_kind),
                                            .table = &answer_table,
                                            .open = answer_open,
                                            .close = answer_close,
                                            .score = answer_score};

/* --- pattern ---------------------------------------------------------------------------------- */

typedef struct pattern_section {
    const char *pattern;
} pattern_section;

static d9d_status pattern_open(const void *config, void **self)
{
    regex_t *r = calloc(1, sizeof(*r));
    d9d_status st;

    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "task.rewards: no memory");
    st = pattern_compile(((const pattern_section *)config)->pattern, r);
    if (st == D9D_OK)
        *self = r;
    else
        free(r);
    return st;
}

static void pattern_close(void *self)
{
    regfree(self);
    free(self);
}

static d9d_status pattern_score(void *self, const d9d_reward_sample *x, size_t n, double *rewards)
{
    for (size_t i = 0; i < n; i++)
        rewards[i] = regexec(self, x[i].completion, 0, NULL, 0) == 0;
    return D9D_OK;
}

static const d9d_reward_kind pattern_kind;
static const d9d_key pattern_keys[] = {
    D9D_KEY_STR(pattern_section, pattern, D9D_REQUIRED,
                "extended regular expression; ^ and $ are the ends of the completion", .min = 1),
    D9D_KEY_END,
};
static const d9d_table pattern_table =
    D9D_TABLE(pattern_section, "pattern", pattern_keys,
              "1 where it is found in the completion, else 0", .row = &pattern_kind);
static const d9d_reward_kind pattern_kind = {.size = sizeof(d9d_reward_kind),
                                             .table = &pattern_table,
                                             .open = pattern_open,
                                             .close = pattern_close,
                                             .score = pattern_score};

/* --- length ----------------------------------------------------------------------------------- */

typedef struct length_section {
    int64_t target;
} length_section;

static d9d_status length_score(void *self, const d9d_reward_sample *x, size_t n, double *rewards)
{
    const double target = (double)((const length_section *)self)->target;

    for (size_t i = 0; i < n; i++)
        rewards[i] = -fabs((double)x[i].n_tokens - target) / target;
    return D9D_OK;
}

static const d9d_reward_kind length_kind;
static const d9d_key length_keys[] = {
    D9D_KEY_INT(length_section, target, D9D_REQUIRED, 1, 1 << 24, "tokens of a good completion"),
    D9D_KEY_END,
};
static const d9d_table length_table = D9D_TABLE(length_section, "length", length_keys,
                                                "-|tokens - target| / target", .row = &length_kind);
static const d9d_reward_kind length_kind = {
    .size = sizeof(d9d_reward_kind), .table = &length_table, .score = length_score};

const char *const d9d_reward_tag[] = {"name", NULL};
const d9d_table *const d9d_reward_choices[] = {&answer_table, &pattern_table, &length_table,
                                               &d9di_reward_command_table, NULL};
