"""The findings about a backend, kept as its settings in the configuration file."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from antwort.config.files import expanded, replace_file
from antwort.config.loading import read
from antwort.config.problems import CannotStart
from antwort.config.settings import BackendSettings, is_name
from antwort.doctor.editing import CannotEdit, Fields, edited, entry_lines
from antwort.doctor.findings import Examination, Value


class FileChange(NamedTuple):
    """What came of recording: the lines of a diff, empty where nothing had to change."""

    file: Path
    diff: tuple[str, ...]


class CannotRecord(Exception):
    """The file was left as it is. The message says why, and `paste` what to put there by hand."""

    def __init__(self, reason: str, paste: str) -> None:
        super().__init__(reason)
        self.paste = paste


def record(
    file: Path,
    examined: Examination,
    base: str,
    *,
    settings: BackendSettings | None,
    key_file: str | None = None,
    above: str = "",
) -> FileChange:
    """Keep what was found about a backend. `settings` are those that it has in this file; None: it is not in it.

    `base` is its address. Of its key only the place is written, where it came from a file. `above`: what sets
    the backends in force, where that is not the file. Raises `CannotRecord`.
    """
    changes = nested(examined.settings)
    fresh = {"name": examined.name, "url": base, **_key(key_file), **changes}
    if settings is not None and not changes:
        return FileChange(file, ())
    try:
        if above:
            raise CannotEdit(f"{above} is set, and goes before what is in it")
        before = _text(file)
        after = edited(before, examined.name, changes, fresh)
        replace_file(file, after, mode=0o666 & ~_umask(), check=lambda new: _check(new, file))
    except (CannotEdit, CannotStart, OSError, UnicodeError) as exc:
        lines = "\n".join(["backends:", *entry_lines({"name": examined.name, **(changes if settings else fresh)})])
        raise CannotRecord(_reason(exc), _shown(lines)) from exc
    return FileChange(file, tuple(_diff(file, before, after)))


def new_name(engine: str, taken: set[str]) -> str:
    """What a backend that is not configured yet is to be called."""
    name = engine if is_name(engine) and engine != "unknown" else "default"
    numbered = (f"{name}-{number}" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def nested(settings: Mapping[str, Value]) -> Fields:
    """By the tables that the paths lead through."""
    fields: dict[str, Any] = {}
    for path, value in settings.items():
        table, _, name = path.rpartition(".")
        place: dict[str, Any] = fields.setdefault(table, {}) if table else fields
        place[name] = value
    return fields


def _reason(fault: Exception) -> str:
    if isinstance(fault, UnicodeError):  # whose own words quote the text
        return "it is not a text in UTF-8"
    told = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
    return told.rstrip(".")


def _key(key_file: str | None) -> Fields:
    return {} if key_file is None else {"api_key": {"file": str(Path(expanded(key_file)).absolute())}}


def _text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", newline="") as opened:
            return opened.read()
    except FileNotFoundError:
        return ""


def _check(new: Path, file: Path) -> None:
    try:
        read({"config": str(new)})
    except CannotStart as exc:
        raise CannotStart(str(exc).replace(str(new), str(file))) from exc


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _diff(file: Path, before: str, after: str) -> list[str]:
    """Without the lines around: there may be secrets in them."""
    name = str(file)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, n=0, lineterm="")
    return [_shown(line) for line in lines]


def _shown(text: str) -> str:
    """Some backends take their key in the query of their address."""
    return "\n".join(
        f"{head}{mark}{'…' if mark else ''}" for head, mark, _ in (li.partition("?") for li in text.split("\n"))
    )
