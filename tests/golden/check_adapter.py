#!/usr/bin/env python3
"""Loads an adapter that d9d-train has written in peft and compares it with the merged model.

    python check_adapter.py BASE RUN...      # RUN/adapter over BASE, and RUN/export

Prints for each run the relative L2 distance of the outputs of peft's model from those of the exported
one, that of peft's own merge, and that of the base; exits with 1 if one of peft's is over --tolerance, if the adapter lacks or has a tensor that peft does not know, or if it
changes nothing. Needs torch, transformers and peft.
"""
import argparse
import sys
from pathlib import Path

import torch
import transformers as T
from peft import PeftModel
from peft.utils import load_peft_weights, set_peft_model_state_dict


def load(folder):
    config = T.AutoConfig.from_pretrained(folder)
    language = any(a.endswith(("CausalLM", "LMHeadModel")) for a in config.architectures or [])
    model = (T.AutoModelForCausalLM if language else T.AutoModel).from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager")
    if hasattr(config, "use_cache"):  # which fails for layers of linear attention alone
        model.config.use_cache = False
    for m in model.modules():  # transformers' experts have gpt-oss's own limit
        if hasattr(config, "swiglu_limit") and hasattr(m, "limit"):
            m.limit = config.swiglu_limit
    return model.eval()


def output_of(model):
    ids = torch.arange(3, 3 + 2 * 12).view(2, 12) % 50
    with torch.no_grad():
        out = model(input_ids=ids)
    return out.logits if "logits" in out else out.last_hidden_state


def check_names(model, adapter):
    """Every tensor of the file has a place, and every factor of the model a tensor."""
    found = set_peft_model_state_dict(model, load_peft_weights(adapter, device="cpu"))
    missing = [k for k in found.missing_keys if ".lora_" in k]
    return [f"{k} is missing" for k in missing] + [f"{k} is unknown" for k in found.unexpected_keys]


def check(base, run, tolerance):
    want, plain = output_of(load(run / "export")), load(base)
    before = output_of(plain)
    model = PeftModel.from_pretrained(plain, run / "adapter").eval()
    wrong = check_names(model, run / "adapter")
    got = output_of(model)
    merged = output_of(model.merge_and_unload())
    far, far_merged, moved = (((x - want).norm() / want.norm()).item() for x in (got, merged, before))
    print(f"{run}: {type(plain).__name__}: peft is {far:.2g} from the export, its merge "
          f"{far_merged:.2g}, the base {moved:.2g}")
    if moved < 10 * tolerance:
        wrong.append("the adapter changes nothing")
    if max(far, far_merged) > tolerance:
        wrong.append(f"more than {tolerance}")
    for w in wrong:
        print(f"{run}: {w}")
    return not wrong


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("base", type=Path)
    p.add_argument("runs", type=Path, nargs="+")
    p.add_argument("--tolerance", type=float, default=1e-5)
    a = p.parse_args()
    sys.exit(0 if all([check(a.base, r, a.tolerance) for r in a.runs]) else 1)


if __name__ == "__main__":
    main()
