/* small_plugin.h - before an example plugin is included: its table, of which a program can have
 * one, is called what SMALL_PLUGIN is defined as. */
#ifndef D9D_TEST_SMALL_PLUGIN_H
#define D9D_TEST_SMALL_PLUGIN_H

#include <d9d/tasks/plugin.h>

#undef D9D_PLUGIN
#define D9D_PLUGIN(...)                                                                            \
    extern const d9d_plugin SMALL_PLUGIN;                                                          \
    const d9d_plugin SMALL_PLUGIN = {__VA_ARGS__}

#endif /* D9D_TEST_SMALL_PLUGIN_H */
