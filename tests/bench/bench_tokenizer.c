/* bench_tokenizer.c - our side of tests/bench/tokenizer.sh: one thread's rates.
 *
 *     bench_tokenizer TOKENIZER.json CORPUS.jsonl [IDS]    load, encode and decode; ids to a file
 *     bench_tokenizer TOKENIZER.json                       texts made to be slow
 *
 * Rates are the best of a few passes, in MB (10^6 bytes) of text a second of CPU time, which other
 * work on the machine disturbs least.
 */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/fs.h"
#include "d9d/data/tokenizer/tokenizer.h"
#include "data/io/jsonl.h"
#include "data/tokenizer/utf8.h"

enum { PASSES = 3 };

typedef struct bench {
    d9d_tokenizer *tok;
    d9d_tokenizer_scratch *scratch;
    d9d_buf text; /* all documents, one behind the other */
    D9D_VEC(size_t) ends;
    d9d_token_ids ids;
    D9D_VEC(size_t) id_ends;
    d9d_buf back;
} bench;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void read_corpus(bench *b, const char *path)
{
    d9d_buf file = {0};
    const char *line, *end;

    assert_ok(d9d_fs_read(path, UINT64_C(4) << 30, &file));
    for (line = file.data; line < file.data + file.len; line = end + 1) {
        d9di_jsonl_error error;

        end = memchr(line, '\n', (size_t)(file.data + file.len - line));
        assert_non_null(end);
        assert_ok(d9di_jsonl_get_text(line, (size_t)(end - line), "text", &b->text, &error));
        assert_ok(D9D_VEC_PUSH(&b->ends, b->text.len));
    }
    d9d_buf_release(&file);
}

/* With the scratch of the pass before, whose cache knows the words. */
static double encode_warm(bench *b)
{
    double start;
    size_t at = 0;

    b->ids.len = b->id_ends.len = 0;
    start = now();
    for (size_t i = 0; i < b->ends.len; i++) {
        assert_ok(d9d_tokenizer_encode(b->tok, b->scratch, b->text.data + at, b->ends.data[i] - at,
                                       &b->ids));
        assert_ok(D9D_VEC_PUSH(&b->id_ends, b->ids.len));
        at = b->ends.data[i];
    }
    return now() - start;
}

/* With a new scratch each time: nothing is remembered of the pass before. */
static double encode_all(bench *b)
{
    d9d_tokenizer_scratch_free(b->scratch);
    assert_ok(d9d_tokenizer_scratch_create(b->tok, &b->scratch));
    return encode_warm(b);
}

static double decode_all(bench *b)
{
    const double start = now();

    b->back.len = 0;
    assert_ok(d9d_tokenizer_decode(b->tok, b->ids.data, b->ids.len, 0, &b->back));
    return now() - start;
}

/* Per document its count of ids and the ids, 32 bits each. */
static void write_ids(const bench *b, const char *path)
{
    FILE *f = fopen(path, "wb");
    size_t at = 0;

    assert_non_null(f);
    for (size_t i = 0; i < b->id_ends.len; i++) {
        const uint32_t n = (uint32_t)(b->id_ends.data[i] - at);

        fwrite(&n, sizeof(n), 1, f);
        fwrite(b->ids.data + at, sizeof(*b->ids.data), n, f);
        at = b->id_ends.data[i];
    }
    assert_int_equal(fclose(f), 0);
}

static double best(double (*pass)(bench *b), bench *b)
{
    double least = 1e9;

    for (int i = 0; i < PASSES; i++) {
        const double s = pass(b);

        least = s < least ? s : least;
    }
    return least;
}

static void ordinary(bench *b, const char *corpus, const char *ids)
{
    double encode, warm, decode;

    read_corpus(b, corpus);
    encode = best(encode_all, b);
    warm = best(encode_warm, b);
    decode = best(decode_all, b);
    printf("encode %.1f warm %.1f decode %.1f MB/s, %zu documents, %.1f MB, %.2f bytes a token\n",
           (double)b->text.len / encode / 1e6, (double)b->text.len / warm / 1e6,
           (double)b->back.len / decode / 1e6, b->ends.len, (double)b->text.len / 1e6,
           (double)b->text.len / (double)b->ids.len);
    if (ids)
        write_ids(b, ids);
}

/* --- texts made to be slow ------------------------------------------------------------ */

enum { MEGA = 1000000 };

static void repeat(d9d_buf *out, const char *unit)
{
    while (out->len < MEGA)
        assert_ok(d9d_buf_append(out, unit, strlen(unit)));
}

/* `n` characters from [first, last], drawn by a small congruence, without a space. */
static void draw(d9d_buf *out, uint32_t first, uint32_t last)
{
    uint64_t x = 1;

    while (out->len < MEGA) {
        char c[4];

        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        assert_ok(d9d_buf_append(
            out, c, d9di_utf8_encode(first + (uint32_t)(x >> 33) % (last - first + 1), c)));
    }
}

static void slow(bench *b)
{
    static const struct {
        const char *name, *unit; /* NULL: drawn from first to last */
        uint32_t first, last;
    } cases[] = {
        {"letter a", "a", 0, 0},
        {"letters ab", "ab", 0, 0},
        {"spaces", " ", 0, 0},
        {"newlines", "\n", 0, 0},
        {"CR LF, spaces", "\r\n \t", 0, 0},
        {"digits", "7", 0, 0},
        {"punctuation", "=", 0, 0},
        {"combining marks", "\xcc\x81", 0, 0},
        {"marks out of order", "\xcc\x81\xcc\x96", 0, 0},
        {"jamo", "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", 0, 0},
        {"one ideograph", "\xe4\xbd\xa0", 0, 0},
        {"family emoji", "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d", 0, 0},
        {"replacement characters", "\xef\xbf\xbd", 0, 0},
        {"random letters", NULL, 'a', 'z'},
        {"random ideographs", NULL, 0x4e00, 0x9fa5},
        {"random Cyrillic", NULL, 0x430, 0x44f},
        {"random marks", NULL, 0x300, 0x36f},
        {"random emoji", NULL, 0x1f300, 0x1f5ff},
        {"random punctuation", NULL, 0x21, 0x2f},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        b->text.len = b->ends.len = 0;
        if (cases[i].unit)
            repeat(&b->text, cases[i].unit);
        else
            draw(&b->text, cases[i].first, cases[i].last);
        assert_ok(D9D_VEC_PUSH(&b->ends, b->text.len));
        printf("%-24s %8.1f MB/s\n", cases[i].name,
               (double)b->text.len / best(encode_all, b) / 1e6);
    }
}

int main(int argc, char **argv)
{
    bench b = {.tok = NULL};
    double start;

    if (argc < 2) {
        printf("needs a tokenizer.json: see tests/bench/tokenizer.sh\n");
        return 0;
    }
    start = now();
    assert_ok(d9d_tokenizer_load(argv[1], &b.tok));
    printf("load %.0f ms\n", 1e3 * (now() - start));
    if (argc > 2)
        ordinary(&b, argv[2], argc > 3 ? argv[3] : NULL);
    else
        slow(&b);
    d9d_tokenizer_scratch_free(b.scratch);
    d9d_tokenizer_free(b.tok);
    D9D_VEC_RELEASE(&b.ids);
    D9D_VEC_RELEASE(&b.ends);
    D9D_VEC_RELEASE(&b.id_ends);
    d9d_buf_release(&b.text);
    d9d_buf_release(&b.back);
    return 0;
}
