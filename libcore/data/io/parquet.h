/* parquet.h - the rows of a Parquet file as JSON lines, read by DuckDB's C library.
 *
 *     {"text": "...", "meta": {"source": "web"}}        a row, all of its columns
 *
 * libduckdb.so is loaded by the library path when the first Parquet file is opened: neither the
 * build nor a run without such files needs it.  The text is that of DuckDB's to_json(): nested
 * columns are objects and arrays, a missing value is null.  So are numbers that are not finite and
 * bytes without a text's type, in columns of their own or of lists of numbers.  Rows come in the
 * order of the file, whatever the number of threads; a few thousand are in memory at a time.
 */
#ifndef D9DI_DATA_IO_PARQUET_H
#define D9DI_DATA_IO_PARQUET_H

#include <stddef.h>

#include "d9d/base/status.h"

#define D9DI_PARQUET_MAGIC "PAR1\x15" /* the first bytes of a file; no text begins with them */

typedef struct d9di_parquet d9di_parquet;

/* The file that `fd` has open, which the caller closes after this; `path` is for messages, and
 * borrowed.  ENOTSUP: no DuckDB, or an older one; EFORMAT: the file is damaged or a pipe. */
d9d_status d9di_parquet_open(int fd, const char *path, d9di_parquet **out);
/* Reads up to n bytes of the lines; *got is 0 only at the end.  EFORMAT: the file is damaged. */
d9d_status d9di_parquet_read(d9di_parquet *p, void *to, size_t n, size_t *got);
/* The share of the rows that were read, 0 to 1. */
double d9di_parquet_progress(const d9di_parquet *p);
void d9di_parquet_close(d9di_parquet *p);

#endif
