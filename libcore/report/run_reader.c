/* run_reader.c - reads metrics.jsonl, also while it grows. */
#include "d9d/report/run_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/base/num_format.h"
#include "d9d/config/config.h"

enum { LINE_MAX_BYTES = 1 << 20, READ_BYTES = 4 << 20 };

struct d9di_run_reader_state {
    const d9d_log *log;
    uint64_t offset; /* where the first unread line begins */
    uint64_t line;   /* its number, from 1 */
    bool skipping;   /* that line is too long: its front was left out, up to `offset` */
    size_t cap;      /* records allocated */
    int64_t from;    /* the step of the record before, to weight its time */
    double time;     /* of the last record or restart */
    size_t events_cap;
    size_t n_details;         /* columns of training keys that have a slash */
    bool columns_full_logged; /* logged once */
    uint64_t n_parsed;        /* lines that were valid */
    uint64_t n_logged;        /* damaged lines that were logged already, */
    d9d_err_copy first;       /* and the error of the first one */
    d9d_map index;            /* of the columns: 1 + the number of each, as a pointer */
};

static d9d_status fail_no_memory(const d9d_run_reader *r)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu records", r->path, r->n + 1);
}

/* --- columns ------------------------------------------------------------------- */

static bool resize_array(void *array, size_t count, size_t size)
{
    void **p = array;
    uint64_t bytes;
    void *q;

    if (!d9d_checked_mul_u64(count, size, &bytes) || (q = realloc(*p, (size_t)bytes)) == NULL)
        return false;
    *p = q;
    return true;
}

static d9d_status grow_columns(d9d_run_reader *r)
{
    struct d9di_run_reader_state *rd = r->reader;
    const size_t cap = rd->cap > 0 ? 2 * rd->cap : 256;

    if (r->n < rd->cap)
        return D9D_OK;
    if (!resize_array(&r->step, cap, sizeof(*r->step)) ||
        !resize_array(&r->wall, cap, sizeof(*r->wall)) ||
        !resize_array(&r->sources, cap, sizeof(*r->sources)))
        return fail_no_memory(r);
    for (size_t i = 0; i < r->n_columns; i++)
        if (!resize_array(&r->columns[i].values, cap, sizeof(double)) ||
            !resize_array(&r->columns[i].logged, cap, sizeof(bool)))
            return fail_no_memory(r);
    rd->cap = cap;
    return D9D_OK;
}

static d9d_run_reader_column *find_column(const d9d_run_reader *r, const char *key)
{
    if (r->reader != NULL) {
        const uintptr_t at = (uintptr_t)d9d_map_get(&r->reader->index, key, strlen(key));

        return at > 0 ? &r->columns[at - 1] : NULL;
    }
    for (size_t i = 0; i < r->n_columns; i++) /* of a run that no file was read for */
        if (strcmp(r->columns[i].name, key) == 0)
            return &r->columns[i];
    return NULL;
}

static void clear_value(d9d_run_reader_column *c, size_t i)
{
    c->values[i] = (double)NAN;
    c->logged[i] = false;
}

static void free_column(d9d_run_reader_column *c)
{
    free(c->name);
    free(c->values);
    free(c->logged);
}

