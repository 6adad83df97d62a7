"""When two requests are the same: by the key they come with, and by what they say."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import chain

import msgspec

from antwort.api.items import InputItem, ItemReference, OpaqueItem
from antwort.api.requests import CreateRequest
from antwort.api.steps import Steps, at_once
from antwort.api.wire import Plain, encode, replace
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

    The body as it came is one half of it. The other is the request as it was read: a program may have changed it since,
    or put it together without a body.
    """
    return at_once(fingerprint_steps(request))


def fingerprint_steps(request: CreateRequest) -> Steps[bytes]:
    """The same in pieces."""
    digest = sha256()
    came: Plain = _decoder.decode(request.raw)
    came.pop("input", None)
    yield
    text = encode(replace(request, raw=b"", raw_input=(), input=()))
    yield
    read: Plain = _decoder.decode(text)
    yield
    digest.update(_encoder.encode((came, _counted(read), len(request.raw_input), len(request.input))))
    since = 0
    for raw in chain(request.raw_input, map(_without_id, request.input)):
        if (since := since + len(raw)) > _STEP:
            since = 0
            yield
        value = _decoder.decode(raw)
        if len(raw) > _STEP:
            yield
        digest.update(_encoder.encode(value))
    return digest.digest()


def _counted(read: Plain) -> Plain:
    """What is said in it. Not what was not set, nor whether events are read: the caller of `create` and `respond` says
    that by the method.
    """
    return {name: value for name, value in read.items() if value is not None and name not in _NOT_COUNTED}


_NOT_COUNTED = frozenset({"raw", "raw_input", "additional", "stream"})
_STEP = 256 * 1024
"""Bytes after which others get their turn."""


def _without_id(item: InputItem) -> bytes:
    """Ids may have been made for items that came without; what an item refers to by one counts."""
    if isinstance(item, OpaqueItem):
        return encode({name: value for name, value in item.fields.items() if name != "id"})
    return encode(item if isinstance(item, ItemReference) else replace(item, id=""))


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


_decoder = msgspec.json.Decoder(float_hook=_number)
_encoder = msgspec.json.Encoder(order="sorted")
