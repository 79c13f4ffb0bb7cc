/* train_plan.h - d9d-train --plan. */
#ifndef D9D_TRAIN_PLAN_H
#define D9D_TRAIN_PLAN_H

#include "tool.h"

typedef struct train_plan_options {
    bool plan;
    const char *gpu, *timeline, *costs;
    int64_t memory, length, suggest, storage;
    double mtbf, restart;
} train_plan_options;

#define TRAIN_PLAN_OPTIONS(S, field)                                                               \
    TOOL_OPT(S, field.plan, FLAG, "plan", 0, NULL,                                                 \
             "say what the job will take, memory, time and messages, without a GPU or a "          \
             "launcher, and stop"),                                                                \
        TOOL_OPT(S, field.gpu, STRING, "gpu", 0, "NAME",                                           \
                 "plan: for h200 (the default), h100, a100, b200 or cpu"),                         \
        TOOL_OPT(S, field.memory, SIZE, "memory", 0, "SIZE",                                       \
                 "plan: exit 2 unless every rank needs at most this, such as 80GiB", .min = 1),    \
        TOOL_OPT(S, field.length, INT, "length", 0, "N",                                           \
                 "plan: rows of N positions, without a look at the dataset", .min = 1,             \
                 .max = 1 << 30),                                                                  \
        TOOL_OPT(S, field.timeline, STRING, "timeline", 0, "FILE",                                 \
                 "plan: draw the pipeline, a lane a rank, as .svg, .png or .pdf"),                 \
        TOOL_OPT(S, field.costs, STRING, "costs", 0, "RUN",                                        \
                 "plan: use the stage times that this run measured (metrics.jsonl) in place of "   \
                 "the cost model"),                                                                \
        TOOL_OPT(S, field.suggest, INT, "suggest", 0, "N",                                         \
                 "plan: the best meshes, micro-batches and schedules for N ranks", .min = 1,       \
                 .max = 1 << 16),                                                                  \
        TOOL_OPT(S, field.mtbf, REAL, "mtbf", 0, "HOURS",                                          \
                 "plan: the goodput, where each node fails once in so many hours", .min = 1e-3,    \
                 .max = 1e9),                                                                      \
        TOOL_OPT(S, field.storage, SIZE, "storage-rate", 0, "SIZE",                                \
                 "plan: with --mtbf, what the file system takes a second, such as 100GiB (in no "  \
                 "time)",                                                                          \
                 .min = 1),                                                                        \
        TOOL_OPT(S, field.restart, REAL, "restart-time", 0, "SECONDS",                             \
                 "plan: with --mtbf, from a failure to the first step after it (300)", .min = 1,   \
                 .max = 1e6)

/* ECONFIG for options of a plan without --plan. */
d9d_status train_plan_options_check(const train_plan_options *o, bool selftest);
d9d_status train_plan(tool_run *r, const tool_job_options *job, const train_plan_options *o);

#endif /* D9D_TRAIN_PLAN_H */
