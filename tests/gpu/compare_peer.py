"""Training steps of a random model with transformers and torch.compile, for compare and shapes.

    compare_peer.py CONFIG.json ROWS LENGTH STEPS model|layers|liger|nothing

What is compiled: the whole model, each layer and the loss, each layer of a model with Liger's
kernels, nothing.  Prints the median milliseconds of a step, the peak of GPU memory in GiB, and the
seconds from the start of this program to the end of the first step.
"""

import os
import statistics
import sys
import time

start = time.perf_counter()

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3 as qwen3

# In this order, as far as they support a shape.
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
if os.environ.get("D9D_NO_CUDNN"):
    BACKENDS.remove(SDPBackend.CUDNN_ATTENTION)


def use_liger():
    """Models that are made from now on have Liger's kernels, the head fused with its loss."""
    from liger_kernel.transformers import apply_liger_kernel_to_qwen3, apply_liger_kernel_to_qwen3_moe

    for apply in apply_liger_kernel_to_qwen3, apply_liger_kernel_to_qwen3_moe:
        apply(rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=True)


def parts_in_use():
    """What use_liger replaces, as (owner, name, value).  It replaces the loss and rotary embedding of
    models that are there already, too."""
    owned = [(qwen3, n) for n in ("apply_rotary_pos_emb", "Qwen3RMSNorm", "Qwen3MLP")]
    return [(o, n, getattr(o, n)) for o, n in owned + [(qwen3.Qwen3ForCausalLM, "forward")]]


def use_parts(parts):
    for owner, name, value in parts:
        setattr(owner, name, value)


def make_model(path, attention="sdpa"):
    """Random weights in bfloat16, of a config.json."""
    config = AutoConfig.from_pretrained(path)
    if config.model_type == "qwen3_moe":
        config._experts_implementation = "grouped_mm"
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention
        )
    return model.train()


def compiled_as(how, model):
    """What is called for a step."""
    if how in ("layers", "liger"):
        for layer in model.model.layers:
            layer.compile()
        if how == "layers":
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
        use_liger()
    model = make_model(sys.argv[1])
    call, optimizer, times, first = compiled_as(sys.argv[5], model), optimizer_of(model), [], 0.0
    for step in range(steps):
        ids = torch.randint(model.config.vocab_size, (rows, length), device="cuda")
        times.append(step_ms(call, optimizer, {"input_ids": ids, "labels": ids}))
        first = first or time.perf_counter() - start
    print(statistics.median(times[3:]), torch.cuda.max_memory_allocated() / 2**30, first)


if __name__ == "__main__":
    main()
