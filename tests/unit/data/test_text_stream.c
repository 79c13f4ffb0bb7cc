/* test_text_stream.c - rows of a stream: the same whoever reads it, whenever it comes, and from
 * wherever one goes on. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/data/dataset/dataset_kind.h"
#include "d9d/data/loader/prefetch.h"

enum { LENGTH = 5 };

/* Words a to z and "end", by blanks. */
static void make_tokenizer(void)
{
    d9d_buf b = {0};

    assert_ok(d9d_buf_printf(&b, "{\"version\": \"1.0\", \"added_tokens\": [], "
                                 "\"pre_tokenizer\": {\"type\": \"WhitespaceSplit\"}, "
                                 "\"model\": {\"type\": \"WordLevel\", \"unk_token\": \"a\", "
                                 "\"vocab\": {\"end\": 26"));
    for (int i = 0; i < 26; i++)
        assert_ok(d9d_buf_printf(&b, ", \"%c\": %d", 'a' + i, i));
    assert_ok(d9d_buf_printf(&b, "}}}"));
    assert_ok(d9d_fs_write_atomic("tokenizer.json", b.data, b.len));
    d9d_buf_release(&b);
}

static void add(const char *path, const char *text)
{
    FILE *f = fopen(path, "ab");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

typedef struct source {
    d9d_arena arena;
    json_t *doc;
    d9d_dataset *ds;
} source;

static d9d_status open_source(const char *more, source *out)
{
    const d9d_table *const *choice = d9d_dataset_choices;
    d9d_union section = {0};
    char text[1024];

    *out = (source){0};
    (void)snprintf(text, sizeof(text), "{\"tokenizer\": \".\", \"length\": %d, %s}", LENGTH, more);
    out->doc = json_loads(text, 0, NULL);
    assert_non_null(out->doc);
    while (*choice != NULL && strcmp((*choice)->name, "stream") != 0)
        choice++;
    section.choice = *choice;
    section.value = d9d_arena_alloc(&out->arena, (*choice)->size);
    assert_ok(d9d_config_bind(*choice, out->doc, "test", NULL, &out->arena, section.value));
    return d9d_dataset_synthesize(&section, "words", &out->ds);
}

static void close_source(source *s)
{
    d9d_dataset_close(s->ds);
    json_decref(s->doc);
    d9d_arena_release(&s->arena);
}

static d9d_dataset_presence poll(const source *s, int64_t k)
{
    d9d_dataset_presence there;

    assert_ok(d9d_dataset_poll(s->ds, k, &there));
    return there;
}

/* A row as "ids labels documents positions", ids as letters, labels as letters or "." for none. */
static void expect(const source *s, int64_t k, const char *ids, const char *labels,
                   const char *documents)
{
    int32_t a[4][LENGTH];
    d9d_sample sample;

    assert_int_equal(poll(s, k), D9D_DATASET_PRESENT);
    assert_ok(d9d_dataset_sample(s->ds, k, &sample));
    assert_int_equal(sample.length, LENGTH);
    assert_ok(d9d_sample_expand(s->ds, &sample, a[0], a[1], a[2], a[3]));
    for (int i = 0, at = 0; i < LENGTH; i++) {
        at = i > 0 && documents[i] == documents[i - 1] ? at + 1 : 0;
        assert_int_equal(a[0][i], ids[i] - 'a');
        assert_int_equal(a[1][i], labels[i] == '!' ? 26 : labels[i] - 'a');
        assert_int_equal(a[2][i], at);
        assert_int_equal(a[3][i], documents[i] - '0');
    }
}

static const char corpus[] = "{\"text\": \"a b c d e f g\"}\n"
                             "\n"
                             "{\"text\": \"h\"}\n"
                             "{\"other\": 1, \"text\": \"i j k\"}\n"
                             "{\"text\": \"l m n o p q r s t u v w x y z\"}\n";

static void texts_are_packed(void **state)
{
    source s;

    (void)state;
    make_tokenizer();
    add("corpus.jsonl", corpus);
    assert_ok(open_source("\"path\": \"corpus.jsonl\"", &s));
    assert_true(d9d_dataset_is_stream(s.ds));
    assert_true(d9d_dataset_is_packed(s.ds));
    assert_int_equal(d9d_dataset_vocab(s.ds), 27);
    expect(&s, 0, "abcde", "bcdef", "11111");
    expect(&s, 1, "fijlm", "gjkmn", "12233");
    expect(&s, 2, "nopqr", "opqrs", "11111");
    expect(&s, 3, "stuvw", "tuvwx", "11111");
    assert_int_equal(poll(&s, 4), D9D_DATASET_ENDED);
    assert_int_equal(d9d_dataset_wait(s.ds, 4), D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "words: the stream has ended before sample 4"));
    close_source(&s);
    assert_ok(open_source("\"path\": \"corpus.jsonl\", \"append_eos\": \"end\"", &s));
    expect(&s, 1, "fghij", "g!!jk", "11233");
    close_source(&s);
}

