"""A file of the operator's, written anew: all or nothing, and theirs as it was before."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def replace_file(file: Path, text: str, *, mode: int, check: Callable[[Path], None] = lambda _: None) -> None:
    """Nobody finds half a file. Owner and rights stay; `mode` is for a file that is new. A link stays one.

    `check` sees the new file before it takes the place of the old one, and may raise. Raises `OSError`, also for a
    file that is to be read only.
    """
    data = text.encode()
    place = Path(os.path.realpath(file))
    before = _status(place)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".new", dir=place.parent)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(data)
        check(new)
        _give(new, before, mode)
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def copy_of(file: Path, to: Path) -> None:
    """Its bytes, its owner and its rights in a file that is new. Raises `OSError`."""
    with os.fdopen(os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(file.read_bytes())
    _give(to, file.stat(), 0o600)


def _status(place: Path) -> os.stat_result | None:
    try:
        status = place.stat()
    except FileNotFoundError:
        return None
    if not status.st_mode & 0o222 or not os.access(place, os.W_OK):  # to root, nothing is read only
        raise PermissionError(errno.EACCES, "it is read-only")
    return status


def _give(new: Path, before: os.stat_result | None, mode: int) -> None:
    if before is None:
        return new.chmod(mode)
    with contextlib.suppress(PermissionError):  # only root can give a file away
        os.chown(new, before.st_uid, before.st_gid)
    return new.chmod(before.st_mode & 0o7777)
