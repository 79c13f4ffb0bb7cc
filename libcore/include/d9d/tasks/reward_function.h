/* reward_function.h - what a completion is worth: functions, programs and plugins.
 *
 *     "rewards": [{"name": "answer", "match": "number"}, {"name": "length", "target": 40}],
 *     "reward_weights": [1, 0.1]
 *     "rewards": [{"name": "command", "command": ["./score.py"], "timeout": 60}]
 *
 *     answer    1 where the completion has the sample's answer, else 0
 *     pattern   1 where a regular expression is found in the completion, else 0
 *     length    -|tokens - target| / target
 *     command   what a program says: it reads a line for each completion, and writes a number for
 *               each, in their order
 *
 *                   {"sample": 3, "prompt": "2+5=", "completion": "7", "answer": "7",
 *                    "tokens": 2, "terminated": true}
 *
 * The answer is the text of the sample's targets; the prompt is what stands before the first of
 * them.  Special tokens are in none of the three texts.  A completion is terminated if it ended at
 * a stop token.
 *
 * Plugins add further ones (d9d_plugin.rewards).
 */
#ifndef D9D_TASKS_REWARD_FUNCTION_H
#define D9D_TASKS_REWARD_FUNCTION_H

#include "d9d/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_reward_sample {
    const char *prompt, *completion, *answer; /* UTF-8, ended by a zero byte that does not count */
    const uint32_t *tokens;                   /* [n_tokens] of the completion */
    size_t n_tokens;
    int64_t sample;  /* number in its split */
    int32_t dataset; /* its number in a blend */
    bool terminated;
} d9d_reward_sample;

typedef struct d9d_reward_kind {
    size_t size;            /* sizeof(d9d_reward_kind) */
    const d9d_table *table; /* of its section */
    /* *self becomes the function's state; before anything is allocated.  NULL: `self` is the
     * section. */
    d9d_status (*open)(const void *config, void **self);
    void (*close)(void *self); /* NULL: nothing to free */
    /* The rewards of n completions; those of one prompt follow each other.  Called on each
     * data-parallel rank with its own completions, none included, so that a reward must depend on
     * nothing but its completion. */
    d9d_status (*score)(void *self, const d9d_reward_sample *x, size_t n, double *rewards);
} d9d_reward_kind;

D9D_API extern const char *const d9d_reward_tag[];
D9D_API extern const d9d_table *const d9d_reward_choices[]; /* NULL-terminated */

#ifdef __cplusplus
}
#endif
#endif /* D9D_TASKS_REWARD_FUNCTION_H */
