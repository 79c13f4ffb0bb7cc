/* fuzz_manifest.c - any bytes as manifest.json, unchanged and with a valid hash. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/dir/manifest.h"
#include "sealed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool leads_out(const char *name)
{
    return name[0] == '/' || strcmp(name, "..") == 0 || strncmp(name, "../", 3) == 0 ||
           strstr(name, "/../") != NULL || strstr(name, "//") != NULL ||
           (strlen(name) > 2 && strcmp(name + strlen(name) - 3, "/..") == 0);
}

static void parse(const char *text, size_t n)
{
    d9d_manifest *m;

    if (d9d_manifest_parse("dir", text, n, &m) != D9D_OK)
        return;
    for (size_t i = 0; i < d9d_manifest_count(m); i++) {
        const d9d_manifest_file *f = d9d_manifest_at(m, i);

        if (leads_out(f->name) || d9d_manifest_find(m, f->name) != f ||
            f->n_chunks != (f->bytes + D9D_MANIFEST_CHUNK - 1) / D9D_MANIFEST_CHUNK)
            abort();
    }
    d9d_manifest_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_buf text = sealed(data, size);

    parse((const char *)data, size);
    parse(text.data, text.len);
    d9d_buf_release(&text);
    return 0;
}
