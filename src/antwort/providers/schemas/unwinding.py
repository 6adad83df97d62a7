"""Definitions that are themselves, by way of alternatives alone: a grammar of them would never begin. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from antwort.api.wire import Plain

_PREFIX = "#/$defs/"


def unwound(definitions: Plain, instead: Plain) -> Plain:
    """The definitions without the alternatives that lead back to where they stand; one of which nothing is left is
    `instead`. What fits such an alternative fits another one, too.
    """
    loops = set(_loops(definitions))
    if not loops:
        return definitions
    kept = {name: _without(schema, {to for at, to in loops if at == name}) for name, schema in definitions.items()}
    return {name: instead if schema is None else schema for name, schema in kept.items()}


def _loops(definitions: Plain) -> Iterator[tuple[str, str]]:
    """The steps, from name to name, that close a circle. Not by recursion: a chain may be long."""
    done: set[str] = set()
    for start in definitions:
        path: dict[str, Iterator[str]] = {} if start in done else {start: _first(definitions[start])}
        while path:
            name, steps = next(reversed(path.items()))
            step = next(steps, None)
            if step is None:
                done.add(name)
                del path[name]
            elif step in path:
                yield name, step
            elif step not in done and step in definitions:
                path[step] = _first(definitions[step])


def _first(schema: Plain) -> Iterator[str]:
    """The definitions that a value may begin with."""
    if isinstance(reference := schema.get("$ref"), str):
        yield reference.removeprefix(_PREFIX)
    for choice in schema.get("anyOf", ()):
        yield from _first(choice)


def _without(schema: Plain, names: set[str]) -> Plain | None:
    if isinstance(reference := schema.get("$ref"), str):
        return None if reference.removeprefix(_PREFIX) in names else schema
    if not names or "anyOf" not in schema:
        return schema
    kept = [each for choice in schema["anyOf"] if (each := _without(choice, names)) is not None]
    return {"anyOf": kept} if kept else None
