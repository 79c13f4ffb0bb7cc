/* small_loha.c - see small_adapters.h. */
#define SMALL_PLUGIN small_loha_plugin
#include "small_plugin.h"

#include "../../../examples/plugins/loha.c"

#include "small_adapters.h"

const d9d_adapter_kind *const small_loha_kind = &loha;