/* No existing record has a new column. */
static d9d_status add_column(d9d_run_reader *r, const char *key, uint32_t source, bool is_own)
{
    const bool detail = !is_own && source == D9D_RUN_READER_TRAINING && strchr(key, '/') != NULL;
    d9d_run_reader_column c = {.name = NULL, .is_own = is_own};

    if (detail && r->reader->n_details == D9D_RUN_READER_DETAILS_MAX) {
        if (r->detail_left_out == NULL && (r->detail_left_out = strdup(key)) == NULL)
            return fail_no_memory(r);
        return D9D_OK;
    }
    if (r->n_columns == D9D_RUN_READER_COLUMNS_MAX) {
        if (!r->reader->columns_full_logged)
            d9d_log_warn(r->reader->log, "%s: more than %d keys; \"%.60s\" is left out", r->path,
                         D9D_RUN_READER_COLUMNS_MAX, key);
        r->reader->columns_full_logged = true;
        return D9D_OK;
    }
    r->reader->n_details += detail;
    c.name = strdup(key);
    if (c.name == NULL || !resize_array(&c.values, r->reader->cap, sizeof(double)) ||
        !resize_array(&c.logged, r->reader->cap, sizeof(bool)) ||
        !resize_array(&r->columns, r->n_columns + 1, sizeof(c)) ||
        d9d_map_put(&r->reader->index, key, strlen(key), (void *)(uintptr_t)(r->n_columns + 1)) !=
            D9D_OK) {
        free_column(&c);
        return fail_no_memory(r);
    }
    for (size_t i = 0; i <= r->n; i++)
        clear_value(&c, i);
    r->columns[r->n_columns++] = c;
    return D9D_OK;
}

/* --- lines ---------------------------------------------------------------------- */

static d9d_status fail_line(const d9d_run_reader *r, const char *reason)
{
    return D9D_FAIL(D9D_EFORMAT, "%s: line %" PRIu64 ": %s", r->path, r->reader->line, reason);
}

/* Discards records.  *discarded and *seconds, which may be NULL, get the number of training steps
 * among them and what these took. */
static void truncate_after_step(d9d_run_reader *r, int64_t step, int64_t *discarded,
                                double *seconds)
{
    const double *ms = d9d_run_reader_values(r, "step_ms");

    for (; r->n > 0 && r->step[r->n - 1] > step; r->n--) {
        const int64_t before = r->n > 1 && r->step[r->n - 2] > step ? r->step[r->n - 2] : step;
        const int64_t steps = r->step[r->n - 1] - before;

        if (discarded == NULL)
            continue;
        *discarded += steps;
        if (ms != NULL && isfinite(ms[r->n - 1]))
            *seconds += 1e-3 * ms[r->n - 1] * (double)steps;
    }
    r->first_changed = r->first_changed < r->n ? r->first_changed : r->n;
    r->first_new = r->first_new < r->n ? r->first_new : r->n;
}

/* "2026-01-31T12:00:00Z" as seconds since 1970; NaN for a line without it. */
static double parse_time(const json_t *obj)
{
    const char *text = json_string_value(json_object_get(obj, "time"));
    struct tm tm = {0};
    char z = 0;

    if (text == NULL ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%c", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
               &tm.tm_min, &tm.tm_sec, &z) != 7 ||
        z != 'Z')
        return (double)NAN;
    tm.tm_year -= 1900;
    tm.tm_mon--;
    return (double)timegm(&tm);
}

static void advance_clock(d9d_run_reader *r, const json_t *obj)
{
    const double time = parse_time(obj);

    if (!isnan(time))
        r->reader->time = time;
}

