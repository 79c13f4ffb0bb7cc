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

static void render(const d9d_jinja_template *t, const json_t *values)
{
    static const struct tm now = {.tm_year = 124, .tm_mday = 1};
    const d9d_jinja_opts how = {
        .max_steps = 20000, .max_output = 1 << 16, .max_memory = 1 << 22, .now = &now};
    d9d_jinja_spans spans = {0};
    d9d_buf out = {0};

    if (d9d_jinja_render(t, values, &how, &out, &spans) == D9D_OK) {
        const size_t n = out.len;

        must(n <= how.max_output);
        must(d9d_utf8_valid_up_to(n > 0 ? out.data : "", n) == n);
        for (size_t i = 0; i < spans.len; i++)
            must(spans.data[i].begin <= spans.data[i].end && spans.data[i].end <= n);
        must(d9d_jinja_render(t, values, &how, &out, NULL) == D9D_OK);
        must(out.len == 2 * n && (n == 0 || memcmp(out.data, out.data + n, n) == 0));
    } else {
        must(out.len == 0 && spans.len == 0);
    }
    D9D_VEC_RELEASE(&spans);
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
