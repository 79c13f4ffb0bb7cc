/* html_experts.c - the loads of experts in the newest record that has them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "report/html/html_page.h"

enum { MAX_LAYERS = 256, MAX_EXPERTS = 1024, LEVELS = 9 };
enum { MAX_SQUARES = 16384 }; /* that a page draws, at most 16 bytes each */

/* Values of one record: of each layer, and of each expert of it.  NaN where nothing was logged. */
typedef struct expert_loads {
    int layers, experts;
    double *imbalance, *entropy; /* [layers] */
    double *mean;                /* [layers]: of the loads */
    double *load;                /* [layers][experts] */
} expert_loads;

/* "expert_load/3/17": the numbers behind a prefix; *expert -1 without the second.  False for
 * another key. */
static bool parse_key(const char *key, const char *prefix, int *layer, int *expert)
{
    const size_t n = strlen(prefix);
    char *end;
    long l, e = -1;

    if (strncmp(key, prefix, n) != 0 || key[n] < '0' || key[n] > '9')
        return false;
    l = strtol(key + n, &end, 10);
    if (*end == '/' && end[1] >= '0' && end[1] <= '9')
        e = strtol(end + 1, &end, 10);
    if (*end != '\0' || l >= MAX_LAYERS || e >= MAX_EXPERTS)
        return false;
    *layer = (int)l;
    *expert = (int)e;
    return true;
}

