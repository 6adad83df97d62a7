"""The items of a response as backends send them: whatever can be read of them is. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.api.responses import Usage
from antwort.providers.base import Delta, RefusalDelta, TextDelta
from antwort.providers.reading import UNREADABLE
from antwort.providers.tokens import TokenDetails, TokenProb, Told, log_probs, usage_of


class Part(msgspec.Struct, gc=False):
    """A piece of a message, or of reasoning."""

    text: str | None = None
    refusal: str | None = None
    logprobs: list[TokenProb] | None = None

    def read(self, out: list[Delta]) -> None:
        if self.text:
            out.append(TextDelta(self.text, log_probs(self.logprobs or ())))
        if self.refusal:
            out.append(RefusalDelta(self.refusal))


class Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str = ""
    arguments: str = ""
    content: tuple[Part, ...] = ()
    summary: tuple[Part, ...] = ()

    def thoughts(self) -> list[str]:
        """Of reasoning: its own words, or else what is told of them."""
        return [part.text for part in self.content or self.summary if part.text]


def items_of(told: Any) -> list[Item]:
    return [item_of(each) for each in told] if isinstance(told, list) else []


def item_of(told: Any) -> Item:
    """Other fields, kinds and shapes than these are passed over."""
    fields = told if isinstance(told, dict) else {}
    return Item(
        type=_text(fields.get("type")) or "",
        id=_text(fields.get("id")),
        name=_text(fields.get("name")) or "",
        arguments=arguments_of(fields.get("arguments")),
        content=_parts(fields.get("content")),
        summary=_parts(fields.get("summary")),
    )


def arguments_of(told: Any) -> str:
    """They are text; some send the object itself."""
    if told is None or isinstance(told, str):
        return told or ""
    return msgspec.json.encode(told).decode()


def _parts(told: Any) -> tuple[Part, ...]:
    return tuple(_part(each) for each in told) if isinstance(told, list) else ()


def _part(told: Any) -> Part:
    fields = told if isinstance(told, dict) else {}
    return Part(_text(fields.get("text")), _text(fields.get("refusal")), _probs(fields.get("logprobs")))


def _probs(told: Any) -> list[TokenProb] | None:
    try:
        return msgspec.convert(told, list[TokenProb] | None)
    except UNREADABLE:
        return None


def _text(told: Any) -> str | None:
    return told if isinstance(told, str) else None


# ---- what it cost ----


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Told = None
    output_tokens: Told = None
    total_tokens: Told = None
    input_tokens_details: TokenDetails | None = None
    output_tokens_details: TokenDetails | None = None


_decode_usage = msgspec.json.Decoder(_Usage | None).decode


def read_usage(told: msgspec.Raw) -> Usage | None:
    """None when nothing usable was told: a cost nobody can read is no reason to fail an answer."""
    try:
        usage = _decode_usage(told)
    except UNREADABLE:
        return None
    if usage is None:
        return None
    return usage_of(
        usage.input_tokens,
        usage.output_tokens,
        usage.total_tokens,
        usage.input_tokens_details,
        usage.output_tokens_details,
    )


# ---- what has been said ----

THOUGHTS = -1
"""The number of the part of an item that its reasoning is."""


class Said:
    """Which parts of which items have been read. An item is known by its place and its id, as far as it has them."""

    __slots__ = ("_last", "_parts")

    def __init__(self) -> None:
        self._parts: set[tuple[int | str | None, int]] = set()
        self._last: tuple[int | None, str | None, int] | None = None

    @property
    def has_words(self) -> bool:
        return any(part != THOUGHTS for _, part in self._parts)

    @property
    def has_thoughts(self) -> bool:
        return any(part == THOUGHTS for _, part in self._parts)

    def note(self, index: int | None, item_id: str | None, part: int) -> None:
        """Told for every delta, and so next to nothing while the part is the same."""
        here = (index, item_id, part)
        if here != self._last:
            self._last = here
            self._parts.update((name, part) for name in _names(index, item_id))

    def has(self, index: int | None, item_id: str | None, part: int) -> bool:
        """What came without any name may be anything's."""
        return any((name, part) in self._parts for name in (*_names(index, item_id), None))


def _names(index: int | None, item_id: str | None) -> tuple[int | str | None, ...]:
    return tuple(name for name in (index, item_id) if name is not None) or (None,)
