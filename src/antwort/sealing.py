"""The vault of a server, as the settings say: by their keys, by a key in the data folder, or by one of this process."""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from antwort.config.problems import CannotStart
from antwort.config.secrets import read_secret_file
from antwort.config.settings import Settings
from antwort.notes import note
from antwort.vault import Vault

_log = logging.getLogger("antwort.sealing")

KEY_FILE = "seal.key"
_KEY = re.compile("[A-Za-z0-9_-]{43}")
"""32 random bytes, as text."""
_FIX = (
    "Bring it back from a copy, or delete it to have a new one made; what was sealed with the old key then cannot be "
    "opened any more."
)
_SET_KEYS = "With a database, encryption.keys can be set instead, the same in all processes."


def make_vault(settings: Settings) -> Vault:
    """Raises `CannotStart` when the key in the data folder cannot be had. Without a database, the folder is there."""
    if settings.encryption.keys:
        return Vault([key.reveal() for key in settings.encryption.keys])
    if settings.memory:
        return Vault.ephemeral()
    file = settings.data_folder() / KEY_FILE
    if settings.database is None:
        return Vault([kept_key(file)])
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Vault([kept_key(file)])
    except OSError as exc:
        raise CannotStart(f"The key file {str(file)!r} cannot be made or read: {exc.strerror}. {_SET_KEYS}") from exc
    except CannotStart as exc:
        raise CannotStart(f"{exc} {_SET_KEYS}") from exc


def kept_key(file: Path) -> str:
    """The key in the file, which is made when it is not there: whoever else makes one at the same time, it is one."""
    try:
        if not os.path.lexists(file):
            _make(file)
        _check_mode(file)
        key = read_secret_file(file)
    except OSError as exc:
        raise CannotStart(f"The key file {str(file)!r} cannot be made or read: {exc.strerror}.") from exc
    except ValueError as exc:
        raise CannotStart(f"The key to seal with {exc}. {_FIX}") from exc
    if not _KEY.fullmatch(key):
        raise CannotStart(f"The key file {str(file)!r} does not hold a key. {_FIX}")
    return key


def _make(file: Path) -> None:
    """Written whole under another name first: nobody finds half of a key, and no key takes the place of another."""
    key, draft = secrets.token_urlsafe(32), file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    with suppress(FileExistsError):  # another server was faster; its key counts
        try:
            _write(draft, key)
            os.link(draft, file)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links, or nothing can be written at all
            _write(file, key)
        finally:
            draft.unlink(missing_ok=True)


def _write(file: Path, key: str) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
        opened.write(f"{key}\n")
        opened.flush()
        os.fsync(opened.fileno())


def _check_mode(file: Path) -> None:
    if os.name != "nt" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        note(_log, logging.WARNING, "others can read the key that reasoning is sealed with: chmod 600", file=str(file))
