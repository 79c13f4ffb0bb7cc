/* progress.c - progress lines: done, rate and time left.  See d9d/base/log.h. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text_format.h"
#include "d9d/base/log.h"
#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"

enum { LINE_SIZE = 256, FIELD_SIZE = 48, REDRAW_NS = 100000000, EVERY_S = 30, MAX_LEFT_H = 9999 };

static bool is_terminal(const d9d_progress *p)
{
    return p->log->status != NULL;
}

/* "1.23 GB" for bytes, "1234 steps" or "1 step" for the rest. */
static void format_amount(char out[FIELD_SIZE], double v, const char *unit, int digits)
{
    static const char prefix[] = " kMGTPE";
    size_t i = 0;

    if (strcmp(unit, "B") != 0) {
        const int n = (int)strnlen(unit, 24);

        (void)d9d_num_format(out, FIELD_SIZE, "%.*f%s%.*s", digits, v, n > 0 ? " " : "",
                             n - (n > 0 && digits == 0 && v == 1 && unit[n - 1] == 's'), unit);
        return;
    }
    for (; v >= 999.5 && i + 2 < sizeof(prefix); i++)
        v /= 1000;
    if (i == 0)
        (void)d9d_num_format(out, FIELD_SIZE, "%.0f B", v);
    else
        (void)d9d_num_format(out, FIELD_SIZE, "%.*f %cB",
                             v < 9.995   ? 2
                             : v < 99.95 ? 1
                                         : 0,
                             v, prefix[i]);
}

/* "4:05" or "1:04:05". */
static void format_time(char out[FIELD_SIZE], double seconds)
{
    const int64_t s = seconds < MAX_LEFT_H * 3600.0 ? (int64_t)(seconds + 0.5) : MAX_LEFT_H * 3600;

    if (s >= 3600)
        (void)snprintf(out, FIELD_SIZE, "%" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60),
                       (int)(s % 60));
    else
        (void)snprintf(out, FIELD_SIZE, "%d:%02d", (int)(s / 60), (int)(s % 60));
}

static double elapsed_s(const d9d_progress *p, int64_t now)
{
    return (double)(now - p->start_ns) * 1e-9;
}

static double rate_at(const d9d_progress *p, int64_t now)
{
    const double s = elapsed_s(p, now);

    return s > 0 && p->done > p->first ? (double)(p->done - p->first) / s : 0;
}

static void format_rate(char out[FIELD_SIZE], const d9d_progress *p, double rate)
{
    char amount[FIELD_SIZE];

    format_amount(amount, rate, p->unit, rate < 10 ? 2 : rate < 100 ? 1 : 0);
    (void)snprintf(out, FIELD_SIZE, "%.*s/s", FIELD_SIZE - 3, amount);
}

/* "map: 1.20 GB of 5.00 GB (24%), 120 MB/s, 0:31 left, NOTE" */
static void format_line(char out[LINE_SIZE], const d9d_progress *p, int64_t now)
{
    const double rate = rate_at(p, now);
    char done[FIELD_SIZE], total[2 * FIELD_SIZE] = "", speed[FIELD_SIZE], left[2 * FIELD_SIZE] = "",
                                     word[FIELD_SIZE];

    /* Print a unit that is not scaled once. */
    format_amount(done, (double)p->done, p->total > 0 && strcmp(p->unit, "B") != 0 ? "" : p->unit,
                  0);
    format_rate(speed, p, rate);
    if (p->total > 0) {
        format_amount(word, (double)p->total, p->unit, 0);
        (void)d9d_num_format(total, sizeof(total), " of %s (%.0f%%)", word,
                             100.0 * (double)p->done / (double)p->total);
    }
    if (p->total > p->done && rate > 0) {
        format_time(word, (double)(p->total - p->done) / rate);
        (void)snprintf(left, sizeof(left), ", %s left", word);
    }
    (void)d9d_num_format(out, LINE_SIZE, "%.32s: %s%s, %s%s%s%s", p->label, done, total, speed,
                         left, p->note[0] != '\0' ? ", " : "", p->note);
}

static void show_line(d9d_progress *p, int64_t now)
{
    char line[LINE_SIZE];

    p->last_ns = now;
    format_line(line, p, now);
    if (is_terminal(p))
        p->log->status(p->log->arg, line);
    else
        d9d_log_info(p->log, "%s", line);
}

void d9d_progress_start(d9d_progress *p, const d9d_log *log, const char *what, const char *unit,
                        uint64_t total)
{
    /* A log that drops D9D_LOG_INFO lines shows no progress either. */
    const bool is_shown = log != NULL && log->level >= D9D_LOG_INFO;

    *p = (d9d_progress){.log = is_shown ? log : NULL, .label = what, .unit = unit, .total = total};
    p->start_ns = p->last_ns = d9d_clock_ns();
}

void d9d_progress_add(d9d_progress *p, uint64_t n)
{
    int64_t now, every;

    p->done += n;
    if (p->log == NULL)
        return;
    now = d9d_clock_ns();
    every = is_terminal(p)        ? REDRAW_NS
            : p->log->every_s > 0 ? (int64_t)(p->log->every_s * 1e9)
                                  : (int64_t)EVERY_S * 1000000000;
    if (now - p->last_ns >= every)
        show_line(p, now);
}

void d9d_progress_show(d9d_progress *p)
{
    if (p->log != NULL && !is_terminal(p))
        show_line(p, d9d_clock_ns());
}

void d9d_progress_note(d9d_progress *p, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)d9di_text_vformat(p->note, sizeof(p->note), fmt, ap);
    va_end(ap);
}

void d9d_progress_end(d9d_progress *p)
{
    const int64_t now = d9d_clock_ns();
    char done[FIELD_SIZE], speed[FIELD_SIZE], time[FIELD_SIZE];

    if (p->log == NULL)
        return;
    if (is_terminal(p))
        p->log->status(p->log->arg, "");
    if (p->done == p->first) /* there was nothing to do */
        return;
    format_amount(done, (double)p->done, p->unit, 0);
    format_rate(speed, p, rate_at(p, now));
    format_time(time, elapsed_s(p, now));
    d9d_log_info(p->log, "%s: %s in %s, %s%s%s", p->label, done, time, speed,
                 p->note[0] != '\0' ? ", " : "", p->note);
}
