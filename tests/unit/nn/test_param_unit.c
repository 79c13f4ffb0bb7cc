/* test_param_unit.c - when a unit is opened and closed, in forward and in every kind of backward.
 */
#include <string.h>

#include "d9d/nn/block.h"
#include "d9d/nn/param_unit.h"
#include "support/unit.h"

/* Writes down what it is asked: "o" open, "i" for an input half, "O" for gradients; "c", "j" and
 * "C" close. */
typedef struct diary {
    d9d_param_unit base;
    char text[64];
} diary;

static d9d_status note(d9d_param_unit *u, char what)
{
    char *text = ((diary *)u)->text;
    const size_t n = strlen(text);

    text[n] = what;
    text[n + 1] = '\0';
    return D9D_OK;
}

static d9d_status open(d9d_param_unit *u, d9d_param_unit_pass pass)
{
    return note(u, "oiO"[pass]);
}

static d9d_status close(d9d_param_unit *u, d9d_param_unit_pass pass)
{
    return note(u, "cjC"[pass]);
}

static const d9d_param_unit_ops ops = {open, close};

static d9d_status inner(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                        size_t n_out)
{
    (void)n_in, (void)n_out;
    D9D_TRY(note(((d9d_block_linear *)self)->module.unit, 'x'));
    return d9d_block_linear_forward(self, t, in[0], out);
}

/* y = W x in a unit; `replay`: by d9d_tape_recompute(). */
static void run(d9d_block_linear *b, d9d_device *dev, bool record, bool replay,
                const d9d_tape_backward_mode *modes, int n_modes)
{
    d9d_tensor x, seed;
    d9d_var *vx, *y;
    d9d_tape *t;

    assert_ok(d9d_tape_create(dev, &t));
    d9d_tape_set_recording(t, record);
    assert_ok(d9d_tensor_alloc(dev, D9D_F32, D9D_SHAPE(2, 3), &x));
    memset(d9d_tensor_data(&x), 0, 24);
    assert_ok(d9d_tape_leaf(t, &x, true, &vx));
    assert_ok(d9d_param_unit_unshard(&b->module, t));
    if (replay)
        assert_ok(d9d_tape_recompute(t, inner, b, &vx, 1, &y, 1));
    else
        assert_ok(inner(b, t, &vx, 1, &y, 1));
    assert_ok(d9d_param_unit_reshard(&b->module, t));
    for (int i = 0; i < n_modes; i++) {
        seed = d9d_tensor_ref(d9d_var_tensor(y));
        assert_ok(d9d_tape_backward(t, &y, &seed, 1, modes[i]));
        d9d_tensor_release(&seed);
    }
    d9d_tape_free(t);
    d9d_tensor_release(&x);
}

static void backward_opens_what_forward_closed(void **state)
{
    static const d9d_tape_backward_mode full[] = {D9D_BACKWARD_FULL};
    static const d9d_tape_backward_mode split[] = {D9D_BACKWARD_DGRAD, D9D_BACKWARD_WGRAD};
    static const struct {
        bool record, replay;
        const d9d_tape_backward_mode *modes;
        int n_modes;
        const char *want;
    } cases[] = {
        {false, false, NULL, 0, "oxc"},     {true, false, full, 1, "oxcOC"},
        {true, false, split, 2, "oxcijOC"}, {true, true, full, 1, "oxcOxC"},
        {true, true, split, 2, "oxcixjOC"},
    };
    const d9d_block_opts opts = {.dtype = D9D_F32};
    d9d_block_linear b;
    d9d_device *dev;
    diary d = {.base = {.ops = &ops}};

    (void)state;
    assert_ok(d9d_device_open("cpu", &dev));
    assert_ok(d9d_block_linear_init(&b, &opts, 3, 4));
    assert_ok(d9d_module_bind(&b.module));
    assert_ok(d9d_module_materialise(&b.module, dev, true));
    assert_ok(d9d_module_reset(&b.module, 1));
    b.module.unit = &d.base;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        d.text[0] = '\0';
        run(&b, dev, cases[i].record, cases[i].replay, cases[i].modes, cases[i].n_modes);
        assert_string_equal(d.text, cases[i].want);
    }
    d9d_module_release(&b.module);
    d9d_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(backward_opens_what_forward_closed)};

    return cmocka_run_group_tests_name("param_unit", tests, NULL, NULL);
}
