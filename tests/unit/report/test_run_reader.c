/* test_run_reader.c - reading metrics.jsonl, and the messages about it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "d9d/base/fs.h"
#include "d9d/report/report.h"

struct place {
    char dir[64], file[96];
};

static void place_init(struct place *p)
{
    strcpy(p->dir, "/tmp/d9d-test-run-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    (void)snprintf(p->file, sizeof(p->file), "%s/metrics.jsonl", p->dir);
}

static void place_release(struct place *p)
{
    assert_int_equal(d9d_fs_remove_tree(p->dir), D9D_OK);
}

static void append(const struct place *p, const char *text)
{
    FILE *f = fopen(p->file, "a");

    assert_non_null(f);
    assert_int_equal(fputs(text, f) >= 0, 1);
    assert_int_equal(fclose(f), 0);
}

static void append_zeros(const struct place *p, size_t n)
{
    FILE *f = fopen(p->file, "a");

    assert_non_null(f);
    while (n-- > 0)
        (void)fputc(0, f);
    assert_int_equal(fclose(f), 0);
}

static d9d_run_reader *opened(const struct place *p)
{
    d9d_run_reader *r = NULL;

    if (d9d_run_reader_open(p->dir, NULL, &r) != D9D_OK)
        fail_msg("%s", d9d_err_message());
    return r;
}

static void columns_are_what_was_logged(void **state)
{
    struct place p;
    d9d_run_reader *r;

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 1, \"loss\": 2.5, \"note\": \"x\", \"extra\": {\"a\": 1}}\n\n"
               "{\"step\": 2, \"loss\": null, \"mine\": 7, \"flag\": true}\n");
    r = opened(&p);
    assert_int_equal(r->n, 2);
    assert_int_equal(r->n_columns, 2);
    assert_true(d9d_run_reader_values(r, "loss")[0] == 2.5);
    assert_true(isnan(d9d_run_reader_values(r, "loss")[1]));
    assert_true(isnan(d9d_run_reader_values(r, "mine")[0]));
    assert_true(d9d_run_reader_values(r, "mine")[1] == 7);
    assert_null(d9d_run_reader_values(r, "note"));
    assert_false(r->torn);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void a_line_that_is_being_written_waits(void **state)
{
    struct place p;
    d9d_run_reader *r;

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"lo");
    r = opened(&p);
    assert_int_equal(r->n, 1);
    assert_true(r->torn);
    append(&p, "ss\": 2}\n{\"step\": 3, \"loss\": 1}\n");
    assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
    assert_int_equal(r->n, 3);
    assert_int_equal(r->first_changed, 1);
    assert_false(r->torn);
    assert_true(d9d_run_reader_values(r, "loss")[1] == 2);
    assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
    assert_int_equal(r->first_changed, 3);
    d9d_run_reader_close(r);
    place_release(&p);
}

/* The newest are kept; one that lacks what it is about is damaged. */
static void stragglers_are_listed(void **state)
{
    struct place p;
    d9d_run_reader *r;
    d9d_buf text = {0};

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 1, \"loss\": 3}\n"
               "{\"straggler\": 60, \"rank\": 5, \"host\": \"h\\u001b2\", \"slower\": 1.31, "
               "\"since\": 40, \"compute_ms\": 13.1, \"peers_ms\": 10}\n"
               "{\"straggler\": 90, \"rank\": 5, \"host\": \"h2\", \"slower\": 1, \"since\": 70, "
               "\"compute_ms\": 10, \"peers_ms\": 10, \"recovered\": true}\n"
               "{\"straggler\": 90, \"rank\": \"5\"}\n");
    r = opened(&p);
    assert_int_equal(r->n, 1);
    assert_int_equal(r->n_stragglers, 2);
    assert_int_equal(r->damaged, 1);
    assert_int_equal(d9d_report_stragglers(r, &text), D9D_OK);
    assert_string_equal(text.data,
                        "step 60: rank 5 (h\xef\xbf\xbd"
                        "2) computes 1.31 times slower than its peers since step 40: 13.1 ms a "
                        "step, and they 10\n"
                        "step 90: rank 5 (h2) computes as fast as its peers since step 70: 10 ms a "
                        "step, and they 10\n");
    for (int i = 0; i < D9D_RUN_READER_STRAGGLERS_MAX; i++)
        append(&p, "{\"straggler\": 100, \"rank\": 1, \"host\": \"h1\"}\n");
    assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
    assert_int_equal(r->n_stragglers, D9D_RUN_READER_STRAGGLERS_MAX);
    assert_int_equal(json_integer_value(json_object_get(r->straggler[0], "rank")), 1);
    d9d_buf_release(&text);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void a_restart_takes_the_place_of_later_steps(void **state)
{
    struct place p;
    d9d_run_reader *r;
    d9d_report_run_summary s;

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 1, \"loss\": 3, \"step_ms\": 1000}\n"
               "{\"step\": 2, \"loss\": 9, \"step_ms\": 1000}\n"
               "{\"step\": 3, \"loss\": 9, \"step_ms\": 1000}\n"
               "{\"save\": 1, \"blocked_ms\": 2.5, \"total_ms\": 900}\n"
               "{\"documents\": 1, \"tokens\": 64, \"worst\": []}\n"
               "{\"pipeline\": 1, \"rows\": 2, \"pipeline_ms\": 8, \"bubble\": 0.25}\n"
               "{\"pipeline\": 2, \"play_ms\": 9, \"busy_ms\": [7], \"input_ms\": [1], "
               "\"weight_ms\": [2]}\n"                /* as written by 0.1 */
               "{\"pipeline\": 7, \"bubble\": 0.5}\n" /* of a step without a record */
               "{\"end\": \"saved\"}\n");
    r = opened(&p);
    assert_string_equal(r->end, "saved");
    assert_int_equal(r->n, 3); /* a save record is not a step */
    assert_true(d9d_run_reader_values(r, "bubble")[0] == 0.25);
    assert_true(isnan(d9d_run_reader_values(r, "bubble")[2]));
    assert_null(d9d_run_reader_values(r, "rows"));
    assert_int_equal(r->n_pipelines, 3);
    assert_true(d9d_run_reader_values(r, "pipeline_ms")[0] == 8);
    assert_true(d9d_run_reader_values(r, "pipeline_ms")[1] == 9);
    assert_null(d9d_run_reader_values(r, "play_ms"));
    assert_int_equal(json_array_size(json_object_get(r->pipeline[1], "compute_ms")), 1);
    assert_int_equal(json_array_size(json_object_get(r->pipeline[1], "dgrad_ms")), 1);
    assert_int_equal(json_array_size(json_object_get(r->pipeline[1], "wgrad_ms")), 1);
    assert_null(json_object_get(r->pipeline[1], "weight_ms"));
    assert_null(d9d_run_reader_values(r, "blocked_ms"));
    append(&p, "{\"restart\": 1, \"step\": 1, \"time\": \"2026-01-31T12:00:00Z\"}\n"
               "{\"step\": 3, \"loss\": 1, \"step_ms\": 500}\n");
    assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
    assert_null(r->end);
    assert_int_equal(r->restarts, 1);
    assert_int_equal(r->n, 2);
    assert_int_equal(r->first_changed, 1);
    assert_int_equal(r->step[1], 3);
    assert_true(d9d_run_reader_values(r, "loss")[1] == 1);
    assert_true(r->wall[0] == 1);
    assert_true(r->wall[1] == 1769860800.0 + 2 * 0.5);
    assert_int_equal(d9d_report_summarise_run(r, &s), D9D_OK);
    assert_true(s.seconds == 2);
    assert_true(s.min_loss == 1);
    assert_int_equal(s.min_loss_step, 3);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void evaluations_stand_with_their_steps(void **state)
{
    struct place p;
    d9d_run_reader *r;
    d9d_report_run_summary s;
    const double *loss, *valid;

    (void)state;
    place_init(&p);
    append(&p, "{\"evaluation\": \"valid\", \"step\": 0, \"valid/loss\": 5}\n"
               "{\"step\": 2, \"loss\": 4, \"step_ms\": 1000}\n"
               "{\"evaluation\": \"valid\", \"step\": 2, \"valid/loss\": 4.5}\n"
               "{\"evaluation\": \"other\", \"step\": 2, \"other/loss\": 7}\n"
               "{\"evaluation\": \"valid\", \"step\": 3, \"valid/loss\": 4}\n"
               "{\"step\": 4, \"loss\": 3, \"step_ms\": 1000}\n"
               "{\"evaluation\": \"valid\", \"step\": 5, \"valid/loss\": 3}\n");
    r = opened(&p);
    assert_int_equal(r->n, 5);
    loss = d9d_run_reader_values(r, "loss");
    valid = d9d_run_reader_values(r, "valid/loss");
    assert_true(isnan(loss[0]) && valid[0] == 5 && r->step[0] == 0);
    assert_true(loss[1] == 4 && valid[1] == 4.5);
    assert_true(d9d_run_reader_values(r, "other/loss")[1] == 7);
    assert_true(isnan(loss[2]) && valid[2] == 4 && r->step[2] == 3);
    assert_true(loss[3] == 3 && isnan(valid[3]));
    assert_int_equal(d9d_report_summarise_run(r, &s), D9D_OK);
    assert_true(s.first_loss == 4 && s.last_loss == 3 && s.seconds == 4);
    assert_true(s.records == 2 && s.first_step == 2 && s.last_step == 4);
    assert_int_equal(r->n_evaluations, 2);
    assert_int_equal(d9d_run_reader_find_column(r, "other/loss")->sources, 4);
    assert_int_equal(r->sources[1], D9D_RUN_READER_TRAINING | 2 | 4);
    append(&p, "{\"restart\": 1, \"step\": 2}\n{\"evaluation\": \"valid\", \"step\": 3, "
               "\"valid/loss\": 6}\n{\"evaluation\": \"valid\", \"step\": -1}\n");
    assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
    assert_int_equal(r->damaged, 1); /* the last one */
    assert_int_equal(r->n, 3);
    assert_true(d9d_run_reader_values(r, "valid/loss")[2] == 6);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void bad_lines_are_named(void **state)
{
    static const struct {
        const char *text, *sentence;
    } rows[] = {
        {"nonsense\n{\"step\": }\n", "metrics.jsonl: line 1: it is not a JSON object"},
        {"[1]\n", "metrics.jsonl: line 1: it is not a JSON object"},
        {"{\"step\": 1, \"loss\": NaN}\n", "metrics.jsonl: line 1: it is not a JSON object"},
        {"{\"loss\": 1}\n",
         "metrics.jsonl: line 1: a record needs its step, an integer of at least 0"},
        {"{\"step\": -1}\n",
         "metrics.jsonl: line 1: a record needs its step, an integer of at least 0"},
        {"{\"step\": 1.5}\n",
         "metrics.jsonl: line 1: a record needs its step, an integer of at least 0"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct place p;
        d9d_run_reader *r = NULL;

        place_init(&p);
        append(&p, rows[i].text);
        assert_int_equal(d9d_run_reader_open(p.dir, NULL, &r), D9D_EFORMAT);
        assert_null(r);
        assert_string_equal(d9d_err_message() + strlen(p.dir) + 1, rows[i].sentence);
        place_release(&p);
    }
}

static void lines_without_end_are_refused(void **state)
{
    struct place p;
    d9d_run_reader *r = NULL;
    FILE *f;

    (void)state;
    place_init(&p);
    f = fopen(p.file, "w");
    assert_non_null(f);
    for (int i = 0; i < (1 << 20) + 1; i++)
        (void)fputc('x', f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(d9d_run_reader_open(p.file, NULL, &r), D9D_EFORMAT);
    assert_non_null(strstr(d9d_err_message(), "line 1: it is longer than 1048576 bytes"));
    place_release(&p);
}

/* A line that is too long, as a hole of zeros after a crash, is left out wherever it lies. */
static void a_long_line_is_left_out(void **state)
{
    static const size_t sizes[] = {(1 << 20) + 1, 3 << 20, (4 << 20) - 20, 4 << 20, 9 << 20};

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct place p;
        d9d_run_reader *r;

        place_init(&p);
        append(&p, "{\"step\": 1, \"loss\": 3}\n");
        append_zeros(&p, sizes[i]);
        r = opened(&p);
        assert_int_equal(r->n, 1);
        assert_true(r->torn);
        append(&p, "\n{\"step\": 2, \"loss\": 4}\n");
        assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
        assert_int_equal(r->n, 2);
        assert_false(r->torn);
        assert_int_equal(r->damaged, 1);
        d9d_run_reader_close(r);
        r = opened(&p);
        assert_int_equal(r->n, 2);
        assert_int_equal(r->damaged, 1);
        d9d_run_reader_close(r);
        place_release(&p);
    }
}

/* A run directory that is new while the checkpoints are not: steps before it took none of its time.
 */
static void a_file_may_begin_with_a_restart(void **state)
{
    struct place p;
    d9d_run_reader *r;
    d9d_report_run_summary s;

    (void)state;
    place_init(&p);
    append(&p, "{\"restart\": 1, \"step\": 1000, \"time\": \"2026-01-31T12:00:00Z\"}\n"
               "{\"step\": 1010, \"loss\": 3, \"step_ms\": 100}\n"
               "{\"restart\": 2, \"step\": 1005, \"time\": \"2026-01-31T13:00:00Z\"}\n"
               "{\"step\": 1010, \"loss\": 3, \"step_ms\": 100}\n"
               "{\"step\": 1020, \"loss\": null, \"step_ms\": 200}\n");
    r = opened(&p);
    assert_int_equal(d9d_report_summarise_run(r, &s), D9D_OK);
    assert_int_equal(r->begin, 1000);
    assert_true(s.seconds == 3);
    assert_true(isnan(s.last_loss)); /* of the last record, even where it is not finite */
    assert_true(s.first_loss == 3 && s.min_loss == 3);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void a_step_that_repeats_counts_once(void **state)
{
    struct place p;
    d9d_run_reader *r;

    (void)state;
    place_init(&p);
    append(&p,
           "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"loss\": 3}\n{\"step\": 2, \"loss\": 4}\n");
    r = opened(&p);
    assert_int_equal(r->n, 2);
    assert_true(d9d_run_reader_values(r, "loss")[1] == 4);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void events_are_kept_in_order(void **state)
{
    struct place p;
    d9d_run_reader *r;

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 10, \"loss\": 3, \"step_ms\": 100}\n"
               "{\"save\": 10, \"blocked_ms\": 2.5, \"total_ms\": 900, "
               "\"time\": \"2026-01-31T12:00:00Z\"}\n"
               "{\"step\": 20, \"loss\": 3, \"step_ms\": 100}\n"
               "{\"step\": 30, \"loss\": 3, \"step_ms\": 200}\n"
               "{\"end\": \"failed\", \"step\": 30}\n"
               "{\"restart\": 1, \"step\": 15, \"time\": \"2026-01-31T12:00:00Z\"}\n"
               "{\"save\": 16}\n{\"restart\": 2}\n"
               "{\"local_save\": 18, \"blocked_ms\": 0.5, \"total_ms\": 7, "
               "\"time\": \"2026-01-31T12:00:00Z\"}\n");
    r = opened(&p);
    assert_int_equal(r->n_events, 6);
    assert_int_equal(r->events[5].kind, D9D_RUN_READER_LOCAL_SAVE);
    assert_int_equal(r->events[5].step, 18);
    assert_true(r->events[5].blocked_ms == 0.5 && r->events[5].total_ms == 7);
    assert_int_equal(r->events[0].kind, D9D_RUN_READER_SAVE);
    assert_int_equal(r->events[0].step, 10);
    assert_true(r->events[0].blocked_ms == 2.5 && r->events[0].total_ms == 900);
    assert_true(r->events[0].time == 1769860800);
    assert_int_equal(r->events[1].kind, D9D_RUN_READER_END);
    assert_string_equal(r->events[1].word, "failed");
    assert_true(isnan(r->events[1].time));
    assert_int_equal(r->events[2].kind, D9D_RUN_READER_RESTART);
    assert_int_equal(r->events[2].step, 15);
    /* Of steps 16 to 20 and 21 to 30. */
    assert_int_equal(r->events[2].discarded, 15);
    assert_true(fabs(r->events[2].discarded_s - (5 * 0.1 + 10 * 0.2)) < 1e-9);
    assert_true(isnan(r->events[3].blocked_ms));
    assert_int_equal(r->events[4].step, -1);
    assert_int_equal(r->events[4].discarded, 0);
    d9d_run_reader_close(r);
    place_release(&p);
}

/* However many experts are logged, evaluations have their columns. */
static void details_leave_columns_to_evaluations(void **state)
{
    struct place p;
    d9d_run_reader *r;
    d9d_buf line = {0};

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 1, \"loss\": 3, \"expert_load/0/0\": 7}\n");
    assert_int_equal(d9d_buf_printf(&line, "{\"step\": 2, \"loss\": 3"), D9D_OK);
    for (int i = 0; i < 200; i++)
        assert_int_equal(d9d_buf_printf(&line, ", \"expert_load/0/%d\": %d", i, i), D9D_OK);
    assert_int_equal(d9d_buf_printf(&line, "}\n"), D9D_OK);
    append(&p, line.data);
    append(&p, "{\"evaluation\": \"valid\", \"step\": 2, \"valid/loss\": 5}\n"
               "{\"step\": 3, \"loss\": 2}\n");
    r = opened(&p);
    assert_int_equal(r->n_columns, 1 + D9D_RUN_READER_DETAILS_MAX + 1);
    assert_true(d9d_run_reader_values(r, "valid/loss")[1] == 5);
    assert_true(d9d_run_reader_values(r, "expert_load/0/0")[1] == 0);
    assert_null(d9d_run_reader_values(r, "expert_load/0/199"));
    assert_string_equal(r->detail_left_out, "expert_load/0/32");
    assert_int_equal(json_integer_value(json_object_get(r->details, "expert_load/0/199")), 199);
    assert_int_equal(json_integer_value(json_object_get(r->details, "step")), 2);
    d9d_run_reader_close(r);
    d9d_buf_release(&line);
    place_release(&p);
}

static void runs_compare_at_common_steps(void **state)
{
    struct place p[2];
    char *paths[2];
    d9d_run_reader_list runs;
    d9d_buf out = {0};

    (void)state;
    for (int i = 0; i < 2; i++) {
        place_init(&p[i]);
        paths[i] = p[i].file;
    }
    append(&p[0],
           "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"loss\": 3}\n{\"step\": 4, \"loss\": 1}\n");
    append(
        &p[1],
        "{\"step\": 2, \"loss\": 3.5}\n{\"step\": 3, \"loss\": 0}\n{\"step\": 4, \"loss\": 1}\n");
    assert_int_equal(d9d_run_reader_list_open(paths, 2, NULL, &runs), D9D_OK);
    /* Names of equal width keep the expected text simple. */
    strcpy(runs.run[0]->name, "a");
    strcpy(runs.run[1]->name, "b");
    assert_int_equal(d9d_report_compare(&runs, "loss", 0, &out), D9D_OK);
    assert_string_equal(out.data,
                        "step  a    b  difference\n"
                        "2     3  3.5         0.5\n"
                        "4     1    1           0\n"
                        "b: largest difference from a is 0.5, at step 2 (2 common steps)\n");
    out.len = 0;
    assert_int_equal(d9d_report_csv(&runs, &out), D9D_OK);
    assert_string_equal(out.data, "run,step,loss\na,1,3\na,2,3\na,4,1\nb,2,3.5\nb,3,0\nb,4,1\n");
    d9d_buf_release(&out);
    d9d_run_reader_list_close(&runs);
    place_release(&p[0]);
    place_release(&p[1]);
}

static void own_values_belong_to_their_step(void **state)
{
    struct place p;
    d9d_run_reader *r;

    (void)state;
    place_init(&p);
    append(&p, "{\"values\": 1, \"a/b\": 5}\n" /* a step without a record */
               "{\"step\": 2, \"loss\": 2.5}\n{\"values\": 2, \"a/b\": 6, \"a/c\": null}\n"
               "{\"text\": \"a/t\", \"step\": 2, \"content\": \"old\"}\n"
               "{\"text\": \"a/t\", \"step\": 3, \"content\": \"new\"}\n"
               "{\"values\": \"x\"}\n{\"text\": \"a line of a corpus\"}\n");
    r = opened(&p);
    assert_int_equal(r->n, 2);
    assert_int_equal(r->damaged, 2);
    assert_true(d9d_run_reader_values(r, "a/b")[0] == 5 && d9d_run_reader_values(r, "a/b")[1] == 6);
    assert_true(isnan(d9d_run_reader_values(r, "loss")[0]));
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(r->own, "a/t"), "content")), "new");
    append(&p, "{\"restart\": 1, \"step\": 1}\n{\"step\": 2, \"loss\": 2}\n"
               "{\"values\": 2, \"a/b\": 7}\n");
    assert_int_equal(d9d_run_reader_poll(r), D9D_OK);
    assert_int_equal(r->n, 2);
    assert_true(d9d_run_reader_values(r, "a/b")[1] == 7);
    d9d_run_reader_close(r);
    place_release(&p);
}

