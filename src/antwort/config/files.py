"""The configuration file: which one it is, and what is in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from antwort.config.documents import NotYaml, parse
from antwort.config.nodes import Origin, Table, is_nothing
from antwort.config.paths import expanded, own_folder
from antwort.config.problems import CannotStart

FILE_VARIABLE = "ANTWORT_CONFIG"
FILE_NAME = "antwort.yaml"
_LARGEST = 2**20


def find_file(named: str | None, environment: Mapping[str, str]) -> Path | None:
    """The file that is named, or else the first of `places` that is there. Raises `CannotStart`."""
    if named is None:
        named = environment.get(FILE_VARIABLE) or None
    if named is None:
        return next((place for place in places() if _is_there(place)), None)
    try:
        return Path(expanded(named))
    except ValueError as exc:
        raise CannotStart(f"The configuration file {named!r} cannot be read: its name {exc}.") from exc


def places() -> tuple[Path, ...]:
    """Where a file is looked for that nobody names."""
    own = own_folder("config")
    return (Path(FILE_NAME), *(() if own is None else (own / FILE_NAME,)))


def _is_there(place: Path) -> bool:
    """What cannot even be looked at is somebody else's."""
    try:
        return place.exists()
    except OSError:
        return False


def read_file(file: Path) -> Table:
    """Raises `CannotStart`, with the file and, where it is known, the line."""
    name = str(file)
    try:
        node = parse(_text(file), name, folder=str(file.parent), is_file=True)
    except NotYaml as exc:
        place = name if exc.line is None else f"{name}:{exc.line}"
        raise CannotStart(f"{place} is not valid: {exc.problem}.") from exc
    if node is None or is_nothing(node):
        return Table({}, Origin(name))
    if not isinstance(node, Table):
        raise CannotStart(f"{name} must hold settings, such as `default_model: qwen3`.")
    return node


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except OSError as exc:
        raise CannotStart(f"The configuration file {str(file)!r} cannot be read: {exc.strerror}.") from exc
    if len(data) > _LARGEST:
        raise CannotStart(f"The configuration file {str(file)!r} is larger than {_LARGEST} bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        raise CannotStart(f"{file}:{line} is not valid: it is not UTF-8 text.") from exc


def others_can_read(file: Path) -> bool:
    """Always false where files have no such rights."""
    import os

    try:
        return os.name == "posix" and file.is_file() and bool(file.stat().st_mode & 0o044)
    except OSError:
        return False
