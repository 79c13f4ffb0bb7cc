/* tb_event.h - TensorBoard event files, written byte by byte.
 *
 * A file is a sequence of TFRecords: length (u64), masked CRC-32C of it (u32), the data, masked
 * CRC-32C of the data; all little-endian.  The data is a protobuf "Event":
 *
 *     1 wall_time double     2 step int64     3 file_version string
 *     5 summary { 1 value { 1 tag string, 2 simple_value float,
 *                           4 image { 1 height, 2 width, 3 colorspace, 4 encoded string },
 *                           5 histo { 1 min, 2 max, 3 num, 4 sum, 5 sum_squares double,
 *                                     6 bucket_limit, 7 bucket packed doubles },
 *                           8 tensor { 1 dtype: 7 is string, 8 string_val },
 *                           9 metadata { 1 plugin_data { 1 plugin_name, 2 content } } } ... }
 *     7 session_log { 1 status enum: 1 is START }
 *
 * The first record is the version "brain.Event:2".  Every function appends the next bytes of the
 * file to `out`.
 */
#ifndef D9D_TRACK_TB_EVENT_H
#define D9D_TRACK_TB_EVENT_H

#include <stdint.h>

#include "d9d/base/json.h"
#include "d9d/base/mem.h"
#include "d9d/track/sink.h"

#ifdef __cplusplus
extern "C" {
#endif

D9D_API D9D_MUST_USE d9d_status d9d_tb_event_version(d9d_buf *out, double wall_time);

/* Appends a session log START: readers drop the steps from `step` on that earlier files have. */
D9D_API D9D_MUST_USE d9d_status d9d_tb_event_start(d9d_buf *out, double wall_time, int64_t step);

/* Appends one record with n scalars of one step.  NaN and infinities are written unchanged. */
D9D_API D9D_MUST_USE d9d_status d9d_tb_event_scalars(d9d_buf *out, double wall_time, int64_t step,
                                                     const char *const *tags, const double *values,
                                                     size_t n);

/* Each appends one record with an own value: a histogram of n bins, a text, a PNG image. */
D9D_API D9D_MUST_USE d9d_status d9d_tb_event_value(d9d_buf *out, double wall_time,
                                                   const d9d_track_value *v);

/* Appends the beginning of a session for the HParams plugin: a number, boolean or string for each
 * leaf of an object, named by its path ("optimizer/lr").  Other leaves are left out. */
D9D_API D9D_MUST_USE d9d_status d9d_tb_event_hparams(d9d_buf *out, double wall_time,
                                                     const char *group, const json_t *hparams);
/* Appends its end; `done`: all steps. */
D9D_API D9D_MUST_USE d9d_status d9d_tb_event_hparams_end(d9d_buf *out, double wall_time, bool done);

/* CRC-32C (Castagnoli), continued from `crc`; begin with 0. */
D9D_API uint32_t d9d_tb_event_crc32c(uint32_t crc, const void *p, size_t n);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TRACK_TB_EVENT_H */
