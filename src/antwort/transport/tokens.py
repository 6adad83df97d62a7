"""How many tokens a response has cost. No I/O."""

from __future__ import annotations

import math

from msgspec import Struct

from antwort.api.items import CustomToolCallOutput, FunctionCallOutput, InputItem, Message
from antwort.api.wire import encode
from antwort.engine.live import Ended

_BYTES_A_TOKEN = 4
_ONE_PICTURE = 4096
"""As many bytes of text as a picture or a file counts for: its size says little of its tokens."""


def tokens_of(ended: Ended) -> int:
    """As the backend has told, and estimated where it has not: whoever leaves before the end has used them, too."""
    usage = ended.response.usage
    told = 0 if usage is None else usage.input_tokens + usage.output_tokens
    return told + (_estimate(ended) if ended.untold else 0)


def _estimate(ended: Ended) -> int:
    """What was sent goes with each inference; what came of it is counted once."""
    response = ended.response
    sent = len(encode(response.tools)) + len((response.instructions or "").encode())
    sent += sum(_size(item) for stretch in ended.plan.history.stretches for item in stretch)
    came = sum(_size(item) for item in response.output)
    return math.ceil((sent * ended.untold + came) / _BYTES_A_TOKEN)


def _size(item: InputItem) -> int:
    """In bytes; of what is no text, so much at most."""
    if isinstance(item, Message):
        return sum(map(_part_size, item.content))
    if isinstance(item, FunctionCallOutput | CustomToolCallOutput) and not isinstance(item.output, str):
        return sum(map(_part_size, item.output))
    return len(encode(item))


def _part_size(part: Struct) -> int:
    text = getattr(part, "text", None)
    return len(text.encode()) if isinstance(text, str) else min(len(encode(part)), _ONE_PICTURE)
