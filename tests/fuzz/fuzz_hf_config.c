/* fuzz_hf_config.c - any bytes as config.json: refused, or dimensions that are in range. */
#include <stdint.h>
#include <stdlib.h>

#include "d9d/model/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_arena a = {0};
    d9d_qwen3_config c;
    json_t *doc;

    if (d9d_json_parse("config.json", (const char *)data, size, &doc) != D9D_OK)
        return 0;
    if (json_is_object(doc) && d9d_hf_config_parse(doc, "config.json", &a, &c) == D9D_OK) {
        if (d9d_qwen3_check(&c) != D9D_OK)
            abort();
        for (int64_t l = 0; l < c.layers; l++)
            if (d9d_qwen3_is_moe(&c, l) && c.experts == 0)
                abort();
    }
    json_decref(doc);
    d9d_arena_release(&a);
    return 0;
}
