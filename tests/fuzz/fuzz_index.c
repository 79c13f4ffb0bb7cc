/* fuzz_index.c - any bytes as model.safetensors.index.json: no name leads out of the
 * directory. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors/st_index.h"
#include "d9d/base/fs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9di_safetensors_index x = {0};

    if (d9di_safetensors_index_parse("index", (const char *)data, size, &x) == D9D_OK)
        for (size_t i = 0; i < x.map.len; i++) {
            const char *file = x.map.entries[i].value;

            if (strchr(file, '/') != NULL || strcmp(file, "..") == 0 || file[0] == '\0' ||
                x.n_files == 0 || x.n_files > x.map.len)
                abort();
        }
    else if (strncmp(d9d_err_message(), "index: ", 7) != 0)
        abort();
    d9di_safetensors_index_release(&x);
    return 0;
}
