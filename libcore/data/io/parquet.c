/* parquet.c - see parquet.h. */
#include "data/io/parquet.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/mem.h"
#include "d9d/base/num_format.h"
#include "data/io/duckdb_api.h"
#include "data/io/parquet_columns.h"

#define LIBRARY "libduckdb.so"

/* One thread, in memory, nothing fetched from a network, nothing written. */
#define SETTINGS                                                                                   \
    "SET threads = 1; SET temp_directory = ''; SET autoinstall_known_extensions = false; "         \
    "SET autoload_known_extensions = false"

#define COLUMNS "SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM read_parquet('%s'))"

struct d9di_parquet {
    d9di_duckdb duckdb;
    const char *path;
    char fd_path[32]; /* the same file, whatever its name means to DuckDB (globs, URLs) */
    duckdb_database database;
    duckdb_connection connection;
    duckdb_prepared_statement statement;
    duckdb_result result;
    bool has_result;
    duckdb_data_chunk chunk; /* NULL: none yet, or the end */
    const duckdb_string_t *rows;
    uint64_t row, n_rows; /* of the chunk */
    size_t at;            /* bytes of the row that were read; its length: the line end is next */
    int64_t done, total;  /* rows of the file */
};

static d9d_status load_library(d9di_duckdb *d, const char *path)
{
    d->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (d->library == NULL)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: is a Parquet file, which DuckDB's library reads, and %s is not on the "
                        "library path; install it, or read JSON lines from a pipe: duckdb -c "
                        "\"copy (from 'FILE') to '/dev/stdout' (format json)\" | d9d-shard ... -",
                        path, LIBRARY);
#define X(type, name, arguments)                                                                   \
    *(void **)&d->name = dlsym(d->library, #name);                                                 \
    if (d->name == NULL)                                                                           \
        return D9D_FAIL(D9D_ENOTSUP, "%s: %s, which reads Parquet, has no function %s", path,      \
                        LIBRARY, #name);
    DUCKDB_FUNCTIONS(X)
#undef X
    return D9D_OK;
}

/* The first line of what DuckDB says, without the name by which it knows the file. */
static d9d_status fail_duckdb(const d9di_parquet *p, const char *says)
{
    const char *text = says != NULL && says[0] != '\0' ? says : "no reason given";
    const char *name = strstr(text, p->fd_path);
    const int n = (int)strcspn(text, "\n"), before = name != NULL ? (int)(name - text) : n;
    const char *rest = before < n ? name + strlen(p->fd_path) : text + n;

    return D9D_FAIL(D9D_EFORMAT, "%s: cannot be read as Parquet: %.*s%s%.*s", p->path,
                    before < n ? before : n, text, before < n ? p->path : "",
                    (int)(text + n - rest), rest);
}

static d9d_status query(d9di_parquet *p, const char *sql, int64_t *number)
{
    duckdb_result r = {.internal_data = NULL};
    d9d_status st = D9D_OK;

    if (p->duckdb.duckdb_query(p->connection, sql, &r) != DuckDBSuccess)
        st = fail_duckdb(p, p->duckdb.duckdb_result_error(&r));
    else if (number != NULL)
        *number = p->duckdb.duckdb_value_int64(&r, 0, 0);
    p->duckdb.duckdb_destroy_result(&r);
    return st;
}

static const char *get_text(const duckdb_string_t *s)
{
    return s->value.length <= DUCKDB_STRING_INLINED ? s->value.inlined : s->pointer.ptr;
}

/* Appends a column whose values are not all good as they are. */
static d9d_status print_column(const duckdb_string_t *name, const duckdb_string_t *type,
                               d9d_arena *a, d9d_buf *out)
{
    const char *column = d9d_arena_strndup(a, get_text(name), name->value.length);
    const char *text = d9d_arena_strndup(a, get_text(type), type->value.length), *sql;

    if (column == NULL || text == NULL)
        return D9D_FAIL(D9D_ENOMEM, "Parquet: no memory for a column");
    D9D_TRY(d9di_parquet_column_print(column, text, a, &sql));
    if (sql == NULL)
        return D9D_OK;
    column = d9di_parquet_column_quote(column, a);
    return column != NULL ? d9d_buf_printf(out, "%s%s AS %s", out->len > 0 ? ", " : "", sql, column)
                          : D9D_FAIL(D9D_ENOMEM, "Parquet: no memory for a column");
}

/* Appends the columns of a chunk of names and types. */
static d9d_status print_columns(const d9di_duckdb *d, duckdb_data_chunk chunk, d9d_arena *a,
                                d9d_buf *out)
{
    const uint64_t n = d->duckdb_data_chunk_get_size(chunk);
    const duckdb_string_t *names, *types;

    names = d->duckdb_vector_get_data(d->duckdb_data_chunk_get_vector(chunk, 0));
    types = d->duckdb_vector_get_data(d->duckdb_data_chunk_get_vector(chunk, 1));
    for (uint64_t i = 0; i < n; i++)
        D9D_TRY(print_column(&names[i], &types[i], a, out));
    return D9D_OK;
}

/* Appends all columns that are replaced; nothing if the rows are good as they are. */
static d9d_status print_replaced(d9di_parquet *p, d9d_arena *a, d9d_buf *out)
{
    const d9di_duckdb *d = &p->duckdb;
    duckdb_result r = {.internal_data = NULL};
    duckdb_data_chunk chunk;
    d9d_status st = D9D_OK;
    char sql[256];

    (void)snprintf(sql, sizeof(sql), COLUMNS, p->fd_path);
    if (d->duckdb_query(p->connection, sql, &r) != DuckDBSuccess)
        st = fail_duckdb(p, d->duckdb_result_error(&r));
    while (st == D9D_OK && (chunk = d->duckdb_fetch_chunk(r)) != NULL) {
        st = print_columns(d, chunk, a, out);
        d->duckdb_destroy_data_chunk(&chunk);
    }
    d->duckdb_destroy_result(&r);
    return st;
}

/* The statement that gives the rows as JSON. */
static d9d_status print_select(d9di_parquet *p, d9d_buf *out)
{
    d9d_arena a = {0};
    d9d_buf replaced = {0};
    d9d_status st = print_replaced(p, &a, &replaced);

    if (st == D9D_OK)
        st = d9d_buf_printf(
            out,
            "SELECT to_json(d9d_row)::VARCHAR FROM (SELECT *%s%s%s FROM read_parquet('%s')) "
            "AS d9d_row",
            replaced.len > 0 ? " REPLACE (" : "", replaced.len > 0 ? replaced.data : "",
            replaced.len > 0 ? ")" : "", p->fd_path);
    d9d_buf_release(&replaced);
    d9d_arena_release(&a);
    return st;
}

static d9d_status start_rows(d9di_parquet *p)
{
    d9d_buf select = {0};
    char sql[128];
    d9d_status st;

    (void)snprintf(sql, sizeof(sql), "SELECT num_rows FROM parquet_file_metadata('%s')",
                   p->fd_path);
    D9D_TRY(query(p, sql, &p->total));
    st = print_select(p, &select);
    if (st == D9D_OK &&
        p->duckdb.duckdb_prepare(p->connection, select.data, &p->statement) != DuckDBSuccess)
        st = fail_duckdb(p, p->duckdb.duckdb_prepare_error(p->statement));
    d9d_buf_release(&select);
    D9D_TRY(st);
    p->has_result = true;
    if (p->duckdb.duckdb_execute_prepared_streaming(p->statement, &p->result) != DuckDBSuccess)
        return fail_duckdb(p, p->duckdb.duckdb_result_error(&p->result));
    return D9D_OK;
}

d9d_status d9di_parquet_open(int fd, const char *path, d9di_parquet **out)
{
    d9di_parquet *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    p->path = path;
    (void)snprintf(p->fd_path, sizeof(p->fd_path), "/proc/self/fd/%d", fd);
    D9D_TRY_OR(st, load_library(&p->duckdb, path), out);
    if (p->duckdb.duckdb_open(NULL, &p->database) != DuckDBSuccess ||
        p->duckdb.duckdb_connect(p->database, &p->connection) != DuckDBSuccess) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: DuckDB, which reads Parquet, does not start", path);
        goto out;
    }
    D9D_TRY_OR(st, query(p, SETTINGS, NULL), out);
    D9D_TRY_OR(st, start_rows(p), out);
    *out = p;
    p = NULL;
out:
    d9di_parquet_close(p);
    return st;
}