/* From every row on, with what the reader of the rows before tells. */
static void goes_on_from_every_row(void **state)
{
    (void)state;
    make_tokenizer();
    add("corpus.jsonl", corpus);
    for (int64_t k = 0; k <= 4; k++)
        for (int64_t ahead = k > 0 ? k - 1 : 0; ahead <= 4; ahead++) {
            d9d_buf place = {0};
            source a, b;

            assert_ok(open_source("\"path\": \"corpus.jsonl\"", &a));
            (void)poll(&a, ahead); /* rows that were read ahead change nothing */
            d9d_dataset_forget(a.ds, k);
            assert_ok(d9d_dataset_tell(a.ds, k, &place));
            assert_ok(open_source("\"path\": \"corpus.jsonl\"", &b));
            assert_ok(d9d_dataset_seek(b.ds, k, place.data, place.len));
            if (k <= 2)
                expect(&b, 2, "nopqr", "opqrs", "11111");
            if (k <= 1)
                expect(&b, 1, "fijlm", "gjkmn", "12233");
            if (k <= 3)
                assert_int_equal(poll(&b, 3), D9D_DATASET_PRESENT);
            assert_int_equal(poll(&b, 4), D9D_DATASET_ENDED);
            d9d_buf_release(&place);
            close_source(&a);
            close_source(&b);
        }
}

static void open_path(const char *path, source *out)
{
    char section[800];

    (void)snprintf(section, sizeof(section), "\"path\": \"%s\"", path);
    assert_ok(open_source(section, out));
}

/* The file may be found by another path, by a very long one, or have a name that begins with a
 * blank. */
static void goes_on_wherever_its_file_is(void **state)
{
    char far[700] = "";
    const struct {
        const char *before, *after;
    } paths[] = {{"corpus.jsonl", "./corpus.jsonl"},
                 {"texts", "texts"},
                 {"texts/ b.jsonl", "texts"},
                 {"texts", "texts/ b.jsonl"},
                 {far, "corpus.jsonl"}};

    (void)state;
    make_tokenizer();
    assert_ok(d9d_fs_mkdirs("texts"));
    add("texts/ b.jsonl", corpus);
    add("corpus.jsonl", corpus);
    for (size_t n = 0; n < 600; n += 2)
        (void)snprintf(far + n, sizeof(far) - n, "./corpus.jsonl");
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        d9d_buf place = {0};
        source a, b;

        open_path(paths[i].before, &a);
        assert_int_equal(poll(&a, 1), D9D_DATASET_PRESENT);
        assert_ok(d9d_dataset_tell(a.ds, 1, &place));
        open_path(paths[i].after, &b);
        assert_ok(d9d_dataset_seek(b.ds, 1, place.data, place.len));
        expect(&b, 1, "fijlm", "gjkmn", "12233");
        expect(&b, 3, "stuvw", "tuvwx", "11111");
        d9d_buf_release(&place);
        close_source(&a);
        close_source(&b);
    }
}

static void comes_byte_by_byte(void **state)
{
    source s;
    char text[2] = "";

    (void)state;
    make_tokenizer();
    add("grows.jsonl", "");
    assert_ok(open_source("\"path\": \"grows.jsonl\", \"follow\": true", &s));
    for (const char *c = corpus; *c != '\0'; c++) {
        text[0] = *c;
        add("grows.jsonl", text);
        assert_int_not_equal(poll(&s, 4), D9D_DATASET_ENDED);
        if (poll(&s, 1) == D9D_DATASET_PRESENT)
            expect(&s, 1, "fijlm", "gjkmn", "12233");
    }
    expect(&s, 3, "stuvw", "tuvwx", "11111");
    d9d_dataset_forget(s.ds, 3);
    expect(&s, 3, "stuvw", "tuvwx", "11111");
    assert_int_equal(poll(&s, 4), D9D_DATASET_PENDING);
    d9d_dataset_interrupt(s.ds, true);
    assert_int_equal(d9d_dataset_wait(s.ds, 4), D9D_EINVAL);
    d9d_dataset_interrupt(s.ds, false);
    add("grows.jsonl.end", "");
    assert_int_equal(poll(&s, 4), D9D_DATASET_ENDED);
    close_source(&s);
}

