"""Conversations drawn at random, for chat templates of any family.

Whoever wrote a character can be told from its script, since each origin has one of its own, which no
template spells: so it is known of a text which bytes are the assistant's, whatever the template does.
"""
import json
import random

# Of each origin: its script.
SCRIPTS = {"system": (0xA500, 0xA60B), "user": (0xA000, 0xA48C), "result": (0x1200, 0x1240),
           "schema": (0x1401, 0x1640), "answer": (0x2D30, 0x2D60), "thought": (0x1681, 0x169A),
           "argument": (0x16A0, 0x16DF), "document": (0xA6A0, 0xA6E0)}
OWN = {"answer", "thought", "argument"}

SPECIAL = ["<|im_start|>", "<|im_end|>\n", "<|eot_id|>", "</s>", "[INST]", "[/INST]", "<|user|>", "{{ x }}", "{% if %}",
           "{# c #}", "\"quoted\" \\ it's", "<b>&amp;</b>", "a\tb", "\u00e9t\u00e9 \U0001f600", "\u4f60\u597d",
           "e\u0301", "\u2028", "\u00a0", "1 < 2 && 3 > 2", "%s %d", "\\n", "```c\nint i;\n```", "- a\n- b", "\x7f", "\ufeff",
           "\x1c", "\x85", "</tool_call>", "<start_of_turn>user", "\u05d0\u05d1 \u202e", "null", "True"]
BLANK = ["\n", "\n\n", " ", "  ", "\t", "\r\n", ""]
IDS = "abcdefghijkLMNOPQ0123456789"

VALUES = [0, 1, -7, 2.5, 1e16, 1e-7, 0.1, 12345678901234, True, False, None, "", "x", [], {}, [1, [2, {"k": []}]],
          {"a": {"b": [None, False]}}, ["a", "b"]]


class Draw(random.Random):
    def maybe(self, share=0.5):
        return self.random() < share

    def word(self, origin):
        low, high = SCRIPTS[origin]
        return "".join(chr(self.randrange(low, high)) for _ in range(self.randint(1, 5)))

    def text(self, origin, plain=0.4):
        """Words, and between them what may confuse; blanks at the ends."""
        words = [self.word(origin) for _ in range(self.randint(1, 4))]
        if self.maybe(plain):
            return " ".join(words)
        words = [w for w in words for w in ([w, self.choice(SPECIAL)] if self.maybe(0.3) else [w])]
        text = self.choice(["", "", self.choice(BLANK)])
        for w in words:
            text += w + self.choice([" ", " ", "\n", "", "\n\n"])
        return text.rstrip(" ") + self.choice(["", "", self.choice(BLANK)])

    def value(self, origin):
        v = self.choice(VALUES)
        return self.text(origin) if self.maybe(0.4) else v


# ---- tools ----------------------------------------------------------------------------------


def schema(r, depth):
    """A JSON schema of a value."""
    kind = r.choice(["string", "integer", "number", "boolean", "array", "object", "string", "union"])
    if depth == 0 and kind in ("array", "object"):
        kind = "string"
    s = {"type": ["string", "null"] if kind == "union" else kind}
    if r.maybe(0.7):
        s["description"] = r.text("schema")
    if kind == "string" and r.maybe(0.3):
        s["enum"] = [r.word("schema") for _ in range(r.randint(1, 3))]
    if kind == "integer":
        s.update({"minimum": 0, "maximum": r.choice([10, 2.5])} if r.maybe(0.3) else {})
    if kind == "array":
        s["items"] = schema(r, depth - 1) if r.maybe(0.9) else {}
    if kind == "object":
        s.update(fields(r, depth - 1))
    if r.maybe(0.25):
        s["default"] = {"string": "\u00e9 \"x\"", "integer": 3, "number": 0.5, "boolean": False, "array": [],
                        "object": {}, "union": None}[kind]
    if r.maybe(0.1):
        s["nullable"] = True
    if r.maybe(0.06):
        s = {"anyOf": [s, {"type": "null"}]}
    return s


def fields(r, depth):
    names = r.sample(["city", "days", "unit", "tags", "where", "name_2", "\u00fcber", "type", "items", "get"], r.randint(0, 4))
    out = {"type": "object", "properties": {n: schema(r, depth) for n in names}}
    if r.maybe(0.7):
        out["required"] = [n for n in names if r.maybe()]
    if r.maybe(0.2):
        out["additionalProperties"] = False
    return out


def tool(r, name):
    f = {"name": name, "description": r.text("schema"), "parameters": fields(r, 2)}
    if r.maybe(0.1):
        f["return"] = {"type": "string", "description": r.text("schema")}
    if r.maybe(0.1):
        f["strict"] = True
    return {"type": "function", "function": f}


def call(r, tools, form):
    names = [t["function"]["name"] for t in tools] or ["lookup"]
    arguments = {n: r.value("argument") for n in r.sample(["city", "days", "unit", "tags", "\u00fcber"], r.randint(0, 3))}
    if form == "string":
        arguments = json.dumps(arguments, ensure_ascii=r.maybe(0.3))
    f = {"name": r.choice(names), "arguments": arguments}
    out = {"type": "function", "function": f} if not form == "bare" else f
    return {"id": "".join(r.choices(IDS, k=9)), **out}


