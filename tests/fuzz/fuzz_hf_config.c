/* fuzz_hf_config.c - any bytes as config.json: rejected, or parsed to dimensions in range, which
 * survive a rewrite for another layout. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "d9d/model/hf/hf_config.h"
#include "d9d/models/qwen3/qwen3.h"
#include "d9d/models/qwen3/qwen3_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

static void check_range(const d9d_qwen3_config *c)
{
    must(d9d_qwen3_check(c) == D9D_OK);
    for (int64_t l = 0; l < c->layers; l++)
        must(!d9d_qwen3_is_moe(c, l) || c->experts > 0);
}

/* `doc` says what c is, whatever its head was marked as. */
static void check_same(const json_t *doc, d9d_arena *a, const d9d_qwen3_config *c)
{
    d9d_qwen3_config now;

    must(d9d_qwen3_config_parse(doc, "config.json", a, &now) == D9D_OK);
    for (int64_t l = 0; l < c->layers && c->layers == now.layers; l++)
        must(d9d_qwen3_is_moe(c, l) == d9d_qwen3_is_moe(&now, l) &&
             d9d_qwen3_window(c, l) == d9d_qwen3_window(&now, l));
    must(now.splits[0].size == c->splits[0].size);
    now.splits = c->splits;
    now.moe_layer = c->moe_layer;
    now.windowed = c->windowed;
    now.head_unknown = c->head_unknown;
    must(memcmp(c, &now, sizeof(now)) == 0);
}

/* The text for `doc`, from a file with these bytes, is `doc`. */
static void check_text(const json_t *doc, const uint8_t *data, size_t size)
{
    int fd = memfd_create("config.json", MFD_CLOEXEC);
    d9d_buf text = {0};
    char path[64];
    json_t *read;

    must(fd >= 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    must(d9d_hf_config_text(doc, path, &text) == D9D_OK);
    must(d9d_json_parse("config.json", text.data, text.len, &read) == D9D_OK);
    must(json_equal(read, doc));
    json_decref(read);
    d9d_buf_release(&text);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_arena a = {0};
    d9d_qwen3_config c = {0};
    json_t *doc;

    if (d9d_json_parse("config.json", (const char *)data, size, &doc) != D9D_OK)
        return 0;
    if (json_is_object(doc) && d9d_qwen3_config_parse(doc, "config.json", &a, &c) == D9D_OK) {
        check_range(&c);
        must(d9d_qwen3_config_mark(doc, &c, size % 2 == 0) == D9D_OK);
        check_text(doc, data, size);
        for (int generation = 4; generation <= 5; generation++) {
            must(d9d_hf_config_set_generation(doc, generation) == D9D_OK);
            check_same(doc, &a, &c);
        }
        d9d_hf_config_unmark(doc);
        check_text(doc, data, size);
    }
    json_decref(doc);
    d9d_arena_release(&a);
    return 0;
}
