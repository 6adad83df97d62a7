"""Heads of answers that were read before: servers write the same ones again and again, and need not be parsed anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_MOST = 256
_LONGEST = 1024
_END = b"\r\n\r\n"


class Headers(Mapping[str, str]):
    """Names in any case; fields of the same name are joined by a comma."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, str]) -> None:
        """`fields` have their names in lower case."""
        self._fields = fields

    def field(self, name: str) -> str:
        """Of a name in lower case; nothing where there is none. It is what is asked of each answer."""
        return self._fields.get(name, "")

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


NO_HEADERS = Headers({})


class Head(NamedTuple):
    """What the parser has found in one."""

    status: int
    headers: Headers
    length: int
    """Bytes of the body behind it."""


_known: dict[bytes, Head] = {}


def recall(data: bytes) -> tuple[Head, int] | None:
    """The head of an answer that is all of `data`, if it is known, and where its body begins.

    The same head with as much behind it is the same answer but for its body: whoever parsed it would find no other.
    """
    end = data.find(_END)
    head = _known.get(data[:end]) if end >= 0 else None
    if head is None or len(data) - end - len(_END) != head.length:
        return None
    return head, end + len(_END)


def remember(data: bytes, head: Head) -> None:
    """All of `data` is one answer with that head, after which the connection may be used again. What does not say by a
    length where it ends may end elsewhere next time.
    """
    end = data.find(_END)
    is_framed = "content-length" in head.headers and "transfer-encoding" not in head.headers
    if is_framed and 0 <= end <= _LONGEST and len(data) - end - len(_END) == head.length:
        if len(_known) >= _MOST:
            _known.clear()
        _known[data[:end]] = head
