/* train_stream.c - see train/train_stream.h. */
#include "train/train_stream.h"

#include <string.h>
#include <time.h>

#include "d9d/base/thread.h"

void d9di_train_stream_open(d9di_train_stream *s, const d9di_train_run *run)
{
    s->dataset = d9d_loader_stream(run->data.loader);
    s->shares = s->dataset != NULL && d9d_bootstrap_size(run->where->bootstrap) > 1 &&
                d9d_dataset_share(s->dataset);
}

/* --- checkpoints --------------------------------------------------------------------------- */

d9d_status d9di_train_stream_rank_state(d9di_train_stream *s, d9d_arena *a,
                                        d9d_checkpointer_set *set)
{
    const d9d_checkpointer_rank_state c = {.name = "stream",
                                           .dtype = D9D_I64,
                                           .n = D9DI_TRAIN_STREAM_WORDS,
                                           .reduce_op = D9D_COMM_MAX, /* all ranks have the same */
                                           .data = s->state};

    return s->dataset != NULL ? d9d_checkpointer_set_add_rank_state(set, &c, 1, a) : D9D_OK;
}

/* The last sample of the step that begins at `first`. */
static int64_t last_sample(const d9di_train_run *run, int64_t first)
{
    return first + run->c->trainer.batching.global_batch_size - 1;
}

d9d_status d9di_train_stream_store(d9di_train_stream *s, const d9di_train_run *run, int64_t sample)
{
    d9d_dataset_presence next;
    d9d_buf place = {0};
    d9d_status st;

    if (s->dataset == NULL)
        return D9D_OK;
    D9D_TRY(d9d_dataset_poll(s->dataset, last_sample(run, sample), &next));
    st = d9d_dataset_tell(s->dataset, sample, &place);
    if (st == D9D_OK || st == D9D_ENOTSUP) {
        memset(s->state, 0, sizeof(s->state));
        s->state[D9DI_TRAIN_STREAM_SAMPLE] = sample;
        s->state[D9DI_TRAIN_STREAM_ENDED] = next == D9D_DATASET_ENDED;
        s->state[D9DI_TRAIN_STREAM_BYTES] = st == D9D_OK ? (int64_t)place.len : -1;
        if (place.len > 0)
            memcpy(&s->state[D9DI_TRAIN_STREAM_PLACE], place.data, place.len);
        st = D9D_OK;
    }
    d9d_buf_release(&place);
    return st;
}

/* As the only rank: of all that saved it, which had the same. */
d9d_status d9di_train_stream_peek(d9di_train_stream *s, const d9di_train_run *run, const char *path,
                                  int64_t sample, bool *ended)
{
    d9d_checkpointer_set set = {0};
    d9d_arena a = {0};
    d9d_status st = d9di_train_stream_rank_state(s, &a, &set);

    *ended = false;
    if (st == D9D_OK && s->dataset != NULL)
        st = d9d_checkpointer_read_rank_state(path, &set, 0, 1, run->log);
    d9d_arena_release(&a);
    *ended = st == D9D_OK && s->dataset != NULL && s->state[D9DI_TRAIN_STREAM_ENDED] != 0 &&
             s->state[D9DI_TRAIN_STREAM_SAMPLE] == sample;
    return st;
}