static double number_of(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* Appends the event of a line; `step_key` has its step. */
static d9d_status push_event(d9d_run_reader *r, const json_t *obj, d9d_run_reader_event_kind kind,
                             const char *step_key)
{
    const json_t *step = json_object_get(obj, step_key);
    const char *word = json_string_value(json_object_get(obj, "end"));
    d9d_run_reader_event e = {.kind = kind,
                              .step = json_is_integer(step) ? json_integer_value(step) : -1,
                              .time = parse_time(obj),
                              .blocked_ms = number_of(obj, "blocked_ms"),
                              .total_ms = number_of(obj, "total_ms")};

    (void)snprintf(e.word, sizeof(e.word), "%s", word != NULL ? word : "done");
    if (d9d_vec_grow((void **)&r->events, &r->reader->events_cap, r->n_events, 1, sizeof(e)) !=
        D9D_OK)
        return D9D_ENOMEM;
    r->events[r->n_events++] = e;
    return D9D_OK;
}

static d9d_status parse_restart(d9d_run_reader *r, const json_t *obj)
{
    d9d_run_reader_event *e;

    r->restarts++;
    free(r->end);
    r->end = NULL;
    advance_clock(r, obj);
    D9D_TRY(push_event(r, obj, D9D_RUN_READER_RESTART, "step"));
    e = &r->events[r->n_events - 1];
    if (e->step >= 0) {
        truncate_after_step(r, e->step, &e->discarded, &e->discarded_s);
        r->reader->from = e->step;
        if (r->reader->n_parsed == 0)
            r->begin = e->step;
    }
    return D9D_OK;
}

static d9d_status parse_end(d9d_run_reader *r, const json_t *obj)
{
    const char *word = json_string_value(json_object_get(obj, "end"));

    free(r->end);
    r->end = strdup(word != NULL ? word : "done");
    return r->end != NULL ? push_event(r, obj, D9D_RUN_READER_END, "step") : fail_no_memory(r);
}

static bool is_event_key(const char *key)
{
    return strcmp(key, "step") == 0 || strcmp(key, "restart") == 0 || strcmp(key, "end") == 0 ||
           strcmp(key, "time") == 0;
}

/* Appends a record that has no column. */
static d9d_status record_begin(d9d_run_reader *r)
{
    D9D_TRY(grow_columns(r));
    r->sources[r->n] = 0;
    for (size_t i = 0; i < r->n_columns; i++)
        clear_value(&r->columns[i], r->n);
    return D9D_OK;
}

/* Parses the values into record `at`. */
static d9d_status parse_values(d9d_run_reader *r, json_t *obj, size_t at, uint32_t source,
                               bool is_own)
{
    const char *key;
    json_t *v;

    r->sources[at] |= source;
    json_object_foreach(obj, key, v)
    {
        d9d_run_reader_column *c;

        if (is_event_key(key) || !(json_is_number(v) || json_is_null(v)))
            continue;
        if (find_column(r, key) == NULL)
            D9D_TRY(add_column(r, key, source, is_own));
        c = find_column(r, key);
        if (c == NULL)
            continue;
        c->sources |= source;
        c->logged[at] = true;
        if (json_is_number(v))
            c->values[at] = json_number_value(v);
    }
    return D9D_OK;
}

/* Keeps the newest record with values of layers or experts. */
static void keep_details(d9d_run_reader *r, json_t *obj)
{
    const char *key;
    json_t *v;

    json_object_foreach(obj, key, v)
    {
        if (strchr(key, '/') == NULL)
            continue;
        json_decref(r->details);
        r->details = json_incref(obj);
        return;
    }
}

static d9d_status parse_record(d9d_run_reader *r, json_t *obj)
{
    struct d9di_run_reader_state *rd = r->reader;
    const json_t *step = json_object_get(obj, "step");
    const double *ms;
    int64_t k;

    if (!json_is_integer(step) || json_integer_value(step) < 0)
        return fail_line(r, "a record needs its step, an integer of at least 0");
    k = json_integer_value(step);
    if (r->n > 0 && r->step[r->n - 1] >= k)
        d9d_log_warn(rd->log,
                     "%s: line %" PRIu64 ": step %" PRId64 " after step %" PRId64
                     " without a restart; the later record counts",
                     r->path, rd->line, k, r->step[r->n - 1]);
    truncate_after_step(r, k - 1, NULL, NULL);
    D9D_TRY(record_begin(r));
    D9D_TRY(parse_values(r, obj, r->n, D9D_RUN_READER_TRAINING, false));
    keep_details(r, obj);
    r->step[r->n] = k;
    ms = d9d_run_reader_values(r, "step_ms");
    if (ms != NULL && isfinite(ms[r->n]) && k > rd->from)
        rd->time += ms[r->n] * 1e-3 * (double)(k - rd->from);
    advance_clock(r, obj);
    rd->from = k;
    r->wall[r->n++] = rd->time;
    return D9D_OK;
}

/* Keys that 0.1 wrote get the names that they have now. */
static d9d_status rename_former_keys(d9d_run_reader *r, json_t *obj)
{
    static const struct {
        const char *former, *name;
    } keys[] = {{"play_ms", "pipeline_ms"},
                {"busy_ms", "compute_ms"},
                {"input_ms", "dgrad_ms"},
                {"weight_ms", "wgrad_ms"}};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *v = json_object_get(obj, keys[i].former);

        if (v != NULL && json_object_set(obj, keys[i].name, v) != 0)
            return fail_no_memory(r);
        (void)json_object_del(obj, keys[i].former);
    }
    return D9D_OK;
}

