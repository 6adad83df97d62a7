"""Build the JSON schema of an emulated answer: calls of the allowed tools, or text. Pure."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from antwort.api.wire import Plain, decode, encode
from antwort.providers.base import ChatTool
from antwort.providers.tool_emulation.tool_choice import AnswerOptions
from antwort.schema.constrained_decoding import DecoderSchemas
from antwort.schema.references import NotRelocatable, relocate

MAX_CACHED_KEY_BYTES = 64 * 1024


def response_format(options: AnswerOptions, answer: Plain | None = None) -> Plain:
    """Return the `response_format` that has a backend enforce `answer_schema`."""
    schema = answer_schema(options, answer)
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}


def answer_schema(options: AnswerOptions, answer: Plain | None = None) -> Plain:
    """Return the schema. `answer` is the schema of an answer without a call; None: text.

    The schema must not be changed: it is cached, as the turns of a run have the same tools. The order of the keys is
    the order in which a model writes them: a call's name comes first.
    """
    try:
        key = encode((options, answer))
    except RecursionError:  # too deeply nested to be encoded, but not to be normalized
        return _build(options, answer)
    return _cached(key) if len(key) <= MAX_CACHED_KEY_BYTES else _build(options, answer)


@functools.lru_cache(maxsize=32)
def _cached(key: bytes) -> Plain:
    return _build(*decode(key, tuple[AnswerOptions, Plain | None]))


def _build(options: AnswerOptions, answer: Plain | None) -> Plain:
    schemas = DecoderSchemas(len(options.tools))
    definitions: Plain = {}
    forms: list[Plain] = []
    if options.tools:
        items = [_call(tool, schemas) for tool in options.tools]
        item = items[0] if len(items) == 1 else {"anyOf": items}
        forms.append(_object({"calls": {"type": "array", "items": item, "minItems": 1, "maxItems": options.max_calls}}))
    if options.may_answer or not forms:
        inner, definitions = _answer(answer, schemas)
        forms.append(_object({"answer": inner}))
    schema = forms[0] if len(forms) == 1 else {"anyOf": forms}
    definitions = {**schemas.definitions(), **definitions}
    return {**schema, "$defs": definitions} if definitions else schema


def _call(tool: ChatTool, schemas: DecoderSchemas) -> Plain:
    parameters = tool.function.parameters
    arguments = schemas.arguments(parameters if isinstance(parameters, dict) else {})
    return _object({"name": {"const": tool.function.name}, "arguments": arguments})


def _answer(answer: Plain | None, schemas: DecoderSchemas) -> tuple[Plain, Plain]:
    """Return the schema of an answer without a call, and its definitions. The client's own schema is sent as it is
    written, like without tools: the server does not validate answers against it.
    """
    if answer is None:
        return {"type": "string"}, {}
    try:
        return relocate(answer, "answer_")
    except NotRelocatable:
        return schemas.value(answer), {}


def _object(properties: Mapping[str, object]) -> Plain:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
