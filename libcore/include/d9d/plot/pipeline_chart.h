/* pipeline_chart.h - a pipeline schedule as a Gantt chart: one lane per rank, one box per action.
 *
 *     D9D_TRY(d9d_timeline_make(&program, &costs, &t));
 *     D9D_TRY(d9d_pipeline_chart_write(&program, &t, "1f1b", "timeline.svg"));
 *
 *     rank 0  |0|1|2|3|     |0 ||1 ||2 ||3 |
 *     rank 1     |0|1|2|3||0 ||1 ||2 ||3 |
 *
 * The colour of a box shows its action: forward, backward, dgrad or wgrad; every other stage of a
 * rank is lighter.  A box shows its micro-batch number if it fits.  White is bubble.
 */
#ifndef D9D_PLOT_PIPELINE_CHART_H
#define D9D_PLOT_PIPELINE_CHART_H

#include "d9d/pipe/timeline.h"
#include "d9d/plot/chart.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends the image; times are in seconds. */
D9D_API D9D_MUST_USE d9d_status d9d_pipeline_chart_render(const d9d_program *p,
                                                          const d9d_timeline *t, const char *title,
                                                          d9d_image_kind kind, d9d_buf *out);
/* Writes the image in the format of the extension.  The file is replaced atomically. */
D9D_API D9D_MUST_USE d9d_status d9d_pipeline_chart_write(const d9d_program *p,
                                                         const d9d_timeline *t, const char *title,
                                                         const char *path);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLOT_PIPELINE_CHART_H */
