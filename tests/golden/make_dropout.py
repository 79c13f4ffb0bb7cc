#!/usr/bin/env python3
"""Golden vectors of training with dropout: transformers, dropping what d9d drops.

    python make_dropout.py [CASE...]       # writes dropout/CASE.json beside this file; without one all

Each case is a checkpoint of families/ or encoders/, trained with rates of dropout:

    {"checkpoint": FOLDER, "rates": {config.json's field: rate},
     "steps": [{"loss": ..., "grad_norm": ...}, ...]}

torch's dropout is replaced by one that draws from Philox 4x32-10 as docs/design/dropout.md says:
number token * width + column of a stream that the parameter before the site names; of attention's
probabilities number token * L + key, of the stream of k_proj (kv_up_proj) + head.  The steps are
those of make_families.py and of the classes of make_encoders.py, in float64.
"""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
import transformers as T
import xxhash
from transformers.utils import logging
from safetensors.torch import load_file

import make_encoders
import make_families
from make_families import HERE, build, class_name, dump, fill

ATTENTION = dict(attention_dropout=0.2)
CASES = {
    "gpt2": dict(attn_pdrop=0.2, resid_pdrop=0.15, embd_pdrop=0.1),
    "gpt2_odd": dict(attn_pdrop=0.5, resid_pdrop=0.0, embd_pdrop=0.3),
    "gpt_neox": dict(hidden_dropout=0.15, attention_dropout=0.1),
    "gpt_neox_odd": dict(hidden_dropout=0.1, attention_dropout=0.2),
    "phi3": dict(resid_pdrop=0.2, attention_dropout=0.1),
    "llama": ATTENTION,
    "gemma2": ATTENTION,
    "gpt_oss": ATTENTION,
    "deepseek_v3": ATTENTION,
    "qwen3_5": ATTENTION,
    "modernbert": dict(embedding_dropout=0.1, mlp_dropout=0.2, attention_dropout=0.15),
}
# Sites of a layer in the order in which transformers comes to them.
ATTENTION_SITE = ["self_attn.k_proj"]
OUTPUT_SITES = ATTENTION_SITE + ["self_attn.o_proj", "mlp.down_proj"]
PROBABILITIES = ("k_proj.weight", "kv_up_proj.weight")  # these sites are of attention's probabilities
SITES = {
    "gpt2": OUTPUT_SITES, "gpt_neox": OUTPUT_SITES, "phi3": OUTPUT_SITES,
    "deepseek_v3": ["self_attn.kv_up_proj"],
    "modernbert": ["attn.k_proj", "attn.o_proj", "mlp.up_proj"],
}
EMBEDDING = "model.embed_tokens.token_embedding.regular.weight"
WITH_EMBEDDING = ("gpt2", "gpt_neox", "modernbert")


def philox(stream, index):
    """Random numbers of these indices in [0, 1), with seed 0."""
    block = index // 4
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c = [block & mask, block >> half, np.full_like(block, stream & 0xFFFFFFFF), np.full_like(block, stream >> 32)]
    k = [0, 0]
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> half) ^ c[1] ^ np.uint64(k[0]), p1 & mask, (p0 >> half) ^ c[3] ^ np.uint64(k[1]), p0 & mask]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    word = np.choose((index % np.uint64(4)).astype(int), c)
    return (word >> np.uint64(8)) / float(1 << 24)


def stream_of(name):
    number = xxhash.xxh3_64_intdigest(name.encode())
    return xxhash.xxh3_64_intdigest(number.to_bytes(8, "little"))


