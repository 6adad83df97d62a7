"""What can be wrong with a server. Nothing here needs the SDK."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Step: TypeAlias = Literal["initialize", "list", "call"]
"""Opening a session, asking for the tools, running one."""

Garbage: TypeAlias = Literal["text", "json", "shape"]
"""What comes in the place of an answer: no JSON, JSON that is no answer, an answer whose result is none."""

METHODS: dict[str, Step] = {
    "initialize": "initialize",
    "server/discover": "initialize",
    "tools/list": "list",
    "tools/call": "call",
}
"""The step that each method belongs to. Servers of the newest protocol are not initialized: they are discovered."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a server; a server takes another while it serves."""

    hang: tuple[Step, ...] = ()
    """It takes these requests and never answers them."""
    slow: tuple[Step, ...] = ()
    """It answers these when its latch `slow` is set, as the tool `release` does."""
    garbage: tuple[Step, ...] = ()
    """It answers these with something that is no answer."""
    garbage_as: Garbage = "text"
    status: int | None = None
    """Over HTTP: it answers everything with this status."""
    token: str | None = None
    """Over HTTP: it answers 401 to whoever does not bring this as a bearer token."""
    oldest: str | None = None
    """It speaks this version of the protocol and no other, such as `2025-06-18`."""


def garbage_for(kind: Garbage, request_id: str | int | None) -> bytes:
    """The bytes in the place of an answer to that request."""
    if kind == "text":
        return b"<html>It works!</html>"
    if kind == "json":
        return b'["neither a result", {"nor": "an error"}]'
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": {"content": 7, "tools": "none"}})
