/* test_safetensors.c - the safetensors format: round trips, and rejected files. */
#include "support/unit.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/ckpt/safetensors/safetensors.h"

/* Writes a file with this header and n bytes of data. */
static void make(const char *path, const char *header, size_t n)
{
    uint64_t len = htole64(strlen(header));
    FILE *fp = fopen(path, "wb");

    assert_non_null(fp);
    assert_int_equal(fwrite(&len, 8, 1, fp), 1);
    assert_int_equal(fwrite(header, 1, strlen(header), fp), strlen(header));
    for (size_t i = 0; i < n; i++)
        assert_int_not_equal(fputc((int)(i & 0xff), fp), EOF);
    assert_int_equal(fclose(fp), 0);
}

static void what_is_written_is_read_back(void **state)
{
    const int64_t a[] = {2, 3}, b[] = {5};
    const float values[6] = {1, 2, 3, 4, 5, 6};
    float got[6];
    d9d_safetensors_writer *w;
    d9d_safetensors_file *f;
    char text[D9D_SAFETENSORS_DESCRIBE];

    (void)state;
    assert_ok(d9d_safetensors_writer_create(&w));
    assert_ok(d9d_safetensors_writer_metadata(w, "format", "pt"));
    assert_ok(d9d_safetensors_writer_declare(w, "bytes", D9D_U8, 1, b));
    assert_ok(d9d_safetensors_writer_declare(w, "é\"quoted\"", D9D_F32, 2, a));
    assert_ok(d9d_safetensors_writer_declare(w, "scalar", D9D_I64, 0, NULL));
    assert_ok(d9d_safetensors_writer_begin(w, "a.safetensors"));
    assert_ok(d9d_safetensors_writer_write(w, 1, 8, values + 2, 16));
    assert_ok(d9d_safetensors_writer_write(w, 1, 0, values, 8));
    assert_ok(d9d_safetensors_writer_write(w, 0, 0, "hello", 5));
    assert_fails(d9d_safetensors_writer_write(w, 0, 1, "hello", 5), D9D_EINVAL,
                 "a.safetensors: tensor bytes: 5 bytes at 1, it has 5");
    assert_fails(d9d_safetensors_writer_end(w), D9D_EINVAL,
                 "a.safetensors: tensor scalar: 0 bytes were written, it has 8");
    assert_ok(d9d_safetensors_writer_write(w, 2, 0, "12345678", 8));
    assert_ok(d9d_safetensors_writer_end(w));
    d9d_safetensors_writer_free(w);

    assert_ok(d9d_safetensors_open("a.safetensors", &f));
    assert_int_equal(d9d_safetensors_count(f), 3);
    assert_string_equal(d9d_safetensors_metadata(f, "format"), "pt");
    assert_null(d9d_safetensors_metadata(f, "other"));
    assert_null(d9d_safetensors_find(f, "other"));
    /* Wider elements come first, so that all are aligned. */
    assert_string_equal(d9d_safetensors_at(f, 0)->name, "scalar");
    assert_int_equal(d9d_safetensors_at(f, 0)->offset % 8, 0);
    assert_string_equal(d9d_safetensors_at(f, 2)->name, "bytes");
    assert_string_equal(d9d_safetensors_describe(d9d_safetensors_at(f, 1), text), "F32 [2, 3]");
    assert_ok(d9d_safetensors_read(f, d9d_safetensors_find(f, "é\"quoted\""), 0, got, sizeof(got)));
    assert_memory_equal(got, values, sizeof(got));
    assert_fails_like(d9d_safetensors_read(f, d9d_safetensors_at(f, 2), 4, got, 2), D9D_EINVAL,
                      "2 bytes at 4");
    d9d_safetensors_close(f);
}

