/* fuzz_lmdb.c - any bytes as index.lmdb: rejected with an error, or records within the file.  The
 * manifest's hash does not authenticate the writer.
 *
 * The hash beside it says nothing of who wrote it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset/dataset_index.h"
#include "data/dataset/lmdb_file.h"

enum { LOOKED_AT = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int truth)
{
    if (!truth)
        abort();
}

/* Every byte of a value is read. */
static void look(d9di_dataset_index *ix)
{
    static const char *const splits[] = {"train", "valid", "", "samples"};
    uint64_t sum = 0;

    for (uint64_t k = 0; k < LOOKED_AT; k++) {
        d9di_dataset_index_record r;

        if (d9di_dataset_index_get(ix, k, &r) != D9D_OK)
            continue;
        need(r.n_segments >= 1);
        for (uint32_t i = 0; i < r.n_segments; i++)
            sum += r.segments[i];
    }
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        const char *json;
        size_t n;

        if (d9di_dataset_index_get_summary(ix, splits[i], &json, &n) != D9D_OK)
            continue;
        for (size_t j = 0; j < n; j++)
            sum += (unsigned char)json[j];
    }
    need(sum != UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9di_lmdb_tree samples;
    d9di_dataset_index *ix = NULL;
    d9di_lmdb db;

    if (d9di_lmdb_open("index", data, size, &db) != D9D_OK ||
        d9di_lmdb_find_tree(&db, "samples", &samples) != D9D_OK) {
        need(strncmp(d9d_err_message(), "index: ", 7) == 0);
        return 0;
    }
    if (d9di_dataset_index_open_bytes("index", data, size, samples.entries, &ix) == D9D_OK)
        look(ix);
    d9di_dataset_index_close(ix);
    return 0;
}
