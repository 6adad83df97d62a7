"""`GET /v1/responses/{id}?stream=true`: which events of a response a query asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from antwort.errors import InvalidField

_CLAIMS = {"": False, "0": False, "false": False, "1": True, "true": True}


def read_after(query: Mapping[str, str]) -> int | None:
    """The number of the event behind which to begin: -1 for all of them, None where no events are asked for. Other
    parameters that clients send are about what is not done here. Raises `InvalidField`.
    """
    is_streamed = _CLAIMS.get(query.get("stream", "").lower())
    if is_streamed is None:
        raise InvalidField("stream", "expected 'true' or 'false'.")
    after = query.get("starting_after")
    if after is None:
        return -1 if is_streamed else None
    if not is_streamed:
        raise InvalidField("starting_after", "it is there for streams alone; send 'stream=true' with it.")
    if not re.fullmatch("[0-9]{1,15}", after):
        raise InvalidField("starting_after", "expected the number of an event: a whole number from 0 on.")
    return int(after)
