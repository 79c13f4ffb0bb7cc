/* tb_event.c - TensorBoard event files. */
#include "d9d/track/tb_event.h"

#include <string.h>

/* --- framing ------------------------------------------------------------------ */

/* Half a byte at a time: the remainders of the 16 values. */
uint32_t d9d_tb_event_crc32c(uint32_t crc, const void *p, size_t n)
{
    static const uint32_t remainders[16] = {0x00000000u, 0x105ec76fu, 0x20bd8edeu, 0x30e349b1u,
                                            0x417b1dbcu, 0x5125dad3u, 0x61c69362u, 0x7198540du,
                                            0x82f63b78u, 0x92a8fc17u, 0xa24bb5a6u, 0xb21572c9u,
                                            0xc38d26c4u, 0xd3d3e1abu, 0xe330a81au, 0xf36e6f75u};
    const unsigned char *s = p;

    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= s[i];
        crc = crc >> 4 ^ remainders[crc & 15];
        crc = crc >> 4 ^ remainders[crc & 15];
    }
    return ~crc;
}

static uint32_t mask_crc(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static d9d_status append_le(d9d_buf *b, uint64_t v, int bytes)
{
    unsigned char le[8];

    for (int i = 0; i < bytes; i++)
        le[i] = (unsigned char)(v >> (8 * i));
    return d9d_buf_append(b, le, (size_t)bytes);
}

static d9d_status append_record(d9d_buf *out, const d9d_buf *data)
{
    const size_t head = out->len;

    D9D_TRY(append_le(out, data->len, 8));
    D9D_TRY(append_le(out, mask_crc(d9d_tb_event_crc32c(0, out->data + head, 8)), 4));
    D9D_TRY(d9d_buf_append(out, data->data, data->len));
    return append_le(out, mask_crc(d9d_tb_event_crc32c(0, data->data, data->len)), 4);
}

/* --- protobuf ------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, LENGTH_DELIMITED = 2, FIXED32 = 5 };

static d9d_status append_varint(d9d_buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        D9D_TRY(append_le(b, (v & 0x7f) | 0x80, 1));
    return append_le(b, v, 1);
}

static d9d_status append_field_key(d9d_buf *b, unsigned field, unsigned type)
{
    return append_varint(b, field << 3 | type);
}

static d9d_status append_bytes(d9d_buf *b, unsigned field, const void *p, size_t n)
{
    D9D_TRY(append_field_key(b, field, LENGTH_DELIMITED));
    D9D_TRY(append_varint(b, n));
    return n > 0 ? d9d_buf_append(b, p, n) : D9D_OK;
}

static d9d_status append_double(d9d_buf *b, unsigned field, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    D9D_TRY(append_field_key(b, field, FIXED64));
    return append_le(b, bits, 8);
}

static d9d_status append_float(d9d_buf *b, unsigned field, float v)
{
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    D9D_TRY(append_field_key(b, field, FIXED32));
    return append_le(b, bits, 4);
}

/* --- events ---------------------------------------------------------------------- */

static d9d_status build_version(d9d_buf *event, double wall_time)
{
    static const char version[] = "brain.Event:2";

    D9D_TRY(append_double(event, 1, wall_time));
    return append_bytes(event, 3, version, sizeof(version) - 1);
}

/* Appends the record of a built event, and releases the event. */
static d9d_status append_built_event(d9d_buf *out, d9d_status st, d9d_buf *event)
{
    if (st == D9D_OK)
        st = append_record(out, event);
    d9d_buf_release(event);
    return st;
}

d9d_status d9d_tb_event_version(d9d_buf *out, double wall_time)
{
    d9d_buf event = {0};

    return append_built_event(out, build_version(&event, wall_time), &event);
}

static d9d_status append_step(d9d_buf *event, int64_t step)
{
    D9D_TRY(append_field_key(event, 2, VARINT));
    return append_varint(event, (uint64_t)step);
}

static d9d_status build_start(d9d_buf *event, double wall_time, int64_t step)
{
    static const char start[] = {1 << 3 | VARINT, 1}; /* status: START */

    D9D_TRY(append_double(event, 1, wall_time));
    D9D_TRY(append_step(event, step));
    return append_bytes(event, 7, start, sizeof(start));
}

d9d_status d9d_tb_event_start(d9d_buf *out, double wall_time, int64_t step)
{
    d9d_buf event = {0};

    return append_built_event(out, build_start(&event, wall_time, step), &event);
}

struct event_buffers {
    d9d_buf event, summary, value, part;
};

static void buffers_release(struct event_buffers *s)
{
    d9d_buf_release(&s->event);
    d9d_buf_release(&s->summary);
    d9d_buf_release(&s->value);
    d9d_buf_release(&s->part);
}

static d9d_status build_value(struct event_buffers *s, const char *tag, double v)
{
    s->value.len = 0;
    D9D_TRY(append_bytes(&s->value, 1, tag, strlen(tag)));
    D9D_TRY(append_float(&s->value, 2, (float)v));
    return append_bytes(&s->summary, 1, s->value.data, s->value.len);
}

/* Completes the event of a summary, and appends its record. */
static d9d_status append_summary(d9d_buf *out, struct event_buffers *s, double wall_time,
                                 int64_t step)
{
    D9D_TRY(append_double(&s->event, 1, wall_time));
    D9D_TRY(append_step(&s->event, step));
    D9D_TRY(append_bytes(&s->event, 5, s->summary.data, s->summary.len));
    return append_record(out, &s->event);
}

static d9d_status append_scalars(d9d_buf *out, struct event_buffers *s, double wall_time,
                                 int64_t step, const char *const *tags, const double *values,
                                 size_t n)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(build_value(s, tags[i], values[i]));
    return append_summary(out, s, wall_time, step);
}