/* After a change of the number of ranks, only rank 0 has read it. */
static d9d_status state_share(d9di_train_stream *s, const d9di_train_run *run)
{
    const int ranks = d9d_bootstrap_size(run->where->bootstrap);
    d9d_arena a = {0};
    d9d_bootstrap_blob *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_status st;

    st = all == NULL
             ? D9D_FAIL(D9D_ENOMEM, "a stream's place of %d ranks", ranks)
             : d9d_bootstrap_allgather(run->where->bootstrap, s->state, sizeof(s->state), &a, all);
    if (st == D9D_OK)
        memcpy(s->state, all[0].data, sizeof(s->state));
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_train_stream_resume(d9di_train_stream *s, const d9di_train_run *run, int64_t sample)
{
    const char *name = run->data.sections[0].dataset;
    const int64_t *state = s->state;

    if (s->dataset == NULL)
        return D9D_OK;
    D9D_TRY(state_share(s, run));
    if (state[D9DI_TRAIN_STREAM_SAMPLE] != sample ||
        state[D9DI_TRAIN_STREAM_BYTES] > D9D_DATASET_STATE_MAX)
        return D9D_FAIL(
            D9D_EMISMATCH,
            "%s: the checkpoint has the stream's place at sample %lld, and the run goes "
            "on at sample %lld",
            name, (long long)state[D9DI_TRAIN_STREAM_SAMPLE], (long long)sample);
    if (state[D9DI_TRAIN_STREAM_BYTES] < 0)
        return D9D_FAIL(
            D9D_ENOTSUP,
            "%s: the stream cannot be read again from sample %lld on, so that no run of "
            "it resumes; begin another one",
            name, (long long)sample);
    return d9d_dataset_seek(s->dataset, sample, &state[D9DI_TRAIN_STREAM_PLACE],
                            (size_t)state[D9DI_TRAIN_STREAM_BYTES]);
}

/* --- surveys ------------------------------------------------------------------------------- */

/* A message begins with this; the dataset's survey follows. */
typedef struct survey_head {
    double flags; /* of d9di_train_control_flags() */
    int64_t failed;
} survey_head;

static d9d_status survey_make(d9d_dataset *ds, const d9d_bootstrap *b, double flags, bool needed,
                              d9d_buf *out)
{
    survey_head head = {.flags = flags};
    d9d_status st = d9d_buf_append(out, &head, sizeof(head));

    if (st == D9D_OK)
        st = d9d_dataset_survey_make(ds, d9d_bootstrap_rank(b), d9d_bootstrap_size(b), needed, out);
    head.failed = st != D9D_OK;
    if (out->len >= sizeof(head))
        memcpy(out->data, &head, sizeof(head));
    return st;
}

/* Those of all ranks: the sum of their flags, and whether any has failed. */
static survey_head heads_sum(const d9d_bootstrap_blob *all, int ranks)
{
    survey_head sum = {0}, one;

    for (int r = 0; r < ranks; r++) {
        if (all[r].n < sizeof(one)) {
            sum.failed++;
            continue;
        }
        memcpy(&one, all[r].data, sizeof(one));
        sum.flags += one.flags;
        sum.failed += one.failed;
    }
    return sum;
}

static d9d_status surveys_set(d9d_dataset *ds, const d9d_bootstrap_blob *all, int ranks,
                              d9d_arena *a, bool *more)
{
    d9d_dataset_survey *list = d9d_arena_alloc(a, (size_t)ranks * sizeof(*list));

    if (list == NULL)
        return D9D_FAIL(D9D_ENOMEM, "a stream: surveys of %d ranks", ranks);
    for (int r = 0; r < ranks; r++)
        list[r] = (d9d_dataset_survey){(const char *)all[r].data + sizeof(survey_head),
                                       all[r].n - sizeof(survey_head)};
    return d9d_dataset_survey_set(ds, list, ranks, more);
}

/* One exchange.  control: of a run that waits, whose ranks tell each other what asks them to exit;
 * NULL: none of them waits.  Collective over the job. */
static d9d_status surveys_exchange(d9di_train_stream *s, const d9di_train_run *run,
                                   d9di_train_control *control, bool *more)
{
    d9d_bootstrap *b = run->where->bootstrap;
    const int ranks = d9d_bootstrap_size(b);
    d9d_arena a = {0};
    d9d_bootstrap_blob *all = d9d_arena_alloc(&a, (size_t)ranks * sizeof(*all));
    d9d_buf own = {0};
    d9d_err_copy why = {.st = D9D_OK};
    const double flags = control != NULL ? d9di_train_control_flags(control, false) : 0;
    survey_head sum = {.failed = 1};
    d9d_status st = all != NULL ? survey_make(s->dataset, b, flags, control != NULL, &own)
                                : D9D_FAIL(D9D_ENOMEM, "a stream: messages of %d ranks", ranks);

    if (st != D9D_OK)
        d9d_err_save(&why, st);
    if (all != NULL)
        D9D_TRY_OR(st, d9d_bootstrap_allgather(b, own.data, own.len, &a, all), out);
    if (why.st != D9D_OK)
        st = d9d_err_restore(&why);
    if (all != NULL)
        sum = heads_sum(all, ranks);
    if (control != NULL)
        d9di_train_control_receive(control, sum.flags);
    if (all != NULL && sum.failed > 0)
        st = d9d_bootstrap_agree_status(b, st);
    else if (st == D9D_OK && all != NULL)
        st = surveys_set(s->dataset, all, ranks, &a, more);
out:
    d9d_buf_release(&own);
    d9d_arena_release(&a);
    return st;
}

/* Samples that threads read ahead of a step, at most. */
static int64_t samples_ahead(const d9di_train_run *run)
{
    const d9d_job_trainer_section *t = &run->c->trainer;
    const int64_t g = t->batching.global_batch_size,
                  micros = t->data_loading.num_workers * t->data_loading.prefetch_factor;

    return g * (2 + micros / run->n_micro);
}

/* Finds the samples that will be read while the step computes, as far as they are there. */
static d9d_status look_ahead(d9di_train_stream *s, const d9di_train_run *run, int64_t last)
{
    d9d_dataset_presence there;
    bool more = true;

    D9D_TRY(d9d_dataset_poll(s->dataset, last, &there));
    while (there == D9D_DATASET_PENDING && more) {
        D9D_TRY(surveys_exchange(s, run, NULL, &more));
        D9D_TRY(d9d_dataset_poll(s->dataset, last, &there));
    }
    return D9D_OK;
}

/* --- waiting ------------------------------------------------------------------------------- */

enum { POLL_NS = 50 * 1000 * 1000, FIRST_WORD_S = 5, WORD_S = 60 };

/* Says that the run waits: after five seconds, then every minute. */
static void say_stall(const d9di_train_run *run, int64_t first, int64_t last, int64_t since_ns,
                      int64_t *next_s)
{
    const int64_t s = (d9d_clock_ns() - since_ns) / 1000000000;

    if (s < *next_s)
        return;
    d9d_log_warn(run->log, "%s: waits since %lld s for samples %lld to %lld of the stream",
                 run->data.sections[0].dataset, (long long)s, (long long)first, (long long)last);
    *next_s = s + WORD_S;
}

d9d_status d9di_train_stream_await(d9di_train_stream *s, const d9di_train_run *run,
                                   d9di_train_control *control, int64_t first,
                                   d9di_train_stream_next *out)
{
    const int64_t last = last_sample(run, first), since = d9d_clock_ns();
    const bool alone = d9d_bootstrap_size(run->where->bootstrap) == 1;
    const struct timespec pause = {0, POLL_NS};
    d9d_dataset_presence there = D9D_DATASET_PENDING;
    int64_t next_s = FIRST_WORD_S;

    *out = D9DI_TRAIN_STREAM_STEP;
    if (s->dataset == NULL)
        return D9D_OK;
    d9d_dataset_forget(s->dataset, first);
    for (;;) {
        D9D_TRY(d9d_dataset_poll(s->dataset, last, &there));
        if (there == D9D_DATASET_PENDING && s->shares) {
            bool more = false;

            D9D_TRY(surveys_exchange(s, run, control, &more));
            if (more)
                continue;
            D9D_TRY(d9d_dataset_poll(s->dataset, last, &there));
        }
        if (there != D9D_DATASET_PENDING)
            break;
        if ((alone || s->shares) && (d9di_train_control_should_exit(control, alone) ||
                                     d9di_train_control_should_sleep(control, alone))) {
            *out = D9DI_TRAIN_STREAM_EXIT;
            return D9D_OK;
        }
        say_stall(run, first, last, since, &next_s);
        (void)nanosleep(&pause, NULL);
    }
    if (there == D9D_DATASET_ENDED)
        *out = D9DI_TRAIN_STREAM_END;
    return s->shares && there == D9D_DATASET_PRESENT ? look_ahead(s, run, last + samples_ahead(run))
                                                     : D9D_OK;
}
