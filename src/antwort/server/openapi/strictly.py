"""The schemas of answers as a server has them that writes to the letter of the standard."""

from __future__ import annotations

from typing import Any

from antwort.api.events import Event, ResponseRequiresAction
from antwort.api.items import OutputItem
from antwort.api.standard import STANDARD, item_kind, tool_kind
from antwort.server.openapi.answers import EVENTS, FORCED, TOOLS
from antwort.server.openapi.schemas import PLACE, Schemas, members, tag_of, union_of, with_fields


def strictly(schemas: Schemas) -> Schemas:
    """The same schemas, with the standard's names for the types that they are told apart by, and less the event that
    this setting never writes.
    """
    names = _names()
    schemas = {**schemas, "StreamEvent": {**schemas["StreamEvent"], **union_of(_WRITTEN)}}
    typed = {
        name: with_fields(schema, type={"enum": [names[name]]}) if name in names else schema
        for name, schema in schemas.items()
    }
    return {name: _told_apart(schema, names) for name, schema in typed.items()}


_WRITTEN = tuple(event for event in EVENTS if event is not ResponseRequiresAction)


def _names() -> dict[str, str]:
    """The types that are written, by the names of the schemas."""
    return {
        **{event.__name__: STANDARD.name(event) for event in EVENTS if issubclass(event, Event)},
        **{item.__name__: item_kind(tag_of(item)) for item in members(OutputItem)},
        **{tool.__name__: tool_kind(tag_of(tool)) for tool in (*TOOLS, *FORCED) if tool.__struct_config__.tag},
    }


def _told_apart(value: Any, names: dict[str, str]) -> Any:
    match value:
        case {"discriminator": {"mapping": dict(mapping)} as told, **rest}:
            renamed = {names.get(place.removeprefix(PLACE), tag): place for tag, place in mapping.items()}
            return {**_told_apart(rest, names), "discriminator": {**told, "mapping": renamed}}
        case dict():
            return {key: _told_apart(entry, names) for key, entry in value.items()}
        case list():
            return [_told_apart(entry, names) for entry in value]
    return value
