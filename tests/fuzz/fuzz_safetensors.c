/* fuzz_safetensors.c - any bytes as a safetensors file: rejected with an error, or valid.
 *
 * The input is used as a file, and as a header: with its length before it, and followed by as many
 * bytes as its tensors need. */
#include <endian.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors/st_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(int truth)
{
    if (!truth)
        abort();
}

/* Tensors follow each other to the end of the file. */
static void check(const d9d_safetensors_file *f, uint64_t size)
{
    uint64_t end = 0;

    for (size_t i = 0; i < d9d_safetensors_count(f); i++) {
        const d9d_safetensors_tensor *t = d9d_safetensors_at(f, i);
        char text[D9D_SAFETENSORS_DESCRIBE];
        uint64_t bytes;
        char c;

        need(d9d_safetensors_shape_bytes(t->dtype, t->ndim, t->shape, &bytes) && bytes == t->bytes);
        need(i == 0 || t->offset == end);
        end = t->offset + t->bytes;
        need(end <= size && t->name[0] != '\0');
        need(d9d_safetensors_find(f, t->name) == t);
        need(strlen(d9d_safetensors_describe(t, text)) < sizeof(text));
        need(d9d_safetensors_read(f, t, t->bytes, &c, 1) == D9D_EINVAL);
    }
    need(d9d_safetensors_count(f) == 0 || end == size);
}

static void parse(const void *head, size_t n, uint64_t size)
{
    d9d_safetensors_file *f = NULL;

    if (d9di_safetensors_parse("a.safetensors", head, n, size, &f) == D9D_OK)
        check(f, size);
    else
        need(f == NULL && strstr(d9d_err_message(), "a.safetensors") != NULL);
    d9d_safetensors_close(f);
}

/* The largest number of up to 18 digits after a "data_offsets". */
static uint64_t asked_for(const char *text)
{
    static const char key[] = "\"data_offsets\"";
    uint64_t most = 0;

    while ((text = strstr(text, key)) != NULL) {
        const char *end = strpbrk(text + sizeof(key) - 1, "]{}\"");

        for (text += sizeof(key) - 1; text < end; text++) {
            const size_t digits = strspn(text, "0123456789");
            const uint64_t v = digits > 0 && digits < 19 ? strtoull(text, NULL, 10) : 0;

            most = v > most ? v : most;
            text += digits;
        }
    }
    return most;
}

static void parse_header(const uint8_t *data, size_t size)
{
    const uint64_t prefix = htole64(size);
    char *file = malloc(sizeof(prefix) + size + 1);

    need(file != NULL);
    memcpy(file, &prefix, sizeof(prefix));
    memcpy(file + sizeof(prefix), data, size);
    file[sizeof(prefix) + size] = '\0';
    parse(file, sizeof(prefix) + size, sizeof(prefix) + size + asked_for(file + sizeof(prefix)));
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    parse(data, size, size);
    if (size > 0)
        parse_header(data, size);
    return 0;
}
