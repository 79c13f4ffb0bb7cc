/* duckdb_api.h - what parquet.c calls of DuckDB's C interface (duckdb.h, 0.10 to 2.0).
 *
 * Declared here, since the library is loaded at run time and its header need not be there. */
#ifndef D9DI_DATA_IO_DUCKDB_API_H
#define D9DI_DATA_IO_DUCKDB_API_H

#include <stdint.h>

typedef void *duckdb_database, *duckdb_connection, *duckdb_prepared_statement, *duckdb_data_chunk,
    *duckdb_vector;
typedef enum duckdb_state { DuckDBSuccess = 0, DuckDBError = 1 } duckdb_state;

typedef struct duckdb_result {
    uint64_t deprecated[3]; /* numbers of columns and rows */
    void *deprecated_columns;
    char *deprecated_error;
    void *internal_data;
} duckdb_result;

enum { DUCKDB_STRING_INLINED = 12 }; /* longest string that is in the value itself */
typedef union duckdb_string_t {
    struct {
        uint32_t length;
        char prefix[4];
        const char *ptr;
    } pointer;
    struct {
        uint32_t length;
        char inlined[DUCKDB_STRING_INLINED];
    } value;
} duckdb_string_t;

#define DUCKDB_FUNCTIONS(X)                                                                        \
    X(duckdb_state, duckdb_open, (const char *path, duckdb_database *out))                         \
    X(void, duckdb_close, (duckdb_database * database))                                            \
    X(duckdb_state, duckdb_connect, (duckdb_database database, duckdb_connection * out))           \
    X(void, duckdb_disconnect, (duckdb_connection * connection))                                   \
    X(duckdb_state, duckdb_query,                                                                  \
      (duckdb_connection connection, const char *sql, duckdb_result *out))                         \
    X(duckdb_state, duckdb_prepare,                                                                \
      (duckdb_connection connection, const char *sql, duckdb_prepared_statement *out))             \
    X(const char *, duckdb_prepare_error, (duckdb_prepared_statement statement))                   \
    X(duckdb_state, duckdb_execute_prepared_streaming,                                             \
      (duckdb_prepared_statement statement, duckdb_result * out))                                  \
    X(void, duckdb_destroy_prepare, (duckdb_prepared_statement * statement))                       \
    X(const char *, duckdb_result_error, (duckdb_result * result))                                 \
    X(int64_t, duckdb_value_int64, (duckdb_result * result, uint64_t column, uint64_t row))        \
    X(duckdb_data_chunk, duckdb_fetch_chunk, (duckdb_result result))                               \
    X(void, duckdb_destroy_result, (duckdb_result * result))                                       \
    X(uint64_t, duckdb_data_chunk_get_size, (duckdb_data_chunk chunk))                             \
    X(duckdb_vector, duckdb_data_chunk_get_vector, (duckdb_data_chunk chunk, uint64_t column))     \
    X(void *, duckdb_vector_get_data, (duckdb_vector vector))                                      \
    X(void, duckdb_destroy_data_chunk, (duckdb_data_chunk * chunk))

typedef struct d9di_duckdb {
    void *library; /* stays loaded */
#define X(type, name, arguments) type(*name) arguments;
    DUCKDB_FUNCTIONS(X)
#undef X
} d9di_duckdb;

#endif
