#!/usr/bin/env python3
"""Golden vectors of chats: messages, and the ids and the mask of trained tokens that HuggingFace
transformers gives them with a ChatML template.

    python make_chat.py          # writes chat.jsonl beside this file

The tokenizer is that of examples/, the template's twin is examples/chat/qwen3.json.
"""
import json
import random
from pathlib import Path

from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
TOKENIZER = HERE.parents[1] / "examples" / "tokenizer" / "tokenizer.json"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{{ '\\n' }}"
    "{% else %}{{ m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
)
TEXTS = [
    "Hello.", "What does `for (int i = 0; i < n; i++)` do?", "It counts from 0 to n - 1.",
    "e\u0301t\u00e9 \U0001f600 \u4f60\u597d", "a\n\n  b\n", "1234567", "x", "trailing space ",
    "void f(void)\n{\n\treturn;\n}\n\n", "Why?  Because:\n\n- one\n- two\n", "don't",
]


def chats():
    rng = random.Random(1)
    yield [("user", "Hello."), ("assistant", "Hi!")]
    yield [("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "2")]
    yield [("user", "a"), ("assistant", "<think>\nshort\n</think>\n\nb"), ("user", "c"),
           ("assistant", "d")]
    yield [("user", ""), ("assistant", "")]
    for _ in range(60):
        chat = [("system", rng.choice(TEXTS))] if rng.random() < 0.5 else []
        for _ in range(rng.randint(1, 4)):
            chat += [("user", " ".join(rng.sample(TEXTS, 2))), ("assistant", rng.choice(TEXTS))]
        yield chat


def main():
    tok = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    with open(HERE / "chat.jsonl", "w", encoding="utf-8") as out:
        for chat in chats():
            messages = [{"role": r, "content": c} for r, c in chat]
            made = tok.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=True,
                                           return_dict=True, return_assistant_tokens_mask=True)
            out.write(json.dumps({"messages": messages, "ids": made["input_ids"],
                                  "mask": made["assistant_masks"]}) + "\n")


if __name__ == "__main__":
    main()
