/* formats.h - key tables of the files that the tools write for other programs: the source of their
 * JSON Schemas, and of checks of such files. */
#ifndef D9D_SCHEMAS_FORMATS_H
#define D9D_SCHEMAS_FORMATS_H

#include "d9d/config/config.h"

extern const d9d_table d9di_dataset_format;         /* manifest.json of a dataset */
extern const d9d_table d9di_checkpoint_format;      /* manifest.json of any checkpoint directory */
extern const d9d_table d9di_checkpoint_root_format; /* of a training run's checkpoint */
extern const d9d_table d9di_map_plan_format;        /* d9d-map plan --json */
extern const d9d_table d9di_model_format;           /* d9d-map describe --json */
extern const d9d_table d9di_certificate_format;     /* d9d-map certify --json */
extern const d9d_table d9di_run_format;             /* manifest.json of a run */
extern const d9d_table d9di_metrics_format;         /* a line of metrics.jsonl */
extern const d9d_table d9di_completions_format;     /* a line of completions.jsonl */
extern const d9d_table d9di_samples_format;         /* a line of samples.jsonl */
extern const d9d_table d9di_filter_format;          /* report.json of d9d-shard filter */
extern const d9d_table d9di_flight_format;          /* d9d-metrics flight --json */
extern const d9d_table d9di_plan_format;            /* d9d-train --plan --json */
extern const d9d_table d9di_suggest_format;         /* d9d-train --plan --suggest N --json */

#endif /* D9D_SCHEMAS_FORMATS_H */
