#!/usr/bin/env python3
"""Golden vectors of chats: messages, and the ids and the mask of trained tokens that HuggingFace
transformers gives them with a ChatML template; chats of all kinds, and prompts, as Qwen3's own
template has them.

    python make_chat.py                     # writes chat.jsonl beside this file, and chats/
    python make_chat.py QWEN3_TEMPLATE.jinja [TOKENIZER.json [FOLDER]]   # chat_qwen3.jsonl, chat_prompts.jsonl

The tokenizer is that of examples/, the template's twin is examples/chat/qwen3.jinja.
chats/ has other families: tokenizers that write spaces anew, and templates that end in a blank;
and other styles of templates, with tools, thoughts and system messages.
QWEN3_TEMPLATE is the "chat_template" of a Qwen3 tokenizer_config.json.
"""
import json
import random
import re
import sys
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


# ---- tools ----------------------------------------------------------------------------------

VALUES = [1, -7, 0, 2.5, True, None, "x", "a \"quoted\" \\ path/1", "tab\tline\nend", "\u00e9\u4f60\U0001f600",
          "\x01\x7f\u2028", "@1.50", "@1e5", "@-0", "@-0.0", "@1E-7", "@123456789012345678901234567890",
          "@0.1", "@1e16", "@1.0", "@12345.678900", "@1e400", "@0.00001", "@0.0001", "@9007199254740993.0",
          "@5e-324", "@1.7976931348623157e308", "@100e-2", [], {}, [1, [2, {"k": []}]], {"a": {"b": [None, False]}}, ""]


def call(rng):
    arguments = {f"k{i}": rng.choice(VALUES) for i in range(rng.randint(0, 3))}
    made = {"name": rng.choice(["get_weather", "f", "run-2"]),
            "arguments": rng.choice([arguments, json.dumps(arguments), "not json"])}
    if rng.random() < 0.5:
        return {"id": "call_1", "type": "function", "function": made}
    return made


def tool(rng):
    return {"type": "function", "function": {
        "name": rng.choice(["get_weather", "f"]), "description": rng.choice(TEXTS),
        "parameters": {"type": "object", "properties": {"k0": {"enum": rng.sample(VALUES, 3)}},
                       "required": ["k0"]}}}


def is_big(value):
    """Does it have a number that is neither one of 64 bits nor a finite double?"""
    if isinstance(value, (dict, list)):
        return any(is_big(v) for v in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, (int, float)) and not -2 ** 63 <= value < 2 ** 63 and (
        isinstance(value, int) or value in (float("inf"), float("-inf")))


def spelled(value):
    """JSON in which "@1.50" is that number, spelled so."""
    return re.sub(r'(?<!\\)"@([^"\\]+)"', r"\1", json.dumps(value))


THOUGHTS = ["", "\n", "so\nit is", "\n\nhm\n\n", "a <think> b", " "]


def answer(rng):
    """Thoughts in the content, beside it, in both, or none."""
    content, thoughts = rng.choice(TEXTS + ["", "\n", "\n\nlines"]), rng.choice(THOUGHTS)
    message = {"role": "assistant", "content": content}
    kind = rng.random()
    if kind < .3:
        message["content"] = rng.choice(["", "x"]) + "<think>\n" + thoughts + "\n</think>\n\n" + content
    elif kind < .4:
        message["content"] = thoughts + "</think>" + content + "</think>\n" + content
    if rng.random() < .25:
        message["reasoning_content"] = thoughts
    return message


