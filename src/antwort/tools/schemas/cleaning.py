"""Schemas of servers' tools as every backend takes them. Pure.

References, alternatives with null, lists of types, constants, schemas that are true or false, and whatever else only a
validator understands are told in plainer words or left out. So a schema may let through what the tool's own does not:
whoever runs a call checks its arguments against that. What the tool takes, the schema takes, but for three things. A
property that may be left out need not take null. What has no type, and speaks of properties, lengths, bounds or items,
is of the types that have them. A property that only some alternatives beside others speak of is what those say.

Servers of strangers write schemas, too: however one is written, cleaning it is a matter of milliseconds. What goes
beyond that is told as an object of which nothing is known.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from antwort.api.wire import Plain
from antwort.pointers import resolved
from antwort.tools.schemas.merging import at_once, united
from antwort.tools.schemas.plain import (
    ANY,
    MOST_ITEMS,
    OPEN,
    annotated,
    any_of,
    kinds_of,
    listed,
    number,
    span,
    string,
    stub,
)
from antwort.tools.schemas.size import measured

_BOUNDS = ((16, 1000), (6, 300), (3, 100))
"""How deep a cleaned schema goes and how many parts it has; where it is too long all the same, the next are tried."""
_LONGEST = 48 * 1024
_MOST_PARTS = 64
_MOST_PROPERTIES = 1000
_MOST_PATTERNS = 8
"""To read one takes as long as a hundred other words."""
_MOST_REFERENCES = 300
_PER_PART = 8
"""Values or names in a list that are as much work as one part."""
_MOST_KEPT = 2048
_MOST_HELD = 500_000
"""Values in all schemas that are held on to: strangers send them, too."""
_SHAPE = frozenset({"type", "properties", "required", "items", "prefixItems", "enum", "const", "additionalProperties"})
_TOLD = ("description", "default")


class _Place(msgspec.Struct, frozen=True):
    depth: int = 0
    path: tuple[str, ...] = ("#",)
    """The references that led here: what is met again would go on for ever."""
    may_omit: bool = False
    """Whether what stands here may be left out: then nobody needs to say null."""

    def within(self, *, may_omit: bool = False) -> _Place:
        return _Place(self.depth + 1, self.path, may_omit)

    def beside(self) -> _Place:
        return _Place(self.depth + 1, self.path, self.may_omit)

    def after(self, pointer: str) -> _Place:
        return _Place(self.depth, (*self.path, pointer), self.may_omit)


class _TooLong(Exception):
    """What would come of it is longer than anybody reads."""


class _Cleaning:
    """Cleans one schema. Raises `_TooLong`."""

    def __init__(self, root: Mapping[str, object], deepest: int, most: int) -> None:
        self._root, self._deepest, self._left = root, deepest, most
        self._room = _LONGEST
        self._patterns: set[str] = set()
        self._resolved: dict[str, tuple[str, object]] = {}
        self._lists: dict[tuple[int, bool], Plain | None] = {}

    def node(self, schema: object, place: _Place) -> Plain | None:
        """None: nothing fits it."""
        self._left -= 1
        if schema is False:
            return None
        if not isinstance(schema, dict) or not schema:
            return ANY
        if place.depth > self._deepest or self._left < 0 or (place.depth and isinstance(schema.get("$id"), str)):
            return self._told(stub(schema), schema)
        parts, inner = self._parts(schema, place)
        if self._left < 0:
            return self._told(stub(schema), schema)
        words = at_once(parts)
        cleaned = self._cleaned(words, inner)
        return None if cleaned is None else self._told(cleaned, words)

    def _told(self, cleaned: Plain, words: Plain) -> Plain:
        """With what people are told of it. The same part may be there a thousand times, with all that is said of it."""
        made = annotated(cleaned, words)
        self._spend(len(made.get("description", "")))
        return made

    def _spend(self, text: int) -> None:
        self._room -= text
        if self._room < 0:
            raise _TooLong

    def _parts(self, schema: Plain, place: _Place) -> tuple[list[Plain], _Place]:
        """All that holds at once, references followed. Of what stands beside one, only what it tells people counts: to
        older validators the rest is not there.
        """
        parts: list[Plain] = []
        waiting: list[object] = [schema]
        while waiting and len(parts) < _MOST_PARTS:
            part = waiting.pop(0)
            self._left -= bool(parts) + _weight(part)
            if self._left < 0:
                break
            if not isinstance(part, dict):
                parts += [{"enum": []}] if part is False else []
            elif isinstance(reference := part.get("$ref"), str):
                parts.append({word: part[word] for word in _TOLD if word in part})
                pointer, target = self._resolve(reference)
                if pointer in place.path:
                    parts.append({} if (cut := stub(target)) is ANY else cut)
                elif target is not None:
                    place = place.after(pointer)
                    waiting.append(target)
            else:
                parts.append({word: value for word, value in part.items() if word != "allOf"})
                more = part.get("allOf")
                waiting += more[:_MOST_PARTS] if isinstance(more, list) else []
        return parts, place

    def _resolve(self, reference: str) -> tuple[str, object]:
        known = self._resolved.get(reference)
        if known is None:
            is_known = len(self._resolved) < _MOST_REFERENCES
            known = self._resolved[reference] = resolved(reference, self._root) if is_known else (reference, None)
        return known

    def _cleaned(self, words: Plain, place: _Place) -> Plain | None:
        if choices := _choices(words):
            return self._any_of(choices, place)
        if "const" in words:
            return self._listed([words["const"]], id(words["const"]), place)
        if isinstance(values := words.get("enum"), list):
            return self._listed(values, id(values), place)
        kinds = kinds_of(words)
        if place.may_omit and len(kinds) > 1:
            kinds = tuple(kind for kind in kinds if kind != "null")
        if not kinds:
            return ANY
        made = [each for kind in kinds if (each := self._of_kind(kind, words, place)) is not None]
        return any_of(made) if made else None

    def _listed(self, values: list[object], known_as: int, place: _Place) -> Plain | None:
        """The same list may be meant a thousand times: it is read once."""
        key = (known_as, place.may_omit)
        if key not in self._lists:
            self._lists[key] = listed(values, may_omit=place.may_omit)
        self._left -= len(values) // _PER_PART
        return self._lists[key]

    def _any_of(self, choices: list[object], place: _Place) -> Plain | None:
        cleaned = [each for choice in choices if (each := self.node(choice, place.beside())) is not None]
        if place.may_omit:
            cleaned = [each for each in cleaned if each.get("type") != "null"] or cleaned
        return any_of(cleaned) if cleaned else None

    def _of_kind(self, kind: str, words: Plain, place: _Place) -> Plain | None:
        match kind:
            case "object":
                return self._object(words, place)
            case "array":
                return self._array(words, place)
            case "string":
                return string(words, with_pattern=self._may_read(words.get("pattern")))
            case "integer" | "number":
                return number(kind, words)
            case _:
                return {"type": kind}

    def _may_read(self, pattern: object) -> bool:
        if isinstance(pattern, str) and len(self._patterns) < _MOST_PATTERNS:
            self._patterns.add(pattern)
        return pattern in self._patterns

    # ---- objects and arrays ----

    def _object(self, words: Plain, place: _Place) -> Plain | None:
        more = True if words.get("patternProperties") else words.get("additionalProperties", True)
        properties = self._properties(words, more, place)
        if len(properties) > _MOST_PROPERTIES:
            return {"type": "object"}
        self._spend(sum(map(len, properties)))
        needed = frozenset(name for name in _list(words.get("required")) if isinstance(name, str))
        cleaned = {
            name: self.node(inner, place.within(may_omit=name not in needed)) for name, inner in properties.items()
        }
        if any(each is None and name in needed for name, each in cleaned.items()):
            return None
        kept = {name: each for name, each in cleaned.items() if each is not None}
        made: Plain = {"type": "object", **({"properties": kept} if kept else {})}
        if names := [name for name in kept if name in needed]:
            made["required"] = names
        return made | self._additional(more, place)

    def _properties(self, words: Plain, more: object, place: _Place) -> dict[str, object]:
        """Those that are described, also in one of the alternatives, and those that are required without a word."""
        given = words.get("properties")
        properties: dict[str, object] = dict(given) if isinstance(given, dict) else {}
        if more is False:  # what else is required contradicts it, and nothing fits it anyway
            return properties
        for name, choices in self._in_alternatives(words, place).items():
            properties.setdefault(name, choices[0] if len(choices) == 1 else {"anyOf": choices})
        required = (name for name in _list(words.get("required")) if isinstance(name, str))
        return properties | {name: more for name in required if name not in properties}

    def _in_alternatives(self, words: Plain, place: _Place) -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for choice in (*_list(words.get("anyOf")), *_list(words.get("oneOf"))):
            given = at_once(self._parts(choice, place)[0]).get("properties") if isinstance(choice, dict) else None
            for name, inner in given.items() if isinstance(given, dict) else ():
                found.setdefault(name, []).append(inner)
        return found

    def _additional(self, more: object, place: _Place) -> Plain:
        cleaned = self.node(more, place.within())
        if cleaned is None:
            return {"additionalProperties": False}
        return {} if cleaned == ANY else {"additionalProperties": cleaned}

    def _array(self, words: Plain, place: _Place) -> Plain:
        first, rest = _item_schemas(words)
        made: Plain = {"type": "array", "items": {}, **span(words, "minItems", "maxItems", MOST_ITEMS)}
        cleaned = [each for item in (*first, rest) if (each := self.node(item, place.within())) is not None]
        if rest is False:
            made["maxItems"] = min(len(first), made.get("maxItems", len(first)))
        return {**made, "items": any_of(cleaned)} if cleaned else made


def _choices(words: Plain) -> list[object]:
    """The alternatives, where the schema is nothing else: what holds for all of them beside is told instead of them."""
    for word in ("anyOf", "oneOf"):
        choices = words.get(word)
        if isinstance(choices, list) and choices:
            shape = _SHAPE.intersection(words)
            if not shape:
                return choices
            if shape == {"type"}:
                return [{"allOf": [choice, {"type": words["type"]}]} for choice in choices]
    return []


def _item_schemas(words: Plain) -> tuple[list[object], object]:
    """Those of the first items, and that of the others. Older drafts have a list under `items`."""
    items = words.get("items", True)
    if isinstance(items, list):
        return items, words.get("additionalItems", True)
    return _list(words.get("prefixItems")), items


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _weight(part: object) -> int:
    """How much work it is beyond that of its parts: lists are read to their ends, however often they are met."""
    if not isinstance(part, dict):
        return 0
    return sum(len(each) for each in part.values() if isinstance(each, list | dict)) // _PER_PART


# ---- the whole ----


class _Known:
    """Schemas and what came of them. Each is held on to, so that no other can have its place in memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Plain, Plain, int]] = OrderedDict()
        self._held = 0

    def get(self, schema: Plain) -> Plain | None:
        known = self._kept.get(id(schema))
        return None if known is None else known[1]

    def keep(self, schema: Plain, cleaned: Plain, size: int) -> None:
        self._kept[id(schema)] = (schema, cleaned, size)
        self._held += size
        while self._held > _MOST_HELD:
            self._held -= self._kept.popitem(last=False)[1][2]

    def clear(self) -> None:
        self._kept.clear()
        self._held = 0


