/* optimizer_index.c - see optim/optimizer_index.h. */
#include "optim/optimizer_index.h"

d9d_status d9di_optimizer_index_make(const d9d_params *params, d9di_optimizer_index *out)
{
    d9di_optimizer_index x = {.params = *params};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < params->n && st == D9D_OK; i++)
        st = d9d_map_put(&x.of, (const char *)&params->p[i], sizeof(params->p[i]), &params->p[i]);
    if (st == D9D_OK)
        *out = x;
    else
        d9di_optimizer_index_release(&x);
    return st;
}

void d9di_optimizer_index_release(d9di_optimizer_index *x)
{
    d9d_map_release(&x->of);
    *x = (d9di_optimizer_index){0};
}

bool d9di_optimizer_index_find(const d9di_optimizer_index *x, const d9d_param *p, size_t *out)
{
    d9d_param *const *at = d9d_map_get(&x->of, (const char *)&p, sizeof(p));

    if (at == NULL)
        return false;
    *out = (size_t)(at - x->params.p);
    return true;
}