/* Invalid headers, with their messages. */
static void lies_are_refused(void **state)
{
#define T(fields) "{\"x\":{" fields "}}"
    static const struct {
        const char *header;
        size_t bytes;
        const char *sentence;
    } rows[] = {
        {"", 0, "t: header: byte 0: expected '{'"},
        {"[]", 0, "t: header: byte 0: expected '{'"},
        {"{", 0, "t: header: byte 1: expected '\"'"},
        {"{} x", 0, "t: header: byte 3: text after the end"},
        {" {}", 0, "t: header: byte 0: expected '{'"},
        {"\xef\xbb\xbf{}", 0, "t: header: byte 0: expected '{'"},
        {"{}{}", 0, "t: header: byte 2: text after the end"},
        {"{\"x\":[[[[[[[[[[", 0, "t: header: byte 5: expected '{'"},
        {"{\"x\":null}", 0, "t: header: byte 5: expected '{'"},
        {"{\"x\":{},}", 0, "t: tensor x has no \"dtype\""},
        {"{}", 1, "t: the tensors end at 0, the file has 1 bytes of tensors"},
        {"{\"x\":1}", 0, "t: header: byte 5: expected '{'"},
        {"{\"x\":{}}", 0, "t: tensor x has no \"dtype\""},
        {"{\"\":{}}", 0, "t: a tensor without a name"},
        {"{\"a\\u0000b\":{}}", 0, "t: header: byte 9: control character in a string"},
        {"{\"a\\nb\":{}}", 0, "t: header: byte 5: control character in a string"},
        {"{\"a\x01\":{}}", 0, "t: header: byte 3: control character in a string"},
        {"{\"\xc0\x80\":{}}", 0, "t: header: byte 2: invalid UTF-8"},
        {"{\"\xed\xa0\x80\":{}}", 0, "t: header: byte 2: invalid UTF-8"},
        {"{\"\\ud800\":{}}", 0, "t: header: byte 8: half of a surrogate pair"},
        {"{\"abc", 0, "t: header: byte 2: string without an end"},
        {"{\"abc\\\"", 0, "t: header: byte 2: string without an end"},
        {T("\"dtype\":\"Q4\""), 0, "t: tensor x: unknown dtype \"Q4\""},
        {T("\"dtype\":\"float32\""), 0, "t: tensor x: unknown dtype \"float32\""},
        {T("\"dtype\":\"F32\",\"dtype\":\"F32\""), 0, "t: tensor x: duplicate member \"dtype\""},
        {T("\"dtype\":\"F32\",\"stride\":[]"), 0, "t: tensor x: unknown member \"stride\""},
        {T("\"shape\":[-1]"), 0, "t: header: byte 15: expected a non-negative integer"},
        {T("\"shape\":[-0]"), 0, "t: header: byte 15: expected a non-negative integer"},
        {T("\"shape\":[[1]]"), 0, "t: header: byte 15: expected a non-negative integer"},
        {T("\"shape\":3"), 0, "t: header: byte 14: expected '['"},
        {T("\"shape\":[1,]"), 0, "t: header: byte 17: expected a non-negative integer"},
        {T("\"data_offsets\":[0,1e400]"), 0, "t: header: byte 25: expected a non-negative integer"},
        {T("\"data_offsets\":[0.0,1]"), 0, "t: header: byte 23: expected a non-negative integer"},
        {T("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[18446744073709551615,"
           "18446744073709551615]"),
         0, "t: tensor x: U8 [1] takes 1 bytes, its offsets span 0"},
        {T("\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[18446744073709551615,"
           "18446744073709551615]"),
         0, "t: tensor x ends at 18446744073709551615, the file has 0 bytes of tensors"},
        {T("\"shape\":[1.5]"), 0, "t: header: byte 16: expected a non-negative integer"},
        {T("\"shape\":[01]"), 0, "t: header: byte 17: expected a non-negative integer"},
        {T("\"shape\":[1e3]"), 0, "t: header: byte 16: expected a non-negative integer"},
        {T("\"shape\":[18446744073709551616]"), 0, "t: header: byte 34: number over 2^64"},
        {T("\"shape\":[9223372036854775808]"), 0, "t: tensor x: dimension of 9223372036854775808"},
        {T("\"shape\":[1,1,1,1,1,1,1]"), 0, "t: tensor x: more than 6 dimensions"},
        {T("\"data_offsets\":[]"), 0, "t: tensor x: data_offsets must be two numbers"},
        {T("\"data_offsets\":[0]]"), 0, "t: tensor x: data_offsets must be two numbers"},
        {T("\"data_offsets\":[0,1,2]"), 0, "t: header: byte 25: expected ']'"},
        {T("\"data_offsets\":[2,1]"), 0, "t: tensor x ends at 1, before its start 2"},
        {T("\"dtype\":\"F32\",\"shape\":[2]"), 0, "t: tensor x has no \"data_offsets\""},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), 4,
         "t: tensor x: F32 [2] takes 8 bytes, its offsets span 4"},
        {T("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
         "t: tensor x: the size of F32 [4294967296, 4294967296] overflows"},
        {T("\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]"), 0,
         "t: tensor x: the size of F32 [0, 4294967296, 4294967296] overflows"},
        {T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]"), 3,
         "t: tensor x ends at 4, the file has 3 bytes of tensors"},
        {T("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]"), 5,
         "t: a hole from 0 to 1 before tensor x"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "t: tensor y starts at 1, inside x which ends at 2"},
        {"{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "t: tensor x is there twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "t: __metadata__ is there twice"},
        {"{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "t: __metadata__ has \"a\" twice"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "t: header: byte 21: expected '\"'"},
        {"{\"__metadata__\":{\"a\\n\":\"b\"}}", 0,
         "t: header: byte 21: control character in a string"},
        {"{\"__metadata__\":{\"a\":\"b\nc\"}}", 0,
         "t: header: byte 23: control character in a string"},
        {"{\"__metadata__\":{\"a\":null}}", 0, "t: header: byte 21: expected '\"'"},
        {"{\"__metadata__\":nul}", 0, "t: header: byte 16: expected '{'"},
    };
