"""Secrets: values that no message shows."""

from __future__ import annotations

import re
from pathlib import Path

MASK = "••••"
"""Shown in place of a secret."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY = re.compile(r"(sk|pk|rk|gsk|hf|xai|ghp|nvapi|key)[-_]|eyJ|(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=-]{20,}$")
"""Known prefixes of keys, and long words of letters and digits that are no path."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MAX_FILE_BYTES = 64 * 1024


class Secret:
    """A value that `repr` does not show. `origin` is where it came from, and may be shown."""

    __slots__ = ("_value", "origin")

    def __init__(self, value: str, origin: str = "") -> None:
        self._value = value
        self.origin = origin

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)


def read_secret_file(file: Path) -> str:
    """Return the text of the file, without white space around it. Raises `ValueError` with the reason."""
    problem = f"cannot be read from {str(file)!r}"
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
        text = data[:_MAX_FILE_BYTES].decode("utf-8-sig").strip()
    except OSError as exc:
        raise ValueError(f"{problem}: {exc.strerror or 'it is no file'}") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"{problem}: it is not text") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"{problem}: it is larger than {_MAX_FILE_BYTES} bytes")
    if not text:
        raise ValueError(f"{problem}: it is empty")
    return text


def may_be_secret(name: str) -> bool:
    """Return whether what is given as a name looks like a secret itself: then it is not repeated."""
    return _VARIABLE.fullmatch(name) is None and _KEY.match(name) is not None


def can_be_sent(text: str) -> bool:
    """Return whether the text can be the value of an HTTP header, which is how all secrets are sent."""
    return text.isascii() and text.isprintable()


def is_token(text: str) -> bool:
    """Return whether the text can be the name of a header."""
    return _TOKEN.fullmatch(text) is not None
