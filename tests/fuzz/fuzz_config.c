/* fuzz_config.c - a document through a key table with unions, lists and nesting.
 *
 * The first line is an assignment (--set), the rest the document.  What resolves must
 * bind, and resolve to itself. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/sched/piecewise.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void lay_out(const d9d_piecewise_config *c)
{
    d9d_piecewise *s = NULL;

    if (d9d_piecewise_create(c, "fuzz", 1000, &s) != D9D_OK)
        return;
    for (int64_t k = -1; k <= 1000; k++)
        must(!isnan(d9d_piecewise_at(s, k)));
    d9d_piecewise_free(s);
}

static void walk(const json_t *doc)
{
    json_t *full = NULL, *again = NULL;
    d9d_piecewise_config c;
    d9d_arena a = {0};
    d9d_status st;

    if (d9d_config_resolve(&d9d_piecewise_table, doc, "fuzz", NULL, &full) != D9D_OK)
        return;
    st = d9d_config_resolve(&d9d_piecewise_table, full, "fuzz", NULL, &again);
    must(st == D9D_OK && json_equal(full, again));
    st = d9d_config_bind(&d9d_piecewise_table, full, "fuzz", NULL, &a, &c);
    must(st == D9D_OK);
    lay_out(&c);
    d9d_arena_release(&a);
    json_decref(again);
    json_decref(full);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 0 ? memchr(data, '\n', size) : NULL;
    json_t *doc = NULL;
    d9d_arena a = {0};
    char *set;

    if (end == NULL)
        return 0;
    set = d9d_arena_strndup(&a, (const char *)data, (size_t)(end - data));
    end++;
    if (set != NULL &&
        d9d_json_parse("fuzz", (const char *)end, size - (size_t)(end - data), &doc) == D9D_OK) {
        if (*set == '\0' || (json_is_object(doc) && d9d_config_set(NULL, doc, set) == D9D_OK))
            walk(doc);
        json_decref(doc);
    }
    d9d_arena_release(&a);
    return 0;
}