d9d_status d9d_tb_event_scalars(d9d_buf *out, double wall_time, int64_t step,
                                const char *const *tags, const double *values, size_t n)
{
    struct event_buffers s = {0};
    const d9d_status st = append_scalars(out, &s, wall_time, step, tags, values, n);

    buffers_release(&s);
    return st;
}

/* --- own values -------------------------------------------------------------------- */

static d9d_status append_doubles(d9d_buf *b, unsigned field, const double *v, size_t n)
{
    D9D_TRY(append_field_key(b, field, LENGTH_DELIMITED));
    D9D_TRY(append_varint(b, 8 * n));
    for (size_t i = 0; i < n; i++) {
        uint64_t bits;

        memcpy(&bits, &v[i], sizeof(bits));
        D9D_TRY(append_le(b, bits, 8));
    }
    return D9D_OK;
}

/* Every count is taken at the middle of its bin for the sums.  TensorBoard's first bin begins at
 * `min`. */
static d9d_status build_histogram(struct event_buffers *s, const d9d_track_value *v)
{
    double num = 0, sum = 0, squares = 0;

    for (size_t i = 0; i < v->n; i++) {
        const double at = 0.5 * (v->edges[i] + v->edges[i + 1]);

        num += v->counts[i];
        sum += v->counts[i] * at;
        squares += v->counts[i] * at * at;
    }
    D9D_TRY(append_double(&s->part, 1, v->edges[0]));
    D9D_TRY(append_double(&s->part, 2, v->edges[v->n]));
    D9D_TRY(append_double(&s->part, 3, num));
    D9D_TRY(append_double(&s->part, 4, sum));
    D9D_TRY(append_double(&s->part, 5, squares));
    D9D_TRY(append_doubles(&s->part, 6, v->edges + 1, v->n));
    D9D_TRY(append_doubles(&s->part, 7, v->counts, v->n));
    return append_bytes(&s->value, 5, s->part.data, s->part.len);
}

static d9d_status append_int(d9d_buf *b, unsigned field, int64_t v)
{
    D9D_TRY(append_field_key(b, field, VARINT));
    return append_varint(b, (uint64_t)v);
}

static d9d_status build_picture(struct event_buffers *s, const d9d_track_value *v)
{
    enum { RGB = 3 };

    D9D_TRY(append_int(&s->part, 1, v->height));
    D9D_TRY(append_int(&s->part, 2, v->width));
    D9D_TRY(append_int(&s->part, 3, RGB));
    D9D_TRY(append_bytes(&s->part, 4, v->bytes, v->n));
    return append_bytes(&s->value, 4, s->part.data, s->part.len);
}

/* The value's metadata: which plugin shows it, and the plugin's own content (NULL: none). */
static d9d_status build_metadata(struct event_buffers *s, const char *plugin,
                                 const d9d_buf *content)
{
    d9d_buf data = {0}, all = {0};
    d9d_status st;

    D9D_TRY_OR(st, append_bytes(&data, 1, plugin, strlen(plugin)), out);
    if (content != NULL)
        D9D_TRY_OR(st, append_bytes(&data, 2, content->data, content->len), out);
    D9D_TRY_OR(st, append_bytes(&all, 1, data.data, data.len), out);
    D9D_TRY_OR(st, append_bytes(&s->value, 9, all.data, all.len), out);
out:
    d9d_buf_release(&data);
    d9d_buf_release(&all);
    return st;
}

static d9d_status build_text(struct event_buffers *s, const d9d_track_value *v)
{
    enum { DT_STRING = 7 };

    D9D_TRY(append_int(&s->part, 1, DT_STRING));
    D9D_TRY(append_bytes(&s->part, 8, v->bytes, v->n));
    D9D_TRY(append_bytes(&s->value, 8, s->part.data, s->part.len));
    return build_metadata(s, "text", NULL);
}

