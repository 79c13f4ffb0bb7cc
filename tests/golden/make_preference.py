#!/usr/bin/env python3
"""Golden values of preference training and distillation, by TRL's own trainers.

    python make_preference.py      # writes preference/ beside this file

Two tiny models, records of answers, and what TRL reports of the first step over all of them: loss, gradient
norm, rewards. DPO's with label smoothing, ORPO's and SimPO's losses, and those of distillation, are computed here by their papers'
formulas, on TRL's tokens: TRL's ORPO adds the prompt to the cross entropy.
"""
import json
import sys
import tempfile
from pathlib import Path

sys.path.pop(0)  # the folder peft/ beside this file is no package

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer  # noqa: E402

HERE = Path(__file__).resolve().parent
OUT = HERE / "preference"
TEMPLATE = ("{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{%- endfor %}"
            "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}")
WORDS = "int main void return include define char size static const if else for while struct".split()
N = 8
COMMON = dict(per_device_train_batch_size=N, max_steps=1, learning_rate=0.0, max_grad_norm=1e9, use_cpu=True,
              logging_steps=1, report_to="none", save_strategy="no", bf16=False, fp16=False,
              gradient_checkpointing=False, max_length=None)


def words(rng, low, high):
    n = int(torch.randint(low, high, (1,), generator=rng))
    return " ".join(WORDS[int(i)] for i in torch.randint(0, len(WORDS), (n,), generator=rng))


def records():
    rng = torch.Generator().manual_seed(5)
    pairs = [{"prompt": words(rng, 2, 9), "chosen": words(rng, 1, 9), "rejected": words(rng, 1, 9)}
             for _ in range(N)]
    unpaired = [{"prompt": words(rng, 2, 9), "completion": words(rng, 1, 9), "label": i % 3 != 1}
                for i in range(N)]
    return pairs, unpaired


def model(seed):
    torch.manual_seed(seed)
    c = Qwen3Config(vocab_size=2048, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=8, intermediate_size=24, max_position_embeddings=1024,
                    rope_theta=10000.0, tie_word_embeddings=True, rms_norm_eps=1e-6, initializer_range=0.3,
                    torch_dtype="float32")
    return Qwen3ForCausalLM(c).float()


def chat(record):
    """Conversational records, as d9d-shard makes them of texts."""
    answer = {k: [{"role": "assistant", "content": record[k]}] for k in record if k not in ("prompt", "label")}
    return {"prompt": [{"role": "user", "content": record["prompt"]}], **answer,
            **({"label": record["label"]} if "label" in record else {})}


def run(trainer):
    with tempfile.TemporaryDirectory() as d:
        trainer.args.output_dir = d
        trainer.train()
    log = trainer.state.log_history[0]
    return {k: log[k] for k in sorted(log) if k in ("loss", "grad_norm", "kl") or k.startswith("rewards/")}


def by_dpo(pairs, tok, **options):
    with tempfile.TemporaryDirectory() as d:
        return run(DPOTrainer(model(1), model(2), args=DPOConfig(output_dir=d, **COMMON, **options),
                              train_dataset=Dataset.from_list([chat(r) for r in pairs]), processing_class=tok))


def by_kto(unpaired, tok, **options):
    with tempfile.TemporaryDirectory() as d:
        return run(KTOTrainer(model(1), model(2), args=KTOConfig(output_dir=d, **COMMON, **options),
                              train_dataset=Dataset.from_list([chat(r) for r in unpaired]),
                              processing_class=tok))


# ---- formulas ------------------------------------------------------------------------------------

def tokens(tok, prompt, answer):
    user = [{"role": "user", "content": prompt}]
    head = tok.apply_chat_template(user, add_generation_prompt=True, tokenize=False)
    whole = tok.apply_chat_template(user + [{"role": "assistant", "content": answer}], tokenize=False)
    ids = tok(whole, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids), len(tok(head, add_special_tokens=False)["input_ids"])


def answer_log_probs(m, ids, n_prompt):
    log_p = m(ids[None, :-1]).logits[0].double().log_softmax(-1)
    return log_p.gather(-1, ids[1:, None])[n_prompt - 1:, 0]


def grad_norm(m, loss):
    grads = torch.autograd.grad(loss, [p for p in m.parameters() if p.requires_grad])
    return float(torch.sqrt(sum((g.double() ** 2).sum() for g in grads)))


def by_means(pairs, tok, kind, beta, gamma=0.5):
    m = model(1)
    losses = []
    for r in pairs:
        c, j = (answer_log_probs(m, *tokens(tok, r["prompt"], r[k])).mean() for k in ("chosen", "rejected"))
        odds = [x - torch.log1p(-x.exp()) for x in (c, j)]
        losses.append(-c - beta * F.logsigmoid(odds[0] - odds[1]) if kind == "orpo"
                      else -F.logsigmoid(beta * (c - j) - gamma))
    loss = torch.stack(losses).mean()
    return {"loss": float(loss.detach()), "grad_norm": grad_norm(m, loss)}


