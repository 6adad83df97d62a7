"""Repair JSON text in which half of a surrogate pair stands alone.

`"half \\ud83d"` is legal JSON that no decoder of texts takes. Programs write it when they cut a string in the middle of
an emoji.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["MOST_SURROGATES", "repair_surrogates"]

MOST_SURROGATES = 100_000
"""Escapes of surrogates, paired or not, that are looked at: each costs about a microsecond."""
_REPLACEMENT = b"\\ufffd"
_SURROGATE = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")
_RUN = 4096
"""Bytes in which the backslashes before an escape are counted at a time."""


def repair_surrogates(raw: bytes) -> bytes:
    """Return the JSON text with U+FFFD for each escaped surrogate that has no other half; pairs stay.

    It has the length that it had. A text with more than `MOST_SURROGATES` comes back as it is.
    """
    found = [*_found(raw, b"\\ud"), *_found(raw, b"\\uD")]
    if len(found) > MOST_SURROGATES:
        return raw
    alone: list[int] = []
    first = -1  # where the last first half stands
    for at in sorted(found):
        if (escape := _SURROGATE.match(raw, at)) is None or _backslashes(raw, at) % 2:
            continue
        if escape[1] is None and first >= 0 and first + len(_REPLACEMENT) == at:
            alone.pop()  # they are a pair
            continue
        alone.append(at)
        first = at if escape[1] else -1
    if not alone:
        return raw
    repaired = bytearray(raw)
    for at in alone:
        repaired[at : at + len(_REPLACEMENT)] = _REPLACEMENT
    return bytes(repaired)


def _found(raw: bytes, prefix: bytes) -> Iterator[int]:
    """Where `prefix` stands: all places, or one more than `MOST_SURROGATES`."""
    at = -len(prefix)
    for _ in range(MOST_SURROGATES + 1):
        if (at := raw.find(prefix, at + len(prefix))) < 0:
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