static d9d_status append_value(d9d_buf *out, struct event_buffers *s, double wall_time,
                               const d9d_track_value *v)
{
    static d9d_status (*const build[])(struct event_buffers * s, const d9d_track_value *v) = {
        [D9D_TRACK_HISTOGRAM] = build_histogram,
        [D9D_TRACK_TEXT] = build_text,
        [D9D_TRACK_PICTURE] = build_picture,
    };

    D9D_TRY(append_bytes(&s->value, 1, v->name, strlen(v->name)));
    D9D_TRY(build[v->kind](s, v));
    D9D_TRY(append_bytes(&s->summary, 1, s->value.data, s->value.len));
    return append_summary(out, s, wall_time, v->step);
}

d9d_status d9d_tb_event_value(d9d_buf *out, double wall_time, const d9d_track_value *v)
{
    struct event_buffers s = {0};
    const d9d_status st = append_value(out, &s, wall_time, v);

    buffers_release(&s);
    return st;
}

/* --- hyperparameters ------------------------------------------------------------------ *
 *
 * HParamsPluginData { 1 version: 0,
 *     3 session_start_info { 1 hparams map { 1 key, 2 value }, 4 group_name, 5 start_time_secs },
 *     4 session_end_info { 1 status: 1 success, 2 failure; 2 end_time_secs } }
 *
 * A value is google.protobuf.Value { 2 number double, 3 string, 4 bool }. */

/* False: the plugin has no such value. */
static bool is_hparam(const json_t *v)
{
    return json_is_number(v) || json_is_string(v) || json_is_boolean(v);
}

static d9d_status append_json(d9d_buf *b, const json_t *v)
{
    if (json_is_number(v))
        return append_double(b, 2, json_number_value(v));
    if (json_is_string(v))
        return append_bytes(b, 3, json_string_value(v), json_string_length(v));
    return append_int(b, 4, json_is_true(v));
}

static d9d_status append_hparam(d9d_buf *start, const char *name, const json_t *v)
{
    d9d_buf value = {0}, entry = {0};
    d9d_status st;

    D9D_TRY_OR(st, append_json(&value, v), out);
    D9D_TRY_OR(st, append_bytes(&entry, 1, name, strlen(name)), out);
    D9D_TRY_OR(st, append_bytes(&entry, 2, value.data, value.len), out);
    D9D_TRY_OR(st, append_bytes(start, 1, entry.data, entry.len), out);
out:
    d9d_buf_release(&value);
    d9d_buf_release(&entry);
    return st;
}

/* Nesting of a configuration is limited by its parser. */
static d9d_status append_hparams(d9d_buf *start, const char *path, const json_t *of, d9d_arena *a)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)of, key, v)
    {
        const char *name = d9d_arena_printf(a, "%s%s%s", path, path[0] != '\0' ? "/" : "", key);

        if (name == NULL)
            return D9D_FAIL(D9D_ENOMEM, "hyperparameters: the name of %s", key);
        if (json_is_object(v))
            D9D_TRY(append_hparams(start, name, v, a));
        else if (is_hparam(v))
            D9D_TRY(append_hparam(start, name, v));
    }
    return D9D_OK;
}

/* The event that has `message` as this field of the plugin's data. */
static d9d_status append_session(d9d_buf *out, double wall_time, const char *tag, unsigned field,
                                 const d9d_buf *message)
{
    struct event_buffers s = {0};
    d9d_buf data = {0};
    d9d_status st;

    D9D_TRY_OR(st, append_bytes(&data, field, message->data, message->len), out);
    D9D_TRY_OR(st, append_bytes(&s.value, 1, tag, strlen(tag)), out);
    D9D_TRY_OR(st, build_metadata(&s, "hparams", &data), out);
    D9D_TRY_OR(st, append_bytes(&s.summary, 1, s.value.data, s.value.len), out);
    D9D_TRY_OR(st, append_summary(out, &s, wall_time, 0), out);
out:
    d9d_buf_release(&data);
    buffers_release(&s);
    return st;
}

d9d_status d9d_tb_event_hparams(d9d_buf *out, double wall_time, const char *group,
                                const json_t *hparams)
{
    d9d_buf start = {0};
    d9d_arena a = {0};
    d9d_status st;

    D9D_TRY_OR(st, append_hparams(&start, "", hparams, &a), out);
    D9D_TRY_OR(st, append_bytes(&start, 4, group, strlen(group)), out);
    D9D_TRY_OR(st, append_double(&start, 5, wall_time), out);
    D9D_TRY_OR(st, append_session(out, wall_time, "_hparams_/session_start_info", 3, &start), out);
out:
    d9d_buf_release(&start);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9d_tb_event_hparams_end(d9d_buf *out, double wall_time, bool done)
{
    d9d_buf end = {0};
    d9d_status st;

    D9D_TRY_OR(st, append_int(&end, 1, done ? 1 : 2), out);
    D9D_TRY_OR(st, append_double(&end, 2, wall_time), out);
    D9D_TRY_OR(st, append_session(out, wall_time, "_hparams_/session_end_info", 4, &end), out);
out:
    d9d_buf_release(&end);
    return st;
}
