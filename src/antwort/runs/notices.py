"""What processes tell one another, as texts of PostgreSQL's NOTIFY. Pure.

`w` there may be work, `c` there may be cancels, `e resp_1,resp_2` there is more of these runs. The sender's name
comes first: it knows already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

_MOST = 150
"""Runs in one text: PostgreSQL takes less than 8,000 bytes, and an id has 37."""


class Notice(NamedTuple):
    sender: str
    kind: Literal["w", "c", "e"]
    ids: tuple[str, ...] = ()


def work(sender: str) -> str:
    return f"{sender} w"


def cancels(sender: str) -> str:
    return f"{sender} c"


def events(sender: str, ids: Sequence[str]) -> Iterator[str]:
    for start in range(0, len(ids), _MOST):
        yield f"{sender} e {','.join(ids[start : start + _MOST])}"


def read(payload: str) -> Notice | None:
    """None for what nobody here has written."""
    match payload.split(" "):
        case [sender, "w"]:
            return Notice(sender, "w")
        case [sender, "c"]:
            return Notice(sender, "c")
        case [sender, "e", ids]:
            return Notice(sender, "e", tuple(ids.split(",")))
    return None
