"""Remove credentials from declarations of tool servers, wherever a client sent them."""

from __future__ import annotations

from antwort.api.standard import own_kind
from antwort.api.steps import Steps
from antwort.api.tools import shown_url
from antwort.api.wire import Plain, decode_object

KEY = "antwort_credentials"
"""The field of a stored item that holds sealed credentials. What a client sends in it is not stored."""
SECRET = ("authorization", "headers")
_PIECE = 4 * 2**20
_LONGEST = len("authorization")


def may_hold_logins(raw: bytes) -> bool:
    """Return whether JSON text may hold credentials. This is a cheap test: each text that holds some has one of these
    words, or an escape that may spell one.
    """
    return b"authorization" in raw or b"headers" in raw or b"server_url" in raw or b"\\u00" in raw


def login_steps(raw: bytes) -> Steps[bool]:
    """Do what `may_hold_logins` does for a long text, in pieces."""
    for start in range(0, len(raw), _PIECE):
        if may_hold_logins(raw[start : start + _PIECE + _LONGEST]):
            return True
        yield
    return False


def bared(plain: Plain, raw: bytes) -> Plain:
    """Return plain values without credentials; the same object if there are none. `raw` is their JSON."""
    if not may_hold_logins(raw):
        return plain
    copy: Plain = decode_object(raw)
    return copy if take_logins(copy) else plain


def take_logins(value: object) -> bool:
    """Remove credentials from plain values in place, at any depth, and return whether there were any."""
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
