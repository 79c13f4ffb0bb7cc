/* output_journal.c - see infer/output_journal.h. */
#include "infer/output_journal.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "d9d.part.v1"

enum { LINE_MAX_BYTES = 128, READ_BYTES = 1 << 16 };
#define MAX_JOURNAL (UINT64_C(1) << 32)

/* --- hashes ----------------------------------------------------------------------------------- */

static void block_begin(d9di_output_journal *j, d9d_hash chain)
{
    j->chain = chain;
    d9d_hasher_reset(j->block);
    d9d_hasher_add(j->block, &chain, sizeof(chain));
}

static d9d_hash block_end(d9di_output_journal *j, int64_t records, const char *state, size_t n)
{
    const uint64_t numbers[] = {(uint64_t)records, j->bytes};

    d9d_hasher_add(j->block, numbers, sizeof(numbers));
    d9d_hasher_add(j->block, state, n);
    return d9d_hasher_digest(j->block);
}

void d9di_output_journal_add(d9di_output_journal *j, const void *p, size_t n)
{
    d9d_hasher_add(j->block, p, n);
    j->bytes += n;
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct journal_line {
    int64_t records;
    uint64_t bytes;
    d9d_hash hash;
    const char *state; /* "": none */
} journal_line;

static bool parse_line(const char *line, journal_line *out)
{
    char hex[D9D_HASH_HEX];
    unsigned long long records, bytes;
    int end = 0;

    if (sscanf(line, "%llu %llu %32[0-9a-f]%n", &records, &bytes, hex, &end) != 3 ||
        records > INT64_MAX || d9d_hash_parse(hex, &out->hash) != D9D_OK)
        return false;
    out->state = line[end] == ' ' ? line + end + 1 : line + end;
    if (out->state[strspn(out->state, "0123456789abcdef")] != '\0')
        return false;
    out->records = (int64_t)records;
    out->bytes = bytes;
    return true;
}

/* Hashes the block from the proven end to the claimed one; false if the file is shorter. */
static bool hash_block(d9di_output_journal *j, const d9d_file *output, uint64_t end)
{
    char buffer[READ_BYTES];
    uint64_t n;

    for (; j->bytes < end; d9di_output_journal_add(j, buffer, n)) {
        n = end - j->bytes < READ_BYTES ? end - j->bytes : READ_BYTES;
        if (d9d_file_read_at(output, buffer, n, j->bytes) != D9D_OK)
            return false;
    }
    return j->bytes == end;
}

static bool verify_line(d9di_output_journal *j, const d9d_file *output, const journal_line *c)
{
    return hash_block(j, output, c->bytes) &&
           d9d_hash_equal(block_end(j, c->records, c->state, strlen(c->state)), c->hash);
}

/* Verifies the lines after the head; *valid_bytes: of the journal up to the last valid line, whose
 * state is *state. */
static void verify_lines(d9di_output_journal *j, const d9d_file *output, char *line, char *stop,
                         uint64_t *valid_bytes, const char **state,
                         d9di_output_journal_proof *proof)
{
    const char *text = line - *valid_bytes;
    bool holds = true;
    journal_line c;

    for (char *end; (end = memchr(line, '\n', (size_t)(stop - line))) != NULL; line = end + 1) {
        *end = '\0';
        if (!parse_line(line, &c))
            return;
        proof->claimed = c.records;
        holds = holds && verify_line(j, output, &c);
        if (!holds)
            continue;
        proof->records = c.records;
        proof->bytes = c.bytes;
        *state = c.state;
        *valid_bytes = (uint64_t)(end + 1 - text);
        block_begin(j, c.hash);
    }
}

static int format_header(d9d_hash key, char line[LINE_MAX_BYTES])
{
    char hex[D9D_HASH_HEX];

    d9d_hash_hex(key, hex);
    return snprintf(line, LINE_MAX_BYTES, MAGIC " %s\n", hex);
}

/* Truncates the journal after the last proven line. */
static d9d_status verify_journal(d9di_output_journal *j, const d9d_file *output,
                                 d9di_output_journal_proof *proof)
{
    d9d_buf text = {0};
    char head[LINE_MAX_BYTES];
    uint64_t valid_bytes = (uint64_t)format_header(j->key, head);
    const char *state = "";
    d9d_err_copy before;
    d9d_status st;

    D9D_TRY(d9d_fs_read(j->file.path, MAX_JOURNAL, &text));
    proof->key_matches = text.len >= valid_bytes && memcmp(text.data, head, valid_bytes) == 0;
    block_begin(j, j->key);
    if (proof->key_matches) {
        d9d_err_save(&before, D9D_OK); /* a short output is not an error */
        verify_lines(j, output, text.data + valid_bytes, text.data + text.len, &valid_bytes, &state,
                     proof);
        (void)d9d_err_restore(&before);
        block_begin(j, j->chain);
        j->bytes = proof->bytes;
    }
    st = d9d_buf_append(&proof->state, state, strlen(state) + 1);
    if (st == D9D_OK && proof->key_matches)
        st = d9d_file_truncate(&j->file, valid_bytes);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9di_output_journal_open(const char *path, d9d_hash key, const d9d_file *output,
                                    d9di_output_journal *out, d9di_output_journal_proof *proof)
{
    d9di_output_journal j = {.file = {.fd = -1}, .key = key};
    d9d_status st;

    *proof = (d9di_output_journal_proof){.key_matches = false};
    D9D_TRY_OR(st, d9d_hasher_create(&j.block), out);
    D9D_TRY_OR(st, d9d_file_open_rw_owned(path, &j.file), out);
    D9D_TRY_OR(st, verify_journal(&j, output, proof), out);
    *out = j;
    j = (d9di_output_journal){.file = {.fd = -1}};
out:
    if (st != D9D_OK)
        d9d_buf_release(&proof->state);
    d9di_output_journal_close(&j);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

d9d_status d9di_output_journal_begin(d9di_output_journal *j)
{
    char head[LINE_MAX_BYTES], *dir;
    const int n = format_header(j->key, head);
    d9d_status st;

    D9D_TRY(d9d_file_truncate(&j->file, 0));
    D9D_TRY(d9d_file_write(&j->file, head, (size_t)n));
    D9D_TRY(d9d_file_sync(&j->file));
    j->bytes = 0;
    block_begin(j, j->key);
    dir = strdup(j->file.path);
    if (dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its directory's name", j->file.path);
    st = d9d_fs_sync_dir(dirname(dir));
    free(dir);
    return st;
}

d9d_status d9di_output_journal_write_line(d9di_output_journal *j, int64_t records,
                                          const d9d_buf *state)
{
    const size_t n = state != NULL ? strlen(state->data) : 0;
    const d9d_hash hash = block_end(j, records, n > 0 ? state->data : "", n);
    char hex[D9D_HASH_HEX];
    d9d_buf line = {0};
    d9d_status st;

    d9d_hash_hex(hash, hex);
    st = d9d_buf_printf(&line, "%lld %llu %s%s%s\n", (long long)records,
                        (unsigned long long)j->bytes, hex, n > 0 ? " " : "",
                        n > 0 ? state->data : "");
    block_begin(j, hash);
    if (st == D9D_OK)
        st = d9d_file_write(&j->file, line.data, line.len);
    d9d_buf_release(&line);
    return st;
}

void d9di_output_journal_close(d9di_output_journal *j)
{
    d9d_file_release(&j->file);
    d9d_hasher_free(j->block);
    j->block = NULL;
}
