/* metrics_commands.h - commands of d9d-metrics that have files of their own. */
#ifndef D9D_TOOLS_METRICS_COMMANDS_H
#define D9D_TOOLS_METRICS_COMMANDS_H

#include "tool.h"

extern const tool_command metrics_samples; /* which samples made a step, and what they say */
extern const tool_command metrics_flight;  /* which rank keeps the others of a job waiting */
extern const tool_command metrics_spikes;  /* steps that stand out */
extern const tool_command metrics_eval;    /* metrics of files of predictions */

#endif /* D9D_TOOLS_METRICS_COMMANDS_H */
