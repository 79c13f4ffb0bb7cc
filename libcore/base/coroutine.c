/* coroutine.c - see d9d/base/coroutine.h. */
#include "d9d/base/coroutine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

/* Pages that are touched are what a stack takes; below it is one that nobody may touch. */
enum { STACK = 8 << 20, GUARD = 1 << 16 };

struct d9d_turns {
    d9d_turn_fn fn;
    void *arg[2];
    ucontext_t place[2]; /* the first is the caller's stack */
    d9d_status st[2];
    bool through[2];
    int now;
};

static void change(d9d_turns *t)
{
    const int from = t->now;

    t->now = !from;
    (void)swapcontext(&t->place[from], &t->place[t->now]);
}

d9d_status d9d_turns_next(d9d_turns *t)
{
    const int other = !t->now;

    if (!t->through[other])
        change(t);
    return t->through[other] ? t->st[other] : D9D_OK;
}

static void do_one(d9d_turns *t, int i)
{
    t->st[i] = t->fn(t->arg[i], t);
    t->through[i] = true;
}

/* makecontext() hands over integers. */
static void second(unsigned high, unsigned low)
{
    d9d_turns *t = (void *)(((uintptr_t)high << 16 << 16) | low); /* NOLINT */

    if (!t->through[0] || t->st[0] == D9D_OK)
        do_one(t, 1);
    t->through[1] = true;
    change(t);
}

static d9d_status run_on(d9d_turns *t, char *stack)
{
    const uintptr_t self = (uintptr_t)t;

    if (getcontext(&t->place[1]) != 0)
        return D9D_FAIL(D9D_ENOTSUP, "no second stack on this system");
    t->place[1].uc_stack.ss_sp = stack + GUARD;
    t->place[1].uc_stack.ss_size = STACK;
    t->place[1].uc_link = NULL;
    makecontext(&t->place[1], (void (*)(void))second, 2, (unsigned)(self >> 16 >> 16),
                (unsigned)self);
    do_one(t, 0);
    if (!t->through[1])
        change(t);
    return t->st[0] != D9D_OK ? t->st[0] : t->st[1];
}

d9d_status d9d_turns_run(d9d_turn_fn fn, void *a, void *b)
{
    d9d_turns t = {.fn = fn, .arg = {a, b}};
    char *stack = mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    d9d_status st;

    if (stack == MAP_FAILED)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a second stack");
    (void)mprotect(stack, GUARD, PROT_NONE);
    st = run_on(&t, stack);
    (void)munmap(stack, GUARD + STACK);
    return st;
}
