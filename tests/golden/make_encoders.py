#!/usr/bin/env python3
"""Golden vectors of encoders: hidden states, gradients, pooled texts, steps of two tasks.

    python make_encoders.py [CASE...]      # writes encoders/CASE and masked_lm/CASE beside this file;
                                           # without one all

Each case of encoders/ is a checkpoint as transformers saves it (weights are bfloat16 numbers), with

    golden.safetensors   input_ids, positions [3, S]; segments [N, 4], the documents and the padding
                         of the rows; hidden [3, S, H]; hidden_seed [3, S, H], by which hidden is
                         multiplied for a loss; grad.NAME: its gradients, names of a base model;
                         float32_apart [1]: how far transformers' own float32 is from them
    texts.jsonl          ids and the class as the label of the last token, as d9d-shard takes them
    values.jsonl         for each text "prediction": probabilities by the head; "last", "mean",
                         "cls": last_hidden_state, pooled; "states": means of what comes out of the
                         embedding and of each layer
    own/                 the model in the suite's layout, with a head cls_head.score
    steps.jsonl          loss and norm of AdamW steps of 4 texts each, with that head and "cls"
    pairs.jsonl          the same of InfoNCE over pairs of neighbours, 8 texts a step in parts of 4,
                         of "mean" and with temperature 0.1

All are computed in float64 and each document by itself.

Each case of masked_lm/ is a model with the head of ModernBertForMaskedLM, with files as those of
families/ (make_families.py): rows are whole documents, of which some tokens are masked, and only
these have labels; the loss is transformers' own.  fill_mask.jsonl has what its pipeline fill-mask
answers for the same rows: of each mask "tokens" and "scores", the best first.
"""
import copy
import json
import sys

import torch
import transformers as T
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.utils import logging
from safetensors.torch import load_file, save_file

from make_families import HERE, IGNORE, build, digits, draw_weights, dump, fill, to_files
from make_families import train as train_rows

SMALL = dict(vocab_size=53, hidden_size=24, intermediate_size=28, num_hidden_layers=4,
             num_attention_heads=4, max_position_embeddings=64, local_attention=6, pad_token_id=0,
             cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2)
