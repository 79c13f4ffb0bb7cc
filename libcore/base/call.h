/* call.h - calls of functions that others have written, a plugin's for instance.
 *
 *     D9D_TRY(D9DI_CALL(kind->table->name, kind, update, config, &u));
 *
 * Such a function may fail without a sentence, or with a number that is no status.  Here it gets a
 * sentence, so that nobody reads the one of an earlier failure: "lion: its update() failed and does
 * not say why".
 */
#ifndef D9DI_BASE_CALL_H
#define D9DI_BASE_CALL_H

#include "d9d/base/status.h"

#define D9DI_CALL(who, table, fn, ...)                                                             \
    (d9di_call_begin(), d9di_call_end((table)->fn(__VA_ARGS__), (who), #fn))

void d9di_call_begin(void);
d9d_status d9di_call_end(d9d_status st, const char *who, const char *fn);

#endif /* D9DI_BASE_CALL_H */
