/* variety.c - a reward of completions as a plugin: the share of their tokens that are new.
 *
 *     {"plugin": "libvariety.so",
 *      "task": {"name": "grpo", "rewards": [{"name": "variety", "window": 8}], ...}, ...}
 *
 * A token is new if it is none of the `window` tokens before it.
 */
#include <d9d/tasks/plugin.h>

typedef struct variety {
    int64_t window;
} variety;

static const d9d_key keys[] = {
    D9D_KEY_INT(variety, window, "8", 1, 1 << 20, "tokens that are looked back at"),
    D9D_KEY_END,
};
static const d9d_table table =
    D9D_TABLE(variety, "variety", keys, "share of tokens that are new in a window");

static bool is_new(const d9d_reward_sample *x, size_t at, int64_t window)
{
    const size_t first = at > (size_t)window ? at - (size_t)window : 0;

    for (size_t i = first; i < at; i++)
        if (x->tokens[i] == x->tokens[at])
            return false;
    return true;
}

static d9d_status score(void *self, const d9d_reward_sample *x, size_t n, double *rewards)
{
    const variety *v = self;

    for (size_t i = 0; i < n; i++) {
        size_t count = 0;

        for (size_t k = 0; k < x[i].n_tokens; k++)
            count += is_new(&x[i], k, v->window);
        rewards[i] = x[i].n_tokens > 0 ? (double)count / (double)x[i].n_tokens : 0;
    }
    return D9D_OK;
}

static const d9d_reward_kind kind = {
    .size = sizeof(d9d_reward_kind), .table = &table, .score = score};
static const d9d_reward_kind *const rewards[] = {&kind, NULL};
D9D_PLUGIN(.rewards = rewards);
