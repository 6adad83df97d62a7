"""Rank tools by a query: BM25 over their names, descriptions and parameters. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from threading import Lock
from typing import TypeAlias

from antwort.caching import Cache
from antwort.tools.base import ToolDefinition

_K1, _B = 1.2, 0.75
_NAME_WEIGHT = 3
"""A word of the name weighs as much as so many in the description."""
_LONGEST_DESCRIPTION, _LONGEST_ABOUT, _MOST_PARAMETERS = 2000, 300, 64
"""The parts of a definition that are indexed: servers are untrusted."""
_LONGEST_QUERY, _MAX_WORDS = 1000, 32_768
_MAX_CACHED = 16_384
"""Tools in all cached indexes."""

_WORD = re.compile(r"[^\W_]+")
_LETTERS = bytes(byte if chr(byte).isalnum() and byte < 128 else 32 for byte in range(256)).lower()
"""Maps ASCII to lower case, and separators to spaces."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DENSE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""Scripts without spaces between words."""
_EMPTY = frozenset(
    _WORD.findall(
        "a an and any are as at be by can do does for from has have how i in into is it its me my of on or our please "
        "so some that the their them then there these this to tool tools use used using want was we what when where "
        "which will with you your"
    )
)
"""Stop words."""


class Index:
    """The words of tools, without their declarations: an index outlives the request, and they may hold a secret."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._names = [(tool.name, tool.own_name) for tool in tools]
        self._schemas = [tool.parameters for tool in tools]  # referenced, so that no other gets the same id
        self._words = [_counted(tool) for tool in tools]
        lengths = [words.total() for words in self._words]
        average = sum(lengths) / max(len(lengths), 1) or 1.0
        self._norms = [_K1 * (1 - _B + _B * length / average) for length in lengths]

    def best(self, query: str, most: int) -> list[int]:
        """Return the places of the tools that have words of the query, the best first; equals by their names."""
        asked = query[:_LONGEST_QUERY]
        meant = asked.strip().casefold()
        scores = self._scores(Counter(filter(None, words_in(_name(asked)))))
        found = [
            (meant not in (name.casefold(), own.casefold()), -score, name, at)
            for at, (score, (name, own)) in enumerate(zip(scores, self._names, strict=True))
        ]
        hits = sorted(each for each in found if each[1] or not each[0])
        return [at for *_, at in hits[:most]]

    def _scores(self, query: Counter[str]) -> list[float]:
        scores = [0.0] * len(self._names)
        for word, times in query.items():
            holding = [(at, words[word]) for at, words in enumerate(self._words) if word in words]
            rarity = math.log(1 + (len(scores) - len(holding) + 0.5) / (len(holding) + 0.5))
            for at, count in holding:
                scores[at] += times * rarity * count * (_K1 + 1) / (count + self._norms[at])
        return scores


# ---- words ----


def words_in(text: str) -> list[str]:
    """Return the words of a text, each as its stem; stop words are empty."""
    if text.isascii():  # three times as fast: there may be thousands of tools
        return [*map(_stem, text.encode().translate(_LETTERS).split())]
    words = _WORD.findall(f"{text} {' '.join(_pairs(text))}".lower())
    return [_stem(word.encode(errors="replace")) for word in words]


def _name(name: str) -> str:
    """Return a name with spaces between its camelCase words."""
    return name if name.islower() else _HUMP.sub(" ", name)


def _counted(tool: ToolDefinition) -> Counter[str]:
    """Count the words of a tool."""
    name = _name(tool.own_name)
    said = [name] * _NAME_WEIGHT
    said += (tool.server_label or "", tool.namespace or "", (tool.description or "")[:_LONGEST_DESCRIPTION])
    said += _parameters(tool)
    words = Counter(words_in(" ".join(said)))
    words.pop("", None)
    return words


def _parameters(tool: ToolDefinition) -> list[str]:
    properties = (tool.parameters or {}).get("properties")
    said: list[str] = []
    if isinstance(properties, dict):
        for name, schema in islice(properties.items(), _MOST_PARAMETERS):
            said.append(_name(name[:_LONGEST_ABOUT]))
            if isinstance(schema, dict) and isinstance(about := schema.get("description"), str):
                said.append(about[:_LONGEST_ABOUT])
    return said


def _pairs(text: str) -> Iterator[str]:
    """Yield pairs of characters of scripts without spaces."""
    for run in _DENSE.findall(text):
        yield from (run[at : at + 2] for at in range(max(len(run) - 1, 1)))


@lru_cache(maxsize=_MAX_WORDS)
def _stem(text: bytes) -> str:
    """Return the stem of a word: without endings of plurals and verbs. Empty for a stop word."""
    word = text.decode(errors="replace")
    if word in _EMPTY:
        return ""
    if word.endswith("ies") and len(word) > 4:
        word = f"{word[:-3]}y"
    elif word.endswith(("sses", "shes", "ches", "xes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        word = word[:-1]
    for ending, least in (("ing", 6), ("ion", 6), ("ed", 5)):
        if word.endswith(ending) and len(word) >= least:
            word = word[: -len(ending)]
            word = word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls" else word
            break
    return word[:-1] if word.endswith("e") and len(word) > 4 else word


# ---- the cache ----

_Key: TypeAlias = tuple[tuple[str, str | None, str | None, str | None, str | None, int], ...]

_lock = Lock()
_indexes = Cache[_Key, Index](_MAX_CACHED, _MAX_CACHED)
"""Sized by their tools."""


def index_of(tools: Sequence[ToolDefinition]) -> Index:
    """Return the cached index of these tools, or make it. Safe in any thread."""
    key = _key(tools)
    if (index := _indexes.get(key)) is None:
        index = Index(tools)
        with _lock:
            _indexes.put(key, index, min(len(tools), _MAX_CACHED))
    return index


def is_indexed(tools: Sequence[ToolDefinition]) -> bool:
    """Return whether the index of these tools is cached."""
    return _key(tools) in _indexes


def _key(tools: Iterable[ToolDefinition]) -> _Key:
    """Return the key of all that is indexed. Schemas count by identity: an index references its own."""
    return tuple(
        (tool.name, tool.own_name, tool.server_label, tool.namespace, tool.description, id(tool.parameters))
        for tool in tools
    )
