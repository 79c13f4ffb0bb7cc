/* test_content_hash.c - content hashes: which changes they detect, and which they ignore. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/content_hash.h"
#include "support/unit.h"

enum { BIG = 9 << 20, SMALL = 1000 }; /* bytes of "b" and of the others */

/* A safetensors file; the byte `at` of the large tensor "b" is changed. */
struct content {
    const char *names; /* names of the tensors, one letter each */
    int64_t at;        /* -1: none */
    d9d_dtype dtype;
};

static int64_t bytes_of(char name)
{
    return name == 'b' ? BIG : SMALL;
}

static void put(const char *path, struct content c)
{
    unsigned char *data = calloc(BIG, 1);
    d9d_safetensors_writer *w;

    assert_non_null(data);
    for (int64_t i = 0; i < BIG; i++)
        data[i] = (unsigned char)(i * 7 + i / 4099);
    if (c.at >= 0)
        data[c.at] ^= 1;
    assert_ok(d9d_safetensors_writer_create(&w));
    for (const char *n = c.names; *n != '\0'; n++) {
        const int64_t shape[] = {bytes_of(*n) / (int64_t)d9d_dtype_size(c.dtype)};

        assert_ok(d9d_safetensors_writer_declare(w, (char[]){*n, '\0'}, c.dtype, 1, shape));
    }
    assert_ok(d9d_safetensors_writer_begin(w, path));
    for (size_t i = 0; c.names[i] != '\0'; i++)
        assert_ok(d9d_safetensors_writer_write(w, i, 0, data, (uint64_t)bytes_of(c.names[i])));
    assert_ok(d9d_safetensors_writer_end(w));
    d9d_safetensors_writer_free(w);
    free(data);
}

static d9d_hash one_file(struct content c)
{
    d9d_hash h;

    assert_int_equal(system("rm -rf x && mkdir x"), 0);
    put("x/model.safetensors", c);
    assert_ok(d9d_content_hash_checkpoint("x", 0, &h));
    return h;
}

#define PLAIN                                                                                      \
    (struct content)                                                                               \
    {                                                                                              \
        "abc", -1, D9D_BF16                                                                        \
    }

static void assert_other(d9d_hash a, struct content c)
{
    assert_false(d9d_hash_equal(a, one_file(c)));
}

static void test_content(void **state)
{
    const d9d_hash plain = one_file(PLAIN);
    const int64_t sampled[] = {0, 100, 4 << 20, (4 << 20) + 4095, 8 << 20, BIG - 4096, BIG - 1};

    (void)state;
    assert_true(d9d_hash_equal(plain, one_file(PLAIN)));
    for (size_t i = 0; i < sizeof(sampled) / sizeof(sampled[0]); i++)
        assert_other(plain, (struct content){"abc", sampled[i], D9D_BF16});
    assert_other(plain, (struct content){"abc", -1, D9D_F32});
    assert_other(plain, (struct content){"abd", -1, D9D_BF16});
    assert_other(plain, (struct content){"ab", -1, D9D_BF16});
    /* The limit that the header states. */
    assert_true(d9d_hash_equal(plain, one_file((struct content){"abc", 1 << 20, D9D_BF16})));
}

/* The number of files and other files in the directory do not matter. */
static void test_shards(void **state)
{
    static const char index[] = "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
                                "\"c\": \"model-00001-of-00002.safetensors\", "
                                "\"b\": \"model-00002-of-00002.safetensors\"}}";
    d9d_hash whole = one_file(PLAIN), h;

    (void)state;
    assert_int_equal(system("rm -rf y && mkdir y && echo hello > y/README.md"), 0);
    put("y/model-00001-of-00002.safetensors", (struct content){"ca", -1, D9D_BF16});
    put("y/model-00002-of-00002.safetensors", (struct content){"b", -1, D9D_BF16});
    assert_ok(d9d_fs_write_atomic("y/" D9D_CHECKPOINT_INDEX_NAME, index, strlen(index)));
    assert_ok(d9d_content_hash_checkpoint("y", 0, &h));
    assert_true(d9d_hash_equal(whole, h));
}

/* With a valid manifest every byte counts. */
static void test_manifest(void **state)
{
    d9d_hash a, b, damaged;

    (void)state;
    (void)one_file(PLAIN);
    assert_ok(d9d_manifest_write("x", NULL, 1, NULL));
    assert_ok(d9d_content_hash_checkpoint("x", 1, &a));
    (void)one_file((struct content){"abc", 1 << 20, D9D_BF16});
    assert_ok(d9d_manifest_write("x", NULL, 1, NULL));
    assert_ok(d9d_content_hash_checkpoint("x", 3, &b));
    assert_false(d9d_hash_equal(a, b));
    /* An unknown manifest has no effect. */
    assert_ok(d9d_fs_write_atomic("x/manifest.json", "{}", 2));
    assert_ok(d9d_content_hash_checkpoint("x", 0, &damaged));
    assert_true(d9d_hash_equal(damaged, one_file(PLAIN)));
}

static void test_adapter(void **state)
{
    d9d_hash a, b;

    (void)state;
    assert_int_equal(system("rm -rf z && mkdir z && echo '{\"r\": 4}' > z/adapter_config.json"), 0);
    put("z/adapter_model.safetensors", PLAIN);
    assert_ok(d9d_content_hash_adapter("z", &a));
    put("z/adapter_model.safetensors", (struct content){"abc", 0, D9D_BF16});
    assert_ok(d9d_content_hash_adapter("z", &b));
    assert_false(d9d_hash_equal(a, b));
    put("z/adapter_model.safetensors", PLAIN);
    assert_int_equal(system("echo '{\"r\": 8}' > z/adapter_config.json"), 0);
    assert_ok(d9d_content_hash_adapter("z", &b));
    assert_false(d9d_hash_equal(a, b));
    assert_fails_like(d9d_content_hash_adapter("nowhere", &b), D9D_ENOTFOUND, "nowhere");
}

static void test_glance(void **state)
{
    d9d_hash a, b;

    (void)state;
    (void)one_file(PLAIN);
    assert_ok(d9d_content_hash_quick("x", &a));
    (void)one_file((struct content){"abc", BIG - 1, D9D_BF16});
    assert_ok(d9d_content_hash_quick("x", &b));
    assert_false(d9d_hash_equal(a, b));
    assert_ok(d9d_fs_write_atomic("x/config.json", "{}", 2));
    assert_ok(d9d_content_hash_quick("x", &a));
    assert_false(d9d_hash_equal(a, b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_content),  unit_test_in_dir(test_shards),
        unit_test_in_dir(test_manifest), unit_test_in_dir(test_adapter),
        unit_test_in_dir(test_glance),
    };

    return cmocka_run_group_tests_name("identity", tests, NULL, NULL);
}
