#!/usr/bin/env python3
"""Loads an exported checkpoint in transformers and compares what it computes with what we did.

    python check_export.py DIR --logits FILE.safetensors      input_ids, logits [, position_ids]
    python check_export.py DIR --golden GOLDEN_DIR            its batch and golden files
    python check_export.py DIR --logprobs OUT.jsonl --samples SAMPLES.jsonl
                                                             d9d-infer's logprobs of these samples

Prints the relative L2 distance and exits with 1 if it is over --tolerance or something is
amiss, 2 on wrong usage. Needs torch and transformers.
"""
import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

IGNORE = -100


def load(folder):
    """The model in float32. Anything missing, unused or of another shape is an error."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, experts_implementation="eager", output_loading_info=True)
    wrong = {k: sorted(map(str, v)) for k, v in info.items() if v}
    if wrong:
        sys.exit(f"{folder}: transformers does not read it whole: {wrong}")
    return model.eval()


def logits_of(model, ids, positions=None):
    if positions is None:
        positions = torch.arange(ids.shape[1]).expand_as(ids)
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, attention_mask=torch.ones_like(ids),
                     use_cache=False).logits


def from_tensors(model, batch, logits):
    return logits_of(model, batch["input_ids"].long(), batch.get("position_ids")), logits.float()


def read_jsonl(path):
    return [json.loads(line) for line in open(path, encoding="utf-8", newline="\n")]


def from_logprobs(model, samples, outputs):
    """Log-probabilities of the targets that count, sample by sample."""
    samples, outputs = read_jsonl(samples), read_jsonl(outputs)
    theirs, ours = [], []
    for row in outputs:
        s = samples[row["sample"]]
        ids = s["input_ids"] if "labels" in s else s["input_ids"][:-1]
        labels = torch.tensor(s["labels"] if "labels" in s else s["input_ids"][1:])
        logp = torch.log_softmax(logits_of(model, torch.tensor([ids]))[0], -1)
        kept = labels != IGNORE
        found = logp[kept].gather(1, labels[kept][:, None])[:, 0]
        if len(found) != len(row["logprobs"]):
            sys.exit(f"sample {row['sample']}: {len(row['logprobs'])} log-probabilities for "
                     f"{len(found)} targets")
        theirs.append(found)
        ours.append(torch.tensor(row["logprobs"], dtype=torch.float32))
    if not theirs or len(outputs) != len(samples):
        sys.exit(f"{len(outputs)} outputs for {len(samples)} samples")
    return torch.cat(theirs), torch.cat(ours)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("checkpoint")
    p.add_argument("--logits")
    p.add_argument("--golden")
    p.add_argument("--logprobs")
    p.add_argument("--samples")
    p.add_argument("--tolerance", type=float, default=1e-5)
    a = p.parse_args()
    sources = [v for v in (a.logits, a.golden, a.logprobs) if v]
    if len(sources) != 1 or bool(a.logprobs) != bool(a.samples):
        p.error("give one of --logits, --golden, or --logprobs with --samples")
    model = load(a.checkpoint)
    if a.logits:
        file = load_file(a.logits)
        theirs, ours = from_tensors(model, file, file["logits"])
    elif a.golden:
        golden = Path(a.golden)
        theirs, ours = from_tensors(model, load_file(golden / "batch.safetensors"),
                                    load_file(golden / "golden.safetensors")["logits"])
    else:
        theirs, ours = from_logprobs(model, a.samples, a.logprobs)
    if theirs.shape != ours.shape:
        sys.exit(f"transformers has shape {list(theirs.shape)}, the file {list(ours.shape)}")
    apart = ((theirs.double() - ours.double()).norm() / theirs.double().norm()).item()
    print(f"{a.checkpoint}: {theirs.numel()} values, relative L2 distance {apart:.2e}, "
          f"largest difference {(theirs - ours).abs().max().item():.2e}")
    sys.exit(0 if apart <= a.tolerance else 1)


if __name__ == "__main__":
    main()
