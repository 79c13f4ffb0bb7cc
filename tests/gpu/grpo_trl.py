"""Rounds of TRL's GRPOTrainer, generation by transformers, for grpo.

    grpo_trl.py CONFIG.json TOKENIZER.json PROMPTS LENGTH TOKENS ROWS STEPS

Random weights in bfloat16, 8 completions of each prompt, micro-batches of ROWS completions.  Prints
the fastest step but the first, and the peak of GPU memory.
"""

import os
import sys
import time

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

GROUP = 8
prompts, length, tokens, rows, steps = map(int, sys.argv[3:])
on_gpu = torch.cuda.is_available()


class Clock(TrainerCallback):
    """Milliseconds of each step, from the generation of its completions to the update."""

    def __init__(self):
        self.times = []

    def now(self):
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_step_begin(self, *_args, **_kwargs):
        self.begin = self.now()

    def on_step_end(self, *_args, **_kwargs):
        self.times.append((self.now() - self.begin) * 1e3)


def length_reward(completions, **_kwargs):
    return [-abs(len(c) - 100.0) for c in completions]


def make_model():
    config = AutoConfig.from_pretrained(sys.argv[1])
    config.use_cache = True
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu else "cpu"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def main():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=sys.argv[2])
    tokenizer.pad_token = tokenizer.eos_token = tokenizer.convert_ids_to_tokens(0)
    texts = ["".join(str((i * 7 + j * j) % 10) for j in range(length)) for i in range(64)]
    options = GRPOConfig(
        output_dir=os.path.join(os.environ.get("TMPDIR", "/tmp"), "grpo-trl"),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=prompts * GROUP // rows,
        num_generations=GROUP,
        max_completion_length=tokens,
        generation_kwargs={"min_new_tokens": tokens},
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=on_gpu,
        use_cpu=not on_gpu,
        gradient_checkpointing=False,
        optim="adamw_torch_fused",
        max_steps=steps,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = GRPOTrainer(
        model=make_model(),
        reward_funcs=length_reward,
        args=options,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    best = min(clock.times[1:] or clock.times)
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0
    print(f"TRL: step {best:.0f} ms, {prompts * GROUP * tokens / best * 1e3:.0f} completion tokens/s, {peak:.1f} GB")


if __name__ == "__main__":
    main()
