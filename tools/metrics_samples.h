/* metrics_samples.h - the command of d9d-metrics that says which samples made a step. */
#ifndef METRICS_SAMPLES_H
#define METRICS_SAMPLES_H

#include "tool.h"

extern const tool_command metrics_samples;

#endif
