"""Conversations with tools, drawn from the corpus: `python generate.py --number 20000 --seed 1 > conversations.jsonl`.

Each line is a conversation in Chat Completions' words: the tools on offer, and messages; the assistant's are right.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
NOT_TOOLS = ("words.yaml", "chat.yaml")
SLOT = re.compile(r"\{(\w+)\}")

Json = dict[str, Any]

SYSTEM = (
    "You are a helpful assistant.",
    "You are a concise assistant. Use the functions when they help.",
    "Answer briefly.",
    "You work at a help desk. Be friendly and exact.",
    "You are the assistant of a small company.",
)
JOINTS = (
    "{a} {b}",
    "{a} Also, {b_low}",
    "{a} And {b_low}",
    "{a_open}, and {b_low}",
    "{a_open} and {b_low}",
    "{a_open} and {b_low}",
    "{a_open}, then {b_low}",
    "{a_open}; {b_low}",
    "{a_open} and also {b_low}",
    "Two things: {a_low} {b}",
    "First, {a_low} Then {b_low}",
    "{a} Oh, and {b_low}",
)
ERRORS = (
    ("error: timed out", "The service did not answer in time, so I can't say. Please try again later."),
    ("error: not found", "Nothing was found for that. Could you check the details?"),
    ('{"error": "service unavailable"}', "The service is not available right now. Please try again later."),
)


def read(path: Path) -> Any:
    """By the parser that is written in C where there is one: the other takes ten times as long."""
    return yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


class Ask(NamedTuple):
    """One wish: what is said, the calls that are right, and what comes of them."""

    said: str
    calls: list[tuple[str, Json]]
    results: list[str]
    answer: str


class Corpus:
    def __init__(self, folder: Path = CORPUS) -> None:
        self.words: dict[str, list[Any]] = read(folder / "words.yaml")
        self.chat: list[Json] = read(folder / "chat.yaml")
        self.domains: dict[str, list[Json]] = {
            path.stem: read(path) for path in sorted(folder.glob("*.yaml")) if path.name not in NOT_TOOLS
        }
        self.tools: list[Json] = [tool for tools in self.domains.values() for tool in tools]


# ---- one wish ----


def ask_of(tool: Json, corpus: Corpus, dice: random.Random) -> Ask:
    cases = tool.get("cases") or []
    if cases and dice.random() < len(cases) / (len(cases) + 2 * len(tool.get("asks") or [])):
        case = dice.choice(cases)
        call = (tool["name"], dict(case.get("arguments") or {}))
        return Ask(case["ask"], [call], [str(case["result"])], case["answer"])
    return _filled(tool, dice.choice(tool["asks"]), corpus, dice)


def twice(tool: Json, corpus: Corpus, dice: random.Random) -> Ask | None:
    """The same tool for two things at once: one slot holds "A and B", and each has its call."""
    parameters = tool.get("parameters") or {}
    asks = [ask for ask in tool.get("asks") or [] if _doubling(ask, parameters)]
    if not asks:
        return None
    template = dice.choice(asks)
    slot = dice.choice(_doubling(template, parameters))
    values, said = _values(tool, template, corpus, dice)
    other, other_said = _value(parameters[slot], corpus, dice)
    if other == values[slot]:
        return None
    joint = dice.choice((" and ", " and ", " and also ", " and then "))
    spoken = {**said, slot: f"{said[slot]}{joint}{other_said}"}
    named = {name: values[name] for name in parameters if name in values}
    calls = [(tool["name"], named), (tool["name"], {**named, slot: other})]
    results, answers = [], []
    for arguments, words in ((named, said), (calls[1][1], {**said, slot: other_said})):
        result, answer = _outcome(tool, {**arguments}, words, corpus, dice)
        results.append(result)
        answers.append(answer)
    return Ask(_fill(template, spoken), calls, results, " ".join(answers))


def _doubling(ask: str, parameters: Mapping[str, Json]) -> list[str]:
    named = SLOT.findall(ask)
    return [
        slot
        for slot in named
        if named.count(slot) == 1 and parameters[slot].get("type") == "string" and "enum" not in parameters[slot]
    ]


def _filled(tool: Json, template: str, corpus: Corpus, dice: random.Random) -> Ask:
    values, said = _values(tool, template, corpus, dice)
    arguments = {name: values[name] for name in tool.get("parameters") or {} if name in values}
    result, answer = _outcome(tool, arguments, said, corpus, dice)
    return Ask(_fill(template, said), [(tool["name"], arguments)], [result], answer)


def _values(tool: Json, template: str, corpus: Corpus, dice: random.Random) -> tuple[Json, dict[str, str]]:
    parameters = tool.get("parameters") or {}
    drawn = {slot: _value(parameters[slot], corpus, dice) for slot in dict.fromkeys(SLOT.findall(template))}
    return {name: value for name, (value, _) in drawn.items()}, {name: said for name, (_, said) in drawn.items()}


def _outcome(
    tool: Json, arguments: Json, said: Mapping[str, str], corpus: Corpus, dice: random.Random
) -> tuple[str, str]:
    gives = {name: _value(field, corpus, dice)[1] for name, field in (tool.get("gives") or {}).items()}
    known = {**{name: _plain(value) for name, value in arguments.items()}, **gives}
    spoken = {**said, **gives}
    fitting = [answer for answer in tool["answers"] if set(SLOT.findall(answer)) <= spoken.keys()]
    # A result may be written in JSON: only what looks like a slot that is known is filled.
    answer = _fill(dice.choice(fitting), spoken) if fitting else _fill_known(str(tool["result"]), known)
    return _fill_known(str(tool["result"]), known), answer[:1].upper() + answer[1:]


def _value(field: Json, corpus: Corpus, dice: random.Random) -> tuple[Any, str]:
    """A value, and how it is spoken."""
    pool = field.get("enum") or field.get("values") or (corpus.words[field["from"]] if "from" in field else None)
    if field.get("type") == "array":
        pool = pool or (field.get("items") or {}).get("enum") or (field.get("items") or {}).get("values")
        drawn = dice.sample(pool, min(dice.choice((1, 2, 2, 3)), len(pool)))
        return drawn, _joined([str(each) for each in drawn])
    if field.get("type") == "boolean" and pool is None:
        pool = list((field.get("said") or {True: 0, False: 0}).keys())
    value = dice.choice(pool) if pool else _ranged(field, dice)
    said = (field.get("said") or {}).get(value, _plain(value))
    return value, dice.choice(said) if isinstance(said, list) else str(said)


def _ranged(field: Json, dice: random.Random) -> float:
    low, high = field.get("range") or [1, 20]
    step = field.get("step")
    if step is None:
        return dice.randint(int(low), int(high))
    value = round(low + step * dice.randint(0, round((high - low) / step)), 4)
    return int(value) if float(value).is_integer() else value


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _fill(template: str, slots: Mapping[str, str]) -> str:
    return SLOT.sub(lambda match: slots[match[1]], template)


def _fill_known(template: str, slots: Mapping[str, str]) -> str:
    return SLOT.sub(lambda match: slots.get(match[1], match[0]), template)


# ---- tools as a backend is told of them ----


def chat_tool(tool: Json, dice: random.Random) -> Json:
    """Sometimes without descriptions: real tools often lack them."""
    properties: Json = {}
    bare = dice.random() < 0.25
    for name, field in (tool.get("parameters") or {}).items():
        properties[name] = _schema(field)
        if "description" in field and not bare:
            properties[name]["description"] = field["description"]
    required = [name for name, field in (tool.get("parameters") or {}).items() if not field.get("optional")]
    function: Json = {"name": tool["name"]}
    if dice.random() > 0.04:
        function["description"] = _put(tool["description"], dice)
    function["parameters"] = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": function}


def _put(description: str, dice: random.Random) -> str:
    """As it is, or as others would have put it."""
    draw, low = dice.random(), _lower(description)
    if draw < 0.65:
        return description
    if draw < 0.75:
        return description.rstrip(".")
    if draw < 0.85:
        return f"{description.rstrip('.')}. {dice.choice(TAILS)}"
    return f"{dice.choice(HEADS)}{low}"


HEADS = ("Use this to ", "Tool: ", "Function to ", "This will ", "Lets you ")
TAILS = ("Returns JSON.", "Use when the user asks for it.", "Returns text.", "Read-only.", "Needs no confirmation.")


def _schema(field: Json) -> Json:
    if field.get("type") == "array":
        items = field.get("items") or {}
        choice = field.get("enum") or items.get("enum")
        return {"type": "array", "items": {"enum": choice} if choice else {"type": items.get("type") or _kind(field)}}
    if "enum" in field:
        return {"type": "string", "enum": field["enum"]} if "type" not in field else {"enum": field["enum"]}
    return {"type": field["type"]}


def _kind(field: Json) -> str:
    """What the elements of a list are, by those that there are."""
    values = field.get("values") or (field.get("items") or {}).get("values") or ()
    if not values or not all(isinstance(value, int | float) for value in values):
        return "string"
    return "integer" if all(isinstance(value, int) for value in values) else "number"


def renamed(tools: list[Json], dice: random.Random) -> dict[str, str]:
    """Other names for tools, in one style for all of a conversation: who knows the names by heart does not read on."""
    names = [tool["function"]["name"] for tool in tools]
    style = dice.choices(("as it is", "verb", "opaque", "camel", "prefix", "dash"), (45, 25, 10, 8, 7, 5))[0]
    if style == "verb":
        return {name: _other_verb(name, dice) for name in names}
    if style == "opaque":
        stem = dice.choice(("fn_", "tool_", "op", "action_", "f", "cmd_"))
        numbers = dice.sample(range(1, 60), len(names))
        return {name: f"{stem}{number}" for name, number in zip(names, numbers, strict=True)}
    if style == "camel":
        return {name: _camel(name) for name in names}
    if style == "prefix":
        prefix = dice.choice(("api", "svc", "my", "app", "tool", "desk", "home", "user"))
        return {name: f"{prefix}_{name}" for name in names}
    return {name: name.replace("_", "-") for name in names} if style == "dash" else {}


VERBS = {
    "get": ("fetch", "read", "lookup", "show", "query"),
    "find": ("search", "look_up", "get", "locate"),
    "list": ("show", "get", "all", "show_all"),
    "search": ("find", "look_for", "query"),
    "book": ("reserve", "make", "arrange"),
    "create": ("add", "make", "new", "open"),
    "add": ("create", "put", "insert", "append_to"),
    "check": ("get", "test", "verify", "inspect"),
    "set": ("change", "adjust", "update", "control"),
    "start": ("run", "begin", "launch", "set"),
    "stop": ("end", "halt", "cancel"),
    "cancel": ("drop", "remove", "call_off"),
    "delete": ("remove", "drop", "erase"),
    "log": ("record", "save", "note"),
    "report": ("file", "submit", "tell_of"),
    "request": ("ask_for", "order", "apply_for"),
    "reserve": ("book", "hold"),
    "order": ("buy", "request"),
    "buy": ("order", "purchase"),
    "convert": ("change", "transform"),
    "show": ("get", "display"),
}


PARAMETERS = {
    "city": ("town", "place", "location"),
    "day": ("date", "when", "on"),
    "date": ("day", "when"),
    "time": ("at", "hour", "when"),
    "text": ("content", "body", "message", "value"),
    "title": ("name", "label"),
    "name": ("title", "who"),
    "count": ("number", "quantity", "amount"),
    "number": ("count", "n"),
    "query": ("topic", "search", "q", "keywords"),
    "place": ("location", "where", "venue"),
    "amount": ("value", "sum", "quantity"),
    "kind": ("type", "category"),
    "category": ("kind", "type", "section"),
    "start": ("begin", "from_date"),
    "quantity": ("amount", "count"),
    "source": ("origin", "src"),
    "target": ("destination", "dest"),
    "language": ("lang",),
    "minutes": ("duration",),
    "reason": ("why", "cause"),
    "item": ("thing", "product"),
    "room": ("area", "zone"),
    "state": ("mode", "status", "setting"),
    "mode": ("state", "setting"),
}


def other_parameters(tools: list[Json], dice: random.Random) -> dict[str, str]:
    """Other names for some parameters of a conversation's tools, where they stay apart."""
    if dice.random() > 0.35:
        return {}
    used = {name for tool in tools for name in tool["function"]["parameters"]["properties"]}
    chosen: dict[str, str] = {}
    for name in sorted(used & PARAMETERS.keys()):  # sets have no order of their own
        other = dice.choice(PARAMETERS[name])
        if other not in used and other not in chosen.values():
            chosen[name] = other
    return chosen


