/* plugin.h - shared libraries that add models, tasks and other parts to a job.
 *
 *     {"plugin": "libmine.so", "model_provider": {"name": "mine", ...}, ...}
 *
 * A plugin is a shared library with one symbol, a table of tables:
 *
 *     static const d9d_model_provider *const models[] = {&provider, NULL};
 *     D9D_PLUGIN(.models = models);
 *
 * It is built against an installed tree:
 *
 *     cc -shared -fPIC -o libmine.so mine.c $(pkg-config --cflags --libs d9d)
 *
 * A plugin is loaded before the rest of the configuration is bound.  Its rows join the built-in
 * choices of their kind, with the same key tables, strict parser, --print-config and
 * --print-schema.
 *
 * ABI.  Older plugins keep loading.  Every table begins with its size, and only that many bytes are
 * read.  Members that were added later count as zero, which always selects the earlier behaviour.
 * Structs that a plugin embeds (modules, blocks) must have the same size on both sides, which is
 * checked. A plugin that needs something newer than this library is refused.
 *
 * A plugin's code runs in the job's process with all its rights, and is never unloaded.
 */
#ifndef D9D_TASKS_PLUGIN_H
#define D9D_TASKS_PLUGIN_H

#include "d9d/data/dataset/dataset_kind.h"
#include "d9d/job/events.h"
#include "d9d/job/job.h"
#include "d9d/metric/metric.h"
#include "d9d/model/decoder_model.h"
#include "d9d/model/family/family.h"
#include "d9d/model/lora/peft.h"
#include "d9d/model/provider.h"
#include "d9d/nn/block.h"
#include "d9d/pipe/program.h"
#include "d9d/tasks/reward_function.h"
#include "d9d/tasks/task.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { D9D_PLUGIN_ABI = 5 }; /* changes when the meaning of a table changes */

/* Structs of this library that plugins embed in their own, or fill for a call. */
#define D9D_PLUGIN_EMBEDS(X)                                                                       \
    X(d9d_tensor)                                                                                  \
    X(d9d_param)                                                                                   \
    X(d9d_module)                                                                                  \
    X(d9d_model)                                                                                   \
    X(d9d_model_section)                                                                           \
    X(d9d_block_linear)                                                                            \
    X(d9d_block_norm)                                                                              \
    X(d9d_block_vocab)                                                                             \
    X(d9d_block_rope)                                                                              \
    X(d9d_block_attention)                                                                         \
    X(d9d_block_ffn)                                                                               \
    X(d9d_block_ffn_shape)                                                                         \
    X(d9d_block_grouped_linear)                                                                    \
    X(d9d_block_moe)                                                                               \
    X(d9d_op_attention_opts)                                                                       \
    X(d9d_block_attention_shape)                                                                   \
    X(d9d_block_gated_delta)                                                                       \
    X(d9d_block_gated_delta_shape)                                                                 \
    X(d9d_block_mla)                                                                               \
    X(d9d_block_mla_shape)                                                                         \
    X(d9d_block_moe_shape)                                                                         \
    X(d9d_block_opts)                                                                              \
    X(d9d_decoder_layer)                                                                           \
    X(d9d_decoder_shape)                                                                           \
    X(d9d_block_cache)                                                                             \
    X(d9d_block_cache_spec)                                                                        \
    X(d9d_kv_cache)                                                                                \
    X(d9d_op_gated_delta_args)                                                                     \
    X(d9d_rope_scaling)                                                                            \
    X(d9d_hf_field)                                                                                \
    X(d9d_hf_tensor)                                                                               \
    X(d9d_hf_parts)                                                                                \
    X(d9d_family_dims)                                                                             \
    X(d9d_family_section)                                                                          \
    X(d9d_op_ffn_weights)                                                                          \
    X(d9d_op_dropout_opts)                                                                         \
    X(d9d_model_in)                                                                                \
    X(d9d_model_out)                                                                               \
    X(d9d_peft_params)                                                                             \
    X(d9d_peft_target)                                                                             \
    X(d9d_adapter_kind)                                                                            \
    X(d9d_adapter_files)                                                                           \
    X(d9d_field)                                                                                   \
    X(d9d_field_request)                                                                           \
    X(d9d_task_head_record)

