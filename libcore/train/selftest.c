/* selftest.c - runs two trainings and compares their records.  See d9d/train/selftest.h. */
#include "d9d/train/selftest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/base/num_format.h"
#include "d9d/comm/exchange.h"
#include "d9d/report/run_reader.h"
#include "d9d/train/train.h"
#include "job/run_dir.h"

/* --- two trainings ---------------------------------------------------------------------------- */

/* The same training without other outputs, with its records in the scratch directory. */
static d9d_train_config make_short_config(const d9d_train_config *c, const char *dir)
{
    d9d_train_config copy = *c;
    d9d_job_trainer_section *t = &copy.trainer;

    t->run.dir = dir;
    t->logging.period_steps = 1;
    t->gradient_clipping.log_total_steps = 1;
    t->checkpointing.save_dir = NULL;
    t->profiling = NULL;
    t->fp8 = NULL; /* a mesh is compared in the model's own type */
    copy.export_to = NULL;
    return copy;
}

static d9d_status train_on_mesh(const d9d_train_config *c, const json_t *resolved,
                                const d9d_job *where, const char *dir)
{
    const d9d_train_config together = make_short_config(c, dir);
    d9d_job trial = *where;
    d9d_train_summary summary;

    trial.trial = D9D_SELFTEST_STEPS;
    return d9d_train(&together, resolved, &trial, &summary);
}

static d9d_status train_on_one_rank(const d9d_train_config *c, const json_t *resolved,
                                    const d9d_job *where, const char *dir)
{
    d9d_train_config alone = make_short_config(c, dir);
    d9d_job trial = *where;
    d9d_train_summary summary;
    d9d_status st;

    alone.mesh = (d9d_parallel_degrees){1, 1, 1, 1, 1, 1, 1, 1, D9D_CP_ALL_GATHER};
    alone.trainer.expert_replication = NULL;     /* one rank has all experts */
    alone.trainer.optimizer_in_backward = false; /* and several micro-batches */
    trial.trial = D9D_SELFTEST_STEPS;
    D9D_TRY(d9d_bootstrap_single(&trial.bootstrap));
    st = d9d_train(&alone, resolved, &trial, &summary);
    d9d_bootstrap_close(trial.bootstrap);
    return st;
}

/* --- comparison of the records ---------------------------------------------------------------- */

static double relative_difference(const double v[2])
{
    const double d = fabs(v[0] - v[1]);

    return d == 0 ? 0 : d / fabs(v[1]);
}

