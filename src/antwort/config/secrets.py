"""Values that must not be seen: given as they are, or by the name of a variable or a file."""

from __future__ import annotations

import re
from pathlib import Path

MASK = "••••"
"""What is shown in the place of a value that must not be seen."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY = re.compile(r"(sk|pk|rk|gsk|hf|xai|ghp|nvapi|key)[-_]|eyJ|(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_+=-]{20,}$")
"""Beginnings of keys that are known, and long words of letters and digits that are no path."""
_LARGEST = 64 * 1024
"""Bytes of a file that holds a secret."""


class Secret:
    """A value that is never shown by accident. `origin` says where it came from, and may be shown."""

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
    """The text of the file, without white space around it. Raises `ValueError`, which says why not."""
    problem = f"cannot be read from {str(file)!r}"
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
        text = data[:_LARGEST].decode("utf-8-sig").strip()
    except OSError as exc:
        raise ValueError(f"{problem}: {exc.strerror or 'it is no file'}") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"{problem}: it is not text") from exc
    if len(data) > _LARGEST:
        raise ValueError(f"{problem}: it is larger than {_LARGEST} bytes")
    if not text:
        raise ValueError(f"{problem}: it is empty")
    return text


def may_be_secret(name: str) -> bool:
    """Whether what stands in the place of a name looks like the secret itself: then it is not repeated."""
    return _VARIABLE.fullmatch(name) is None and _KEY.match(name) is not None


def can_be_sent(text: str) -> bool:
    """All secrets travel in HTTP headers."""
    return text.isascii() and text.isprintable()