def qwen3_chats():
    rng = random.Random(2)
    yield [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi!"}], []
    yield [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Hi!"}], []
    for k in range(160):
        messages = [{"role": "system", "content": rng.choice(TEXTS + [""])}] if rng.random() < .5 else []
        for _ in range(rng.randint(1, 3)):
            messages.append({"role": "user", "content": rng.choice(TEXTS)})
            for _ in range(rng.randint(0, 2) if k % 2 else 0):
                messages.append({**answer(rng), "tool_calls": [call(rng) for _ in range(rng.randint(1, 3))]})
                messages += [{"role": "tool", "content": rng.choice(TEXTS)}
                             for _ in range(rng.randint(1, 3))]
                if rng.random() < .2:
                    messages.append({"role": "user", "content": "<tool_response>x</tool_response>"})
            messages.append(answer(rng))
        if k % 2 and rng.random() < .3:
            messages[-1]["tool_calls"] = [call(rng)]
        if rng.random() < .2:
            messages[-1] = {**messages[-1], "content": None, "tool_calls": [call(rng)]}
        tools = [tool(rng) for _ in range(rng.randint(1, 2))] if k % 2 and rng.random() < .6 else []
        yield messages, tools


def with_generation(template):
    """The template with what is trained marked; what it renders is the same."""
    start, end = "{%- elif message.role == \"assistant\" %}", "{%- elif message.role == \"tool\" %}"
    before, rest = template.split(start)
    turn, after = rest.split(end)
    turn = turn.replace("'<|im_start|>' + message.role + '\\n<think>", "'<think>")
    turn = turn.replace("'<|im_start|>' + message.role + '\\n' + content", "content")
    turn = turn.replace("{{- '<|im_end|>\\n' }}", "{{- '<|im_end|>' }}")
    return (before + start + "{{- '<|im_start|>assistant\\n' }}{%- generation -%}" + turn +
            "{%- endgeneration %}{{- '\\n' }}" + end + after)


def write_qwen3(template, tokenizer, folder):
    tok = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
    marked = with_generation(template)

    def rendered(messages, tools, jinja, **more):
        return tok.apply_chat_template(messages, tools=tools or None, chat_template=jinja, **more)

    with open(folder / "chat_qwen3.jsonl", "w", encoding="utf-8") as out, \
            open(folder / "chat_prompts.jsonl", "w", encoding="utf-8") as prompts:
        for k, made in enumerate(qwen3_chats()):
            given = spelled({"messages": made[0], "tools": made[1]})
            messages, tools = (json.loads(given)[key] for key in ("messages", "tools"))
            texts = [rendered(messages, tools, t, tokenize=False) for t in (template, marked)]
            assert texts[0] == texts[1], texts
            made = rendered(messages, tools, marked, tokenize=True, return_dict=True,
                            return_assistant_tokens_mask=True)
            if not is_big(json.loads(given)):
                out.write(given[:-1] + ", " + json.dumps({"ids": made["input_ids"],
                                                          "mask": made["assistant_masks"]})[1:] + "\n")
            if k % 4 == 0:
                last = max(i for i, m in enumerate(messages) if m["role"] in ("user", "system"))
                asked = messages[:last + 1]
                ids = [rendered(asked, tools, template, tokenize=True, return_dict=True,
                                add_generation_prompt=True, enable_thinking=on)["input_ids"]
                       for on in (True, False)]
                prompts.write(json.dumps({"messages": asked, "tools": tools, "thinking": ids[0],
                                          "no_thinking": ids[1]}) + "\n")


# ---- families -------------------------------------------------------------------------------

SPACED = TEXTS + [" leading", "\n\nlines first", "   ", "\n", "a</s>b", "<|user|>", "\u4f60\U0001f600",
                  "\u2581 marked", "\u0301 mark first", "A:", "[INST]"]


def added(source, tokens, edit=lambda value: None):
    """A tokenizer of the goldens with more added tokens."""
    value = json.loads((HERE / "tokenizer" / source).read_text("utf-8"))
    behind = max([*value["model"]["vocab"].values(), *(t["id"] for t in value["added_tokens"])]) + 1
    for i, (text, flags) in enumerate(tokens):
        value["added_tokens"].append({"id": behind + i, "content": text, "single_word": False,
                                      "lstrip": False, "rstrip": False, "normalized": False,
                                      "special": True, **flags})
    edit(value)
    return value


def normalized(value):
    for token in value["added_tokens"]:
        token["normalized"] = True


def keep_blanks(value):
    """A blank of several is, to tokenizers, of the first alone; to us of all of them."""
    value["normalizer"]["normalizers"] = [n for n in value["normalizer"]["normalizers"]
                                          if n.get("pattern") != {"Regex": "\\s+"}]



def family(user, assistant, tokenizer, bos="", system=None):
    """The texts around the two roles, (prefix, suffix, after), as a template."""
    def words(role):
        prefix, suffix, after = role
        return tuple(json.dumps(t, ensure_ascii=False) for t in (prefix, suffix, after))

    u, a = words(user), words(assistant)
    jinja = ("{{- %s }}{%%- for m in messages %%}{%%- if m['role'] == 'user' %%}{{- %s + m['content'] + %s + %s }}"
             "{%%- else %%}{{- %s }}{%%- generation %%}{{- m['content'] + %s }}{%%- endgeneration %%}{{- %s }}"
             "{%%- endif %%}{%%- endfor %%}" % (json.dumps(bos), *u, *a))
    return jinja, tokenizer


def families():
    plain = lambda name: added(name, [])
    turns = [("<|user|>", {"rstrip": True}), ("<|assistant|>", {"rstrip": True}), ("<|end|>", {"rstrip": True})]
    inst = [("[INST]", {}), ("[/INST]", {})]
    return {
        "llama2": family(("<s>[INST] ", " [/INST]", ""), (" ", " </s>", ""), plain("llama2.tokenizer.json")),
        "llama2-normalized": family(("<s>[INST] ", " [/INST]", ""), (" ", " </s>", ""),
                                    added("llama2.tokenizer.json", [], normalized)),
        "zephyr": family(("<|user|>\n", "</s>", "\n"), ("<|assistant|>\n", "</s>", "\n"),
                         plain("llama2.tokenizer.json")),
        "phi3": family(("<|user|>\n", "<|end|>", "\n"), ("<|assistant|>\n", "<|end|>", "\n"),
                       added("llama2.tokenizer.json", turns), bos="<s>"),
        "vicuna": family(("USER: ", "", " "), ("ASSISTANT: ", "</s>", ""), plain("metaspace.tokenizer.json"),
                         bos="A chat. "),
        "mistral": family(("[INST] ", "[/INST]", ""), (" ", "</s>", ""),
                          added("metaspace.tokenizer.json", inst), bos="<s>"),
        "always": family(("<s>U: ", "</s>", ""), ("A: ", "</s>", "\n"), plain("metaspace-always.tokenizer.json")),
        "prefixed": family(("User: ", "\n", "\n"), ("Assistant: ", "<|endoftext|>", ""),
                           plain("gpt2-prefix.tokenizer.json")),
        "nfkc": family(("q: ", "\n", ""), ("a: ", "\n\n", ""), added("nfkc.tokenizer.json", [], keep_blanks)),
    }


def write_families():
    folder = HERE / "chats"
    folder.mkdir(exist_ok=True)
    for name, (jinja, tokenizer) in families().items():
        path = folder / f"{name}.tokenizer.json"
        path.write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
        (folder / f"{name}.jinja").write_text(jinja, "utf-8")
        tok = PreTrainedTokenizerFast(tokenizer_file=str(path))
        special = [t.content for t in tok._tokenizer.get_added_tokens_decoder().values()]
        rng = random.Random(3)
        texts = [t for t in SPACED if not any(s in t for s in special)]
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for _ in range(40):
                messages = [{"role": role, "content": rng.choice(texts)}
                            for _ in range(rng.randint(1, 3)) for role in ("user", "assistant")]
                made = tok.apply_chat_template(messages, chat_template=jinja, tokenize=True,
                                               return_dict=True, return_assistant_tokens_mask=True)
                out.write(json.dumps({"messages": messages, "ids": made["input_ids"],
                                      "mask": made["assistant_masks"]}) + "\n")


# ---- styles ---------------------------------------------------------------------------------

# The variables of chats/NAME.jinja, which are templates of the suite's own; test_golden_chat.c gives them too.
STYLES = {
    "headers": {"bos_token": "<|begin|>", "date": "26 Jul 2024"},
    "turns": {"bos_token": "<bos>"},
    "inst": {"bos_token": "<s>", "eos_token": "</s>"},
    "thinking": {},
}
STYLE_TOKENS = ["<|begin|>", "<|start|>", "<|header|>", "<|eot|>", "<bos>", "<start_of_turn>", "<end_of_turn>",
                "<channel>", "<end_of_channel>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOLS]", "[/TOOLS]", "[CALL]",
                "[RESULT]", "[/RESULT]", "[SYSTEM]", "[/SYSTEM]"]
STYLE_TEXTS = [t for t in TEXTS if t] + ["[", "<b>bold</b>", "| a | b |", "x <|im_end|"]
ARGUMENTS = [{}, {"city": "Gen\u00e8ve"}, {"n": 3, "deep": {"list": [1, None, True]}}, {"q": "a \"b\" <c>"}]


def style_chats(name):
    """Conversations with system messages, thoughts, tools, calls and their results."""
    rng = random.Random(5)
    text = lambda: rng.choice(STYLE_TEXTS)
    for k in range(30):
        tools = [tool_of(rng)] if name != "turns" and k % 2 else None
        messages = [{"role": "system", "content": text()}] if rng.random() < .5 else []
        for _ in range(rng.randint(1, 3)):
            messages.append({"role": "user", "content": text()})
            if tools and rng.random() < .5:
                messages.append({"role": "assistant", "content": "", "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": rng.choice(ARGUMENTS)}}]})
                messages.append({"role": "tool", "name": "f", "content": text()})
            messages.append({"role": "assistant", "content": text()})
            if name in ("turns", "thinking") and rng.random() < .6:
                messages[-1]["reasoning_content"] = text()
        yield messages, tools


