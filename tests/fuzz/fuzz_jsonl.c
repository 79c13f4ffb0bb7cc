/* fuzz_jsonl.c - any bytes as a line of JSON: what the scanner accepts, a JSON parser accepts. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/io/jsonl.h"
#include "data/io/preference_layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Jansson refuses numbers that do not fit a double and deeper nesting is its own affair; text
 * that it does take must have given the same string. */
static void compare(const char *line, size_t n, const d9d_buf *got)
{
    json_error_t e;
    json_t *v = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    const json_t *text = json_object_get(v, "text");

    if (v != NULL && (!json_is_string(text) || json_string_length(text) != got->len ||
                      (got->len > 0 && memcmp(json_string_value(text), got->data, got->len) != 0)))
        abort();
    json_decref(v);
}

/* Counts the numbers of each array. */
static d9d_status count_number(void *arg, size_t array, const d9di_jsonl_number *v)
{
    if (array == 1 && (v->whole < -5 || v->whole > 300))
        abort();
    ((int64_t *)arg)[array]++;
    return D9D_OK;
}

/* A number, rows of two integers, and a matrix. */
static void check_arrays(const char *line, size_t n)
{
    static const int64_t rows[] = {-1, 2}, matrix[] = {2, 3};
    d9di_jsonl_array arrays[] = {
        {.key = "x", .rank = 0, .nulls = true},
        {.key = "r", .rank = 2, .shape = rows, .whole = true, .min = -5, .max = 300},
        {.key = "m", .rank = 2, .shape = matrix}};
    int64_t counts[3] = {0};
    d9di_jsonl_error error;

    if (d9di_jsonl_get_arrays(line, n, arrays, 3, count_number, counts, &error) == D9D_OK &&
        (counts[0] != 1 || counts[1] != 2 * arrays[1].rows || counts[2] != 6))
        abort();
}

/* A chat that is made of a record has messages with roles, and an answer at its end. */
static void check_chat(const json_t *chat)
{
    const json_t *messages = json_object_get(chat, "messages");
    const size_t n = json_array_size(messages);

    if (chat == NULL)
        return;
    if (n == 0 || json_object_get(json_array_get(messages, n - 1), "weight") != NULL)
        return; /* a list may be empty, and a message its own weight: the template sees to them */
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            abort();
}

static void read_answers(const char *line, size_t size)
{
    d9di_jsonl_error error;
    d9di_answer_pair p;
    json_t *mismatch = NULL;

    if (d9di_answer_pair_read(line, size, NULL, &p, &error) == D9D_OK) {
        if (p.chosen == NULL || p.rejected == NULL)
            abort();
        check_chat(p.chosen);
        check_chat(p.rejected);
        d9di_answer_pair_release(&p);
    }
    if (d9di_answer_pair_read_unpaired(line, size, NULL, &p, &error) == D9D_OK) {
        if ((p.chosen == NULL) == (p.rejected == NULL))
            abort();
        d9di_answer_pair_release(&p);
    }
    if (d9di_answer_pair_read_mismatch(line, size, line, size, &mismatch, &error) == D9D_OK)
        check_chat(mismatch);
    json_decref(mismatch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data;
    d9d_token_ids ids = {0};
    d9di_token_labels labels = {0};
    d9di_jsonl_error error;
    d9d_buf text = {0};
    json_t *chat = NULL;
    bool has_labels = false;
    int32_t label = -1;

    if (d9d_utf8_valid_up_to(line, size) != size)
        return 0;
    if (d9di_jsonl_get_text(line, size, "text", &text, &error) == D9D_OK)
        compare(line, size, &text);
    if (d9di_jsonl_get_label(line, size, "label", 100, &label, &error) == D9D_OK &&
        (label < 0 || label >= 100))
        abort();
    if (d9di_jsonl_get_tokens(line, size, 100, &ids, &labels, &has_labels, &error) == D9D_OK) {
        if (has_labels && labels.len != ids.len)
            abort();
        for (size_t i = 0; i < ids.len; i++)
            if (ids.data[i] >= 100)
                abort();
    }
    read_answers(line, size);
    if (d9di_jsonl_get_chat(line, size, NULL, &chat, &error) == D9D_OK) {
        const json_t *messages = json_object_get(chat, "messages");

        if (!json_is_array(messages) || json_object_get(chat, "system") != NULL)
            abort();
        for (size_t i = 0; i < json_array_size(messages); i++)
            if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
                abort();
    }
    check_arrays(line, size);
    json_decref(chat);
    d9d_buf_release(&text);
    D9D_VEC_RELEASE(&ids);
    D9D_VEC_RELEASE(&labels);
    return 0;
}
