/* pipeline_chart.h - a pipeline's timeline as a picture: one lane a rank, a box an action.
 *
 *     D9D_TRY(d9d_timeline_make(&program, &prices, &t));
 *     D9D_TRY(d9d_pipeline_chart_write(&program, &t, "1f1b", "timeline.svg"));
 *
 *     rank 0  |0|1|2|3|     |0 ||1 ||2 ||3 |
 *     rank 1     |0|1|2|3||0 ||1 ||2 ||3 |
 *
 * Boxes are coloured by what is done, forwards, backwards and their halves, lighter for every other
 * stage of a rank, and have the number of their micro-batch where it fits; what is white is bubble.
 */
#ifndef D9D_PLOT_PIPELINE_CHART_H
#define D9D_PLOT_PIPELINE_CHART_H

#include "d9d/pipe/timeline.h"
#include "d9d/plot/chart.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Append the image; times are seconds. */
D9D_API D9D_MUST_USE d9d_status d9d_pipeline_chart_render(const d9d_program *p,
                                                          const d9d_timeline *t, const char *title,
                                                          d9d_image_kind kind, d9d_buf *out);
/* By the name's ending; the file appears whole or not at all. */
D9D_API D9D_MUST_USE d9d_status d9d_pipeline_chart_write(const d9d_program *p,
                                                         const d9d_timeline *t, const char *title,
                                                         const char *path);

#ifdef __cplusplus
}
#endif
#endif /* D9D_PLOT_PIPELINE_CHART_H */
