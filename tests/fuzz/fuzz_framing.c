/* fuzz_framing.c - any bytes as an array of objects or as a table, read in blocks of any size: the
 * documents are those of the whole, lie in the input one behind the other, and rows are objects. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/io/csv.h"
#include "data/io/framing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A row is an object, or refused. */
static void convert(const char *row, size_t n)
{
    d9di_jsonl_error error = {.message = ""};
    d9d_buf out = {0};

    if (d9d_utf8_valid_up_to(row, n) == n &&
        d9di_csv_row_to_json(',', "a,b", 3, row, n, &out, &error) == D9D_OK) {
        json_t *v = json_loadb(out.data, out.len, JSON_ALLOW_NUL, NULL);

        if (json_object_size(v) != 2)
            abort();
        json_decref(v);
    }
    d9d_buf_release(&out);
}

/* A number of the documents' places, read in blocks of `block` bytes. */
static uint64_t read_all(d9di_framing f, const char *text, size_t n, size_t block)
{
    size_t at = 0, have = block < n ? block : n;
    d9di_framing_scan scan = {0};
    uint64_t sum = 7;

    for (;;) {
        d9di_framing_span s;

        if (d9di_framing_find(f, text + at, have - at, at == 0, have == n, &scan, &s) != D9D_OK)
            return sum * 31 + 1;
        if (!s.found && have == n)
            return sum;
        if (!s.found) {
            have = have + block < n ? have + block : n;
            continue;
        }
        if (s.begin + s.len > s.used || s.used > have - at || s.used == 0)
            abort();
        sum = (sum * 31 + at + s.begin) * 31 + s.len;
        if (f == D9DI_FRAMING_CSV && block >= n)
            convert(text + at, s.len);
        at += s.used;
        scan = (d9di_framing_scan){0};
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const d9di_framing framings[] = {D9DI_FRAMING_ARRAY, D9DI_FRAMING_CSV, D9DI_FRAMING_TSV,
                                            D9DI_FRAMING_LINES};
    const char *text = (const char *)data;
    const size_t block = size > 0 ? data[size - 1] % 17u + 1 : 1;

    for (size_t i = 0; i < sizeof(framings) / sizeof(framings[0]); i++)
        if (read_all(framings[i], text, size, size + 1) != read_all(framings[i], text, size, block))
            abort();
    return 0;
}
