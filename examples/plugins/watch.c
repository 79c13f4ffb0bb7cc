/* watch.c - own values of a run: what handlers of events record beside the loop's records.
 *
 *     {"plugin": "libwatch.so", ...}
 *
 * After every step it records a scalar that the host knows and one that is on the device.  At the
 * end it adds a histogram, a text and a picture.  metrics.jsonl, the trackers and
 * `d9d-metrics values RUN` have them.
 */
#include <string.h>

#include <d9d/plot/chart.h>
#include <d9d/tasks/plugin.h>

/* A parameter of this rank: rank 0's values are recorded, and it has the first stage. */
static d9d_param *first;

static d9d_status keep_first(void *arg, d9d_param *p)
{
    (void)arg;
    first = first != NULL ? first : p;
    return D9D_OK;
}

static d9d_status find_first(void *self, const d9d_job_event *e)
{
    first = NULL;
    return e->n_models > 0 ? d9d_module_each(e->models[0]->module, keep_first, self) : D9D_OK;
}

/* Nothing waits: the element is copied behind the update that has just been enqueued. */
static d9d_status element_add(d9d_values *values, const char *name, const d9d_tensor *t)
{
    d9d_tensor flat = d9d_tensor_reshape(t, D9D_SHAPE(d9d_tensor_numel(t)));
    d9d_tensor one = d9d_tensor_rows(&flat, 0, 1);
    const d9d_status st = d9d_values_scalar_tensor(values, name, &one);

    d9d_tensor_release(&one);
    d9d_tensor_release(&flat);
    return st;
}

static d9d_status after_step(void *self, const d9d_job_event *e)
{
    const double share = (double)(e->step + 1) / (double)e->total_steps;

    (void)self;
    D9D_TRY(d9d_values_scalar(e->values, "watch/share", share));
    return first != NULL ? element_add(e->values, "watch/weight", &first->shard.data) : D9D_OK;
}

static d9d_status picture_add(d9d_values *values)
{
    static const double x[] = {0, 1, 2}, y[] = {0, 1, 4};
    const d9d_chart_series series = {.name = "squares", .x = x, .y = y, .n = 3};
    const d9d_chart chart = {.title = "squares", .x_label = "x", .series = &series, .n_series = 1};
    const d9d_figure figure = {.charts = &chart, .n = 1, .width = 320, .height = 200};
    d9d_buf png = {0};
    d9d_status st = d9d_figure_render(&figure, D9D_IMAGE_PNG, &png);

    if (st == D9D_OK)
        st = d9d_values_picture(values, "watch/squares", png.data, png.len);
    d9d_buf_release(&png);
    return st;
}

static d9d_status finish(void *self, const d9d_job_event *e)
{
    static const double counts[] = {1, 2, 4}, edges[] = {0, 0.5, 1, 2};
    static const char text[] = "what was seen";

    (void)self;
    D9D_TRY(d9d_values_histogram(e->values, "watch/lengths", counts, edges, 3));
    D9D_TRY(d9d_values_text(e->values, "watch/note", text, strlen(text)));
    return d9d_values_are_recorded(e->values) ? picture_add(e->values) : D9D_OK;
}

static const d9d_job_event_handler events[] = {{"train.configuration.model_stages", find_first},
                                               {"train.step.post", after_step},
                                               {"train.finished", finish},
                                               {NULL, NULL}};

D9D_PLUGIN(.events = events);
