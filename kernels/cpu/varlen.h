/* varlen.h - documents packed in rows of tokens (varlen), for kernels that restart at each
 * document. */
#ifndef D9DI_CPU_VARLEN_H
#define D9DI_CPU_VARLEN_H

#include "cpu/common.h"

/* Tokens [first, first + n), counted over B and S. */
typedef struct d9di_varlen_document {
    int64_t first, n;
} d9di_varlen_document;

static inline int64_t d9di_varlen_n_documents(const d9d_varlen *x)
{
    return x->segment != NULL ? x->segments : x->b;
}
static inline d9di_varlen_document d9di_varlen_document_at(const d9d_varlen *x, int64_t i)
{
    if (x->segment == NULL)
        return (d9di_varlen_document){i * x->s, x->s};
    return (d9di_varlen_document){x->segment[i].q, x->segment[i].nq};
}

/* EINVAL unless the documents follow each other, each lies in one row, and they cover all tokens.
 */
d9d_status d9di_varlen_check(const char *op, const d9d_varlen *x);

/* EINVAL without a list, which says how many tokens came before; and for a list as above. */
d9d_status d9di_varlen_check_past(const char *op, const d9d_varlen *x);
/* Tokens of document i that earlier calls processed. */
static inline int64_t d9di_varlen_past_tokens(const d9d_varlen *x, int64_t i)
{
    return x->segment[i].nk - x->segment[i].nq;
}

/* The first token of each token's document, [B S]. The caller frees it; NULL if memory is out. */
int64_t *d9di_varlen_document_starts(const char *op, const d9d_varlen *x);

#endif /* D9DI_CPU_VARLEN_H */
