/* resumable_lines.c - see infer/resumable_lines.h. */
#include "infer/resumable_lines.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "d9d/base/hex.h"
#include "d9d/base/num_format.h"
#include "d9d/base/thread.h"

static const int64_t journal_period_ns = INT64_C(1000000000), sync_period_ns = INT64_C(5000000000);

enum { STATE_BYTES_PER_SECOND = 16 << 10 };

/* --- state ------------------------------------------------------------------------------------ */

enum { STATE_HEAD_DIGITS = 32 }; /* of its identity, and of the first record that it counts */

static size_t state_bytes(const d9di_resumable_lines_state *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        n += s->parts[i].n;
    return n;
}

static d9d_status state_format(const d9di_resumable_lines *l, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "%016llx%016llx", (unsigned long long)l->state.id,
                           (unsigned long long)l->counted_from));
    D9D_TRY(d9d_buf_reserve(out, 2 * state_bytes(&l->state) + 1));
    for (size_t i = 0; i < l->state.n; i++) {
        d9d_hex_format(l->state.parts[i].data, l->state.parts[i].n, out->data + out->len);
        out->len += 2 * l->state.parts[i].n;
    }
    return D9D_OK;
}

/* False if the digits are of another state. */
static bool state_parse(d9di_resumable_lines *l, const char *text)
{
    unsigned long long id, from;

    if (strlen(text) != STATE_HEAD_DIGITS + 2 * state_bytes(&l->state) ||
        sscanf(text, "%16llx%16llx", &id, &from) != 2 || id != l->state.id ||
        from > (unsigned long long)l->done)
        return false;
    l->counted_from = (int64_t)from;
    text += STATE_HEAD_DIGITS;
    for (size_t i = 0; i < l->state.n; i++)
        text += d9d_hex_parse(text, l->state.parts[i].n, l->state.parts[i].data);
    return true;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* "<path>.<label>-<16 digits>"; the caller frees it. */
static d9d_status make_name(const char *path, const char *label, d9d_hash key, char **out)
{
    char hex[D9D_HASH_HEX];
    d9d_buf b = {0};

    d9d_hash_hex(key, hex);
    D9D_TRY(d9d_buf_printf(&b, "%s.%s-%.16s", path, label, hex));
    *out = b.data;
    return D9D_OK;
}

/* The part may have been renamed between open and lock. */
static d9d_status lock_partial(const d9d_file *f)
{
    struct stat a, b;

    D9D_TRY(d9d_file_lock(f));
    if (fstat(f->fd, &a) != 0 || lstat(f->path, &b) != 0 || a.st_ino != b.st_ino ||
        a.st_dev != b.st_dev)
        return D9D_FAIL(D9D_EIO,
                        "%s: another process is writing it; wait for its end, or name another",
                        f->path);
    return D9D_OK;
}

static bool is_hex_digits(const char *s)
{
    return strspn(s, "0123456789abcdef") == 16 && s[16] == '\0';
}

/* For a new part: warns about parts with other keys. */
static void warn_other_partials(const char *path, const char *own_path, const d9d_log *log)
{
    d9d_arena a = {0};
    char *copy = d9d_arena_strdup(&a, path);
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    const char *own = own_path + (base - path);
    const size_t n = strlen(base);
    d9d_fs_names names = {0};

    if (copy == NULL || d9d_fs_list(dirname(copy), &a, &names) != D9D_OK)
        names.n = 0;
    for (size_t i = 0; i < names.n; i++)
        if (strncmp(names.name[i], base, n) == 0 && strncmp(names.name[i] + n, ".part-", 6) == 0 &&
            is_hex_digits(names.name[i] + n + 6) && strcmp(names.name[i], own) != 0)
            d9d_log_warn(log,
                         "%.*s%s: is of another configuration, or of weights, samples or other "
                         "inputs that were replaced; beginning anew",
                         (int)(base - path), path, names.name[i]);
    d9d_arena_release(&a);
}

static d9d_status fail_unknown_owner(const d9d_file *partial, const char *journal)
{
    uint64_t size;

    D9D_TRY(d9d_fs_size(partial->path, &size));
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: has %llu bytes, and no %s that says that they are of this job; remove it "
                    "or name another output",
                    partial->path, (unsigned long long)size, journal);
}

static void restore_state(d9di_resumable_lines *l, const d9di_output_journal_proof *proof,
                          const d9d_log *log)
{
    if (l->state.n == 0 || proof->records == 0 || state_parse(l, proof->state.data))
        return;
    l->counted_from = proof->records;
    d9d_log_warn(log,
                 "%s: is not known to have counted what is counted now: totals are of the samples "
                 "from %lld on",
                 l->file.path, (long long)proof->records);
}

/* Takes over what the journal proves; verifies before changing anything. */
static d9d_status resume_proven(d9di_resumable_lines *l, const char *journal, uint64_t size,
                                const d9di_output_journal_proof *proof, const d9d_log *log)
{
    if (size > 0 && !proof->key_matches)
        return fail_unknown_owner(&l->file, journal);
    if (size == 0)
        warn_other_partials(l->path, l->file.path, log);
    if (proof->claimed > proof->records)
        d9d_log_warn(log,
                     "%s: %lld of the %lld sample%s that were written check out; going on behind "
                     "these",
                     l->file.path, (long long)proof->records, (long long)proof->claimed,
                     D9D_PLURAL(proof->claimed));
    l->done = l->n_journaled = proof->records;
    restore_state(l, proof, log);
    D9D_TRY(d9d_file_truncate(&l->file, proof->bytes));
    return proof->records > 0 ? D9D_OK : d9di_output_journal_begin(&l->journal);
}

