#!/usr/bin/env python3
"""Golden checkpoints of Qwen3's heads: what transformers itself writes for each class.

    python make_heads.py                 # writes heads/ beside this file
    python make_heads.py check D9D_MAP   # converts them with that program, and loads the results

`check` takes every checkpoint here, those of make_models.py too, through every layout that d9d-map writes, and asks
transformers to load each result: no weight may be missing, unexpected or different.
"""
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, Qwen3Config, Qwen3MoeConfig

HERE = Path(__file__).resolve().parent / "heads"
SMALL = dict(vocab_size=37, hidden_size=12, intermediate_size=14, num_hidden_layers=2,
             num_attention_heads=3, num_key_value_heads=1, head_dim=6, dtype="bfloat16",
             max_position_embeddings=64, rope_parameters={"rope_type": "default",
                                                          "rope_theta": 12345.0})
MOE = dict(num_experts=3, num_experts_per_tok=2, moe_intermediate_size=8, mlp_only_layers=[0],
           norm_topk_prob=True)
# Directory: class and what its configuration has besides.  Two labels are not written down.
CASES = {
    "dense_causal_tied": ("Qwen3ForCausalLM", dict(tie_word_embeddings=True)),
    "dense_labels": ("Qwen3ForSequenceClassification", dict(num_labels=5)),
    "dense_labels_tied": ("Qwen3ForSequenceClassification", dict(tie_word_embeddings=True)),
    "dense_base": ("Qwen3Model", {}),
    "moe_causal": ("Qwen3MoeForCausalLM", MOE),
    "moe_labels": ("Qwen3MoeForSequenceClassification", dict(MOE, num_labels=1)),
    "moe_base": ("Qwen3MoeModel", MOE),
}


def make():
    for seed, (name, (kind, more)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        config = Qwen3MoeConfig if "Moe" in kind else Qwen3Config
        model = getattr(transformers, kind)(config(**SMALL, **more)).to(torch.bfloat16)
        for p in model.parameters():
            torch.nn.init.normal_(p)
        model.save_pretrained(HERE / name)
        (HERE / name / "generation_config.json").unlink(missing_ok=True)


def weights_of(folder, config):
    """The parameters as transformers has them in memory after loading; nothing may be amiss."""
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], f"{folder}: {key}: {info[key]}"
    return model.state_dict()


def meaning(config):
    return {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "torch_dtype")}


def check(program):
    sources = sorted(f.parent for f in HERE.parent.glob("**/config.json"))
    with tempfile.TemporaryDirectory() as tmp:
        for number, (src, layout) in enumerate(itertools.product(sources, ["per-expert", "fused"])):
            ours, back = Path(tmp) / f"{number}.d9d", Path(tmp) / f"{number}.hf"
            subprocess.run([program, "-q", "--to", "d9d", src, ours], check=True)
            subprocess.run([program, "-q", "--to", "hf", "--expert-layout", layout, ours, back],
                           check=True)
            want, got = AutoConfig.from_pretrained(src), AutoConfig.from_pretrained(back)
            assert meaning(want) == meaning(got), f"{src.name}: config.json changed its meaning"
            a, b = weights_of(src, want), weights_of(back, got)
            assert a.keys() == b.keys()
            assert all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)
            fields = json.loads((back / "config.json").read_text())
            experts = [k for k in ("num_experts", "num_local_experts") if k in fields]
            print(f"{src.name}, {layout}: {got.architectures[0]} loads {len(a)} parameters",
                  *experts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2])
    else:
        make()
