/* varlen.c - see varlen.h. */
#include "cpu/varlen.h"

d9d_status d9di_varlen_check(const char *op, const d9d_varlen *x)
{
    int64_t end = 0;

    for (int64_t i = 0; i < d9di_varlen_n_documents(x); i++) {
        const d9di_varlen_document d = d9di_varlen_document_at(x, i);
        const int64_t row_end = (end / d9di_i64_max(x->s, 1) + 1) * x->s;

        if (d.first != end || d.n < 0 || (d.n > 0 && d.first + d.n > row_end))
            return D9D_FAIL(D9D_EINVAL,
                            "%s: document %lld has tokens [%lld, %lld), must begin at %lld and end "
                            "within its row of %lld",
                            op, (long long)i, (long long)d.first, (long long)(d.first + d.n),
                            (long long)end, (long long)x->s);
        end += d.n;
    }
    if (end != x->b * x->s)
        return D9D_FAIL(D9D_EINVAL, "%s: documents end at token %lld of %lld", op, (long long)end,
                        (long long)(x->b * x->s));
    return D9D_OK;
}

d9d_status d9di_varlen_check_past(const char *op, const d9d_varlen *x)
{
    if (x->segment == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: a state cache needs segments, and none are given", op);
    return d9di_varlen_check(op, x);
}

int64_t *d9di_varlen_document_starts(const char *op, const d9d_varlen *x)
{
    int64_t *start = calloc((size_t)(x->b * x->s) + 1, sizeof(*start));

    if (start == NULL) {
        (void)D9D_FAIL(D9D_ENOMEM, "%s: no memory for the documents of %lld tokens", op,
                       (long long)(x->b * x->s));
        return NULL;
    }
    for (int64_t i = 0; i < d9di_varlen_n_documents(x); i++) {
        const d9di_varlen_document d = d9di_varlen_document_at(x, i);

        for (int64_t t = d.first; t < d.first + d.n; t++)
            start[t] = d.first;
    }
    return start;
}
