/* pipeline_chart.c - see d9d/plot/pipeline_chart.h. */
#include "d9d/plot/pipeline_chart.h"

#include <stdio.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "plot/axis.h"
#include "plot/canvas.h"

static const d9di_canvas_colour ink = {31, 41, 55}, grey = {107, 114, 128}, faint = {229, 231, 235},
                                white = {255, 255, 255};

enum { WIDTH = 1200, LEFT = 76, RIGHT = 24, TOP = 66, LANE = 26, GAP = 6, BOTTOM = 40 };

static const double LABEL = 11, TITLE = 15, NUMBER = 10;

/* Name and colour of each action. */
static const struct action_style {
    d9d_pipe_action_kind verb;
    const char *name;
    d9di_canvas_colour colour;
} action_styles[] = {
    {D9D_PIPE_FORWARD, "forward", {37, 99, 175}},
    {D9D_PIPE_BACKWARD, "backward", {217, 95, 14}},
    {D9D_PIPE_DGRAD, "of inputs", {217, 150, 40}},
    {D9D_PIPE_WGRAD, "of weights", {34, 139, 98}},
};
enum { N_ACTION_STYLES = sizeof(action_styles) / sizeof(action_styles[0]) };

typedef struct chart_state {
    const d9d_program *p;
    const d9d_timeline *t;
    d9di_canvas *c;
    double per_second;
} chart_state;

static const struct action_style *action_style_of(d9d_pipe_action_kind v)
{
    for (int i = 0; i < N_ACTION_STYLES; i++)
        if (action_styles[i].verb == v)
            return &action_styles[i];
    return NULL;
}

/* The colour of the rank's k-th stage: every other one is lighter. */
static d9di_canvas_colour stage_colour(d9di_canvas_colour c, int k)
{
    return k % 2 == 0 ? c
                      : (d9di_canvas_colour){(unsigned char)(255 - (255 - c.r) / 2),
                                             (unsigned char)(255 - (255 - c.g) / 2),
                                             (unsigned char)(255 - (255 - c.b) / 2)};
}

static double lane_top(int rank)
{
    return TOP + (double)rank * (LANE + GAP);
}

/* Boxes of a fused action share the lane's height: box i of n has its part. */
static void draw_box(const chart_state *d, int rank, size_t at, int i, int n)
{
    const d9d_pipe_action *a = &d->p->lanes[rank].data[at];
    const d9d_timeline_span *s = &d->t->spans[rank][at];
    const struct action_style *k = action_style_of(a->kind);
    const double x = LEFT + s->begin * d->per_second, w = (s->end - s->begin) * d->per_second;
    const double h = (double)LANE / n, y = lane_top(rank) + i * h;
    const int of_rank = a->stage / d->p->ranks;
    char number[16];
    int digits;

    d9di_canvas_rect(d->c, x, y, w > 1.5 ? w - 0.5 : w, h, stage_colour(k->colour, of_rank));
    digits = snprintf(number, sizeof(number), "%d", a->micro);
    if (w < 7.0 * digits + 3 || h < NUMBER)
        return;
    d9di_canvas_text(d->c, x + w / 2, y + h / 2 + NUMBER * 0.36, number,
                     (d9di_canvas_font){.colour = of_rank % 2 == 0 ? white : ink,
                                        .size = NUMBER,
                                        .anchor = D9DI_CANVAS_ANCHOR_MIDDLE});
}

static size_t lane_group_end(const d9d_pipe_lane *lane, size_t at)
{
    while (at + 1 < lane->len && lane->data[at].joined)
        at++;
    return at + 1;
}

static void draw_lane(const chart_state *d, int rank)
{
    const d9d_pipe_lane *lane = &d->p->lanes[rank];
    const double y = lane_top(rank);
    char name[32];

    (void)snprintf(name, sizeof(name), "rank %d", rank);
    d9di_canvas_text(
        d->c, LEFT - 8, y + LANE * 0.65, name,
        (d9di_canvas_font){.colour = ink, .size = LABEL, .anchor = D9DI_CANVAS_ANCHOR_END});
    for (size_t at = 0, end; at < lane->len; at = end) {
        end = lane_group_end(lane, at);
        for (size_t i = at; i < end; i++)
            if (action_style_of(lane->data[i].kind) != NULL)
                draw_box(d, rank, i, (int)(i - at), (int)(end - at));
    }
}

