"""What a model needs to run: llama.cpp, and files that are what they should be."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

_MAGIC = b"GGUF"
_LONGEST_TEMPLATE = 2**20


class CannotRun(ValueError):
    """The model cannot be run; the message says why, in a clause: `the file … is not there`."""


class NotInstalled(CannotRun):
    """llama.cpp is not there."""

    def __init__(self) -> None:
        super().__init__("llama.cpp is not installed: `pip install 'antwort[local]'` brings it")


def has_llama() -> bool:
    """Whether llama.cpp is installed; it is not loaded."""
    return find_spec("xllamacpp") is not None


def gguf(path: Path) -> Path:
    """The file, whole path and all. Raises `CannotRun` unless it is there and begins as a GGUF file does."""
    if _beginning(path, len(_MAGIC)) != _MAGIC:
        raise CannotRun(f"{str(path)!r} is not a GGUF file")
    return path.absolute()


def template(path: Path) -> str:
    """The text of a chat template. Raises `CannotRun`."""
    content = _beginning(path, _LONGEST_TEMPLATE + 1)
    if len(content) > _LONGEST_TEMPLATE:
        raise CannotRun(f"{str(path)!r} is too long for a chat template")
    try:
        return content.decode()
    except UnicodeDecodeError as exc:
        raise CannotRun(f"{str(path)!r} is no chat template: it is not UTF-8") from exc


def _beginning(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except FileNotFoundError as exc:
        raise CannotRun(f"there is no file {str(path)!r}") from exc
    except (OSError, ValueError) as exc:  # a ValueError is for a path with a zero byte in it
        reason = exc.strerror if isinstance(exc, OSError) else "no file has such a name"
        raise CannotRun(f"{str(path)!r} cannot be read: {reason}") from exc
