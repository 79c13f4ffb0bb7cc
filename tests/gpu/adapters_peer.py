"""Steps of LoRA with peft and Liger's kernels, for adapters.

    adapters_peer.py CONFIG.json ROWS LENGTH STEPS layers|nothing attention|all

Prints the median milliseconds of a step and the peak of GPU memory in GiB.
"""

import statistics
import sys

import torch
from peft import LoraConfig, get_peft_model

from compare_peer import make_model, step_ms, use_liger

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS = {"attention": ATTENTION, "all": ATTENTION + ["gate_proj", "up_proj", "down_proj"]}


def main():
    rows, length, steps = (int(v) for v in sys.argv[2:5])
    use_liger(sys.argv[1])
    base = make_model(sys.argv[1])
    config = LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS[sys.argv[6]], bias="none")
    model = get_peft_model(base, config, autocast_adapter_dtype=False)
    if sys.argv[5] == "layers":
        for layer in base.base_model.layers:
            layer.compile()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer, times = torch.optim.AdamW(trained, lr=1e-4, fused=True), []
    for _ in range(steps):
        ids = torch.randint(base.config.vocab_size, (rows, length), device="cuda")
        times.append(step_ms(model, optimizer, {"input_ids": ids, "labels": ids}))
    print(statistics.median(times[3:]), torch.cuda.max_memory_allocated() / 2**30)


if __name__ == "__main__":
    main()
