"""Repair JSON text in which half of a surrogate pair stands alone.

`"half \\ud83d"` is legal JSON that no decoder of texts takes. Programs write it when they cut a string in the middle of
an emoji.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from antwort.api.steps import Steps, at_once

__all__ = ["MOST_SURROGATES", "repair_steps", "repair_surrogates"]

MOST_SURROGATES = 100_000
"""Escapes of surrogates, paired or not, that are looked at: each costs about a microsecond."""
_REPLACEMENT = b"\\ufffd"
_SURROGATE = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")
_PIECE = 8 * 2**20
"""Bytes that are looked through at a time."""
_AT_A_TIME = 10_000
"""Escapes that are."""
_RUN = 4096
"""Bytes in which the backslashes before an escape are counted at a time."""


def repair_surrogates(raw: bytes) -> bytes:
    """Return the JSON text with U+FFFD for each escaped surrogate that has no other half; pairs stay.

    It has the length that it had. A text with more than `MOST_SURROGATES` comes back as it is.
    """
    return at_once(repair_steps(raw))


def repair_steps(raw: bytes) -> Steps[bytes]:
    """The same in pieces."""
    found: list[int] = []
    for prefix in (b"\\ud", b"\\uD"):
        for start in range(0, len(raw), _PIECE):
            found += _places(raw, prefix, start, start + _PIECE + len(prefix) - 1)
            if len(found) > MOST_SURROGATES:
                return raw
            yield
    alone: list[int] = []
    first = -1  # where the last first half stands
    for number, at in enumerate(sorted(found)):
        if number % _AT_A_TIME == 0:
            yield
        if (escape := _SURROGATE.match(raw, at)) is None or _backslashes(raw, at) % 2:
            continue
        if escape[1] is None and first >= 0 and first + len(_REPLACEMENT) == at:
            alone.pop()  # they are a pair
            continue
        alone.append(at)
        first = at if escape[1] else -1
    if not alone:
        return raw
    yield
    repaired = bytearray(raw)
    for at in alone:
        repaired[at : at + len(_REPLACEMENT)] = _REPLACEMENT
    yield
    return bytes(repaired)


def _places(raw: bytes, prefix: bytes, start: int, end: int) -> Iterator[int]:
    """Where `prefix` stands: all places, or one more than `MOST_SURROGATES`."""
    at = start - len(prefix)
    for _ in range(MOST_SURROGATES + 1):
        if (at := raw.find(prefix, at + len(prefix), end)) < 0:
            return
        yield at


def _backslashes(raw: bytes, end: int) -> int:
    """How many stand right before `end`: after an odd number, what follows is no escape of its own."""
    start = end
    while start > 0 and raw[start - 1 : start] == b"\\":
        window = raw[max(0, start - _RUN) : start]
        start -= len(window) - len(window.rstrip(b"\\"))
        if window.strip(b"\\"):
            break
    return end - start
