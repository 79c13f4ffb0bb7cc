/* coroutine.c - coroutines by ucontext.  See d9d/base/coroutine.h. */
#include "d9d/base/coroutine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

/* Only touched pages of a stack take memory; a guard page is below it. */
enum { STACK = 8 << 20, GUARD = 1 << 16 };

struct d9d_co {
    d9d_co_fn fn;
    void *arg[2];
    ucontext_t context[2]; /* the first is the caller's stack */
    d9d_status st[2];
    bool finished[2];
    int current;
};

static void switch_to_other(d9d_co *t)
{
    const int from = t->current;

    t->current = !from;
    (void)swapcontext(&t->context[from], &t->context[t->current]);
}

d9d_status d9d_co_yield(d9d_co *t)
{
    const int other = !t->current;

    if (!t->finished[other])
        switch_to_other(t);
    return t->finished[other] ? t->st[other] : D9D_OK;
}

static void run_fn(d9d_co *t, int i)
{
    t->st[i] = t->fn(t->arg[i], t);
    t->finished[i] = true;
}

/* makecontext() passes integers: the pointer is in two halves. */
static void second_entry(unsigned high, unsigned low)
{
    d9d_co *t = (void *)(((uintptr_t)high << 16 << 16) | low); /* NOLINT */

    if (!t->finished[0] || t->st[0] == D9D_OK)
        run_fn(t, 1);
    t->finished[1] = true;
    switch_to_other(t);
}

static d9d_status run_on_stack(d9d_co *t, char *stack)
{
    const uintptr_t self = (uintptr_t)t;

    if (getcontext(&t->context[1]) != 0)
        return D9D_FAIL(D9D_ENOTSUP, "no second stack on this system");
    t->context[1].uc_stack.ss_sp = stack + GUARD;
    t->context[1].uc_stack.ss_size = STACK;
    t->context[1].uc_link = NULL;
    makecontext(&t->context[1], (void (*)(void))second_entry, 2, (unsigned)(self >> 16 >> 16),
                (unsigned)self);
    run_fn(t, 0);
    if (!t->finished[1])
        switch_to_other(t);
    return t->st[0] != D9D_OK ? t->st[0] : t->st[1];
}

d9d_status d9d_co_run(d9d_co_fn fn, void *a, void *b)
{
    d9d_co t = {.fn = fn, .arg = {a, b}};
    char *stack = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    d9d_status st;

    if (stack == MAP_FAILED)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a second stack");
    (void)mprotect(stack, GUARD, PROT_NONE);
    st = run_on_stack(&t, stack);
    (void)munmap(stack, GUARD + STACK);
    return st;
}
