#!/usr/bin/env python3
"""Golden values of the task grpo: losses and gradients by TRL's own GRPOTrainer._compute_loss.

    python make_grpo.py GRPO_TRAINER.PY      # writes grpo/cases.json beside this file

GRPO_TRAINER.PY is trl/trainer/grpo_trainer.py of TRL 1.16.0. Its method runs here as it is, over
log-probabilities that are drawn, so that neither a model nor its other packages are needed; in float64, of
float32 numbers. Advantages are by the lines of _generate_and_score_completions.
"""
import ast
import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch

OUT = Path(__file__).resolve().parent / "grpo"
B, S, GROUP, MAX_LENGTH = 8, 6, 4, 9
CASES = [
    dict(case="grpo", loss_type="grpo"),
    dict(case="bnpo", loss_type="bnpo"),
    dict(case="dr_grpo", loss_type="dr_grpo"),
    dict(case="dapo", loss_type="dapo"),
    dict(case="cispo", loss_type="cispo", epsilon_high=1.1),
    dict(case="asymmetric clipping", loss_type="dapo", epsilon=0.1, epsilon_high=0.28),
    dict(case="two-sided clipping", loss_type="grpo", delta=1.15),
    dict(case="divergence", loss_type="grpo", beta=0.04),
    dict(case="divergence, by tokens", loss_type="dapo", beta=0.5, epsilon=0.05),
    dict(case="sequence level", loss_type="grpo", importance_sampling_level="sequence", epsilon=0.02),
    dict(case="sequence level, divergence", loss_type="dr_grpo", importance_sampling_level="sequence", epsilon=0.02, beta=0.1),
    dict(case="first step", loss_type="dapo", first=True),
    dict(case="batch scaling", loss_type="dapo", scale_rewards="batch"),
    dict(case="no scaling", loss_type="dr_grpo", scale_rewards="none"),
    dict(case="masked completions", loss_type="grpo", masked=[1, 6]),
]


def compute_loss(path):
    """The method, without its class and its imports."""
    tree = ast.parse(Path(path).read_text())
    found = [n for c in ast.walk(tree) if isinstance(c, ast.ClassDef) and c.name == "GRPOTrainer"
             for n in c.body if isinstance(n, ast.FunctionDef) and n.name == "_compute_loss"]
    scope = {"torch": torch, "nanmin": lambda x: x.min(), "nanmax": lambda x: x.max()}
    exec(compile(ast.Module(body=found, type_ignores=[]), path, "exec"), scope)
    return scope["_compute_loss"]


def trainer(c, own):
    t = SimpleNamespace(**{"top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False,
                           "importance_sampling_level": c.get("importance_sampling_level", "token"), "beta": c.get("beta", 0.0),
                           "loss_type": c["loss_type"], "epsilon_low": c.get("epsilon", 0.2),
                           "epsilon_high": c.get("epsilon_high", c.get("epsilon", 0.2)), "max_completion_length": MAX_LENGTH,
                           "aux_loss_enabled": False, "_entropy_bonus_enabled": False, "current_gradient_accumulation_steps": 1,
                           "vllm_importance_sampling_correction": False, "_metrics": {"train": defaultdict(list)}})
    t.args = SimpleNamespace(delta=c.get("delta"), use_bias_correction_kl=False, steps_per_generation=1)
    t.model = SimpleNamespace(training=True)
    t.accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, gather_for_metrics=lambda x: x)
    t._get_per_token_logps_and_entropies = lambda *a, **k: (own, torch.zeros_like(own), None)
    return t


def advantages(c, rewards):
    """As _generate_and_score_completions: torch.std divides by n - 1."""
    grouped = rewards.view(-1, GROUP)
    a = rewards - grouped.mean(dim=1).repeat_interleave(GROUP)
    scale = c.get("scale_rewards", "group")
    if scale == "none":
        return a
    std = grouped.std(dim=1).repeat_interleave(GROUP) if scale == "group" else rewards.std().expand_as(rewards)
    return a / (std + 1e-4)


def case(method, c, seed):
    g = torch.Generator().manual_seed(seed)
    draw = lambda scale: (scale * torch.randn(B, S, generator=g)).float()
    old = (-draw(1.0).abs() - 0.1).float()
    own = (old + draw(0.15)).float().double().requires_grad_(True)
    ref = (old + draw(0.3)).float()
    rewards = torch.randint(0, 4, (B,), generator=g).double() / 2
    rewards[:GROUP] += torch.arange(GROUP) / 4
    lengths = torch.randint(1, S + 1, (B,), generator=g)
    mask = (torch.arange(S)[None] < lengths[:, None]).double()
    mask[c.get("masked", [])] = 0
    a = advantages(c, rewards)
    inputs = dict(prompt_ids=torch.zeros(B, 1).long(), prompt_mask=torch.ones(B, 1), completion_ids=torch.zeros(B, S).long(),
                  completion_mask=mask, advantages=a, num_items_in_batch=mask.sum(), ref_per_token_logps=ref.double())
    if not c.get("first"):
        inputs["old_per_token_logps"] = old.double()
    t = trainer(c, own)
    loss = method(t, None, inputs)
    loss.backward()
    metrics = {k: v[0] for k, v in t._metrics["train"].items() if k in ("kl", "clip_ratio/low_mean", "clip_ratio/high_mean")}
    flat = lambda x: [float(v) for v in x.flatten()]
    return {**c, "own": flat(own.detach()), "old": flat(old), "ref": flat(ref), "rewards": flat(rewards),
            "lengths": [int(n) for n in lengths], "advantages": flat(a), "loss": float(loss), "gradient": flat(own.grad), "metrics": metrics}


def main():
    method = compute_loss(sys.argv[1])
    OUT.mkdir(exist_ok=True)
    shape = {"completions": B, "tokens": S, "num_generations": GROUP, "max_completion_length": MAX_LENGTH}
    cases = [case(method, c, 7 + i) for i, c in enumerate(CASES)]
    lines = ",\n".join(json.dumps(c) for c in cases)
    (OUT / "cases.json").write_text(json.dumps(shape)[:-1] + ', "cases": [\n' + lines + "\n]}\n")


main()
