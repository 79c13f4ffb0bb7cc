#!/usr/bin/env python3
"""Golden vectors of adapters of HuggingFace's peft: what they learn and what they compute.

    python make_peft.py [CASE...]                    # writes peft/ beside this file

Values are computed in float64 by the modules of make_models.py and rounded at the end; README.md
describes the files.  check_adapter.py is the reverse.
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from peft import IA3Config, LoHaConfig, LoraConfig, OFTConfig, PromptTuningConfig, VeraConfig
from peft import get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from make_models import ADAMW, HERE, MAX_NORM, MODELS, Exact, build, digits, dump, losses_of
from make_models import forward

STEPS, GLOBAL_BATCH = 10, 4
LR = 5e-3
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

def lora(pattern, r, alpha, **options):
    return {"kind": "lora", "module_name_pattern": pattern,
            "params": {"r": r, "alpha": alpha, **options}}


def whole(pattern):
    return {"kind": "full_tune", "module_name_pattern": pattern}


# `model` and `base`: of make_models.py, and the checkpoint; `lora` or `ia3`: peft's configuration, `prompt`: virtual
# tokens; `ours`:
# the same in d9d's words, where it learns in the same way: gate and up that are fused share one A.
CASES = {
    "dense": dict(model="dense_untied", base="dense_untied", seed=11, ours=[
        lora(r".*\.down_proj", 3, 10), lora(r"model\.layers\.1\.self_attn\.q_proj", 4, 6),
        lora(r".*\.[02]\.self_attn\.q_proj|.*\.(k|v|o|gate|up)_proj", 4, 10)], lora=dict(
        r=4, lora_alpha=10, target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"],
        rank_pattern={"down_proj": 3}, alpha_pattern={r".*\.1\.self_attn\.q_proj": 6})),
    "moe": dict(model="moe", base="moe_fused", seed=12, ours=[
        lora(r".*\.self_attn\..*_proj|.*\.down_proj", 4, 8)], lora=dict(
        r=4, lora_alpha=8, target_modules=ATTENTION,
        target_parameters=["mlp.experts.down_proj"])),
    "rslora": dict(model="dense_untied", base="dense_untied", seed=14, ours=[
        lora(r".*\.(q|k|v|o|down)_proj", 5, 3, use_rslora=True)], lora=dict(
        r=5, lora_alpha=3, use_rslora=True, target_modules=ATTENTION + ["down_proj"])),
    "dora": dict(model="dense_untied", base="dense_untied", seed=15, ours=[
        {"kind": "dora", "module_name_pattern": "all-linear",
         "params": {"r": 4, "alpha": 10, "rank_pattern": {"down_proj": 3},
                    "alpha_pattern": {r".*\.1\.self_attn\.q_proj": 6}}}], lora=dict(
        r=4, lora_alpha=10, use_dora=True, target_modules="all-linear",
        rank_pattern={"down_proj": 3}, alpha_pattern={r".*\.1\.self_attn\.q_proj": 6})),
    "layers": dict(model="dense_untied", base="dense_untied", seed=16, ours=[
        {"kind": "lora", "module_name_pattern": r".*\.(q|k|v|o)_proj", "layers_to_transform": [1],
         "params": {"r": 2, "alpha": 4}}], lora=dict(
        r=2, lora_alpha=4, target_modules=ATTENTION, layers_to_transform=[1])),
    "ia3": dict(model="dense_untied", base="dense_untied", seed=17, ours=[
        {"kind": "ia3", "module_name_pattern": r".*\.(k_proj|v_proj|down_proj)",
         "feedforward_name_pattern": "down_proj"}], ia3=dict(
        target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])),
    "saved": dict(model="dense_untied", base="dense_untied", seed=18, ours=[
        lora(r".*\.(q|v)_proj", 3, 6), whole(
            r"model\.(embed_tokens|norm)|lm_head|.*\.1\.self_attn\.q_norm|.*\.0\.mlp\.down_proj")], lora=dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], modules_to_save=[
            "embed_tokens", "lm_head", "model.norm", "model.layers.1.self_attn.q_norm",
            "model.layers.0.mlp.down_proj"])),
    "saved_tied": dict(model="dense_tied", base="dense_tied", seed=19, ours=[
        lora(r".*\.q_proj", 2, 4), whole(r"model\.embed_tokens")], lora=dict(
        r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"],
        ensure_weight_tying=True)),
    "saved_moe": dict(model="moe", base="moe_fused", seed=20, ours=[
        lora(r".*\.v_proj", 2, 4), whole(r".*\.1\.mlp\.grouped_experts|.*\.0\.mlp\.router")], lora=dict(
        r=2, lora_alpha=4, target_modules=["v_proj"], modules_to_save=[
            "model.layers.1.mlp.experts", "model.layers.0.mlp.gate"])),
    "embed": dict(model="dense_untied", base="dense_untied", seed=21, base_too=True, ours=[
        lora(r".*\.q_proj|model\.embed_tokens|lm_head", 3, 6)], lora=dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "embed_tokens", "lm_head"])),
    "embed_tied": dict(model="dense_tied", base="dense_tied", seed=22, lora=dict(
        r=2, lora_alpha=4, target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True)),
    "prompt": dict(model="dense_untied", base="dense_untied", seed=23, prompt=5),
    "prompt_moe": dict(model="moe", base="moe_fused", seed=24, prompt=3),
    "prompt_text": dict(model="dense_untied", base="dense_untied", texts=[("c b", 3), ("c b", 4), ("c b", 11)]),
    "loha": dict(model="dense_untied", base="dense_untied", seed=25, ours=[
        {"kind": "loha", "module_name_pattern": "all-linear",
         "params": {"r": 3, "alpha": 10, "rank_pattern": {"down_proj": 2},
                    "alpha_pattern": {r".*\.1\.self_attn\.q_proj": 6}}}], loha=dict(
        r=3, alpha=10, target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"],
        rank_pattern={"down_proj": 2}, alpha_pattern={r".*\.1\.self_attn\.q_proj": 6})),
    "oft": dict(model="dense_untied", base="dense_untied", seed=26, ours=[
        {"kind": "oft", "module_name_pattern": "all-linear", "oft_block_size": 4}], oft=dict(
        oft_block_size=4, target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"])),
    "vera": dict(model="dense_untied", base="dense_untied", seed=27, ours=[
        {"kind": "vera", "module_name_pattern": "all-linear", "r": 5, "projection_prng_key": 7}], vera=dict(
        r=5, projection_prng_key=7, target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"])),
    "moe_all": dict(model="moe", base="moe_fused", seed=13, lora=dict(
        r=3, lora_alpha=6, use_rslora=True, target_modules=["v_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])),
}


def adapted(case):
    spec = MODELS[case["model"]]
    weights = load_file(HERE / case["base"] / "model.safetensors")
    model = build(spec["config"], weights, True)
    model.config._name_or_path = case["base"]
    if "prompt" in case:
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=case["prompt"])
    elif "ia3" in case:
        config = IA3Config(task_type="CAUSAL_LM", **case["ia3"])
    elif "loha" in case:
        config = LoHaConfig(task_type="CAUSAL_LM", **case["loha"])
    elif "oft" in case:
        config = OFTConfig(task_type="CAUSAL_LM", **case["oft"])
    elif "vera" in case:
        config = VeraConfig(task_type="CAUSAL_LM", **case["vera"])
    else:
        config = LoraConfig(lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", **case["lora"])
    model = Exact.apply(get_peft_model(model, config)).double()  # copies of modules too
    rng = torch.Generator().manual_seed(case["seed"])
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=rng) * 0.15 if p.requires_grad else None
            if ".lora_magnitude_" in name or ".ia3_l" in name:
                p.copy_((p * (1 + noise)).float().double())
            elif ".hada_" in name:  # products of four
                p.copy_((noise * 2).float().double())
            elif ".vera_lambda_" in name and p.requires_grad:  # products of two
                p.copy_((noise * 4).float().double())
            elif ".lora_" in name or ".oft_R" in name:
                p.copy_(noise.float().double())
            elif p.requires_grad:
                p.copy_((p + noise * p.abs().mean()).float().double())
    if case["base"] == "dense_tied" and "lora" in case and "embed_tokens" in case["lora"]["target_modules"]:
        with torch.no_grad():  # .double() has untied the factors
            embed, head = model.get_input_embeddings(), model.base_model.model.lm_head
            head.lora_A["default"].weight.copy_(embed.lora_embedding_B["default"].T)
            head.lora_B["default"].weight.copy_(embed.lora_embedding_A["default"].T)
    return model


def text_logits(model, ids):
    """Of the positions of the text, behind the virtual tokens."""
    logits = forward(model, ids, torch.arange(ids.shape[1])[None])
    return logits[:, logits.shape[1] - ids.shape[1]:]


def text_losses(model, samples):
    with torch.no_grad():
        out = []
        for s in samples:
            token = losses_of(text_logits(model, torch.tensor([s["input_ids"]])),
                              torch.tensor([s["labels"]]))
            out.append([digits(v) for v, t in zip(token[0].tolist(), s["labels"]) if t != -100])
        return out


def generated(model, samples):
    """Greedy continuations of the first four tokens of some samples."""
    out = []
    for s in samples[:6]:
        ids = torch.tensor([s["input_ids"][:4]])
        got = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=8, eos_token_id=None, pad_token_id=0)
        out.append(got[0, ids.shape[1]:].tolist())
    return out


def save(model, folder, base_too=False):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, save_embedding_layers=base_too)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_model.safetensors"
    save_file({k: v.float().contiguous() for k, v in load_file(file).items()}, file,
              {"format": "pt"})
    config = json.loads((folder / "adapter_config.json").read_text())
    dump(folder / "adapter_config.json", {
        k: sorted(v) if k.startswith("target_") and v else v for k, v in sorted(config.items())})


def save_each(first, folder, experts):
    """The same with a module for each expert, as over the models of transformers 4."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out = {}
    for name, v in load_file(first / "adapter_model.safetensors").items():
        if ".experts.lora_" not in name:
            out[name] = v
            continue
        parts = v.view(experts, -1, v.shape[1]) if "lora_A" in name else \
            v.view(v.shape[0], -1, experts).permute(2, 0, 1)
        for e in range(experts):
            out[name.replace(".experts.", f".experts.{e}.down_proj.")] = parts[e].contiguous()
    save_file(out, folder / "adapter_model.safetensors", {"format": "pt"})
    config = json.loads((first / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"] + ["down_proj"])
    dump(folder / "adapter_config.json", {**config, "target_parameters": None})


def save_drawn(first, folder):
    """The same without the projections of VeRA, which are drawn by their key."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = "adapter_model.safetensors"
    save_file({k: v for k, v in load_file(first / file).items() if ".vera_lambda_" in k}, folder / file,
              {"format": "pt"})
    config = json.loads((first / "adapter_config.json").read_text())
    dump(folder / "adapter_config.json", {**config, "save_projection": False})


def samples_of(case):
    lines = (HERE / case["model"] / "train.jsonl").read_text().splitlines()
    return [json.loads(x) for x in lines]


def learn(model, samples):
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(trained, lr=LR, betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],
                            weight_decay=ADAMW["weight_decay"], foreach=False)
    log = []
    for step in range(1, STEPS + 1):
        part = samples[(step - 1) * GLOBAL_BATCH:step * GLOBAL_BATCH]
        targets = sum(t != -100 for s in part for t in s["labels"])
        opt.zero_grad(set_to_none=False)
        total = 0.0
        for s in part:
            ids = torch.tensor([s["input_ids"]])
            token = losses_of(text_logits(model, ids), torch.tensor([s["labels"]]))
            loss = token.sum() / targets
            loss.backward()
            total += loss.item()
        for p in trained:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(trained, MAX_NORM).item()
        opt.step()
        log.append([step, digits(total), digits(norm)])
    return log


def table(path, rows):
    path.write_text("".join(" ".join(map(str, r)) + "\n" for r in rows))


def make_texts(name, case):
    """Virtual tokens as they begin: the rows of a text with the special tokens of tokenizer.json."""
    folder = HERE / "peft" / name
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    weights = load_file(HERE / case["base"] / "model.safetensors")
    with tempfile.TemporaryDirectory() as saved:
        tokenizer.save_pretrained(saved)
        for text, n in case["texts"]:
            model = build(MODELS[case["model"]]["config"], weights, True)
            config = PromptTuningConfig(
                task_type="CAUSAL_LM", num_virtual_tokens=n, prompt_tuning_init="TEXT",
                prompt_tuning_init_text=text, tokenizer_name_or_path=saved)
            model = get_peft_model(model, config)
            save_file({"prompt_embeddings": model.prompt_encoder["default"].embedding.weight.detach().float()},
                      folder / f"{n}.safetensors", {"format": "pt"})


def make(name):
    case = CASES[name]
    if "texts" in case:
        return make_texts(name, case)
    model, samples, folder = adapted(case), samples_of(case), HERE / "peft" / name
    save(model, folder / "first", case.get("base_too", False))
    table(folder / "first.txt", text_losses(model, samples))
    if name == "moe":
        save_each(folder / "first", folder / "each", MODELS[case["model"]]["config"]["num_experts"])
    if name == "vera":
        save_drawn(folder / "first", folder / "drawn")
    if "prompt" in case:
        table(folder / "generated.txt", generated(model, samples))
        method = {"kind": "prompt_tuning", "num_virtual_tokens": case["prompt"]}
    elif "ours" in case:
        method = {"kind": "stack", "methods": case["ours"]}
    else:
        return
    dump(folder / "train.json", {
        "peft": method,
        "optimizer": {"name": "adamw", **ADAMW, "lr": LR}})
    table(folder / "steps.txt", learn(model, samples))
    save(model, folder / "last", case.get("base_too", False))
    table(folder / "last.txt", text_losses(model, samples))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        make(name)