#undef T

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9d_safetensors_file *f = NULL;

        make("t", rows[i].header, rows[i].bytes);
        assert_fails(d9d_safetensors_open("t", &f), D9D_EFORMAT, rows[i].sentence);
        assert_null(f);
    }
}

/* As in HuggingFace's reader; d9d's rule for names remains. */
static void metadata_is_prose_or_null(void **state)
{
    d9d_safetensors_file *f = NULL;

    (void)state;
    make("t", "{\"__metadata__\":{\"license\":\"one\\ntwo\\t\\u007f\\u0001\x7f!\"}}", 0);
    assert_ok(d9d_safetensors_open("t", &f));
    assert_string_equal(d9d_safetensors_metadata(f, "license"), "one\ntwo\t\x7f\x01\x7f!");
    d9d_safetensors_close(f);
    make("t", "{\"__metadata__\": null}", 0);
    assert_ok(d9d_safetensors_open("t", &f));
    assert_null(d9d_safetensors_metadata(f, "license"));
    assert_int_equal(d9d_safetensors_count(f), 0);
    d9d_safetensors_close(f);
}

static void lengths_that_lie_are_refused(void **state)
{
    d9d_safetensors_file *f = NULL;
    uint64_t n = htole64(D9D_SAFETENSORS_MAX_HEADER + 1ull);
    FILE *fp = fopen("t", "wb");

    (void)state;
    assert_int_equal(fwrite(&n, 8, 1, fp), 1);
    assert_int_equal(fclose(fp), 0);
    assert_fails(d9d_safetensors_open("t", &f), D9D_EFORMAT,
                 "t: header of 100000001 bytes, at most 100000000 are allowed");
    make("t", "{}", 0);
    assert_int_equal(truncate("t", 9), 0);
    assert_fails(d9d_safetensors_open("t", &f), D9D_EFORMAT,
                 "t: header of 2 bytes, the file has 9");
    assert_int_equal(truncate("t", 7), 0);
    assert_fails(d9d_safetensors_open("t", &f), D9D_EFORMAT,
                 "t: 7 bytes are too few for a safetensors file");
    assert_fails_like(d9d_safetensors_open("absent", &f), D9D_ENOTFOUND, "absent");
    assert_null(f);
}

static void what_is_no_file_is_refused(void **state)
{
    d9d_safetensors_file *f = NULL;

    (void)state;
    assert_int_equal(mkfifo("pipe", 0666), 0);
    assert_fails(d9d_safetensors_open("pipe", &f), D9D_EPATH, "pipe: is a pipe, must be a file");
    assert_fails(d9d_safetensors_open(".", &f), D9D_EPATH, ".: is a directory, must be a file");
    assert_fails(d9d_safetensors_open("/dev/zero", &f), D9D_EPATH,
                 "/dev/zero: is a device, must be a file");
    make("t", "", 0);
    assert_int_equal(truncate("t", 0), 0);
    assert_fails(d9d_safetensors_open("t", &f), D9D_EFORMAT,
                 "t: 0 bytes are too few for a safetensors file");
    assert_null(f);
}

static void a_file_that_shrinks_ends_in_a_sentence(void **state)
{
    d9d_safetensors_file *f;
    char bytes[100];

    (void)state;
    make("t", "{\"x\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}", 100);
    assert_ok(d9d_safetensors_open("t", &f));
    assert_int_equal(truncate("t", 110), 0);
    assert_fails_like(d9d_safetensors_read(f, d9d_safetensors_at(f, 0), 0, bytes, 100), D9D_EFORMAT,
                      "t: needs 100 bytes at 65, the file ends after 45 of them");
    d9d_safetensors_close(f);
}