static void draw_axis(const chart_state *d)
{
    const double bottom = lane_top(d->p->ranks), ends[] = {0, d->t->total};
    const d9d_chart_series span = {"", ends, ends, 2};
    const d9d_chart chart = {.title = "", .series = &span, .n_series = 1};
    d9di_axis axis;

    d9di_axis_x(&chart, 8, &axis);
    for (int i = 0; i < axis.n; i++) {
        const double x = LEFT + axis.tick[i] * d->per_second;
        const double line[] = {x, TOP - 4, x, bottom};

        if (axis.tick[i] > d->t->total * 1.0001)
            continue;
        d9di_canvas_line(d->c, line, 2, (d9di_canvas_pen){faint, 1, 0});
        d9di_canvas_text(
            d->c, x, bottom + 16, axis.label[i],
            (d9di_canvas_font){.colour = grey, .size = LABEL, .anchor = D9DI_CANVAS_ANCHOR_MIDDLE});
    }
    d9di_canvas_text(
        d->c, WIDTH - RIGHT, bottom + 32, "seconds",
        (d9di_canvas_font){.colour = grey, .size = LABEL, .anchor = D9DI_CANVAS_ANCHOR_END});
}

static bool program_has_kind(const d9d_program *p, d9d_pipe_action_kind v)
{
    for (int r = 0; r < p->ranks; r++)
        for (size_t i = 0; i < p->lanes[r].len; i++)
            if (p->lanes[r].data[i].kind == v)
                return true;
    return false;
}

static void draw_header(const chart_state *d, const char *title)
{
    char text[256];
    double x = LEFT;

    (void)d9d_num_format(text, sizeof(text),
                         "%.120s: %d ranks, %d stages, %d micro-batches, bubble %.1f %%", title,
                         d->p->ranks, d->p->stages, d->p->micros, 100 * d->t->bubble);
    d9di_canvas_text(d->c, LEFT, 26, text,
                     (d9di_canvas_font){.colour = ink, .size = TITLE, .bold = true});
    for (int i = 0; i < N_ACTION_STYLES; i++) {
        if (!program_has_kind(d->p, action_styles[i].verb))
            continue;
        d9di_canvas_rect(d->c, x, 38, 14, 12, action_styles[i].colour);
        d9di_canvas_text(d->c, x + 20, 48, action_styles[i].name,
                         (d9di_canvas_font){.colour = ink, .size = LABEL});
        x += 110;
    }
}

d9d_status d9d_pipeline_chart_render(const d9d_program *p, const d9d_timeline *t, const char *title,
                                     d9d_image_kind action_style, d9d_buf *out)
{
    const double height = lane_top(p->ranks) + BOTTOM;
    chart_state d = {.p = p, .t = t};

    d.per_second = t->total > 0 ? (WIDTH - LEFT - RIGHT) / t->total : 0;
    D9D_TRY(d9di_canvas_create(action_style, WIDTH, height, &d.c));
    d9di_canvas_rect(d.c, 0, 0, WIDTH, height, white);
    draw_header(&d, title);
    draw_axis(&d);
    for (int r = 0; r < p->ranks; r++)
        draw_lane(&d, r);
    return d9di_canvas_finish(d.c, out);
}

d9d_status d9d_pipeline_chart_write(const d9d_program *p, const d9d_timeline *t, const char *title,
                                    const char *path)
{
    d9d_image_kind action_style;
    d9d_buf image = {0};
    d9d_status st;

    D9D_TRY(d9d_image_kind_of(path, &action_style));
    st = d9d_pipeline_chart_render(p, t, title, action_style, &image);
    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, image.data, image.len);
    d9d_buf_release(&image);
    return st;
}