CASES = {
    "modernbert": ("Model", SMALL),
    "modernbert_bias": ("ForMaskedLM", dict(
        SMALL, num_hidden_layers=3, local_attention=4, norm_bias=True, attention_bias=True,
        mlp_bias=True, norm_eps=1e-3, hidden_activation="gelu_pytorch_tanh",
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=500.0),
                             sliding_attention=dict(rope_type="default", rope_theta=20.0)))),
    "modernbert_odd": ("ForSequenceClassification", dict(
        SMALL, hidden_size=40, num_attention_heads=5, intermediate_size=18, num_hidden_layers=5,
        local_attention=3, global_attn_every_n_layers=2, num_labels=3)),
}
MASK, MASK_SPECIAL = 3, 4  # the mask; ids below the second are special
MASKED_LM = {
    "modernbert": SMALL,
    "modernbert_untied": dict(
        SMALL, num_hidden_layers=3, local_attention=4, norm_bias=True, attention_bias=True,
        mlp_bias=True, norm_eps=1e-3, tie_word_embeddings=False, classifier_bias=True,
        classifier_activation="gelu_pytorch_tanh", sparse_prediction=True,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
    "modernbert_odd": dict(
        SMALL, vocab_size=61, hidden_size=40, num_attention_heads=5, intermediate_size=18,
        num_hidden_layers=5, local_attention=3, global_attn_every_n_layers=2, decoder_bias=False,
        classifier_activation="silu"),
}
ROWS = [[5, 8], [9], [13]]  # documents of each row; the rest is padding
LENGTH, CLASSES = 13, 3
LENGTHS = [9, 17, 6, 12, 1, 5, 11, 14, 3, 8, 20, 7, 2, 10, 13, 4]
POOL = {"last": lambda h: h[-1], "mean": lambda h: h.mean(0), "cls": lambda h: h[0]}


def hidden(model, ids):
    return model(input_ids=torch.tensor([ids])).last_hidden_state[0]


def documents():
    """First position and length of each document and padding, of all rows together."""
    for r, row in enumerate(ROWS):
        at = r * LENGTH
        for n in row + [LENGTH - sum(row)]:
            if n > 0:
                yield at, n
            at += n


def batch(vocab, seed):
    g = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(1, vocab, (len(ROWS), LENGTH), generator=g)
    positions = torch.zeros(len(ROWS) * LENGTH, dtype=torch.int32)
    weight = torch.zeros(len(ROWS), LENGTH, 1)
    for r, row in enumerate(ROWS):
        ids[r, sum(row):] = 0
        weight[r, :sum(row)] = 1
    for at, n in documents():
        positions[at:at + n] = torch.arange(n)
    return ids, positions.view(len(ROWS), LENGTH), weight, g


def gradients(model, ids, seed):
    flat = ids.flatten().tolist()
    h = torch.cat([hidden(model, flat[at:at + n]) for at, n in documents()]).view(*ids.shape, -1)
    (h * seed.to(h.dtype)).sum().backward()
    return h.detach(), {k: p.grad.double() for k, p in model.named_parameters()}


def values(model, score, ids):
    heard = []
    hooks = [m.register_forward_hook(lambda _m, _i, o: heard.append(
        (o[0] if isinstance(o, tuple) else o)[0])) for m in [model.embeddings, *model.layers]]
    with torch.no_grad():
        last = hidden(model, ids)
    for h in hooks:
        h.remove()
    numbers = lambda t: [digits(v) for v in t.tolist()]
    return {"prediction": numbers((score @ POOL["cls"](last)).softmax(-1)),
            **{k: numbers(f(last)) for k, f in POOL.items()},
            "states": [numbers(h.mean(0)) for h in heard]}


def train(params, size, steps, loss_of):
    opt = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    for step in range(steps):
        opt.zero_grad()
        loss = loss_of([(size * step + i) % len(LENGTHS) for i in range(size)])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        yield {"loss": digits(loss.item()), "grad_norm": digits(norm.item())}


def classes(model, score, texts):
    score = torch.nn.Parameter(score.clone())
    entropy = torch.nn.functional.cross_entropy
    return train([*model.parameters(), score], 4, 10, lambda at: sum(entropy(
        score @ POOL["cls"](hidden(model, texts[i][0])), torch.tensor(texts[i][1]))
        for i in at) / 4)


def info_nce(model, texts):
    rows = torch.stack([POOL["mean"](hidden(model, ids)) for ids, _ in texts])
    e = torch.nn.functional.normalize(rows, dim=-1)
    scores = e[0::2] @ e[1::2].T / 0.1
    return torch.nn.functional.cross_entropy(scores, torch.arange(len(scores)), reduction="sum")


def pairs(model, texts):
    return train(list(model.parameters()), 8, 6, lambda at: (
        info_nce(model, [texts[i] for i in at[:4]]) +
        info_nce(model, [texts[i] for i in at[4:]])) / 4)


def own_layout(folder, tensors, score):
    """The suite's names, and projections that are one tensor in the files."""
    out = {"cls_head.score.weight": score}
    parts = {"attn.Wqkv.": ("attn.q_proj.", "attn.k_proj.", "attn.v_proj."),
             "mlp.Wi.": ("mlp.gate_proj.", "mlp.up_proj."), "attn.Wo.": ("attn.o_proj.",),
             "mlp.Wo.": ("mlp.down_proj.",)}
    for name, t in tensors.items():
        name = "model." + name.replace("final_norm", "norm").replace(
            "embeddings.tok_embeddings", "embed_tokens.token_embedding.regular")
        names = [name]
        for there, here in parts.items():
            if there in name:
                names = [name.replace(there, h) for h in here]
        for n, part in zip(names, t.chunk(len(names))):
            out[n] = part.contiguous().clone()
    (folder / "own").mkdir(exist_ok=True)
    save_file({k: v.float() for k, v in out.items()}, folder / "own" / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["num_labels"] = CLASSES
    config.pop("id2label", None), config.pop("label2id", None)
    config["d9d"] = {"layout": "d9d", "head": "classification", "experts": "per-expert"}
    (folder / "own" / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def lines(path, items):
    path.write_text("".join(json.dumps(i) + "\n" for i in items))


def dump_encoder(folder, suffix, config, seed):
    """The checkpoint and golden.safetensors; and the model in float64, a generator of numbers, and
    how far float32 is from it."""
    config._attn_implementation = "eager"
    folder.mkdir(parents=True, exist_ok=True)
    ids, positions, weight, g = batch(config.vocab_size, seed)
    plain = build("ModernBert", config, name="ModernBertModel")
    weights = draw_weights(plain, seed)
    fill(plain, weights)
    outer = plain
    if suffix != "Model":
        outer = build("ModernBert", config, name="ModernBert" + suffix)
        fill(outer, draw_weights(outer, seed + 50))  # the head's are its own
        outer.model.load_state_dict(plain.state_dict())
        outer.tie_weights()
    copy.deepcopy(outer).to(torch.bfloat16).save_pretrained(folder)
    exact = fill(build("ModernBert", config, True, "ModernBertModel"), weights)
    hidden_seed = torch.randn(*ids.shape, config.hidden_size, generator=g) * weight
    h, grads = gradients(copy.deepcopy(exact), ids, hidden_seed)
    h32, grads32 = gradients(plain, ids, hidden_seed)
    apart = max([((h32 - h).norm() / h.norm()).item()] +
                [((grads32[k] - v).norm() / v.norm()).item() for k, v in grads.items()])
    out = {"grad." + k: v.float().contiguous()
           for k, v in to_files(copy.deepcopy(exact), grads, folder / "tmp").items()}
    segments = torch.tensor([[at, n, at, n] for at, n in documents()], dtype=torch.int32)
    out.update(input_ids=ids.int(), positions=positions, segments=segments, hidden=h.float(),
               hidden_seed=hidden_seed.float(), float32_apart=torch.tensor([apart]))
    save_file(out, folder / "golden.safetensors", metadata={"format": "pt"})
    return exact, g, apart


def make(name, seed):
    suffix, cfg = CASES[name]
    folder = HERE / "encoders" / name
    exact, g, apart = dump_encoder(folder, suffix, T.ModernBertConfig(**cfg), seed)
    texts = [(torch.randint(1, cfg["vocab_size"], (n,), generator=g).tolist(), i % CLASSES)
             for i, n in enumerate(LENGTHS)]
    score = (0.3 * torch.randn(CLASSES, cfg["hidden_size"], generator=g)).double()
    score = score.float().double()
    lines(folder / "texts.jsonl", ({"input_ids": t, "labels": [-100] * (len(t) - 1) + [c]}
                                   for t, c in texts))
    lines(folder / "values.jsonl", (values(exact, score, t) for t, _ in texts))
    lines(folder / "pairs.jsonl", pairs(copy.deepcopy(exact), texts))
    lines(folder / "steps.jsonl", classes(copy.deepcopy(exact), score, texts))
    own_layout(folder, {k: v.detach() for k, v in exact.named_parameters()}, score)
    print(f"{name:18} float32 apart {apart:.1e}", flush=True)
    return apart < 2e-5


# --- masked language models ---


def masked_rows(vocab, seed):
    """Rows, of which three in ten tokens are masked by BERT's rule, and labels of these."""
    g = torch.Generator().manual_seed(2000 + seed)
    ids = torch.randint(MASK_SPECIAL, vocab, (3, LENGTH), generator=g)
    ids[:, 0], ids[:, -1] = SMALL["cls_token_id"], SMALL["sep_token_id"]
    chosen = (torch.rand(ids.shape, generator=g) < 0.3) & (ids >= MASK_SPECIAL)
    chosen[:, 5] = True
    rule, other = torch.rand(ids.shape, generator=g), torch.randint(0, vocab, ids.shape, generator=g)
    labels = torch.where(chosen, ids, IGNORE)
    ids = torch.where(chosen & (rule < 0.8), MASK, ids)
    return torch.where(chosen & (rule > 0.9), other, ids), labels


def masked_losses(model, ids, labels):
    logits = model(input_ids=ids).logits
    token = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="none").view(labels.shape)
    loss = token.sum() / (labels != IGNORE).sum()
    own = model(input_ids=ids, labels=labels).loss
    assert abs(own.item() - loss.item()) < 1e-5 * own.item()
    return logits, token, loss


def fill_masks(folder, ids, top_k=5):
    """Of the checkpoint; a token is spelled as its number, <7>."""
    model = T.ModernBertForMaskedLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    words = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(model.config.vocab_size)}, unk_token="<0>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = T.PreTrainedTokenizerFast(tokenizer_object=words, mask_token=f"<{MASK}>", pad_token="<0>",
                                          model_input_names=["input_ids", "attention_mask"])
    fill = T.pipeline("fill-mask", model=model, tokenizer=tokenizer, device="cpu", top_k=top_k)
    for row in ids.tolist():
        at = [i for i, t in enumerate(row) if t == MASK]
        got = fill(" ".join(f"<{t}>" for t in row))
        got = [got] if len(at) == 1 else got
        assert len(got) == len(at)
        yield {"input_ids": row, "positions": at, "tokens": [[a["token"] for a in mask] for mask in got],
               "scores": [[digits(a["score"]) for a in mask] for mask in got]}