def by_cdpo(pairs, tok, beta, e):
    """Conservative DPO, which TRL's "sigmoid" was until it left label smoothing to "robust"."""
    m, ref = model(1), model(2)
    losses = []
    for r in pairs:
        c, j = (answer_log_probs(m, *tokens(tok, r["prompt"], r[k])).sum() for k in ("chosen", "rejected"))
        with torch.no_grad():
            c0, j0 = (answer_log_probs(ref, *tokens(tok, r["prompt"], r[k])).sum() for k in ("chosen", "rejected"))
        z = beta * ((c - c0) - (j - j0))
        losses.append(-(1 - e) * F.logsigmoid(z) - e * F.logsigmoid(-z))
    loss = torch.stack(losses).mean()
    return {"loss": float(loss.detach()), "grad_norm": grad_norm(m, loss)}


def by_jsd(pairs, tok, beta, temperature, divergence=1.0, cross_entropy=0.0, hidden=0.0):
    """On the answers of all pairs.  TRL: GKDTrainer.generalized_jsd_loss."""
    m, teacher = model(1), model(2)
    total, n = 0, 0
    for r in pairs:
        for k in ("chosen", "rejected"):
            ids, at = tokens(tok, r["prompt"], r[k])
            s = m.model(ids[None, :-1]).last_hidden_state[0, at - 1:]
            with torch.no_grad():
                q = teacher.model(ids[None, :-1]).last_hidden_state[0, at - 1:]
                b = (teacher.lm_head(q).double() / temperature).log_softmax(-1)
            logits = m.lm_head(s).double()
            a = (logits / temperature).log_softmax(-1)
            mix = torch.log((1 - beta) * a.exp() + beta * b.exp())
            jsd = beta * (b.exp() * (b - mix)).sum(-1) + (1 - beta) * (a.exp() * (a - mix)).sum(-1)
            if beta in (0, 1):
                jsd = (b.exp() * (b - a)).sum(-1) if beta == 0 else (a.exp() * (a - b)).sum(-1)
            ce = F.cross_entropy(logits, ids[at:], reduction="none")
            mse = ((s - q) ** 2).mean(-1).double()
            total = total + (divergence * jsd + cross_entropy * ce + hidden * mse).sum()
            n += len(ids) - at
    loss = total / n
    return {"loss": float(loss.detach()), "grad_norm": grad_norm(m, loss)}


def main():
    torch.set_num_threads(1)
    tok = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "../../examples/tokenizer/tokenizer.json"),
                                  eos_token="<|im_end|>", pad_token="<|im_end|>")
    tok.chat_template = TEMPLATE
    pairs, unpaired = records()
    OUT.mkdir(exist_ok=True)
    (OUT / "chat.jinja").write_text(TEMPLATE)
    for name, rows in (("pairs", pairs), ("unpaired", unpaired)):
        (OUT / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for name, seed in (("student", 1), ("teacher", 2)):
        model(seed).save_pretrained(OUT / name)
        (OUT / name / "generation_config.json").unlink()
    reference = {"reference": {"checkpoint": "teacher"}}
    teacher = {"name": "distillation", "teacher": {"checkpoint": "teacher"}}
    cases = [
        ("dpo", "pairs", {"beta": 0.1, **reference}, by_dpo(pairs, tok, beta=0.1, loss_type="sigmoid")),
        ("dpo_smoothed", "pairs", {"beta": 0.3, "label_smoothing": 0.1, **reference},
         by_cdpo(pairs, tok, 0.3, 0.1)),
        ("ipo", "pairs", {"loss": "ipo", "beta": 0.2, **reference},
         by_dpo(pairs, tok, beta=0.2, loss_type="ipo")),
        ("kto", "unpaired", {"loss": "kto", "beta": 0.1, "desirable_weight": 1.5, **reference},
         by_kto(unpaired, tok, beta=0.1, desirable_weight=1.5)),
        ("orpo", "pairs", {"loss": "orpo", "beta": 0.1}, by_means(pairs, tok, "orpo", 0.1)),
        ("simpo", "pairs", {"loss": "simpo", "beta": 2.0, "gamma": 0.7},
         by_means(pairs, tok, "simpo", 2.0, 0.7)),
        ("forward_kl", "pairs", {**teacher, "beta": 0}, by_jsd(pairs, tok, 0, 1.0)),
        ("reverse_kl", "pairs", {**teacher, "beta": 1, "temperature": 2.0}, by_jsd(pairs, tok, 1, 2.0)),
        ("jsd_mixed", "pairs",
         {**teacher, "beta": 0.3, "temperature": 1.5, "divergence_weight": 0.6, "cross_entropy_weight": 0.4,
          "hidden_weight": 0.25}, by_jsd(pairs, tok, 0.3, 1.5, 0.6, 0.4, 0.25)),
    ]
    (OUT / "cases.json").write_text(json.dumps(
        [{"case": c, "data": d, "task": {"name": "preference", **t}, "step": s} for c, d, t, s in cases],
        indent=1) + "\n")


if __name__ == "__main__":
    main()
