/* small_plugin.h - include it before an example plugin: renames the plugin's table, of which a
 * program can have only one, to SMALL_PLUGIN. */
#ifndef D9D_TEST_SMALL_PLUGIN_H
#define D9D_TEST_SMALL_PLUGIN_H

#include <d9d/tasks/plugin.h>

#undef D9D_PLUGIN
#define D9D_PLUGIN(...)                                                                            \
    extern const d9d_plugin SMALL_PLUGIN;                                                          \
    const d9d_plugin SMALL_PLUGIN = {__VA_ARGS__}

#endif /* D9D_TEST_SMALL_PLUGIN_H */