/* NaN counts as larger than any number. */
static double max_or_nan(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* A step without a target has no values, which is 0 here. */
static double value_or_zero(const d9d_run_reader_column *c, size_t i)
{
    return d9d_run_reader_is_logged(c, i) ? c->values[i] : 0;
}

static d9d_status read_column(const char *dir, int which, d9d_selftest_summary *s)
{
    const d9d_run_reader_column *loss, *norm;
    d9d_run_reader *run;
    d9d_status st = D9D_OK;

    D9D_TRY(d9d_run_reader_open(dir, NULL, &run));
    loss = d9d_run_reader_find_column(run, "loss");
    norm = d9d_run_reader_find_column(run, "grad_norm");
    if (loss == NULL || norm == NULL || (which == 1 && (int64_t)run->n != s->n))
        st = D9D_FAIL(D9D_EVERIFY, "%s: %zu steps were recorded", dir, run->n);
    for (size_t i = 0; st == D9D_OK && i < run->n && i < D9D_SELFTEST_STEPS; i++) {
        s->step[i].step = run->step[i];
        s->step[i].loss[which] = value_or_zero(loss, i);
        s->step[i].norm[which] = value_or_zero(norm, i);
        s->n = (int64_t)i + 1;
    }
    d9d_run_reader_close(run);
    return st;
}

d9d_status d9d_selftest_compare(const char *together, const char *alone, d9d_selftest_summary *s)
{
    D9D_TRY(read_column(together, 0, s));
    D9D_TRY(read_column(alone, 1, s));
    s->worst = 0;
    for (int64_t i = 0; i < s->n && !isnan(s->worst); i++)
        s->worst = max_or_nan(max_or_nan(s->worst, relative_difference(s->step[i].loss)),
                              relative_difference(s->step[i].norm));
    if (!(s->worst <= s->allowed))
        return D9D_FAIL(D9D_EVERIFY,
                        "the mesh %s does not compute what one rank computes: %.1e apart, %.0e "
                        "allowed",
                        s->mesh, s->worst, s->allowed);
    return D9D_OK;
}

static void describe_mesh(const d9d_train_config *c, const d9d_job *where, d9d_selftest_summary *s)
{
    const d9d_model_section *model = c->model_provider.value;

    s->ranks = d9d_bootstrap_size(where->bootstrap);
    s->allowed = model->dtype == D9D_F32 ? 1e-5 : 1e-2;
    (void)d9d_parallel_degrees_text(&c->mesh, s->mesh, sizeof(s->mesh));
}

/* Rank 0's part after the common training: trains alone and compares. */
static d9d_status compare_on_root(const d9d_train_config *c, const json_t *resolved,
                                  const d9d_job *where, const char *together, const char *alone,
                                  d9d_selftest_summary *s)
{
    if (d9d_bootstrap_rank(where->bootstrap) != 0)
        return D9D_OK;
    D9D_TRY(train_on_one_rank(c, resolved, where, alone));
    return d9d_selftest_compare(together, alone, s);
}

/* The other ranks wait for rank 0 without a timeout, since it computes the reference alone. */
static d9d_status broadcast_result(const d9d_job *where, d9d_status local)
{
    const double timeout_s = d9d_bootstrap_set_timeout(where->bootstrap, 0);
    const d9d_status st = d9d_bootstrap_agree_status(where->bootstrap, local);

    (void)d9d_bootstrap_set_timeout(where->bootstrap, timeout_s);
    return st;
}

static d9d_status run_in_dir(const d9d_train_config *c, const json_t *resolved,
                             const d9d_job *where, const char *dir, d9d_arena *a,
                             d9d_selftest_summary *s)
{
    const char *together = d9d_fs_join(a, dir, "mesh"), *alone = d9d_fs_join(a, dir, "alone");

    if (together == NULL || alone == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: names in it", dir);
    describe_mesh(c, where, s);
    D9D_TRY(train_on_mesh(c, resolved, where, together));
    return broadcast_result(where, compare_on_root(c, resolved, where, together, alone, s));
}

/* --- the scratch directory -------------------------------------------------------------------- */

/* A directory beside the run's; the next self-test removes it if this one is killed. */
typedef struct scratch_dir {
    d9d_outdir out;   /* of rank 0; never renamed */
    const char *path; /* the path it would be renamed to */
    size_t made;      /* length of the first parent path that did not exist; 0: all existed */
} scratch_dir;

static size_t find_missing(const char *path)
{
    for (const char *p = strchr(path + 1, '/'); p != NULL; p = strchr(p + 1, '/')) {
        char *above = strndup(path, (size_t)(p - path));
        const bool there = above == NULL || d9d_fs_exists(above);

        free(above);
        if (!there)
            return (size_t)(p - path);
    }
    return 0;
}

static d9d_status scratch_dir_create(const d9d_train_config *c, d9d_arena *a, scratch_dir *b)
{
    d9di_run_dir run;

    D9D_TRY(d9di_run_dir_set_paths(&c->trainer, a, &run));
    b->path = d9d_arena_printf(a, "%s.selftest", run.path);
    if (b->path == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: the name of a directory", run.path);
    b->made = find_missing(b->path);
    return d9d_outdir_begin(&b->out, b->path, D9D_OUTDIR_REPLACE, NULL);
}

/* Also removes the parent directories created for it, if they are empty. */
static void scratch_dir_remove(scratch_dir *b, const d9d_log *log)
{
    char *above = b->made > 0 ? strdup(b->path) : NULL, *end;

    if (b->out.tmp != NULL && d9d_fs_remove_tree(b->out.tmp) != D9D_OK)
        d9d_log_warn(log, "%s: could not be removed", b->out.tmp);
    d9d_outdir_release(&b->out);
    while (above != NULL && (end = strrchr(above, '/')) != NULL &&
           (size_t)(end - above) >= b->made) {
        *end = '\0';
        if (rmdir(above) != 0)
            break;
    }
    free(above);
}

d9d_status d9d_selftest(const d9d_train_config *config, const json_t *resolved,
                        const d9d_job *where, d9d_selftest_summary *out)
{
    scratch_dir b = {.made = 0};
    d9d_arena a = {0};
    const char *dir;
    d9d_status st = D9D_OK;

    if (d9d_bootstrap_size(where->bootstrap) == 1)
        return D9D_FAIL(D9D_ECONFIG,
                        "a self-test compares ranks with one: launch it as the job, by "
                        "srun --mpi=pmix or mpirun");
    if (d9d_bootstrap_rank(where->bootstrap) == 0)
        st = scratch_dir_create(config, &a, &b);
    D9D_TRY_OR(st, d9d_bootstrap_agree_status(where->bootstrap, st), out);
    dir = b.out.tmp;
    D9D_TRY_OR(st, d9d_bootstrap_broadcast_text(where->bootstrap, &a, &dir), out);
    *out = (d9d_selftest_summary){0};
    st = run_in_dir(config, resolved, where, dir, &a, out);
out:
    scratch_dir_remove(&b, where->log);
    d9d_arena_release(&a);
    return st;
}

/* --- text output ------------------------------------------------------------------------------ */

static d9d_status print_pair(const double v[2], d9d_buf *out)
{
    return d9d_buf_printf(out, "  %-9.8g  %-9.8g  %10.1e", v[0], v[1], relative_difference(v));
}

d9d_status d9d_selftest_print(const d9d_selftest_summary *s, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "step  %-9s  %-9s  %10s  %-9s  %-9s  %10s\n", "loss", "alone",
                           "difference", "norm", "alone", "difference"));
    for (int64_t i = 0; i < s->n; i++) {
        D9D_TRY(d9d_buf_printf(out, "%4lld", (long long)s->step[i].step));
        D9D_TRY(print_pair(s->step[i].loss, out));
        D9D_TRY(print_pair(s->step[i].norm, out));
        D9D_TRY(d9d_buf_append(out, "\n", 1));
    }
    return d9d_buf_printf(out, "%lld rank%s (%s) %s: %.1e apart at most, %.0e allowed\n",
                          (long long)s->ranks, D9D_PLURAL(s->ranks), s->mesh,
                          s->worst <= s->allowed ? "compute what one computes"
                                                 : "do not compute what one computes",
                          s->worst, s->allowed);
}

json_t *d9d_selftest_json(const d9d_selftest_summary *s)
{
    json_t *steps = json_array();

    for (int64_t i = 0; i < s->n; i++) {
        const d9d_selftest_step *t = &s->step[i];

        d9d_json_add(&steps,
                     json_pack("{s:I, s:[f, f], s:[f, f]}", "step", (json_int_t)t->step, "loss",
                               t->loss[0], t->loss[1], "grad_norm", t->norm[0], t->norm[1]));
    }
    return json_pack("{s:I, s:s, s:b, s:f, s:f, s:o}", "ranks", (json_int_t)s->ranks, "mesh",
                     s->mesh, "same", s->worst <= s->allowed, "worst", s->worst, "allowed",
                     s->allowed, "steps", steps);
}
