"""Schemas of tools, as constrained decoding takes them (llama.cpp's grammars, xgrammar in vLLM and SGLang). Pure.

What those do not know is left out, so a schema may let through what the tool's own does not: whoever runs a call
checks its arguments against that. Where nothing was left out, all that fits the cleaned schema fits the tool's.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import msgspec

from antwort.api.wire import Plain
from antwort.pointers import resolved
from antwort.providers.schemas.leaves import MOST_ITEMS, bounds, kinds_of, limits, list_of, listed, span, string
from antwort.providers.schemas.merging import CONSTRAINTS, merged
from antwort.providers.schemas.unwinding import unwound

ANY: Plain = {"type": ["object", "array", "string", "number", "boolean", "null"]}
"""Any value. Written out: to llama.cpp an empty schema is an object."""
NOTHING: Plain = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
"""The arguments of a tool without parameters."""
_OPEN: Plain = {**NOTHING, "additionalProperties": True}
"""Arguments of which nothing is known."""

_DEEPEST = 24
_MOST_NODES, _LEAST_NODES = 10_000, 256
"""In all schemas together, and what each may have all the same. Beyond these a value is any: schemas are a client's,
and references can make a small one large without bound.
"""


class _Place(msgspec.Struct, frozen=True):
    """Where in a schema a part of it stands."""

    root: Plain
    number: int
    """Which of the schemas it is, of which some may be the same."""
    depth: int = 0
    is_top: bool = False
    """Where arguments are described, which must be an object."""

    @property
    def beside(self) -> _Place:
        """An alternative: what stands in the same place."""
        return _Place(self.root, self.number, self.depth + 1, self.is_top)

    @property
    def within(self) -> _Place:
        return _Place(self.root, self.number, self.depth + 1)


class Cleaning:
    """Cleans the schemas that go into one document, so many of them: none takes up what others need. What they refer to
    is gathered under names of that document.
    """

    def __init__(self, schemas: int = 1) -> None:
        self._most = max(_MOST_NODES // max(schemas, 1), _LEAST_NODES)
        self._nodes: Counter[int] = Counter()  # that each has had
        self._roots: list[Plain] = []  # kept: it is by their identities that they are told apart
        self._names: dict[tuple[int, str], str] = {}
        self._waiting: deque[tuple[str, object, _Place]] = deque()

    def arguments(self, schema: Plain) -> Plain:
        """Arguments are an object, whatever else the schema lets through."""
        self._roots.append(schema)
        cleaned = _objects_only(self._node(_inlined(schema, schema), _Place(schema, len(self._roots), is_top=True)))
        return NOTHING if cleaned is None else cleaned

    def value(self, schema: Plain) -> Plain:
        self._roots.append(schema)
        cleaned = self._node(schema, _Place(schema, len(self._roots)))
        return ANY if cleaned is None else cleaned

    def definitions(self) -> Plain:
        """What the cleaned schemas refer to, by name, to stand under `$defs` of the document. To be asked once."""
        made: Plain = {}
        while self._waiting:
            name, schema, place = self._waiting.popleft()
            cleaned = self._node(schema, place)
            made[name] = ANY if cleaned is None else cleaned
        return unwound(made, ANY)

    # ---- any schema: None when nothing fits it ----

    def _node(self, schema: object, place: _Place) -> Plain | None:
        if schema is False:
            return None
        if not isinstance(schema, dict) or place.depth > _DEEPEST or self._count(1, place) > self._most:
            return ANY
        if "allOf" in schema or ("$ref" in schema and not CONSTRAINTS.isdisjoint(schema)):
            schema = self._merged(schema, place)
        if isinstance(reference := schema.get("$ref"), str):
            return self._reference(reference, place)
        for word in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(word), list) and choices:
                rest = {key: value for key, value in schema.items() if key != word}
                return self._any_of(_with_each(rest, choices), place)
        if "const" in schema or isinstance(schema.get("enum"), list):
            return listed(schema)
        kinds = kinds_of(schema)
        if len(kinds) > 1:
            return self._any_of([{**schema, "type": kind} for kind in kinds], place)
        return self._of_kind(kinds[0] if kinds else "", schema, place)

    def _merged(self, schema: Plain, place: _Place) -> Plain:
        one = merged(schema, place.root)
        properties = one.get("properties")
        self._count(len(properties) if isinstance(properties, dict) else 0, place)  # what was copied was work, too
        return one

    def _count(self, nodes: int, place: _Place) -> int:
        self._nodes[place.number] += nodes
        return self._nodes[place.number]

    def _reference(self, reference: str, place: _Place) -> Plain:
        pointer, target = resolved(reference, place.root)
        if target is None:
            return ANY
        name = self._names.get((id(place.root), pointer))
        if name is None:
            name = self._names[id(place.root), pointer] = f"def{len(self._names) + 1}"
            self._waiting.append((name, target, _Place(place.root, place.number)))
        return {"$ref": f"#/$defs/{name}"}

    def _any_of(self, choices: Sequence[object], place: _Place) -> Plain | None:
        seen = [_inlined(choice, place.root) for choice in choices] if place.is_top else choices
        cleaned = [self._node(choice, place.beside) for choice in seen]
        different = {msgspec.json.encode(each): each for each in cleaned if each is not None}
        if len(different) > 1:
            return {"anyOf": list(different.values())}
        return next(iter(different.values()), None)

    def _of_kind(self, kind: str, schema: Plain, place: _Place) -> Plain | None:
        match kind:
            case "object":
                return self._object(schema, place)
            case "array":
                return self._array(schema, place)
            case "string":
                return string(schema)
            case "integer":
                return {"type": "integer", **bounds(schema)}
            case "number" | "boolean" | "null":
                return {"type": kind}
            case _:
                return NOTHING if place.is_top else ANY

    # ---- objects and arrays ----

    def _object(self, schema: Plain, place: _Place) -> Plain | None:
        given, more = schema.get("properties"), schema.get("additionalProperties")
        properties: Plain = dict(given) if isinstance(given, dict) else {}
        required = [name for name in list_of(schema.get("required")) if isinstance(name, str)]
        if more is not False:  # else it contradicts itself, and what it lists is meant
            properties |= {name: more for name in required if name not in properties}
        cleaned = {name: self._node(inner, place.within) for name, inner in properties.items()}
        if any(cleaned.get(name, ANY) is None for name in required):
            return None
        kept = {name: inner for name, inner in cleaned.items() if inner is not None}
        needed = set(required)
        return {
            "type": "object",
            "properties": kept,
            "required": [name for name in kept if name in needed],
            "additionalProperties": self._additional(schema, place),
        }

    def _additional(self, schema: Plain, place: _Place) -> Plain | bool:
        """What a schema says nothing of is closed where it names properties: a tool that names some means these."""
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            cleaned = self._node(more, place.within)
            return False if cleaned is None else True if cleaned == ANY else cleaned
        if isinstance(more, bool):
            return more
        is_empty = not schema.get("properties")
        return is_empty and (not place.is_top or "patternProperties" in schema)

    def _array(self, schema: Plain, place: _Place) -> Plain | None:
        least, most = span(schema, "minItems", "maxItems", MOST_ITEMS)
        prefix, items = _item_schemas(schema)
        if most == 0:
            return {"const": []}
        if prefix:
            length = max(len(prefix), least) if most is None else min(max(len(prefix), least), most)
            return self._tuple([*prefix, *[items] * (length - len(prefix))][:length], place)
        item = self._node(items, place.within)
        if item is None:
            return None if least else {"const": []}
        return {"type": "array", "items": item, **limits("minItems", least, "maxItems", most)}

    def _tuple(self, items: Sequence[object], place: _Place) -> Plain | None:
        cleaned = [self._node(item, place.within) for item in items]
        if any(item is None for item in cleaned):
            return None
        return {"type": "array", "prefixItems": cleaned, "minItems": len(cleaned), "maxItems": len(cleaned)}


def _item_schemas(schema: Plain) -> tuple[list[object], object]:
    """Those of the first items, and that of the others. Older drafts have a list under `items`."""
    items = schema.get("items", True)
    if isinstance(items, list):
        return items, schema.get("additionalItems", True)
    return list_of(schema.get("prefixItems")), items


# ---- the root ----


def _inlined(schema: object, root: Plain) -> object:
    """What a reference stands for, where it must be seen whether it is an object."""
    if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
        if not CONSTRAINTS.isdisjoint(schema):
            return merged(schema, root)
        return resolved(reference, root)[1]
    return schema


def _objects_only(cleaned: Plain | None) -> Plain | None:
    if cleaned is None or cleaned.get("type") == "object":
        return cleaned
    if cleaned == ANY:
        return _OPEN
    kept = [each for choice in cleaned.get("anyOf", ()) if (each := _objects_only(choice)) is not None]
    return {"anyOf": kept} if len(kept) > 1 else kept[0] if kept else None


def _with_each(rest: Plain, choices: list[object]) -> list[object]:
    """Alternatives, each with what is said of all of them."""
    return choices if CONSTRAINTS.isdisjoint(rest) else [{"allOf": [rest, choice]} for choice in choices]
