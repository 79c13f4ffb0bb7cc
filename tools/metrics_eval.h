/* metrics_eval.h - d9d-metrics eval: metrics of files of predictions. */
#ifndef D9D_TOOLS_METRICS_EVAL_H
#define D9D_TOOLS_METRICS_EVAL_H

#include "tool.h"

extern const tool_command metrics_eval;

#endif /* D9D_TOOLS_METRICS_EVAL_H */
