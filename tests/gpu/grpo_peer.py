"""What a step of TRL's GRPOTrainer computes, with transformers alone: generate, losses, AdamW.

    grpo_peer.py CONFIG.json PROMPTS LENGTH TOKENS ROWS STEPS

Random weights in bfloat16 and 8 completions of each prompt.  Log-probabilities, entropies and the loss
are TRL's (GRPOTrainer._get_per_token_logps_and_entropies, loss_type "dapo"), over micro-batches of ROWS
prompts; rewards, text and logging are left out.
"""

import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

path = sys.argv[1]
prompts, length, tokens, rows, steps = map(int, sys.argv[2:])
GROUP = 8
config = AutoConfig.from_pretrained(path)
config.use_cache = True
torch.set_default_device("cuda")
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.gradient_checkpointing_disable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
ids = (torch.arange(prompts * length).view(prompts, length) * 7919 % config.vocab_size).repeat_interleave(GROUP, 0)


def log_probs(batch):
    """TRL's, of the completions' tokens; with the entropies that it logs."""
    logits = model(batch, logits_to_keep=tokens + 1, use_cache=False).logits[:, :-1]
    target = batch[:, -tokens:]
    own = torch.stack([torch.gather(x.log_softmax(-1), -1, t.unsqueeze(-1)).squeeze(-1) for x, t in zip(logits, target)])
    with torch.no_grad():
        for x in logits:
            p = torch.distributions.Categorical(logits=x)
            p.entropy()
    return own


def step():
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model.eval()
    with torch.no_grad():
        full = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=True, temperature=1.0, top_k=None,
                              top_p=1.0, eos_token_id=None, pad_token_id=0)
    torch.cuda.synchronize()
    generated = time.perf_counter()
    model.train()
    advantage = torch.randn(prompts * GROUP, 1)
    for at in range(0, prompts * GROUP, rows * GROUP):
        own = log_probs(full[at:at + rows * GROUP])
        ratio = torch.exp(own - own.detach())
        a = advantage[at:at + rows * GROUP]
        loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).sum() / (prompts * GROUP * tokens)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    end = time.perf_counter()
    return 1e3 * (end - begin), 1e3 * (generated - begin)


total, generation = sorted(step() for _ in range(max(2, steps - 1)))[0]
print(f"transformers, as TRL: step {total:.0f} ms, of which generation {generation:.0f} ms, "
      f"{prompts * GROUP * tokens / total * 1e3:.0f} completion tokens/s, {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