/* Keeps the newest lines: of a list of n, at most max. */
static void push_newest(json_t **list, size_t *n, size_t max, json_t *obj)
{
    if (*n == max) {
        json_decref(list[0]);
        memmove(list, list + 1, --*n * sizeof(*list));
    }
    list[(*n)++] = json_incref(obj);
}

static d9d_status parse_straggler(d9d_run_reader *r, json_t *obj)
{
    if (!json_is_integer(json_object_get(obj, "straggler")) ||
        !json_is_integer(json_object_get(obj, "rank")) ||
        !json_is_string(json_object_get(obj, "host")))
        return fail_line(r, "\"straggler\" needs its step, rank and host");
    push_newest(r->straggler, &r->n_stragglers, D9D_RUN_READER_STRAGGLERS_MAX, obj);
    return D9D_OK;
}

/* Adds the pipeline's times to the existing record of the step. */
static d9d_status parse_pipeline(d9d_run_reader *r, json_t *obj)
{
    static const char *const keys[] = {"bubble", "pipeline_ms"};
    const json_t *step = json_object_get(obj, "pipeline");
    size_t row = r->n;

    if (!json_is_integer(step))
        return fail_line(r, "\"pipeline\" needs its step, an integer");
    D9D_TRY(rename_former_keys(r, obj));
    push_newest(r->pipeline, &r->n_pipelines, D9D_RUN_READER_PIPELINES_MAX, obj);
    while (row > 0 && r->step[row - 1] > json_integer_value(step))
        row--;
    if (row == 0 || r->step[row - 1] != json_integer_value(step))
        return D9D_OK;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *v = json_object_get(obj, keys[i]);
        d9d_run_reader_column *c;

        if (!json_is_number(v))
            continue;
        if (find_column(r, keys[i]) == NULL)
            D9D_TRY(add_column(r, keys[i], D9D_RUN_READER_TRAINING, false));
        c = find_column(r, keys[i]);
        if (c == NULL)
            continue;
        c->sources |= D9D_RUN_READER_TRAINING;
        c->logged[row - 1] = true;
        c->values[row - 1] = json_number_value(v);
    }
    return D9D_OK;
}

/* The bit of an evaluation, which is assigned at its first appearance. */
static d9d_status evaluation_source(d9d_run_reader *r, const char *name, uint32_t *out)
{
    size_t i = 0;

    while (i < r->n_evaluations && strcmp(r->evaluations[i], name) != 0)
        i++;
    if (i == D9D_RUN_READER_EVALUATIONS_MAX)
        i--;
    if (i == r->n_evaluations) {
        r->evaluations[i] = strdup(name);
        if (r->evaluations[i] == NULL)
            return fail_no_memory(r);
        r->n_evaluations++;
    }
    *out = (uint32_t)1 << (1 + i);
    return D9D_OK;
}

/* Adds values to the record of their step, which becomes fresh, or to a new record without training
 * values. */