static double number_or_nan(const json_t *v)
{
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static void count_layers(json_t *record, expert_loads *out)
{
    const char *key;
    json_t *v;

    json_object_foreach(record, key, v)
    {
        int layer, expert = -1;

        if (!parse_key(key, "expert_imbalance/", &layer, &expert) &&
            !parse_key(key, "expert_entropy/", &layer, &expert) &&
            !parse_key(key, "expert_load/", &layer, &expert))
            continue;
        out->layers = layer >= out->layers ? layer + 1 : out->layers;
        out->experts = expert >= out->experts ? expert + 1 : out->experts;
    }
}

static double *alloc_nan(d9d_arena *a, size_t n)
{
    double *v = d9d_arena_alloc(a, (n + 1) * sizeof(*v));

    for (size_t i = 0; v != NULL && i < n; i++)
        v[i] = (double)NAN;
    return v;
}

/* The mean load of a layer's experts; NaN for a layer without. */
static double mean_load(const expert_loads *l, int layer)
{
    double sum = 0;
    int n = 0;

    for (int e = 0; e < l->experts; e++)
        if (!isnan(l->load[layer * l->experts + e])) {
            sum += l->load[layer * l->experts + e];
            n++;
        }
    return n > 0 ? sum / n : (double)NAN;
}

static bool read_loads(json_t *record, d9d_arena *a, expert_loads *out)
{
    const char *key;
    json_t *v;

    count_layers(record, out);
    out->imbalance = alloc_nan(a, (size_t)out->layers);
    out->entropy = alloc_nan(a, (size_t)out->layers);
    out->mean = alloc_nan(a, (size_t)out->layers);
    out->load = alloc_nan(a, (size_t)out->layers * (size_t)out->experts);
    if (out->imbalance == NULL || out->entropy == NULL || out->mean == NULL || out->load == NULL)
        return false;
    json_object_foreach(record, key, v)
    {
        int layer, expert;

        if (parse_key(key, "expert_imbalance/", &layer, &expert))
            out->imbalance[layer] = number_or_nan(v);
        else if (parse_key(key, "expert_entropy/", &layer, &expert))
            out->entropy[layer] = number_or_nan(v);
        else if (parse_key(key, "expert_load/", &layer, &expert) && expert >= 0)
            out->load[layer * out->experts + expert] = number_or_nan(v);
    }
    for (int i = 0; i < out->layers; i++)
        out->mean[i] = mean_load(out, i);
    return true;
}

/* 0 for a quarter of the mean or less, 4 for the mean, 8 for four times the mean or more. */
static int level_of(double load, double mean)
{
    const double level = load > 0 && mean > 0 ? 4 + 2 * log2(load / mean) : 0;

    return (int)fmin(LEVELS - 1, fmax(0, floor(level + 0.5)));
}

/* The squares of one level, 1 x 1 for each expert of a row for each layer; equal ones side by side
 * are one rectangle. */
static void put_level(d9di_html_writer *w, const expert_loads *l, int level)
{
    d9di_html_put(w, "<path class=\"l%d\" d=\"", level);
    for (int i = 0; i < l->layers; i++)
        for (int e = 0, n; e<l->experts; e += n> 0 ? n : 1) {
            const double *of = l->load + i * l->experts;

            for (n = 0; e + n < l->experts && !isnan(of[e + n]) &&
                        level_of(of[e + n], l->mean[i]) == level;)
                n++;
            if (n > 0)
                d9di_html_put(w, "M%d %dh%dv1h-%dz", e, i, n, n);
        }
    d9di_html_put(w, "\"/>\n");
}

static void put_map(d9di_html_writer *w, const expert_loads *l)
{
    d9di_html_put(w,
                  "<figure class=\"map\"><figcaption>Load of each expert (across) in each layer "
                  "(down), over its layer's mean</figcaption>\n<svg viewBox=\"0 0 %d %d\" "
                  "preserveAspectRatio=\"none\" style=\"height:%dpx\" role=\"img\" "
                  "aria-label=\"Loads of %d experts in %d layer%s; the table has the "
                  "extremes\">\n",
                  l->experts, l->layers, l->layers * (l->layers > 40 ? 6 : 14), l->experts,
                  l->layers, D9D_PLURAL(l->layers));
    for (int level = 0; level < LEVELS; level++)
        put_level(w, l, level);
    d9di_html_put(w, "</svg>\n<p class=\"scale\">\xc2\xbc or less ");
    for (int level = 0; level < LEVELS; level++)
        d9di_html_put(w, "<span class=\"key l%d\"></span>", level);
    d9di_html_put(w, " 4 times or more</p></figure>\n");
}

static void put_layer(d9di_html_writer *w, const expert_loads *l, int layer)
{
    const double mean = l->mean[layer];
    int most = -1, least = -1;
    char text[32];

    for (int e = 0; e < l->experts; e++) {
        const double *of = l->load + layer * l->experts;

        if (isnan(of[e]))
            continue;
        most = most < 0 || of[e] > of[most] ? e : most;
        least = least < 0 || of[e] < of[least] ? e : least;
    }
    if (isnan(l->imbalance[layer]) && isnan(l->entropy[layer]) && most < 0)
        return;
    (void)snprintf(text, sizeof(text), "%d", layer);
    d9di_html_row_begin(w, text);
    d9di_html_value(w, l->imbalance[layer], D9DI_HTML_NUMBER);
    d9di_html_value(w, l->entropy[layer], D9DI_HTML_NUMBER);
    d9di_html_value(w, most, D9DI_HTML_STEP);
    d9di_html_value(w, most < 0 ? (double)NAN : l->load[layer * l->experts + most] / mean,
                    D9DI_HTML_NUMBER);
    d9di_html_value(w, least, D9DI_HTML_STEP);
    d9di_html_value(w, least < 0 ? (double)NAN : l->load[layer * l->experts + least] / mean,
                    D9DI_HTML_NUMBER);
    d9di_html_row_end(w);
}

static void put_loads(d9di_html_page *p, size_t k, const expert_loads *l, bool with_map)
{
    static const char *const heads[] = {"layer",     "imbalance",    "entropy",   "most loaded",
                                        "over mean", "least loaded", "over mean", NULL};
    d9di_html_writer *w = &p->w;
    json_t *record = p->runs[k].reader->details;

    d9di_html_run_heading(p, k);
    d9di_html_put(w, "<p>Layers at step %lld:</p>\n",
                  (long long)json_integer_value(json_object_get(record, "step")));
    if (with_map)
        put_map(w, l);
    d9di_html_table_begin(w, "Experts of each layer");
    d9di_html_table_heads(w, heads);
    for (int i = 0; i < l->layers; i++)
        put_layer(w, l, i);
    d9di_html_table_end(w);
}

void d9di_html_write_experts(d9di_html_page *p)
{
    int squares = MAX_SQUARES;

    for (size_t k = 0; k < p->n; k++) {
        json_t *record = p->runs[k].reader->details;
        expert_loads l = {.layers = 0};
        bool with_map;

        if (record == NULL || p->w.st != D9D_OK)
            continue;
        if (!read_loads(record, &p->arena, &l)) {
            p->w.st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for the loads of its experts",
                               p->runs[k].reader->path);
            return;
        }
        with_map = l.experts > 0 && l.layers * l.experts <= squares;
        squares -= with_map ? l.layers * l.experts : 0;
        if (l.layers > 0)
            put_loads(p, k, &l, with_map);
    }
}
