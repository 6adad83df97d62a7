"""Bytes of a server's, as JSON: bounded in what they cost to hold, and with half characters mended. Pure."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec

MOST_VALUES = 200_000
"""Values in one message. Sixteen megabytes of empty objects would be five million, and a gigabyte."""
_AT_ONCE = 256 * 1024
"""Bytes that are decoded where they came; more take their time in a thread."""
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_HALF = 6
"""Bytes of the escape of half a character."""


class TooHeavy(ValueError):
    """There is more in it than is taken."""


async def decoded_aside(data: bytes) -> Any:
    """As `decode`, without keeping others waiting."""
    return decode(data) if len(data) <= _AT_ONCE else await asyncio.to_thread(decode, data)


def decode(data: bytes) -> Any:
    """Raises `ValueError` for what is no JSON, and `TooHeavy`. Half of a pair of surrogates, which programs that cut
    texts write, becomes the character for such cases.
    """
    if len(data) > MOST_VALUES and _values(data) > MOST_VALUES:
        raise TooHeavy("too many values")
    try:
        return msgspec.json.decode(data)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
    except msgspec.DecodeError as exc:
        if b"\\ud" not in data and b"\\uD" not in data:
            raise ValueError("no JSON") from exc
    try:
        return msgspec.json.decode(_mended(data))
    except (RecursionError, msgspec.DecodeError) as exc:
        raise ValueError("no JSON") from exc


def _values(data: bytes) -> int:
    """At least as many as there are. What stands in strings does not count, and each string does."""
    if (most := sum(map(data.count, (b",", b"{", b"[", b'"')))) <= MOST_VALUES:
        return most
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # what quotes are left begin or end a string
    if (strings := bare.count(b'"') // 2) > MOST_VALUES:
        return strings
    between = b"".join(bare.split(b'"')[::2])
    return strings + sum(map(between.count, (b",", b"{", b"[")))


def _mended(data: bytes) -> bytes:
    if data.count(b"\\") > MOST_VALUES:
        raise TooHeavy("too many escapes")
    return _ESCAPE.sub(lambda found: b"\\ufffd" if _is_half(found[0]) else found[0], data)


def _is_half(escape: bytes) -> bool:
    return len(escape) == _HALF and escape[2:3] in b"dD"
