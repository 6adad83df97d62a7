"""Patterns of strings that every decoder understands the same way. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

_LITERAL = r"[A-Za-z0-9_ ,:;=@#%&!<>~'/-]"
_TOKEN = re.compile(
    rf"(?P<literal>{_LITERAL})|\\(?P<escaped>[.+*?()\[\]/-])|\\(?P<kind>[dw])"
    r"|\[(?P<members>(?:[A-Za-z0-9_ ,:;=@#%/.+-]|\\[dw.])+)\]"
    r"|(?P<repeat>[*+?]|\{\d{1,2}(?:,\d{0,2})?\})|(?P<opening>\((?:\?:)?)|(?P<closing>\))|(?P<or>\|)"
)
_KINDS = {"d": "0-9", "w": "A-Za-z0-9_"}
_LONGEST = 200


@lru_cache(maxsize=1024)
def plain_pattern(pattern: str) -> str | None:
    """The same pattern without shorthands; None when it is not held at both ends, or says more than is safe to say.

    A decoder writes what a pattern allows straight into a JSON string, so it must not allow quotes and the like.
    """
    if not (pattern.startswith("^") and pattern.endswith("$")) or len(pattern) > _LONGEST:
        return None
    at, end, depth, made, was = 1, len(pattern) - 1, 0, "", "opening"
    while at < end:
        token = _TOKEN.match(pattern, at, end)
        if token is None:
            return None
        kind = token.lastgroup or ""
        depth += (kind == "opening") - (kind == "closing")
        if depth < 0 or (kind == "or" and not depth) or (kind == "repeat" and was in ("repeat", "opening", "or")):
            return None
        made, was, at = made + _written(kind, token), kind, token.end()
    return f"^{made}$" if not depth and made and _is_sound(made) else None


def _written(kind: str, token: re.Match[str]) -> str:
    if kind == "kind":
        return f"[{_KINDS[token[kind]]}]"
    if kind == "members":
        members = re.sub(r"\\([dw])", lambda found: _KINDS[found[1]], token[kind])
        return f"[{members.replace(chr(92), '')}]"
    return token.group()


def _is_sound(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
