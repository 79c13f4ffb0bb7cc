/* fuzz_dataset_manifest.c - any bytes as manifest.json of a dataset, with a valid hash; an accepted
 * manifest must be consistent. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/dataset/dataset_manifest.h"
#include "sealed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const d9di_dataset_manifest *m)
{
    int64_t samples = 0, tokens = 0;

    for (size_t i = 0; i < m->n_splits; i++) {
        if (m->splits[i].first != samples)
            abort();
        samples += m->splits[i].samples;
    }
    for (uint32_t i = 0; i < m->n_shards; i++)
        tokens += m->shard_tokens[i];
    if (samples != m->samples || tokens != m->tokens)
        abort();
    for (size_t i = 0; i < m->n_files; i++)
        if (strchr(m->files[i].name, '/') != NULL ||
            d9di_dataset_manifest_file(m, m->files[i].name) != &m->files[i])
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_buf text = sealed(data, size);
    d9di_dataset_manifest m;

    if (d9di_dataset_manifest_parse("manifest.json", text.data, text.len, &m) == D9D_OK) {
        check(&m);
        d9di_dataset_manifest_release(&m);
    }
    d9d_buf_release(&text);
    return 0;
}
