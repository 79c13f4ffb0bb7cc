/* test_golden_filter.c - Gopher's rules against datatrove, text by text; bands against datasketch.
 */
#include "support/unit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "d9d/data/filter/filter.h"
#include "data/filter/text_rules.h"
#include "support/vectors.h"

enum { MAX_LINE = 1 << 20 };

/* The name of the rule that a text breaks; "" for none. */
static const char *verdict(const double *thresholds, d9di_text_measures *m, const json_t *text)
{
    size_t n;
    const d9d_filter_rule *rules = d9d_filter_rules(&n);
    int rule;

    assert_ok(d9di_text_rules_check(thresholds, m, json_string_value(text),
                                    json_string_length(text), &rule));
    return rule == D9DI_TEXT_RULE_NONE ? "" : rules[rule].name;
}

static void test_rules(void **state)
{
    static const char *const keys[] = {"quality", "loose", "repetition"};
    gzFile in = gzopen(vectors_path("filter", "rules.jsonl.gz"), "rb");
    char *line = malloc(MAX_LINE);
    double thresholds[3][D9DI_TEXT_RULES];
    d9di_text_measures m = {.text = NULL};
    size_t n = 0;

    (void)state;
    assert_non_null(in);
    assert_non_null(line);
    assert_ok(d9di_text_rules_set(true, false, NULL, thresholds[0]));
    assert_ok(
        d9di_text_rules_set(true, false, "gopher_short_doc=5,gopher_long_doc=200", thresholds[1]));
    assert_ok(d9di_text_rules_set(false, true, NULL, thresholds[2]));
    for (; gzgets(in, line, MAX_LINE); n++) {
        json_t *v = json_loads(line, 0, NULL);

        assert_non_null(v);
        for (int i = 0; i < 3; i++) {
            const char *want = json_string_value(json_object_get(v, keys[i]));
            const char *got = verdict(thresholds[i], &m, json_object_get(v, "text"));

            if (strcmp(got, want) != 0)
                fail_msg("line %zu: %s: \"%s\", datatrove has \"%s\"", n + 1, keys[i], got, want);
        }
        json_decref(v);
    }
    assert_true(n > 400);
    d9di_text_measures_release(&m);
    gzclose(in);
    free(line);
}

static void test_bands(void **state)
{
    json_t *list = json_load_file(vectors_path("filter", "bands.json"), 0, NULL);
    json_t *row;
    size_t i;

    (void)state;
    assert_true(json_array_size(list) > 40);
    json_array_foreach(list, i, row)
    {
        const double similarity = json_number_value(json_array_get(row, 0));
        const int64_t n = json_integer_value(json_array_get(row, 1));
        int64_t bands = 0, rows = 0;

        d9d_filter_bands(similarity, n, &bands, &rows);
        if (bands != json_integer_value(json_array_get(row, 2)) ||
            rows != json_integer_value(json_array_get(row, 3)))
            fail_msg("similarity %g of %lld hashes: %lld bands of %lld rows", similarity,
                     (long long)n, (long long)bands, (long long)rows);
    }
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rules), cmocka_unit_test(test_bands)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
