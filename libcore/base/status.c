/* status.c - the per-thread error record.  See d9d/base/status.h. */
#include "d9d/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text_format.h"
#include "d9d/base/plugin_call.h"

struct err_record {
    char message[sizeof(((d9d_err_copy *)0)->text)];
    char trace[2048];
};

static _Thread_local struct err_record record;

const char *d9d_status_name(d9d_status st)
{
    switch (st) {
#define X(name, value, exit_code, text)                                                            \
    case D9D_##name: return "D9D_" #name;
        D9D_STATUS_MAP(X)
#undef X
    }
    return "D9D_?";
}

const char *d9d_status_text(d9d_status st)
{
    switch (st) {
#define X(name, value, exit_code, text)                                                            \
    case D9D_##name: return text;
        D9D_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

int d9d_status_exit_code(d9d_status st)
{
    switch (st) {
#define X(name, value, exit_code, text)                                                            \
    case D9D_##name: return exit_code;
        D9D_STATUS_MAP(X)
#undef X
    }
    return 1;
}

static void add_trace(const char *file, int line)
{
    const char *slash = strrchr(file, '/');
    size_t used = strlen(record.trace);

    if (getenv("D9D_DEBUG") != NULL)
        (void)snprintf(record.trace + used, sizeof(record.trace) - used, "  at %s:%d\n",
                       slash != NULL ? slash + 1 : file, line);
}

d9d_status d9d_err_set(d9d_status st, const char *file, int line, const char *fmt, ...)
{
    const int saved = errno;
    char text[sizeof(record.message)]; /* an argument may be the old message */
    va_list ap;

    va_start(ap, fmt);
    if (!d9di_text_vformat(text, sizeof(text), fmt, ap))
        (void)snprintf(text, sizeof(text), "%s", d9d_status_text(st));
    va_end(ap);
    memcpy(record.message, text, strlen(text) + 1);
    record.trace[0] = '\0';
    add_trace(file, line);
    errno = saved;
    return st;
}

d9d_status d9d_err_pass(d9d_status st, const char *file, int line)
{
    add_trace(file, line);
    return st;
}

void d9d_plugin_call_begin(void)
{
    record.message[0] = '\0';
}

d9d_status d9d_plugin_call_end(d9d_status st, const char *who, const char *fn)
{
    if (st == D9D_OK)
        return D9D_OK;
    if (strcmp(d9d_status_name(st), "D9D_?") == 0)
        return D9D_FAIL(D9D_EINVAL, "%s: its %s() returned %d, which is no d9d_status", who, fn,
                        (int)st);
    return record.message[0] != '\0'
               ? st
               : D9D_FAIL(st, "%s: its %s() failed and does not say why", who, fn);
}

const char *d9d_err_message(void)
{
    return record.message;
}

const char *d9d_err_trace(void)
{
    return record.trace;
}

void d9d_err_save(d9d_err_copy *copy, d9d_status st)
{
    copy->st = st;
    memcpy(copy->text, record.message, sizeof(copy->text));
}

d9d_status d9d_err_restore(const d9d_err_copy *copy)
{
    memcpy(record.message, copy->text, sizeof(record.message));
    record.message[sizeof(record.message) - 1] = '\0';
    record.trace[0] = '\0';
    return copy->st;
}