static d9d_status parse_evaluation(d9d_run_reader *r, json_t *obj)
{
    const json_t *step = json_object_get(obj, "step");
    const char *name = json_string_value(json_object_get(obj, "evaluation"));
    uint32_t source = 0;
    int64_t k;

    if (!json_is_integer(step) || json_integer_value(step) < 0)
        return fail_line(r, "an evaluation needs its step, an integer of at least 0");
    k = json_integer_value(step);
    D9D_TRY(evaluation_source(r, name != NULL ? name : "", &source));
    truncate_after_step(r, k, NULL, NULL);
    if (r->n > 0 && r->step[r->n - 1] == k) {
        r->first_changed = r->first_changed < r->n ? r->first_changed : r->n - 1;
        return parse_values(r, obj, r->n - 1, source, false);
    }
    D9D_TRY(record_begin(r));
    D9D_TRY(parse_values(r, obj, r->n, source, false));
    r->step[r->n] = k;
    r->wall[r->n++] = r->reader->time;
    return D9D_OK;
}

/* Adds own values to the record of their step, or to a new one: a step whose record the logging
 * period leaves out has them too. */
static d9d_status parse_own_values(d9d_run_reader *r, json_t *obj)
{
    const json_t *step = json_object_get(obj, "values");
    size_t row = r->n;
    int64_t k;

    if (!json_is_integer(step) || json_integer_value(step) < 0)
        return fail_line(r, "\"values\" needs its step, an integer of at least 0");
    k = json_integer_value(step);
    (void)json_object_del(obj, "values");
    while (row > 0 && r->step[row - 1] > k)
        row--;
    if (row > 0 && r->step[row - 1] == k) {
        r->first_changed = r->first_changed < row ? r->first_changed : row - 1;
        return parse_values(r, obj, row - 1, D9D_RUN_READER_TRAINING, true);
    }
    if (row < r->n) /* an earlier step without a record: steps ascend */
        return D9D_OK;
    D9D_TRY(record_begin(r));
    D9D_TRY(parse_values(r, obj, r->n, D9D_RUN_READER_TRAINING, true));
    r->sources[r->n] = 0;
    r->step[r->n] = k;
    r->wall[r->n++] = r->reader->time;
    return D9D_OK;
}

/* The name of an own value that is no number; NULL for another line. */
static const char *own_name(const json_t *obj)
{
    static const char *const kinds[] = {"histogram", "text", "picture"};
    const char *name = NULL;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && name == NULL; i++)
        name = json_string_value(json_object_get(obj, kinds[i]));
    return name;
}

/* Keeps the newest of each name. */
static d9d_status keep_own(d9d_run_reader *r, json_t *obj)
{
    if (!json_is_integer(json_object_get(obj, "step")))
        return fail_line(r, "an own value needs its step, an integer");
    if (r->own == NULL)
        r->own = json_object();
    return json_object_set(r->own, own_name(obj), obj) == 0 ? D9D_OK : fail_no_memory(r);
}

static d9d_status parse_line(d9d_run_reader *r, const char *text, size_t n)
{
    json_t *obj;
    d9d_status st;

    if (n == 0 || strspn(text, " \t\r") >= n)
        return D9D_OK;
    obj = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(obj)) {
        json_decref(obj);
        return fail_line(r, "it is not a JSON object");
    }
    if (json_object_get(obj, "restart") != NULL)
        st = parse_restart(r, obj);
    else if (json_object_get(obj, "end") != NULL)
        st = parse_end(r, obj);
    else if (json_object_get(obj, "evaluation") != NULL)
        st = parse_evaluation(r, obj);
    else if (json_object_get(obj, "save") != NULL)
        st = push_event(r, obj, D9D_RUN_READER_SAVE, "save");
    else if (json_object_get(obj, "local_save") != NULL)
        st = push_event(r, obj, D9D_RUN_READER_LOCAL_SAVE, "local_save");
    else if (json_object_get(obj, "worst") != NULL)
        st = D9D_OK; /* a documents line is not a step record */
    else if (json_object_get(obj, "pipeline") != NULL)
        st = parse_pipeline(r, obj);
    else if (json_object_get(obj, "straggler") != NULL)
        st = parse_straggler(r, obj);
    else if (json_object_get(obj, "values") != NULL)
        st = parse_own_values(r, obj);
    else if (own_name(obj) != NULL)
        st = keep_own(r, obj);
    else
        st = parse_record(r, obj);
    json_decref(obj);
    return st;
}