static void a_stream_that_was_changed(void **state)
{
    d9d_buf place = {0};
    source s;

    (void)state;
    make_tokenizer();
    add("corpus.jsonl", corpus);
    assert_ok(open_source("\"path\": \"corpus.jsonl\"", &s));
    (void)poll(&s, 1);
    assert_ok(d9d_dataset_tell(s.ds, 1, &place));
    close_source(&s);
    assert_ok(d9d_fs_write_atomic("corpus.jsonl", "", 0));
    add("corpus.jsonl", "{\"text\": \"a b c d e f h\"}\n");
    assert_ok(open_source("\"path\": \"corpus.jsonl\"", &s));
    assert_ok(d9d_dataset_seek(s.ds, 1, place.data, place.len));
    assert_int_equal(d9d_dataset_wait(s.ds, 1), D9D_EMISMATCH);
    assert_non_null(strstr(d9d_err_message(), "the line at byte 0 of corpus.jsonl is another one"));
    assert_int_equal(d9d_dataset_wait(s.ds, 1), D9D_EMISMATCH); /* and stays one */
    close_source(&s);
    assert_ok(open_source("\"path\": \"corpus.jsonl\"", &s));
    assert_int_equal(d9d_dataset_seek(s.ds, 1, "0 -3 7 x", 8), D9D_EFORMAT);
    assert_int_equal(d9d_dataset_seek(s.ds, 1, "nothing", 7), D9D_EFORMAT);
    close_source(&s);
    d9d_buf_release(&place);
}

static void bad_lines_are_named_by_their_byte(void **state)
{
    static const struct {
        const char *line, *why;
    } bad[] = {
        {"{\"text\": \"b\", }", "corpus.jsonl: byte 38, in the line at byte 24: "},
        {"{\"text\": 3}", "corpus.jsonl: byte 33, in the line at byte 24: "},
        {"{\"words\": \"b\"}", ", in the line at byte 24: "},
        {"{\"text\": \"\xff\"}", "corpus.jsonl: byte 34, in the line at byte 24: is no UTF-8"},
    };
    source s;

    (void)state;
    make_tokenizer();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_ok(d9d_fs_write_atomic("corpus.jsonl", "", 0));
        add("corpus.jsonl", "{\"text\": \"a b c d e f\"}\n");
        add("corpus.jsonl", bad[i].line);
        assert_ok(open_source("\"path\": \"corpus.jsonl\"", &s));
        assert_int_equal(poll(&s, 0), D9D_DATASET_PRESENT);
        assert_int_equal(d9d_dataset_wait(s.ds, 1), D9D_EFORMAT);
        if (strstr(d9d_err_message(), bad[i].why) == NULL)
            fail_msg("%s: %s", bad[i].line, d9d_err_message());
        close_source(&s);
    }
    assert_int_equal(open_source("\"path\": \"corpus.jsonl\", \"append_eos\": \"none\"", &s),
                     D9D_ECONFIG);
    assert_non_null(strstr(d9d_err_message(), "has no token \"none\", which append_eos names"));
    close_source(&s);
}

/* Threads that read ahead give the rows of one. */
static void threads_read_ahead(void **state)
{
    const d9d_loader_opts opts = {.pack = 1, .pad_to_multiple_of = 1};
    d9d_prefetcher *f;
    d9d_loader *l;
    d9d_batch b;
    source s;

    (void)state;
    make_tokenizer();
    for (int i = 0; i < 200; i++)
        add("corpus.jsonl", corpus);
    assert_ok(open_source("\"path\": \"corpus.jsonl\", \"follow\": true", &s));
    assert_ok(d9d_loader_open(&(d9d_loader_source){.dataset = s.ds, .epochs = 1}, 1, &opts, &l));
    assert_ptr_equal(d9d_loader_stream(l), s.ds);
    assert_ok(d9d_prefetcher_open(l,
                                  &(d9d_prefetcher_opts){.global = 4,
                                                         .ranks = 2,
                                                         .rank = 1,
                                                         .micro_batch_size = 2,
                                                         .end = INT64_C(1) << 40,
                                                         .threads = 3,
                                                         .ahead = 8},
                                  &f));
    for (int step = 0; step < 100; step++) {
        assert_ok(d9d_prefetcher_next(f, &b));
        assert_int_equal(b.first, step * 4 + 2);
        assert_int_equal(b.tokens, 2 * LENGTH);
        d9d_dataset_forget(s.ds, (step + 1) * 4);
    }
    d9d_prefetcher_close(f); /* its threads wait for rows that are yet to come */
    d9d_loader_close(l);
    close_source(&s);
}