def _with_names(tool: Json, names: Mapping[str, str], parameters: Mapping[str, str]) -> None:
    function = tool["function"]
    schema = function["parameters"]
    function["name"] = names.get(function["name"], function["name"])
    schema["properties"] = {parameters.get(name, name): field for name, field in schema["properties"].items()}
    schema["required"] = [parameters.get(name, name) for name in schema["required"]]


def _other_verb(name: str, dice: random.Random) -> str:
    """`find_book` becomes `search_book`, or `book`."""
    first, _, rest = name.partition("_")
    if not rest or first not in VERBS:
        return name
    return rest if dice.random() < 0.15 else f"{dice.choice(VERBS[first])}_{rest}"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


# ---- a conversation ----


def offered(corpus: Corpus, dice: random.Random) -> list[Json]:
    """Some tools: about half of them near each other, so that choosing is a skill."""
    number = dice.choice((1, 2, 3, 4, 5, 6, 8, 8, 10, 12, 12, 14, 16, 16, 18, 20))
    near = list(dice.choice(list(corpus.domains.values())))
    dice.shuffle(near)
    chosen = near[: (number + 1) // 2]
    rest = [tool for tool in corpus.tools if tool not in chosen]
    chosen += dice.sample(rest, number - len(chosen))
    dice.shuffle(chosen)
    return chosen


def conversation(corpus: Corpus, dice: random.Random) -> Json:
    tools = offered(corpus, dice)
    shown = [chat_tool(tool, dice) for tool in tools]
    names, parameters = renamed(shown, dice), other_parameters(shown, dice)
    for tool in shown:
        _with_names(tool, names, parameters)
    must_call = dice.random() < 0.08
    messages: list[Json] = []
    if dice.random() < 0.3:
        messages.append({"role": "system", "content": dice.choice(SYSTEM)})
    for _ in range(1 if must_call else dice.choice((1, 1, 2, 2, 3))):
        messages += exchange(tools, (names, parameters), corpus, dice, must_call=must_call)
    return {"tools": shown, "must_call": must_call, "messages": messages}


def exchange(
    tools: list[Json],
    others: tuple[Mapping[str, str], Mapping[str, str]],
    corpus: Corpus,
    dice: random.Random,
    *,
    must_call: bool,
) -> Iterator[Json]:
    """What the user says, and all that follows until the answer."""
    draw = dice.random()
    if not must_call and draw < 0.16:
        pair = dice.choice(corpus.chat)
        yield {"role": "user", "content": pair["ask"]}
        yield {"role": "assistant", "content": pair["answer"]}
        return
    ask = wish(tools, corpus, dice)
    yield {"role": "user", "content": ask.said}
    names, parameters = others
    calls = [
        _call(number, names.get(name, name), {parameters.get(key, key): value for key, value in arguments.items()})
        for number, (name, arguments) in enumerate(ask.calls)
    ]
    yield {"role": "assistant", "content": None, "tool_calls": calls}
    if must_call:
        return
    results, answer = ask.results, ask.answer
    if len(results) == 1 and dice.random() < 0.06:
        error, answer = dice.choice(ERRORS)
        results = [error]
    for call, result in zip(calls, results, strict=True):
        yield {"role": "tool", "tool_call_id": call["id"], "content": result}
    yield {"role": "assistant", "content": answer}


def _call(number: int, name: str, arguments: Json) -> Json:
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def wish(tools: list[Json], corpus: Corpus, dice: random.Random) -> Ask:
    """One call most of the time, two now and then: of two tools, or of one."""
    draw, tool = dice.random(), dice.choice(tools)
    if draw < 0.12 and (double := twice(tool, corpus, dice)) is not None:
        return double
    first = ask_of(tool, corpus, dice)
    others = [other for other in tools if other is not tool]
    if draw < 0.36 and others:
        second = ask_of(dice.choice(others), corpus, dice)
        return Ask(
            _joint(first.said, second.said, dice),
            first.calls + second.calls,
            first.results + second.results,
            f"{first.answer} {second.answer}",
        )
    return first


def _joint(first: str, second: str, dice: random.Random) -> str:
    if not first.rstrip().endswith((".", "!", "?")):
        first += "."
    open_end = first.rstrip().rstrip(".?!")
    return dice.choice(JOINTS).format(a=first, b=second, a_open=open_end, a_low=_lower(first), b_low=_lower(second))


def _lower(text: str) -> str:
    """The first letter small, unless the word is a name or all capitals."""
    word = text.split(" ", 1)[0].strip(string.punctuation)
    is_common = word.istitle() and word.lower() in COMMON
    return text[:1].lower() + text[1:] if is_common else text


COMMON = frozenset(
    {
        "a",
        "an",
        "any",
        "are",
        "as",
        "book",
        "can",
        "could",
        "check",
        "count",
        "create",
        "do",
        "does",
        "did",
        "find",
        "fetch",
        "get",
        "give",
        "has",
        "have",
        "how",
        "i'd",
        "if",
        "in",
        "is",
        "list",
        "look",
        "make",
        "may",
        "my",
        "need",
        "open",
        "please",
        "put",
        "run",
        "set",
        "show",
        "tell",
        "the",
        "there",
        "turn",
        "what",
        "what's",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "would",
        "you",
        "your",
        "let's",
        "let",
        "add",
        "remove",
        "delete",
        "move",
        "start",
        "stop",
        "mark",
        "send",
        "pull",
        "work",
        "convert",
        "calculate",
        "was",
        "were",
        "at",
        "for",
        "on",
        "of",
        "our",
        "and",
        "to",
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    dice, corpus = random.Random(chosen.seed), Corpus()
    for _ in range(chosen.number):
        print(json.dumps(conversation(corpus, dice), ensure_ascii=False))


if __name__ == "__main__":
    main()
