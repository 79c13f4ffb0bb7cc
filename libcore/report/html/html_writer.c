/* html_writer.c - see report/html/html_writer.h. */
#include "report/html/html_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "d9d/base/num_format.h"
#include "d9d/base/sanitize_text.h"

static const char *const none = "\xe2\x80\x93";     /* en dash */
static const char *const ellipsis = "\xe2\x80\xa6"; /* horizontal ellipsis */

void d9di_html_put(d9di_html_writer *w, const char *fmt, ...)
{
    va_list ap;

    if (w->st != D9D_OK)
        return;
    va_start(ap, fmt);
    w->st = d9d_buf_vprintf(w->out, fmt, ap);
    va_end(ap);
}

static void put_bytes(d9di_html_writer *w, const char *p, size_t n)
{
    if (w->st == D9D_OK)
        w->st = d9d_buf_append(w->out, p, n);
}

/* Appends text with the characters of `from` replaced by the entry of `to`. */
static void put_replaced(d9di_html_writer *w, const char *text, const char *from,
                         const char *const *to)
{
    size_t n;

    for (; *text != '\0'; text += n) {
        n = strcspn(text, from);
        put_bytes(w, text, n);
        if (text[n] == '\0')
            return;
        put_bytes(w, to[strchr(from, text[n]) - from], strlen(to[strchr(from, text[n]) - from]));
        n++;
    }
}

void d9di_html_text(d9di_html_writer *w, const char *text)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    d9d_buf clean = {0};

    if (w->st == D9D_OK)
        w->st = d9d_text_sanitize(&clean, text);
    if (clean.data != NULL)
        put_replaced(w, clean.data, "&<>\"'", entities);
    d9d_buf_release(&clean);
}