/* A damaged line is skipped and counted. */
static d9d_status try_parse_line(d9d_run_reader *r, const char *text, size_t n)
{
    const d9d_status st = n > LINE_MAX_BYTES ? fail_line(r, "it is longer than 1048576 bytes")
                                             : parse_line(r, text, n);

    if (st == D9D_EFORMAT && r->damaged++ == 0)
        d9d_err_save(&r->reader->first, st);
    r->reader->n_parsed += st == D9D_OK;
    return st == D9D_EFORMAT ? D9D_OK : st;
}

/* The rest of a line of which the front was skipped has been counted with it. */
static d9d_status end_line(d9d_run_reader *r, const char *text, size_t n)
{
    const d9d_status st = r->reader->skipping ? D9D_OK : try_parse_line(r, text, n);

    r->reader->skipping = false;
    r->reader->line++;
    return st;
}

/* A file that has damaged lines only is not a run's. */
static d9d_status log_damage(d9d_run_reader *r)
{
    struct d9di_run_reader_state *rd = r->reader;
    const uint64_t more = r->damaged - rd->n_logged;
    d9d_err_copy why = rd->first;
    d9d_status st;

    if (more == 0)
        return D9D_OK;
    st = d9d_err_restore(&why);
    if (rd->n_parsed == 0)
        return st;
    d9d_log_warn(rd->log, "%s; %" PRIu64 " damaged line%s left out", d9d_err_message(), r->damaged,
                 r->damaged == 1 ? " is" : "s are");
    rd->n_logged = r->damaged;
    return D9D_OK;
}

/* Parses the complete lines at the front of `data`, and skips a longer one that has begun; *used is
 * their size in bytes. */
static d9d_status parse_lines(d9d_run_reader *r, const char *data, size_t n, size_t *used)
{
    const char *end;

    *used = 0;
    while ((end = memchr(data + *used, '\n', n - *used)) != NULL) {
        const size_t len = (size_t)(end - data) - *used;

        D9D_TRY(end_line(r, data + *used, len));
        *used += len + 1;
    }
    if (!r->reader->skipping && n - *used > LINE_MAX_BYTES) {
        D9D_TRY(try_parse_line(r, data + *used, n - *used));
        r->reader->skipping = true;
    }
    if (r->reader->skipping)
        *used = n;
    return D9D_OK;
}

/* --- the file --------------------------------------------------------------------- */

static size_t read_size(uint64_t left)
{
    return left < READ_BYTES ? (size_t)left : READ_BYTES;
}

/* Reads the lines in [reader->offset, size).  An incomplete line is read again the next time, since
 * a restarted run may have replaced it. */
static d9d_status read_new_lines(d9d_run_reader *r, const d9d_file *f, uint64_t size, char *buffer)
{
    struct d9di_run_reader_state *rd = r->reader;
    size_t used = 1;

    while (rd->offset < size && used > 0) {
        const size_t n = read_size(size - rd->offset);

        D9D_TRY(d9d_file_read_at(f, buffer, n, rd->offset));
        D9D_TRY(parse_lines(r, buffer, n, &used));
        rd->offset += used;
    }
    r->torn = rd->offset < size || rd->skipping;
    return log_damage(r);
}