enum { RANKS = 3 };

/* Ranks of a job, each with its stream. */
typedef struct job {
    source s[RANKS];
    int ranks;
} job;

static void open_job(job *j, const char *section, int ranks)
{
    j->ranks = ranks;
    for (int r = 0; r < ranks; r++) {
        assert_ok(open_source(section, &j->s[r]));
        assert_true(d9d_dataset_share(j->s[r].ds));
    }
    assert_int_equal(poll(&j->s[0], 0), D9D_DATASET_PENDING); /* nothing is known before a survey */
}

static void close_job(job *j)
{
    for (int r = 0; r < j->ranks; r++)
        close_source(&j->s[r]);
}

/* An exchange of which rank `bad` fails with EFORMAT; -1: none does.  True if more is known. */
static bool exchange(job *j, bool needed, int bad)
{
    d9d_buf message[RANKS] = {{0}};
    d9d_dataset_survey all[RANKS];
    bool more = false;

    for (int r = 0; r < j->ranks; r++) {
        assert_int_equal(d9d_dataset_survey_make(j->s[r].ds, r, j->ranks, needed, &message[r]),
                         r == bad ? D9D_EFORMAT : D9D_OK);
        all[r] = (d9d_dataset_survey){message[r].data, message[r].len};
    }
    for (int r = 0; r < j->ranks && bad < 0; r++) {
        bool own;

        assert_ok(d9d_dataset_survey_set(j->s[r].ds, all, j->ranks, &own));
        assert_true(r == 0 || own == more);
        more = own;
    }
    for (int r = 0; r < j->ranks; r++)
        d9d_buf_release(&message[r]);
    return more;
}

/* All ranks know the same of row k. */
static d9d_dataset_presence poll_job(const job *j, int64_t k)
{
    const d9d_dataset_presence there = poll(&j->s[0], k);

    for (int r = 1; r < j->ranks; r++)
        assert_int_equal(poll(&j->s[r], k), there);
    return there;
}

static void ranks_that_share_have_the_rows_of_one(void **state)
{
    (void)state;
    make_tokenizer();
    add("corpus.jsonl", corpus);
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int64_t from = 0; from <= 3; from++) {
            d9d_buf place = {0}, other = {0};
            source one;
            job j;

            assert_ok(open_source("\"path\": \"corpus.jsonl\"", &one));
            (void)poll(&one, from);
            assert_ok(d9d_dataset_tell(one.ds, from, &place));
            open_job(&j, "\"path\": \"corpus.jsonl\"", ranks);
            for (int r = 0; r < ranks; r++)
                assert_ok(d9d_dataset_seek(j.s[r].ds, from, place.data, place.len));
            while (exchange(&j, true, -1))
                ;
            for (int r = 0; r < ranks; r++) {
                if (from <= 1)
                    expect(&j.s[r], 1, "fijlm", "gjkmn", "12233");
                expect(&j.s[r], 3, "stuvw", "tuvwx", "11111");
                d9d_dataset_forget(j.s[r].ds, 3);
                assert_ok(d9d_dataset_tell(j.s[r].ds, 3, &other));
            }
            assert_int_equal(poll_job(&j, 4), D9D_DATASET_ENDED);
            d9d_buf_release(&place);
            d9d_buf_release(&other);
            close_job(&j);
            close_source(&one);
        }
}

