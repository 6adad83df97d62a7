"""When two requests are the same: by the key they come with, and by what they say."""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from antwort.api.requests import CreateRequest
from antwort.api.wire import encode
from antwort.errors import RequestError

LONGEST_KEY = 255
_KEY = re.compile(rf"[\x21-\x7e]{{1,{LONGEST_KEY}}}")


def checked_key(key: str) -> str:
    """The key, if it can be one."""
    if _KEY.fullmatch(key) is None:
        problem = f"The Idempotency-Key must be 1 to {LONGEST_KEY} visible ASCII characters, without spaces."
        raise RequestError(problem, code="invalid_idempotency_key")
    return key


def fingerprint(request: CreateRequest) -> bytes:
    """The same for every way to write the same JSON: the order of keys, white space and the form of numbers and texts
    do not count. It tells nothing of what the request says.
    """
    return sha256(_encoder.encode(_decoder.decode(_body(request)))).digest()


def _body(request: CreateRequest) -> bytes:
    """As it came. A program may have put a request together without one."""
    return encode(request) if request.raw == b"{}" else request.raw


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_decoder = msgspec.json.Decoder(float_hook=_number)
_encoder = msgspec.json.Encoder(order="sorted")