/* A sparse terabyte behind a header of a few bytes. */
static void a_sparse_file_costs_its_header(void **state)
{
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1099511627776],"
                                 "\"data_offsets\":[0,1099511627776]}}";
    const int64_t size = INT64_C(1) << 40;
    d9d_safetensors_file *f;
    char bytes[4] = "abcd";

    (void)state;
    make("t", header, 0);
    if (truncate("t", size + 8 + (off_t)sizeof(header) - 1) != 0)
        skip(); /* the file system lacks sparse files */
    assert_ok(d9d_safetensors_open("t", &f));
    assert_ok(d9d_safetensors_read(f, d9d_safetensors_at(f, 0), (uint64_t)size - 4, bytes, 4));
    assert_memory_equal(bytes, "\0\0\0\0", 4);
    d9d_safetensors_close(f);
}

static void odd_but_right_files_are_read(void **state)
{
    static const char *const headers[] = {
        "{}",
        "{ } \n\t ",
        "{\"e\":{\"shape\":[0,7],\"data_offsets\":[0,0],\"dtype\":\"BF16\"}}",
        "{\"\\ud83d\\ude00\\u00e9\\/\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]}}",
        "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[2,5]},"
        "\"z\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},"
        "\"a\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
    };
    static const size_t bytes[] = {0, 0, 0, 8, 5};

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        d9d_safetensors_file *f;

        make("t", headers[i], bytes[i]);
        assert_ok(d9d_safetensors_open("t", &f));
        if (i == 3)
            assert_non_null(d9d_safetensors_find(f, "😀é/"));
        if (i == 4)
            assert_string_equal(d9d_safetensors_at(f, 1)->name, "z");
        d9d_safetensors_close(f);
    }
}

static void a_name_that_no_reader_takes_is_not_written(void **state)
{
    static const char *const bad[] = {"a\nb", "a\tb",
                                      "a\x7f"
                                      "b",
                                      "a\x01"
                                      "b"};
    const int64_t one = 1;
    d9d_safetensors_writer *w;

    (void)state;
    assert_ok(d9d_safetensors_writer_create(&w));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_fails(d9d_safetensors_writer_declare(w, bad[i], D9D_U8, 1, &one), D9D_EINVAL,
                     "tensor a?b: its name has a control character");
    assert_ok(d9d_safetensors_writer_declare(w, "a\"b\\ \xc3\xa9", D9D_U8, 1, &one));
    d9d_safetensors_writer_free(w);
}

static void a_file_of_many_tiny_tensors_is_fine(void **state)
{
    enum { N = 20000 };
    const int64_t one = 1;
    d9d_safetensors_writer *w;
    d9d_safetensors_file *f;
    char name[32];

    (void)state;
    assert_ok(d9d_safetensors_writer_create(&w));
    for (int i = 0; i < N; i++) {
        (void)snprintf(name, sizeof(name), "t%d", i);
        assert_ok(d9d_safetensors_writer_declare(w, name, D9D_U8, 1, &one));
    }
    assert_fails(d9d_safetensors_writer_declare(w, "t7", D9D_U8, 1, &one), D9D_EINVAL,
                 "tensor t7 is declared twice");
    assert_ok(d9d_safetensors_writer_begin(w, "many"));
    for (size_t i = 0; i < N; i++) {
        unsigned char c = (unsigned char)i;

        assert_ok(d9d_safetensors_writer_write(w, i, 0, &c, 1));
    }
    assert_ok(d9d_safetensors_writer_end(w));
    d9d_safetensors_writer_free(w);
    assert_ok(d9d_safetensors_open("many", &f));
    assert_int_equal(d9d_safetensors_count(f), N);
    assert_string_equal(d9d_safetensors_at(f, N - 1)->name, "t19999");
    d9d_safetensors_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(what_is_written_is_read_back),
        unit_test_in_dir(lies_are_refused),
        unit_test_in_dir(lengths_that_lie_are_refused),
        unit_test_in_dir(metadata_is_prose_or_null),
        unit_test_in_dir(what_is_no_file_is_refused),
        unit_test_in_dir(a_file_that_shrinks_ends_in_a_sentence),
        unit_test_in_dir(a_sparse_file_costs_its_header),
        unit_test_in_dir(odd_but_right_files_are_read),
        cmocka_unit_test(a_name_that_no_reader_takes_is_not_written),
        unit_test_in_dir(a_file_of_many_tiny_tensors_is_fine),
    };

    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
