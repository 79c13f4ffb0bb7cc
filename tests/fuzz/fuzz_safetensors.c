/* fuzz_safetensors.c - any bytes as a safetensors file: refused with a sentence, or sound. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "d9d/ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int truth)
{
    if (!truth)
        abort();
}

/* Tensors follow each other to the end of the file and can be read to their last byte. */
static void check(const d9d_st_file *f, size_t size)
{
    uint64_t end = 0;

    for (size_t i = 0; i < d9d_st_count(f); i++) {
        const d9d_st_tensor *t = d9d_st_at(f, i);
        uint64_t bytes;
        char c;

        need(d9d_st_shape_bytes(t->dtype, t->ndim, t->shape, &bytes) && bytes == t->bytes);
        need(i == 0 || t->offset == end);
        end = t->offset + t->bytes;
        need(end <= size && t->name[0] != '\0');
        need(d9d_st_find(f, t->name) == t);
        if (t->bytes > 0)
            need(d9d_st_read(f, t, t->bytes - 1, &c, 1) == D9D_OK);
        need(d9d_st_read(f, t, t->bytes, &c, 1) == D9D_EINVAL);
    }
    need(d9d_st_count(f) == 0 || end == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    char path[64];
    d9d_st_file *f = NULL;
    d9d_status st;

    need(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    st = d9d_st_open(path, &f);
    if (st == D9D_OK)
        check(f, size);
    else
        need(f == NULL && strstr(d9d_err_message(), path) != NULL);
    d9d_st_close(f);
    (void)close(fd);
    return 0;
}
