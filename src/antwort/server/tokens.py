"""How many tokens a response has cost. No I/O."""

from __future__ import annotations

import math

from antwort.api.wire import encode
from antwort.engine.context.compaction import item_size
from antwort.engine.runs.live import RunSummary

_BYTES_A_TOKEN = 4


def tokens_of(ended: RunSummary) -> int:
    """As the backend has told, and estimated where it has not: whoever leaves before the end has used them, too."""
    usage = ended.response.usage
    told = 0 if usage is None else usage.input_tokens + usage.output_tokens
    return told + (_estimate(ended) if ended.untold else 0)


def _estimate(ended: RunSummary) -> int:
    """What was sent goes with each inference; what came of it is counted once."""
    response = ended.response
    sent = len(encode(response.tools)) + len((response.instructions or "").encode())
    sent += sum(item_size(item) for stretch in ended.plan.history.stretches for item in stretch)
    came = sum(item_size(item) for item in response.output)
    return math.ceil((sent * ended.untold + came) / _BYTES_A_TOKEN)
