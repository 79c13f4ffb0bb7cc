/* fuzz_field.c - any bytes as the fields of a document, and as the list of a shard's documents:
 * what is accepted lies within the bytes, and a part of it is accepted too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset/field_values.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const d9d_field fields[] = {
    {.name = "weight", .dtype = D9D_F32, .per = D9D_FIELD_PER_TARGET},
    {.name = "boxes",
     .dtype = D9D_I32,
     .per = D9D_FIELD_PER_SAMPLE,
     .rank = 1,
     .shape = {2},
     .ragged = true},
    {.name = "image", .dtype = D9D_U8, .per = D9D_FIELD_PER_SAMPLE, .rank = 2, .shape = {3, 3}},
};
static const d9d_field_list list = {fields, 3};

static void check_values(const char *p, size_t n, int64_t tokens)
{
    d9d_field_values v, half;
    d9d_buf part = {0};

    if (d9d_field_values_find(list, p, n, tokens, "document", &v) != D9D_OK)
        return;
    for (size_t i = 0; i < list.n; i++) {
        const size_t bytes = (size_t)v.rows[i] * d9d_field_bytes(&fields[i]);

        if (v.rows[i] < 0 || (const char *)v.data[i] < p || bytes > n ||
            (const char *)v.data[i] + bytes > p + n)
            abort();
    }
    if (d9di_field_slice(list, p, n, tokens, tokens / 2, tokens - tokens / 2, &part) != D9D_OK ||
        d9d_field_values_find(list, part.data, part.len, tokens - tokens / 2, "part", &half) !=
            D9D_OK ||
        half.rows[1] != v.rows[1] || memcmp(half.data[2], v.data[2], 9) != 0)
        abort();
    d9d_buf_release(&part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct d9di_field_document documents[64];
    const size_t n = size / sizeof(documents[0]) < 64 ? size / sizeof(documents[0]) : 64;
    size_t index, bytes;

    if (size < 1)
        return 0;
    check_values((const char *)data + 1, size - 1, data[0] % 16);
    memcpy(documents, data, n * sizeof(documents[0]));
    if (d9di_field_document_find(documents, n, size, data[0], "documents", &index, &bytes) ==
            D9D_OK &&
        (index >= n || documents[index].token != data[0] || documents[index].byte > size ||
         bytes > size - documents[index].byte))
        abort();
    return 0;
}