def make_masked_lm(name, seed):
    folder, kind = HERE / "masked_lm" / name, "ModernBertForMaskedLM"
    config = T.ModernBertConfig(**MASKED_LM[name])
    config._attn_implementation = "eager"
    folder.mkdir(parents=True, exist_ok=True)
    ids, labels = masked_rows(config.vocab_size, seed)
    plain = build("ModernBert", config, name=kind)
    weights = draw_weights(plain, seed)
    fill(plain, weights).tie_weights()
    plain_logits, _, loss = masked_losses(plain, ids, labels)
    loss.backward()
    plain_grads = {k: p.grad.double() for k, p in plain.named_parameters()}
    copy.deepcopy(plain).to(torch.bfloat16).save_pretrained(folder)
    exact = fill(build("ModernBert", config, True, kind), weights)
    exact.tie_weights()
    logits, token, loss = masked_losses(exact, ids, labels)
    loss.backward()
    grads = {k: p.grad for k, p in exact.named_parameters()}
    apart = max([((plain_logits - logits).norm() / logits.norm()).item()] +
                [((plain_grads[k] - g).norm() / g.norm()).item() for k, g in grads.items()])
    names = load_file(folder / "model.safetensors").keys()
    out = {"grad." + k: v.float().contiguous()
           for k, v in to_files(exact, grads, folder / "tmp").items() if k in names}
    out.update(input_ids=ids.int(), labels=labels.int(), logits=logits.detach().float(),
               token_losses=token.detach().float(), float32_apart=torch.tensor([apart]))
    save_file(out, folder / "golden.safetensors", metadata={"format": "pt"})
    lines(folder / "train.jsonl", ({"input_ids": i, "labels": l}
                                   for i, l in zip(ids.tolist(), labels.tolist())))
    lines(folder / "fill_mask.jsonl", fill_masks(folder, ids))
    dump(folder / "train.json", train_rows(exact, ids, labels, masked_losses))
    print(f"masked_lm/{name:18} loss {loss.item():.4f}  float32 apart {apart:.1e}", flush=True)
    return apart < 2e-5


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for seed, name in enumerate(CASES):
        if len(sys.argv) == 1 or name in sys.argv[1:]:
            while not make(name, seed):  # it amplifies rounding, and so tells little
                seed += 100
    for seed, name in enumerate(MASKED_LM):
        if len(sys.argv) == 1 or "masked_lm/" + name in sys.argv[1:]:
            while not make_masked_lm(name, seed):
                seed += 100


if __name__ == "__main__":
    main()
