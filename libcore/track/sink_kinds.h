/* sink_kinds.h - the built-in sinks. */
#ifndef D9DI_TRACK_SINK_KINDS_H
#define D9DI_TRACK_SINK_KINDS_H

#include "d9d/track/sink.h"

extern const d9d_table d9di_sink_tensorboard_table, d9di_sink_command_table, d9di_sink_wandb_table,
    d9di_sink_mlflow_table, d9di_sink_aim_table, d9di_sink_log_table;

#endif /* D9DI_TRACK_SINK_KINDS_H */