/* Ranks see different parts of a file that grows: what they know is the same. */
static void ranks_see_a_growing_file_at_different_times(void **state)
{
    const char *at = corpus;
    job j;

    (void)state;
    make_tokenizer();
    add("grows.jsonl", "");
    open_job(&j, "\"path\": \"grows.jsonl\", \"follow\": true", RANKS);
    while (*at != '\0') {
        d9d_buf message[RANKS] = {{0}};
        d9d_dataset_survey all[RANKS];

        for (int r = 0; r < RANKS; r++) {
            char some[8] = "";

            (void)snprintf(some, sizeof(some), "%.7s", at);
            add("grows.jsonl", some);
            at += strlen(some);
            assert_ok(d9d_dataset_survey_make(j.s[r].ds, r, RANKS, false, &message[r]));
            all[r] = (d9d_dataset_survey){message[r].data, message[r].len};
        }
        for (int r = 0; r < RANKS; r++) {
            bool more;

            assert_ok(d9d_dataset_survey_set(j.s[r].ds, all, RANKS, &more));
        }
        for (int r = 0; r < RANKS; r++)
            d9d_buf_release(&message[r]);
        (void)poll_job(&j, 1);
    }
    add("grows.jsonl.end", "");
    while (exchange(&j, true, -1))
        ;
    assert_int_equal(poll_job(&j, 4), D9D_DATASET_ENDED);
    expect(&j.s[1], 3, "stuvw", "tuvwx", "11111");
    close_job(&j);
}

/* Its rank finds a damaged line, where a row needs it; the others do not look at it. */
static void damage_is_found_by_the_rank_whose_text_it_is(void **state)
{
    job j;

    (void)state;
    make_tokenizer();
    add("corpus.jsonl", "{\"text\": \"a b c d e f\"}\n{\"text\": 3}\n{\"text\": \"g h\"}\n");
    open_job(&j, "\"path\": \"corpus.jsonl\"", RANKS);
    assert_true(exchange(&j, true, -1)); /* it is not the first that is not known */
    assert_int_equal(poll_job(&j, 0), D9D_DATASET_PRESENT);
    assert_int_equal(poll_job(&j, 1), D9D_DATASET_PENDING);
    assert_false(exchange(&j, false, -1));
    assert_false(exchange(&j, true, 1));
    assert_int_equal(d9d_dataset_survey_make(j.s[1].ds, 1, RANKS, true, &(d9d_buf){0}),
                     D9D_EFORMAT); /* and stays so */
    assert_non_null(strstr(d9d_err_message(), "corpus.jsonl: byte 33, in the line at byte 24: "));
    close_job(&j);
}

/* A message that is cut short, or says less than its rank has read. */
static void what_is_not_said_is_not_known(void **state)
{
    d9d_buf message[2] = {{0}};
    d9d_dataset_survey all[2];
    bool more;
    job j;

    (void)state;
    make_tokenizer();
    add("corpus.jsonl", corpus);
    open_job(&j, "\"path\": \"corpus.jsonl\"", 2);
    for (int r = 0; r < 2; r++) {
        assert_ok(d9d_dataset_survey_make(j.s[r].ds, r, 2, true, &message[r]));
        all[r] = (d9d_dataset_survey){message[r].data, message[r].len};
    }
    all[0].n -= 2 * 2 * sizeof(int32_t); /* texts 2 and 4 */
    assert_ok(d9d_dataset_survey_set(j.s[0].ds, all, 2, &more));
    assert_true(more);
    assert_int_equal(poll(&j.s[0], 0), D9D_DATASET_PRESENT);
    assert_int_equal(poll(&j.s[0], 1), D9D_DATASET_PENDING);
    all[1].n = 3;
    assert_int_equal(d9d_dataset_survey_set(j.s[1].ds, all, 2, &more), D9D_EINVAL);
    assert_non_null(strstr(d9d_err_message(), "rank 1 sent 3 bytes"));
    for (int r = 0; r < 2; r++)
        d9d_buf_release(&message[r]);
    close_job(&j);
}