class Dropper:
    """In place of torch's dropout: sites follow each other as in `sites`."""

    def __init__(self, sites, positions):
        self.sites, self.positions = sites, positions

    def begin(self, samples):
        """Before a forward of these samples of the stream."""
        self.samples, self.at = samples, 0

    def tokens(self, length):
        rows = np.array(self.samples, dtype=np.uint64)[:, None] * np.uint64(self.positions)
        return rows + np.arange(length, dtype=np.uint64)[None]

    def __call__(self, x, p=0.5, training=True, inplace=False):
        site = self.sites[self.at]
        self.at += 1
        stream, by_head = stream_of(site), site.endswith(PROBABILITIES)
        token = self.tokens(x.shape[-2])[..., None]
        width = self.positions if by_head else x.shape[-1]
        index = token * np.uint64(width) + np.arange(x.shape[-1], dtype=np.uint64)
        if by_head:
            drawn = np.stack([philox((stream + h) % 2**64, index) for h in range(x.shape[1])], 1)
        else:
            drawn = philox(stream, index)
        keep = torch.from_numpy(drawn >= np.float32(p)).view(x.shape)
        return torch.where(keep, x / (1 - p), torch.zeros_like(x))


def sites_of(name, config):
    kind = name.removesuffix("_odd")
    sites = [EMBEDDING] if kind in WITH_EMBEDDING else []
    for i in range(config.num_hidden_layers):
        if getattr(config, "layer_types", None) and config.layer_types[i] == "linear_attention":
            continue
        sites += [f"model.layers.{i}.{site}.weight" for site in SITES.get(kind, ATTENTION_SITE)]
    return sites


def read(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def train_family(name, rates):
    kind, cfg = make_families.CASES[name]
    folder = HERE / "families" / name
    config = getattr(T, make_families.CONFIGS.get(kind, kind) + "Config")(**{**cfg, **rates})
    config._attn_implementation = config._experts_implementation = "eager"
    loaded = getattr(T, class_name(kind)).from_pretrained(folder, dtype=torch.float32)
    state = {**dict(loaded.named_parameters()), **dict(loaded.named_buffers())}
    exact = build(kind, config, True)
    fill(exact, {k: v.double() for k, v in state.items() if not k.endswith(("inv_freq", "embed_scale"))})
    exact.tie_weights()
    exact.train()
    samples = read(folder, "train.jsonl")
    ids = torch.tensor([s["input_ids"] for s in samples])
    labels = torch.tensor([s["labels"] for s in samples])
    drop = F.dropout = Dropper(sites_of(name, config), config.max_position_embeddings)
    losses, step = make_families.losses, [0]

    def losses_of(model, ids, labels):
        drop.begin([len(ids) * step[0] + i for i in range(len(ids))])
        step[0] += 1
        out = losses(model, ids, labels)
        assert drop.at == len(drop.sites), (drop.at, len(drop.sites))
        return out

    make_families.losses = losses_of
    steps = make_families.train(exact, ids, labels)
    make_families.losses = losses
    return f"families/{name}", steps


def train_encoder(name, rates):
    folder = HERE / "encoders" / name
    config = T.ModernBertConfig(**{**make_encoders.CASES[name][1], **rates})
    config._attn_implementation = "eager"
    loaded = T.ModernBertModel.from_pretrained(folder, dtype=torch.float32)
    exact = build("ModernBert", config, True, "ModernBertModel")
    fill(exact, {k: v.double() for k, v in loaded.named_parameters()})
    exact.train()
    score = load_file(folder / "own" / "model.safetensors")["cls_head.score.weight"].double()
    texts = [(t["input_ids"], t["labels"][-1]) for t in read(folder, "texts.jsonl")]
    drop = F.dropout = Dropper(sites_of(name, config), config.max_position_embeddings)
    hidden, sample = make_encoders.hidden, [0]

    def hidden_of(model, ids):
        drop.begin([sample[0]])
        sample[0] += 1
        out = hidden(model, ids)
        assert drop.at == len(drop.sites), (drop.at, len(drop.sites))
        return out

    make_encoders.hidden = hidden_of
    steps = [dict(step=i + 1, **s) for i, s in enumerate(make_encoders.classes(exact, score, texts))]
    make_encoders.hidden = hidden
    return f"encoders/{name}", steps


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    (HERE / "dropout").mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        train = train_encoder if name == "modernbert" else train_family
        checkpoint, steps = train(name, CASES[name])
        dump(HERE / "dropout" / f"{name}.json", {"checkpoint": checkpoint, "rates": CASES[name], "steps": steps})
        print(f"{name:14} {steps[0]['loss']:.6f} {steps[-1]['loss']:.6f}", flush=True)


if __name__ == "__main__":
    main()
