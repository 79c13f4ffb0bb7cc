#!/usr/bin/env python3
"""Golden vectors of adapters: one of HuggingFace's peft over a model of each family.

    python make_adapters.py [CASE...]      # writes adapters/CASE beside this file; without one all

Each case is the adapter that peft saves over families/CASE, or encoders/CASE, of every linear layer
and every stack of experts in some of its layers, with

    losses.txt    of language models: the loss of every target of families/CASE/train.jsonl, a line
                  a sample
    means.txt     of encoders: the mean of last_hidden_state of the first texts of texts.jsonl

computed in float64.  adapter_config.json has what differs from peft's defaults.
"""
import json
import shutil
import sys

import torch
import torch.nn as nn
import transformers as T
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

from make_families import CASES, CONFIGS, FAMILIES, HERE, IGNORE, build, digits, dump

R, ALPHA, TEXTS = 2, 3, 4
LAYERS = {"qwen3_next": [0, 1], "qwen3_5": [0, 1], "qwen3_5_moe": [0, 1], "deepseek_v2": [0, 1],
          "deepseek_v3": [0, 1], "glm4_moe": [0, 1], "glm4_moe_lite": [0, 1]}
KEEP = ("alpha_pattern", "base_model_name_or_path", "bias", "fan_in_fan_out", "lora_alpha", "lora_dropout",
        "peft_type", "peft_version", "r", "rank_pattern", "target_modules", "target_parameters", "task_type",
        "layers_to_transform")
ENCODERS = {"modernbert": "ModernBertModel"}


def firsts():
    """The first case of each family."""
    found = {}
    for name, case in FAMILIES.items():
        found.setdefault(case["class"], name)
    return list(found.values())


def model_of(name):
    """The case's model in float64, and the folder that has it."""
    encoder = ENCODERS.get(name)
    folder = HERE / ("encoders" if encoder else "families") / name
    config = T.AutoConfig.from_pretrained(folder)
    kind = None if encoder else CASES[name][0]
    config._attn_implementation = config._experts_implementation = "eager"
    loader = T.AutoModel if encoder else T.AutoModelForCausalLM
    plain = loader.from_pretrained(folder, dtype=torch.float32)
    exact = build(kind, config, True, name=encoder)
    exact.load_state_dict({k: v.double() for k, v in plain.state_dict().items()})
    exact.tie_weights()
    return exact, folder


def targets_of(model, layers, whole):
    """Modules, by whole names or their ends, and parameters; what peft would take for a part of fused experts is a parameter too."""
    mixture = any(p.ndim == 3 and "experts" in n for n, p in model.named_parameters())
    modules, params = set(), set()
    for name, m in model.named_modules():
        at = [c for c in name.split(".") if c.isdigit()]
        if not at or int(at[0]) not in layers:
            continue
        leaf = name.rsplit(".", 1)[-1]
        if isinstance(m, (nn.Linear, Conv1D)):
            if mixture and leaf in ("gate_proj", "up_proj", "down_proj"):
                params.add(name + ".weight")
            else:
                modules.add(name if whole else leaf)
        params |= {f"{name}.{n}" for n, p in m.named_parameters(recurse=False)
                   if p.ndim == 3 and leaf == "experts" or "outer" in type(m).__name__ and n == "weight"}
    return sorted(modules), sorted(params)


def adapted(name):
    model, folder = model_of(name)
    layers = LAYERS.get(name, [1])
    encoder = name in ENCODERS
    modules, params = targets_of(model, layers, encoder)
    model = get_peft_model(model, LoraConfig(
        r=R, lora_alpha=ALPHA, target_modules=modules, target_parameters=params or None,
        layers_to_transform=None if encoder else layers,
        task_type="FEATURE_EXTRACTION" if encoder else "CAUSAL_LM")).double()
    rng = torch.Generator().manual_seed(len(name))
    with torch.no_grad():
        for n, p in sorted(model.named_parameters()):
            if ".lora_" in n:
                p.copy_((torch.randn(p.shape, generator=rng) * 0.2).float().double())
    return model.eval(), folder


def save(model, folder):
    model.peft_config["default"].base_model_name_or_path = folder.name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_model.safetensors"
    save_file({k: v.float().contiguous() for k, v in load_file(file).items()}, file, {"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    dump(folder / "adapter_config.json", {
        k: sorted(v) if k.startswith("target_") and v else v
        for k, v in sorted(config.items()) if k in KEEP and v is not None})


def losses_of(model, sample):
    ids, labels = torch.tensor([sample["input_ids"]]), torch.tensor(sample["labels"])
    logp = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0], -1)
    kept = labels != IGNORE
    return (-logp[kept].gather(1, labels[kept][:, None])[:, 0]).tolist()


def mean_of(model, sample):
    return model(input_ids=torch.tensor([sample["input_ids"]])).last_hidden_state[0].mean(0).tolist()


def make(name):
    model, source = adapted(name)
    folder = HERE / "adapters" / name
    save(model, folder)
    encoder = name in ENCODERS
    lines = (source / ("texts.jsonl" if encoder else "train.jsonl")).read_text().splitlines()[:TEXTS]
    with torch.no_grad():
        rows = [(mean_of if encoder else losses_of)(model, json.loads(x)) for x in lines]
    text = "".join(" ".join(str(digits(x)) for x in r) + "\n" for r in rows)
    (folder / ("means.txt" if encoder else "losses.txt")).write_text(text)
    print(name, sum(f.stat().st_size for f in folder.iterdir()), "bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or firsts() + list(ENCODERS):
        make(name)