/* The next chunk of rows; none: the end. */
static d9d_status next_chunk(d9di_parquet *p)
{
    const d9di_duckdb *d = &p->duckdb;
    const char *says;

    p->done += (int64_t)p->n_rows;
    p->row = p->n_rows = 0;
    if (p->chunk != NULL)
        d->duckdb_destroy_data_chunk(&p->chunk);
    p->chunk = d->duckdb_fetch_chunk(p->result);
    if (p->chunk != NULL) {
        p->n_rows = d->duckdb_data_chunk_get_size(p->chunk);
        p->rows = d->duckdb_vector_get_data(d->duckdb_data_chunk_get_vector(p->chunk, 0));
        return D9D_OK;
    }
    says = d->duckdb_result_error(&p->result);
    if (says != NULL && says[0] != '\0')
        return fail_duckdb(p, says);
    if (p->done != p->total)
        return D9D_FAIL(D9D_EFORMAT, "%s: DuckDB gave %lld row%s, and the file has %lld", p->path,
                        (long long)p->done, D9D_PLURAL(p->done), (long long)p->total);
    return D9D_OK;
}

/* Copies what fits of the row's line, and goes to the next row at its end. */
static size_t copy_row(d9di_parquet *p, char *to, size_t n)
{
    const duckdb_string_t *s = &p->rows[p->row];
    const size_t len = s->value.length;
    const char *text = get_text(s);
    const size_t k = len - p->at < n ? len - p->at : n;

    memcpy(to, text + p->at, k);
    p->at += k;
    if (k == n)
        return k;
    to[k] = '\n';
    p->at = 0;
    p->row++;
    return k + 1;
}

d9d_status d9di_parquet_read(d9di_parquet *p, void *to, size_t n, size_t *got)
{
    *got = 0;
    while (p->row == p->n_rows) {
        D9D_TRY(next_chunk(p));
        if (p->chunk == NULL)
            return D9D_OK;
    }
    while (*got < n && p->row < p->n_rows)
        *got += copy_row(p, (char *)to + *got, n - *got);
    return D9D_OK;
}

double d9di_parquet_progress(const d9di_parquet *p)
{
    return p->total > 0 ? (double)(p->done + (int64_t)p->row) / (double)p->total : 1;
}

void d9di_parquet_close(d9di_parquet *p)
{
    if (p == NULL)
        return;
    if (p->chunk != NULL)
        p->duckdb.duckdb_destroy_data_chunk(&p->chunk);
    if (p->has_result)
        p->duckdb.duckdb_destroy_result(&p->result);
    if (p->statement != NULL)
        p->duckdb.duckdb_destroy_prepare(&p->statement);
    if (p->connection != NULL)
        p->duckdb.duckdb_disconnect(&p->connection);
    if (p->database != NULL)
        p->duckdb.duckdb_close(&p->database);
    free(p);
}