void d9di_html_text_head(d9di_html_writer *w, const char *text, size_t max)
{
    d9d_arena a = {0};
    size_t n = strlen(text);
    const char *head = text;

    if (n > max) {
        for (n = max; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
            n--;
        head = d9d_arena_strndup(&a, text, n);
    }
    if (head == NULL)
        w->st = D9D_FAIL(D9D_ENOMEM, "no memory for %zu bytes of a page", n);
    else
        d9di_html_text(w, head);
    if (head != text)
        d9di_html_put(w, "%s", ellipsis);
    d9d_arena_release(&a);
}

void d9di_html_json_text(d9di_html_writer *w, const char *text)
{
    static const char *const escapes[] = {"\\u0026", "\\u003c", "\\u003e"};
    d9d_buf quoted = {0};

    if (w->st == D9D_OK)
        w->st = d9d_json_put_str(&quoted, text, strlen(text));
    if (quoted.data != NULL)
        put_replaced(w, quoted.data, "&<>", escapes);
    d9d_buf_release(&quoted);
}

void d9di_html_json_number(d9di_html_writer *w, double v)
{
    if (isfinite(v))
        d9di_html_put(w, "%.6g", v);
    else
        d9di_html_put(w, "null");
}

double d9di_html_member(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* --- values for people ------------------------------------------------------------------------ */

/* An integer with commas: 1,234,567. */
static void format_integer(double v, char text[D9DI_HTML_VALUE_SIZE])
{
    char digits[D9DI_HTML_VALUE_SIZE];
    const size_t n = (size_t)d9d_num_format(digits, sizeof(digits), "%.0f", fabs(v));
    size_t at = 0;

    if (v < 0)
        text[at++] = '-';
    for (size_t i = 0; i < n && at + 2 < D9DI_HTML_VALUE_SIZE; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
}

static void format_number(double v, char text[D9DI_HTML_VALUE_SIZE])
{
    const double a = fabs(v);

    if (isinf(v))
        (void)snprintf(text, D9DI_HTML_VALUE_SIZE, "%s", v > 0 ? "infinite" : "-infinite");
    else if (v == floor(v) && a < 1e15)
        format_integer(v, text);
    else
        (void)d9d_num_format(text, D9DI_HTML_VALUE_SIZE, a >= 1e3 && a < 1e6 ? "%.1f" : "%.4g", v);
}

/* The largest unit that v has one of, with three digits. */
static void format_scaled(double v, double base, const char *const *units, size_t n,
                          char text[D9DI_HTML_VALUE_SIZE])
{
    size_t i = 0;

    for (; i + 1 < n && fabs(v) >= 0.9995 * base; i++)
        v /= base;
    (void)d9d_num_format(text, D9DI_HTML_VALUE_SIZE, fabs(v) >= 999.5 ? "%.0f %s" : "%.3g %s", v,
                         units[i]);
    if (units[i][0] == '\0')
        text[strlen(text) - 1] = '\0';
}

static void format_seconds(double s, char text[D9DI_HTML_VALUE_SIZE])
{
    static const struct {
        double large, small;
        const char *large_unit, *small_unit;
    } rows[] = {{86400, 3600, "d", "h"}, {3600, 60, "h", "min"}, {60, 1, "min", "s"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (s >= rows[i].large) {
            const double whole = floor(s / rows[i].large);
            const double rest = floor((s - whole * rows[i].large) / rows[i].small);

            (void)d9d_num_format(text, D9DI_HTML_VALUE_SIZE, "%.0f %s %.0f %s", whole,
                                 rows[i].large_unit, rest, rows[i].small_unit);
            return;
        }
    if (s != 0 && fabs(s) < 1)
        (void)d9d_num_format(text, D9DI_HTML_VALUE_SIZE, "%.3g ms", 1e3 * s);
    else
        (void)d9d_num_format(text, D9DI_HTML_VALUE_SIZE, "%.3g s", s);
}

const char *d9di_html_format(double v, d9di_html_unit unit, char text[D9DI_HTML_VALUE_SIZE])
{
    static const char *const thousands[] = {"", "k", "M", "G", "T", "P"};
    static const char *const bytes[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

    if (isnan(v) || (unit == D9DI_HTML_STEP && v < 0))
        return none;
    if (isinf(v))
        unit = D9DI_HTML_NUMBER;
    switch (unit) {
    case D9DI_HTML_COUNT: format_scaled(v, 1000, thousands, 6, text); break;
    case D9DI_HTML_SECONDS: format_seconds(v, text); break;
    case D9DI_HTML_BYTES: format_scaled(v, 1024, bytes, 6, text); break;
    case D9DI_HTML_SHARE:
        (void)d9d_num_format(text, D9DI_HTML_VALUE_SIZE, "%.*f %%", v < 0.0995 ? 2 : 1, 100 * v);
        break;
    case D9DI_HTML_STEP: format_integer(v, text); break;
    default: format_number(v, text);
    }
    return text;
}

const char *d9di_html_format_time(double seconds, char text[D9DI_HTML_VALUE_SIZE])
{
    struct tm tm;
    time_t t;

    if (!(fabs(seconds) < 1e11))
        return none;
    t = (time_t)seconds;
    if (gmtime_r(&t, &tm) == NULL ||
        strftime(text, D9DI_HTML_VALUE_SIZE, "%Y-%m-%d %H:%M:%S UTC", &tm) == 0)
        return none;
    return text;
}

/* --- tables ----------------------------------------------------------------------------------- */

void d9di_html_table_begin(d9di_html_writer *w, const char *label)
{
    d9di_html_put(w, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
    d9di_html_text(w, label);
    d9di_html_put(w, "\"><table>\n");
}

void d9di_html_table_heads(d9di_html_writer *w, const char *const *heads)
{
    d9di_html_put(w, "<thead><tr>");
    for (; *heads != NULL; heads++) {
        d9di_html_put(w, "<th scope=\"col\">");
        d9di_html_text(w, *heads);
        d9di_html_put(w, "</th>");
    }
    d9di_html_put(w, "</tr></thead>\n");
}

void d9di_html_row_begin(d9di_html_writer *w, const char *head)
{
    d9di_html_put(w, "<tr><th scope=\"row\">");
    d9di_html_text(w, head);
    d9di_html_put(w, "</th>");
}

void d9di_html_value(d9di_html_writer *w, double v, d9di_html_unit unit)
{
    char text[D9DI_HTML_VALUE_SIZE];

    d9di_html_put(w, "<td class=\"n\">%s</td>", d9di_html_format(v, unit, text));
}

void d9di_html_words(d9di_html_writer *w, const char *text)
{
    d9di_html_put(w, "<td>");
    d9di_html_text(w, text != NULL ? text : none);
    d9di_html_put(w, "</td>");
}

void d9di_html_row_end(d9di_html_writer *w)
{
    d9di_html_put(w, "</tr>\n");
}

void d9di_html_table_end(d9di_html_writer *w)
{
    d9di_html_put(w, "</table></div>\n");
}
