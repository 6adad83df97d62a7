"""Schemas that hold at once, or of which one holds, told as one that takes no less. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antwort.api.wire import Plain
from antwort.tools.schemas.plain import ANY, OPEN, any_of


def at_once(parts: Iterable[Plain]) -> Plain:
    """The words of several schemas that hold at once. Of the same word the first counts; names are gathered."""
    words: Plain = {}
    for part in parts:
        for word, value in part.items():
            if word not in words:
                words[word] = dict(value) if word == "properties" and isinstance(value, dict) else value
            elif word == "properties" and isinstance(value, dict) and isinstance(words[word], dict):
                words[word] |= {name: inner for name, inner in value.items() if name not in words[word]}
            elif word == "required" and isinstance(value, list) and isinstance(words[word], list):
                words[word] = [*words[word], *value]
    return words


def united(schema: Plain | None) -> Plain:
    """Arguments are one object: alternatives become one that takes what any of them takes."""
    if schema is None:
        return OPEN
    if schema.get("type") == "object":
        return schema if "properties" in schema else {**schema, "properties": {}}
    objects = [united(choice) for choice in schema.get("anyOf", ()) if choice.get("type") == "object"]
    if not objects:
        return OPEN
    names = dict.fromkeys(name for each in objects for name in each["properties"])
    made: Plain = {"type": "object", "properties": {name: _either(name, objects) for name in names}}
    if required := [name for name in names if all(name in each.get("required", ()) for each in objects)]:
        made["required"] = required
    if all(each.get("additionalProperties") is False for each in objects):
        made["additionalProperties"] = False
    return made


def _either(name: str, objects: Sequence[Plain]) -> Plain:
    """A property of some of the alternatives. Those that do not close themselves take it with any value."""
    choices: list[Plain] = []
    for each in objects:
        given = each["properties"].get(name, each.get("additionalProperties", ANY))
        if isinstance(given, dict):
            choices.append(given)
    one = any_of(choices)
    about = next((choice["description"] for choice in choices if "description" in choice), None)
    return one if about is None or "description" in one else {**one, "description": about}