typedef struct d9d_plugin {
    size_t size;          /* sizeof(d9d_plugin) */
    int abi;              /* D9D_PLUGIN_ABI */
    const size_t *embeds; /* sizes of D9D_PLUGIN_EMBEDS at compile time, ending in 0 */
    /* NULL-terminated lists; NULL: none.  Each table begins with its size and its section's key
     * table, whose name selects it in a configuration. */
    const d9d_model_provider *const *models;
    const d9d_train_task *const *train_tasks;
    const d9d_infer_task_kind *const *infer_tasks;
    const d9d_optimizer_kind *const *optimizers;
    const d9d_lr_schedule_kind *const *lr_schedulers;
    const d9d_pipe_schedule_kind *const *schedules; /* of pipelines */
    const d9d_metric_kind *const *metrics;
    const d9d_sink_kind *const *trackers;
    const d9d_job_event_handler *events; /* subscribed for any configuration; `self` is NULL */
    const d9d_dataset_kind *const *datasets;
    const d9d_reward_kind *const *rewards;      /* of completions: d9d/tasks/reward_function.h */
    const d9d_peft_method *const *peft_methods; /* of fine-tuning: d9d/model/lora/peft.h */
} d9d_plugin;

#define D9D_PLUGIN_SIZE(type) sizeof(type),
/* The one definition of a plugin, at file scope. */
#define D9D_PLUGIN(...)                                                                            \
    static const size_t d9d_plugin_embeds[] = {D9D_PLUGIN_EMBEDS(D9D_PLUGIN_SIZE) 0};              \
    extern const D9D_API d9d_plugin d9d_plugin_table;                                              \
    const d9d_plugin d9d_plugin_table = {.size = sizeof(d9d_plugin),                               \
                                         .abi = D9D_PLUGIN_ABI,                                    \
                                         .embeds = d9d_plugin_embeds,                              \
                                         __VA_ARGS__}

/* --- loading ----------------------------------------------------------------------------- */

/* Loads the plugins under the configuration's key "plugin", one name or a list.  A name with a
 * slash is a path, relative to the configuration file at `path` ("-": to the working directory).
 * Other names are searched beside the configuration, then as by dlopen().  ECONFIG with dlopen()'s
 * message, and for a missing member, another ABI or struct size, or a choice that already
 * exists. */
D9D_API D9D_MUST_USE d9d_status d9d_plugins_open(const json_t *doc, const char *path,
                                                 d9d_plugins **out);
/* Frees the key tables and their rows; the code stays loaded. */
D9D_API void d9d_plugins_close(d9d_plugins *p);

/* A copy of a table (d9d_train_config_table, d9d_infer_config_table) with the plugins' choices
 * added. */
D9D_API D9D_MUST_USE d9d_status d9d_plugins_table(d9d_plugins *p, const d9d_table *table,
                                                  const d9d_table **out);

/* The families that are built in and those of the plugins, as sections of "model_provider";
 * NULL-ended, until the plugins are closed. */
D9D_API D9D_MUST_USE d9d_status d9d_plugins_models(d9d_plugins *p, const d9d_table *const **out);

/* The kinds of adapters with files of their own, which d9d_adapters_read() takes; NULL-ended, until
 * the plugins are closed.  NULL: none. */
D9D_API const d9d_adapter_kind *const *d9d_plugins_adapter_kinds(const d9d_plugins *p);

/* Number of plugins (NULL: 0), and the file of one, which must be the same on all ranks. */
D9D_API size_t d9d_plugins_count(const d9d_plugins *p);
D9D_API const char *d9d_plugins_file(const d9d_plugins *p, size_t i);

/* Subscribes the plugins' event handlers, in plugin order.  NULL is fine. */
D9D_API D9D_MUST_USE d9d_status d9d_plugins_subscribe(const d9d_plugins *p, d9d_job_events *v);

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_PLUGIN_H */