d9d_status d9d_run_reader_poll(d9d_run_reader *r)
{
    d9d_file f = {.fd = -1};
    uint64_t size;
    char *buffer;
    d9d_status st;

    r->first_changed = r->first_new = r->n;
    D9D_TRY(d9d_fs_size(r->path, &size));
    if (size < r->reader->offset)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: has %" PRIu64 " bytes, and whole lines of %" PRIu64
                        " were read before",
                        r->path, size, r->reader->offset);
    if (size == r->reader->offset)
        return D9D_OK;
    D9D_TRY(d9d_file_open(r->path, &f));
    buffer = malloc(read_size(size - r->reader->offset));
    st = buffer != NULL ? read_new_lines(r, &f, size, buffer) : fail_no_memory(r);
    free(buffer);
    d9d_file_release(&f);
    return st;
}

/* The last component of a path; both "runs/demo/" and "runs/demo/metrics.jsonl" give "demo". */
static char *last_component(const char *path)
{
    size_t n = strlen(path), from;

    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n > 14 && memcmp(path + n - 14, "/metrics.jsonl", 14) == 0)
        n -= 14;
    from = n;
    while (from > 0 && path[from - 1] != '/')
        from--;
    return from < n ? strndup(path + from, n - from) : strdup("run");
}

/* A name that is valid as a file name; "." and ".." are resolved. */
static char *run_name(const char *path)
{
    char *name = last_component(path), *real;

    if (name == NULL || strspn(name, ".") < strlen(name))
        return name;
    free(name);
    real = realpath(path, NULL);
    name = real != NULL ? last_component(real) : strdup("run");
    free(real);
    return name;
}

/* metrics.jsonl of a run directory, or the file itself. */
static char *metrics_path(const char *path)
{
    d9d_arena a = {0};
    char *joined, *file;

    if (!d9d_fs_is_dir(path))
        return strdup(path);
    joined = d9d_fs_join(&a, path, "metrics.jsonl");
    file = joined != NULL ? strdup(joined) : NULL;
    d9d_arena_release(&a);
    return file;
}

