"""Training steps of a random model with transformers and torch.compile, for compare and shapes.

    compare_peer.py CONFIG.json ROWS LENGTH STEPS model|layers|liger|float8|nothing

What is compiled: the whole model, each layer and the loss, each layer of a model with Liger's
kernels, each layer and the loss with products by torchao's float8 (recipe D9D_RECIPE), nothing.  Prints the median milliseconds of a step, the peak of GPU memory in GiB, and the
seconds from the start of this program to the end of the first step.
"""

import inspect
import os
import statistics
import sys
import time

start = time.perf_counter()

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

# In this order, as far as they support a shape.
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
if os.environ.get("D9D_NO_CUDNN"):
    BACKENDS.remove(SDPBackend.CUDNN_ATTENTION)


def modeling(path):
    """The module of transformers that has the model of a config.json."""
    config = AutoConfig.from_pretrained(path)
    return sys.modules[AutoModelForCausalLM._model_mapping[type(config)].__module__]


def use_liger(path):
    """Models of this type that are made from now on have Liger's kernels, the head fused with its loss."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    apply = MODEL_TYPE_TO_APPLY_LIGER_FN[AutoConfig.from_pretrained(path).model_type]
    known = inspect.signature(apply).parameters
    wanted = ("rope", "rms_norm", "layer_norm", "swiglu", "geglu", "fused_linear_cross_entropy")
    apply(**{name: True for name in wanted if name in known})


def parts_in_use(path):
    """What use_liger replaces, as (owner, name, value).  It replaces the loss and rotary embedding of
    models that are there already, too."""
    module = modeling(path)
    parts = [(module, name, value) for name, value in vars(module).items() if callable(value)]
    classes = [c for _, _, c in parts if inspect.isclass(c) and c.__module__ == module.__name__]
    return parts + [(c, "forward", c.forward) for c in classes if "forward" in vars(c)]


def use_parts(parts):
    for owner, name, value in parts:
        setattr(owner, name, value)


def make_model(path, attention="sdpa"):
    """Random weights in bfloat16, of a config.json."""
    config = AutoConfig.from_pretrained(path)
    if any(hasattr(config, n) for n in ("num_experts", "n_routed_experts", "num_local_experts")):
        config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention
        )
    return model.train()


def use_float8(model):
    """Products of the layers in FP8, as torchao trains; the head stays as it is."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = Float8LinearConfig.from_recipe_name(os.environ.get("D9D_RECIPE", "rowwise"))
    convert_to_float8_training(model.base_model, config=recipe)


def compiled_as(how, model):
    """What is called for a step."""
    if how == "float8":
        use_float8(model)
    if how in ("layers", "liger", "float8"):
        for layer in model.base_model.layers:
            layer.compile()
        if how != "liger":
            model.loss_function = torch.compile(model.loss_function)
    return torch.compile(model) if how == "model" else model


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step_ms(call, optimizer, batch):
    """One step, and its milliseconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with sdpa_kernel(BACKENDS, set_priority=True):
        call(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3


def main():
    rows, length, steps = (int(v) for v in sys.argv[2:5])
    if sys.argv[5] == "liger":
        use_liger(sys.argv[1])
    model = make_model(sys.argv[1])
    call, optimizer, times, first = compiled_as(sys.argv[5], model), optimizer_of(model), [], 0.0
    for step in range(steps):
        ids = torch.randint(model.config.vocab_size, (rows, length), device="cuda")
        times.append(step_ms(call, optimizer, {"input_ids": ids, "labels": ids}))
        first = first or time.perf_counter() - start
    warmup = int(os.environ.get("D9D_WARMUP", 3))
    print(statistics.median(times[warmup:]), torch.cuda.max_memory_allocated() / 2**30, first)


if __name__ == "__main__":
    main()
