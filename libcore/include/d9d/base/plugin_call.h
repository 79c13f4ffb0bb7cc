/* plugin_call.h - calls of functions of a plugin, checked for a missing message.
 *
 *     D9D_TRY(D9D_PLUGIN_CALL(kind->table->name, kind, update, config, &u));
 *
 * Such a function may fail without an error message, or return a number that is no status.  The
 * macro then records a message, so that no earlier failure's message is shown: "lion: its update()
 * failed and does not say why".
 */
#ifndef D9D_BASE_PLUGIN_CALL_H
#define D9D_BASE_PLUGIN_CALL_H

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Call function `fn` of a table that belongs to `who`. */
#define D9D_PLUGIN_CALL(who, table, fn, ...)                                                       \
    (d9d_plugin_call_begin(), d9d_plugin_call_end((table)->fn(__VA_ARGS__), (who), #fn))

/* Implementation of the macro. */
D9D_API void d9d_plugin_call_begin(void);
D9D_API d9d_status d9d_plugin_call_end(d9d_status st, const char *who, const char *fn);

#ifdef __cplusplus
}
#endif
#endif /* D9D_BASE_PLUGIN_CALL_H */
