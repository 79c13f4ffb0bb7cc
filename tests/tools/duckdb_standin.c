/* duckdb_standin.c - the functions of libduckdb.so that libcore/data/io/parquet.c calls.
 *
 * Its "Parquet" is D9DI_PARQUET_MAGIC, the number of rows, a line end, and the rows as JSON lines;
 * a row "!SENTENCE" is an error there.  Chunks have three rows.  With NO_FETCH it lacks a function.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/io/duckdb_api.h"
#include "data/io/parquet.h"

#define X(type, name, arguments) type name arguments;
DUCKDB_FUNCTIONS(X)
#undef X

enum { CHUNK = 3 };

static struct {
    int databases, connections, statements, results, chunks; /* that are open */
    FILE *file;
    char sentence[200];
    int columns; /* 1: a list of columns is next, 2: its end */
    duckdb_string_t row[CHUNK];
    char *text[CHUNK];
} state;

__attribute__((destructor)) static void all_is_closed(void)
{
    if (state.databases + state.connections + state.statements + state.results + state.chunks != 0)
        abort();
}

duckdb_state duckdb_open(const char *path, duckdb_database *out)
{
    assert(path == NULL);
    state.databases++;
    *out = &state;
    return DuckDBSuccess;
}
void duckdb_close(duckdb_database *database)
{
    state.databases--;
    *database = NULL;
}
duckdb_state duckdb_connect(duckdb_database database, duckdb_connection *out)
{
    state.connections++;
    *out = database;
    return DuckDBSuccess;
}
void duckdb_disconnect(duckdb_connection *connection)
{
    state.connections--;
    *connection = NULL;
}

/* Opens the file that a query names between apostrophes: behind its magic is the number of rows. */
static long open_rows(const char *sql)
{
    char path[64] = "";
    long rows = -1;

    assert(sscanf(strstr(sql, "/proc"), "%63[^']", path) == 1);
    if (state.file != NULL)
        fclose(state.file);
    state.file = fopen(path, "rb");
    if (state.file == NULL || fseek(state.file, sizeof(D9DI_PARQUET_MAGIC) - 1, SEEK_SET) != 0 ||
        fscanf(state.file, "%ld\n", &rows) != 1)
        (void)snprintf(state.sentence, sizeof(state.sentence), "no rows in '%s' at all\nat row 0",
                       path);
    return rows;
}

duckdb_state duckdb_query(duckdb_connection connection, const char *sql, duckdb_result *out)
{
    assert(connection == &state);
    state.results++;
    out->internal_data = NULL;
    if (strncmp(sql, "SET threads = 1;", 16) == 0)
        return DuckDBSuccess;
    if (strncmp(sql, "SELECT column_name, column_type ", 32) == 0) {
        out->internal_data = &state;
        state.columns = 1;
        return DuckDBSuccess;
    }
    assert(strncmp(sql, "SELECT num_rows FROM", 20) == 0);
    out->deprecated[0] = (uint64_t)open_rows(sql);
    return state.sentence[0] == '\0' ? DuckDBSuccess : DuckDBError;
}
int64_t duckdb_value_int64(duckdb_result *result, uint64_t column, uint64_t row)
{
    assert(column == 0 && row == 0);
    return (int64_t)result->deprecated[0];
}
const char *duckdb_result_error(duckdb_result *result)
{
    (void)result;
    return state.sentence[0] != '\0' ? state.sentence : NULL;
}
duckdb_state duckdb_prepare(duckdb_connection connection, const char *sql,
                            duckdb_prepared_statement *out)
{
    assert(connection == &state && strstr(sql, "to_json(") != NULL &&
           strstr(sql, "(SELECT * FROM") != NULL);
    state.statements++;
    (void)open_rows(sql);
    *out = &state;
    return DuckDBSuccess;
}
const char *duckdb_prepare_error(duckdb_prepared_statement statement)
{
    (void)statement;
    return NULL;
}
void duckdb_destroy_prepare(duckdb_prepared_statement *statement)
{
    state.statements--;
    *statement = NULL;
}
duckdb_state duckdb_execute_prepared_streaming(duckdb_prepared_statement statement,
                                               duckdb_result *out)
{
    (void)statement;
    state.results++;
    out->internal_data = &state;
    return DuckDBSuccess;
}
void duckdb_destroy_result(duckdb_result *result)
{
    state.results--;
    result->internal_data = NULL;
    if (state.results == 0 && state.file != NULL) {
        fclose(state.file);
        state.file = NULL;
    }
}

static void row_set(duckdb_string_t *s, const char *text)
{
    s->value.length = (uint32_t)strlen(text);
    memcpy(s->value.inlined, text, strlen(text));
}

/* A chunk of the one column, and then the end. */
static duckdb_data_chunk columns_fetch(void)
{
    if (state.columns++ == 2) {
        state.columns = 0;
        return NULL;
    }
    state.chunks++;
    row_set(&state.row[0], "text");
    row_set(&state.row[1], "VARCHAR");
    return (duckdb_data_chunk)(uintptr_t)1;
}

#ifndef NO_FETCH
duckdb_data_chunk duckdb_fetch_chunk(duckdb_result result)
{
    uint64_t n = 0;
    size_t size = 0;
    char *line = NULL;

    assert(result.internal_data == &state);
    if (state.columns > 0)
        return columns_fetch();
    while (n < CHUNK && getline(&line, &size, state.file) > 0) {
        const size_t len = strcspn(line, "\n");
        duckdb_string_t *s = &state.row[n];

        line[len] = '\0';
        if (line[0] == '!') {
            (void)snprintf(state.sentence, sizeof(state.sentence), "%s", line + 1);
            n = 0;
            break;
        }
        s->value.length = (uint32_t)len;
        free(state.text[n]);
        state.text[n] = strdup(line);
        if (len <= DUCKDB_STRING_INLINED)
            memcpy(s->value.inlined, line, len);
        else
            s->pointer.ptr = state.text[n];
        n++;
    }
    free(line);
    if (n == 0)
        return NULL;
    state.chunks++;
    return (duckdb_data_chunk)(uintptr_t)n;
}
#endif

uint64_t duckdb_data_chunk_get_size(duckdb_data_chunk chunk)
{
    return (uint64_t)(uintptr_t)chunk;
}
duckdb_vector duckdb_data_chunk_get_vector(duckdb_data_chunk chunk, uint64_t column)
{
    assert(chunk != NULL && column <= (state.columns > 0));
    return state.row + column;
}
void *duckdb_vector_get_data(duckdb_vector vector)
{
    return vector;
}
void duckdb_destroy_data_chunk(duckdb_data_chunk *chunk)
{
    state.chunks--;
    *chunk = NULL;
    for (int i = 0; i < CHUNK; i++) {
        free(state.text[i]);
        state.text[i] = NULL;
    }
}
