/* metrics_flight.h - d9d-metrics flight: which rank keeps the others of a job waiting. */
#ifndef D9D_TOOLS_METRICS_FLIGHT_H
#define D9D_TOOLS_METRICS_FLIGHT_H

#include "tool.h"

extern const tool_command metrics_flight;

#endif /* D9D_TOOLS_METRICS_FLIGHT_H */
