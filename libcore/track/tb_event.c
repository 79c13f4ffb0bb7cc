/* tb_event.c - TensorBoard event files. */
#include "d9d/track/tb_event.h"

#include <string.h>

/* --- framing ------------------------------------------------------------------ */

/* Bit by bit; an event has only a few dozen bytes. */
uint32_t d9d_tb_event_crc32c(uint32_t crc, const void *p, size_t n)
{
    const unsigned char *s = p;

    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= s[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
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
    d9d_buf event, summary, value;
};

static d9d_status build_value(struct event_buffers *s, const char *tag, double v)
{
    s->value.len = 0;
    D9D_TRY(append_bytes(&s->value, 1, tag, strlen(tag)));
    D9D_TRY(append_float(&s->value, 2, (float)v));
    return append_bytes(&s->summary, 1, s->value.data, s->value.len);
}

static d9d_status build_scalars(struct event_buffers *s, double wall_time, int64_t step,
                                const char *const *tags, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(build_value(s, tags[i], values[i]));
    D9D_TRY(append_double(&s->event, 1, wall_time));
    D9D_TRY(append_step(&s->event, step));
    return append_bytes(&s->event, 5, s->summary.data, s->summary.len);
}

d9d_status d9d_tb_event_scalars(d9d_buf *out, double wall_time, int64_t step,
                                const char *const *tags, const double *values, size_t n)
{
    struct event_buffers s = {0};
    const d9d_status st =
        append_built_event(out, build_scalars(&s, wall_time, step, tags, values, n), &s.event);

    d9d_buf_release(&s.summary);
    d9d_buf_release(&s.value);
    return st;
}
