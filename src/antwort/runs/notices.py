"""What processes tell one another, as texts of PostgreSQL's NOTIFY. Pure.

`w` there may be work, `c` there may be cancels, `e 17,18` there is more of these runs. The sender's name comes first:
it knows already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

_MOST = 300
"""Runs in one text: PostgreSQL takes less than 8,000 bytes, and a key has at most 19 digits."""


class Notice(NamedTuple):
    sender: str
    kind: Literal["w", "c", "e"]
    keys: tuple[int, ...] = ()


def work(sender: str) -> str:
    return f"{sender} w"


def cancels(sender: str) -> str:
    return f"{sender} c"


def events(sender: str, keys: Sequence[int]) -> Iterator[str]:
    for start in range(0, len(keys), _MOST):
        yield f"{sender} e {','.join(map(str, keys[start : start + _MOST]))}"


def read(payload: str) -> Notice | None:
    """None for what nobody here has written."""
    match payload.split(" "):
        case [sender, "w"]:
            return Notice(sender, "w")
        case [sender, "c"]:
            return Notice(sender, "c")
        case [sender, "e", keys] if all(key.isdecimal() for key in keys.split(",")):
            return Notice(sender, "e", tuple(int(key) for key in keys.split(",")))
    return None