def tool_of(rng):
    return {"type": "function", "function": {"name": "f", "description": rng.choice(TEXTS), "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def style_tokenizer():
    """That of examples/ with more special tokens."""
    value = json.loads(TOKENIZER.read_text("utf-8"))
    behind = max(t["id"] for t in value["added_tokens"]) + 1
    value["added_tokens"] += [{"id": behind + i, "content": text, "single_word": False, "lstrip": False,
                               "rstrip": False, "normalized": False, "special": True}
                              for i, text in enumerate(STYLE_TOKENS)]
    return value


def write_styles():
    folder = HERE / "chats"
    path = folder / "styles.tokenizer.json"
    path.write_text(json.dumps(style_tokenizer(), ensure_ascii=False, separators=(",", ":")) + "\n", "utf-8")
    tok = PreTrainedTokenizerFast(tokenizer_file=str(path))
    for name, given in STYLES.items():
        jinja = (folder / f"{name}.jinja").read_text("utf-8")
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for messages, tools in style_chats(name):
                made = tok.apply_chat_template(messages, tools=tools, chat_template=jinja, tokenize=True,
                                               return_dict=True, return_assistant_tokens_mask=True, **given)
                prompt = tok.apply_chat_template(messages[:-1], tools=tools, chat_template=jinja, tokenize=True,
                                                 return_dict=True, add_generation_prompt=True, **given)
                line = {"messages": messages, "tools": tools, "ids": made["input_ids"],
                        "mask": made["assistant_masks"], "prompt_ids": prompt["input_ids"]}
                out.write(json.dumps(line) + "\n")


def main():
    if len(sys.argv) > 1:
        write_qwen3(Path(sys.argv[1]).read_text("utf-8"), sys.argv[2]
                    if len(sys.argv) > 2 else TOKENIZER,
                    Path(sys.argv[3]) if len(sys.argv) > 3 else HERE)
        return
    tok = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
    with open(HERE / "chat.jsonl", "w", encoding="utf-8") as out:
        for chat in chats():
            messages = [{"role": r, "content": c} for r, c in chat]
            made = tok.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=True,
                                           return_dict=True, return_assistant_tokens_mask=True)
            out.write(json.dumps({"messages": messages, "ids": made["input_ids"],
                                  "mask": made["assistant_masks"]}) + "\n")
    write_families()
    write_styles()
    (HERE / "chats" / "chatml.jinja").write_text(TEMPLATE, "utf-8")


if __name__ == "__main__":
    main()