_by_identity = _Known()
_by_content: OrderedDict[bytes, Plain] = OrderedDict()


def clean(schema: Plain) -> Plain:
    """The arguments of a tool, told plainly. The same schema once more costs nothing; nobody may change the result."""
    known = _by_identity.get(schema)
    if known is not None:
        return known
    size = measured(schema)
    if size is None:
        return OPEN  # and not held on to: it may be as large as a message of a server's
    cleaned = _known_or_cleaned(schema)
    _by_identity.keep(schema, cleaned, size)
    return cleaned


async def clean_all(schemas: Iterable[Plain]) -> None:
    """Clean them ahead of being told: many at once would hold up everybody, one by one they do not."""
    for schema in schemas:
        if _by_identity.get(schema) is None:
            clean(schema)
            await asyncio.sleep(0)


def _known_or_cleaned(schema: Plain) -> Plain:
    try:
        key = hashlib.sha256(msgspec.json.encode(schema)).digest()
    except (TypeError, ValueError, RecursionError):
        return OPEN  # no JSON, or nested beyond reason
    if (known := _by_content.get(key)) is None:
        known = _by_content[key] = _first_that_fits(_attempts(schema))
        if len(_by_content) > _MOST_KEPT:
            _by_content.popitem(last=False)
    return known


def _attempts(schema: Plain) -> Iterator[Plain]:
    for deepest, most in _BOUNDS:
        with suppress(_TooLong):
            yield united(_Cleaning(schema, deepest, most).node({"type": "object", **schema}, _Place()))


def _first_that_fits(attempts: Iterator[Plain]) -> Plain:
    return next((each for each in attempts if len(msgspec.json.encode(each)) <= _LONGEST), OPEN)
