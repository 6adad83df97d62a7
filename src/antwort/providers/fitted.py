"""The schema that an answer is held to: calls of the tools that may be called, words where they will do. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from antwort.api.wire import Plain, decode, encode
from antwort.providers.base import ChatTool
from antwort.providers.lowering import Choice
from antwort.schema.decoder import DecoderSchemas as Cleaning
from antwort.schema.refs import NotRelocatable as Fixed
from antwort.schema.refs import relocate as hoisted

WORDS: Plain = {"type": "string"}

_KEPT_BYTES = 64 * 1024


def response_format(choice: Choice, answer: Plain | None = None) -> Plain:
    """What makes a backend hold the answer to `answer_schema`."""
    schema = answer_schema(choice, answer)
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}


def answer_schema(choice: Choice, answer: Plain | None = None) -> Plain:
    """`answer` is the schema of what is said in place of a call; None: words. Not to be changed: it is kept, as the
    turns of a run have the same tools.

    The order of the keys is the order in which a model writes them: a call's name comes first.
    """
    try:
        key = encode((choice, answer))
    except RecursionError:  # too deep to be written, and not too deep to be cleaned
        return _made(choice, answer)
    return _kept(key) if len(key) <= _KEPT_BYTES else _made(choice, answer)


@functools.lru_cache(maxsize=32)
def _kept(key: bytes) -> Plain:
    return _made(*decode(key, tuple[Choice, Plain | None]))


def _made(choice: Choice, answer: Plain | None) -> Plain:
    cleaning = Cleaning(len(choice.tools))
    definitions: Plain = {}
    forms = [_calls(choice, cleaning)] if choice.tools else []
    if choice.may_answer or not forms:
        inner, definitions = _inner(answer, cleaning)
        forms.append(_closed({"answer": inner}))
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    definitions = {**cleaning.definitions(), **definitions}
    return {**schema, "$defs": definitions} if definitions else schema


def _inner(answer: Plain | None, cleaning: Cleaning) -> tuple[Plain, Plain]:
    """The answer's own schema, and what it refers to. It goes out as the client wrote it, as it does without tools:
    nobody here checks what it leaves to the backend.
    """
    if answer is None:
        return WORDS, {}
    try:
        return hoisted(answer, "answer_")
    except Fixed:
        return cleaning.value(answer), {}


def _calls(choice: Choice, cleaning: Cleaning) -> Plain:
    items = [_call(tool, cleaning) for tool in choice.tools]
    item = items[0] if len(items) == 1 else {"anyOf": items}
    return _closed({"calls": {"type": "array", "items": item, "minItems": 1, "maxItems": choice.most}})


def _call(tool: ChatTool, cleaning: Cleaning) -> Plain:
    parameters = tool.function.parameters
    arguments = cleaning.arguments(parameters if isinstance(parameters, dict) else {})
    return _closed({"name": {"const": tool.function.name}, "arguments": arguments})


def _closed(properties: Mapping[str, object]) -> Plain:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