static void a_thousand_own_values_are_columns(void **state)
{
    struct place p;
    d9d_run_reader *r;
    char key[32];

    (void)state;
    place_init(&p);
    append(&p, "{\"step\": 1, \"loss\": 1}\n{\"values\": 1");
    for (int i = 0; i < 1000; i++) {
        (void)snprintf(key, sizeof(key), ", \"own/%d\": %d", i, i);
        append(&p, key);
    }
    append(&p, "}\n");
    r = opened(&p);
    assert_int_equal(r->n_columns, 1001);
    assert_true(d9d_run_reader_values(r, "own/999")[0] == 999);
    d9d_run_reader_close(r);
    place_release(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_what_was_logged),
        cmocka_unit_test(own_values_belong_to_their_step),
        cmocka_unit_test(a_thousand_own_values_are_columns),
        cmocka_unit_test(a_line_that_is_being_written_waits),
        cmocka_unit_test(stragglers_are_listed),
        cmocka_unit_test(a_restart_takes_the_place_of_later_steps),
        cmocka_unit_test(evaluations_stand_with_their_steps),
        cmocka_unit_test(events_are_kept_in_order),
        cmocka_unit_test(details_leave_columns_to_evaluations),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(lines_without_end_are_refused),
        cmocka_unit_test(a_long_line_is_left_out),
        cmocka_unit_test(a_file_may_begin_with_a_restart),
        cmocka_unit_test(a_step_that_repeats_counts_once),
        cmocka_unit_test(runs_compare_at_common_steps),
    };

    return cmocka_run_group_tests_name("run", tests, NULL, NULL);
}