# ---- messages -------------------------------------------------------------------------------

FULL = {"system": 0.5, "tools": 0.5, "parts": 0.12, "thought": 0.4, "inline": 0.15, "odd": 0.12, "developer": 0.05}
SIMPLER = [FULL, {**FULL, "parts": 0, "odd": 0, "developer": 0, "inline": 0.1},
           {**FULL, "parts": 0, "odd": 0, "developer": 0, "string": 0}, {"parts": 0, "odd": 0, "system": 0.5, "thought": 0.3},
           {"thought": 0.2}, {"parts": 1}, {"parts": 1, "tools": 0.3, "system": 0.4}]


def content(r, origin, c):
    if r.maybe(c.get("parts", 0)):
        return [{"type": "text", "text": r.text(origin)} for _ in range(r.randint(1, 2))]
    return "" if r.maybe(c.get("odd", 0)) else r.text(origin)


def answer(r, c, last=True):
    m = {"role": "assistant", "content": content(r, "answer", c)}
    if r.maybe(c.get("thought", 0)):
        m[r.choice(["reasoning_content", "reasoning_content", "thinking", "reasoning"])] = r.choice(["", "\n"]) * r.randint(0, 1) + r.text("thought")
    elif r.maybe(c.get("inline", 0)) and isinstance(m["content"], str):
        m["content"] = "<think>\n" + r.text("thought") + "\n</think>\n\n" + m["content"]
    return m


def calling(r, c, tools, form):
    """An answer that calls, and the results."""
    m = answer(r, c)
    bare = r.random()
    if bare < 0.35:
        m["content"] = ""
    elif bare < 0.45:
        m["content"] = None
    elif bare < 0.5:
        del m["content"]
    m["tool_calls"] = [call(r, tools, form) for _ in range(r.choice([1, 1, 1, 2, 3]))]
    yield m
    for t in m["tool_calls"]:
        yield {"role": "tool", "name": t.get("function", t)["name"], "tool_call_id": t["id"],
               "content": r.choice([r.text("result"), json.dumps({"ok": True, "v": r.word("result")}), content(r, "result", c)])}


def messages(r, c, tools, prompt):
    out = []
    if r.maybe(c.get("system", 0)):
        out.append({"role": "developer" if r.maybe(c.get("developer", 0)) else "system", "content": content(r, "system", c)})
    form = r.choice(["dict", "dict", "dict", "string" if c.get("string", 1) else "dict", "bare" if c.get("odd") else "dict"])
    for _ in range(r.randint(1, 3)):
        out.append({"role": "user", "content": content(r, "user", c)})
        for _ in range(r.randint(0, 2) if tools else 0):
            out += calling(r, c, tools, form)
        out.append(answer(r, c))
    if prompt and r.maybe(0.9):
        out.pop()
    elif r.maybe(c.get("odd", 0) / 2):
        out.insert(r.randrange(len(out)), r.choice(out))
    return out


# ---- what else a template reads ----------------------------------------------------------------

KNOWN = {"enable_thinking": [True, False], "thinking": [True, False], "reasoning_effort": ["low", "medium", "high"],
         "date_string": ["26 Jul 2024"], "tools_in_user_message": [True, False], "model_identity": ["You are T."],
         "thinking_budget": [0, 512, -1], "reasoning": [True, False, "on"], "builtin_tools": [["python"], ["browser", "python"]],
         "citations": [True], "controls": [{"length": "short"}, {}], "today": ["2024-07-26"], "xml_tools": [[]],
         "available_tools": [[]], "keep_past_thinking": [True, False], "system_message": ["S."]}
GIVEN = {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "namespace",
         "range", "dict", "loop", "continue_final_message", "bos_token", "eos_token", "unk_token", "pad_token"}


def variables(r, names):
    """Values for some of the names that a template reads."""
    out = {}
    for name in sorted(set(names) - GIVEN):
        if name in KNOWN and r.maybe(0.35):
            out[name] = r.choice(KNOWN[name])
        elif name not in KNOWN and r.maybe(0.08):
            out[name] = r.choice([True, False, "x", None, 1, []])
    if r.maybe(0.15) and "documents" in names:
        out["documents"] = [{"title": r.text("document"), "text": r.text("document")} for _ in range(r.randint(1, 2))]
    return out


def chat(r, names, simple):
    """One conversation and whether it is a prompt; `simple` from 0 on leaves more out."""
    c = SIMPLER[min(simple, len(SIMPLER) - 1)]
    tools = [tool(r, n) for n in r.sample(["get_weather", "now", "f_2"], r.randint(1, 2))] if r.maybe(c.get("tools", 0)) else []
    prompt = r.maybe(0.4)
    out = {"messages": messages(r, c, tools, prompt)}
    if tools or r.maybe(0.05):
        out["tools"] = tools
    if simple < 4:
        out.update(variables(r, names))
    return out, prompt