/* Resumes the part as far as its journal proves it. */
static d9d_status resume_partial(d9di_resumable_lines *l, const char *journal, d9d_hash key,
                                 const d9d_log *log)
{
    d9di_output_journal_proof proof;
    uint64_t size;
    d9d_status st;

    D9D_TRY(d9d_fs_size(l->file.path, &size));
    if (size > 0 && !d9d_fs_exists(journal))
        return fail_unknown_owner(&l->file, journal);
    D9D_TRY(d9di_output_journal_open(journal, key, &l->file, &l->journal, &proof));
    st = resume_proven(l, journal, size, &proof, log);
    d9d_buf_release(&proof.state);
    return st;
}

static d9d_status write_bytes(d9di_resumable_lines *l, const char *p, size_t n)
{
    D9D_TRY(d9d_file_write(&l->file, p, n));
    d9di_output_journal_add(&l->journal, p, n);
    return D9D_OK;
}

/* Without a record there is no header either. */
static d9d_status open_files(d9di_resumable_lines *l, d9d_hash key, const d9d_buf *head,
                             const d9d_log *log)
{
    char *partial = NULL, *journal = NULL;
    d9d_status st;

    D9D_TRY_OR(st, make_name(l->path, "part", key, &partial), out);
    D9D_TRY_OR(st, make_name(l->path, "journal", key, &journal), out);
    D9D_TRY_OR(st, d9d_file_open_rw_owned(partial, &l->file), out);
    D9D_TRY_OR(st, lock_partial(&l->file), out);
    D9D_TRY_OR(st, resume_partial(l, journal, key, log), out);
    l->synced_ns = d9d_clock_ns();
    if (l->done == 0)
        D9D_TRY_OR(st, d9d_file_truncate(&l->file, 0), out);
    if (l->done == 0 && head != NULL)
        st = write_bytes(l, head->data, head->len);
out:
    free(partial);
    free(journal);
    return st;
}

d9d_status d9di_resumable_lines_open(const char *path, d9d_hash key, const d9d_buf *head,
                                     const d9di_resumable_lines_state *state, const d9d_log *log,
                                     d9di_resumable_lines *out)
{
    d9di_resumable_lines l = {.file = {.fd = -1},
                              .journal = {.file = {.fd = -1}},
                              .path = strdup(path),
                              .state = state != NULL ? *state : (d9di_resumable_lines_state){0}};
    const d9d_status st = l.path == NULL ? D9D_FAIL(D9D_ENOMEM, "%s: its name", path)
                                         : open_files(&l, key, head, log);

    if (st == D9D_OK)
        *out = l;
    else
        d9di_resumable_lines_release(&l);
    return st;
}

/* --- writing ---------------------------------------------------------------------------------- */

static d9d_status write_line(d9di_resumable_lines *l)
{
    d9d_buf state = {0};
    d9d_status st = l->state.n > 0 ? state_format(l, &state) : D9D_OK;

    if (st == D9D_OK)
        st = d9di_output_journal_write_line(&l->journal, l->done, state.len > 0 ? &state : NULL);
    d9d_buf_release(&state);
    return st;
}

/* Updates the journal; syncs both files if the last sync is long ago or `sync` is set. */
static d9d_status write_journal(d9di_resumable_lines *l, bool sync)
{
    sync = sync || d9d_clock_ns() - l->synced_ns >= sync_period_ns;
    if (sync)
        D9D_TRY(d9d_file_sync(&l->file));
    if (l->n_journaled < l->done)
        D9D_TRY(write_line(l));
    l->n_journaled = l->done;
    if (sync)
        D9D_TRY(d9d_file_sync(&l->journal.file));
    l->journaled_ns = d9d_clock_ns();
    l->synced_ns = sync ? l->journaled_ns : l->synced_ns;
    return D9D_OK;
}

/* Nanoseconds between two lines of the journal. */
static int64_t line_period_ns(const d9di_resumable_lines *l)
{
    return journal_period_ns * (int64_t)(1 + state_bytes(&l->state) / STATE_BYTES_PER_SECOND);
}

d9d_status d9di_resumable_lines_add(d9di_resumable_lines *l, const char *line, size_t n,
                                    int64_t records)
{
    D9D_TRY(write_bytes(l, line, n));
    l->done += records;
    l->state_is_ahead = false;
    return d9d_clock_ns() - l->journaled_ns >= line_period_ns(l) ? write_journal(l, false) : D9D_OK;
}

d9d_status d9di_resumable_lines_commit(d9di_resumable_lines *l)
{
    char *dir;
    d9d_status st;

    D9D_TRY(write_journal(l, true));
    st = d9d_fs_rename_new(l->file.path, l->path);
    if (st == D9D_ECONFIG)
        return D9D_FAIL(st, "%s; what was to go there is %s", d9d_err_message(), l->file.path);
    D9D_TRY(st);
    dir = strdup(l->path);
    if (dir == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: its directory's name", l->path);
    st = d9d_fs_sync_dir(dirname(dir));
    free(dir);
    (void)unlink(l->journal.file.path); /* its part is gone */
    return st;
}

void d9di_resumable_lines_release(d9di_resumable_lines *l)
{
    d9d_err_copy first;

    /* The earlier error is more useful than ours. */
    d9d_err_save(&first, D9D_OK);
    if (l->n_journaled < l->done && !l->state_is_ahead && write_journal(l, true) != D9D_OK)
        (void)d9d_err_restore(&first);
    d9di_output_journal_close(&l->journal);
    d9d_file_release(&l->file);
    free(l->path);
    *l = (d9di_resumable_lines){.file = {.fd = -1}, .journal = {.file = {.fd = -1}}};
}