/* Ranks whose folders are not the same, as of local disks, or of a network's where one is late. */
static void ranks_that_read_other_lines_are_found_out(void **state)
{
    static const char *const other[] = {"a b c d e f h", "a b c"}; /* as long, and not */

    (void)state;
    make_tokenizer();
    add("0.jsonl", corpus);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        d9d_buf message[2] = {{0}}, line = {0};
        d9d_dataset_survey all[2];
        bool more;
        job j = {.ranks = 2};

        assert_ok(
            d9d_buf_printf(&line, "{\"text\": \"%s\"}\n%s", other[i], strchr(corpus, '\n') + 1));
        assert_ok(d9d_fs_write_atomic("1.jsonl", line.data, line.len));
        for (int r = 0; r < 2; r++) {
            open_path(r == 0 ? "0.jsonl" : "1.jsonl", &j.s[r]);
            assert_true(d9d_dataset_share(j.s[r].ds));
            assert_ok(d9d_dataset_survey_make(j.s[r].ds, r, 2, true, &message[r]));
            all[r] = (d9d_dataset_survey){message[r].data, message[r].len};
        }
        assert_ok(d9d_dataset_survey_set(j.s[0].ds, all, 2, &more)); /* those of rank 1 are equal */
        assert_int_equal(d9d_dataset_survey_set(j.s[1].ds, all, 2, &more), D9D_EMISMATCH);
        assert_non_null(
            strstr(d9d_err_message(), "the line at byte 0 of 1.jsonl is another one on rank 0"));
        for (int r = 0; r < 2; r++)
            d9d_buf_release(&message[r]);
        d9d_buf_release(&line);
        close_job(&j);
    }
}

static void the_end_waits_for_a_rank_that_sees_less(void **state)
{
    job j = {.ranks = 2};

    (void)state;
    make_tokenizer();
    for (int r = 0; r < 2; r++) {
        char path[2] = {(char)('0' + r), '\0'}, file[16];

        assert_ok(d9d_fs_mkdirs(path));
        (void)snprintf(file, sizeof(file), "%s/a.jsonl", path);
        add(file, corpus);
        open_path(path, &j.s[r]);
        assert_true(d9d_dataset_share(j.s[r].ds));
    }
    add("1/b.jsonl", corpus);
    while (exchange(&j, true, -1))
        ;
    assert_int_equal(poll_job(&j, 3), D9D_DATASET_PRESENT);
    assert_int_equal(poll_job(&j, 4), D9D_DATASET_PENDING);
    add("0/b.jsonl", corpus);
    while (exchange(&j, true, -1))
        ;
    assert_int_equal(poll_job(&j, 7), D9D_DATASET_PRESENT);
    assert_int_equal(poll_job(&j, 9), D9D_DATASET_ENDED);
    close_job(&j);
}

static void what_a_loader_refuses(void **state)
{
    const d9d_loader_opts opts = {.pack = 1, .pad_to_multiple_of = 1};
    d9d_loader *l;
    source s;

    (void)state;
    make_tokenizer();
    add("corpus.jsonl", corpus);
    assert_ok(open_source("\"path\": \"corpus.jsonl\"", &s));
    const d9d_loader_source bad[] = {{.dataset = s.ds, .epochs = 2},
                                     {.dataset = s.ds, .order = D9D_LOADER_SHUFFLED, .epochs = 1},
                                     {.dataset = s.ds, .epochs = 1, .weight = 1},
                                     {.dataset = s.ds, .epochs = 1, .weight = 1}};
    static const char *const why[] = {"words: is a stream, which cannot be read 2 times",
                                      "words: is a stream, whose samples come in their order",
                                      "words: is a stream, which cannot be blended"};

    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(d9d_loader_open(&bad[i], i == 2 ? 2 : 1, &opts, &l), D9D_ECONFIG);
        if (strstr(d9d_err_message(), why[i]) == NULL)
            fail_msg("%s", d9d_err_message());
    }
    close_source(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(texts_are_packed),
        unit_test_in_dir(goes_on_from_every_row),
        unit_test_in_dir(goes_on_wherever_its_file_is),
        unit_test_in_dir(comes_byte_by_byte),
        unit_test_in_dir(a_stream_that_was_changed),
        unit_test_in_dir(bad_lines_are_named_by_their_byte),
        unit_test_in_dir(threads_read_ahead),
        unit_test_in_dir(ranks_that_share_have_the_rows_of_one),
        unit_test_in_dir(ranks_see_a_growing_file_at_different_times),
        unit_test_in_dir(damage_is_found_by_the_rank_whose_text_it_is),
        unit_test_in_dir(what_is_not_said_is_not_known),
        unit_test_in_dir(ranks_that_read_other_lines_are_found_out),
        unit_test_in_dir(the_end_waits_for_a_rank_that_sees_less),
        unit_test_in_dir(what_a_loader_refuses),
    };

    return cmocka_run_group_tests_name("text_stream", tests, NULL, NULL);
}
