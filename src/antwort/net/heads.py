"""Heads of answers that were read before: servers write the same ones again and again, and need not be parsed anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

END = b"\r\n\r\n"
_MOST = 256
_LONGEST = 1024


class Headers(Mapping[str, str]):
    """Names in any case; fields of the same name are joined by a comma."""

    __slots__ = ("_fields", "coding", "is_events", "is_json", "media_type")

    def __init__(self, fields: dict[str, str]) -> None:
        """`fields` have their names in lower case. What is asked of each answer is worked out once for each head, and
        is empty where there is no such field. Where a type is named more than once, events go before JSON.
        """
        self._fields = fields
        kind = fields.get("content-type", "").lower()
        self.media_type = kind.partition(";")[0].strip()
        self.is_events = "event-stream" in kind
        self.is_json = "json" in kind and not self.is_events
        self.coding = fields.get("content-encoding", "").lower()

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


known: dict[bytes, Head] = {}
"""By their bytes, without the blank line. The same head with as much behind it is the same answer but for its body:
whoever parsed it would find no other.
"""


def remember(data: bytes, head: Head) -> None:
    """All of `data` is one answer with that head, after which the connection may be used again. What does not say by a
    length where it ends may end elsewhere next time.
    """
    written, end, body = data.partition(END)
    is_framed = "content-length" in head.headers and "transfer-encoding" not in head.headers
    if is_framed and end and len(written) <= _LONGEST and len(body) == head.length:
        if len(known) >= _MOST:
            known.clear()
        known[written] = head
