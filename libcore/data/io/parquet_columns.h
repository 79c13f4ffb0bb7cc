/* parquet_columns.h - SQL of columns in which what JSON has no values for is null.
 *
 *     BLOB                  NULL
 *     DOUBLE, FLOAT         NULL unless finite
 *     STRUCT(a BLOB, ...)   the struct of its members, each as above; so are lists, arrays and the
 *                           values of maps, in any depth
 *
 * Bytes without a text's type would come as escapes, and NaN as no JSON.
 */
#ifndef D9DI_DATA_IO_PARQUET_COLUMNS_H
#define D9DI_DATA_IO_PARQUET_COLUMNS_H

#include <stddef.h>

#include "d9d/base/mem.h"

/* `type` is what DuckDB's DESCRIBE calls the type of the column `name`.  *out: the expression, in
 * the arena; NULL: the column is good as it is.  ENOTSUP: types within types without end. */
d9d_status d9di_parquet_column_print(const char *name, const char *type, d9d_arena *a,
                                     const char **out);
/* A name in double quotes. */
const char *d9di_parquet_column_quote(const char *name, d9d_arena *a);

#endif
