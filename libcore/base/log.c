/* log.c - log lines.  See d9d/base/log.h. */
#include "d9d/base/log.h"

#include <stdarg.h>

#include "base/text_format.h"

void d9d_log_write(const d9d_log *log, d9d_log_level level, const char *fmt, ...)
{
    char text[2048];
    va_list ap;

    if (log == NULL || log->line == NULL || level > log->level)
        return;
    va_start(ap, fmt);
    (void)d9di_text_vformat(text, sizeof(text), fmt, ap);
    va_end(ap);
    log->line(log->arg, level, text);
}
