/* answers.c - the answers of a batch, by document.  See tasks/tasks.h. */
#include "d9d/base/num_format.h"
#include "d9d/data/loader/pooling.h"
#include "d9d/op/op.h"
#include "tasks/tasks.h"

int64_t d9di_answers_count(const d9d_batch *b, d9d_task_answers kind, int64_t seq)
{
    const int64_t width = d9di_answers_width(kind);
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    int64_t n = 0, found = 0;

    for (int64_t i = 0; d9d_batch_next_document(b, &d); i++) {
        if (i % width == 0)
            found = 0;
        found += i % width < 2 && d9d_batch_count_targets(b, &d) > 0;
        if (i % width == 1 && (seq < 0 || d.seq == seq))
            n += found == 2 || (found == 1 && kind == D9D_TASK_ANSWERS_SINGLE);
    }
    return n;
}

d9d_status d9di_answers_check(const d9d_batch *b, int64_t width)
{
    d9d_batch_document d = D9D_BATCH_DOCUMENT_NONE;
    int64_t seq = -1, n = 0;

    for (bool more = true; more;) {
        more = d9d_batch_next_document(b, &d);
        if ((!more || d.seq != seq) && n % width != 0)
            return D9D_FAIL(
                D9D_EMISMATCH,
                "sample %lld has %lld document%s, and each record has %lld: its dataset "
                "is not of d9d-shard --format preference",
                (long long)(b->refs != NULL ? b->refs[seq].sample : seq), (long long)n,
                D9D_PLURAL(n), (long long)width);
        n = d.seq == seq ? n + 1 : 1;
        seq = d.seq;
    }
    return D9D_OK;
}

d9d_status d9di_answers_columns(d9d_tape *t, d9d_var *const column[D9DI_ANSWERS_COLUMNS],
                                d9d_var **y)
{
    d9d_op_concat_input x[D9DI_ANSWERS_COLUMNS];

    for (int i = 0; i < D9DI_ANSWERS_COLUMNS; i++)
        x[i] = (d9d_op_concat_input){column[i], 0, 1};
    return d9d_op_concat(
        t, x, D9DI_ANSWERS_COLUMNS,
        D9D_SHAPE(d9d_tensor_numel(d9d_var_tensor(column[0])), D9DI_ANSWERS_COLUMNS), y);
}
