/* test_published.c - config.json files of published models (tests/golden/published): which family
 * reads each, its number of parameters to the last one, and the sentence that refuses it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/convert/describe.h"
#include "support/unit.h"
#include "support/vectors.h"

#define FILE_NAME "config.json"

/* Every member of the record that says what is expected is that of the description. */
static void check_member(const char *model, const char *name, const json_t *want, const json_t *got)
{
    d9d_buf a = {0}, b = {0};

    if (want == NULL && (got == NULL || json_is_null(got)))
        return;
    assert_ok(d9d_json_put(&a, want != NULL ? want : json_null(), -1));
    assert_ok(d9d_json_put(&b, got != NULL ? got : json_null(), -1));
    if (strcmp(a.data, b.data) != 0)
        fail_msg("%s: %s is %s, not %s", model, name, (char *)b.data, (char *)a.data);
    d9d_buf_release(&a);
    d9d_buf_release(&b);
}

/* A sentence ends as it should, or where a list begins that grows. */
static bool is_sentence(const char *got, const char *want)
{
    const size_t n = strlen(want);

    return strncmp(got, FILE_NAME ": ", strlen(FILE_NAME ": ")) == 0 &&
           (n > 10 && strcmp(want + n - 10, "there are ") == 0
                ? strncmp(got + strlen(FILE_NAME ": "), want, n) == 0
                : strcmp(got + strlen(FILE_NAME ": "), want) == 0);
}

static void check_refused(const char *model, const json_t *want, const json_t *got)
{
    if (json_array_size(want) != json_array_size(got))
        fail_msg("%s: %zu reasons to refuse it, not %zu; the first is %s", model,
                 json_array_size(got), json_array_size(want),
                 json_array_size(got) > 0 ? json_string_value(json_array_get(got, 0)) : "none");
    for (size_t i = 0; i < json_array_size(got); i++) {
        const char *g = json_string_value(json_array_get(got, i));
        const char *w = json_string_value(json_array_get(want, i));

        if (!is_sentence(g, w))
            fail_msg("%s: refused: %s, not: %s", model, g, w);
    }
}

/* A document that is refused as a whole has one sentence. */
static json_t *described(void)
{
    json_t *out;

    return d9d_describe_model(FILE_NAME, NULL, &out) == D9D_OK
               ? out
               : json_pack("{s:[s]}", "refused", d9d_err_message());
}

static void check_model(const json_t *record)
{
    static const char *const members[] = {"family", "parameters", "decoded"};
    const char *model = json_string_value(json_object_get(record, "model"));
    json_t *got;
    d9d_buf text = {0};

    assert_ok(d9d_json_put(&text, json_object_get(record, "config"), 1));
    assert_ok(d9d_fs_write_atomic(FILE_NAME, text.data, text.len));
    got = described();
    assert_non_null(got);
    for (size_t i = 0; i < 3; i++)
        if (json_object_get(record, "refused") == NULL || json_object_get(record, members[i]))
            check_member(model, members[i], json_object_get(record, members[i]),
                         json_object_get(got, members[i]));
    check_refused(model, json_object_get(record, "refused"), json_object_get(got, "refused"));
    if (json_array_size(json_object_get(got, "notes")) != 0)
        fail_msg("%s has notes", model);
    d9d_buf_release(&text);
    json_decref(got);
}

static void published_configurations_are_read_or_refused(void **state)
{
    FILE *f = fopen(vectors_path("published", "models.jsonl"), "r");
    char *line = NULL;
    size_t capacity = 0, n = 0;

    assert_non_null(f);
    assert_int_equal(unit_dir_setup(state), 0);
    while (getline(&line, &capacity, f) > 0) {
        json_t *record;

        assert_ok(d9d_json_parse("models.jsonl", line, strlen(line), &record));
        check_model(record);
        json_decref(record);
        n++;
    }
    assert_true(n > 100);
    free(line);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(unit_dir_teardown(state), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_configurations_are_read_or_refused),
    };

    return cmocka_run_group_tests_name("published", tests, NULL, NULL);
}
