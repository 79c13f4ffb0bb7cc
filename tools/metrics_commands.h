/* metrics_commands.h - commands of d9d-metrics that have files of their own. */
#ifndef D9D_TOOLS_METRICS_COMMANDS_H
#define D9D_TOOLS_METRICS_COMMANDS_H

#include "tool.h"

extern const tool_command metrics_samples; /* the samples of a step, and their text */
extern const tool_command metrics_values;  /* own values of a run */
extern const tool_command metrics_flight;  /* which rank the others of a job wait for */
extern const tool_command metrics_spikes;  /* steps with unusual values */
extern const tool_command metrics_eval;    /* metrics of files of predictions */
extern const tool_command metrics_report;  /* one HTML page about runs */

#endif /* D9D_TOOLS_METRICS_COMMANDS_H */
