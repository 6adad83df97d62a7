"""Declarations of tool servers, wherever they stand in what a client sent: without what they bring to log in."""

from __future__ import annotations

from antwort.api.standard import own_kind
from antwort.api.steps import Steps
from antwort.api.tools import shown_url
from antwort.api.wire import Plain, decode_object

KEY = "antwort_credentials"
"""Where they stand, sealed, in what is kept. What a client itself sends there is not kept."""
SECRET = ("authorization", "headers")
_PIECE = 4 * 2**20
_LONGEST = len("authorization")


def may_hold_logins(raw: bytes) -> bool:
    """Whether it is worth reading again: one of these is in every text that holds any, and the last one writes the
    others in disguise. Cheap.
    """
    return b"authorization" in raw or b"headers" in raw or b"server_url" in raw or b"\\u00" in raw


def login_steps(raw: bytes) -> Steps[bool]:
    """The same for a long text, in pieces."""
    for start in range(0, len(raw), _PIECE):
        if may_hold_logins(raw[start : start + _PIECE + _LONGEST]):
            return True
        yield
    return False


def bared(plain: Plain, raw: bytes) -> Plain:
    """Plain values without them, and as they came where there are none. `raw` is their JSON."""
    if not may_hold_logins(raw):
        return plain
    copy: Plain = decode_object(raw)
    return copy if take_logins(copy) else plain


def take_logins(value: object) -> bool:
    """Take them out of plain values, in place; whether there were any. It does not matter how deep they stand."""
    taken = False
    waiting: list[object] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            taken = (_is_server(found) and _bare(found)) or taken
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found
    return taken


def _is_server(plain: Plain) -> bool:
    kind = plain.get("type")
    return (isinstance(kind, str) and own_kind(kind) == "mcp") or isinstance(plain.get("server_url"), str)


def _bare(plain: Plain) -> bool:
    before = dict(plain)
    for field in SECRET:
        plain.pop(field, None)
    if isinstance(url := plain.get("server_url"), str):
        plain["server_url"] = shown_url(url)
    return plain != before