static d9d_status open_run(d9d_run_reader *r, const char *path, const d9d_log *log)
{
    r->reader = calloc(1, sizeof(*r->reader));
    r->path = metrics_path(path);
    r->name = run_name(path);
    if (r->reader == NULL || r->path == NULL || r->name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a run", path);
    r->reader->log = log;
    r->reader->line = 1;
    if (!d9d_fs_exists(r->path))
        return D9D_FAIL(D9D_ENOTFOUND, "%s: there is no such file, nor a run directory", r->path);
    D9D_TRY(d9d_fs_check_regular(r->path));
    return d9d_run_reader_poll(r);
}

d9d_status d9d_run_reader_open(const char *path, const d9d_log *log, d9d_run_reader **out)
{
    d9d_run_reader *r = calloc(1, sizeof(*r));
    d9d_status st;

    if (r == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a run", path);
    st = open_run(r, path, log);
    if (st != D9D_OK) {
        d9d_run_reader_close(r);
        return st;
    }
    *out = r;
    return D9D_OK;
}

void d9d_run_reader_close(d9d_run_reader *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < r->n_columns; i++)
        free_column(&r->columns[i]);
    for (size_t i = 0; i < r->n_pipelines; i++)
        json_decref(r->pipeline[i]);
    for (size_t i = 0; i < r->n_stragglers; i++)
        json_decref(r->straggler[i]);
    for (size_t i = 0; i < r->n_evaluations; i++)
        free(r->evaluations[i]);
    free(r->detail_left_out);
    json_decref(r->details);
    json_decref(r->own);
    if (r->reader != NULL)
        d9d_map_release(&r->reader->index);
    free(r->events);
    free(r->columns);
    free(r->step);
    free(r->wall);
    free(r->sources);
    free(r->name);
    free(r->path);
    free(r->end);
    free(r->reader);
    free(r);
}

const double *d9d_run_reader_values(const d9d_run_reader *r, const char *key)
{
    const d9d_run_reader_column *c = find_column(r, key);

    return c != NULL ? c->values : NULL;
}

const d9d_run_reader_column *d9d_run_reader_find_column(const d9d_run_reader *r, const char *key)
{
    return find_column(r, key);
}

bool d9d_run_reader_is_logged(const d9d_run_reader_column *c, size_t i)
{
    return c != NULL && (c->logged == NULL || c->logged[i]);
}

int d9d_run_reader_evaluation_of(const d9d_run_reader *r, const d9d_run_reader_column *c)
{
    static const char *const beside[] = {"tokens", "samples", "ms"};

    for (size_t i = 0; i < r->n_evaluations; i++) {
        const size_t n = strlen(r->evaluations[i]);

        if ((c->sources & (uint32_t)1 << (1 + i)) == 0 ||
            strncmp(c->name, r->evaluations[i], n) != 0 || c->name[n] != '/' ||
            strchr(c->name + n + 1, '/') != NULL)
            continue;
        for (size_t k = 0; k < sizeof(beside) / sizeof(beside[0]); k++)
            if (strcmp(c->name + n + 1, beside[k]) == 0)
                return -1;
        return (int)i;
    }
    return -1;
}

/* --- several runs -------------------------------------------------------------------- */

d9d_status d9d_run_reader_list_open(char *const *paths, size_t n, const d9d_log *log,
                                    d9d_run_reader_list *out)
{
    d9d_run_reader_list r = {calloc(n, sizeof(*r.run)), 0};

    if (r.run == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for %zu runs", n);
    for (size_t i = 0; i < n; i++) {
        const d9d_status st = d9d_run_reader_open(paths[i], log, &r.run[i]);

        if (st != D9D_OK) {
            d9d_run_reader_list_close(&r);
            return st;
        }
        if (r.run[i]->torn)
            d9d_log_info(log, "%s: the last line is not complete, and left out", r.run[i]->path);
        r.n++;
    }
    *out = r;
    return D9D_OK;
}

void d9d_run_reader_list_close(d9d_run_reader_list *r)
{
    for (size_t i = 0; i < r->n; i++)
        d9d_run_reader_close(r->run[i]);
    free(r->run);
    *r = (d9d_run_reader_list){NULL, 0};
}

void d9d_run_reader_list_warn_left_out(const d9d_run_reader_list *r, const d9d_log *log)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->run[i]->detail_left_out != NULL)
            d9d_log_warn(log,
                         "%s: more than %d keys of layers, experts or classes; \"%.60s\" is left "
                         "out",
                         r->run[i]->path, D9D_RUN_READER_DETAILS_MAX, r->run[i]->detail_left_out);
}

static d9d_status check_column(const d9d_run_reader_list *r, const char *key)
{
    const char *fields[D9D_RUN_READER_COLUMNS_MAX + 1] = {NULL}, *near = NULL;

    for (size_t i = 0; i < r->n; i++)
        if (find_column(r->run[i], key) != NULL)
            return D9D_OK;
    for (size_t i = 0; i < r->n && near == NULL; i++) {
        for (size_t k = 0; k < r->run[i]->n_columns; k++)
            fields[k] = r->run[i]->columns[k].name;
        fields[r->run[i]->n_columns] = NULL;
        near = d9d_config_did_you_mean(key, fields);
    }
    if (near != NULL)
        return D9D_FAIL(D9D_ECONFIG, "no run has the key \"%s\"; did you mean \"%s\"?", key, near);
    return D9D_FAIL(D9D_ECONFIG, "no run has the key \"%s\"", key);
}

d9d_status d9d_run_reader_list_check_columns(const d9d_run_reader_list *r, const char *const *keys,
                                             size_t n)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(check_column(r, keys[i]));
    return D9D_OK;
}

d9d_status d9d_run_reader_list_check_output(const d9d_run_reader_list *runs, const char *out)
{
    for (size_t i = 0; i < runs->n; i++)
        D9D_TRY(d9d_outdir_check_disjoint(out, runs->run[i]->path));
    return D9D_OK;
}
