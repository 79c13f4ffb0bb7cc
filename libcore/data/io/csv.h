/* csv.h - rows of a table with a header, as JSON objects (RFC 4180).
 *
 *     text,label          {"text": "a \"b\"", "label": "1"}
 *     "a ""b""",1
 *
 * Every value is a string. */
#ifndef D9DI_DATA_IO_CSV_H
#define D9DI_DATA_IO_CSV_H

#include "d9d/base/mem.h"
#include "data/io/jsonl.h"

/* Appends the object of a row, given without its line end, under the names of the header.  EFORMAT
 * fills *error and records no message: a field without end, other fields than the header has. */
d9d_status d9di_csv_row_to_json(char separator, const char *header, size_t header_len,
                                const char *row, size_t n, d9d_buf *out, d9di_jsonl_error *error);

#endif
