/* fuzz_jinja.c - any bytes as a template: rejected, or rendered within its limits, twice to the
 * same bytes, which are UTF-8.  Text up to the first NUL is the template, what follows is the
 * context. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/data/jinja/jinja.h"
#include "d9d/data/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static const char context[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"a \\u00e9<b>\\n\"},"
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\","
    "\"arguments\": {\"x\": 1, \"y\": [1.5, true]}}}]}],"
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"n\": 3, \"f\": -0.5,"
    "\"add_generation_prompt\": true}";

enum { MAX_ITEMS = 64, MARK = 7 };

static void render(const d9d_jinja_template *t, const json_t *values)
{
    static const struct tm now = {.tm_year = 124, .tm_mday = 1};
    const json_t *items = json_object_get(values, "messages");
    const size_t n_items = json_array_size(items);
    char marks[MAX_ITEMS];
    const d9d_jinja_opts opts = {.max_steps = 20000,
                                 .max_output = 1 << 16,
                                 .max_memory = 1 << 22,
                                 .now = &now,
                                 .data = values,
                                 .items = items,
                                 .marks = n_items <= MAX_ITEMS ? marks : NULL};
    d9d_jinja_trace trace = {0};
    d9d_buf out = {0};

    memset(marks, MARK, sizeof(marks));
    if (d9d_jinja_render(t, values, &opts, &out, &trace) == D9D_OK) {
        const size_t n = out.len;

        must(n <= opts.max_output);
        must(d9d_utf8_valid_up_to(n > 0 ? out.data : "", n) == n);
        must(trace.data.len == n);
        for (size_t i = 0; i < n; i++)
            must(trace.data.data[i] == 0 || trace.data.data[i] == 1 || trace.data.data[i] == MARK);
        for (size_t i = 0; i < trace.generation.len; i++)
            must(trace.generation.data[i].begin <= trace.generation.data[i].end &&
                 trace.generation.data[i].end <= n);
        for (size_t i = 0; i < trace.visits.len; i++)
            must(trace.visits.data[i].span.begin < trace.visits.data[i].span.end &&
                 trace.visits.data[i].span.end <= n && trace.visits.data[i].item < n_items);
        must(d9d_jinja_render(t, values, &opts, &out, NULL) == D9D_OK);
        must(out.len == 2 * n && (n == 0 || memcmp(out.data, out.data + n, n) == 0));
    } else {
        must(out.len == 0 && trace.generation.len == 0 && trace.data.len == 0);
    }
    d9d_jinja_trace_release(&trace);
    d9d_buf_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n = nul != NULL ? (size_t)(nul - data) : size;
    const d9d_jinja_template *t;
    d9d_arena arena = {0};
    json_t *values = NULL;

    if (d9d_jinja_compile((const char *)data, n, "t", &arena, &t) == D9D_OK) {
        if (nul == NULL ||
            d9d_json_parse("c", (const char *)nul + 1, size - n - 1, &values) != D9D_OK)
            values = json_loads(context, 0, NULL);
        must(values != NULL);
        if (json_is_object(values))
            render(t, values);
    }
    json_decref(values);
    d9d_arena_release(&arena);
    return 0;
}
