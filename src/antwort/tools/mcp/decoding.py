"""Bytes of a server's, as JSON: bounded in what they cost to hold, and mended where programs write what is almost JSON.
Pure.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any

import msgspec

from antwort.api.decoding import has_long_number, has_more_values

MOST_VALUES = 200_000
"""Values in one message. Sixteen megabytes of empty objects would be five million, and a gigabyte."""
AT_ONCE = 256 * 1024
"""Bytes that are decoded where they came; more take their time in a thread."""
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u[dD][89a-fA-F]..|.)", re.DOTALL)
_HALF = 6
"""Bytes of the escape of half a character."""
_LOOKED_AT = 4096
"""Bytes at either end of what cannot be read in which its number is looked for."""
_NUMBER = rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,200}")\s*'
_SCALARS = rb'(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[-+.\w]+)\s*,)*'
_ANSWER = re.compile(rb"\s*\{(" + _SCALARS + rb')\s*"(?:result|error)"\s*:')
_EARLY = re.compile(_NUMBER + rb",")
_LATE = re.compile(_NUMBER + rb'(?:,\s*"[^"\\]*"\s*:\s*"[^"\\]*"\s*)*\}\s*$')


class TooHeavy(ValueError):
    """There is more in it than is taken."""


async def decoded_aside(data: bytes) -> Any:
    """As `decode`, without keeping others waiting."""
    return decode(data) if len(data) <= AT_ONCE else await asyncio.to_thread(decode, data)


def decode(data: bytes) -> Any:
    """Raises `ValueError` for what is no JSON, and `TooHeavy`. Half of a pair of surrogates, which programs that cut
    texts write, becomes the character for such cases; numbers that are none (NaN, Infinity, 1e999) become null.
    """
    if has_more_values(data, MOST_VALUES):
        raise TooHeavy("too many values")
    if has_long_number(data):
        raise TooHeavy("a number of too many digits")
    try:
        return _decode(data)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _leniently(data)


def number_in(data: bytes) -> int | str | None:
    """Of the request that it answers, for an answer that cannot be read. None where it is none, or does not say."""
    if (answer := _ANSWER.match(data[:_LOOKED_AT])) is None:
        return None
    found = _EARLY.search(answer[1]) or _LATE.search(data[-_LOOKED_AT:])
    if found is None:
        return None
    number = found[1].decode("utf-8", "replace")
    return number[1:-1] if number.startswith('"') else int(number)


def _leniently(data: bytes) -> Any:
    mended = _mended(data) if b"\\ud" in data or b"\\uD" in data else data
    try:
        return json.loads(mended.decode("utf-8-sig"), parse_float=_float, parse_constant=_nothing)
    except RecursionError as exc:
        raise ValueError("too deep") from exc
    except ValueError as exc:
        raise ValueError("no JSON") from exc


def _float(text: str) -> float | None:
    return number if math.isfinite(number := float(text)) else None


# Of a number such as 1.2345678901234567e-300 msgspec takes 7 µs to make one, and a function of Python's 0.7; besides,
# others get a turn between two of them.
_decode = msgspec.json.Decoder(float_hook=_float).decode


def _nothing(name: str) -> None:
    """NaN, Infinity or -Infinity, as JavaScript writes them."""


def _mended(data: bytes) -> bytes:
    if data.count(b"\\") > MOST_VALUES:
        raise TooHeavy("too many escapes")
    return _ESCAPE.sub(lambda found: b"\\ufffd" if _is_half(found[0]) else found[0], data)


def _is_half(escape: bytes) -> bool:
    return len(escape) == _HALF and escape[2:3] in b"dD"
